r"""The run of `coarsen`: steps along the orbit, detection of mergers, and joining of clusters.

More than 4,096 tokens are followed by tiles first: distances of all pairs are never stored, steps are in time with a
larger tolerance, and a token joins the first token nearby. Once clusters are few, the run continues as for few tokens.

**Invariants.** The set of clusters is constant within a step. Merger times do not decrease.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .clouds import Cloud, distances, gathered, merged, released, start
from .implicit import Linear, implicit_step
from .law import Law, Moves, moves
from .pace import Pace, Stalled as Stalled, advance
from .steps import Between, Step, between, lasting, slope, slope_of, step
from .tiles import precision
from .touches import Components, Merger


# Clusters rest at velocities of at most so many rounding errors; exact pulls cancel to a few rounding errors.
_REST, _REST_ROUNDED = 32, 100


# Times below this are subnormal, and not held to the precision of float64.
_LEAST_TIME = float(np.finfo(float).tiny)


class TooEarly(Exception):
    """Tokens merge before any time above zero that float64 holds."""


class Leg(NamedTuple):
    """The record of a step, sufficient to repeat it.

    - `t`, `span`, `clock`: The time of the beginning, the duration by the clock, and the logarithm of its unit.
    - `error`: The norms of the errors of each cluster and, last, the error of the time by the clock, (m + 1,).
    - `defect`: By tiles, the errors of clusters with their directions, (m, d).
    - `implicit`: True for a step in time by the implicit method.
    - `within`: By tiles, the norms of the errors within the step, (m,), zero unless a merger may occur in the step.
    """

    cloud: Cloud
    y0: np.ndarray
    y1: np.ndarray
    t: float
    span: float
    length: float
    error: np.ndarray
    defect: np.ndarray | None = None
    within: np.ndarray | None = None
    implicit: bool = False
    clock: float = 0.0

    @property
    def end(self) -> float:
        """The time of the end of the step; infinite beyond the range of float64."""
        return self.t + lasting(self.span, self.clock)

    def again(self, law: Law) -> Step:
        """Repeat the step, with its stages."""
        if self.implicit:
            attended, y = self.cloud.attended, self.y0
            linear = Linear.at(law, y, attended)
            return implicit_step(law, attended, y, self.t, self.span, moves(law, y, attended), linear)
        attended = self.cloud.attended
        first = slope(law, self.y0, attended, self.clock)
        return step(law, attended, self.y0, self.t, self.length, first, self.clock)


class Run(NamedTuple):
    """A run to `t_end`, or until clusters rest: its legs, mergers, first cloud `cloud` and last cloud `last`."""

    law: Law
    legs: list[Leg]
    mergers: list[Merger]
    last: Cloud
    t_end: float
    tolerance: float
    inner: float
    cloud: Cloud


def run(
    law: Law,
    x0: np.ndarray,
    masses: np.ndarray,
    t_end: float,
    tolerance: float,
    inner: float,
    max_steps: int,
    wide: float | None = None,
    log: Callable[[str], None] | None = None,
) -> Run:
    """Follow the clusters of x0 to `t_end`; clusters within `inner`, or by tiles within `wide`, are joined.

    `log` receives a line after each step by tiles.
    """
    wide = inner if wide is None else wide
    cloud = start(law, x0, masses)
    apart = None if cloud.attended.tiled else distances(cloud.y)
    components = Components(np.arange(len(x0)), [])
    components.at_start(cloud, tolerance, apart)
    if apart is not None:
        cloud = merged(law, cloud, apart, inner)
    else:
        now = moves(law, cloud.y, cloud.attended)
        # Tokens at one point are joined first, whatever their rates, and then all others.
        cloud = gathered(law, cloud, now._replace(rates=np.full(len(cloud.y), -np.inf)), 0.0)
        if cloud.attended.tiled:
            cloud = gathered(law, cloud, moves(law, cloud.y, cloud.attended), wide)
    first = cloud
    apart = None if cloud.attended.tiled else distances(cloud.y)
    legs: list[Leg] = []
    t, tried, pace, known = 0.0, 0, Pace.at_start(cloud), len(components.mergers)
    now = moves(law, cloud.y, cloud.attended)
    while t < t_end and not _rests(law, now, cloud):
        slopes, reach = slope_of(now, cloud.attended), np.inf
        if apart is not None:
            of = components.roots[cloud.first]
            reach = _reach(cloud.y, slopes[:-1].reshape(cloud.y.shape), apart, of)
        done, pace, tries = advance(law, cloud, t, now, slopes, reach, pace, max_steps - tried)
        tried += tries
        if cloud.attended.tiled:
            inside = between(law, cloud.attended, done) if components.may_join(cloud, done, tolerance) else None
            legs.append(_leg(cloud, done, inside))
            if inside is not None:
                components.in_long_step(cloud, inside, tolerance, len(legs) - 1)
        else:
            legs.append(_leg(cloud, done))
            apart = distances(done.y1)
            components.in_step(law, cloud, done, apart, tolerance, len(legs) - 1)
        t = legs[-1].end
        if any(merger.share > 0 and merger.time < _LEAST_TIME for merger in components.mergers[known:]):
            raise TooEarly
        known = len(components.mergers)
        moved = cloud._replace(y=done.y1)
        if apart is None:
            cloud = gathered(law, moved, done.last, wide)
            if log is not None:
                log(
                    f"t = {t:.4g}, step {len(legs)}: {len(cloud.first):,} clusters, {len(components.mergers):,} mergers"
                )
        else:
            cloud = released(law, merged(law, moved, apart, inner), inner)
        now = done.last
        # The number of clusters may stay equal if as many are released as are merged.
        if cloud.cluster is not moved.cluster:
            now = moves(law, cloud.y, cloud.attended)
            if not cloud.attended.tiled:
                apart = distances(cloud.y)
                if moved.attended.tiled:
                    # The step variable changes from time to the length of the path.
                    pace = pace.along_orbit(now)
    kept = [merger for merger in components.mergers if merger.time <= t_end]
    return Run(law, legs, kept, cloud, t_end, tolerance, inner, first)


def _leg(cloud: Cloud, done: Step, inside: Between | None = None) -> Leg:
    defect = done.error[:-1].reshape(cloud.y.shape)
    error = np.append(np.linalg.norm(defect, axis=1), abs(done.error[-1]))
    leg = Leg(
        cloud, cloud.y, done.y1, done.t, done.span, done.length, error, implicit=done.inner is not None,
        clock=done.clock,
    )  # fmt: skip
    if not cloud.attended.tiled:
        return leg
    within = np.zeros(len(defect)) if inside is None else inside.last_term()
    return leg._replace(defect=defect.astype(np.float32), within=within)


def _rests(law: Law, now: Moves, cloud: Cloud) -> bool:
    eps = np.finfo(precision(law.beta) if cloud.attended.tiled else float).eps
    least = (_REST if law.value is None else _REST_ROUNDED) * eps
    # Pulls that cancel leave a velocity of rounding errors, which must not be followed.
    return bool(np.all(np.max(np.abs(now.velocity), axis=1) <= least * now.pull))


def _reach(y: np.ndarray, slopes: np.ndarray, apart: np.ndarray, component: np.ndarray) -> float:
    """The longest step for which straight paths keep different components at a fifth of their distances or more.

    Pairs within a component do not limit the step, since causal tokens pass each other there at any distance.
    """
    squares, products = np.square(apart), np.sum(y * slopes, axis=1)
    # The product <y_a - y_b, g_a - g_b>, where <y_a, g_a> is zero up to rounding.
    rate = products[:, None] + products[None, :] - y @ slopes.T - slopes @ y.T
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        ahead = np.where((rate < 0) & (component[:, None] != component[None, :]), -squares / rate, np.inf)
    return 0.8 * float(np.min(ahead))
