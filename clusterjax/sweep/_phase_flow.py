"""Attention of many small systems at once, the systems in the last axis: what a phase diagram spends its time on."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from .._misc import matmul


Systems = Float[Array, "..."]  # (d, n, systems), or (systems, n, d)

# Up to this dimension sums over coordinates are written out; beyond it, and with a B, products of small matrices win.
WRITTEN_OUT = 4


class AbstractFlow(eqx.Module):
    r"""The pull $\sum_j w_{ij} V x_j$ on every token of many systems, full attention.

    Softmax attention has $w_{ij} = e^{\beta\langle x_i, Bx_j\rangle} / Z_i$, unnormalised attention $1/n$ in place of
    $1/Z_i$. Exponents are shifted by the largest of a row, or by $\beta$ where B = I.

    **Arguments:**

    - `beta`: Inverse temperature.
    - `value`: V: None for the identity, (d, d) for all systems, or (d, d, systems).
    - `unnormalised`: Whether $1/n$ stands in place of $1/Z_i$.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), (SA) and (USA).
    """

    beta: eqx.AbstractVar[Float[Array, ""]]
    value: eqx.AbstractVar[Float[Array, "..."] | None]
    unnormalised: eqx.AbstractVar[bool]

    @abstractmethod
    def enter(self, x: Float[Array, "d n systems"]) -> Systems:
        """The tokens in the layout of this flow."""

    @abstractmethod
    def leave(self, y: Systems) -> Float[Array, "d n systems"]:
        """The tokens in the layout of the statistics."""

    @abstractmethod
    def pull(self, y: Systems, log_factor: Float[Array, ""]) -> Systems:
        """The pull times the exponential of `log_factor`."""

    @abstractmethod
    def inner(self, u: Systems, v: Systems) -> Systems:
        """The inner product of each token with its partner, of a shape that broadcasts over coordinates."""

    @abstractmethod
    def each(self, numbers: Shaped[Array, " systems"]) -> Shaped[Array, "..."]:
        """One number for each system, of a shape that broadcasts over its tokens."""

    @abstractmethod
    def largest(self, y: Systems) -> Float[Array, " systems"]:
        """The largest entry of each system."""


class WrittenOut(AbstractFlow):
    """The flow in the layout (d, n, systems), for small d and B = I: every operation runs along the systems.

    Token i meets token i + k, for one k after the other. The weights of both are the same, so that half of the
    exponentials are enough.

    Source: this library.
    """

    beta: Float[Array, ""]
    value: Float[Array, "..."] | None
    unnormalised: bool

    def enter(self, x: Float[Array, "d n systems"]) -> Systems:
        return x

    def leave(self, y: Systems) -> Float[Array, "d n systems"]:
        return y

    def inner(self, u: Systems, v: Systems) -> Systems:
        return _dot(u, v)[None]

    def each(self, numbers: Shaped[Array, " systems"]) -> Shaped[Array, "..."]:
        return numbers[None, None, :]

    def largest(self, y: Systems) -> Float[Array, " systems"]:
        return jnp.max(y, axis=(0, 1))

    def pull(self, y: Systems, log_factor: Float[Array, ""]) -> Systems:
        d, n, _ = y.shape
        around = jnp.concatenate([y, y], axis=1)

        def add(state, weight, other):
            total, sums = state
            return total + weight, [sums[a] + weight * other[a] for a in range(d)]

        def meet(k, state):
            ahead, behind = around[:, k : k + n], around[:, n - k : 2 * n - k]
            weight = jnp.exp(self.beta * (_dot(y, ahead) - 1))
            state = add(state, weight, ahead)
            back = jnp.concatenate([weight[n - k :], weight[: n - k]])
            return add(state, back, behind) if 2 * k < n else state

        def meet_several(first, state):
            ahead, behind = ahead_and_behind(around, first, n)
            weights = [jnp.exp(self.beta * (_dot(y, other) - 1)) for other in ahead]
            _, back = ahead_and_behind(jnp.tile(jnp.stack(weights), (1, 2, 1)), first, n)
            for j in range(TOGETHER):
                state = add(state, weights[j], ahead[j])
                state = add(state, back[j][j], behind[j])
            return state

        total, sums = over_pairs(meet, meet_several, n, (jnp.ones_like(y[0]), [y[a] for a in range(d)]))  # over e^beta
        factor = jnp.exp(self.beta + log_factor) / n if self.unnormalised else jnp.exp(log_factor) / total
        sums = [factor * row for row in sums]
        return jnp.stack(sums if self.value is None else _times(self.value, sums))


class Multiplied(AbstractFlow):
    """The flow in the layout (systems, n, d), by products of matrices: for larger d, and any B.

    **Arguments:**

    - `query_key`: B, as `value`.

    Source: this library.
    """

    beta: Float[Array, ""]
    value: Float[Array, "..."] | None
    unnormalised: bool
    query_key: Float[Array, "..."] | None

    def enter(self, x: Float[Array, "d n systems"]) -> Systems:
        return jnp.transpose(x, (2, 1, 0))

    def leave(self, y: Systems) -> Float[Array, "d n systems"]:
        return jnp.transpose(y, (2, 1, 0))

    def inner(self, u: Systems, v: Systems) -> Systems:
        return jnp.sum(u * v, axis=2, keepdims=True)

    def each(self, numbers: Shaped[Array, " systems"]) -> Shaped[Array, "..."]:
        return numbers[:, None, None]

    def largest(self, y: Systems) -> Float[Array, " systems"]:
        return jnp.max(jnp.max(y, axis=2), axis=1)

    def pull(self, y: Systems, log_factor: Float[Array, ""]) -> Systems:
        query = y if self.query_key is None else matmul(y, _stacked(self.query_key))
        logits = self.beta * matmul(query, jnp.swapaxes(y, 1, 2))
        shift = self.beta if self.query_key is None else jnp.max(logits, axis=2, keepdims=True)
        weights = jnp.exp(logits - shift)
        if self.unnormalised:
            factor = jnp.exp(shift + log_factor) / y.shape[1]
        else:
            factor = jnp.exp(log_factor) / jnp.sum(weights, axis=2, keepdims=True)
        pull = factor * matmul(weights, y)
        return pull if self.value is None else matmul(pull, jnp.swapaxes(_stacked(self.value), 1, 2))


def flow_of(
    beta: Float[Array, ""],
    query_key: Float[Array, "..."] | None,
    value: Float[Array, "..."] | None,
    d: int,
    unnormalised: bool,
) -> AbstractFlow:
    """The faster of the two for tokens of d coordinates.

    Source: this library.
    """
    if query_key is None and d <= WRITTEN_OUT:
        return WrittenOut(beta, value, unnormalised)
    return Multiplied(beta, value, unnormalised, query_key)


# Up to so many tokens all meetings are written out. Of more tokens a loop goes through them, so many at a time: one at
# a time would take twice as long again, and all of them would be compiled for minutes.
WRITTEN_OUT_TOKENS, TOGETHER = 128, 16


def over_pairs(meet: Callable[..., Any], meet_several: Callable[..., Any], n: int, state: Any) -> Any:
    """`state` after each pair of n tokens in a circle has met: token i and token i + k, for k from 1 to n // 2.

    If n is even, those that are opposite each other meet twice, at k = n / 2.

    **Arguments:**

    - `meet`: `meet(k, state)` is the state after the meetings of one k, a Python integer.
    - `meet_several`: `meet_several(first, state)` after those of k = first, ..., first + TOGETHER - 1, all below n / 2,
        where `first` is traced.

    Source: this library.
    """
    blocks = 0 if n <= WRITTEN_OUT_TOKENS else (n - 1) // 2 // TOGETHER
    if blocks:
        state = jax.lax.fori_loop(0, blocks, lambda b, state: meet_several(1 + TOGETHER * b, state), state)
    for k in range(1 + TOGETHER * blocks, n // 2 + 1):
        state = meet(k, state)
    return state


def ahead_and_behind(around: Float[Array, "d twice systems"], first: Any, n: int) -> tuple[list[Array], list[Array]]:
    """The tokens i + k, and i - k, of n tokens that stand twice in a row, for k = first, ..., first + TOGETHER - 1."""
    last = TOGETHER - 1
    ahead = jax.lax.dynamic_slice_in_dim(around, first, n + last, 1)
    behind = jax.lax.dynamic_slice_in_dim(around, n - first - last, n + last, 1)
    return [ahead[:, j : j + n] for j in range(TOGETHER)], [behind[:, last - j : last - j + n] for j in range(TOGETHER)]


def _dot(u: Float[Array, "d n systems"], v: Float[Array, "d n systems"]) -> Float[Array, "n systems"]:
    total = u[0] * v[0]
    for a in range(1, u.shape[0]):
        total = total + u[a] * v[a]
    return total


def _times(matrix: Float[Array, "..."], rows: list[Array]) -> list[Array]:
    """The matrix (d, d), or (d, d, systems), times tokens given as d arrays (n, systems)."""
    entry = (lambda a, b: matrix[a, b]) if matrix.ndim == 2 else (lambda a, b: matrix[a, b][None])
    out = []
    for a in range(len(rows)):
        total = entry(a, 0) * rows[0]
        for b in range(1, len(rows)):
            total = total + entry(a, b) * rows[b]
        out.append(total)
    return out


def _stacked(matrix: Float[Array, "..."]) -> Float[Array, "systems d d"]:
    """(1, d, d) or (systems, d, d), of a matrix with the systems last."""
    return matrix[None] if matrix.ndim == 2 else jnp.moveaxis(matrix, 2, 0)
