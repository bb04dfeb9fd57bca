"""`CausalMeanField`: causal attention among infinitely many tokens, as an equation for a density at each place.

**Algorithm.** A token at the place s in [0, 1] attends to the tokens before it with weights that decay with distance:
the law $ρ_s$ of the tokens at s moves with the velocity of attention to $μ_s ∝ ∫_0^s e^{-rate (s-r)} ρ_r dr$, an
average of laws. In angle the laws are coefficients of a `MeanField`; in place they are values at Gauss-Legendre nodes,
and averages integrate the polynomial through these values (collocation). **Invariants.** Masses are conserved. Under
softmax attention, laws that are equal at all places remain equal. A law depends on later laws only through the error of
collocation, which is spectral for laws that are smooth functions of the place.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._base.checks import (
    call_traced,
    check_array,
    check_callable,
    check_concrete,
    check_integer,
    check_number,
    check_tokens,
    refusal,
)
from .._base.defaults import TAIL_TOLERANCE
from .._base.numerics import einsum, is_concrete
from .._base.types import RealScalarLike, Scalar, Tokens
from .attention import AbstractAttention, SoftmaxAttention, UnnormalisedAttention
from .density import AbstractMeanField, Coefficients, MeanField
from .mask import CausalMask, FullMask
from .position import Decay
from .schedule import Parameter, at_time, check_time
from .space import Euclidean


State = Float[Array, "places coefficients"]
"""The coefficients of the laws at the nodes, those of each law in one row."""


class Places(NamedTuple):
    """Collocation nodes in [0, 1], (K,), and the quadrature of the average at each node: the distances to its points,
    (K, Q), the weights, (Q,), and the values of the nodes' polynomials at its points, (K, Q, K)."""

    nodes: np.ndarray
    distances: np.ndarray
    weights: np.ndarray
    polynomials: np.ndarray


@lru_cache
def _places(count: int) -> Places:
    nodes, weights = _gauss(count)
    inner, inner_weights = _gauss(2 * count)
    points = nodes[:, None] * inner[None, :]
    return Places(nodes, nodes[:, None] - points, inner_weights, _polynomials(nodes, weights, points))


