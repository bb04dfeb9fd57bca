"""The position-wise feed-forward layer: W_2^T sigma(W_1^T x + b_1) + b_2 for each token separately.

The layer can be read as a key-value memory (Geva et al., *Transformer feed-forward layers are key-value memories*,
2012.14913): the columns of W_1 are keys, which are compared with the token, and the rows of W_2 are values, which are
added with the activations of their neurons as coefficients.

Invariants: without biases and with sigma(0) = 0, the update of a zero token is zero; weights are rounded to the dtype
of the tokens where they are used.
"""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from .._base.checks import call_traced, check_callable, check_flag, check_key
from .._base.random import draw_normal
from .._base.types import AbstractPart, DTypeLike
from ._attention import contract
from ._checks import check_draw, check_features, check_sizes, weights
from ._norm import lifted


_WHAT = "a function of one array"


def check_activation(value: Callable[..., Any]) -> Callable[..., Any]:
    """Return `value` if it is a function of one array; raise a `ValueError` otherwise."""
    return check_callable(value, "activation", _WHAT, takes=1)


class FeedForward(AbstractPart):
    """The map $z'_i = W_2^T σ(W_1^T u_i + b_1) + b_2$ for each token separately.

    A neuron has a key, a column of $W_1$, and a value, a row of $W_2$: the match of token and key activates the neuron,
    and the value is added to the stream with the activation as its coefficient.

    **Arguments:**

    - `w_in`: $W_1$, (d, m).
    - `w_out`: $W_2$, (m, d).
    - `bias_in`, `bias_out`: $b_1$, (m,), and $b_2$, (d,); None is zero, as in A.1.
    - `activation`: σ, elementwise: `jax.nn.relu` as in A.1, `jax.nn.gelu`, ...

    **Raises:**

    - `ValueError` if the shapes do not match.

    ??? cite "Source"

        Peat, *Clustering in Transformers*, Appendix A.1; Geva et al., *Transformer feed-forward layers are key-value
        memories* (2012.14913), eq. (2).
    """

    w_in: Float[Array, "d m"] = eqx.field(converter=weights("w_in", "(d, m)"))
    w_out: Float[Array, "m d"] = eqx.field(converter=weights("w_out", "(m, d)"))
    bias_in: Float[Array, " m"] | None = eqx.field(default=None, converter=weights("bias_in", "(m,)", optional=True))
    bias_out: Float[Array, " d"] | None = eqx.field(default=None, converter=weights("bias_out", "(d,)", optional=True))
    activation: Callable[..., Any] = eqx.field(default=jax.nn.relu, static=True, converter=check_activation)

    def __check_init__(self):
        shapes = {
            name: jnp.shape(getattr(self, name))
            for name in ("w_in", "w_out", "bias_in", "bias_out")
            if getattr(self, name) is not None
        }
        first = shapes["w_in"]
        # A missing bias counts as one of the right shape.
        fits = len(first) == 2 and 0 not in first and shapes["w_out"] == first[::-1]
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
        dtype: DTypeLike | None = None,
    ) -> "FeedForward":
        """Normal weights of standard deviation `scale` (None: 1/√d in, 1/√m out) and zero biases."""
        check_key(key)
        d, hidden = check_sizes(d=d, hidden=hidden)
        check_activation(activation)
        # Each matrix is scaled by its number of summands, d and m, so that scores and updates have the magnitude of the
        # tokens.
        deviation_in, dtype = check_draw(scale, dtype, 1 / math.sqrt(d))
        deviation_out, dtype = check_draw(scale, dtype, 1 / math.sqrt(hidden))
        zeros = (jnp.zeros(hidden, dtype), jnp.zeros(d, dtype)) if check_flag(bias, "bias") else (None, None)
        # Fixed numbers are folded into the key, so that the weights do not depend on `bias`.
        w_in = draw_normal(jr.fold_in(key, 0), (d, hidden), dtype) * deviation_in
        w_out = draw_normal(jr.fold_in(key, 1), (hidden, d), dtype) * deviation_out
        return cls(w_in, w_out, *zeros, activation)

    @property
    def num_neurons(self) -> int:
        """m, the number of neurons."""
        return self.w_in.shape[1]

    def scores(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch m"]:
        """The match of each token with the key of each neuron, bias included: the input of the activation.

        Source: 2012.14913, Section 2.
        """
        return self._scores(check_features(x, self.w_in.shape[0]))

    def activations(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch m"]:
        """The activation of each neuron, which is the coefficient of its value.

        Source: 2012.14913, Section 2: the memory coefficients.
        """
        return call_traced(self.activation, "activation", _WHAT, self.scores(x))

    def _scores(self, x: Array) -> Array:
        scores = contract("...d,dm->...m", x, self.w_in.astype(x.dtype))
        return scores if self.bias_in is None else scores + lifted(self.bias_in.astype(x.dtype), scores)

    def __call__(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        """The update that the layer adds to each token."""
        return self._added(check_features(x, self.w_in.shape[0]))

    def _added(self, x: Array) -> Array:
        # `__call__` and `Block` have checked the tokens.
        out = contract(
            "...m,md->...d",
            call_traced(self.activation, "activation", _WHAT, self._scores(x)),
            self.w_out.astype(x.dtype),
        )
        return out if self.bias_out is None else out + lifted(self.bias_out.astype(x.dtype), out)
