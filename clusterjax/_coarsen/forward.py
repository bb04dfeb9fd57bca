r"""Errors of merger times while many tokens are followed by tiles, from displacements carried forwards along the steps.

**Algorithm.** A displacement e of all tokens obeys $\dot e = J e$ with the derivative J of the velocities. Each step
applies the exponential of J at its middle, to second order, by differences of velocities. The delay of a merger is the
separation of its pair by e over the closing speed of the pair. Two displacements are followed. The first has the
estimated errors of steps and, along the flow, the effect of joining tokens; the second has errors of equal norms and of
rounding in random directions.

**Reference.** Hairer, Norsett, Wanner, *Solving Ordinary Differential Equations I*, section I.14.

**Invariants.** The result is an estimate, not a bound: gradients of n merger times would need n backward passes.
"""

from collections.abc import Sequence

import numpy as np

from .clouds import Cloud
from .law import Law, Moves, moves
from .run import Leg
from .tiles import precision
from .touches import Merger


# The factor of the random displacement in the error estimate.
_DEVIATIONS = 3.0
# The largest displacement in a difference of velocities.
_APART = 1e-3


def tiled_errors(
    law: Law, legs: Sequence[Leg], after: Cloud, mergers: Sequence[Merger]
) -> tuple[np.ndarray, np.ndarray]:
    """The error of the time of each merger of these legs, and the displacement of clusters after them, (m,)."""
    late, random = np.zeros(len(mergers)), np.random.default_rng(0)
    if not legs:
        return late, np.zeros(len(after.first))
    of_leg: dict[int, list[int]] = {}
    for k, merger in enumerate(mergers):
        of_leg.setdefault(merger.index if merger.time > 0 else -1, []).append(k)
    found = np.zeros((2, *legs[0].y0.shape))
    spread, now = legs[0].cloud.spread, moves(law, legs[0].y0, legs[0].cloud.attended)
    for index, leg in enumerate(legs):
        last = moves(law, leg.y1, leg.cloud.attended)
        rates = np.maximum(_rates(now), _rates(last))
        squares = spread * -np.expm1(2 * rates * leg.span) / (-2 * rates)
        moved = _carried(law, leg, now, last, found)
        sizes = _add(law, leg, last, squares, moved, random)
        for k in of_leg.get(index, ()):
            late[k] = _lateness(leg, mergers[k], now, last, found, moved, sizes)
        found, spread = moved, spread * np.exp(2 * rates * leg.span)
        cloud = legs[index + 1].cloud if index + 1 < len(legs) else after
        if cloud.cluster is not leg.cloud.cluster:
            found, spread = _together(law, leg.cloud, cloud, last, found, spread)
            now = moves(law, cloud.y, cloud.attended)
        else:
            now = last
    sizes = np.linalg.norm(found, axis=2)
    return late, sizes[0] + _DEVIATIONS * sizes[1]


def _rates(now: Moves) -> np.ndarray:
    """The rates within clusters, at most -1e-3, since clusters form only where the rates are negative."""
    return np.minimum(np.asarray(now.rates), -1e-3)


def _carried(law: Law, leg: Leg, now: Moves, last: Moves, found: np.ndarray) -> np.ndarray:
    attended, h = leg.cloud.attended, leg.span
    middle = (leg.y0 + leg.y1) / 2 + h / 8 * (now.velocity - last.velocity)
    middle /= np.linalg.norm(middle, axis=1, keepdims=True)
    there = moves(law, middle, attended).velocity

    def change(one: np.ndarray) -> np.ndarray:
        scale = float(np.max(np.linalg.norm(one, axis=1))) / _APART
        return scale * (moves(law, middle + one / scale, attended).velocity - there) if scale > 0 else one

    return np.stack([one + h * change(one + h / 2 * change(one)) for one in found])


def _lateness(
    leg: Leg, merger: Merger, now: Moves, last: Moves, before: np.ndarray, after: np.ndarray, sizes: np.ndarray
) -> float:
    """The error of a merger time, by the cubic through both ends of the step; `sizes` are errors of the step, (m,)."""
    pair, s, h = list(merger.rows), merger.share, leg.span
    y0, y1, f0, f1 = leg.y0[pair], leg.y1[pair], h * now.velocity[pair], h * last.velocity[pair]
    chord = y1 - y0
    y = y0 + s * chord + s * (1 - s) * ((1 - s) * (f0 - chord) - s * (f1 - chord))
    flow = (chord + (1 - s) * (1 - 3 * s) * (f0 - chord) - s * (2 - 3 * s) * (f1 - chord)) / h
    gap, closing = y[0] - y[1], flow[0] - flow[1]
    moved = (1 - s) * before[:, pair] + s * after[:, pair]
    effects = np.abs((moved[:, 0] - moved[:, 1]) @ gap)
    own = (leg.cloud.radius + sizes)[pair].sum() * np.linalg.norm(gap)
    return float(effects[0] + _DEVIATIONS * effects[1] + own) / max(abs(float(gap @ closing)), 1e-300)


def _add(
    law: Law, leg: Leg, last: Moves, squares: np.ndarray, found: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """Add the errors of a step, of rounding and of joined tokens to `found`; returns their largest norms, (m,)."""
    assert leg.defect is not None and leg.within is not None
    found[0] += leg.defect
    reach = law.strength * (1 + law.sharpness)
    merged = reach * (1 + law.sharpness) * float(np.max(squares, initial=0.0)) * last.pull
    speed = np.linalg.norm(last.velocity, axis=1)
    found[0] += (merged / np.where(speed > 0, speed, 1))[:, None] * last.velocity
    rounding = float(np.finfo(precision(law.beta)).eps) * reach * leg.span * last.pull
    directions = random.normal(size=leg.y1.shape)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    found[1] += (leg.error[:-1] + rounding)[:, None] * directions
    return leg.within + rounding + merged


def _together(
    law: Law, before: Cloud, cloud: Cloud, last: Moves, found: np.ndarray, spread: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Displacements and spreads after some clusters merged."""
    rows = cloud.cluster[before.first]
    shares = before.sums / cloud.sums[rows]
    mean = lambda values: np.stack(
        [np.bincount(rows, shares * column, len(cloud.first)) for column in values.T], axis=1
    )
    crowded = np.bincount(rows) > 1
    at_once = np.where(crowded, (1 + law.sharpness) * cloud.spread, 0)
    flow = mean(last.velocity)
    speed = np.linalg.norm(flow, axis=1)
    found = np.stack([mean(one) for one in found])
    found[0] += (at_once / np.where(speed > 0, speed, 1))[:, None] * flow
    first = np.searchsorted(before.first, cloud.first)
    return found, np.where(crowded, cloud.spread, spread[first])
