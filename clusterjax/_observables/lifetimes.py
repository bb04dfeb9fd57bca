r"""Lifetimes of states along runs, with censoring of states that outlast their run.

**Algorithm.** Spells are maximal stretches of saved times in one state. The survival curve is the Kaplan-Meier estimate
(J. Amer. Statist. Assoc. 53, 1958), $S(t) = \prod_{t_i \le t} (1 - d_i / n_i)$ with $d_i$ ends among $n_i$ spells that
lasted until $t_i$, with Greenwood's variance $S^2 \sum d_i / (n_i (n_i - d_i))$. **Invariants.** A spell whose end was
not observed counts as at risk until its last saved time, and never as an end. Without censored spells the curve is the
fraction of spells that last longer.
"""

from typing import Any, final

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float, Int, Real

from .._check import as_numbers, check_integer, check_number, shown
from .._custom_types import Numbers
from .._misc import is_concrete


@final
class Lifetimes(eqx.Module):
    """Spells of a state, as NumPy arrays with one entry for each spell, in the order of runs and times.

    **Attributes:**

    - `durations`: The time from the first saved time in the state to the first saved time after it; for a censored
        spell, to the last saved time in it.
    - `censored`: True if the end of the spell was not observed.
    - `least`, `most`: Bounds of the duration, because states change between two saved times. `most` is infinite for a
        censored spell.
    - `starts`, `runs`, `states`: The first saved time of the spell, the index of its run, and its state.
    """

    durations: Float[np.ndarray, " spells"]
    censored: Bool[np.ndarray, " spells"]
    least: Float[np.ndarray, " spells"]
    most: Float[np.ndarray, " spells"]
    starts: Float[np.ndarray, " spells"]
    runs: Int[np.ndarray, " spells"]
    states: Real[np.ndarray, " spells"]

    def __len__(self) -> int:
        return self.durations.shape[0]

    def survival(self) -> "Survival":
        """The fraction of spells that last longer than t, estimated from all spells, including censored spells."""
        ends = np.unique(self.durations[~self.censored])
        at_risk = np.sum(self.durations[None, :] >= ends[:, None], axis=1)
        ended = np.sum((self.durations[None, :] == ends[:, None]) & ~self.censored[None, :], axis=1)
        probabilities = np.cumprod(1 - ended / at_risk)
        # If the last spell at risk has ended, S is 0, and Greenwood's formula is 0 / 0.
        terms = ended / (at_risk * np.maximum(at_risk - ended, 1))
        errors = probabilities * np.sqrt(np.cumsum(terms))
        return Survival(ends, probabilities, errors, float(np.max(self.durations, initial=0.0)))

    @property
    def median(self) -> float:
        """The time that half of the spells outlast; infinite if too many spells are censored."""
        return self.survival().quantile(0.5)


@final
class Survival(eqx.Module):
    """A survival curve: constant between the durations at which spells ended, and 1 before the first.

    **Attributes:**

    - `times`: The durations at which spells ended, increasing.
    - `probabilities`: S from each of these durations on.
    - `standard_errors`: Greenwood's standard error of S; 0 where S is 0.
    - `followed`: The longest duration, ended or not; beyond it the curve is unknown, unless it is 0 there.
    """

    times: Float[np.ndarray, " ends"]
    probabilities: Float[np.ndarray, " ends"]
    standard_errors: Float[np.ndarray, " ends"]
    followed: float

    def at(self, t: float | int) -> float:
        """S(t), the fraction of spells that last longer than t; NaN where the curve is unknown.

        **Arguments:**

        - `t`: A time, not negative.

        **Raises:**

        - `ValueError` if `t` is negative.
        """
        t = check_number(t, "t", least=0, remedy="pass a duration")
        index = int(np.searchsorted(self.times, t, side="right"))
        value = 1.0 if index == 0 else float(self.probabilities[index - 1])
        return value if t <= self.followed or value == 0 else float("nan")

    def quantile(self, share: float | int) -> float:
        """The least time by which at least `share` of the spells have ended; infinite if that was not observed.

        **Arguments:**

        - `share`: A number between 0 and 1.

        **Raises:**

        - `ValueError` if `share` is not between 0 and 1.
        """
        share = check_number(share, "share", least=0, most=1, remedy="pass 0.5 for the median")
        # The tolerance protects the comparison from rounding of the product where S is exactly 1 - share.
        reached = np.flatnonzero(self.probabilities <= 1 - share + 1e-12)
        return float(self.times[reached[0]]) if reached.size else float("inf")

    def restricted_mean(self, horizon: float | int) -> float:
        """The area below the curve up to `horizon`: the mean of min(duration, horizon).

        **Arguments:**

        - `horizon`: A time, not beyond `followed` unless the curve is 0 there.

        **Raises:**

        - `ValueError` if the curve is unknown at `horizon`.
        """
        horizon = check_number(horizon, "horizon", above=0, remedy="pass a duration")
        if np.isnan(self.at(horizon)):
            raise ValueError(
                f"horizon must be at most {self.followed:.6g}, the longest that a spell was followed, but it is "
                f"{horizon}; pass a shorter one, or simulate for longer."
            )
        before = self.times < horizon
        edges = np.concatenate([[0.0], self.times[before], [horizon]])
        return float(np.sum(np.diff(edges) * np.concatenate([[1.0], self.probabilities[before]])))


