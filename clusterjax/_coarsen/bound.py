r"""Error bounds of merger times, from the gradient of each merger time, computed backwards along the run.

**Algorithm.** Let T(y) be the time from clusters at y to a merger. Along the flow, T falls at rate 1, so its gradient p
obeys $\langle p, f\rangle = -1$ and $\dot p = -J^\top p$. At the merger, where a distance r comes to the tolerance,
$p = -\nabla r / \langle \nabla r, f\rangle$. A displacement e of the clusters on the way changes T by
$\langle p, e\rangle$, to first order. Displacements are caused by

- the estimated errors of steps, and rounding errors;
- following tokens at a mean square distance S as one cluster. The pulls on others change by at most the fraction
  $(1 + \beta |B|)^2 S$, since first orders cancel at the mean by masses, for as long as tokens within the
  cluster would contract: S decays at twice the rate of `contraction`. The cluster itself moves by
  $(1 + \beta |B|) S$ at once;
- the distance of the token that comes to the tolerance from its cluster;
- with a causal mask, the lag of the later tokens of a cluster, which see more than the first token. The lag D is the
  difference of velocities over the contraction rate, and changes pulls on later clusters by at most the fraction
  $2 (1 + \beta |B|) D$.

**Reference.** Hairer, Norsett, Wanner, *Solving Ordinary Differential Equations I*, sections I.14 and II.8: adjoint
equations, and the propagation of local errors to global errors.

**Invariants.** The bound is twice the sum of the absolute effects; no signs are used. The bound is of first order:
where it is not small against 1, it is only a warning. Gradients are of the logarithms of times, and times are in the
clocks of legs, so that nothing overflows. An undefined bound is infinite, not NaN, which compares false to all numbers.
"""

from collections.abc import Sequence

import numpy as np

from .adjoint import backwards, relative
from .clouds import Cloud, drifts, partings
from .forward import tiled_errors
from .law import Law, pulling
from .run import Leg, Run
from .steps import between, slope
from .touches import Merger


_EPS = float(np.finfo(float).eps)


def relative_errors(run: Run) -> np.ndarray:
    """A bound of the relative error of the time of each merger."""
    # Only the first legs are by tiles.
    tiled = sum(leg.cloud.attended.tiled for leg in run.legs)
    legs = run.legs[tiled:]
    beginning = legs[0].cloud if legs else run.last
    many = [merger for merger in run.mergers if merger.index < tiled]
    late, moved = tiled_errors(run.law, run.legs[:tiled], beginning, many)
    displacements, radii = _displacements(run.law, legs, beginning)
    waiting = list(range(len(many), len(run.mergers)))
    active: list[int] = []
    gradients = np.zeros((0, *run.last.y.shape))
    times = np.array([merger.time for merger in run.mergers])
    total = np.append(late / np.where(times[: len(many)] > 0, times[: len(many)], 1), np.zeros(len(waiting)))
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
    found = np.zeros_like(y)
    # The gradient of half of the squared distance, projected onto the tangent space.
    found[a], found[b] = y[a] - y[b], y[b] - y[a]
    found -= np.sum(found * y, axis=1, keepdims=True) * y
    flow, times = slope(law, y, leg.cloud.attended, leg.clock), np.array([merger.time])
    found *= -flow[-1] * relative(leg, times) / np.sum(found * flow[:-1].reshape(y.shape))
    return backwards(law, leg, found[None], times, merger.share)[0], np.sqrt(np.sum(np.square(found), axis=1))


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
        found = np.zeros((len(gradients), *cloud.y.shape))
        np.add.at(np.moveaxis(found, 1, 0), rows, np.moveaxis(gradients, 1, 0))
        return found
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
    found, radii = [], []
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
        unit = min(each for _, each in pulls)
        w = np.maximum(*(kernel * np.exp(unit - each) for kernel, each in pulls))
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
        found.append(moved + leg.error[:-1] + 4 * _EPS)
    return found, radii


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
