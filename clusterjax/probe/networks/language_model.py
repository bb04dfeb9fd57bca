"""A language model of `transformer` as a network of `probe`: the same parameters and the same function.

A `LanguageModel` is an Equinox module for a single text; the tools of `probe` run Flax networks on batches. The network
contains the arrays of a model, in the layout of `Network`, and the other parts that define its function (activation,
mask).

Invariant: the outputs equal those of the model up to rounding, for all options.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from ..._base.checks import refusal
from ..._model.mask import CausalMask
from ...transformer._language_model import LanguageModel
from ...transformer._norm import NoNorm, PostNorm
from ...transformer._positions import LearnedPositions, RelativePositions, RotaryPositions, SinusoidalPositions
from .network import Network
from .sizes import NetworkSizes, Rotary


FAMILY = "clusterjax"


def network_of(model: LanguageModel) -> Network:
    """Build the network with the arrays of a language model.

    **Raises:**

    - `ValueError` if the stream of the model has another dtype than its parameters, or its positions are custom.
    """
    dtype = model.embedding.dtype
    if model.stream_dtype is not None and np.dtype(model.stream_dtype) != dtype:
        rule, problem = f"compute in the dtype of its parameters, {dtype}", f"its stream is {model.stream_dtype}"
        raise refusal("model", rule, problem, "replace its stream_dtype by None")
    network: Any = Network(_sizes_of(model), nnx.Rngs(0), head=True, dtype=dtype)
    stack, mask = model.stack, model.stack.blocks.attention.mask
    if not isinstance(mask, CausalMask):
        # `nnx.data`, because a mask may hold arrays, which are not parameters.
        network.trained_mask = nnx.data(mask)
    network.words.embedding[...] = model.embedding
    if isinstance(model.positions, LearnedPositions):
        network.positions.embedding[...] = model.positions.table
    if model.head.unembedding is not None:
        network.head.decoder.kernel[...] = model.head.unembedding.T
    if stack.norm is not None:
        _fill_norm(network.norm, stack.norm)
    for layer, ours in enumerate(network.layers):
        block = stack.block(layer)
        part, forward = block.attention, block.feed_forward
        for name in ("query", "key", "value"):
            maps = getattr(part, name)
            getattr(ours.attention, name).kernel[...] = jnp.moveaxis(maps, 0, 1).reshape(part.d, -1)
        ours.attention.output.kernel[...] = part.output.reshape(-1, part.d)
        ours.attention.temperature[...] = jnp.broadcast_to(part.beta, ours.attention.temperature.shape)
        if isinstance(part.relative, RelativePositions):
            ours.attention.distance_keys[...] = part.relative.keys
            if part.relative.values is not None:
                ours.attention.distance_values[...] = part.relative.values
        if forward is not None:
            for linear, kernel, bias in (
                (ours.feed_forward.into, forward.w_in, forward.bias_in),
                (ours.feed_forward.out, forward.w_out, forward.bias_out),
            ):
                linear.kernel[...] = kernel
                if bias is not None:
                    linear.bias[...] = bias
        for number, theirs in enumerate(block.norms):
            norms = ours.norms(number)
            if theirs is not None:
                _fill_norm(norms.read if norms.stream is None else norms.stream, theirs)
    return network


def _fill_norm(norm: Any, theirs: Any) -> None:
    norm.scale[...] = theirs.gain
    if theirs.bias is not None:
        norm.bias[...] = theirs.bias


def _sizes_of(model: LanguageModel) -> NetworkSizes:
    stack, block, positions = model.stack, model.stack.block(0), model.positions
    part, forward, relative, residual = block.attention, block.feed_forward, block.attention.relative, block.residual
    if not isinstance(positions, LearnedPositions | SinusoidalPositions | None):
        raise refusal(
            "model", "have learned, sinusoidal, relative or rotary positions", f"they are {type(positions).__name__}",
            "read it with the tools of clusterjax.transformer",
        )  # fmt: skip
    learned, sinusoidal = isinstance(positions, LearnedPositions), isinstance(positions, SinusoidalPositions)
    distances = relative if isinstance(relative, RelativePositions) else None
    # All norms of a model are created alike, so that one epsilon and one choice of biases are enough.
    norm = block.norms[0] if block.norms[0] is not None else stack.norm
    return NetworkSizes(
        family=FAMILY,
        vocab_size=model.num_words,
        hidden_size=part.d,
        num_heads=part.num_heads,
        head_size=part.query.shape[2],
        intermediate_size=0 if forward is None else forward.num_neurons,
        num_layers=stack.num_layers,
        num_groups=1 if stack.depth is not None else None,
        max_positions=positions.table.shape[0] if isinstance(positions, LearnedPositions) else None,
        positions="learned" if learned else "sinusoidal" if sinusoidal else "none",
        position_base=float(positions.base) if isinstance(positions, SinusoidalPositions) else 10000.0,
        # The queries are multiplied by the inverse temperature of each head.
        scale=1.0,
        temperatures=True,
        attention_bias=False,
        output_bias=False,
        rotary=() if not isinstance(relative, RotaryPositions) else (Rotary(float(relative.base)),),
        distances=0 if distances is None else distances.keys.shape[0],
        distance_values=distances is not None and distances.values is not None,
        norm_place="none" if isinstance(residual, NoNorm) else "after" if isinstance(residual, PostNorm) else "before",
        norm_bias=norm is not None and norm.bias is not None,
        eps=float(norm.epsilon) if norm is not None else 1e-5,
        last_norm=stack.norm is not None,
        activation="gelu" if forward is None else forward.activation,
        bias_in=forward is not None and forward.bias_in is not None,
        bias_out=forward is not None and forward.bias_out is not None,
        tied=model.head.unembedding is None,
        spread=None,
    )
