"""The particle model of a network on many texts: its curves of mean cosine, and their derivatives.

Each text is a system of n particles that starts from the directions of its embedded tokens and moves by the
`MultiHeadField` of its heads; one layer is one unit of time. The equation is integrated by Bogacki and Shampine's
third-order method with constant steps, under `jax.vmap` over texts, and differentiated in forward mode with respect to
log(time per layer) and log(beta).

Invariants: all batches have one shape, so that one program serves them; padding has mass zero and moves no token.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float

from ..._field import MultiHeadField
from ..._simulate import simulate
from ..measures.survey import dtype_of
from ..networks.batch import Encoded
from ..networks.load import Model
from .field import mean_cosine, particle_field


class Particles(NamedTuple):
    """The particle model of all texts, in batches of one shape."""

    field: MultiHeadField
    last_scale: Array | None
    starts: list[tuple[Array, Array]]
    levels: int
    steps_per_layer: int
    texts: int

    @classmethod
    def make(cls, model: Model, data: Encoded, radius: Any, batch_size: int, steps_per_layer: int) -> "Particles":
        texts = len(data.mask)
        size = min(batch_size, texts)
        batches = []
        for start in range(0, texts, size):
            # Copies of the last text fill the last batch: another shape would trigger compilation.
            rows = np.minimum(np.arange(start, start + size), texts - 1)
            batches.append(
                (embedded_directions(model, data.token_ids[rows], data.mask[rows]), jnp.asarray(data.mask[rows]))
            )
        field = particle_field(model, radius, n=data.mask.shape[1])
        scale = model.network.last_scale()
        scale = None if scale is None else jnp.asarray(scale)
        return cls(field, scale, batches, model.num_layers + 1, steps_per_layer, texts)

    def curves(self, log_scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The curve of each text, (texts, levels), and its derivatives by both logarithms, (texts, levels, 2)."""
        curves, derivatives = zip(*self._computed(_with_derivatives, log_scales), strict=True)
        return self._joined(curves), self._joined(derivatives)

    def predicted(self, log_scales: np.ndarray) -> np.ndarray:
        """The curve of each text without derivatives, (texts, levels), at a third of the cost."""
        return self._joined(self._computed(_without_derivatives, log_scales))

    def _computed(self, function: Callable[..., Any], log_scales: np.ndarray) -> list[Any]:
        scales = jnp.asarray(log_scales, self.starts[0][0].dtype)
        return [
            function(self.field, scales, self.last_scale, *start, self.levels, self.steps_per_layer)
            for start in self.starts
        ]

    def _joined(self, parts: Sequence[Array]) -> np.ndarray:
        # The copies that fill the last batch are dropped.
        return np.concatenate([np.asarray(part, np.float64) for part in parts])[: self.texts]


def _curves_of(
    field: Any, log_scales: Array, last_scale: Array | None, x0: Array, mask: Array, levels: int, steps_per_layer: int
) -> Array:
    # Logarithms keep both numbers positive for any step of the fit.
    time, beta = jnp.exp(log_scales[0]), jnp.exp(log_scales[1])

    def level_statistic(t: Array, x: Array, word: Array) -> Array:
        """The mean cosine of the tokens; the last norm is applied to them at the last level."""
        if last_scale is None:
            return mean_cosine(x, word)
        # Times are 0, 1, ..., levels - 1; comparing with the midpoint before the last time is safe from rounding.
        return mean_cosine(jnp.where(t > levels - 1.5, x * last_scale[None], x), word)

    def of_text(x0: Float[Array, "n d"], word: Bool[Array, " n"]) -> Float[Array, " levels"]:
        # The masses are None so far, and `tree_at` takes a None for a leaf only with `is_leaf`.
        beta_and_masses = lambda field: (field.beta, field.masses)
        heads = eqx.tree_at(beta_and_masses, field, (beta, word.astype(x0.dtype)), is_leaf=lambda leaf: leaf is None)
        run = simulate(
            # Time is a factor of the field, so that the grid of steps does not depend on it and nothing is recompiled.
            time * heads,
            x0,
            jnp.arange(levels, dtype=x0.dtype),
            word,
            solver=dfx.Bosh3(),
            stepsize_controller=dfx.ConstantStepSize(),
            dt0=1 / steps_per_layer,
            # Two parameters and many outputs: forward mode costs three runs; reverse mode would store all steps.
            adjoint=dfx.ForwardMode(),
            save=level_statistic,
            # diffrax requires a bound: there are (levels - 1) steps_per_layer constant steps, and rounding of times may
            # add some.
            max_steps=levels * steps_per_layer + 8,
        )
        return run.xs

    return jax.vmap(of_text)(x0, mask)


_without_derivatives = eqx.filter_jit(_curves_of)


@eqx.filter_jit
def _with_derivatives(field, log_scales, last_scale, x0, mask, levels, steps_per_layer) -> tuple[Array, Array]:
    def curves_and_copy(log_scales):
        curves = _curves_of(field, log_scales, last_scale, x0, mask, levels, steps_per_layer)
        return curves, curves

    # `has_aux` returns the curves from the run that computes their derivatives.
    derivatives, curves = jax.jacfwd(curves_and_copy, has_aux=True)(log_scales)
    return curves, derivatives


def embedded_directions(model: Model, ids: np.ndarray, mask: np.ndarray) -> Array:
    """The directions of the embedded tokens; padding gets the direction of the first word, with mass zero."""
    form, state = nnx.split(model.network)
    hidden = _embedded(form, state, jnp.asarray(ids, jnp.int32))
    first = jnp.take_along_axis(hidden, jnp.asarray(np.argmax(mask, axis=1))[:, None, None], axis=1)
    # A zero row of padding would be divided by its norm 0; a copy of a word stays finite and, without mass, receives no
    # attention.
    hidden = jnp.where(jnp.asarray(mask)[:, :, None], hidden, first)
    return (hidden / jnp.linalg.norm(hidden, axis=-1, keepdims=True)).astype(dtype_of(model))


@eqx.filter_jit
def _embedded(form: Any, state: Any, ids: Array) -> Array:
    return nnx.merge(form, state).embed(ids)
