"""The progress of a sweep, in one line on stderr, with the remaining time."""

import sys
import time
from collections.abc import Callable

import numpy as np


class Progress:
    """A line of progress: overwritten on a terminal, otherwise appended at intervals."""

    def __init__(
        self,
        costs: np.ndarray,
        todo: np.ndarray,
        done: int,
        shown: bool,
        *,
        now: Callable[[], float] = time.monotonic,
    ):
        self.costs, self.shown, self.now = costs, shown, now
        self.done, self.failed = done, 0
        self.total = done + len(todo)
        # The work is counted in units of cost: the remaining time is right although the costliest points come first.
        self.left = self.work = float(costs[todo].sum())
        self.begun = self.last = now()
        self.terminal = sys.stderr.isatty()
        if shown:
            print(f"sweep: {done} of {self.total} points are finished", file=sys.stderr, flush=True)

    def add(self, points: np.ndarray, failed: int) -> None:
        """Count the points of one more batch."""
        self.done += len(points)
        self.failed += failed
        self.left -= float(self.costs[points].sum())
        # The line is printed at most five times a second on a terminal, and twice a minute in a log.
        over = self.done == self.total
        if self.shown and (over or self.now() - self.last > (0.2 if self.terminal else 30.0)):
            self.last = self.now()
            end = "\n" if over or not self.terminal else ""
            # A carriage return and an erasure to the end of the line overwrite it.
            print(("\r\x1b[K" if self.terminal else "") + self.line(), end=end, file=sys.stderr, flush=True)

    def line(self) -> str:
        """The line of progress."""
        gone = self.now() - self.begun
        # Only the work of this run counts: points that were finished before took none of its time.
        worked = self.work - self.left
        words = [f"sweep: {self.done} of {self.total} points", f"{_clock(gone)} gone"]
        if self.done < self.total and worked > 0:
            words.append(f"{_clock(gone * self.left / worked)} left")
        return ", ".join(words + ([f"{self.failed} failed"] if self.failed else []))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
