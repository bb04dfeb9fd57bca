"""Noise: Brownian motion on the space, added to a field, or applied after each layer.

On the sphere the Stratonovich equation dX = P_X o sqrt(2T) dB describes Brownian motion (Hsu, *Stochastic Analysis on
Manifolds*, section 3.1), which requires a solver that converges to the Stratonovich solution, such as Heun. After a
layer a token moves along a geodesic instead, by a Gaussian tangent vector. On the circle this is exactly Brownian
motion; on $S^{d-1}$ the variance $2s(1 - (d-2)s/3)$, where s is the temperature times the time, makes E⟨x', x⟩ exact up
to s³, whereas 2s makes it exact up to s².
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

from .._base.checks import check_array, check_instance, check_key, check_scalar, check_tokens, refusal, shown
from .._base.numerics import as_float, is_concrete, matmul
from .._base.random import draw_normal
from .._base.types import AbstractPart, Numbers, RealScalarLike, Tokens
from .._model.attention import AbstractAttention, check_attention
from .._model.field import AbstractField, check_field
from .._model.layer import AbstractLayer
from .._model.schedule import (
    Parameter,
    StoredParameter,
    as_parameter,
    at_time,
    check_beta,
    check_temperature,
    check_time,
)
from .._model.space import AbstractSpace, Sphere


def make_terms(
    field: AbstractField, x0: Tokens, ts: Array, noise: Any, key: Any, dt0: Any, jumps: Array | None = None
) -> dfx.AbstractTerm:
    """The drift and, with noise, the diffusion, as terms of diffrax; steps end at `ts` and at the `jumps`."""
    drift = dfx.ODETerm(field)
    if noise is None:
        return drift
    # With a virtual tree, adaptive solvers see the same path after a rejected step. The tolerance of the tree is half
    # the shortest step, so that no two steps share an increment.
    shape, tol = jax.ShapeDtypeStruct(x0.shape, x0.dtype), shortest_step(ts, jumps, dt0) / 2
    if isinstance(noise, CommonNoise):
        noise.check(*x0.shape)
        path_shape = (*(() if noise.query_keys is None else noise.query_keys.shape[:1]), x0.shape[1], x0.shape[1])
        shape = jax.ShapeDtypeStruct(path_shape, x0.dtype)
        path = dfx.VirtualBrownianTree(ts[0], ts[-1], tol=tol, shape=shape, key=key)
        return dfx.MultiTerm(drift, dfx.ControlTerm(_CommonDiffusion(field, noise), path))
    path = dfx.VirtualBrownianTree(ts[0], ts[-1], tol=tol, shape=shape, key=key)
    return dfx.MultiTerm(drift, dfx.ControlTerm(_Diffusion(field.space, noise), path))


# The tree need not resolve a step that is shorter than `dt0` by more than this factor, as between a save time and a
# jump beside it. The noise of such a step is too small, but the variance that is lost is negligible by this factor.
_FINEST = 2.0**-20


def shortest_step(ts: Array, jumps: Array | None, dt0: Array) -> Array:
    """The shortest step, if steps of at most `dt0` end at all `ts` and `jumps`, up to 1e-5, the rounding of `ts`."""
    ends = ts if jumps is None else jnp.sort(jnp.concatenate([ts, jnp.clip(jumps, ts[0], ts[-1])]))
    lengths = lax.stop_gradient(jnp.diff(ends)) * (1 + 1e-5)
    least = _FINEST * dt0
    steps = jnp.where(lengths > least, lengths / jnp.ceil(jnp.maximum(lengths / dt0 * (1 - 2e-5), 1)), dt0)
    return jnp.minimum(jnp.maximum(jnp.min(steps), least), dt0)


class _Diffusion(eqx.Module):
    """Brownian motion of the space: increments are projected to the tangent space and scaled by sqrt(2T)."""

    space: AbstractSpace
    temperature: Float[Array, ""]

    def __call__(self, t, y, args):
        point, size = self.space.retract(y), jnp.sqrt(2 * self.temperature)
        # A linear operator never forms the (n d) x (n d) matrix.
        return lx.FunctionLinearOperator(
            lambda increment: size * self.space.tangent(point, increment), jax.eval_shape(lambda: y)
        )


class _CommonDiffusion(eqx.Module):
    """The increments of W, (d, d), or of one W for each form of an ensemble, as increments of all tokens."""

    field: AbstractField
    noise: "CommonNoise"

    def __call__(self, t, y, args):
        space = self.field.space
        point = space.retract(y)
        forms, d = self.noise.query_keys, y.shape[1]
        if forms is None:
            pushed = _pushed(self.noise, t, point, self.field)
            push = lambda increment: matmul(pushed, increment.T)
        else:
            pushes = lax.map(lambda form: _pushed(self.noise, t, point, self.field, form), forms) / np.sqrt(len(forms))
            push = lambda increments: jnp.einsum("min,mdn->id", pushes, increments, precision=lax.Precision.HIGHEST)
        shape = jax.ShapeDtypeStruct((*(() if forms is None else forms.shape[:1]), d, d), y.dtype)
        return lx.FunctionLinearOperator(lambda increment: space.tangent(point, push(increment)), shape)


def check_noise(noise: Any, key: Any, dt0: Any, dtype: Any) -> "Array | CommonNoise | None":
    """`noise` as an array, or unchanged if it is a `CommonNoise`; a ValueError if `noise`, `key` or `dt0` is not valid
    for a run with noise."""
    if key is not None:
        check_key(key)
    if noise is None:
        return None
    if not isinstance(noise, CommonNoise):
        noise = check_scalar(noise, "noise", dtype, least=0, remedy="None is no noise")
    if key is None:
        raise ValueError("key must be given with noise, but it is None; pass jax.random.key(0), or another.")
    if dt0 is None:
        raise ValueError("dt0 must be given with noise, but it is None; pass the length of a step, such as 0.01.")
    return noise


def check_solver_of_noise(solver: Any, noise: Any) -> None:
    """Raise a ValueError unless the solver of a run with common noise solves equations of Ito."""
    if isinstance(noise, CommonNoise) and not isinstance(getattr(solver, "solver", solver), dfx.Euler):
        raise ValueError(
            f"solver must be Retract(diffrax.Euler()) with CommonNoise, which is an equation of Ito, but it is "
            f"{shown(solver)}; leave it out."
        )


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
    """A layer that is followed by Brownian motion of each token on the space of the layer, for a given time.

    With `ResidualLayer(field, step)` and `time=step` the layers converge, as the step tends to zero, to
    $dX = field dt + √(2T) dB$, which `simulate(field, x0, ts, noise=T, key=key)` integrates. The random numbers of
    layer k do not depend on the depth.

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

    - `layer`: The layer that is applied first, such as `ResidualLayer`.
    - `temperature`: T >= 0, or a schedule over the layer number.
    - `time`: The time of the Brownian motion after each layer, not negative.
    - `key`: PRNG key.

    **Raises:**

    - `ValueError` if the temperature or the time is negative or not a number, or the layer or the key is not one.

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
        check_temperature(self.temperature)
        dtype = jnp.result_type(float)
        self.time = check_scalar(time, "time", dtype, least=0, remedy="pass the step of the layer")
        self.key = check_key(key)

    def __call__(self, k: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        check_time(k, "k")
        y = self.layer(k, x, args)
        amount = at_time(self.temperature, k, y.dtype) * self.time.astype(y.dtype)
        # Python integers may exceed the range of jax integers.
        number = jnp.asarray(min(k, 2**31 - 1) if isinstance(k, int) else k).astype(jnp.int32)
        return brownian_step(self.space, y, jr.fold_in(self.key, number), amount)

    def check(self, n: int, d: int) -> None:
        self.layer.check(n, d)


class CommonNoise(AbstractPart):
    """The noise of heads that are random in every layer: $σ P_i dW a_i$ with $a_i = ∑_j w_{ij} x_j$.

    W is a Brownian motion of d x d matrices, the same for all tokens. `simulate(field, x0, ts, noise=CommonNoise(...),
    key=key, dt0=dt0)` integrates the limit of `RandomHeads`, the equation of Ito $dX_i = field dt + σ P_i dW a_i -
    σ²(d-1)|a_i|² X_i dt / 2$ on the sphere, whose last term results from the retraction of `Retract(diffrax.Euler())`.
    For two tokens the cosine is a diffusion in one dimension, whose mean the tests compute without samples.

    With `query_keys` each layer draws B as well, one of m matrices with equal probabilities, independently of V. The
    noise of the limit is then $σ P_i ∑_b dW_b a_i(B_b) / √m$, with m independent Brownian motions: the covariance of
    two tokens is the mean of $⟨a_i(B), a_j(B)⟩$ over the ensemble. A continuous ensemble is approximated by a sample.

    **Arguments:**

    - `attention`: The attention of the random heads, such as `SoftmaxAttention(beta)`.
    - `size`: σ, the standard deviation of the entries of V in one unit of time: a number or a schedule.
    - `query_keys`: The matrices $B = Q^T K$ of the ensemble, (m, d, d), which replace that of `attention`; None keeps
        that of `attention` in every layer.

    **Raises:**

    - `ValueError` if `attention` is not an attention, or has no B that `query_keys` could replace, if `size` is not a
        finite real number, or `query_keys` is not a stack of finite square matrices.

    ??? cite "Source"

        Koubbi, Geshkovski, Rigollet, *Homogenized Transformers* (2604.01978), and Fedorov et al., *Clustering in deep
        stochastic transformers* (2601.21942), where the noise is common to all tokens. The equation is derived here.
    """

    attention: AbstractAttention
    size: StoredParameter
    query_keys: Float[Array, "m d d"] | None

    def __init__(self, attention: AbstractAttention, size: Parameter, *, query_keys: Numbers | None = None):
        self.attention = check_attention(attention)
        self.size = as_parameter(size, "size")
        check_beta(self.size, "size", "number")
        self.query_keys = None
        if query_keys is not None:
            remedy = "pass the matrices B of the ensemble, (m, d, d)"
            self.query_keys = check_array(query_keys, "query_keys", shape=(None, None, None), remedy=remedy)
            m, d, other = self.query_keys.shape
            if m == 0 or d != other:
                raise refusal("query_keys", "be a stack of square matrices", f"its shape is {(m, d, other)}", remedy)
            if not hasattr(attention, "query_key"):
                rule, remedy = "have a query_key, which query_keys replace", "pass SoftmaxAttention(beta), for example"
                raise refusal("attention", rule, f"it is {shown(attention)}", remedy)

    def check(self, n: int, d: int) -> None:
        """Raise a ValueError unless the noise fits `n` tokens of dimension `d`."""
        self.attention.check(n, d)
        if self.query_keys is not None and self.query_keys.shape[1] != d:
            rule, problem = f"be matrices for tokens of dimension {d}", f"its shape is {self.query_keys.shape}"
            raise refusal("query_keys", rule, problem, "pass those of this dimension")


def _pushed(
    noise: CommonNoise, t: RealScalarLike, x: Tokens, field: AbstractField, form: Array | None = None
) -> Tokens:
    """The rows $σ a_i$, with the masses of the field, for a B of the ensemble or for that of the attention."""
    masses = at_time(getattr(field, "masses", None), t, x.dtype)
    attention = noise.attention
    if form is not None:
        is_none = lambda node: node is None
        attention = eqx.tree_at(lambda node: node.query_key, attention, form.astype(x.dtype), is_leaf=is_none)
    return at_time(noise.size, t, x.dtype) * attention.average(x, None, t, masses)


class RandomHeads(AbstractLayer):
    """$x_i ↦ retract(x_i + η field(x)_i + √η σ G_k a_i)$: a layer with a mean head and an independent random head.

    Layer k draws the entries of $G_k$, (d, d), from the standard normal distribution, once for all tokens, and has the
    time kη. If the noise has `query_keys`, layer k also draws the B of its averages a_i from these. As the step η tends
    to zero the layers converge to `simulate(field, x0, ts, noise=noise, key=key, dt0=η)`: averages at a fixed time have
    an error proportional to η. The random numbers of layer k do not depend on the depth.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax
        >>> mean_head = cjx.AttentionField(cjx.SoftmaxAttention(4.0))
        >>> noise = cjx.CommonNoise(mean_head.attention, 0.2)
        >>> layer = cjx.RandomHeads(mean_head, 0.1, noise=noise, key=jax.random.key(1))
        >>> x0 = cjx.Sphere().sample(jax.random.key(0), n=16, d=8)
        >>> int(cjx.num_clusters(cjx.iterate(layer, x0, depth=400).x1, radius=0.1))
        1
        ```

    **Arguments:**

    - `field`: The mean head, such as `AttentionField`.
    - `step`: η, a positive number or an array of shape ().
    - `noise`: The attention and the size of the random heads.
    - `key`: PRNG key.

    **Raises:**

    - `ValueError` if `step` is negative or not a number, or another argument is not of its kind.

    ??? cite "Source"

        Koubbi, Geshkovski, Rigollet, *Homogenized Transformers* (2604.01978), with one head in each layer.
    """

    field: AbstractField
    step: Float[Array, ""]
    noise: CommonNoise
    key: PRNGKeyArray
    space: AbstractSpace

    def __init__(self, field: AbstractField, step: RealScalarLike, *, noise: CommonNoise, key: PRNGKeyArray):
        self.field = check_field(field)
        self.step = check_scalar(step, "step", jnp.result_type(float), least=0, remedy="pass the time of a layer")
        self.noise = check_instance(noise, "noise", CommonNoise, "a CommonNoise", "pass CommonNoise(attention, size)")
        self.key = check_key(key)
        self.space = field.space

    def __call__(self, k: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        check_time(k, "k")
        x = self.space.retract(check_tokens(x))
        t, step = as_float(k, self.step.dtype) * self.step, self.step.astype(x.dtype)
        d = x.shape[1]
        # Python integers may exceed the range of jax integers.
        number = jnp.asarray(min(k, 2**31 - 1) if isinstance(k, int) else k).astype(jnp.int32)
        key, forms, form = jr.fold_in(self.key, number), self.noise.query_keys, None
        if forms is not None:
            # B has a separate key, so that V has the same random numbers as in a layer with a fixed B.
            form = forms[jr.randint(jr.fold_in(key, 1), (), 0, len(forms))]
        matrix = draw_normal(key, (d, d), x.dtype)
        pushed = matmul(_pushed(self.noise, t, x, self.field, form), matrix.T)
        return self.space.retract(x + step * self.field(t, x, args) + jnp.sqrt(step) * pushed)

    def check(self, n: int, d: int) -> None:
        self.field.check(n, d)
        self.noise.check(n, d)


def brownian_step(space: AbstractSpace, x: Tokens, key: PRNGKeyArray, amount: Array) -> Tokens:
    """The tokens after Brownian motion, where `amount` is the temperature times the time."""
    curved = isinstance(space, Sphere)
    variance = 2 * amount * (1 - max(x.shape[1] - 2, 0) * amount / 3 if curved else 1)
    # The lower bound keeps the variance positive if the step is far too long for the correction.
    size = jnp.sqrt(jnp.maximum(variance, amount))
    moved = size * space.tangent(x, draw_normal(key, x.shape, x.dtype))
    if not curved:
        return space.retract(x + moved)
    square = jnp.sum(moved * moved, axis=1, keepdims=True)
    # Near zero, where the root has no derivative, the first terms of the series are used.
    small = square < 1e-8
    length = jnp.sqrt(jnp.where(small, 1, square))
    cosine = jnp.where(small, 1 - square / 2, jnp.cos(length))
    ratio = jnp.where(small, 1 - square / 6, jnp.sin(length) / length)
    return space.retract(cosine * x + ratio * moved)
