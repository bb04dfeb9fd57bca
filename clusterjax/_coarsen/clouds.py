r"""A cloud of clusters: tokens that met are one, with their masses added.

**Invariants.** A cluster bears the index of its first token, and sees what that token sees: all masses, or, causal,
those of earlier tokens. Clusters that meet do so where their pulls on each other balance, at the mean by masses, or,
causal, where the earlier one is, which does not see the other. Tokens become one only where what is between them
contracts, and, causal, faster than the later are pulled away, for they see more; where that is over, as when two
clusters collapse, they are let go until it holds again.
"""

from typing import NamedTuple

import numpy as np

from .derivatives import contraction
from .law import AttendedMasses, Law, Moves, in_one_unit, weights
from .tiles import leaders


# How far later tokens of a causal cluster may lie from its first, in the balance of drift and contraction, when they
# become one with it and before they are let go, in units of the distance at which tokens become one.
_HELD, _LOOSE = 1 / 3, 3.0
# More tokens than this are followed by tiles until there are so few clusters that all pairs are held.
MOST_HELD, FEW = 4096, 1024


class Cloud(NamedTuple):
    """Clusters, in the order of their first tokens.

    - `y`: Unit vectors (m, d).
    - `attended`: The masses of clusters that each cluster sees.
    - `first`: The first token of each cluster, (m,), increasing.
    - `cluster`: The cluster of each token, (n,).
    - `spread`, `radius`: Of each cluster, the mean square distance of its masses from y, and the largest distance of
        its tokens, where it was formed last. The error bound is made of them.
    - `masses`: Of the tokens, (n,).
    """

    y: np.ndarray
    attended: AttendedMasses
    first: np.ndarray
    cluster: np.ndarray
    spread: np.ndarray
    radius: np.ndarray
    masses: np.ndarray

    @property
    def sums(self) -> np.ndarray:
        """The masses of the clusters, (m,)."""
        return np.bincount(self.cluster, self.masses, len(self.first))

    def seen_by(self, law: Law, tokens: np.ndarray) -> np.ndarray:
        """The masses of clusters that each of `tokens` sees, (k, m)."""
        return _seen(law, self.masses, self.cluster, len(self.first), tokens)


def _seen(law: Law, masses: np.ndarray, cluster: np.ndarray, m: int, tokens: np.ndarray) -> np.ndarray:
    if not law.causal:
        return np.broadcast_to(np.bincount(cluster, masses, m), (len(tokens), m))
    # What a token sees is what its predecessors are.
    belongs = cluster[:, None] == np.arange(m)
    return np.cumsum(np.where(belongs, masses[:, None], 0.0), axis=0)[tokens]


def start(law: Law, x0: np.ndarray, masses: np.ndarray) -> Cloud:
    """Each token a cluster of its own."""
    n = len(x0)
    index = np.arange(n)
    y = x0 / np.linalg.norm(x0, axis=1, keepdims=True)
    attended = AttendedMasses.of(law, _seen(law, masses, index, n, index), n > MOST_HELD)
    return Cloud(y, attended, index, index, np.zeros(n), np.zeros(n), masses)


def distances(y: np.ndarray) -> np.ndarray:
    """All chordal distances, (m, m); zero on the diagonal, and exactly where two rows are equal."""
    # Row by row: the square of a small distance is not a difference of products.
    squares = np.zeros((len(y), len(y)))
    for k in range(y.shape[1]):
        squares += np.square(y[:, None, k] - y[None, :, k])
    return np.sqrt(squares)


def merged(law: Law, cloud: Cloud, apart: np.ndarray, radius: float) -> Cloud:
    """The cloud with those clusters made one that chains of steps of at most `radius` join, and that contract."""
    first = cloud.first
    for group in _components(apart <= radius):
        # Rows move when a group is made one: clusters are found by their first tokens.
        members = np.searchsorted(cloud.first, first[group])
        cloud = _joined(law, cloud, members, radius) or cloud
    return cloud


