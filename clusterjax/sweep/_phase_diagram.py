"""Phase diagrams: how clustered many systems are, as a function of time and of beta."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from ._phase_flow import flow_of
from ._phase_laws import AbstractLaw, Identity, Matrices
from ._phase_starts import AbstractStarts
from ._phase_statistics import AbstractStatistic, ClosePairs
from ._phase_steps import AbstractIntegrator, NormalisedEuler


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
    ts: Float[Array, " times"]
    query_key: AbstractLaw = Identity()
    value: AbstractLaw = Identity()
    unnormalised: bool = False
    statistics: tuple[AbstractStatistic, ...] = (ClosePairs(),)
    integrator: AbstractIntegrator = NormalisedEuler()
    seed: int = 0
    chunk: int | None = None

    def __call__(self, beta: Float[Array, ""]) -> dict[str, Float[Array, " times"]]:
        numbers = self.systems(beta)
        count = self.starts.sizes[0]
        outputs = {}
        for statistic, found in zip(self.statistics, numbers, strict=True):
            mean = jnp.mean(found, axis=1)
            spread = jnp.sum(jnp.square(found - mean[:, None]), axis=1)
            outputs[statistic.name] = mean
            outputs[f"{statistic.name}_error"] = jnp.sqrt(spread / (count * (count - 1)))
        return outputs

    def systems(self, beta: Float[Array, ""]) -> tuple[Float[Array, "times systems"], ...]:
        """The statistics of every system at every save time."""
        beta = jnp.asarray(beta, self.ts.dtype)
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
        return self.integrator.steps(float(beta), float(self.ts[-1]), self.unnormalised)


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
