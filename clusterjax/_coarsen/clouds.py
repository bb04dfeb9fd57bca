r"""A cloud of clusters: tokens that met are one cluster with the sum of their masses.

**Invariants.** The label of a cluster is the index of its first token. A cluster sees the masses that its first token
sees: all masses or, with a causal mask, the masses of earlier tokens. Clusters are joined where their pulls on each
other balance: at the mean by masses or, with a causal mask, at the earlier cluster, which does not see the later one.
Tokens are joined only where the cluster contracts. With a causal mask, contraction must also exceed the drift of the
later tokens, which see more. When this no longer holds, as when two clusters collapse, the tokens are released.
"""

from typing import NamedTuple

import numpy as np

from .velocity import AttendedMasses, Law, Moves, contraction, in_one_unit, leaders, weights


# The distance (`lag`) at which drift and contraction of a causal cluster balance, in units of the distance at which
# tokens are joined: a cluster is joined at most up to `_HELD`, and released beyond `_LOOSE`.
_HELD, _LOOSE = 1 / 3, 3.0
# More than `MOST_HELD` tokens are followed by tiles until `FEW` clusters are left, for which all pairs are stored.
MOST_HELD, FEW = 4096, 1024


class Cloud(NamedTuple):
    """Clusters, in the order of their first tokens.

    - `y`: Unit vectors (m, d).
    - `attended`: The masses of clusters that each cluster sees.
    - `first`: The first token of each cluster, (m,), increasing.
    - `cluster`: The cluster of each token, (n,).
    - `spread`, `radius`: For each cluster, the mean squared distance of its masses from y and the largest distance of
        its tokens, when the cluster was last formed. The error bound depends on both.
    - `masses`: The masses of the tokens, (n,).
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
    # A token sees the masses of its predecessors and its own mass.
    belongs = cluster[:, None] == np.arange(m)
    return np.cumsum(np.where(belongs, masses[:, None], 0.0), axis=0)[tokens]


def start(law: Law, x0: np.ndarray, masses: np.ndarray) -> Cloud:
    """The cloud in which each token is a cluster."""
    n = len(x0)
    index = np.arange(n)
    y = x0 / np.linalg.norm(x0, axis=1, keepdims=True)
    attended = AttendedMasses.of(law, _seen(law, masses, index, n, index), n > MOST_HELD)
    return Cloud(y, attended, index, index, np.zeros(n), np.zeros(n), masses)


def distances(y: np.ndarray) -> np.ndarray:
    """All chordal distances, (m, m); exactly zero where two rows are equal."""
    # Differences are taken by components: a difference of products would lose the digits of a small distance.
    squares = np.zeros((len(y), len(y)))
    for k in range(y.shape[1]):
        squares += np.square(y[:, None, k] - y[None, :, k])
    return np.sqrt(squares)


def merged(law: Law, cloud: Cloud, apart: np.ndarray, radius: float) -> Cloud:
    """Join each group of clusters that contracts and is connected by distances of at most `radius`."""
    first = cloud.first
    for group in _components(apart <= radius):
        # Joining a group renumbers the rows: clusters are identified by their first tokens.
        members = np.searchsorted(cloud.first, first[group])
        cloud = _joined(law, cloud, members, radius) or cloud
    return cloud


def gathered(law: Law, cloud: Cloud, now: Moves, radius: float) -> Cloud:
    """The cloud, by tiles, after each cluster within `radius` of a leading cluster has joined the leader.

    Only clusters with negative rates, where tokens contract, are joined. All pairs are stored once clusters are few.
    """
    rates = now.rates
    assert rates is not None
    m = len(cloud.first)
    lead, meet = np.arange(m), np.flatnonzero(rates < 0)
    lead[meet] = meet[leaders(cloud.y[meet], radius)]
    leading, place = np.unique(lead, return_inverse=True)
    if len(leading) == m:
        return cloud
    sums = cloud.sums
    whole = np.bincount(place, sums)
    shares = sums / whole[place]
    # The mean is taken of differences from the leader, so that equal rows give exactly that row.
    moved = [np.bincount(place, shares * column) for column in (cloud.y - cloud.y[lead]).T]
    points = cloud.y[leading] + np.stack(moved, axis=1)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    gaps = np.linalg.norm(cloud.y - points[place], axis=1)
    width = np.zeros(len(leading))
    np.maximum.at(width, place, cloud.radius + gaps)
    attended = AttendedMasses.of(law, np.broadcast_to(whole, (len(leading), len(leading))), len(leading) > FEW)
    spread = np.bincount(place, shares * (cloud.spread + gaps**2))
    return Cloud(points, attended, cloud.first[leading], place[cloud.cluster], spread, width, cloud.masses)


def _components(near: np.ndarray) -> list[np.ndarray]:
    """The rows of each connected component with two or more members, in the order of first members."""
    from scipy.sparse import csr_array  # imported only when needed
    from scipy.sparse.csgraph import connected_components

    np.fill_diagonal(near, False)
    if not near.any():
        return []
    labels = connected_components(csr_array(near), directed=False)[1]
    rows = np.argsort(labels, kind="stable")
    components = np.split(rows, np.flatnonzero(np.diff(labels[rows])) + 1)
    return [component for component in components if len(component) > 1]


def _joined(law: Law, cloud: Cloud, members: np.ndarray, reach: float) -> Cloud | None:
    """The cloud with `members` joined to one cluster; None if they would part again."""
    sums = cloud.sums[members]
    y = cloud.y[members]
    shares = sums / sums.sum() if sums.sum() > 0 else np.full(len(members), 1 / len(members))
    point = y[0]
    if not law.causal:
        # The mean is taken of differences from one member, so that equal rows give exactly that row.
        point = point + shares @ (y - point)
        point = point / np.linalg.norm(point)
    gaps = np.linalg.norm(y - point, axis=1)
    remaining = np.delete(np.arange(len(cloud.first)), members[1:])
    place = np.zeros(len(cloud.first), int)
    place[remaining] = np.arange(len(remaining))
    place[members] = place[members[0]]
    at = int(place[members[0]])
    points, spread, radius = cloud.y[remaining].copy(), cloud.spread[remaining].copy(), cloud.radius[remaining].copy()
    points[at] = point
    spread[at] = shares @ (cloud.spread[members] + gaps**2)
    radius[at] = np.max(cloud.radius[members] + gaps)
    cluster = place[cloud.cluster]
    first = cloud.first[remaining]
    masses_seen = _seen(law, cloud.masses, cluster, len(first), first)
    new = Cloud(points, AttendedMasses.of(law, masses_seen), first, cluster, spread, radius, cloud.masses)
    if law.causal:
        return new if lag(law, new, at) <= _HELD * reach else None
    # Equal tokens that see equal masses move equally for ever, even without contraction.
    return new if not gaps.any() or np.all(_parting(law, new, at)[0] < 0) else None


def released(law: Law, cloud: Cloud, radius: float) -> Cloud:
    """Release the tokens of causal clusters that are about to separate."""
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
    unreleased = ~free[first]
    masses_seen = _seen(law, cloud.masses, cluster, len(first), first)
    spread, width = np.where(unreleased, cloud.spread[rows], 0), np.where(unreleased, cloud.radius[rows], 0)
    return Cloud(cloud.y[rows], AttendedMasses.of(law, masses_seen), first, cluster, spread, width, cloud.masses)


def lag(law: Law, cloud: Cloud, at: int) -> float:
    """The distance from the first token at which drift and contraction of a causal cluster balance, or infinity."""
    rates, unit = in_one_unit(*_parting(law, cloud, at))
    rate, (drift, other) = float(np.max(rates)), _drift(law, cloud, at)
    if not rate < 0:
        return np.inf
    return drift / -rate * float(np.exp(unit - other)) if drift > 0 else 0.0


def drifts(law: Law, cloud: Cloud) -> tuple[np.ndarray, np.ndarray]:
    """For each causal cluster, the largest difference of the velocity of a later token from the first token's, (m,),
    and the logarithms of the units of time, (m,)."""
    speeds_and_units = np.zeros((2, len(cloud.y)))
    for at in np.flatnonzero(np.bincount(cloud.cluster) > 1):
        speeds_and_units[:, at] = _drift(law, cloud, int(at))
    return speeds_and_units[0], speeds_and_units[1]


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
    """The rates at which the tokens of cluster `at` part from its first, negative for contraction, and the logarithms
    of their units of time."""
    if not law.causal:
        return contraction(law, cloud.y, np.array([at]), cloud.attended.seen[at : at + 1], np.zeros(1))
    return _parting_of(law, cloud, np.flatnonzero(cloud.cluster == at)[1:])


def _parting_of(law: Law, cloud: Cloud, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return contraction(law, cloud.y, cloud.cluster[tokens], cloud.seen_by(law, tokens), cloud.masses[tokens])


def partings(law: Law, cloud: Cloud) -> tuple[np.ndarray, np.ndarray]:
    """The largest rates at which the tokens of each cluster part, (m,), 0 for single tokens, and the logarithms of
    their units of time, (m,)."""
    largest, units = np.zeros(len(cloud.first)), np.zeros(len(cloud.first))
    crowds = np.flatnonzero(np.bincount(cloud.cluster) > 1)
    if not len(crowds):
        return largest, units
    if not law.causal:
        masses_seen = cloud.attended.seen[crowds]
        largest[crowds], units[crowds] = contraction(law, cloud.y, crowds, masses_seen, np.zeros(len(crowds)))
        return largest, units
    tokens = np.setdiff1d(np.arange(len(cloud.cluster)), cloud.first)
    clusters, (rates, log_times) = cloud.cluster[tokens], _parting_of(law, cloud, tokens)
    largest[crowds], units[crowds] = -np.inf, np.inf
    np.minimum.at(units, clusters, log_times)
    np.maximum.at(largest, clusters, rates * np.exp(units[clusters] - log_times))
    return largest, units
