"""Lifetimes of states along runs, with censoring of states that outlast their run.

**Algorithm.** Spells are maximal stretches of saved times in one state. The survival curve is the Kaplan-Meier estimate
(J. Amer. Statist. Assoc. 53, 1958), $S(t) = ∏_{t_i ≤ t} (1 - d_i / n_i)$ with $d_i$ ends among $n_i$ spells that lasted
until $t_i$, with Greenwood's variance $S² ∑ d_i / (n_i (n_i - d_i))$. **Invariants.** A spell whose end was not
observed counts as at risk until its last saved time, and never as an end. Without censored spells the curve is the
fraction of spells that last longer.
"""

from collections import deque
from typing import Any, final

import equinox as eqx
import numpy as np
from jaxtyping import ArrayLike, Bool, Float, Int, Real

from .._base.checks import (
    as_numbers,
    check_concrete,
    check_host_array,
    check_integer,
    check_number,
    refusal,
    shown,
)
from .._base.numerics import is_concrete
from .._base.summary import short
from .._base.types import Numbers


_SINGLE = float(np.finfo(np.float32).eps)
_TINY = np.finfo(np.float64).tiny


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
        return _kaplan_meier(self.durations, self.censored)

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
        # A horizon of a run in float32 is followed up to that horizon, although float32 may have rounded it down.
        return value if t <= self.followed * (1 + _SINGLE) or value == 0 else float("nan")

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
        return float(np.sum(self._areas(check_number(horizon, "horizon", above=0, remedy="pass a duration"))))

    def restricted_mean_error(self, horizon: float | int) -> float:
        """Greenwood's standard error of `restricted_mean(horizon)`.

        The square of the error is $∑_i A_i² d_i / (n_i (n_i - d_i))$ over the times $t_i$ before the horizon, where
        $A_i$ is the area below the curve from $t_i$ to the horizon. Without censored spells the error is the standard
        deviation of min(duration, horizon), with divisor n, over √n.

        **Arguments:**

        - `horizon`: As in `restricted_mean`.

        **Raises:**

        - `ValueError` if the curve is unknown at `horizon`.
        """
        areas = self._areas(check_number(horizon, "horizon", above=0, remedy="pass a duration"))
        after = np.cumsum(areas[:0:-1])[::-1]
        # The variance of log S grows by d / (n (n - d)) at each time; where S is 0 the area after it is 0 too.
        ratios = self.standard_errors[: len(after)] / np.maximum(self.probabilities[: len(after)], _TINY)
        return float(np.sqrt(np.sum(after**2 * np.diff(ratios**2, prepend=0.0))))

    def _areas(self, horizon: float) -> np.ndarray:
        """The area below the curve between neighbouring times, from 0 to `horizon`."""
        if np.isnan(self.at(horizon)):
            raise ValueError(
                f"horizon must be at most {self.followed:.6g}, the longest that a spell was followed, but it is "
                f"{horizon}; pass a shorter one, or simulate for longer."
            )
        before = self.times < horizon
        edges = np.concatenate([[0.0], self.times[before], [horizon]])
        return np.diff(edges) * np.concatenate([[1.0], self.probabilities[before]])


def survival(times: Numbers, reached: Numbers) -> Survival:
    """The share of runs whose time is longer than t, from times of which some are only known to be longer.

    The Kaplan-Meier estimate also gives the mean up to a horizon, with its standard error. A plain mean that omits the
    runs that did not reach their time, or takes the end of such a run for its time, is too short. A host function.

    !!! example

        ```python
        >>> import clusterjax as cjx
        >>> curve = cjx.survival([1.0, 2.0, 4.0, 4.0], [True, True, False, False])
        >>> curve.restricted_mean(4.0), round(curve.restricted_mean_error(4.0), 3)
        (2.75, 0.65)
        ```

    **Arguments:**

    - `times`: A time for each run, (runs,), not negative, such as those of `time_to_cluster`.
    - `reached`: A boolean for each run, (runs,): True where the time was observed, False where the run ended before it,
        so that the time is at least that long.

    **Returns:**

    A `Survival`, with `at`, `quantile`, `restricted_mean` and `restricted_mean_error`.

    **Raises:**

    - `ValueError` if the shapes differ, there is no run, a time is negative or not finite, `reached` does not hold
      booleans, or an argument is traced.

    ??? cite "Source"

        Kaplan, Meier, *Nonparametric estimation from incomplete observations* (J. Amer. Statist. Assoc. 53, 1958).
    """
    remedy = "pass one time for each run"
    times = check_host_array(times, "times", shape=(None,), least=0, remedy=remedy).astype(np.float64)
    check_concrete(reached, "reached")
    observed = as_numbers(reached, "reached")
    if observed is None or observed.dtype != bool or np.shape(observed) != times.shape:
        words = shown(reached) if observed is None else f"an array of shape {observed.shape} and dtype {observed.dtype}"
        rule = f"be an array of booleans of shape {times.shape}, one for each time"
        raise refusal("reached", rule, f"it is {words}", "pass traj.event_reached of each run")
    if not times.size:
        raise refusal("times", "hold at least one time", "it is empty", remedy)
    return _kaplan_meier(times, ~np.asarray(observed))


