"""Blocks with weights drawn by NumPy, and the same blocks computed by loops."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import clusterjax as cjx
from clusterjax import transformer
from tests.helpers import normal
from tests.reference import attention as masks, transformer as reference


N, D, HEADS, K, HIDDEN, FARTHEST, EPSILON = 6, 8, 3, 4, 10, 2, 1e-3
BASE = 30.0  # of rotary positions; so small that the slowest pair of coordinates turns visibly over six places
RESIDUALS = {"post": transformer.PostNorm(), "pre": transformer.PreNorm(), "none": transformer.NoNorm()}
ACTIVATIONS = {"relu": (jax.nn.relu, reference.relu), "gelu": (jax.nn.gelu, reference.gelu)}
MASKS = {
    "full": (cjx.FullMask(), masks.full),
    "causal": (cjx.CausalMask(), masks.causal),
    "window": (cjx.WindowMask(2), masks.window(2)),
}
X = normal(0, N, D)


def relative_of(vectors, relative):
    """`relative` is False, True or "rotary"."""
    if relative == "rotary":
        return transformer.RotaryPositions(K, BASE)
    return transformer.RelativePositions(*vectors) if relative else None


def attention_of(seed=1, mask="full", relative=False):
    into = normal(seed, 3, HEADS, D, K)
    vectors = normal(seed + 1, 2, 2 * FARTHEST + 1, K)
    return transformer.MultiHeadAttention(
        *into, normal(seed + 2, HEADS, K, D), jnp.array([0.5, 1.0, 0.2]), mask=MASKS[mask][0],
        relative=relative_of(vectors, relative),
    )  # fmt: skip


def block_of(where="post", mask="full", activation="relu", relative=False, seed=1):
    forward = transformer.FeedForward(
        normal(seed + 3, D, HIDDEN), normal(seed + 4, HIDDEN, D), normal(seed + 5, HIDDEN), normal(seed + 6, D),
        ACTIVATIONS[activation][0],
    )  # fmt: skip
    norms = tuple(
        None if where == "none" else transformer.LayerNorm(normal(seed + 7 + k, D), normal(seed + 9 + k, D), EPSILON)
        for k in (0, 1)
    )
    return transformer.Block(attention_of(seed, mask, relative), forward, norms, RESIDUALS[where])


def language_model(words, d, heads, hidden, layers, *, spread=0.5, seed=0, **options):
    """A `LanguageModel` including biases, with all numbers drawn by NumPy: drawing in jax takes seconds to compile."""
    make = lambda: transformer.LanguageModel.random(jax.random.key(0), words, d, heads, hidden, layers, **options)
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        centre = {"gain": 1.0, "beta": (d // heads) ** -0.5}.get(path[-1].name, 0.0)
        return jnp.asarray((centre + spread * rng.normal(size=leaf.shape)).astype(leaf.dtype), leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, eqx.filter_eval_shape(make))


def heads_by_loops(attention, x, mask="full", present=None):
    """The weights and the updates of the heads of a layer, computed by loops."""
    rule = MASKS[mask][1]
    allowed = rule if present is None else lambda i, j: i == j or (rule(i, j) and bool(present[j]))
    relative = attention.relative
    vectors = base = None
    if isinstance(relative, transformer.RelativePositions):
        vectors = (relative.farthest, np.asarray(relative.keys), np.asarray(relative.values))
    elif relative is not None:
        base = relative.base
    matrices = (np.asarray(part) for part in (attention.query, attention.key, attention.value, attention.output))
    beta = np.broadcast_to(np.asarray(attention.beta), (attention.num_heads,))
    return reference.heads(np.asarray(x), *matrices, beta, allowed, vectors, base)


def block_by_loops(block, x, where, mask, activation):
    forward = block.feed_forward
    norms = [None if norm is None else (np.asarray(norm.gain), np.asarray(norm.bias)) for norm in block.norms]
    weights = tuple(map(np.asarray, (forward.w_in, forward.w_out, forward.bias_in, forward.bias_out)))
    return reference.block(
        np.asarray(x),
        where,
        lambda tokens: heads_by_loops(block.attention, tokens, mask)[1].sum(axis=0),
        lambda tokens: reference.feed_forward(tokens, *weights, ACTIVATIONS[activation][1]),
        norms,
        EPSILON,
    )


def in_dtype(module, dtype):
    cast = lambda leaf: jnp.asarray(np.asarray(leaf).astype(dtype), dtype) if eqx.is_inexact_array(leaf) else leaf
    return jax.tree_util.tree_map(cast, module)