def gathered(law: Law, cloud: Cloud, now: Moves, radius: float) -> Cloud:
    """The cloud, by tiles, with those clusters made one that are within `radius` of the first of them.

    Of clusters about which tokens come together, by their rates. All pairs are held once clusters are few.
    """
    rates = now.rates
    assert rates is not None
    m = len(cloud.first)
    lead, meet = np.arange(m), np.flatnonzero(rates < 0)
    lead[meet] = meet[leaders(cloud.y[meet], radius)]
    kept, place = np.unique(lead, return_inverse=True)
    if len(kept) == m:
        return cloud
    sums = cloud.sums
    whole = np.bincount(place, sums)
    shares = sums / whole[place]
    # Differences from the first: equal rows give that row exactly.
    moved = [np.bincount(place, shares * column) for column in (cloud.y - cloud.y[lead]).T]
    points = cloud.y[kept] + np.stack(moved, axis=1)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    gaps = np.linalg.norm(cloud.y - points[place], axis=1)
    width = np.zeros(len(kept))
    np.maximum.at(width, place, cloud.radius + gaps)
    attended = AttendedMasses.of(law, np.broadcast_to(whole, (len(kept), len(kept))), len(kept) > FEW)
    spread = np.bincount(place, shares * (cloud.spread + gaps**2))
    return Cloud(points, attended, cloud.first[kept], place[cloud.cluster], spread, width, cloud.masses)


def _components(near: np.ndarray) -> list[np.ndarray]:
    """The connected components of more than one, as lists of rows."""
    m = len(near)
    left, found = np.ones(m, bool), []
    np.fill_diagonal(near, False)
    left &= near.any(axis=1)
    while left.any():
        member = np.zeros(m, bool)
        member[np.flatnonzero(left)[0]] = True
        while True:
            grown = member | near[member].any(axis=0)
            if grown.sum() == member.sum():
                break
            member = grown
        left &= ~member
        found.append(np.flatnonzero(member))
    return found


def _joined(law: Law, cloud: Cloud, members: np.ndarray, reach: float) -> Cloud | None:
    """The cloud with `members` one cluster; None if they would part again."""
    sums = cloud.sums[members]
    y = cloud.y[members]
    shares = sums / sums.sum() if sums.sum() > 0 else np.full(len(members), 1 / len(members))
    point = y[0]
    if not law.causal:
        # Differences from one of them: equal rows give that row exactly.
        point = point + shares @ (y - point)
        point = point / np.linalg.norm(point)
    gaps = np.linalg.norm(y - point, axis=1)
    kept = np.delete(np.arange(len(cloud.first)), members[1:])
    place = np.zeros(len(cloud.first), int)
    place[kept] = np.arange(len(kept))
    place[members] = place[members[0]]
    at = int(place[members[0]])
    points, spread, radius = cloud.y[kept].copy(), cloud.spread[kept].copy(), cloud.radius[kept].copy()
    points[at] = point
    spread[at] = shares @ (cloud.spread[members] + gaps**2)
    radius[at] = np.max(cloud.radius[members] + gaps)
    cluster = place[cloud.cluster]
    first = cloud.first[kept]
    seen = _seen(law, cloud.masses, cluster, len(first), first)
    new = Cloud(points, AttendedMasses.of(law, seen), first, cluster, spread, radius, cloud.masses)
    if law.causal:
        return new if lag(law, new, at) <= _HELD * reach else None
    # Tokens at one point that see the same go the same way for ever, whether or not they would come back.
    return new if not gaps.any() or np.all(_parting(law, new, at)[0] < 0) else None


