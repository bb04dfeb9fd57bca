"""`MergeTree`, the result of `coarsen`: mergers, the tokens at any time, and error bounds of the merger times."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._check import check_number
from .._custom_types import RealScalarLike, Tokens
from .bound import relative_errors
from .run import Leg, Run
from .steps import between, lasting, root


@final
@dataclass(frozen=True, eq=False, repr=False)
class MergeTree:
    r"""The mergers of tokens: pairs, times and points, as NumPy arrays of float64 with one entry for each merger.

    A merger is the first moment at which tokens of two components come to the chordal distance `tolerance`. From then
    on, the two components are one, whatever the distances. The label of a component is the index of its first token.
    At most n - 1 mergers occur, in the order of time; tokens within the tolerance at the start merge at time 0.

    **Attributes:**

    - `times`: The merger times, not decreasing, at most `t_end`.
    - `pairs`: (mergers, 2): the labels of the two components, the label that remains first.
    - `points`: (mergers, d): the point of the sphere midway between the two tokens that came to the tolerance.
    - `t_end`, `tolerance`: The arguments of `coarsen`.
    - `num_tokens`, `num_steps`: The numbers of tokens and of accepted steps.
    """

    times: Float[np.ndarray, " mergers"]
    pairs: Int[np.ndarray, "mergers 2"]
    points: Float[np.ndarray, "mergers d"]
    t_end: float
    tolerance: float
    num_tokens: int
    num_steps: int
    _run: Run
    _dtype: np.dtype

    @classmethod
    def _of(cls, run: Run, dtype: np.dtype) -> "MergeTree":
        n, d = len(run.cloud.cluster), run.cloud.y.shape[1]
        return cls(
            np.array([merger.time for merger in run.mergers], float),
            np.array([merger.pair for merger in run.mergers], int).reshape(-1, 2),
            np.array([merger.point for merger in run.mergers], float).reshape(-1, d),
            run.t_end,
            run.tolerance,
            n,
            len(run.legs),
            run,
            dtype,
        )

    def __len__(self) -> int:
        return len(self.times)

    def __repr__(self) -> str:
        last = f", the last at t = {self.times[-1]:.4g}" if len(self) else ""
        return f"MergeTree({len(self)} mergers of {self.num_tokens} tokens{last})"

    @cached_property
    def bound(self) -> Float[np.ndarray, " mergers"]:
        r"""A bound of the relative error of each merger time, computed at the first access.

        The bound covers the errors of the steps, rounding errors, and the effect on all clusters of following merged
        tokens as one: twice the sum of the absolute effects, each to first order, by the gradient of the merger time
        along the run. The bound assumes small effects: where it is not small against 1, as in a run that passes very
        near an unstable equilibrium, the time is not known. The bound also assumes that the tokens of a cluster
        contract within a step where they contract at both ends; otherwise, the bound grows with their spread.

        For mergers while more than 1,024 of more than 4,096 tokens are left, the value is an estimate: the displacement
        by these errors is followed forwards, once with its directions and once, threefold, in random directions.
        """
        return relative_errors(self._run)

    def at(self, t: RealScalarLike) -> Tokens:
        """All tokens at time `t`, (n, d); the tokens of a cluster share one point.

        **Arguments:**

        - `t`: From 0 to `t_end`.

        **Raises:**

        - `ValueError` if `t` is outside of this range.
        """
        t = _check_time(t, self.t_end)
        legs = self._run.legs
        starts = np.array([leg.t for leg in legs])
        index = int(np.searchsorted(starts, t, side="right")) - 1
        # Several legs may begin at times equal to rounding: the state after the last of them is returned.
        if index < 0 or t >= legs[index].end:
            cloud = self._run.cloud if index < 0 else self._after(index)
            return jnp.asarray(cloud.y[cloud.cluster], self._dtype)
        return jnp.asarray(self._within(legs[index], t)[legs[index].cloud.cluster], self._dtype)

    def steps(self) -> tuple[Float[np.ndarray, " steps"], Float[np.ndarray, "steps n d"]]:
        """The time at which each step began, and the end of the last step, with all tokens at these times, as float64.

        `at` returns the tokens at these times too, but more slowly. The last time may be after `t_end`, and is infinite
        beyond the range of float64. A run that ended before `t_end` has come to rest.
        """
        legs, last = self._run.legs, self._run.last
        times = np.array([*(leg.t for leg in legs), legs[-1].end if legs else 0.0])
        clouds = [*(leg.cloud for leg in legs), last]
        return times, np.stack([cloud.y[cloud.cluster] for cloud in clouds])

    def clusters(self, t: RealScalarLike) -> Int[Array, " n"]:
        """The component of each token at time `t`: the index of its first token, as in `cluster_labels`.

        **Arguments:**

        - `t`: From 0 to `t_end`.

        **Raises:**

        - `ValueError` if `t` is outside of this range.
        """
        t = _check_time(t, self.t_end)
        labels = np.arange(self.num_tokens)
        for remains, ends in self.pairs[: np.searchsorted(self.times, t, side="right")]:
            labels[labels == ends] = remains
        return jnp.asarray(labels)

    def _after(self, index: int) -> Any:
        """The cloud after a leg."""
        legs = self._run.legs
        return legs[index + 1].cloud if index + 1 < len(legs) else self._run.last

    def _within(self, leg: Leg, t: float) -> np.ndarray:
        """The clusters of a leg at time t."""
        inside = between(self._run.law, leg.cloud.attended, leg.again(self._run.law))
        since = lasting(t - leg.t, -leg.clock)
        return inside.clusters(root(lambda share: inside.elapsed(share) - since))


def _check_time(t: Any, t_end: float) -> float:
    return check_number(t, "t", least=0, most=t_end, remedy="pass a time of the run")
