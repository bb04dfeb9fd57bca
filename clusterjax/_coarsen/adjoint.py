r"""Gradients of merger times, by a backward pass over the steps of a run.

**Algorithm.** $\dot p = -J^\top p$, by exponentials of the transposed derivative J of the velocities, constant over
pieces of a step. A small J is stored as a matrix; a large J is applied to gradients by sums over pairs.

**Invariants.** A gradient p is of the logarithm of a merger time T, since squares of times overflow. The gradient is
tangent to the sphere, and $T\langle p, f\rangle = -1$ along the flow f.
"""

import math
from collections.abc import Callable

import numpy as np

from .derivatives import jacobian, transposed
from .law import AttendedMasses, Law
from .run import Leg
from .steps import between, slope


# The derivative is constant over pieces of a leg; `_PIECE` is the number of e-foldings of a gradient in a piece.
_PIECE, _MOST_PIECES = 0.5, 200
_STIFF_PIECES = 4
# The largest number of rows of a derivative that is stored.
_MOST_ROWS = 1024


def backwards(law: Law, leg: Leg, gradients: np.ndarray, times: np.ndarray, share: float = 1.0) -> np.ndarray:
    """Gradients of mergers at `times`, (k, m, d), carried from `share` of the length of a leg back to its beginning."""
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
    # Speeds may change by orders of magnitude within the leg, which is then split along the interpolant.
    inside, found = between(law, attended, leg.again(law)), gradients
    for piece in range(pieces, 0, -1):
        middle, start = (inside.clusters(share * (piece - back) / pieces) for back in (0.5, 1))
        product, _ = _change(law, middle, attended, leg.length * share / pieces, found)
        found = _exponential(found, product, slope(law, start, attended, leg.clock), start, units)
    return found


def relative(leg: Leg, times: np.ndarray) -> np.ndarray:
    """The unit of the clock of a leg relative to each of `times`, (k,)."""
    return np.exp(leg.clock - np.log(times))


def _through_stiff(law: Law, leg: Leg, gradients: np.ndarray, units: np.ndarray, share: float) -> np.ndarray:
    """`backwards` for an implicit step, by matrix exponentials, since it lasts many of the fastest e-foldings."""
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
    """The transposed derivative at y times the duration of a path of this length, as a function of gradients, and the
    number of e-foldings by which it changes the gradients."""
    if y.size <= _MOST_ROWS:
        change, velocity = jacobian(law, y, attended)
        largest, factor = _duration(velocity, length)
        change = change / largest * factor
        product = lambda found: (found.reshape(len(found), -1) @ change).reshape(found.shape)
        return product, _foldings(change)
    velocity, product = transposed(law, y, attended)
    largest, factor = _duration(velocity, length)
    scaled = lambda found: product(found) / largest * factor
    # A lower bound of the norm, by two iterations of the power method from the gradients.
    once = scaled(gradients)
    sizes = [np.linalg.norm(one, axis=(1, 2)) for one in (gradients, once, scaled(once))]
    ratios = [after / np.where(before > 0, before, 1) for before, after in zip(sizes, sizes[1:], strict=False)]
    return scaled, float(max(np.max(ratio) for ratio in ratios))


def _duration(velocity: np.ndarray, length: float) -> tuple[float, float]:
    """The largest velocity component, and the duration of a path of this length times this component."""
    largest = float(np.max(np.abs(velocity)))
    return largest, length / float(np.linalg.norm(velocity / largest))


def _foldings(change: np.ndarray) -> float:
    """An upper bound of the spectral norm of a matrix, from its Frobenius norm and its row and column sums."""
    sizes = np.abs(change)
    return float(min(np.linalg.norm(change), math.sqrt(sizes.sum(axis=0).max() * sizes.sum(axis=1).max())))


def _exponential(
    gradients: np.ndarray, product: _Product, first: np.ndarray, start: np.ndarray, units: np.ndarray
) -> np.ndarray:
    """Gradients times the exponential of the transposed derivative; `first` is the slope at the new point `start`."""
    term = found = gradients
    for order in range(1, 80):
        term = product(term) / order
        found = found + term
        if np.max(np.abs(term)) <= 1e-6 * np.max(np.abs(found)):
            break
    return _tangent(found, first, start, units)


def _tangent(found: np.ndarray, first: np.ndarray, start: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Gradients projected onto the constraints at `start`, with the slope `first`; `units` are relative clock units."""
    # The gradient is tangent to the sphere, since radial displacements move no token.
    found = found - np.sum(found * start, axis=2, keepdims=True) * start
    # The component along the flow is known exactly.
    flow = first[:-1].reshape(start.shape)
    return found - (np.sum(found * flow, axis=(1, 2)) + first[-1] * units)[:, None, None] * flow