def released(law: Law, cloud: Cloud, radius: float) -> Cloud:
    """The cloud with those causal clusters let go, token by token, that are about to be pulled apart."""
    if not law.causal:
        return cloud
    crowds = np.flatnonzero(np.bincount(cloud.cluster) > 1)
    loose = [at for at in crowds if lag(law, cloud, int(at)) > _LOOSE * radius]
    if not loose:
        return cloud
    free = np.isin(cloud.cluster, loose)
    index = np.arange(len(cloud.cluster))
    first, cluster = np.unique(np.where(free, index, cloud.first[cloud.cluster]), return_inverse=True)
    rows = cloud.cluster[first]
    kept = ~free[first]
    seen = _seen(law, cloud.masses, cluster, len(first), first)
    spread, width = np.where(kept, cloud.spread[rows], 0), np.where(kept, cloud.radius[rows], 0)
    return Cloud(cloud.y[rows], AttendedMasses.of(law, seen), first, cluster, spread, width, cloud.masses)


def lag(law: Law, cloud: Cloud, at: int) -> float:
    """How far the tokens of a causal cluster come to lie from its first; infinite if they do not contract."""
    rates, unit = in_one_unit(*_parting(law, cloud, at))
    rate, (drift, other) = float(np.max(rates)), _drift(law, cloud, at)
    if not rate < 0:
        return np.inf
    return drift / -rate * float(np.exp(unit - other)) if drift > 0 else 0.0


def drifts(law: Law, cloud: Cloud) -> tuple[np.ndarray, np.ndarray]:
    """The largest difference of velocities of later tokens of each causal cluster from that of its first, (m,), and the
    logarithms of their units of time, (m,)."""
    found = np.zeros((2, len(cloud.y)))
    for at in np.flatnonzero(np.bincount(cloud.cluster) > 1):
        found[:, at] = _drift(law, cloud, int(at))
    return found[0], found[1]


def _drift(law: Law, cloud: Cloud, at: int) -> tuple[float, float]:
    tokens, y = np.flatnonzero(cloud.cluster == at), cloud.y
    places, idle = np.broadcast_to(y[at], (len(tokens), y.shape[1])), np.full(len(tokens), at)
    w, unit = in_one_unit(*weights(law, y, cloud.seen_by(law, tokens), places, idle if law.value is None else None))
    if law.value is None:
        w[:, at] = 0
        drift = law.factor * (w @ (y - (y @ y[at])[:, None] * y[at]))
    else:
        pulled = (w @ y) @ law.value.T
        drift = pulled - np.outer(pulled @ y[at], y[at])
    return float(np.max(np.linalg.norm(drift - drift[0], axis=1))), unit


def _parting(law: Law, cloud: Cloud, at: int) -> tuple[np.ndarray, np.ndarray]:
    """The rates at which the tokens of cluster `at` part from its first, and the logarithms of their units of time;
    negative where they come together."""
    if not law.causal:
        return contraction(law, cloud.y, np.array([at]), cloud.attended.seen[at : at + 1], np.zeros(1))
    return _parting_of(law, cloud, np.flatnonzero(cloud.cluster == at)[1:])


def _parting_of(law: Law, cloud: Cloud, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return contraction(law, cloud.y, cloud.cluster[tokens], cloud.seen_by(law, tokens), cloud.masses[tokens])


def partings(law: Law, cloud: Cloud) -> tuple[np.ndarray, np.ndarray]:
    """The largest of the rates at which tokens of each cluster part, and 0 of those of one token, (m,), and the
    logarithms of their units of time, (m,)."""
    found, units = np.zeros(len(cloud.first)), np.zeros(len(cloud.first))
    crowds = np.flatnonzero(np.bincount(cloud.cluster) > 1)
    if not len(crowds):
        return found, units
    if not law.causal:
        seen = cloud.attended.seen[crowds]
        found[crowds], units[crowds] = contraction(law, cloud.y, crowds, seen, np.zeros(len(crowds)))
        return found, units
    tokens = np.setdiff1d(np.arange(len(cloud.cluster)), cloud.first)
    of, (rates, each) = cloud.cluster[tokens], _parting_of(law, cloud, tokens)
    found[crowds], units[crowds] = -np.inf, np.inf
    np.minimum.at(units, of, each)
    np.maximum.at(found, of, rates * np.exp(units[of] - each))
    return found, units
