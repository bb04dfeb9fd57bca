r"""Noise: Brownian motion on the space, added to a field, or after each layer.

On the sphere dX = P_X o sqrt(2T) dB in the sense of Stratonovich is Brownian motion (Hsu, *Stochastic Analysis on
Manifolds*, section 3.1): a solver that converges to the Stratonovich solution, such as Heun, is needed. After a layer a
token goes along a geodesic instead, by a Gaussian tangent vector. On the circle that is Brownian motion exactly; on
$S^{d-1}$ its variance $2s(1 - (d-2)s/3)$, s being the temperature times the time, makes $E\langle x', x\rangle$ right
up to $s^3$, where $2s$ would do so up to $s^2$.
"""

from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import lineax as lx
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from ._check import check_instance, check_key, check_scalar
from ._custom_types import RealScalarLike, Tokens
from ._field import AbstractField
from ._layer import AbstractLayer
from ._misc import is_concrete
from ._random import draw_normal
from ._schedule import Parameter, StoredParameter, as_parameter, at_time, check_real, check_time, example
from ._space import AbstractSpace, Sphere


def make_terms(
    field: AbstractField, x0: Tokens, ts: Array, noise: Any, key: Any, dt0: Any, jumps: Array | None = None
) -> dfx.AbstractTerm:
    """The drift and, if there is noise, the diffusion, as diffrax takes them; steps end at `ts` and at the `jumps`."""
    drift = dfx.ODETerm(field)
    if noise is None:
        return drift
    # A virtual tree, so that adaptive solvers and rejected steps see one path.
    # Half a step: every step of the solver then has an increment of its own.
    shape, tol = jax.ShapeDtypeStruct(x0.shape, x0.dtype), shortest_step(ts, jumps, dt0) / 2
    path = dfx.VirtualBrownianTree(ts[0], ts[-1], tol=tol, shape=shape, key=key)
    return dfx.MultiTerm(drift, dfx.ControlTerm(_Diffusion(field.space, noise), path))


# A step that is shorter than `dt0` by more than this factor, such as that between a save time and a jump beside it, has
# less noise than the path, of a variance that is smaller by this factor too. The tree need not resolve it.
_FINEST = 2.0**-20


def shortest_step(ts: Array, jumps: Array | None, dt0: Array) -> Array:
    """The shortest of the steps of at most `dt0` that end at all `ts` and `jumps`; to 1e-5, by which `ts` may round."""
    ends = ts if jumps is None else jnp.sort(jnp.concatenate([ts, jnp.clip(jumps, ts[0], ts[-1])]))
    lengths = lax.stop_gradient(jnp.diff(ends)) * (1 + 1e-5)
    least = _FINEST * dt0
    steps = jnp.where(lengths > least, lengths / jnp.ceil(jnp.maximum(lengths / dt0 * (1 - 2e-5), 1)), dt0)
    return jnp.minimum(jnp.maximum(jnp.min(steps), least), dt0)


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


def check_noisy_steps(controller: Any, ts: Array, dense: bool) -> None:
    """Raise a ValueError unless every save time of a run with noise is the end of a step."""
    if dense:
        raise ValueError(
            "dense must be False with noise, but it is True: between steps the tokens are random, and a straight line "
            "has too little noise; put every time that is wanted into ts."
        )
    if not isinstance(controller, dfx.StepTo) or not is_concrete((controller.ts, ts)):
        return
    missing = np.setdiff1d(np.asarray(ts), np.asarray(controller.ts).astype(ts.dtype))
    if missing.size:
        raise ValueError(
            "stepsize_controller must step onto every time of ts with noise, but StepTo does not onto "
            f"{missing[0]:.6g}: within a step a straight line has too little noise; add the times of ts to StepTo."
        )


