"""Phase diagrams: how clustered many systems are, as a function of time and of beta."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

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
from .._misc import is_concrete
from ._phase_flow import flow_of
from ._phase_laws import AbstractLaw, Identity, Matrices
from ._phase_starts import AbstractStarts
from ._phase_statistics import AbstractStatistic, ClosePairs
from ._phase_steps import AbstractIntegrator, Adaptive, NormalisedEuler
from ._plan import check_seed


class PhaseDiagram(eqx.Module):
    """One row of a phase diagram: a function of beta, which returns the statistics of many systems at all save times.

    A call returns for each statistic its mean over the systems and the standard error of that, `close_pairs` and
    `close_pairs_error` say, of shape (times,). Systems are taken a chunk at a time, so that what is worked on stays in
    the cache; what is drawn does not depend on the chunks, nor on the other points of a sweep. The statistics of a
    system whose tokens are no longer unit vectors, because a number overflowed, are NaN: such a point fails.

    **Arguments:**

    - `starts`: The tokens at time zero, the same for every beta.
    - `ts`: Save times (times,), not negative and increasing.
    - `query_key`, `value`: The laws of Q^T K and V.
    - `unnormalised`: Whether attention is the unnormalised one.
    - `statistics`: What is measured.
    - `integrator`: How time passes.
    - `seed`: Of starts and laws.
    - `chunk`: How many systems are worked on together; None chooses.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), the phase diagrams of Section 6
        and their code.
    """

    starts: AbstractStarts
    ts: Float[Array, " times"] = eqx.field(converter=lambda ts: check_times(ts, "ts"))
    query_key: AbstractLaw = Identity()
    value: AbstractLaw = Identity()
    unnormalised: bool = False
    statistics: tuple[AbstractStatistic, ...] = (ClosePairs(),)
    integrator: AbstractIntegrator = NormalisedEuler()
    seed: int = 0
    chunk: int | None = None

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

    def __call__(self, beta: Float[Array, ""]) -> dict[str, Float[Array, " times"]]:
        count = self.starts.sizes[0]
        if count < 2:
            raise refusal(
                "starts", "be of at least 2 systems, for the error", "there is 1", "call systems, or give more"
            )
        numbers = self.systems(beta)
        outputs = {}
        for statistic, found in zip(self.statistics, numbers, strict=True):
            mean = jnp.mean(found, axis=1)
            spread = jnp.sum(jnp.square(found - mean[:, None]), axis=1)
            outputs[statistic.name] = mean
            outputs[f"{statistic.name}_error"] = jnp.sqrt(spread / (count * (count - 1)))
        return outputs

    def systems(self, beta: Float[Array, ""]) -> tuple[Float[Array, "times systems"], ...]:
        """The statistics of every system at every save time."""
        beta = check_scalar(beta, "beta", self.ts.dtype, least=0)
        systems, n, d = self.starts.sizes
        key = jr.key(self.seed)
        b = self.query_key.draw(jr.fold_in(key, 1), beta, systems, d, None)
        v = self.value.draw(jr.fold_in(key, 2), beta, systems, d, b)
        x = self.starts.tokens(self.seed, beta.dtype)
        size = min(self.chunk or chunk_size(n, d, beta.dtype), systems)
        chunks = -(-systems // size)
        own = [None if m is None or m.ndim == 2 else _cut(m, chunks, size) for m in (b, v)]

        def one(given):
            x, *mine = given
            last = [shared if m is None else jnp.moveaxis(m, 0, 2) for shared, m in zip((b, v), mine, strict=True)]
            return self._chunk(beta, jnp.transpose(x, (2, 1, 0)), *last)

        given = (_cut(x, chunks, size), *own)
        if chunks == 1:  # one loop less
            found = jax.tree.map(lambda f: f[None], one(jax.tree.map(lambda g: g[0], given)))
        else:
            found = jax.lax.map(one, given)
        return tuple(jnp.moveaxis(f, 0, 1).reshape(len(self.ts), chunks * size)[:, :systems] for f in found)

    def _chunk(
        self, beta: Float[Array, ""], x: Float[Array, "d n systems"], b: Matrices, v: Matrices
    ) -> tuple[Float[Array, "times systems"], ...]:
        flow = flow_of(beta, b, v, x.shape[0], self.unnormalised)

        def save(carry, t):
            carry = self.integrator.advance(flow, carry, t)
            tokens = flow.leave(self.integrator.tokens(carry))
            # Of what is no cloud of unit tokens a statistic may well be a number: of NaN no pair is close.
            unit = jnp.all(jnp.abs(jnp.sum(tokens * tokens, axis=0) - 1) < 0.5, axis=0)
            return carry, tuple(jnp.where(unit, statistic(tokens), jnp.nan) for statistic in self.statistics)

        return jax.lax.scan(save, self.integrator.begin(flow, flow.enter(x)), self.ts)[1]

    def cost(self, beta: float) -> float:
        """About how many steps a row takes."""
        return self.integrator.steps(check_number(beta, "beta", least=0), float(self.ts[-1]), self.unnormalised)


def check_times(ts: Any, name: str) -> Float[Array, " times"]:
    """`ts` as an array, if these are save times: in a row, not negative, increasing.

    Source: this library.
    """
    array = check_array(ts, name, shape=("times",), least=0)
    if is_concrete(array) and np.any(np.diff(np.asarray(array)) <= 0):
        raise refusal(name, f"increase in {array.dtype}", "two neighbours do not", "sort them, each once")
    return array


def check_law(law: Any, name: str) -> None:
    """Raise a ValueError unless it is a law of random matrices.

    Source: this library.
    """
    check_instance(law, name, AbstractLaw, "a law of clusterjax.sweep", "pass Identity() or Wigner(), for example")


def check_integrator(integrator: Any, dtype: Any) -> None:
    """Raise a ValueError unless it is a scheme of the phase diagrams, no finer than the numbers of `dtype`: of smaller
    steps most are lost in rounding, and tokens stand still.

    Source: this library.
    """
    check_instance(integrator, "integrator", AbstractIntegrator, "NormalisedEuler or Adaptive", "pass one of these")
    eps = float(jnp.finfo(dtype).eps)
    least = {Adaptive: ("tolerance", eps), NormalisedEuler: ("dt", 10 * eps)}
    name, bound = least.get(type(integrator), ("", 0.0))
    value = getattr(integrator, name, None)
    if value is not None and value < bound:
        rule, found = f"have a {name} that {dtype} resolves", f"it is {value:g}"
        raise refusal("integrator", rule, found, f"pass {bound:.1e} or more, or float64")


def check_statistics(statistics: Any) -> None:
    """Raise a ValueError unless these are statistics, at least one, each once.

    Source: this library.
    """
    found = check_sequence(statistics, "statistics", AbstractStatistic, "statistics of clusterjax.sweep")
    if len({statistic.name for statistic in found}) < len(found):
        names = ", ".join(statistic.name for statistic in found)
        raise refusal("statistics", "be at least one, each once", f"they are {names}", "mend the list")


def chunk_size(n: int, d: int, dtype: Any) -> int:
    """How many systems are worked on together: what they need fits the cache of a core, or is a tenth of a device."""
    entries = n * (n + 2 * d)
    room = 2**19 if jax.default_backend() == "cpu" else 2**28
    return max(16, 2 ** int(math.log2(max(1, room // (entries * jnp.dtype(dtype).itemsize)))))


def _cut(array: Float[Array, "systems a b"], chunks: int, size: int) -> Float[Array, "chunks size a b"]:
    """The systems in chunks of one size, filled up with copies of the last."""
    missing = chunks * size - array.shape[0]
    last = jnp.broadcast_to(array[-1:], (missing, *array.shape[1:]))
    return jnp.concatenate([array, last]).reshape(chunks, size, *array.shape[1:])
