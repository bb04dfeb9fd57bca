"""Plateaus of a scalar along a run: the times at which it stays near one level, and when it leaves.

**Algorithm.** Two monotone queues find, for every start, the longest window whose values spread by at most
2 `tolerance`, in O(times). The longest window is then chosen greedily, and the search repeats on either side of it.
**Invariant.** Plateaus do not overlap, and none can be extended by a saved time outside of the longer plateaus.
"""

from collections import deque
from typing import Any, final

import equinox as eqx
import numpy as np
from jaxtyping import ArrayLike, Float, Real

from .._check import as_numbers, check_number, shown
from .._misc import is_concrete
from .._summary import short


@final
class Plateaus(eqx.Module):
    """Plateaus in the order of time, as NumPy arrays with one entry for each plateau.

    **Attributes:**

    - `start`, `stop`: The first and the last saved time of each plateau.
    - `level`: The midrange of the values on the plateau.
    - `escape_times`: The first saved time after the plateau; infinite if the series ends on the plateau.
    - `dwell_times`: `stop - start`; a lower bound if the escape was not observed.
    """

    start: Float[np.ndarray, " plateaus"]
    stop: Float[np.ndarray, " plateaus"]
    level: Float[np.ndarray, " plateaus"]
    escape_times: Float[np.ndarray, " plateaus"]

    def __repr__(self) -> str:
        return short(self)

    def summary(self) -> str:
        """A line for each plateau: its times, its level and its duration."""
        rows = [f"{len(self)} plateau{'' if len(self) == 1 else 's'}"]
        for start, stop, level, escape in zip(self.start, self.stop, self.level, self.escape_times, strict=True):
            after = f"left by {escape:.4g}" if np.isfinite(escape) else "not left"
            rows.append(f"  from {start:.4g} to {stop:.4g} at {level:.4g}, for {stop - start:.4g}, {after}")
        return "\n".join(rows)

    @property
    def dwell_times(self) -> Float[np.ndarray, " plateaus"]:
        """`stop - start`; a lower bound if the escape was not observed."""
        return self.stop - self.start

    def __len__(self) -> int:
        return self.start.shape[0]


def plateaus(
    ts: Real[ArrayLike, " times"],
    values: Real[ArrayLike, " times"],
    *,
    tolerance: float | int,
    min_dwell: float | int,
) -> Plateaus:
    """The windows of time in which a series stays within `tolerance` of one level for at least `min_dwell`.

    A window is a stretch of saved times whose largest and least value differ by at most `2 * tolerance`: all its values
    are within `tolerance` of their midrange, the level. The longest window is the first plateau (the earlier in a tie);
    the next is the longest in the remainder on either side, and so on, as long as a window lasts `min_dwell`. Plateaus
    thus do not overlap, and each is maximal in the remainder of longer plateaus.

    Metastability is thus a property of a window and of the two thresholds, which have no defaults: a series that drifts
    more slowly than `2 * tolerance / min_dwell` consists of plateaus. Times have the resolution of `ts`. Energy and
    `num_clusters` along a run are the usual series; counts need a `tolerance` below one half. A host function.

    **Arguments:**

    - `ts`: Increasing times, at least two.
    - `values`: The series at these times.
    - `tolerance`: Half the largest spread on a plateau, not negative.
    - `min_dwell`: The duration of the shortest plateau, positive.

    **Returns:**

    `Plateaus`, with `start`, `stop`, `level`, `dwell_times` and `escape_times`; possibly empty.

    **Raises:**

    - `ValueError` if the series do not match, are not finite, or are traced, `ts` does not increase, or a threshold is
      out of range.

    ??? cite "Source"

        Geshkovski et al., *Dynamic metastability in the self-attention model* (2410.06833), describes the staircase of
        energy from which these windows are derived.
    """
    tolerance = check_number(tolerance, "tolerance", least=0, remedy="pass half a spread")
    min_dwell = check_number(min_dwell, "min_dwell", above=0, remedy="pass a duration")
    ts, values = _check_series(ts, values)
    windows = sorted(_longest_windows(ts, _reach(values, 2 * tolerance), min_dwell))
    first = np.array([lo for lo, _ in windows], dtype=int)
    last = np.array([hi for _, hi in windows], dtype=int)
    levels = [(values[lo : hi + 1].min() + values[lo : hi + 1].max()) / 2 for lo, hi in windows]
    # The saved time after each index; infinite after the last.
    later = np.append(ts[1:], np.inf)
    return Plateaus(start=ts[first], stop=ts[last], level=np.array(levels, dtype=np.float64), escape_times=later[last])


