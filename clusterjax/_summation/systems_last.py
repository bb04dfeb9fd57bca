"""Sums of exponentials of many small systems at once: what `Dense` becomes under `jax.vmap` on a CPU.

**Algorithm.** In few dimensions systems are taken some dozens at a time and stand in the last axis, so that every
operation runs along them: no product of small matrices, no reduction along a short last axis. Of each, blocks of rows
meet all columns: the scores, written out over the coordinates; their maximum; exponentials; sums. In more dimensions
products of matrices are faster, one per system.

**Reference.** None: a layout, which was chosen by measuring (benchmarks/batched.py, benchmarks/phase_diagram.py).

**Invariants.** The sums are those of `Dense` for each system alone, but for rounding. The shift of a row is its largest
score, lowered by a bound of its rounding error where that bound is large (`rounded_down`). No exponent is above zero,
and at least one of each row is so near to zero that its exponential does not underflow.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .._blocks import FEW_DIMENSIONS, PAIRS_AT_ONCE, cut, join, map_blocks, map_systems_last
from .._mask import AbstractMask, FullMask
from .._misc import below, matmul
from .rows import lowest, rounded_down


# So many scores are held at once where they are products of matrices.
_SCORES_IN_MEMORY = 2**21


def batch_rule(single: Any, static: AbstractMask, batched: Any, queries, tokens, values, masses, arrays):
    """What `Dense` computes under `jax.vmap`, as the rule of `call_with_rule`: shifts, normalisers and totals of all.

    `system_sums` for many small systems under one mask, else `single(queries, tokens, values, masses, arrays)` mapped
    over the batch. A mask is split into its `arrays` and the `static` rest.
    """
    # Positions in `batched`: queries, tokens, values, masses, arrays of the mask.
    several = batched[0] and batched[1] and not any(jax.tree.leaves(batched[4]))
    if not (several and suits(*tokens.shape)):
        axes = jax.tree.map(lambda is_batched: 0 if is_batched else None, batched)
        return jax.vmap(single, axes)(queries, tokens, values, masses, arrays)
    spread = lambda a, is_batched: a if a is None or is_batched else jnp.broadcast_to(a, (len(tokens), *a.shape))
    values, masses = spread(values, batched[2]), spread(masses, batched[3])
    return system_sums(queries, tokens, values, masses, eqx.combine(arrays, static))


def suits(systems: int, n: int, d: int) -> bool:
    """Whether so many systems of n tokens are summed faster here than one after the other."""
    # Chosen by measuring (benchmarks/batched.py). In few dimensions the vector instructions run along the systems, so
    # that it takes more of them; in more dimensions four are enough for a batch of matrix products.
    return systems >= (16 if d <= FEW_DIMENSIONS else 4) and n <= 256


def system_sums(
    queries: Float[Array, "systems n d"],
    tokens: Float[Array, "systems n d"],
    values: Float[Array, "systems n k"] | None,
    masses: Float[Array, "systems n"] | None,
    mask: AbstractMask,
) -> tuple[Float[Array, "systems n"], Float[Array, "systems n"], Float[Array, "systems n k"]]:
    """Shift, normaliser and total of each system; see `ExponentialSums`."""
    _, n, d = tokens.shape
    if max(d, d if values is None else values.shape[2]) > FEW_DIMENSIONS:
        size = max(1, _SCORES_IN_MEMORY // n**2)
        return map_blocks(functools.partial(_products, mask), size, queries, tokens, values, masses)
    return map_systems_last(functools.partial(_sums, mask), queries, tokens, values, masses, pairs=n * n)


def _sums(mask: AbstractMask, queries: Any, tokens: Any, values: Any, masses: Any) -> tuple[Array, Array, Array]:
    """The same of one block of systems, which are the last axis of every array."""
    n, d, systems = tokens.shape
    # Blocks of rows, so that (rows, n, systems) is about PAIRS_AT_ONCE numbers.
    rows = min(n, max(1, PAIRS_AT_ONCE // (n * systems)))
    token = [tokens[:, k] for k in range(d)]
    value = token if values is None else [values[:, k] for k in range(values.shape[1])]
    weighted = value if masses is None else [masses * v for v in value]

    def of_rows(block):
        query, index = block
        # (rows, n, systems), a sum of d outer products.
        scores: Any = sum(query[:, k, None] * token[k][None] for k in range(d))
        has_mass = None if masses is None else masses[None] > 0
        top, weights = _weights(scores, _allowed(index, n, mask, -1), has_mass, 1, d)
        normaliser = jnp.sum(weights if masses is None else weights * masses[None], axis=1)
        return top, normaliser, jnp.stack([jnp.sum(weights * v[None], axis=1) for v in weighted], axis=1)

    if rows == n:
        return of_rows((queries, jnp.arange(n)))
    sums = lax.map(of_rows, (cut(queries, rows), cut(jnp.arange(n), rows)))
    return jax.tree.map(lambda a: join(a, n), sums)


def _products(mask: AbstractMask, queries: Any, tokens: Any, values: Any, masses: Any) -> tuple[Array, Array, Array]:
    """The same by batched matrix products, systems first."""
    _, n, d = tokens.shape
    # (systems, n, n), of at most _SCORES_IN_MEMORY numbers: `map_blocks` takes so many systems at a time.
    scores = matmul(queries, jnp.swapaxes(tokens, 1, 2))
    has_mass = None if masses is None else masses[:, None] > 0
    top, weights = _weights(scores, _allowed(jnp.arange(n), n, mask, 0), has_mass, 2, d)
    weights = weights if masses is None else weights * masses[:, None]
    return top, jnp.sum(weights, axis=2), matmul(weights, tokens if values is None else values)


def _allowed(index: Array, n: int, mask: AbstractMask, systems: int) -> Array | None:
    """Which of n columns the rows of this `index` may attend to; None if all. `systems` is the axis of the systems."""
    if isinstance(mask, FullMask):
        return None
    return jnp.expand_dims(mask.allowed(index[:, None], jnp.arange(n)[None, :]), systems)


def _weights(scores: Array, allowed: Array | None, has_mass: Array | None, axis: int, d: int) -> tuple[Array, Array]:
    """The shift of each row, and the exponentials of its scores less that; columns along `axis`."""
    if allowed is not None:
        scores = jnp.where(allowed, scores, -jnp.inf)
    counted = scores if has_mass is None else jnp.where(has_mass, scores, -jnp.inf)
    top = rounded_down(jnp.max(counted, axis=axis), d)
    # Finite for a row that attends to nothing: minus infinity less minus infinity would be NaN.
    top = jnp.maximum(top, lowest(top.shape, top.dtype))
    return top, jnp.exp(below(scores, jnp.expand_dims(top, axis), has_mass))
