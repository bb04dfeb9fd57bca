"""Error bounds of merger times, from the gradient of each merger time, computed backwards along the run.

**Algorithm.** Let T(y) be the time from clusters at y to a merger. Along the flow, T falls at rate 1, so its gradient p
obeys $⟨p, f⟩ = -1$ and $ṗ = -J^T p$. At the merger, where a distance r comes to the tolerance, $p = -∇r / ⟨∇r, f⟩$. A
displacement e of the clusters on the way changes T by ⟨p, e⟩, to first order. Displacements are caused by

- the estimated errors of steps, and rounding errors;
- following tokens at a mean square distance S as one cluster. The pulls on others change by at most the fraction
  $(1 + β|B|)² S$, since first orders cancel at the mean by masses, for as long as tokens within the cluster would
  contract: S decays at twice the rate of `contraction`. The cluster itself moves by $(1 + β|B|) S$ at once;
- the distance of the token that comes to the tolerance from its cluster;
- with a causal mask, the lag of the later tokens of a cluster, which see more than the first token. The lag D is the
  difference of velocities over the contraction rate, and changes pulls on later clusters by at most the fraction
  $2 (1 + β|B|) D$.

**Reference.** Hairer, Norsett, Wanner, *Solving Ordinary Differential Equations I*, sections I.14 and II.8: adjoint
equations, and the propagation of local errors to global errors.

**Invariants.** The bound is twice the sum of the absolute effects; no signs are used. The bound is of first order:
where it is not small against 1, it is only a warning. Gradients are of the logarithms of times, and times are in the
clocks of legs, so that nothing overflows. An undefined bound is infinite, not NaN, which compares false to all numbers.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from .clouds import Cloud, drifts, partings
from .run import Leg, Merger, Run
from .steps import between, slope
from .velocity import AttendedMasses, Law, Moves, jacobian, moves, precision, pulling, transposed


# Gradients of merger times, by a backward pass over the steps of a run.
#
# **Algorithm.** $ṗ = -J^T p$, by exponentials of the transposed derivative J of the velocities, constant over pieces of
# a step. A small J is stored as a matrix; a large J is applied to gradients by sums over pairs.
#
# **Invariants.** A gradient p is of the logarithm of a merger time T, since squares of times overflow. The gradient is
# tangent to the sphere, and $T⟨p, f⟩ = -1$ along the flow f.


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
    inside, carried = between(law, attended, leg.again(law)), gradients
    for piece in range(pieces, 0, -1):
        middle, start = (inside.clusters(share * (piece - back) / pieces) for back in (0.5, 1))
        product, _ = _change(law, middle, attended, leg.length * share / pieces, carried)
        carried = _exponential(carried, product, slope(law, start, attended, leg.clock), start, units)
    return carried


def relative(leg: Leg, times: np.ndarray) -> np.ndarray:
    """The unit of the clock of a leg relative to each of `times`, (k,)."""
    return np.exp(leg.clock - np.log(times))


def _through_stiff(law: Law, leg: Leg, gradients: np.ndarray, units: np.ndarray, share: float) -> np.ndarray:
    """`backwards` for an implicit step, by matrix exponentials, since it lasts many of the fastest e-foldings."""
    from scipy.linalg import expm

    attended, inside, carried = leg.cloud.attended, between(law, leg.cloud.attended, leg.again(law)), gradients
    for piece in range(_STIFF_PIECES, 0, -1):
        middle, start = (inside.clusters(share * (piece - back) / _STIFF_PIECES) for back in (0.5, 1))
        change, _ = jacobian(law, middle, attended)
        whole = expm(change * (leg.span * share / _STIFF_PIECES))
        carried = (carried.reshape(len(carried), -1) @ whole).reshape(carried.shape)
        carried = _tangent(carried, slope(law, start, attended, leg.clock), start, units)
    return carried


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
        product = lambda vectors: (vectors.reshape(len(vectors), -1) @ change).reshape(vectors.shape)
        return product, _foldings(change)
    velocity, product = transposed(law, y, attended)
    largest, factor = _duration(velocity, length)
    scaled = lambda vectors: product(vectors) / largest * factor
    # A lower bound of the norm, by two iterations of the power method from the gradients.
    once = scaled(gradients)
    sizes = [np.linalg.norm(iterate, axis=(1, 2)) for iterate in (gradients, once, scaled(once))]
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
    term = total = gradients
    for order in range(1, 80):
        term = product(term) / order
        total = total + term
        if np.max(np.abs(term)) <= 1e-6 * np.max(np.abs(total)):
            break
    return _tangent(total, first, start, units)


def _tangent(gradients: np.ndarray, first: np.ndarray, start: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Gradients projected onto the constraints at `start`, with the slope `first`; `units` are those of `relative`."""
    # A gradient is tangent to the sphere, since radial displacements move no token.
    gradients = gradients - np.sum(gradients * start, axis=2, keepdims=True) * start
    # The component along the flow is known exactly.
    flow = first[:-1].reshape(start.shape)
    return gradients - (np.sum(gradients * flow, axis=(1, 2)) + first[-1] * units)[:, None, None] * flow


