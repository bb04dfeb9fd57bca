r"""The three flows, their energy, and what they do along a run and around a closed path.

**Setting.** V = B = I on the circle, $E = e^{-\beta} \frac{1}{2\beta n^2}\sum_{ij} e^{\beta\langle x_i, x_j\rangle}$.
The gradient of E in Wasserstein space is $g_i = n P_{x_i}\partial_{x_i}E$. Unnormalised attention, with `offset=beta`,
is v = g. Softmax attention is $v_i = g_i / w_i$ with $w_i = Z_i e^{-\beta} / n$: steepest in the metric
$\frac1n\sum_i w_i\langle u_i, v_i\rangle$. With a causal mask $w_i$ sums over $j \le i$, and $w_i v_i$ is no gradient.

**Work around a closed path.** $\oint \frac1n\sum_i w_i\langle v_i, dx_i\rangle$ vanishes around each closed path of
configurations if and only if $w v$ is a gradient. The paths are trigonometric polynomials of the angles, so that the
trapezoidal rule converges faster than any power.

**Reference.** Geshkovski, Letrouit, Polyanskiy, Rigollet, *A mathematical perspective on transformers* (2312.10794),
Sections 3.3 and 3.4. **Invariant.** The gradient is taken by differentiation of the energy, and not from a flow.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._attention import SoftmaxAttention, UnnormalisedAttention
from ..._custom_types import Scalar
from ..._field import AttentionField
from ..._mask import CausalMask
from ..._observables import interaction_energy
from ..._space import Sphere


NAMES: tuple[str, ...] = ("unnormalised", "softmax", "causal")
POINTS = 512  # of a closed path
AMPLITUDE = 0.4  # of its waves, in radians
WAVES = 2


class Rates(NamedTuple):
    """What a flow does to tokens at one time.

    **Attributes:**

    - `energy`: E.
    - `power`: dE/dt.
    - `speed`: The squared speed in Wasserstein space, the mean of |v_i|^2.
    - `weighted`: The mean of w_i |v_i|^2.
    - `slope`: The squared slope of E, the mean of |g_i|^2.
    """

    energy: Array
    power: Array
    speed: Array
    weighted: Array
    slope: Array


def field_of(name: str, beta: float | Scalar) -> AttentionField:
    """The flow of this name."""
    if name == "unnormalised":
        return AttentionField(UnnormalisedAttention(beta, offset=beta))
    return AttentionField(SoftmaxAttention(beta, mask=CausalMask()) if name == "causal" else SoftmaxAttention(beta))


def energy(x: Float[Array, "n d"], beta: Scalar) -> Scalar:
    """E, at most 1 / (2 beta)."""
    return jnp.exp(-beta) * interaction_energy(x, beta)


def gradient(x: Float[Array, "n d"], beta: Scalar) -> Float[Array, "n d"]:
    """That of E in Wasserstein space."""
    return Sphere().tangent(x, x.shape[0] * jax.grad(energy)(x, beta))


def weights(name: str, x: Float[Array, "n d"], beta: Scalar) -> Float[Array, " n"]:
    """w_i, what multiplies the velocity in the metric of the flow; of unnormalised attention one."""
    n = x.shape[0]
    if name == "unnormalised":
        return jnp.ones(n, x.dtype)
    kernel = jnp.exp(beta * (x @ x.T - 1))
    return jnp.sum(jnp.tril(kernel) if name == "causal" else kernel, axis=1) / n


def rates(name: str, x: Float[Array, "n d"], beta: Scalar) -> Rates:
    """All of them, at one time."""
    v, g, w = field_of(name, beta)(0.0, x), gradient(x, beta), weights(name, x, beta)
    dot = lambda a, b: jnp.mean(jnp.sum(a * b, axis=1))
    return Rates(energy(x, beta), dot(g, v), dot(v, v), dot(w[:, None] * v, v), dot(g, g))


def closed_paths(seed: int, count: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The angles along random closed paths, and their derivative, both (count, POINTS, n)."""
    rng = np.random.default_rng(seed)
    base = rng.uniform(-np.pi, np.pi, (count, 1, n))
    cosines, sines = AMPLITUDE * rng.normal(size=(2, WAVES, count, 1, n))
    s = 2 * np.pi * np.arange(POINTS)[None, :, None] / POINTS
    k = np.arange(1, WAVES + 1)
    angles = base + sum(c * np.cos(m * s) + b * np.sin(m * s) for m, c, b in zip(k, cosines, sines, strict=True))
    turned = sum(m * (b * np.cos(m * s) - c * np.sin(m * s)) for m, c, b in zip(k, cosines, sines, strict=True))
    return np.asarray(angles), np.asarray(turned) * 2 * np.pi / POINTS


def work(name: str, angles: Array, steps: Array, beta: Scalar, *, weighted: bool) -> tuple[Array, Array]:
    """Around one closed path, (POINTS, n): the work of the flow, and that of its absolute value."""

    def at(angle, step):
        x = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)
        along = jnp.stack([-jnp.sin(angle), jnp.cos(angle)], axis=1) * step[:, None]
        w = weights(name, x, beta) if weighted else jnp.ones_like(angle)
        return jnp.mean(w * jnp.sum(field_of(name, beta)(0.0, x) * along, axis=1))

    parts = jax.vmap(at)(angles, steps)
    return jnp.sum(parts), jnp.sum(jnp.abs(parts))
