"""`coarsen`: follow tokens by clusters to the end of time. This file checks and prepares the arguments of `run`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._base.checks import check_callable, check_concrete, check_integer, check_number, shown
from .._base.defaults import COARSEN_MAX_STEPS
from .._base.types import RealScalarLike, Tokens
from .._dynamics.simulate import check_start
from .._model.attention import SoftmaxAttention, UnnormalisedAttention
from .._model.field import AbstractField, AttentionField, check_field
from .._model.mask import CausalMask, FullMask
from .._model.position import refuse_position
from .._model.schedule import AbstractSchedule
from .._model.space import Sphere
from .bound import relative_errors
from .clouds import MOST_HELD
from .run import Leg, Run, Stalled, TooEarly, run
from .steps import between, lasting, root
from .velocity import Law


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
        tokens as one. The bound is twice the sum of the absolute effects, each to first order, by the gradient of the
        merger time along the run. The bound assumes small effects: where it is not small against 1, as in a run that
        passes very near an unstable equilibrium, the time is not known. The bound also assumes that the tokens of a
        cluster contract within a step where they contract at both ends; otherwise, the bound grows with their spread.

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


# The largest beta for more than `MOST_HELD` tokens: beyond it, the smallest weight may underflow.
_MOST_BETA = 300.0
# If V is not a multiple of the identity, velocities have rounding errors of `_ROUNDED`. The accepted times limit the
# accumulated displacement to `_MOST_DRIFT`, in radians.
_MOST_DRIFT, _ROUNDED = 1e-3, 100 * float(np.finfo(float).eps)


def coarsen(
    field: AbstractField,
    x0: Tokens,
    t_end: RealScalarLike,
    *,
    tolerance: RealScalarLike,
    max_steps: int = COARSEN_MAX_STEPS,
    log: Callable[[str], None] | None = None,
) -> MergeTree:
    """Follow tokens on the sphere from `x0` until `t_end` or the last merger, however long the clusters wait.

    At large beta, clusters wait for times of the order $exp(β(1 - c))$ before they merge: 1e32 at beta = 80. Tokens
    that have met are therefore followed as one cluster with the sum of their masses. Velocities are computed without
    the terms that cancel, so that a velocity of 1e-32 has a small relative error too. The step variable is the length
    of the path, along which a wait of any duration is short. A merger takes some twenty steps at any time. All
    computations are in float64, also where jax has not enabled float64.

    Tokens are joined at a distance far below `tolerance`, and only where the cluster contracts. With causal attention,
    the first token of a cluster moves the cluster, since the first token sees none of the others.
    [`MergeTree.bound`][clusterjax.MergeTree.bound] bounds the error of each merger time from these approximations.

    Where clusters contract onto a curve much faster than they move along it, as causal clusters do with some
    `query_key`, steps are implicit, for softmax attention and at most 400 / d clusters.

    More than 4,096 tokens are followed by tiles until 1,024 clusters remain, in O(n d) memory. A velocity is then a sum
    over half of all pairs, in single precision up to beta = 20, and some twenty steps in time have a tolerance of 1e-6.
    Tokens that meet and part again within a quarter of one of these steps do not count as merged.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> x0 = jnp.array([[1.0, 0.0], [0.0, 1.0], [-0.8, 0.6]])
        >>> tree = cjx.coarsen(cjx.AttentionField(cjx.SoftmaxAttention(80.0)), x0, 1e100, tolerance=0.1)
        >>> [f"{t:.1e}" for t in tree.times], tree.pairs.tolist()  # 1 and 2 merge, long after them 0 and 1
        (['7.9e+11', '1.2e+48'], [[1, 2], [0, 1]])
        >>> tree.clusters(1e20).tolist(), bool(tree.bound.max() < 1e-6)
        ([0, 1, 1], True)
        ```

    **Arguments:**

    - `field`: An `AttentionField` on the sphere with softmax or unnormalised attention and no mask or a causal mask.
        For V other than a multiple of the identity, velocities have rounding errors that limit `t_end`.
    - `x0`: Tokens, (n, d). More than 4,096 tokens require softmax attention with no mask, no query_key, a V that is a
        positive multiple of the identity, beta from 0 to 300 and masses above 0.
    - `t_end`: The last time; the run begins at 0. Pass 1e300 for no limit. The tree omits mergers after `t_end` and
        after the largest time that float64 holds, 1.8e308.
    - `tolerance`: The chordal distance at which two clusters have merged, $√(2(1-c))$ for the cosine c.
    - `max_steps`: The largest number of steps, rejected steps included; by default 100,000.
    - `log`: A function of one line, such as `print`, which reports the progress of a run of more than 4,096 tokens.

    **Returns:**

    A `MergeTree`.

    **Raises:**

    - `ValueError` for another field, for a field that depends on time, and for a V whose tokens part again; for invalid
        tokens, times or tolerances, and for values that the dtype of `x0` cannot hold; for unnormalised attention whose
        weights are so large that tokens merge before 2e-308, which an `offset` avoids; for a `log` that is no function.
    - `RuntimeError` if the steps run out or become too short, as where clusters contract onto a curve much faster than
        they move along it.

    ??? cite "Source"

        The waiting times: Geshkovski, Koubbi, Polyanskiy, Rigollet, *Dynamic metastability in the self-attention model*
        (2410.06833).
    """
    x0 = check_start(field, x0)
    law, masses = _law(field, len(x0), x0.shape[1])
    check_concrete(x0, "x0")
    if len(x0) > MOST_HELD:
        _check_many(law, masses)
    t_end = check_number(t_end, "t_end", above=0, remedy="pass a time after the start, which is 0")
    if law.value is not None and t_end * law.strength * _ROUNDED > _MOST_DRIFT:
        raise ValueError(
            f"t_end must be at most {_MOST_DRIFT / (_ROUNDED * law.strength):.3g} for this V, but it is {t_end:.3g}: "
            f"by then the rounding of velocities has moved tokens by {_MOST_DRIFT}; end earlier, or take a multiple of "
            "the identity."
        )
    least = float(jnp.finfo(x0.dtype).eps) ** 0.5
    tolerance = check_number(
        tolerance, "tolerance", least=least, below=2, remedy=f"pass a distance that {x0.dtype} can hold"
    )
    max_steps = check_integer(max_steps, "max_steps", remedy="pass the largest number of steps, such as 100_000")
    if log is not None:
        check_callable(log, "log", "a function of a line", takes=1)
    # Tokens closer than `inner` become one, which changes merger times by less than the steps' errors. Causal clusters
    # need a larger distance: later tokens lag behind by as much, and contraction limits the steps until tokens join.
    inner = 3e-4 if law.causal else 1e-5 / (1 + law.sharpness)
    # By tiles, all tokens would otherwise be followed for the whole contraction.
    wide = min(1e-2 / (1 + law.sharpness), tolerance / 4)
    start = np.asarray(x0, float)
    try:
        ran = run(law, start, masses, t_end, tolerance, min(inner, tolerance / 4), max_steps, wide, log)
        return MergeTree._of(ran, np.dtype(x0.dtype))
    except TooEarly:
        raise ValueError(
            f"offset must let float64 hold the times of mergers, but it is {law.offset:g}: with beta = {law.beta:g} "
            "tokens merge before t = 2e-308, since weights are e^(score - offset); pass offset=beta, which changes the "
            "unit of time alone."
        ) from None
    except Stalled as stalled:
        raise RuntimeError(
            f"coarsen stopped at t = {stalled.time:.4g} with {stalled.clusters} clusters, after {max_steps} steps or "
            "where steps come to nothing; raise max_steps, or simulate with Rodas5P."
        ) from None


def _check_many(law: Law, masses: np.ndarray) -> None:
    """Refuse laws that tiles cannot follow: tiles need symmetric weights and no mask."""
    if law.causal:
        raise ValueError(
            f"x0 must hold at most {MOST_HELD:,} tokens with CausalMask(), but it holds {len(masses):,}; pass fewer, "
            "for an earlier token's past does not depend on later ones."
        )
    plain = law.normalised and law.form is None and law.value is None and 0 <= law.beta <= _MOST_BETA
    if not plain or law.factor <= 0 or not np.all(masses > 0):
        raise ValueError(
            f"x0 must hold at most {MOST_HELD:,} tokens but for softmax attention with a beta from 0 to "
            f"{_MOST_BETA:g}, no query_key, a V that is a multiple of the identity, and masses above 0, but it holds "
            f"{len(masses):,}; simulate until clusters have formed, and pass these with their masses."
        )


def _law(field: AbstractField, n: int, d: int) -> tuple[Law, np.ndarray]:
    """The law of the clusters of a field, and the masses of its tokens."""
    check_field(field)
    if not isinstance(field, AttentionField):
        raise ValueError(
            f"field must be an AttentionField, but it is {shown(field)}; pass one head of attention alone."
        )
    attention = field.attention
    if not isinstance(attention, SoftmaxAttention | UnnormalisedAttention):
        raise ValueError(
            f"field.attention must be SoftmaxAttention or UnnormalisedAttention, but it is {shown(attention)}; pass "
            "one of these."
        )
    if not isinstance(field.space, Sphere):
        raise ValueError(f"field.space must be Sphere(), but it is {shown(field.space)}; build it there.")
    if not isinstance(attention.mask, FullMask | CausalMask):
        raise ValueError(
            f"field.attention.mask must be FullMask() or CausalMask(), but it is {shown(attention.mask)}; pass one of "
            "these, for with others tokens that met need not stay together."
        )
    refuse_position(attention, "field.attention.position", "clusters of tokens at several places have no place")
    params = {"beta": attention.beta, "query_key": attention.query_key, "value": field.value}
    params["offset"] = getattr(attention, "offset", 0.0)
    for name, value in params.items():
        if isinstance(value, AbstractSchedule):
            raise ValueError(
                f"{name} must not depend on time, but it is {shown(value)}; pass a number or a matrix, for time is "
                "only added up here."
            )
        check_concrete(value, name)
    check_concrete(field.masses, "masses")
    beta, offset = float(params["beta"]), float(params["offset"])
    form, value = (None if params[name] is None else np.asarray(params[name], float) for name in ("query_key", "value"))
    if form is not None and np.array_equal(form, np.eye(d)):
        form = None
    factor = 1.0
    if value is not None and np.array_equal(value, value[0, 0] * np.eye(d)):
        factor, value = float(value[0, 0]), None
    growth = factor if value is None else float(np.linalg.eigvalsh((value + value.T) / 2)[-1])
    if growth <= 0:
        raise ValueError(
            f"value must attract tokens that met, but the largest eigenvalue of its symmetric part is {growth:.3g}: "
            "they part again, and cannot be followed as one; take simulate."
        )
    masses = np.ones(n) if field.masses is None else np.asarray(field.masses, float)
    normalised = isinstance(attention, SoftmaxAttention)
    return Law(beta, form, value, factor, normalised, isinstance(attention.mask, CausalMask), offset), masses