# Errors of merger times while many tokens are followed by tiles, from displacements carried forwards along the steps.
#
# **Algorithm.** A displacement e of all tokens obeys ė = J e with the derivative J of the velocities. Each step applies
# the exponential of J at its middle, to second order, by differences of velocities. The delay of a merger is the
# separation of its pair by e over the closing speed of the pair. Two displacements are followed. The first has the
# estimated errors of steps and, along the flow, the effect of joining tokens; the second has errors of equal norms and
# of rounding in random directions.
#
# **Reference.** Hairer, Norsett, Wanner, *Solving Ordinary Differential Equations I*, section I.14.
#
# **Invariants.** The result is an estimate, not a bound: gradients of n merger times would need n backward passes.


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
    errors = np.zeros((2, *legs[0].y0.shape))
    spread, now = legs[0].cloud.spread, moves(law, legs[0].y0, legs[0].cloud.attended)
    for index, leg in enumerate(legs):
        last = moves(law, leg.y1, leg.cloud.attended)
        rates = np.maximum(_rates(now), _rates(last))
        squares = spread * -np.expm1(2 * rates * leg.span) / (-2 * rates)
        moved = _carried_forward(law, leg, now, last, errors)
        sizes = _add(law, leg, last, squares, moved, random)
        for k in of_leg.get(index, ()):
            late[k] = _lateness(leg, mergers[k], now, last, errors, moved, sizes)
        errors, spread = moved, spread * np.exp(2 * rates * leg.span)
        cloud = legs[index + 1].cloud if index + 1 < len(legs) else after
        if cloud.cluster is not leg.cloud.cluster:
            errors, spread = _together(law, leg.cloud, cloud, last, errors, spread)
            now = moves(law, cloud.y, cloud.attended)
        else:
            now = last
    sizes = np.linalg.norm(errors, axis=2)
    return late, sizes[0] + _DEVIATIONS * sizes[1]


def _rates(now: Moves) -> np.ndarray:
    """The rates within clusters, at most -1e-3, since clusters form only where the rates are negative."""
    return np.minimum(np.asarray(now.rates), -1e-3)


def _carried_forward(law: Law, leg: Leg, now: Moves, last: Moves, errors: np.ndarray) -> np.ndarray:
    """Displacements at the end of a leg, from `errors` at its beginning."""
    attended, h = leg.cloud.attended, leg.span
    middle = (leg.y0 + leg.y1) / 2 + h / 8 * (now.velocity - last.velocity)
    middle /= np.linalg.norm(middle, axis=1, keepdims=True)
    middle_velocity = moves(law, middle, attended).velocity

    def change(error: np.ndarray) -> np.ndarray:
        scale = float(np.max(np.linalg.norm(error, axis=1))) / _APART
        return scale * (moves(law, middle + error / scale, attended).velocity - middle_velocity) if scale > 0 else error

    return np.stack([error + h * change(error + h / 2 * change(error)) for error in errors])


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
    law: Law, leg: Leg, last: Moves, squares: np.ndarray, errors: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """Add the errors of a step, of rounding and of joining tokens to `errors`; return their largest norms, (m,)."""
    assert leg.defect is not None and leg.within is not None
    errors[0] += leg.defect
    reach = law.strength * (1 + law.sharpness)
    merged = reach * (1 + law.sharpness) * float(np.max(squares, initial=0.0)) * last.pull
    speed = np.linalg.norm(last.velocity, axis=1)
    errors[0] += (merged / np.where(speed > 0, speed, 1))[:, None] * last.velocity
    rounding = float(np.finfo(precision(law.beta)).eps) * reach * leg.span * last.pull
    directions = random.normal(size=leg.y1.shape)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    errors[1] += (leg.error[:-1] + rounding)[:, None] * directions
    return leg.within + rounding + merged


