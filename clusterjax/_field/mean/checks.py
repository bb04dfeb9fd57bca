"""Checks of the arguments of a `MeanField`: the degree that the kernel needs, temperatures, tokens and their masses."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..._bessel import bessel_ratios
from ..._check import check_array, check_room
from ..._custom_types import Masses, Tokens
from ..._misc import is_concrete
from ..._schedule import AbstractSchedule, StoredParameter, check_real, example


# The largest part of the kernel, relative to its mean, that the degree may truncate.
_LEFT_OUT = 1e-6


def check_masses_of(masses: Any, x: Tokens) -> Masses:
    """`masses` in the dtype of the tokens, or a ValueError unless there is one per token and some are positive."""
    masses = check_array(masses, "masses", shape=(len(x),), remedy="pass one mass a token").astype(x.dtype)
    if is_concrete(masses) and (np.any(np.asarray(masses) < 0) or not np.any(np.asarray(masses))):
        raise ValueError("masses must not be negative, and not all zero, but they are; pass the weight of each token.")
    return masses


def check_dimension_of(x: Tokens, d: int, name: str = "x") -> None:
    """Raise a ValueError unless the tokens have the dimension `d`."""
    if x.shape[1] != d:
        raise ValueError(f"{name} must be of dimension {d}, but its shape is {x.shape}; build the field with that d.")


def check_temperature(temperature: StoredParameter | None) -> None:
    """Raise a ValueError unless the temperature is a number that is not negative, or a schedule."""
    check_real(temperature, "temperature", "pass a number that is not negative")
    if temperature is None or jnp.ndim(example(temperature)) != 0:
        held = "None" if temperature is None else f"of shape {jnp.shape(example(temperature))}"
        raise ValueError(f"temperature must be a number or a schedule, but it is {held}; pass zero for no noise.")
    if not isinstance(temperature, AbstractSchedule) and is_concrete(temperature) and float(temperature) < 0:
        raise ValueError(
            f"temperature must not be negative, but it is {float(temperature):.3g}: the equation would have no "
            "solution; pass zero or more."
        )


def check_size(d: int, degree: int) -> None:
    """Raise a ValueError if the grid and the tables of this degree do not fit in memory."""
    many = degree + 1
    # Tables of cosines and sines with their derivatives, or of the Legendre functions of each order with theirs.
    numbers, longest = (16 * many**2, 4 * many) if d == 2 else (6 * many**3, 8 * many**2)
    remedy = "pass a smaller one, such as 32"
    check_room(degree, "degree", 8 * numbers, "the harmonics on their grid", longest=longest, remedy=remedy)


def check_degree(attention: Any, d: int, degree: int) -> None:
    """Raise a ValueError that names a sufficient degree, if the kernel has parts of a degree above `degree`."""
    beta, form = attention.beta, attention.query_key
    if isinstance(beta, AbstractSchedule) or isinstance(form, AbstractSchedule) or not is_concrete((beta, form)):
        return
    longest = abs(float(beta)) * (1.0 if form is None else float(np.linalg.norm(np.asarray(form, float), 2)))
    least = degree_for(longest, d)
    if degree < least:
        raise ValueError(
            f"degree must be at least {least} for queries of length {longest:.4g}, but it is {degree}: the kernel "
            f"would lose {_left_out(longest, d, degree):.1g} of itself; pass {least} or more."
        )


def _left_out(kappa: float, d: int, degree: int) -> float:
    """The first coefficient of the kernel that is truncated, relative to its mean."""
    order = d / 2 - 1
    # For longer queries SciPy returns NaN; the first term of the logarithm in 1 / kappa is exact up to rounding.
    if kappa > 1e8:
        return math.exp(-(degree + 1) / kappa * (degree + 1 + 2 * order) / 2)
    return float(bessel_ratios(order, kappa, np.array([degree + 1]))[0]) if kappa else 0.0


def degree_for(kappa: float, d: int) -> int:
    """The least degree that truncates no more of the kernel than `_LEFT_OUT`, for queries of norm kappa."""
    enough = lambda degree: _left_out(kappa, d, degree) <= _LEFT_OUT
    least, most = 0, 1
    while not enough(most):
        least, most = most, 2 * most
    # The search is a bisection, since long queries need degrees in the millions.
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (least, middle) if enough(middle) else (middle, most)
    return most
