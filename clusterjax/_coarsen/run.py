r"""The run: steps along the orbit, moments when clusters come to the tolerance, and clusters that become one.

More than 4,096 tokens are followed by tiles first: distances of all pairs are never held, steps are taken in time and
to a smaller accuracy, and tokens become one with the first that is near. Once clusters are few, all is as with few
tokens.

**Invariants.** Every step is of one cloud. Merger times do not decrease.
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


# What velocities of clusters at rest are below, in units of rounding: exact pulls cancel to a few of them.
_REST, _REST_ROUNDED = 32, 100


# A time below this is not held to the precision of float64.
_LEAST_TIME = float(np.finfo(float).tiny)


class TooEarly(Exception):
    """Tokens merge before any time above zero that float64 holds."""


class Leg(NamedTuple):
    """What is kept of a step: enough to do it again.

    - `t`, `span`, `clock`: When it begins, how long it lasts by its clock, and the logarithm of the unit of this.
    - `error`: The sizes of the errors of each cluster and, last, of the time by its clock, (m + 1,).
    - `defect`: By tiles, the errors of clusters with their directions, (m, d).
    - `implicit`: Whether it was a step in time by the implicit method.
    - `within`: By tiles, the sizes of their errors within the step, (m,), where a merger may be in it.
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
        """When it ends; infinite beyond what float64 holds."""
        return self.t + lasting(self.span, self.clock)

    def again(self, law: Law) -> Step:
        """The step with its stages."""
        if self.implicit:
            attended, y = self.cloud.attended, self.y0
            linear = Linear.at(law, y, attended)
            return implicit_step(law, attended, y, self.t, self.span, moves(law, y, attended), linear)
        attended = self.cloud.attended
        first = slope(law, self.y0, attended, self.clock)
        return step(law, attended, self.y0, self.t, self.length, first, self.clock)


class Run(NamedTuple):
    """A run to `t_end`, or until clusters rest: its legs, its mergers, and the last cloud."""

    law: Law
    legs: list[Leg]
    mergers: list[Merger]
    last: Cloud
    t_end: float
    tolerance: float
    inner: float
    cloud: Cloud  # the first one


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
    """The clusters of x0 followed to `t_end`; those within `inner` become one, and by tiles those within `wide`.

    `log` is told of each step by tiles.
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
        # Tokens at one point, of which any rate will do, and then all others.
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
        # Not by their number: as many may be let go as became one.
        if cloud.cluster is not moved.cluster:
            now = moves(law, cloud.y, cloud.attended)
            if not cloud.attended.tiled:
                apart = distances(cloud.y)
                if moved.attended.tiled:
                    # From a time to a length of the path.
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
    # Pulls that cancel leave their rounding: who follows it would follow noise.
    return bool(np.all(np.max(np.abs(now.velocity), axis=1) <= least * now.pull))


def _reach(y: np.ndarray, slopes: np.ndarray, apart: np.ndarray, component: np.ndarray) -> float:
    """The longest step: no two of different components come nearer than to a fifth of their distance, going straight.

    Within a component nothing is waited for: causal tokens pass each other there at any distance, which is no reason
    for a short step.
    """
    squares, products = np.square(apart), np.sum(y * slopes, axis=1)
    # <y_a - y_b, g_a - g_b>, where <y_a, g_a> = 0 but for rounding.
    rate = products[:, None] + products[None, :] - y @ slopes.T - slopes @ y.T
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        ahead = np.where((rate < 0) & (component[:, None] != component[None, :]), -squares / rate, np.inf)
    return 0.8 * float(np.min(ahead))
