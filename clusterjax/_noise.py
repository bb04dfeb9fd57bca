"""Noise: Brownian motion on the space, added to a field.

On the sphere dX = P_X o sqrt(2T) dB in the sense of Stratonovich is Brownian motion (Hsu, *Stochastic Analysis on
Manifolds*, section 3.1): a solver that converges to the Stratonovich solution, such as Heun, is needed.
"""

from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float

from ._check import check_key, check_scalar
from ._custom_types import Tokens
from ._field import AbstractField
from ._space import AbstractSpace


def make_terms(field: AbstractField, x0: Tokens, ts: Array, noise: Any, key: Any, dt0: Any) -> dfx.AbstractTerm:
    """The drift and, if there is noise, the diffusion, as diffrax takes them."""
    drift = dfx.ODETerm(field)
    if noise is None:
        return drift
    # A virtual tree, so that adaptive solvers and rejected steps see one path.
    # Half a step: every step of the solver then has an increment of its own.
    path = dfx.VirtualBrownianTree(ts[0], ts[-1], tol=dt0 / 2, shape=jax.ShapeDtypeStruct(x0.shape, x0.dtype), key=key)
    return dfx.MultiTerm(drift, dfx.ControlTerm(_Diffusion(field.space, noise), path))


class _Diffusion(eqx.Module):
    """Brownian motion of the space: increments are projected to the tangent space, times the square root of 2T."""

    space: AbstractSpace
    temperature: Float[Array, ""]

    def __call__(self, t, y, args):
        point, size = self.space.retract(y), jnp.sqrt(2 * self.temperature)
        # A linear operator, so that the (n d) x (n d) matrix is never formed.
        return lx.FunctionLinearOperator(
            lambda increment: size * self.space.tangent(point, increment), jax.eval_shape(lambda: y)
        )


def check_noise(noise: Any, key: Any, dt0: Any, dtype: Any) -> Array | None:
    """`noise` as an array, or a ValueError if it, its key or its step is not what a noisy run needs."""
    if key is not None:
        check_key(key)
    if noise is None:
        return None
    noise = check_scalar(noise, "noise", dtype, least=0, remedy="None is no noise")
    if key is None:
        raise ValueError("key must be given with noise, but it is None; pass jax.random.key(0), or another.")
    if dt0 is None:
        raise ValueError("dt0 must be given with noise, but it is None; pass the length of a step, such as 0.01.")
    return noise
