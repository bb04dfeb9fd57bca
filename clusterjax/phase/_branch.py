"""`branch`: order parameter of noisy attention against temperature, stable or not, with fold and coexistence.

`_equations.py` describes the equations and their solution, `_rates.py` the growth of perturbations. **Invariants.**
Points are sorted by the order parameter, which parametrises the branch. A point is stable if no perturbation grows,
except for rotations of the density. All computations are in float64, whatever the settings of jax.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._attention import SoftmaxAttention, UnnormalisedAttention
from .._check import check_host_array, check_integer, check_room, refusal, shown
from .._custom_types import Numbers
from .._mask import FullMask
from .._misc import double_precision, is_concrete
from .._observables import uniform_growth_rates
from .._schedule import AbstractSchedule
from .._summation.harmonic.series.bessel import number_of_harmonics
from ._equations import Equations, describe, equations_of, follow, slope, solve
from ._rates import growth, leading


# The number of orders of perturbations that are tested: none beyond 2 was found to grow first.
_ORDERS = 3
# If the largest temperature exceeds T_c by less, relatively, rounding error is indistinguishable from a fold.
_FLAT = 1e-9


class Point(NamedTuple):
    """A point of a branch: its order parameter and its temperature."""

    order_parameter: float
    temperature: float


@dataclass(frozen=True, eq=False)
class Branch:
    """A branch of stationary densities that concentrate about one axis, parametrised by the order parameter.

    **Attributes:**

    - `d`: The dimension of the tokens.
    - `critical_temperature`: T_c, below which the uniform density is unstable.
    - `order_parameters`: (points,), increasing.
    - `temperatures`: (points,).
    - `moments`: (points, degree), the means of $P_l(z)$, $P_l(1) = 1$, for l = 1, ..., degree.
    - `growth_rates`: (points,), the largest real part of an eigenvalue of the linearised flow, excluding rotations.
    - `free_energies`: (points,), relative to the uniform density; None for softmax, which has no free energy.
    - `fold`: The point of largest T, if that T is above T_c; else None.
    - `coexistence`: The point at which the free energy equals that of the uniform density; None if there is none.
    """

    d: int
    critical_temperature: float
    order_parameters: np.ndarray
    temperatures: np.ndarray
    moments: np.ndarray
    growth_rates: np.ndarray
    free_energies: np.ndarray | None
    fold: Point | None
    coexistence: Point | None

    @property
    def stable(self) -> np.ndarray:
        """(points,), True if no perturbation grows."""
        return self.growth_rates < 0

    @property
    def continuous(self) -> bool:
        """True if tokens cluster without a jump as T falls below T_c."""
        return self.fold is None

    def coefficients(self, index: int) -> np.ndarray:
        """The coefficients of one point for `MeanField`, about the first axis of the circle or last of the sphere.

        **Arguments:**

        - `index`: The index of the point.

        **Returns:**

        The coefficients, (degree + 1, 2) on the circle and (degree + 1, 2 (degree + 1)) on the sphere.

        **Raises:**

        - `ValueError` if `d` is neither 2 nor 3, or there is no such point.
        """
        if self.d not in (2, 3):
            raise refusal("d", "be 2 or 3 for coefficients", f"it is {self.d}", "use the moments")
        check_integer(index, "index", least=-len(self.temperatures), most=len(self.temperatures) - 1)
        degree = self.moments.shape[1]
        c = np.zeros((degree + 1, 2 if self.d == 2 else 2 * (degree + 1)))
        c[0, 0] = 1
        c[1:, 0] = np.sqrt(_numbers(degree, self.d)) * self.moments[index]
        return c


def branch(
    attention: SoftmaxAttention | UnnormalisedAttention,
    d: int,
    *,
    order_parameters: Numbers | None = None,
    degree: int = 32,
) -> Branch:
    r"""Follow the stationary densities of attention with V = B = I and noise, starting from the uniform density.

    Newton's method solves for the density at each order parameter, in any dimension and without integration in time,
    also on the unstable part of the branch. A continuous transition has no fold. Otherwise there is a fold at $T_f >
    T_c$, and between $T_c$ and $T_f$ both the uniform and a concentrated density are stable (hysteresis). A host
    function, which computes in double precision whether `jax_enable_x64` is set or not; all arrays are NumPy's, in
    float64.

    !!! example

        ```python
        >>> import clusterjax as cjx
        >>> found = cjx.phase.branch(cjx.UnnormalisedAttention(4.0), d=2)
        >>> found.continuous, f"{found.fold.temperature / found.critical_temperature:.3f}"
        (False, '1.059')
        >>> f"{found.coexistence.temperature / found.critical_temperature:.3f}"
        '1.047'
        ```

    **Arguments:**

    - `attention`: `SoftmaxAttention` or `UnnormalisedAttention` with a positive beta, B = I and a full mask.
    - `d`: The dimension of the tokens, at least 2.
    - `order_parameters`: (points,), increasing, between 0 and 1: the points of the branch. None means 238 points up to
        0.995.
    - `degree`: The highest degree of the moments. The kernel must be negligible beyond it, as for `MeanField`.

    **Returns:**

    A `Branch`.

    **Raises:**

    - `ValueError` for another attention, or for numbers outside of these ranges; and where the order parameters are too
        far apart for Newton's method.

    ??? cite "Source"

        2604.16288 (circle) and 2606.05140 (any dimension) for unnormalised attention.
    """
    beta, offset = _check_attention(attention)
    d = check_integer(d, "d", least=2, remedy="pass the dimension of the tokens")
    degree = check_integer(degree, "degree", least=4, remedy="pass the highest degree of moments, such as 32")
    _check_degree(beta, d, degree)
    # Tables of three functions at each node, for each order of perturbations, and their inputs.
    count = _nodes(degree)
    what, remedy = f"the harmonics at {count} nodes", "pass a lower one, such as 32"
    check_room(degree, "degree", 8 * 4 * _ORDERS * degree * count, what, longest=count, remedy=remedy)
    rs = _check_rs(order_parameters)
    # Double precision is needed to find folds to 1e-12, and to compare free energies to 1e-9.
    with double_precision():
        return _follow(beta, offset, d, degree, rs, isinstance(attention, SoftmaxAttention))


def _follow(beta: float, offset: float, d: int, degree: int, rs: np.ndarray, softmax: bool) -> Branch:
    """The branch, for checked arguments."""
    l = np.arange(1, degree + 1)
    rates = uniform_growth_rates(beta, d, degree, unnormalised=not softmax)[1:]
    strengths = rates / (l * (l + d - 2.0)) * np.exp(-offset)
    numbers = _numbers(degree, d)
    count = _nodes(degree)
    equations = equations_of(strengths, numbers, beta if softmax else None, d, count)
    unknowns = follow(equations, jnp.asarray(rs))
    if not np.all(np.isfinite(unknowns)):
        r = rs[np.argmin(np.isfinite(unknowns[:, 0]))]
        raise refusal(
            "order_parameters",
            "be near enough to each other for Newton's method",
            f"none was found at {r:.3g} for beta {beta:.3g} and d {d}",
            "pass more of them below that, or end there",
        )
    return _assemble(equations, jnp.asarray(rs), jnp.asarray(unknowns), d, count)


def _assemble(equations: Equations, rs: Array, unknowns: Array, d: int, count: int) -> Branch:
    """The branch with its fold, coexistence and growth rates."""
    moments, temperatures, densities, all_excesses = (
        np.asarray(part, float) for part in describe(equations, unknowns, rs)
    )
    critical = float(equations.strengths[0])
    excesses = None if equations.beta is not None else all_excesses
    top = int(np.argmax(temperatures))
    fold = coexistence = None
    if float(temperatures[top]) > critical * (1 + _FLAT) and 0 < top < len(rs) - 1:
        fold = _locate(equations, rs, unknowns, (top - 1, top + 1), slope)
    if excesses is not None and (below := np.nonzero((excesses[:-1] > 0) & (excesses[1:] <= 0))[0]).size:
        ends = (int(below[-1]), int(below[-1]) + 1)
        coexistence = _locate(equations, rs, unknowns, ends, lambda *at: float(at[0].excess(*at[1:])))
    fastest = [_fastest(equations, moments[k], float(temperatures[k]), densities[k], d, count) for k in range(len(rs))]
    points = (np.asarray(rs, float), temperatures, moments, np.array(fastest))
    return Branch(d, critical, *points, free_energies=excesses, fold=fold, coexistence=coexistence)


def _fastest(
    equations: Equations, moments: np.ndarray, temperature: float, density: np.ndarray, d: int, count: int
) -> float:
    """The growth rate of the fastest perturbation."""
    strengths, numbers = np.asarray(equations.strengths, float), np.asarray(equations.numbers, float)
    beta = None if equations.beta is None else float(equations.beta)
    # The circle has only two orders: even and odd functions of the angle.
    return max(
        leading(growth(moments, temperature, strengths, numbers, beta, d, count, order, density), order == 1)
        for order in range(2 if d == 2 else _ORDERS)
    )


def _locate(
    equations: Equations, rs: Array, unknowns: Array, ends: tuple[int, int], value: Callable[..., float]
) -> Point:
    """The point between two points of the branch at which a function is zero."""
    from scipy.optimize import brentq  # imported only when needed

    at = lambda r: (equations, solve(equations, jnp.asarray(r, rs.dtype), unknowns[ends[0]]), jnp.asarray(r, rs.dtype))
    low, high = (float(rs[end]) for end in ends)
    r: Any = brentq(lambda r: value(*at(r)), low, high, xtol=1e-12)
    return Point(float(r), float(np.exp(at(r)[1][0])))


def _nodes(degree: int) -> int:
    return 4 * (degree + 8)


def _numbers(degree: int, d: int) -> np.ndarray:
    return np.array([float(number_of_harmonics(l, d)) for l in range(1, degree + 1)])


def _check_attention(attention: Any) -> tuple[float, float]:
    """The beta and the offset of `attention`, or a ValueError unless the branch can be computed."""
    if not isinstance(attention, SoftmaxAttention | UnnormalisedAttention):
        raise ValueError(
            f"attention must be SoftmaxAttention or UnnormalisedAttention, but it is {shown(attention)}; pass one of "
            "these."
        )
    numbers = (attention.beta, attention.offset if isinstance(attention, UnnormalisedAttention) else 0.0)
    if any(isinstance(one, AbstractSchedule) or not is_concrete(one) or np.ndim(one) for one in numbers):
        raise ValueError(f"attention must have a beta that is one number, but it is {shown(attention.beta)}; pass one.")
    if attention.query_key is not None or not isinstance(attention.mask, FullMask):
        raise ValueError(
            "attention must have query_key None and a full mask, for only then densities about an axis stay so, but it "
            f"is {shown(attention)}; leave them out."
        )
    beta, offset = (float(np.asarray(one)) for one in numbers)
    if not beta > 0:
        raise ValueError(
            f"attention.beta must be positive, but it is {beta:.3g}: tokens gather at none that is negative; pass a "
            "positive number."
        )
    return beta, offset


def _check_degree(beta: float, d: int, degree: int) -> None:
    from .._field.mean.checks import degree_for

    if degree < (least := degree_for(beta, d)):
        raise refusal(
            "degree", f"be at least {least} for beta {beta:.4g} and d {d}", f"it is {degree}", f"pass {least} or more"
        )


def _check_rs(order_parameters: Any) -> np.ndarray:
    """The order parameters as an increasing array between 0 and 1."""
    if order_parameters is None:
        return np.concatenate([np.arange(1, 181) * 0.005, 1 - 0.1 * 0.95 ** np.arange(1, 59)])
    rs = check_host_array(
        order_parameters, "order_parameters", shape=("points",), remedy="pass numbers between 0 and 1"
    )
    if len(rs) < 3 or np.any(np.diff(rs) <= 0) or rs[0] <= 0 or rs[-1] >= 1:
        raise refusal(
            "order_parameters",
            "be at least three, rising, above 0 and below 1",
            f"they are {shown(rs)}",
            "pass numpy.linspace(0.01, 0.95, 95), for example",
        )
    return rs
