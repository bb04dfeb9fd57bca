"""The attention updates that all layers of a network give to the same state, and the share of their mean.

Of updates U_k that are independent draws, the mean of ⟨U_k, U_m⟩ over pairs k ≠ m, divided by the mean of |U_k|²,
estimates |E U|² / E|U|² with a numerator that is unbiased. For N updates the estimate is at most 1, for equal updates,
and at least -1/(N - 1). Each token has its own ratio; a share is the mean over tokens.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float

from ... import probe
from ...probe.measures.patching import stands_at
from ...probe.networks.network import Network, scan_layers


class Shares(NamedTuple):
    """The shares of the mean update, by state; with further axes in front for texts and draws."""

    layers: Float[Any, " states"]
    without_first: Float[Any, " states"]  # without the first token
    unweighted: Float[Any, " states"]  # of the inner product over tokens
    heads: Float[Any, " states"]  # of all heads of different weights; NaN for a single head
    same: Float[Any, " states"]  # of the heads of the same layer
    cosines: Float[Any, "states layers layers"]  # the mean cosine over tokens of the updates of two layers


class Turns(NamedTuple):
    """Matrices that turn updates: the coordinate u_i becomes the sign i times the coordinate `order[i]`."""

    # (draws, layers, 1 + heads, d): the first matrix is that of the update of the layer
    order: Any
    sign: Any


def turns_of(model: probe.Model, draws: int, seed: int) -> Turns:
    """Independent draws of the matrices; 0 draws are one draw that turns nothing."""
    network, rng = model.network, np.random.default_rng(seed)
    shape = (max(draws, 1), network.num_layers, 1 + network.num_heads, network.sizes.hidden_size)
    order = np.broadcast_to(np.arange(shape[-1], dtype=np.int32), shape)
    if not draws:
        return Turns(order, np.ones(shape, np.float32))
    return Turns(rng.permuted(order, axis=-1), rng.choice(np.array([-1, 1], np.float32), shape))


def shares_of(model: probe.Model, texts: probe.Encoded, turns: Turns | None = None) -> tuple[Shares, float]:
    """The shares of each draw and text, (draws, texts, ...), and the largest relative error of an update of a layer at
    its own state."""
    form, state = nnx.split(model.network)
    matrices = jax.tree.map(jnp.asarray, turns_of(model, 0, 0) if turns is None else turns)
    by_text = [
        _shares(form, state, jnp.asarray(ids)[None], jnp.asarray(mask)[None], Turns(*matrices))
        for ids, mask in zip(texts.token_ids, texts.mask, strict=True)
    ]
    # The draws come first, then the texts and the states.
    stack = lambda *leaves: np.stack([np.asarray(part, float).swapaxes(0, 1) for part in leaves], axis=1)
    return jax.tree.map(stack, *(shares for shares, _ in by_text)), max(float(off) for _, off in by_text)


@eqx.filter_jit
def _shares(form: Any, state: Any, ids: Array, mask: Array, turns: Turns) -> tuple[Shares, Array]:
    network: Network = nnx.merge(form, state)
    order = network.order()
    # Heads of layers with the same weights are the same heads, of which one layer is counted.
    fresh = np.array([block not in order[:layer] for layer, block in enumerate(order)])

    def at_state(given: tuple[Array, Array, Array]) -> tuple[Shares, Array]:
        layer, x, added = given
        layers, heads = updates(network, x, mask)

        def of_draw(turn: Turns) -> Shares:
            pick = jax.vmap(lambda update, order, sign: update[:, order] * sign[None].astype(update.dtype))
            turned = pick(layers, turn.order[:, 0], turn.sign[:, 0])
            return shares_at(turned, jax.vmap(pick)(heads, turn.order[:, 1:], turn.sign[:, 1:]), mask[0], fresh)

        largest = lambda update: jnp.max(jnp.abs(jnp.where(mask[0][:, None], update, 0.0)))
        return jax.lax.map(of_draw, turns), largest(layers[layer] - added[0]) / largest(added[0])

    streams, added = (stands_at(form, state, ids, mask, place) for place in ("stream", "attention"))
    shares, off = jax.lax.map(at_state, (jnp.arange(len(added)), streams[: len(added)], added))
    return shares, jnp.max(off)


def updates(
    network: Network, x: Float[Array, "1 n d"], mask: Bool[Array, "1 n"]
) -> tuple[Float[Array, "layers n d"], Float[Array, "layers heads n d"]]:
    """The updates that the attention of every layer, and each of its heads, gives to the state of one text."""
    context = network.shared_context(mask.shape[1], jnp.sum(mask, axis=1))

    def step(block: Any, carry: None, given: Any) -> tuple[None, tuple[Array, Array]]:
        attended, _ = block.attend(block.read(0, block.enter(x)), mask, context)
        kernel, bias = block.head_outputs()
        by_head = jnp.einsum("bnhk,hkd->hbnd", attended, kernel, precision=block.precision)
        output = jnp.sum(by_head, axis=0)
        output = output if bias is None else output + bias[None, None]
        return None, (block.update(0, output)[0], block.carry_update(0, output, by_head)[:, 0])

    return scan_layers(network, step, None, mask.shape[1])[1]


def shares_at(
    layers: Float[Array, "layers n d"], heads: Float[Array, "layers heads n d"], words: Bool[Array, " n"],
    fresh: np.ndarray,
) -> Shares:  # fmt: skip
    """The shares of updates at one state, over the tokens that are `words`; the heads of a layer count if `fresh`."""
    square, num_heads = lambda u: jnp.sum(u * u, axis=-1), int(fresh.sum()) * heads.shape[1]
    heads = heads[np.flatnonzero(fresh)]
    squares, of_heads, together = square(layers), jnp.sum(square(heads), axis=(0, 1)), jnp.sum(heads, axis=1)
    # The sum over pairs of different updates is the square of their sum less the sum of their squares.
    pairs = (square(jnp.sum(layers, axis=0)) - jnp.sum(squares, axis=0)) / (len(layers) - 1)
    all_heads = (square(jnp.sum(together, axis=0)) - of_heads) / (num_heads - 1)
    same_layer = (jnp.sum(square(together), axis=0) - of_heads) / (heads.shape[1] - 1)
    mean = lambda values, where: jnp.sum(jnp.where(where, values, 0.0)) / jnp.sum(where.astype(values.dtype))
    of_layers, later = jnp.sum(squares, axis=0), words & (jnp.arange(len(words)) > 0)
    size = jnp.sqrt(squares)[..., None]
    unit = jnp.where(words[None, :, None], layers / jnp.where(size > 0, size, 1.0), 0.0)
    return Shares(
        mean(_ratio(pairs, of_layers), words), mean(_ratio(pairs, of_layers), later),
        mean(pairs, words) / mean(of_layers, words),
        mean(_ratio(all_heads, of_heads), words), mean(_ratio(same_layer, of_heads), words),
        jnp.einsum("knd,mnd->km", unit, unit, precision="highest") / jnp.sum(words.astype(unit.dtype)),
    )  # fmt: skip


def _ratio(part: Array, total: Array) -> Array:
    """The ratio `part / total`, or 0 where all updates are zero."""
    return jnp.where(total > 0, part / jnp.where(total > 0, total, 1.0), 0.0)
