"""The position-wise feed-forward layer: keys that fire, and values that are added."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from .._misc import as_float, draw_normal
from ._attention import contract
from ._norm import lifted


class FeedForward(eqx.Module):
    r"""$z'_i = W_2^\top\,\sigma(W_1^\top u_i + b_1) + b_2$, for each token alone.

    A neuron is a key, a column of $W_1$, and a value, a row of $W_2$: where the token matches the key the neuron fires,
    and as much of its value is added to the stream.

    **Arguments:**

    - `w_in`: $W_1$, (d, m).
    - `w_out`: $W_2$, (m, d).
    - `bias_in`, `bias_out`: $b_1$, (m,), and $b_2$, (d,); None is zero, as in A.1.
    - `activation`: $\sigma$, elementwise: `jax.nn.relu` as in A.1, `jax.nn.gelu`, ...

    **Raises:**

    - `ValueError` if the shapes do not match.

    ??? cite "Source"

        Peat, *Clustering in Transformers*, Appendix A.1; Geva et al., *Transformer feed-forward layers are key-value
        memories* (2012.14913), eq. (2).
    """

    w_in: Float[Array, "d m"] = eqx.field(converter=as_float)
    w_out: Float[Array, "m d"] = eqx.field(converter=as_float)
    bias_in: Float[Array, " m"] | None = eqx.field(default=None, converter=lambda b: None if b is None else as_float(b))
    bias_out: Float[Array, " d"] | None = eqx.field(
        default=None, converter=lambda b: None if b is None else as_float(b)
    )
    activation: Callable[..., Any] = eqx.field(default=jax.nn.relu, static=True)

    def __check_init__(self):
        shapes = {
            name: jnp.shape(getattr(self, name))
            for name in ("w_in", "w_out", "bias_in", "bias_out")
            if getattr(self, name) is not None
        }
        first = shapes["w_in"]
        fits = len(first) == 2 and shapes["w_out"] == first[::-1]
        fits = fits and shapes.get("bias_in", first[1:]) == first[1:] and shapes.get("bias_out", first[:1]) == first[:1]
        if not fits:
            raise ValueError(
                "w_in must be (d, m), w_out (m, d), bias_in (m,) and bias_out (d,), but their shapes are "
                f"{shapes}; transpose what is the other way round."
            )

    @classmethod
    def random(
        cls,
        key: PRNGKeyArray,
        d: int,
        hidden: int,
        *,
        activation: Callable[[Array], Array] = jax.nn.relu,
        bias: bool = False,
        scale: float | None = None,
        dtype: Any = None,
    ) -> "FeedForward":
        r"""Normal weights of standard deviation `scale` (None: $1/\sqrt{d}$ in, $1/\sqrt{m}$ out), biases zero.

        Source: this library.
        """
        dtype = dtype or jnp.result_type(float)
        w_in = draw_normal(jr.fold_in(key, 0), (d, hidden), dtype) * (1 / math.sqrt(d) if scale is None else scale)
        w_out = draw_normal(jr.fold_in(key, 1), (hidden, d), dtype) * (
            1 / math.sqrt(hidden) if scale is None else scale
        )
        zeros = (jnp.zeros(hidden, dtype), jnp.zeros(d, dtype)) if bias else (None, None)
        return cls(w_in, w_out, *zeros, activation)

    @property
    def num_neurons(self) -> int:
        """m, the number of neurons."""
        return self.w_in.shape[1]

    def scores(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch m"]:
        """How well each token matches the key of each neuron: what enters the activation.

        Source: 2012.14913, Section 2.
        """
        if jnp.shape(x)[-1:] != self.w_in.shape[:1]:
            raise ValueError(
                f"x must be tokens of dimension {self.w_in.shape[0]}, but its shape is {jnp.shape(x)}; pass "
                f"(n, {self.w_in.shape[0]})."
            )
        scores = contract("...d,dm->...m", x, self.w_in.astype(x.dtype))
        return scores if self.bias_in is None else scores + lifted(self.bias_in.astype(x.dtype), scores)

    def activations(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch m"]:
        """How strongly each neuron fires: the coefficients of the values.

        Source: 2012.14913, Section 2: the memory coefficients.
        """
        return self.activation(self.scores(x))

    def __call__(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        """What the layer adds to each token."""
        out = contract("...m,md->...d", self.activations(x), self.w_out.astype(x.dtype))
        return out if self.bias_out is None else out + lifted(self.bias_out.astype(x.dtype), out)