class NoisyLayer(AbstractLayer):
    r"""A layer and, after it, Brownian motion of each token on the space of the layer for a time.

    With `ResidualLayer(field, step)` and `time=step` the layers follow $dX = \text{field}\,dt + \sqrt{2T}\,dB$ as the
    step goes to zero, what `simulate(field, x0, ts, noise=T, key=key)` integrates. Layer k draws the same numbers
    whatever the depth.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax
        >>> residual = cjx.ResidualLayer(cjx.AttentionField(cjx.SoftmaxAttention(4.0)), 0.1)
        >>> layer = cjx.NoisyLayer(residual, temperature=0.01, time=0.1, key=jax.random.key(1))
        >>> x0 = cjx.Sphere().sample(jax.random.key(0), n=32, d=3)
        >>> x = cjx.iterate(layer, x0, depth=300).x1
        >>> int(cjx.num_clusters(x, radius=0.1)) > 1, int(cjx.num_clusters(x, radius=0.8))
        (True, 1)
        ```

    **Arguments:**

    - `layer`: What is done first, such as `ResidualLayer`.
    - `temperature`: T >= 0, or a schedule over the layer number.
    - `time`: For how long tokens move at this temperature after each layer, not negative.
    - `key`: PRNG key.

    **Raises:**

    - `ValueError` for a temperature or a time that is negative or no number, or what is no layer or no key.

    ??? cite "Source"

        2604.16288 and 2606.05140: tokens under noise.
    """

    layer: AbstractLayer
    temperature: StoredParameter
    time: Float[Array, ""]
    key: PRNGKeyArray
    space: AbstractSpace

    def __init__(self, layer: AbstractLayer, temperature: Parameter, *, time: RealScalarLike, key: PRNGKeyArray):
        rule, remedy = "a layer of clusterjax", "wrap a field, ResidualLayer(field, step)"
        self.layer = check_instance(layer, "layer", AbstractLayer, rule, remedy)
        self.temperature = as_parameter(temperature, "temperature")
        self.space = layer.space
        if temperature is None or jnp.ndim(example(self.temperature)) != 0:
            raise ValueError(
                "temperature must be a number or a schedule, but it is "
                f"{'None' if temperature is None else 'an array'}; pass zero for no noise."
            )
        check_real(self.temperature, "temperature", "pass a number that is not negative")
        given = self.temperature
        if isinstance(given, Array) and is_concrete(given) and float(given) < 0:
            raise ValueError(f"temperature must not be negative, but it is {float(given):.3g}; pass zero or more.")
        dtype = jnp.result_type(float)
        self.time = check_scalar(time, "time", dtype, least=0, remedy="pass the step of the layer")
        self.key = check_key(key)

    def __call__(self, k: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        check_time(k, "k")
        y = self.layer(k, x, args)
        amount = at_time(self.temperature, k, y.dtype) * self.time.astype(y.dtype)
        # Integers of Python may be longer than those of jax.
        number = jnp.asarray(min(k, 2**31 - 1) if isinstance(k, int) else k).astype(jnp.int32)
        return brownian_step(self.space, y, jr.fold_in(self.key, number), amount)

    def check(self, n: int, d: int) -> None:
        self.layer.check(n, d)


def brownian_step(space: AbstractSpace, x: Tokens, key: PRNGKeyArray, amount: Array) -> Tokens:
    """Tokens after Brownian motion, `amount` being the temperature times the time."""
    curved = isinstance(space, Sphere)
    variance = 2 * amount * (1 - max(x.shape[1] - 2, 0) * amount / 3 if curved else 1)
    # Of a step that is far too long for the correction nothing negative is left.
    size = jnp.sqrt(jnp.maximum(variance, amount))
    moved = size * space.tangent(x, draw_normal(key, x.shape, x.dtype))
    if not curved:
        return space.retract(x + moved)
    square = jnp.sum(moved * moved, axis=1, keepdims=True)
    # Near zero, where the root has no derivative, the first terms of the series.
    small = square < 1e-8
    length = jnp.sqrt(jnp.where(small, 1, square))
    cosine = jnp.where(small, 1 - square / 2, jnp.cos(length))
    ratio = jnp.where(small, 1 - square / 6, jnp.sin(length) / length)
    return space.retract(cosine * x + ratio * moved)