def _check_series(ts: Any, values: Any) -> tuple[np.ndarray, np.ndarray]:
    if not is_concrete((ts, values)):
        raise ValueError("ts and values must not be traced, but one is; call this host function outside jax.jit.")
    ts, values = (_numbers(series, name) for name, series in (("ts", ts), ("values", values)))
    if ts.ndim != 1 or ts.shape[0] < 2 or values.shape != ts.shape:
        raise ValueError(
            f"ts and values must be two series of one length, at least 2, but their shapes are {ts.shape} and "
            f"{values.shape}; pass one number for each saved time."
        )
    if not (np.all(np.isfinite(ts)) and np.all(np.diff(ts) > 0)):
        raise ValueError(
            f"ts must be finite and increase, but it is {_shortened(ts)}; sort it and drop what is doubled."
        )
    if not np.all(np.isfinite(values)):
        bad = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ValueError(f"values must be finite, but entry {bad} is {values[bad]}; cut the series there.")
    return ts, values


def _numbers(series: Any, name: str) -> np.ndarray:
    array = as_numbers(series, name)
    if array is None or np.iscomplexobj(array):
        raise ValueError(f"{name} must be a series of real numbers, but it is {shown(series)}; pass one a saved time.")
    return np.asarray(array, dtype=np.float64)


def _shortened(numbers: np.ndarray) -> str:
    return str(numbers) if numbers.size <= 8 else f"{numbers[:8]} and so on"


def _reach(values: np.ndarray, spread: float) -> np.ndarray:
    """The last index, for each start, up to which the values stay within `spread` of each other."""
    size = values.shape[0]
    reach = np.empty(size, dtype=int)
    # The queues hold indices whose values may still become the least, or the largest, of a window, the current extreme
    # first: values increase along `lows` and decrease along `highs`, so that each index enters and leaves once.
    lows, highs = deque(), deque()
    end = 0
    for begin in range(size):
        while end < size:
            value = values[end]
            low = min(value, values[lows[0]]) if lows else value
            high = max(value, values[highs[0]]) if highs else value
            if high - low > spread:
                break
            while lows and values[lows[-1]] >= value:
                lows.pop()
            while highs and values[highs[-1]] <= value:
                highs.pop()
            lows.append(end)
            highs.append(end)
            end += 1
        reach[begin] = end - 1
        # The window advances, so that its first index is no longer a candidate.
        for candidates in (lows, highs):
            if candidates and candidates[0] == begin:
                candidates.popleft()
    return reach


def _longest_windows(ts: np.ndarray, reach: np.ndarray, min_dwell: float) -> list[tuple[int, int]]:
    """The first and last index of each plateau, unordered; `reach` is the result of `_reach`."""
    # A stack of time intervals that remain to be searched.
    windows, segments = [], [(0, ts.shape[0] - 1)]
    while segments:
        lo, hi = segments.pop()
        if lo >= hi or ts[hi] - ts[lo] < min_dwell:
            continue
        # `argmax` takes the first of tied windows, the earlier.
        ends = np.minimum(reach[lo : hi + 1], hi)
        best = int(np.argmax(ts[ends] - ts[lo : hi + 1]))
        begin, end = lo + best, int(ends[best])
        if ts[end] - ts[begin] >= min_dwell:
            windows.append((begin, end))
            segments += [(lo, begin - 1), (end + 1, hi)]
    return windows
