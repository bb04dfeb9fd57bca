r"""Gradients of merger times, backwards along the steps of a run.

**Algorithm.** $\dot p = -J^\top p$, by exponentials of the transposed derivative J of the velocities, which is taken to
be constant over pieces of a step. Where J is small it is held; else its products with gradients are sums over pairs.

**Invariants.** A gradient p is of the logarithm of a merger time T, since squares of times overflow. It is tangent to
the sphere, and $T\langle p, f\rangle = -1$ along the flow f.
"""

import math
from collections.abc import Callable

import numpy as np

from .derivatives import jacobian, transposed
from .law import AttendedMasses, Law
from .run import Leg
from .steps import between, slope


# A derivative is taken to be constant over pieces of a leg in which it changes things by so many e-foldings.
_PIECE, _MOST_PIECES = 0.5, 200
_STIFF_PIECES = 4
# The largest derivative that is held, as a number of rows.
_MOST_ROWS = 1024


def backwards(law: Law, leg: Leg, gradients: np.ndarray, times: np.ndarray, share: float = 1.0) -> np.ndarray:
    """Gradients at the beginning of a leg from those at `share` of its length, (k, m, d); of mergers at `times`."""
    if not len(gradients):
        return gradients
    units = relative(leg, times)
    if leg.implicit:
        return _through_stiff(law, leg, gradients, units, share)
    attended, shape = leg.cloud.attended, leg.y0.shape
    first, last = (slope(law, y, attended, leg.clock) for y in (leg.y0, leg.y1))
    middle = (leg.y0 + leg.y1) / 2 + leg.length / 8 * (first - last)[:-1].reshape(shape)
    middle = middle / np.linalg.norm(middle, axis=1, keepdims=True)
    product, foldings = _change(law, middle, attended, leg.length * share, gradients)
    pieces = min(_MOST_PIECES, math.ceil(foldings / _PIECE))
    if pieces <= 1 and share == 1:
        return _exponential(gradients, product, first, leg.y0, units)
    # Where speeds change by orders of magnitude within the leg: in pieces, along the interpolant.
    inside, found = between(law, attended, leg.again(law)), gradients
    for piece in range(pieces, 0, -1):
        middle, start = (inside.clusters(share * (piece - back) / pieces) for back in (0.5, 1))
        product, _ = _change(law, middle, attended, leg.length * share / pieces, found)
        found = _exponential(found, product, slope(law, start, attended, leg.clock), start, units)
    return found


def relative(leg: Leg, times: np.ndarray) -> np.ndarray:
    """The unit of the clock of a leg as a share of each of `times`, (k,)."""
    return np.exp(leg.clock - np.log(times))


def _through_stiff(law: Law, leg: Leg, gradients: np.ndarray, units: np.ndarray, share: float) -> np.ndarray:
    """The same of an implicit step: exponentials of matrices, for it lasts many of the fastest e-foldings."""
    from scipy.linalg import expm

    attended, inside, found = leg.cloud.attended, between(law, leg.cloud.attended, leg.again(law)), gradients
    for piece in range(_STIFF_PIECES, 0, -1):
        middle, start = (inside.clusters(share * (piece - back) / _STIFF_PIECES) for back in (0.5, 1))
        change, _ = jacobian(law, middle, attended)
        whole = expm(change * (leg.span * share / _STIFF_PIECES))
        found = (found.reshape(len(found), -1) @ whole).reshape(found.shape)
        found = _tangent(found, slope(law, start, attended, leg.clock), start, units)
    return found


_Product = Callable[[np.ndarray], np.ndarray]


def _change(
    law: Law, y: np.ndarray, attended: AttendedMasses, length: float, gradients: np.ndarray
) -> tuple[_Product, float]:
    """The transposed derivative by the clusters, times the duration of a piece of the path of this length about y, as a
    function of gradients, and by how many e-foldings it changes them."""
    if y.size <= _MOST_ROWS:
        change, velocity = jacobian(law, y, attended)
        largest, factor = _duration(velocity, length)
        change = change / largest * factor
        product = lambda found: (found.reshape(len(found), -1) @ change).reshape(found.shape)
        return product, _foldings(change)
    velocity, product = transposed(law, y, attended)
    largest, factor = _duration(velocity, length)
    scaled = lambda found: product(found) / largest * factor
    # The norm from below, by what it does to gradients twice.
    once = scaled(gradients)
    sizes = [np.linalg.norm(one, axis=(1, 2)) for one in (gradients, once, scaled(once))]
    ratios = [after / np.where(before > 0, before, 1) for before, after in zip(sizes, sizes[1:], strict=False)]
    return scaled, float(max(np.max(ratio) for ratio in ratios))


def _duration(velocity: np.ndarray, length: float) -> tuple[float, float]:
    """That of a path of this length, times the largest velocity, and this."""
    largest = float(np.max(np.abs(velocity)))
    return largest, length / float(np.linalg.norm(velocity / largest))


def _foldings(change: np.ndarray) -> float:
    """What the norm of a matrix, the largest factor by which it lengthens a vector, is at most."""
    sizes = np.abs(change)
    return float(min(np.linalg.norm(change), math.sqrt(sizes.sum(axis=0).max() * sizes.sum(axis=1).max())))


def _exponential(
    gradients: np.ndarray, product: _Product, first: np.ndarray, start: np.ndarray, units: np.ndarray
) -> np.ndarray:
    """Gradients by the exponential of the transposed derivative; `first` is the slope at `start`, where they end."""
    term = found = gradients
    for order in range(1, 80):
        term = product(term) / order
        found = found + term
        if np.max(np.abs(term)) <= 1e-6 * np.max(np.abs(found)):
            break
    return _tangent(found, first, start, units)


def _tangent(found: np.ndarray, first: np.ndarray, start: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Gradients at `start`, where the slope is `first`, by a clock whose unit is these shares of merger times."""
    # Tangent there: what is radial moves no token.
    found = found - np.sum(found * start, axis=2, keepdims=True) * start
    # Of the direction of the flow the exact value is known.
    flow = first[:-1].reshape(start.shape)
    return found - (np.sum(found * flow, axis=(1, 2)) + first[-1] * units)[:, None, None] * flow
