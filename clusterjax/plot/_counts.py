"""How many tokens lie on one spot: what a marker hides when all tokens meet, as a number beside it.

Groups are the connected components of tokens nearer than a link length (single linkage), found by a k-d tree in O(n log
n), and kept only if they are compact and stand alone: a number beside a loose crowd would not say which tokens it
counts. Places for the numbers are chosen one after the other, each the direction with most room. Nothing here depends
on an Axes: units are those of the tokens, whose circle or sphere has radius 1.
"""

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import KDTree


COMPACT = 0.12  # a wider group is seen to be many tokens, and a number would not say which of those it means
TIGHT = 0.03  # a group narrower than this is one marker on paper
MOST_TOKENS = 2048  # more than these are a cloud


class Group(NamedTuple):
    """Tokens on one spot: which, the mean of them, (d,), and how far from it they go."""

    members: np.ndarray
    centre: np.ndarray
    radius: float

    def growth(self) -> float:
        """How much wider a marker of the group is: 2.3 times for 64 tokens in one point, less where they are seen."""
        # Area grows as the count to the power 0.4: markers of 2 and of 64 tokens can both be drawn. The exponent falls
        # to 0 where the members are seen one by one.
        return float(len(self.members)) ** (0.2 * max(0.0, 1.0 - self.radius / TIGHT))


def groups(x: np.ndarray, least: int | None) -> list[Group]:
    """The groups of at least `least` tokens (n, d) that touch in a chain on one spot and stand alone, biggest first.

    Two tokens touch that are nearer than a quarter of the distance of evenly spread neighbours, and than 0.1. A group
    stands alone if three times as far out there are fewer than a fifth as many others. So what is spread at random has
    hardly any group, and a cluster is none while it is still gathering.
    """
    n, d = x.shape
    if least is None or n < least or n > MOST_TOKENS:
        return []
    # The distance of neighbours that are spread evenly: on the circle 2 pi / n, on the sphere the root of the area for
    # each, 4 pi / n.
    link = min(0.1, 0.25 * (2 * np.pi / n if d == 2 else np.sqrt(4 * np.pi / n)))
    tree = KDTree(x)
    # Pairs once each, (pairs, 2); the graph is taken as undirected.
    i, j = tree.query_pairs(link, output_type="ndarray").T
    _, label = connected_components(csr_array((np.ones(len(i)), (i, j)), shape=(n, n)), directed=False)
    on_one_spot = []
    for k in np.flatnonzero(np.bincount(label) >= least):
        members = np.flatnonzero(label == k)
        centre = x[members].mean(axis=0)
        radius = float(np.linalg.norm(x[members] - centre, axis=1).max())
        if radius <= COMPACT:
            # Half a link more: a neighbour within a link of the border would belong to the group.
            others = len(tree.query_ball_point(centre, 3 * radius + link / 2)) - len(members)
            if others < 0.2 * len(members):
                on_one_spot.append(Group(members, centre, radius))
    return sorted(on_one_spot, key=lambda group: -len(group.members))


def spread_angles(angles: np.ndarray, least_gap: float) -> np.ndarray:
    """Angles pushed apart, as little as a few sweeps find, until neighbours on the circle are `least_gap` apart."""
    angles = np.array(angles, dtype=np.float64)
    # Where all cannot have the gap nothing is gained by pushing.
    if len(angles) < 2 or least_gap * len(angles) > 2 * np.pi:
        return angles
    for _ in range(50):
        order = np.argsort(angles)
        # The first angle again, a turn later: the gap across zero counts too.
        wrapped = np.append(angles[order], angles[order[0]] + 2 * np.pi)
        short = np.maximum(0.0, least_gap - np.diff(wrapped))
        if short.max() < 1e-6:
            break
        # Each short gap pushes both of its ends apart by half of what it lacks; shifts of neighbours add up.
        angles[order] += 0.5 * (np.roll(short, 1) - short)
    return angles


def clear_places(spots: np.ndarray, first: np.ndarray, margin: np.ndarray, avoid: np.ndarray, top: float) -> np.ndarray:
    """For each spot (k, 2) a direction, at first the one given, turned until a word there is clear of other things.

    A word is `margin` (k,) and half its own width away from its spot; the other things are the other spots, the words
    placed before, and the points `avoid` (m, 2), which are small. No word goes above `top` or below its negative,
    where titles and legends are.
    """
    # The direction that is asked for first, then those nearest to it, so that ties keep it.
    turns = np.radians([0, 45, -45, 90, -90, 135, -135, 180])
    chosen, taken = [], np.empty((0, 2))
    for k, (spot, way) in enumerate(zip(spots, first, strict=True)):
        angles = np.arctan2(way[1], way[0]) + turns
        ways = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        # Half the width of a word such as "×64".
        words = spot + (margin[k] + 0.12) * ways
        large = np.concatenate([np.delete(spots, k, axis=0), taken])
        # Words are wider than markers: a marker may come nearer by 0.1.
        room = np.minimum(_nearest(words, large), _nearest(words, avoid) + 0.1)
        # No place at all above `top`: below any distance.
        room = np.where(np.abs(words[:, 1]) > top, -1.0, room)
        # More room than 0.26 counts for nothing, so that the first direction with enough of it is taken.
        best = int(np.argmax(np.minimum(room, 0.26)))
        chosen.append(ways[best])
        taken = np.concatenate([taken, words[best : best + 1]])
    return np.stack(chosen)


def _nearest(points: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The distance from each point (k, 2) to the nearest of others (m, 2)."""
    if len(others) == 0:
        return np.full(len(points), np.inf)
    return np.linalg.norm(points[:, None] - others[None], axis=-1).min(axis=1)
