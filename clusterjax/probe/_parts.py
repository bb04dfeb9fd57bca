"""A network with a part of it removed, to see what that part did."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from ._albert import Albert
from ._load import Model


def without_feed_forward(model: Model) -> Model:
    """The model whose feed-forward gives zero, so that only attention and norms move the tokens.

    The norms stay where they are, also the one after the feed-forward.

    **Arguments:**

    - `model`: What `load` returned.

    **Returns:**

    A `Model`.

    Source: this library.
    """

    def silence(block: Any) -> None:
        last = block.ffn_output if isinstance(model.network, Albert) else block.layer[1].DenseReluDense.wo
        last.kernel[...] = jnp.zeros_like(last.kernel[...])
        if last.bias is not None:
            last.bias[...] = jnp.zeros_like(last.bias[...])

    return _changed(model, silence, "without feed-forward")


def without_norms(model: Model) -> Model:
    """The model whose layers have no norms: x + A(x), then x + F(x), and nothing holds the tokens back.

    The norm of ALBERT's embedding, and that after the last block of T5, which do not act between layers, stay. Deep
    networks may overflow.

    **Arguments:**

    - `model`: What `load` returned.

    **Returns:**

    A `Model`.

    ??? cite "Source"

        Geshkovski et al., *The emergence of clusters in self-attention dynamics* (2305.05465), eq. (1.1), has dynamics
        without norms.
    """
    return _changed(model, lambda block: _set_norms(block, _Nothing()), "without norms")


def on_sphere(model: Model, radius: float) -> Model:
    """The ALBERT whose norms only scale each token to the length `radius`: no centring, nothing learnt.

    Without its feed-forward this is one Euler step of length 1 of the particle model for each layer, with biases.

    **Arguments:**

    - `model`: What `load` returned, of an ALBERT.
    - `radius`: The length, positive.

    **Returns:**

    A `Model`.

    **Raises:**

    - `ValueError` if the model is no ALBERT, or `radius` is not positive.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2: layer norm as the
        projection onto the sphere.
    """
    check_albert(model, "on_sphere")
    if not np.isfinite(radius) or radius <= 0:
        raise ValueError(f"radius must be positive, but it is {radius!r}; pass the length of the tokens.")
    return _changed(model, lambda block: _set_norms(block, _Length(radius)), "on the sphere")


def check_albert(model: Model, what: str) -> Albert:
    """The network, if it is an ALBERT: its tokens keep one length, those of T5 grow with depth."""
    if not isinstance(model.network, Albert):
        raise ValueError(
            f"model must be an ALBERT for {what}, but {model.name!r} is a T5 encoder, whose residual stream is not "
            "normalised; load an ALBERT."
        )
    return model.network


class _Nothing(nnx.Module):
    def __call__(self, x: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        return x


class _Length(nnx.Module):
    def __init__(self, radius: float):
        self.radius = float(radius)

    def __call__(self, x: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        square = jnp.sum(x * x, axis=-1, keepdims=True)
        # A row of padding is zero, and stays.
        return x * (self.radius / jnp.sqrt(jnp.where(square > 0, square, jnp.ones_like(square))))


def _changed(model: Model, change: Any, what: str) -> Model:
    network = nnx.clone(model.network)
    for block in network.blocks():
        change(block)
    return dataclasses.replace(model, network=network, name=f"{model.name} {what}")


def _set_norms(block: Any, norm: nnx.Module) -> None:
    if hasattr(block, "attention"):
        block.attention.LayerNorm, block.full_layer_layer_norm = norm, norm
    else:
        for part in block.layer:
            part.layer_norm = norm