def _gauss(count: int) -> tuple[np.ndarray, np.ndarray]:
    """The nodes and weights of Gauss and Legendre on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return (nodes + 1) / 2, weights / 2


def _polynomials(nodes: np.ndarray, weights: np.ndarray, points: np.ndarray) -> np.ndarray:
    """The polynomials that are one at a node and zero at the others, at points: (..., K)."""
    # The Legendre polynomials are orthonormal in the quadrature at the nodes, so that a transpose inverts their matrix.
    degrees = np.arange(len(nodes))
    at = lambda s: np.polynomial.legendre.legvander(2 * s - 1, len(nodes) - 1) * np.sqrt(2 * degrees + 1)
    return at(points) @ (at(nodes) * weights[:, None]).T


class CausalMeanField(AbstractMeanField):
    """Causal attention among infinitely many tokens on the circle: a law of the angle at each place s in [0, 1].

    The field is the limit of n tokens with the places i / n as n grows. Each law moves by attention to earlier laws,
    with weights that fall as $e^{-rate (s - r)}$ under the position `Decay(rate)`, and are uniform without a position.
    The state has one row for each of `places` nodes, with the coefficients of a `MeanField` on the circle, (degree +
    1, 2), in a row. Without noise laws steepen, and `simulate` ends a run as for `MeanField`.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp, numpy as np
        >>> causal = cjx.SoftmaxAttention(1.0, mask=cjx.CausalMask(), position=cjx.Decay(1.0))
        >>> field = cjx.CausalMeanField(causal, degree=16, places=12)
        >>> c0 = field.from_density(lambda x, s: 1 + 0.2 * (1 - 2 * s) * x[:, 0])
        >>> traj = cjx.simulate(field, c0, jnp.array([0.0, 4.0]))
        >>> for c in traj.xs:  # the first tokens win the last ones over
        ...     print(np.asarray(field.mean_tokens(c, jnp.array([0.0, 1.0])))[:, 0].round(2))
        [ 0.1 -0.1]
        [0.53 0.04]
        ```

    **Arguments:**

    - `attention`: `SoftmaxAttention` or `UnnormalisedAttention` with a causal mask, and the position `Decay` or none;
        its summation is not used.
    - `value`: V, (2, 2), or a schedule; None is the identity.
    - `degree`: The highest degree of the harmonics in angle.
    - `places`: The number of nodes in place.
    - `temperature`: T >= 0 of a Brownian motion of each token, or a schedule.
    - `tolerance`: As for `MeanField`.

    **Raises:**

    - `ValueError` for another attention, mask or position; if `places` do not resolve the decay; and as `MeanField`.

    ??? cite "Source"

        2605.09213: the causal flow of many tokens, with weights that decay with distance.
    """

    rows: MeanField
    position: Decay | None
    places: int = eqx.field(static=True)

    def __init__(
        self,
        attention: AbstractAttention,
        value: Parameter | None = None,
        *,
        degree: int,
        places: int,
        temperature: Parameter = 0.0,
        tolerance: RealScalarLike = TAIL_TOLERANCE,
    ):
        if not isinstance(attention, SoftmaxAttention | UnnormalisedAttention):
            rule = "be SoftmaxAttention or UnnormalisedAttention"
            raise refusal("attention", rule, f"it is {type(attention).__name__}", "pass one of these")
        if not isinstance(attention.mask, CausalMask):
            kind = type(attention.mask).__name__
            raise refusal("attention.mask", "be CausalMask()", f"it is {kind}", "build MeanField without a mask")
        position = attention.position
        if not (position is None or isinstance(position, Decay)):
            kind = type(position).__name__
            rule, remedy = "be Decay or None", "pass Decay(rate), which n tokens have with ALiBi(rate / n)"
            raise refusal("attention.position", rule, f"it is {kind}", remedy)
        self.places = check_integer(places, "places", least=2, most=256, remedy="pass the number of nodes, such as 16")
        if position is not None and is_concrete(position.rate) and abs(float(np.asarray(position.rate))) > self.places:
            problem = f"it is {self.places} for the rate {position.rate}"
            raise refusal("places", "be at least the rate of decay", problem, "pass more places")
        self.position = position
        plain = eqx.tree_at(
            lambda node: (node.mask, node.position), attention, (FullMask(), None), is_leaf=lambda node: node is None
        )
        self.rows = MeanField(plain, value, d=2, degree=degree, temperature=temperature, tolerance=tolerance)

    @property
    def space(self) -> Euclidean:
        """All of R^(2 (degree + 1)): the only constraint on coefficients is the mass of each row."""
        return Euclidean()

    @property
    def nodes(self) -> Float[np.ndarray, " places"]:
        """The places of the rows of the state, rising, in (0, 1)."""
        return _places(self.places).nodes

    @property
    def degree(self) -> int:
        """The highest degree of the harmonics."""
        return self.rows.degree

    @property
    def tolerance(self) -> float:
        """The largest size of the coefficients of the highest degrees."""
        return self.rows.tolerance

    @property
    def temperature(self) -> Any:
        """The temperature of the Brownian motion."""
        return self.rows.temperature

    def check(self, n: int, d: int, name: str = "x0") -> None:
        expected = self.places, 2 * (self.degree + 1)
        if (n, d) != expected:
            rule = f"hold a row of coefficients for each place, {expected}"
            raise refusal(name, rule, f"its shape is {(n, d)}", "make it by from_density")

    def _laws(self, c: State, name: str = "c") -> Float[Array, "places degrees 2"]:
        c = check_tokens(c, name)
        n, width = c.shape
        self.check(n, width, name)
        return c.reshape(self.places, self.degree + 1, 2)

    def averages(self, t: RealScalarLike = 0.0) -> Float[Array, "places places"]:
        """The weights with which the law at each node averages those of all nodes; for softmax attention rows sum to
        one, and for unnormalised attention to the mean of the decay over the places before."""
        check_time(t)
        places = _places(self.places)
        dtype = jnp.result_type(float)
        rate = jnp.zeros((), dtype) if self.position is None else at_time(self.position.rate, t, dtype)
        exponents = -rate * jnp.asarray(places.distances, dtype)
        weights = jnp.asarray(places.weights, dtype)[None, :] * jnp.exp(exponents)
        if isinstance(self.rows.attention, SoftmaxAttention):
            weights = weights / jnp.sum(weights, axis=1, keepdims=True)
        return einsum("kq,kql->kl", weights, jnp.asarray(places.polynomials, dtype))

    def __call__(self, t: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        check_time(t)
        rows, laws = self.rows, self._laws(x, "x")
        attended = einsum("kl,ldc->kdc", self.averages(t).astype(laws.dtype), laws)
        velocities = jax.vmap(lambda c: rows._velocity(c, t))(attended)
        flux = jax.vmap(lambda c, v: rows.basis.values(rows.degree, c)[None] * v)(laws, velocities)
        moved = jax.vmap(lambda f: rows.basis.divergence(rows.degree, f))(flux)
        noise = at_time(rows.temperature, t, laws.dtype) * jnp.asarray(rows._laplacian(), laws.dtype)[None, :, None]
        return (moved - noise * laws).reshape(self.places, -1)

    def from_density(self, density: Callable[[Tokens, Scalar], Array]) -> State:
        """The coefficients of a law at each node, normalised to mass one.

        **Arguments:**

        - `density`: `density(points, s)` takes points, (M, 2), and a place s, and returns the density there up to a
            constant factor, (M,).

        **Returns:**

        The state, (places, 2 (degree + 1)).

        **Raises:**

        - `ValueError` if `density` is not such a function, or an integral is not positive.
        """
        signature = "a function of points (M, 2) and a place"
        check_callable(density, "density", signature, takes=2)
        laws = []
        for s in self.nodes:
            at = lambda points, s=s: call_traced(density, "density", signature, points, jnp.asarray(s))
            laws.append(self.rows.from_density(at).reshape(-1))
        return jnp.stack(laws)

    def law(self, c: State, s: RealScalarLike) -> Coefficients:
        """The coefficients of the law at the place `s`, (degree + 1, 2), as those of `MeanField` on the circle.

        **Arguments:**

        - `c`: The state.
        - `s`: A place from 0 to 1.
        """
        return self._interpolate(self._laws(c), np.asarray([check_number(s, "s", least=0, most=1)]))[0]

    def density(self, c: State, points: Tokens, s: RealScalarLike) -> Float[Array, " M"]:
        """The density at the place `s` of mass one with respect to arc length.

        **Arguments:**

        - `c`: The state.
        - `points`: (M, 2), which are normalised.
        - `s`: A place from 0 to 1.
        """
        return self.rows.density(self.law(c, s), points)

    def mean_tokens(self, c: State, s: Float[Array, " m"]) -> Float[Array, "m 2"]:
        """The mean token at each of the places `s`, (m, 2).

        **Arguments:**

        - `c`: The state.
        - `s`: Places from 0 to 1, (m,).
        """
        s = check_array(s, "s", shape=("m",), remedy="pass places from 0 to 1")
        check_concrete(s, "s")
        places = np.asarray(s, float)
        if np.any((places < 0) | (places > 1)):
            problem = f"they reach from {places.min()} to {places.max()}"
            raise refusal("s", "be places from 0 to 1", problem, "mend them")
        return self._interpolate(self._laws(c), places)[:, 1] / 2**0.5

    def _interpolate(self, laws: Array, s: np.ndarray) -> Array:
        nodes, weights = _gauss(self.places)
        polynomials = jnp.asarray(_polynomials(nodes, weights, s), laws.dtype)
        return einsum("mk,kdc->mdc", polynomials, laws)

    def tail(self, c: State) -> Scalar:
        """The largest `MeanField.tail` of the laws."""
        return jnp.max(jax.vmap(self.rows.tail)(self._laws(c)))
