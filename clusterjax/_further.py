"""Training a finished run further: where what a call trains begins, and how its learning rate goes.

A run falls with its learning rate to the end of its steps, so that there is nothing left of the rate with which to go
on. A finished run that is asked for more steps is trained in another leg: state of the optimiser, numbers of the steps
and history go on, and the rate rises over the warm-up again and falls as it did before, now to the new end (warm
restarts, Loshchilov and Hutter, 1608.03983; as Ibrahim et al., 2403.08763, train large models further). It is not what
one run of so many steps would have been, and the settings say so: `legs` lists the steps at which former legs ended.

**Invariants.** A leg begins at a finished one only; a leg that was killed goes on bit for bit; a run of one leg is
what it was without this file.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from ._run_file import plain


# What a checkpoint says of its run: the settings, how many epochs are made, and which of them was the best.
Stored = tuple[dict[str, Any], int, int]


class Legs(NamedTuple):
    """The legs of a run.

    **Attributes:**

    - `ends`: The steps, or epochs, at which legs before this one ended.
    - `total`: At which this one ends.
    - `each`: How many are between two checkpoints.
    """

    ends: tuple[int, ...]
    total: int
    each: int

    @property
    def start(self) -> int:
        """The steps of all former legs."""
        return self.ends[-1] if self.ends else 0

    @property
    def start_epoch(self) -> int:
        """The checkpoints of all former legs: each leg ends with one."""
        return sum(-(-(end - begin) // self.each) for begin, end in zip((0, *self.ends), self.ends, strict=False))

    @property
    def epochs(self) -> int:
        """The checkpoints at the end of this one."""
        return self.start_epoch - (-(self.total - self.start) // self.each)

    def steps_until(self, epoch: int) -> int:
        """The steps at the checkpoint of this number, from 0."""
        former = self._replace(ends=self.ends[:-1], total=self.start)
        if self.ends and epoch < self.start_epoch:
            return former.steps_until(epoch)
        return min(self.start + (epoch - self.start_epoch) * self.each, self.total)

    def settings(self) -> dict[str, Any]:
        """What the settings of a run say of them; nothing of a run of one leg."""
        return {"legs": list(self.ends)} if self.ends else {}


def legs_of(
    stored: Stored | None,
    total: int,
    each: int,
    is_of: Callable[[dict[str, Any], int], bool],
    length_of: Callable[[dict[str, Any]], Any],
    name: str,
    over: bool = False,
) -> Legs:
    """Which leg it is that a call trains.

    **Arguments:**

    - `stored`: The run of the checkpoint that is there, as `stored_run` gives it; None if there is none.
    - `total`, `each`: As in `Legs`, of the call.
    - `is_of`: Whether the settings of a run are those of the call, if that had so many steps.
    - `length_of`: The steps in the settings of a run.
    - `name`: What the argument is called, for messages.
    - `over`: Whether the run that is there has ended before its last checkpoint.

    **Raises:**

    - `ValueError` if more steps are asked of a run that is not finished, or fewer than a former leg has.
    """
    alone = Legs((), total, each)
    if stored is None:
        return alone
    settings, made, _ = stored
    length, ends = length_of(settings), settings.get("legs", [])
    # Settings of another form are refused where they are compared, with what differs.
    if not (isinstance(length, int) and _are_ends(ends) and is_of(settings, length)):
        return alone
    before = Legs(tuple(ends), length, each)
    if total == length:
        return before
    if total < length:
        raise ValueError(
            f"{name} must be at least the {length} of the run that is there, but it is {total}; say as many, or choose "
            "another folder."
        )
    if not over and made < before.epochs:
        raise ValueError(
            f"{name} must be the {length} of the run that is there until that is finished, since its learning rate "
            f"falls to the end of these, but it is {total}, and {before.steps_until(made)} are made; finish it first, "
            "and train it further then."
        )
    return Legs((*ends, before.steps_until(made)), total, each)


def _are_ends(ends: Any) -> bool:
    return isinstance(ends, list) and all(isinstance(end, int) and end > 0 for end in ends)


def ended_early(stored: Stored, patience: int | None) -> bool:
    """Whether the last leg of a run has ended by its patience; its epochs are counted from the start of that leg."""
    settings, made, best = stored
    begun = (settings.get("legs") or [0])[-1]
    return patience is not None and made - max(best, begun) >= patience


def later(schedule: Callable[[Any], Any], start: int) -> Callable[[Any], Any]:
    """A schedule of a leg that begins after so many steps of former ones."""
    return schedule if start == 0 else lambda count: schedule(count - start)


def same(one: Any, other: Any) -> bool:
    """Whether two settings are the same once they were JSON."""
    return plain(one) == plain(other)