def lifetimes(ts: Numbers, states: Numbers, *, state: int | None = None) -> Lifetimes:
    """The durations of states along one or more runs, such as the lifetimes of k clusters, with censoring.

    A spell is a maximal stretch of saved times with one state. It starts at its first saved time and ends at the first
    saved time in another state. The end of a spell that lasts to the end of its run is not observed: the spell is
    censored, and its duration is a lower bound. The last spell of a run that stopped early is censored too; the states
    of such a run are -1 or NaN at the times that were not reached, as returned by `simulate(save=...)`.

    Changes are dated by the save times, which should be dense where changes matter, and logarithmic over long times;
    `least` and `most` bound the effect of the grid. A host function.

    !!! example

        ```python
        >>> import clusterjax as cjx
        >>> counts = [[3, 2, 2, 1], [3, 3, 2, 2]]  # clusters of two runs; the second one still has two at the end
        >>> lives = cjx.lifetimes([0.0, 1.0, 10.0, 100.0], counts, state=2)
        >>> lives.durations.tolist(), lives.censored.tolist()
        ([99.0, 90.0], [False, True])
        >>> lives.median
        99.0
        ```

    **Arguments:**

    - `ts`: Increasing times, (T,), at least two.
    - `states`: The state at these times, (T,), or (runs, T), such as `num_clusters`: numbers that are equal while the
        state lasts.
    - `state`: Select the spells of this state; None selects all spells.

    **Returns:**

    `Lifetimes`, with `durations`, `censored`, their `survival()` curve and its `median`.

    **Raises:**

    - `ValueError` if the shapes do not match, a time that was not reached comes before one that was, `ts` does not
        increase, or an argument is traced.

    ??? cite "Source"

        Kaplan, Meier, *Nonparametric estimation from incomplete observations* (J. Amer. Statist. Assoc. 53, 1958).
    """
    ts, states = _check_series(ts, states)
    if state is not None:
        state = check_integer(state, "state", least=0, remedy="pass a number of clusters")
    spells = [
        (*spell, run) for run, row in enumerate(states) for spell in _spells(ts, row) if state in (None, spell[-1])
    ]
    columns = np.array(spells, dtype=np.float64).reshape(-1, 7).T
    durations, censored, least, most, starts, kept, runs = columns
    return Lifetimes(durations, censored.astype(bool), least, most, starts, runs.astype(int), kept.astype(states.dtype))


def _spells(ts: np.ndarray, row: np.ndarray):
    """Duration, censoring, bounds, start and state of each spell of one run."""
    row = row[: np.count_nonzero(_reached(row))]
    # `edges` holds the first index of each spell, and finally the end of the reached times.
    edges = np.concatenate([[0], np.flatnonzero(row[1:] != row[:-1]) + 1, [row.size]])
    for first, after in zip(edges[:-1], edges[1:], strict=True):
        # An empty spell means that no time was reached.
        if first == after:
            continue
        censored = after == row.size
        last = ts[after - 1]
        end = last if censored else ts[after]
        # The spell began after the previous saved time, or at ts[0] if there is none.
        earliest = ts[max(first - 1, 0)]
        most = np.inf if censored else end - earliest
        yield end - ts[first], censored, last - ts[first], most, ts[first], row[first]


def _reached(states: np.ndarray) -> np.ndarray:
    # Times that were not reached are -1 for integers and NaN for floats: see `Trajectory.xs`.
    return states >= 0


def _check_series(ts: Any, states: Any) -> tuple[np.ndarray, np.ndarray]:
    if not is_concrete((ts, states)):
        raise ValueError("ts and states must not be traced, but one is; call this host function outside jax.jit.")
    ts, states = (_numbers(series, name) for name, series in (("ts", ts), ("states", states)))
    ts = ts.astype(np.float64)
    if ts.ndim != 1 or ts.shape[0] < 2:
        raise ValueError(
            f"ts must be a vector of at least two times, but its shape is {ts.shape}; pass the saved times."
        )
    if states.ndim not in (1, 2) or states.shape[-1:] != ts.shape:
        raise ValueError(
            f"states must be one series of {ts.shape[0]}, or one a row, but its shape is {states.shape}; pass one "
            "number for each saved time of each run."
        )
    if not (np.all(np.isfinite(ts)) and np.all(np.diff(ts) > 0)):
        raise ValueError("ts must be finite and increase, but it does not; sort it and drop what is doubled.")
    states = states.reshape(-1, ts.shape[0])
    if np.any(np.isinf(states)):
        raise ValueError("states must be finite, or NaN where a run had ended, but one is infinite; pass counts.")
    reached = _reached(states)
    if np.any(reached[:, 1:] & ~reached[:, :-1]):
        run = int(np.flatnonzero(np.any(reached[:, 1:] & ~reached[:, :-1], axis=1))[0])
        raise ValueError(
            f"states must be -1 or NaN after the end of a run only, but run {run} goes on after such a time; pass "
            "states that are not negative."
        )
    return ts, states


def _numbers(series: Any, name: str) -> np.ndarray:
    array = as_numbers(series, name)
    if array is None or np.iscomplexobj(array):
        raise ValueError(f"{name} must be a series of real numbers, but it is {shown(series)}; pass one a saved time.")
    array = np.asarray(array)
    return array.astype(int) if array.dtype == bool else array