def _together(
    law: Law, before: Cloud, cloud: Cloud, last: Moves, errors: np.ndarray, spread: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Displacements of clusters, and their spreads, after some of the clusters `before` merged."""
    rows = cloud.cluster[before.first]
    shares = before.sums / cloud.sums[rows]
    mean = lambda values: np.stack(
        [np.bincount(rows, shares * column, len(cloud.first)) for column in values.T], axis=1
    )
    crowded = np.bincount(rows) > 1
    at_once = np.where(crowded, (1 + law.sharpness) * cloud.spread, 0)
    flow = mean(last.velocity)
    speed = np.linalg.norm(flow, axis=1)
    errors = np.stack([mean(displacements) for displacements in errors])
    errors[0] += (at_once / np.where(speed > 0, speed, 1))[:, None] * flow
    first = np.searchsorted(before.first, cloud.first)
    return errors, np.where(crowded, cloud.spread, spread[first])


_EPS = float(np.finfo(float).eps)


def relative_errors(run: Run) -> np.ndarray:
    """A bound of the relative error of the time of each merger."""
    # Only the first legs are by tiles.
    tiled = sum(leg.cloud.attended.tiled for leg in run.legs)
    legs = run.legs[tiled:]
    beginning = legs[0].cloud if legs else run.last
    early = [merger for merger in run.mergers if merger.index < tiled]
    late, moved = tiled_errors(run.law, run.legs[:tiled], beginning, early)
    displacements, radii = _displacements(run.law, legs, beginning)
    waiting = list(range(len(early), len(run.mergers)))
    active: list[int] = []
    gradients = np.zeros((0, *run.last.y.shape))
    times = np.array([merger.time for merger in run.mergers])
    total = np.append(late / np.where(times[: len(early)] > 0, times[: len(early)], 1), np.zeros(len(waiting)))
    after = run.last
    for index in range(len(legs) - 1, -1, -1):
        leg = legs[index]
        gradients = _before_change(run.law, leg.cloud, after, radii[index], gradients, active, total)
        gradients = backwards(run.law, leg, gradients, times[active])
        while waiting and run.mergers[waiting[-1]].index == index + tiled:
            k = waiting.pop()
            # Mergers at time 0 precede all motion, and have no error.
            if run.mergers[k].time > 0:
                active.append(k)
                gradient, touching = _gradient(run.law, leg, run.mergers[k])
                gradients = np.concatenate([gradients, gradient[None]])
                total[k] += _product(touching[None], radii[index])[0]
        sizes = np.sqrt(np.sum(np.square(gradients), axis=2))
        total[active] += _product(sizes, displacements[index]) + _later(leg, times[active])
        after = leg.cloud
    total[active] += np.sqrt(np.sum(np.square(gradients), axis=2)) @ moved
    return np.where(np.isnan(total), np.inf, 2 * total)


def _later(leg: Leg, times: np.ndarray) -> np.ndarray:
    """The error of the duration of a leg, relative to each of `times`."""
    return (leg.error[-1] + 8 * _EPS * leg.span) * relative(leg, times)


def _gradient(law: Law, leg: Leg, merger: Merger) -> tuple[np.ndarray, np.ndarray]:
    """The gradient of the logarithm of a merger time at the beginning of its leg, (m, d), and its norms at the merger,
    (m,)."""
    done = leg.again(law)
    y = between(law, leg.cloud.attended, done).clusters(merger.share)
    a, b = merger.rows
    gradient = np.zeros_like(y)
    # The gradient of half of the squared distance, projected onto the tangent space.
    gradient[a], gradient[b] = y[a] - y[b], y[b] - y[a]
    gradient -= np.sum(gradient * y, axis=1, keepdims=True) * y
    flow, times = slope(law, y, leg.cloud.attended, leg.clock), np.array([merger.time])
    gradient *= -flow[-1] * relative(leg, times) / np.sum(gradient * flow[:-1].reshape(y.shape))
    return backwards(law, leg, gradient[None], times, merger.share)[0], np.sqrt(np.sum(np.square(gradient), axis=1))


def _before_change(
    law: Law,
    cloud: Cloud,
    after: Cloud,
    radius: np.ndarray,
    gradients: np.ndarray,
    active: list[int],
    total: np.ndarray,
) -> np.ndarray:
    """Gradients before some clusters merged or were released; `total` receives the effect of the displacements."""
    if cloud.cluster is after.cluster:
        return gradients
    sizes = np.sqrt(np.sum(np.square(gradients), axis=2))
    if law.causal:
        # Each cluster comes from the cluster of its first token, both for a merger and for a release.
        rows = cloud.cluster[after.first]
        split = np.bincount(rows, minlength=len(cloud.first)) > 1
        later = after.first != cloud.first[rows]
        total[active] += _product(sizes, np.where(split[rows] & later, radius[rows], 0))
        earlier = np.zeros((len(gradients), *cloud.y.shape))
        np.add.at(np.moveaxis(earlier, 1, 0), rows, np.moveaxis(gradients, 1, 0))
        return earlier
    rows = after.cluster[cloud.first]
    count = np.bincount(rows, minlength=len(after.first))
    total[active] += sizes @ np.where(count > 1, (1 + law.sharpness) * after.spread, 0)
    sums, whole = cloud.sums, after.sums[rows]
    shares = np.where(whole > 0, sums / np.where(whole > 0, whole, 1), 1 / count[rows])
    return gradients[:, rows] * shares[None, :, None]


def _displacements(law: Law, legs: Sequence[Leg], before: Cloud) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The possible displacement of each cluster in each leg, (m,), and the distance of its tokens from it, (m,).

    `before` is the cloud at the beginning of the run.
    """
    displacements, radii = [], []
    reach = law.strength * (1 + law.sharpness)
    spread, radius = before.spread, before.radius
    for leg in legs:
        cloud = leg.cloud
        m = len(leg.y0)
        if cloud.cluster is not before.cluster:
            spread = _carried(before, cloud, spread, cloud.spread)
            radius = _carried(before, cloud, radius, cloud.radius)
        before = cloud
        ends = [cloud._replace(y=y) for y in (leg.y0, leg.y1)]
        pulls = [pulling(law, end.y, cloud.attended.seen) for end in ends]
        unit = min(log_time for _, log_time in pulls)
        w = np.maximum(*(kernel * np.exp(unit - log_time) for kernel, log_time in pulls))
        whole = w.sum(axis=1)
        np.fill_diagonal(w, 0)
        crowds = np.bincount(cloud.cluster) > 1
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            # All rates and durations are in the unit of time with the logarithm `unit`.
            duration = leg.span * np.exp(leg.clock - unit)
            rates = np.maximum(*(_in_unit(*partings(law, end), unit) for end in ends))
            driven = np.zeros(m)
            if law.causal:
                driven = np.maximum(*(_in_unit(*drifts(law, end), unit) for end in ends))
            lag = np.where(driven > 0, driven / np.where(rates < 0, -rates, 0), 0)
            area = np.where(crowds, radius * _area(rates, duration) + np.where(lag > 0, lag * duration, 0), 0)
            # The largest distance of a token from its cluster in a leg is at one of the two ends.
            later = np.where(crowds, radius * np.exp(rates * duration) + lag, 0)
            radii.append(np.maximum(radius, later))
            squares = np.where(crowds, spread * _area(2 * rates, duration), 0)
            radius, spread = later, np.where(crowds, spread * np.exp(2 * rates * duration), 0)
        if law.causal:
            moved = 2 * reach * _product(w, area)
        else:
            pull = w.sum(axis=1) if law.value is None else whole
            pull = np.where(squares > 0, pull * np.where(pull > 0, squares, 0), 0)
            moved = reach * (1 + law.sharpness) * (_product(w, squares) + pull)
        displacements.append(moved + leg.error[:-1] + 4 * _EPS)
    return displacements, radii


def _product(w: np.ndarray, area: np.ndarray) -> np.ndarray:
    """The product w @ area with 0 * inf = 0: a cluster of zero weight may have an infinite error."""
    return np.sum(np.where(w > 0, w * np.where(w > 0, area[None, :], 0), 0), axis=1)


def _in_unit(rates: np.ndarray, units: np.ndarray, unit: float) -> np.ndarray:
    """Convert rates in units of time with the logarithms `units` to the unit with the logarithm `unit`."""
    return np.where(rates == 0, 0, rates * np.exp(unit - units))


def _area(rates: np.ndarray, duration: float) -> np.ndarray:
    """The integral of e^{rate t} from 0 to t = duration."""
    still = rates == 0
    return np.where(still, duration, np.expm1(rates * duration) / np.where(still, 1, rates))


def _carried(before: Cloud, cloud: Cloud, width: np.ndarray, anew: np.ndarray) -> np.ndarray:
    """The spreads `width` of clusters that did not change, and the spreads `anew` of clusters that merged."""
    rows = before.cluster[cloud.first]
    same = np.bincount(before.cluster)[rows] == np.bincount(cloud.cluster)
    return np.where(same, width[rows], anew)
