"""One row of a phase diagram: the statistics of many systems, for one beta, at all save times.

Systems are drawn, integrated by `simulate` under `jax.vmap`, and measured in chunks. Invariants: random draws depend
only on the seed, on beta and on the index of the system, never on the chunks or on other betas; every statistic of a
system whose tokens are no longer unit vectors is NaN.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from .._abstract import AbstractPart
from .._attention import SoftmaxAttention, UnnormalisedAttention
from .._blocks import FEW_DIMENSIONS, map_blocks, systems_at_once
from .._check import (
    check_array,
    check_flag,
    check_instance,
    check_integer,
    check_number,
    check_scalar,
    check_sequence,
    refusal,
)
from .._custom_types import Numbers, Tokens
from .._mask import AbstractMask, FullMask, check_mask
from .._misc import is_concrete
from ..sweep._plan import check_seed
from ._integrators import AbstractIntegrator, Adaptive, NormalisedEuler
from ._laws import AbstractLaw, Identity
from ._starts import AbstractStarts
from ._statistics import AbstractStatistic, ClosePairs


def _save_times(ts: Numbers) -> Float[Array, " times"]:
    return check_times(ts, "ts")


class PhaseDiagram(AbstractPart):
    """One row of a phase diagram: a function of beta, which returns the statistics of many systems at all save times.

    For each statistic, a call returns the mean over the systems and its standard error, for example `close_pairs` and
    `close_pairs_error`, of shape (times,). Systems are processed in chunks, whose working memory fits in the cache;
    random draws depend neither on the chunks nor on the other points of a sweep. The statistics of a system whose
    tokens are no longer unit vectors, because a number overflowed, are NaN, and the point counts as failed.

    **Arguments:**

    - `starts`: The tokens at time zero, which are shared by all betas.
    - `ts`: Save times (times,), not negative and increasing.
    - `query_key`, `value`: The laws of Q^T K and V.
    - `unnormalised`: True for unnormalised attention.
    - `statistics`: The statistics to measure.
    - `integrator`: The scheme, `NormalisedEuler` or `Adaptive`.
    - `seed`: The seed of the starts and laws.
    - `chunk`: The number of systems that run together; None chooses automatically.
    - `mask`: The mask, which is shared by all systems.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), the phase diagrams of Section 6
        and their code.
    """

    starts: AbstractStarts
    ts: Float[Array, " times"] = eqx.field(converter=_save_times)
    query_key: AbstractLaw = Identity()
    value: AbstractLaw = Identity()
    unnormalised: bool = False
    statistics: tuple[AbstractStatistic, ...] = (ClosePairs(),)
    integrator: AbstractIntegrator = NormalisedEuler()
    seed: int = 0
    chunk: int | None = None
    mask: AbstractMask = FullMask()

    def __check_init__(self):
        check_instance(self.starts, "starts", AbstractStarts, "Uniform or Given starts", "pass Uniform(2048, 32, 2)")
        for name, law in (("query_key", self.query_key), ("value", self.value)):
            check_law(law, name)
        check_flag(self.unnormalised, "unnormalised")
        check_statistics(self.statistics)
        check_integrator(self.integrator, self.ts.dtype)
        check_seed(self.seed)
        if self.chunk is not None:
            check_integer(self.chunk, "chunk")
        check_mask(self.mask)
        self.mask.check(self.starts.sizes[1])

    def __call__(self, beta: Float[Array, ""]) -> dict[str, Float[Array, " times"]]:
        # The standard error divides by count - 1.
        count = self.starts.sizes[0]
        if count < 2:
            raise refusal(
                "starts", "be of at least 2 systems, for the error", "there is 1", "call systems, or give more"
            )
        numbers = self.systems(beta)
        outputs = {}
        for statistic, values in zip(self.statistics, numbers, strict=True):
            mean = jnp.mean(values, axis=1)
            # Two passes are needed: the mean of squares less the square of the mean would cancel.
            spread = jnp.sum(jnp.square(values - mean[:, None]), axis=1)
            outputs[statistic.name] = mean
            outputs[f"{statistic.name}_error"] = jnp.sqrt(spread / (count * (count - 1)))
        return outputs

    def systems(self, beta: Float[Array, ""]) -> tuple[Float[Array, "times systems"], ...]:
        """The statistics of every system at every save time."""
        return self._systems(check_scalar(beta, "beta", self.ts.dtype, least=0))

    @eqx.filter_jit
    def _systems(self, beta: Float[Array, ""]) -> tuple[Float[Array, "times systems"], ...]:
        systems, n, d = self.starts.sizes
        # Streams 0, 1 and 2 are the starts, Q^T K and V. `LikeQueryKey` gets the matrices drawn for Q^T K.
        key = jr.key(self.seed)
        b = self.query_key.draw(jr.fold_in(key, 1), beta, systems, d, None)
        v = self.value.draw(jr.fold_in(key, 2), beta, systems, d, b)
        x = self.starts.tokens(self.seed, beta.dtype)
        # Matrices with a leading axis of systems are mapped over with the tokens; other matrices are shared.
        own = {name: matrix for name, matrix in (("b", b), ("v", v)) if matrix is not None and jnp.ndim(matrix) == 3}
        shared = {"b": b, "v": v}

        def chunk(x, own):
            run = lambda x, own: self._run(beta, x, **(shared | own))
            # xs is (systems, times, n, d). It is measured with times first; results are joined with systems first.
            xs = jax.vmap(run)(x, own)
            return jax.tree.map(lambda a: jnp.moveaxis(a, 0, 1), self._measure(jnp.moveaxis(xs, 1, 0)))

        size = self.chunk or chunk_size(n, d, len(self.ts), beta.dtype)
        statistics = map_blocks(chunk, size, x, own)
        return tuple(jnp.moveaxis(numbers, 0, 1) for numbers in statistics)

    def _run(self, beta: Float[Array, ""], x0: Tokens, b: Any, v: Any) -> Float[Array, "times n d"]:
        kind = UnnormalisedAttention if self.unnormalised else SoftmaxAttention
        return self.integrator.run(kind(beta, query_key=b, mask=self.mask), v, x0, self.ts)

    def _measure(self, xs: Float[Array, "times systems n d"]) -> tuple[Float[Array, "times systems"], ...]:
        def at_one_time(x):
            # Statistics take (d, n, systems).
            x = jnp.transpose(x, (2, 1, 0))
            # Ranks of NaN tokens are numbers, because comparisons with NaN are false. This test marks such systems, and
            # also systems whose finite tokens are no longer unit vectors.
            unit = jnp.all(jnp.abs(jnp.sum(x * x, axis=0) - 1) < 0.5, axis=0)
            return tuple(jnp.where(unit, statistic(x), jnp.nan) for statistic in self.statistics)

        # Times are processed one by one, because some statistics need (systems, n, n).
        return jax.lax.map(at_one_time, xs)

    def cost(self, beta: float) -> float:
        """An estimate of the number of evaluations of the field that each system of a row takes."""
        return self.integrator.steps(check_number(beta, "beta", least=0), float(self.ts[-1]), self.unnormalised)


def check_times(ts: Any, name: str) -> Float[Array, " times"]:
    """`ts` as an array, or a ValueError unless the times are one-dimensional, not negative and increasing."""
    array = check_array(ts, name, shape=("times",), least=0)
    if is_concrete(array) and np.any(np.diff(np.asarray(array)) <= 0):
        raise refusal(name, f"increase in {array.dtype}", "two neighbours do not", "sort them, each once")
    return array


def check_law(law: Any, name: str) -> None:
    """Raise a ValueError unless `law` is a law of random matrices."""
    check_instance(law, name, AbstractLaw, "a law of clusterjax.phase", "pass Identity() or Wigner(), for example")


def check_integrator(integrator: Any, dtype: Any) -> None:
    """Raise a ValueError unless `integrator` is a scheme of the phase diagrams whose step or tolerance `dtype`
    resolves: rounding would absorb a smaller step, so that tokens would not move.
    """
    check_instance(integrator, "integrator", AbstractIntegrator, "NormalisedEuler or Adaptive", "pass one of these")
    eps = float(jnp.finfo(dtype).eps)
    # The bound is ten machine epsilons: with a shorter step, x + h u leaves most coordinates unchanged.
    least = {Adaptive: ("tolerance", eps), NormalisedEuler: ("dt", 10 * eps)}
    name, bound = least.get(type(integrator), ("", 0.0))
    value = getattr(integrator, name, None)
    if value is not None and value < bound:
        rule = f"have a {name} that {dtype} resolves"
        raise refusal("integrator", rule, f"it is {value:g}", f"pass {bound:.1e} or more, or float64")


def check_statistics(statistics: Any) -> None:
    """Raise a ValueError unless `statistics` holds at least one statistic, and each only once."""
    checked = check_sequence(statistics, "statistics", AbstractStatistic, "statistics of clusterjax.phase")
    if len({statistic.name for statistic in checked}) < len(checked):
        names = ", ".join(statistic.name for statistic in checked)
        raise refusal("statistics", "be at least one, each once", f"they are {names}", "mend the list")


def chunk_size(n: int, d: int, times: int, dtype: Any) -> int:
    """The number of systems that run together, so that their saved states and stages stay in the cache of a core.

    In few dimensions the number follows the block size of the sums. On another device it is set by memory.
    """
    # The memory holds the saved states, and about 16 arrays of the size of a state for the stages of the solver.
    bytes_each = n * d * (16 + times) * jnp.dtype(dtype).itemsize
    # An accelerator computes all pairs of a chunk at once, and gets about a gigabyte of scores.
    if jax.default_backend() != "cpu":
        return max(64, 2**30 // (bytes_each + n * n * jnp.dtype(dtype).itemsize))
    return systems_at_once(n * n) if d <= FEW_DIMENSIONS else max(4, 2 ** int(math.log2(max(1, 2**21 // bytes_each))))
