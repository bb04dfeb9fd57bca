"""`PerceptronField`: the feed-forward layer as a velocity, for each token separately."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._check import call_traced, check_callable
from .._custom_types import RealScalarLike, Tokens
from .._misc import matmul
from .._schedule import StoredParameter, at_time, check_real, check_time, example, optional_parameter, parameter
from .._space import AbstractSpace, Sphere, check_space
from .base import AbstractField


_WHAT = "a function of an array"


class PerceptronField(AbstractField):
    r"""$\dot x_i = P_{x_i}\big(W_{out}\,\sigma(W_{in} x_i + b_{in}) + b_{out}\big)$, for each token separately.

    With $W_{out} = W_{in}^\top \mathrm{diag}(\omega)$ the velocity is the gradient of $\sum_j \omega_j \varphi(\langle
    a_j, x\rangle)/2$ with $\varphi' = 2\sigma$, so that attention plus perceptron has an energy.

    **Arguments:**

    - `w_in`: (m, d), or a schedule.
    - `w_out`: (d, m), or a schedule.
    - `activation`: A function of an array, elementwise.
    - `bias_in`, `bias_out`: (m,) and (d,), or schedules; None is zero.
    - `space`: `Sphere()` or `Euclidean()`.

    **Raises:**

    - `ValueError` if the shapes do not match, or a parameter is not real and finite.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2; the gradient form in
        2601.21366, Section 2.
    """

    w_in: StoredParameter = eqx.field(converter=parameter("w_in"))
    w_out: StoredParameter = eqx.field(converter=parameter("w_out"))
    activation: Callable[[Array], Array] = jax.nn.relu
    bias_in: StoredParameter | None = eqx.field(default=None, converter=optional_parameter("bias_in"), kw_only=True)
    bias_out: StoredParameter | None = eqx.field(default=None, converter=optional_parameter("bias_out"), kw_only=True)
    space: AbstractSpace = eqx.field(default=Sphere(), kw_only=True)

    def __check_init__(self):
        names = ("w_in", "w_out", "bias_in", "bias_out")
        for name in names[:2]:
            if getattr(self, name) is None:
                raise ValueError(f"{name} must be a matrix or a schedule, but it is None; pass real weights.")
        check_callable(self.activation, "activation", _WHAT)
        check_space(self.space)
        for name in names:
            check_real(getattr(self, name), name, "pass real weights")
        shapes = {name: jnp.shape(example(getattr(self, name))) for name in names if getattr(self, name) is not None}
        w_in, w_out = shapes["w_in"], shapes["w_out"]
        # (m, d), (d, m), (m,), (d,); a bias that is None fits.
        fits = len(w_in) == 2 and w_out == w_in[::-1] and 0 not in w_in
        fits = fits and shapes.get("bias_in", w_in[:1]) == w_in[:1] and shapes.get("bias_out", w_in[1:]) == w_in[1:]
        if not fits:
            raise ValueError(
                "w_in, w_out, bias_in and bias_out must be of the shapes (m, d), (d, m), (m,) and (d,), "
                f"but their shapes are {shapes}; transpose what is the other way round."
            )

    def __call__(self, t: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        check_time(t)
        y = self.enter(x)
        w_in, w_out, bias_in, bias_out = (
            at_time(p, t, y.dtype) for p in (self.w_in, self.w_out, self.bias_in, self.bias_out)
        )
        # Tokens are rows: W x_i is row i of x W^T.
        hidden: Float[Array, "n m"] = matmul(y, w_in.T)
        hidden = hidden if bias_in is None else hidden + bias_in[None, :]
        hidden = call_traced(self.activation, "activation", _WHAT, hidden)
        out = matmul(hidden, w_out.T)
        return self.space.tangent(y, out if bias_out is None else out + bias_out[None, :])

    def check(self, n: int, d: int) -> None:
        shape = jnp.shape(example(self.w_in))
        if shape[1] != d:
            raise ValueError(f"w_in must act on tokens of dimension {d}, but its shape is {shape}; pass (m, {d}).")
