r"""`MeanField`: attention among infinitely many tokens, as an equation for the coefficients of their density.

**Algorithm.** The equation $\partial_t\mu + \nabla\cdot(\mu\,v[\mu]) = T\,\Delta\mu$ is tested with the harmonics:
$\dot c_k = \int\langle\nabla Y_k, v\rangle\,d\mu - T\,l(l + d - 2)\,c_k$, with the integral computed on a grid (a
Galerkin method with quadrature, also called pseudo-spectral). The velocity v is that of attention, with the sums of
`kernel.py` in place of sums over tokens.

**Reference.** Geshkovski, Letrouit, Polyanskiy, Rigollet (2312.10794), eq. (3.1) for the equation without noise;
2604.16288 and 2606.05140 with noise. **Invariants.** The mass is conserved exactly, since the harmonic of degree zero
is constant. If the coefficients decay before the last degree, their error is about the last of them: spectral accuracy.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from ..._attention import AbstractAttention, SoftmaxAttention, UnnormalisedAttention
from ..._attention.base import check_dimension, check_square
from ..._check import (
    call_traced,
    check_array,
    check_callable,
    check_integer,
    check_key,
    check_number,
    check_tokens,
    shown,
)
from ..._custom_types import Masses, Numbers, RealScalarLike, Scalar, Tokens
from ..._mask import FullMask
from ..._misc import einsum, is_concrete, matmul
from ..._schedule import Parameter, StoredParameter, as_parameter, at_time, check_time
from ..._space import Euclidean, Sphere
from ..._summation import Dense
from ..base import AbstractField
from .basis import Basis, Coefficients
from .checks import check_degree, check_dimension_of, check_masses_of, check_size, check_temperature
from .circle import CIRCLE
from .kernel import Sums, pair_sums, zonal_sums
from .points import means, values_at
from .sampling import draw
from .sphere import SPHERE


_BASES = {2: CIRCLE, 3: SPHERE}


class MeanField(AbstractField):
    r"""Attention among infinitely many tokens: the field moves the density of the tokens, and not each token.

    The state is a matrix of coefficients, one row for each degree, which `simulate` accepts in place of tokens, as do
    derivatives, `jax.vmap` and sweeps. Coefficients are means of harmonics $Y$ that are orthonormal with respect to the
    uniform probability measure: those of n tokens are means over the tokens, and the first coefficient is 1. With a
    temperature T the tokens also undergo Brownian motion: $T\,\Delta\mu$.

    Without noise densities steepen until no degree resolves them. `simulate` watches the coefficients of the highest
    degrees, and ends the run when they exceed both `tolerance` and four times their values at the start: with a
    `RuntimeError` that reports this, or with `throw=False` at that time.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> field = cjx.MeanField(cjx.UnnormalisedAttention(1.0), d=2, degree=32, temperature=0.3)
        >>> c0 = field.from_density(lambda x: 1 + 0.1 * x[:, 0])
        >>> traj = cjx.simulate(field, c0, jnp.array([0.0, 400.0]), solver=cjx.Rodas5P())
        >>> print(f"{field.order_parameter(traj.xs[-1]):.2f}")  # below T_c = I_1(1) = .565 the tokens gather
        0.89
        ```

    **Arguments:**

    - `attention`: `SoftmaxAttention` or `UnnormalisedAttention` with a full mask; its summation is not used.
    - `value`: V, (d, d), or a schedule; None is the identity.
    - `d`: The dimension of the tokens: 2, the circle, or 3, the sphere.
    - `degree`: The highest degree of the harmonics. The state has the shape (degree + 1, 2) on the circle, and
        (degree + 1, 2 (degree + 1)) on the sphere, where half of its entries are zero.
    - `temperature`: T >= 0, or a schedule.
    - `tolerance`: The largest size of the coefficients of the highest degrees, relative to those of a single token.

    **Raises:**

    - `ValueError` for another attention or mask; for a degree that the kernel exceeds, with a degree that suffices; for
        a negative temperature.

    ??? cite "Source"

        Geshkovski, Letrouit, Polyanskiy, Rigollet, *A mathematical perspective on transformers* (2312.10794), Section
        3; with noise 2604.16288 and 2606.05140.
    """

    attention: AbstractAttention
    value: StoredParameter | None
    temperature: StoredParameter
    tolerance: float = eqx.field(static=True)
    d: int = eqx.field(static=True)
    degree: int = eqx.field(static=True)

    def __init__(
        self,
        attention: AbstractAttention,
        value: Parameter | None = None,
        *,
        d: int,
        degree: int,
        temperature: Parameter = 0.0,
        tolerance: RealScalarLike = 1e-5,
    ):
        if not isinstance(attention, SoftmaxAttention | UnnormalisedAttention):
            raise ValueError(
                "attention must be SoftmaxAttention or UnnormalisedAttention, whose kernel is an exponential, but it "
                f"is {shown(attention)}; pass one of these."
            )
        if not isinstance(attention.mask, FullMask):
            raise ValueError(
                f"attention.mask must be FullMask(), but it is {shown(attention.mask)}: a density has no order of "
                "tokens; leave it out."
            )
        self.d = check_integer(d, "d", least=2, most=3, remedy="pass 2, the circle, or 3, the sphere")
        self.degree = check_integer(degree, "degree", remedy="pass the highest degree of harmonics, such as 32")
        check_size(self.d, self.degree)
        self.tolerance = check_number(tolerance, "tolerance", above=0, below=1, remedy="pass a number such as 1e-5")
        # `Dense` replaces `Auto`, whose choice in `simulate` would be made for tokens, and not for coefficients.
        self.attention = eqx.tree_at(lambda one: one.summation, attention, Dense())
        self.value = as_parameter(value, "value")
        self.temperature = as_parameter(temperature, "temperature")
        check_square(self.value, "value")
        check_dimension(self.value, "value", self.d)
        check_dimension(attention.query_key, "query_key", self.d)
        check_temperature(self.temperature)
        check_degree(attention, self.d, self.degree)

    @property
    def space(self) -> Euclidean:
        """All of R^d: the only constraint on coefficients is the mass, which the field conserves."""
        return Euclidean()

    @property
    def basis(self) -> Basis:
        """The harmonics, the grid and the transforms."""
        return _BASES[self.d]

    def check(self, n: int, d: int) -> None:
        self._check_shape((n, d), "x0")

    def _check_shape(self, shape: tuple[int, ...], name: str) -> None:
        wanted = (self.degree + 1, self.basis.columns(self.degree))
        if shape != wanted:
            raise ValueError(
                f"{name} must hold the coefficients of a density up to degree {self.degree}, {wanted}, but its "
                f"shape is {shape}; make it of tokens by to_coefficients, or of a density by from_density."
            )

    def _state(self, c: Coefficients) -> Coefficients:
        """`c` as an array, or a ValueError unless it has the shape of the coefficients."""
        c = check_tokens(c, "c")
        self._check_shape(c.shape, "c")
        return c

    def __call__(self, t: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        check_time(t)
        c = self.enter(x)
        flux = self.basis.values(self.degree, c)[None] * self._velocity(c, t)
        moved = self.basis.divergence(self.degree, flux)
        temperature = at_time(self.temperature, t, c.dtype)
        return moved - temperature * jnp.asarray(self._laplacian(), c.dtype)[:, None] * c

    def to_coefficients(self, x: Tokens, masses: Masses | Numbers | None = None) -> Coefficients:
        """The coefficients of tokens: the means of the harmonics over them.

        **Arguments:**

        - `x`: Tokens, (n, d), which are normalised.
        - `masses`: (n,), not negative and not all zero; None gives each token the mass one.

        **Returns:**

        The coefficients, up to the degree of this field, in the dtype of `x`.

        **Raises:**

        - `ValueError` if `x` is not (n, d), or `masses` not (n,).
        """
        x = check_tokens(x)
        check_dimension_of(x, self.d)
        x = Sphere().retract(x)
        masses = jnp.ones(len(x), x.dtype) if masses is None else check_masses_of(masses, x)
        shares = masses / jnp.sum(masses)
        return means(self.basis, self.degree, x, shares)

    def from_density(self, density: Callable[[Tokens], Array]) -> Coefficients:
        """The coefficients of a density, normalised to mass one.

        **Arguments:**

        - `density`: A function of points, (n, d), that returns the density up to a constant factor, (n,).

        **Returns:**

        The coefficients, up to the degree of this field.

        **Raises:**

        - `ValueError` if `density` is not such a function, or its integral is not positive.
        """
        what = "a function of points (n, d)"
        check_callable(density, "density", what, takes=1)
        points = jnp.asarray(self.basis.grid(self.degree).points)
        values = call_traced(density, "density", what, points)
        values = check_array(values, "density(points)", shape=(len(points),), remedy="return a number a point")
        c = self.basis.integrals(self.degree, values.astype(points.dtype))
        if is_concrete(c) and not float(c[0, 0]) > 0:
            raise ValueError(
                f"density must have a positive integral, but its mean is {float(c[0, 0]):.3g}; pass one that has mass."
            )
        return c / c[0, 0]

    def density(self, c: Coefficients, points: Tokens) -> Float[Array, " n"]:
        """The density of mass one with respect to arc length, or area.

        **Arguments:**

        - `c`: Coefficients.
        - `points`: (n, d), which are normalised.

        **Returns:**

        The values of the density, (n,); a truncated series may be negative where the density is small.

        **Raises:**

        - `ValueError` if the shapes do not fit.
        """
        c, points = self._state(c), check_tokens(points, "points")
        check_dimension_of(points, self.d, "points")
        unit = Sphere().retract(points).astype(c.dtype)
        return values_at(self.basis, self.degree, c, unit) / self.basis.area

    def sample(self, c: Coefficients, key: PRNGKeyArray, n: int) -> Tokens:
        """`n` independent tokens of the density, (n, d).

        **Arguments:**

        - `c`: Coefficients of a density; no tokens are drawn where it is negative.
        - `key`: PRNG key.
        - `n`: The number of tokens.

        **Raises:**

        - `ValueError` if the shapes do not fit, or `n` is not a positive integer.
        """
        return draw(self.basis, self.degree, self._state(c), check_key(key), check_integer(n, "n"))

    def smoothed(self, c: Coefficients, time: RealScalarLike) -> Coefficients:
        """The coefficients after a heat flow, which smooths the density of a few tokens.

        **Arguments:**

        - `c`: Coefficients.
        - `time`: The time of the heat flow at unit temperature, not negative; the width of the kernel is sqrt(2 time).
        """
        time = check_number(time, "time", least=0, remedy="pass how long to smooth, such as 0.01")
        c = self._state(c)
        return jnp.asarray(np.exp(-time * self._laplacian()), c.dtype)[:, None] * c

    def mean_token(self, c: Coefficients) -> Float[Array, " d"]:
        """The mean of the tokens, (d,)."""
        first = self._state(c)[1] / self.d**0.5
        # On the sphere the harmonics of degree one are z, x, y.
        return first if self.d == 2 else jnp.stack([first[2], first[3], first[0]])

    def order_parameter(self, c: Coefficients) -> Scalar:
        """The norm of the mean of the tokens: 0 for the uniform density, 1 for a single cluster."""
        return jnp.linalg.norm(self.mean_token(c))

    def lowest(self, c: Coefficients) -> Scalar:
        """The minimum of the density on the grid, with respect to the uniform measure: not negative if resolved."""
        return jnp.min(self.basis.values(self.degree, self._state(c)))

    def tail(self, c: Coefficients) -> Scalar:
        """The resolution of the density: the largest root mean square of the coefficients of a degree, over the highest
        eighth of the degrees, relative to a single token."""
        c = self._state(c)
        highest = max(1, (self.degree + 1) // 8)
        harmonics = 2 if self.d == 2 else 2 * np.arange(self.degree + 1)[-highest:] + 1
        sizes = jnp.sum(jnp.square(c[-highest:]), axis=1) / jnp.asarray(harmonics, c.dtype)
        return jnp.sqrt(jnp.max(sizes))

    def energy(self, c: Coefficients, t: RealScalarLike = 0.0) -> Scalar:
        r"""The interaction energy $\frac{1}{2\beta}\iint e^{\beta\langle x, By\rangle}\,d\mu\,d\mu$.

        The offset of `UnnormalisedAttention` is subtracted from the exponent.

        **Arguments:**

        - `c`: Coefficients.
        - `t`: The time, for parameters that depend on it.
        """
        c = self._state(c)
        check_time(t)
        sums, beta = self._sums(c, t), self._parameters(t, c)[0]
        weights = jnp.asarray(self.basis.grid(self.degree).weights, c.dtype)
        mean = jnp.sum(weights * self.basis.values(self.degree, c) * sums.mass)
        return jnp.exp(sums.shift - self._offset(t, c)) * mean / (2 * beta)

    def entropy(self, c: Coefficients) -> Scalar:
        r"""$-\int\log(d\mu/d\sigma)\,d\mu$ with the uniform $\sigma$: 0 for the uniform density, negative for others.

        **Arguments:**

        - `c`: Coefficients of a density that is positive.
        """
        values = self.basis.values(self.degree, self._state(c))
        weights = jnp.asarray(self.basis.grid(self.degree).weights, values.dtype)
        return -jnp.sum(weights * jnp.where(values > 0, values * jnp.log(jnp.where(values > 0, values, 1)), 0))

    def free_energy(self, c: Coefficients, t: RealScalarLike = 0.0) -> Scalar:
        """The free energy: minus the temperature times the entropy, minus the interaction energy. Along unnormalised
        attention with V = B = I the free energy decreases at the rate `dissipation`.

        **Arguments:**

        - `c`: Coefficients of a density that is positive.
        - `t`: The time, for parameters that depend on it.
        """
        c = self._state(c)
        check_time(t)
        return -at_time(self.temperature, t, c.dtype) * self.entropy(c) - self.energy(c, t)

    def dissipation(self, c: Coefficients, t: RealScalarLike = 0.0) -> Scalar:
        r"""$\int |v - T\nabla\log\mu|^2\,d\mu$: the rate at which the free energy of unnormalised attention decreases.

        **Arguments:**

        - `c`: Coefficients of a density that is positive.
        - `t`: The time, for parameters that depend on it.

        **Raises:**

        - `ValueError` for softmax attention, and for V or B other than the identity: these flows are no gradient flows
            of the free energy.
        """
        if not isinstance(self.attention, UnnormalisedAttention) or self.value is not None:
            raise ValueError(
                "attention must be UnnormalisedAttention and value None, for only that flow follows a gradient of the "
                f"free energy, but they are {type(self.attention).__name__} and "
                f"{'None' if self.value is None else 'a matrix'}; build such a field."
            )
        c = self._state(c)
        check_time(t)
        values = self.basis.values(self.degree, c)
        slope = self.basis.gradients(self.degree, c) / values[None]
        speed = self._velocity(c, t) - at_time(self.temperature, t, c.dtype) * slope
        weights = jnp.asarray(self.basis.grid(self.degree).weights, c.dtype)
        return jnp.sum(weights * values * jnp.sum(speed * speed, axis=0))

    def _laplacian(self) -> np.ndarray:
        """Minus the eigenvalues of the Laplacian, by degree."""
        l = np.arange(self.degree + 1)
        return l * (l + self.d - 2.0)

    def _parameters(self, t: RealScalarLike, c: Coefficients) -> tuple[Scalar, Array | None]:
        attention = self.attention
        assert isinstance(attention, SoftmaxAttention | UnnormalisedAttention)
        return at_time(attention.beta, t, c.dtype), at_time(attention.query_key, t, c.dtype)

    def _offset(self, t: RealScalarLike, c: Coefficients) -> Scalar:
        """The number that is subtracted from the exponents of unnormalised attention."""
        offset = self.attention.offset if isinstance(self.attention, UnnormalisedAttention) else 0.0
        return at_time(offset, t, c.dtype)

    def _sums(self, c: Coefficients, t: RealScalarLike) -> Sums:
        beta, form = self._parameters(t, c)
        if form is None:
            return zonal_sums(self.basis, self.degree, c, beta)
        points = jnp.asarray(self.basis.grid(self.degree).points, c.dtype)
        # Rows are points: row i of x B is the query B^T x_i.
        queries = beta * matmul(points, form)
        shift = lax.stop_gradient(jnp.sqrt(jnp.max(jnp.sum(queries * queries, axis=1))))
        return pair_sums(self.basis, self.degree, c, queries, shift)

    def _velocity(self, c: Coefficients, t: RealScalarLike) -> Float[Array, "frame M"]:
        """The components of the velocity along the frame, on the grid."""
        sums = self._sums(c, t)
        if isinstance(self.attention, SoftmaxAttention):
            average = sums.tokens / sums.mass[:, None]
        else:
            average = jnp.exp(sums.shift - self._offset(t, c)) * sums.tokens
        value = at_time(self.value, t, c.dtype)
        moved = average if value is None else matmul(average, value.T)
        return einsum("md,fmd->fm", moved, jnp.asarray(self.basis.grid(self.degree).frame, c.dtype))
