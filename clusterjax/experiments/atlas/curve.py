r"""Whether tokens are on a closed curve that attracts: what certifies a limit that one slow direction delays.

Two rings of repelled tokens that face each other feel their twist only by the smallest of harmonics: at beta = 9 the
rate of it is below rounding, and no run comes to the end of it. All other directions have long come to rest. So the
limit is on a curve, and if every place of the curve has the same shape, that is the shape of the limit.

**Algorithm.** Of the block $J_q$ of `rest` the eigenvalue along the curve is slow: the tokens have had no ten
relaxation times of it. All others must have had them. With the unit eigenvector u of the slow one the bordered system
$J_q\delta + \mu u = -f_q,\ u^\top\delta = 0$, which the slow rate leaves regular, is Newton's step to the curve
(Keller, "Numerical solution of bifurcation and nonlinear eigenvalue problems", 1977). The curve is followed by steps
along u, each corrected so, until the inner products of all tokens, plain and with V, are what they were and change the
same way: rotations that commute with V map the rest of the curve onto what was followed.

**Invariants.** At every place there is one slow direction and no second one, the shape is that of the tokens, and the
corrected step is short; a curve that does not close within `LENGTH`, or on which this fails, certifies nothing. What is
slow along the curve is not asked to be at rest: a closed curve that attracts has the limit on it, wherever on it that
is. To first order, as `rest`: no proof.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from .rest import TIMES, quotient
from .spectra import symmetries


Derive = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
# The length of a step, of all coordinates together, and of the longest curve that is followed.
STEP, LENGTH = 0.15, 30.0
# Newton's method at a place of the curve: how far it must come, in how many steps.
_CLOSE, _CORRECTIONS = 1e-9, 8


class Place(NamedTuple):
    """Tokens on the curve.

    **Attributes:**

    - `x`: The tokens, (n, d).
    - `along`: The unit direction of the curve there, (n d,).
    """

    x: np.ndarray
    along: np.ndarray


def on_attracting_curve(
    x: Float[np.ndarray, "n d"],
    derive: Derive,
    value: Float[np.ndarray, "d d"],
    kind_at: Callable[[np.ndarray], str],
    t: float,
    tolerance: float,
) -> bool:
    """Whether unit tokens x, which have run for a time t, are within `tolerance` of a closed curve that attracts in all
    directions across it, and on which the tokens have one kind of shape.

    **Arguments:**

    - `derive`: The velocity (n, d) and its derivative (n, d, n, d) at tokens.
    - `value`: V (d, d): rotations that commute with it leave the field as it is.
    - `kind_at`: The kind of shape of tokens.
    - `t`: How long the tokens have run.
    - `tolerance`: A chordal distance.
    """
    generators = symmetries(value)
    place = correct(x, None, derive, generators, t)
    if place is None or np.linalg.norm(place.x - x, axis=1).max() > tolerance:
        return False
    kind, wanted, onwards = kind_at(x), _invariants(place.x, value), _change(place, value)
    first, gone, before = np.inf, False, 0.0
    for _ in range(int(LENGTH / STEP)):
        if kind_at(place.x) != kind:
            return False
        moved = place.x + STEP * place.along.reshape(x.shape)
        moved /= np.linalg.norm(moved, axis=1, keepdims=True)
        following = correct(moved, place.along, derive, generators, t)
        # A second curve nearby is not to be taken for this one.
        if following is None or np.linalg.norm(following.x - place.x) > 2 * STEP:
            return False
        last, place = place, following
        away = float(np.abs(_invariants(place.x, value) - wanted).max())
        # Closed: nearest to where it began, nearer than the first step, after having been away, and going the same way:
        # a mirror image of where it began, which the curve passes backwards, is not the end of it.
        first = away if np.isinf(first) else first
        gone = gone or away > 2 * first
        same_way = np.sum(_change(last, value) * onwards) > np.sum(onwards**2) / 2
        if gone and away > before and before < first and same_way:
            return True
        before = away
    return False


def _invariants(x: np.ndarray, value: np.ndarray) -> np.ndarray:
    """What the symmetries leave as it is: the inner products of tokens, plain and with V, (2, n, n)."""
    return np.stack([x @ x.T, x @ value @ x.T])


def _change(place: Place, value: np.ndarray) -> np.ndarray:
    """How the invariants change along the curve."""
    x, along = place.x, place.along.reshape(place.x.shape)
    return np.stack([along @ x.T + x @ along.T, along @ value @ x.T + x @ value @ along.T])


def correct(x: np.ndarray, along: np.ndarray | None, derive: Derive, generators: np.ndarray, t: float) -> Place | None:
    """The place of the curve next to tokens x, across `along`, or across the slow direction at x; None where there is
    no such curve."""
    for _ in range(_CORRECTIONS):
        q = quotient(x, *derive(x), generators)
        # Away from the curve no direction need be slow: there the one of the place before serves.
        across = slow_direction(q.block) if along is None else q.basis.T @ along
        if across is None:
            return None
        size = len(across)
        bordered = np.zeros((size + 1, size + 1))
        bordered[:size, :size], bordered[:size, size], bordered[size, :size] = q.block, across, across
        if np.linalg.matrix_rank(bordered) <= size:  # a second direction without any force
            return None
        moved = q.basis @ np.linalg.solve(bordered, np.append(-q.pushed, 0.0))[:size]
        x = x + moved.reshape(x.shape)
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
        if np.linalg.norm(moved) <= _CLOSE:
            return _place(x, along, derive, generators, t)
    return None


def _place(x: np.ndarray, along: np.ndarray | None, derive: Derive, generators: np.ndarray, t: float) -> Place | None:
    q = quotient(x, *derive(x), generators)
    slow = slow_direction(q.block, t)
    if slow is None:
        return None
    direction = q.basis @ slow
    return Place(x, direction if along is None or direction @ along > 0 else -direction)


def slow_direction(block: Float[np.ndarray, "m m"], t: float | None = None) -> Float[np.ndarray, " m"] | None:
    """The unit eigenvector of the leading eigenvalue; None if that is complex. With a time t also if tokens have had
    `TIMES` relaxation times of it by then, if they leave along it, or if another one is as slow."""
    if len(block) == 0:
        return None
    # As complex numbers always, whatever they are.
    values, vectors = (np.asarray(one, complex) for one in np.linalg.eig(block))
    rates = -np.real(values)
    order = np.argsort(rates)
    first = order[0]
    # Of two complex eigenvalues neither is alone.
    found = np.imag(values[first]) == 0
    if t is not None:
        others_rest = bool((rates[order[1:]] * t >= TIMES).all())
        found = found and others_rest and abs(rates[first]) * t < TIMES
    leading = np.real(vectors[:, first])
    return leading / np.linalg.norm(leading) if found else None