def _kaplan_meier(durations: np.ndarray, censored: np.ndarray) -> Survival:
    """The survival curve; a duration that is censored at the time of an end counts as longer."""
    ends, ended = np.unique(durations[~censored], return_counts=True)
    at_risk = len(durations) - np.searchsorted(np.sort(durations), ends)
    probabilities = np.cumprod(1 - ended / at_risk)
    # If the last spell at risk has ended, S is 0, and Greenwood's formula is 0 / 0.
    terms = ended / (at_risk * np.maximum(at_risk - ended, 1))
    errors = probabilities * np.sqrt(np.cumsum(terms))
    return Survival(ends, probabilities, errors, float(np.max(durations, initial=0.0)))


def lifetimes(ts: Numbers, states: Numbers, *, state: int | None = None) -> Lifetimes:
    """The durations of states along one or more runs, such as the lifetimes of k clusters, with censoring.

    A spell is a maximal stretch of saved times with one state. A spell starts at its first saved time and ends at the
    first saved time in another state. The end of a spell that lasts to the end of its run is not observed: the spell is
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
    ts, states = _check_states(ts, states)
    if state is not None:
        state = check_integer(state, "state", least=0, remedy="pass a number of clusters")
    spells = [
        (*spell, run) for run, row in enumerate(states) for spell in _spells(ts, row) if state in (None, spell[-1])
    ]
    columns = np.array(spells, dtype=np.float64).reshape(-1, 7).T
    durations, censored, least, most, starts, kind, runs = columns
    return Lifetimes(durations, censored.astype(bool), least, most, starts, runs.astype(int), kind.astype(states.dtype))


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


def _check_states(ts: Any, states: Any) -> tuple[np.ndarray, np.ndarray]:
    ts, states = _numbers(ts, states, "states")
    if ts.ndim != 1 or ts.shape[0] < 2:
        raise ValueError(
            f"ts must be a vector of at least two times, but its shape is {ts.shape}; pass the saved times."
        )
    if states.ndim not in (1, 2) or states.shape[-1:] != ts.shape:
        raise ValueError(
            f"states must be one series of {ts.shape[0]}, or one a row, but its shape is {states.shape}; pass one "
            "number for each saved time of each run."
        )
    _check_increasing(ts)
    states = states.reshape(-1, ts.shape[0])
    if np.any(np.isinf(states)):
        raise ValueError("states must be finite, or NaN where a run had ended, but one is infinite; pass counts.")
    reached = _reached(states)
    late = np.any(reached[:, 1:] & ~reached[:, :-1], axis=1)
    if np.any(late):
        raise ValueError(
            f"states must be -1 or NaN after the end of a run only, but run {int(np.argmax(late))} goes on after "
            "such a time; pass states that are not negative."
        )
    return ts, states


def _numbers(ts: Any, values: Any, name: str) -> list[np.ndarray]:
    """The times and the series `name`, integers or floats; raises a ValueError if one is traced or holds no numbers."""
    if not is_concrete((ts, values)):
        raise ValueError(f"ts and {name} must not be traced, but one is; call this host function outside jax.jit.")
    arrays = []
    for series, called in ((ts, "ts"), (values, name)):
        array = as_numbers(series, called)
        if array is None or np.iscomplexobj(array):
            raise ValueError(
                f"{called} must be a series of real numbers, but it is {shown(series)}; pass one a saved time."
            )
        array = np.asarray(array)
        arrays.append(array.astype(np.float64 if called == "ts" else int if array.dtype == bool else array.dtype))
    return arrays


def _check_increasing(ts: np.ndarray) -> None:
    if not (np.all(np.isfinite(ts)) and np.all(np.diff(ts) > 0)):
        times = str(ts) if ts.size <= 8 else f"{ts[:8]} and so on"
        raise ValueError(f"ts must be finite and increase, but it is {times}; sort it and drop what is doubled.")


# Plateaus of a scalar along a run: the times at which it stays near one level, and when it leaves.
#
# **Algorithm.** Two monotone queues find, for every start, the longest window whose values spread by at most
# 2 `tolerance`, in O(times). The longest window is then chosen greedily, and the search repeats on either side of it.
# **Invariant.** Plateaus do not overlap, and none can be extended by a saved time outside of the longer plateaus.


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
    ts, values = _numbers(ts, values, "values")
    values = values.astype(np.float64)
    if ts.ndim != 1 or ts.shape[0] < 2 or values.shape != ts.shape:
        raise ValueError(
            f"ts and values must be two series of one length, at least 2, but their shapes are {ts.shape} and "
            f"{values.shape}; pass one number for each saved time."
        )
    _check_increasing(ts)
    if not np.all(np.isfinite(values)):
        bad = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ValueError(f"values must be finite, but entry {bad} is {values[bad]}; cut the series there.")
    windows = sorted(_longest_windows(ts, _reach(values, 2 * tolerance), min_dwell))
    first = np.array([lo for lo, _ in windows], dtype=int)
    last = np.array([hi for _, hi in windows], dtype=int)
    levels = [(values[lo : hi + 1].min() + values[lo : hi + 1].max()) / 2 for lo, hi in windows]
    # The saved time after each index; infinite after the last.
    later = np.append(ts[1:], np.inf)
    return Plateaus(start=ts[first], stop=ts[last], level=np.array(levels, dtype=np.float64), escape_times=later[last])


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
