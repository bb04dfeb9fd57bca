"""The number of tokens on one spot, which is written beside a marker that hides other tokens.

Groups are the connected components of tokens nearer than a link length (single linkage), found by a k-d tree in O(n log
n). A group is kept only if it is compact and isolated, since a number beside a loose crowd would not show which tokens
are counted. The positions of the numbers are chosen greedily, each in the direction with most room. All lengths are in
the units of the tokens, whose circle or sphere has radius 1.
"""

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import KDTree


COMPACT = 0.12  # the tokens of a wider group are visible, and a number would be ambiguous
TIGHT = 0.03  # a narrower group is one marker on paper
MOST_TOKENS = 2048  # more tokens have no counts


class Group(NamedTuple):
    """Tokens on one spot: their indices, their mean (d,), and the largest distance from the mean."""

    members: np.ndarray
    centre: np.ndarray
    radius: float

    def growth(self) -> float:
        """The factor on the width of the marker of the group: 2.3 for 64 tokens in one point, less for wider groups."""
        # The area grows as the count to the power 0.4, which suits both 2 and 64 tokens. The exponent decreases to 0
        # for a group whose members are visible separately.
        return float(len(self.members)) ** (0.2 * max(0.0, 1.0 - self.radius / TIGHT))


def groups(x: np.ndarray, least: int | None) -> list[Group]:
    """The compact and isolated groups of at least `least` tokens (n, d), largest first.

    Tokens are linked if their distance is below 0.1 and below a quarter of the distance of evenly spread neighbours. A
    group is isolated if the number of other tokens within three times its radius is less than a fifth of its size.
    Random tokens therefore have hardly any group, and a cluster becomes a group only once its tokens have gathered.
    """
    n, d = x.shape
    if least is None or n < least or n > MOST_TOKENS:
        return []
    # The distance of evenly spread neighbours is 2 pi / n on the circle, and on the sphere the root of the area per
    # token, 4 pi / n.
    link = min(0.1, 0.25 * (2 * np.pi / n if d == 2 else np.sqrt(4 * np.pi / n)))
    tree = KDTree(x)
    # Each pair occurs once, (pairs, 2); the graph is undirected.
    i, j = tree.query_pairs(link, output_type="ndarray").T
    _, label = connected_components(csr_array((np.ones(len(i)), (i, j)), shape=(n, n)), directed=False)
    on_one_spot = []
    for k in np.flatnonzero(np.bincount(label) >= least):
        members = np.flatnonzero(label == k)
        centre = x[members].mean(axis=0)
        radius = float(np.linalg.norm(x[members] - centre, axis=1).max())
        if radius <= COMPACT:
            # Half a link is added, since a neighbour within a link of the border would belong to the group.
            others = len(tree.query_ball_point(centre, 3 * radius + link / 2)) - len(members)
            if others < 0.2 * len(members):
                on_one_spot.append(Group(members, centre, radius))
    return sorted(on_one_spot, key=lambda group: -len(group.members))


def spread_angles(angles: np.ndarray, least_gap: float) -> np.ndarray:
    """Angles moved apart, by a few sweeps, until neighbours on the circle have the distance `least_gap`."""
    angles = np.array(angles, dtype=np.float64)
    # If the gap is impossible for all angles, the angles stay.
    if len(angles) < 2 or least_gap * len(angles) > 2 * np.pi:
        return angles
    for _ in range(50):
        order = np.argsort(angles)
        # The first angle is appended a turn later, for the gap across zero.
        wrapped = np.append(angles[order], angles[order[0]] + 2 * np.pi)
        short = np.maximum(0.0, least_gap - np.diff(wrapped))
        if short.max() < 1e-6:
            break
        # Each short gap moves both of its ends by half of the missing length; the shifts of neighbouring gaps add up.
        angles[order] += 0.5 * (np.roll(short, 1) - short)
    return angles


def clear_places(spots: np.ndarray, first: np.ndarray, margin: np.ndarray, avoid: np.ndarray, top: float) -> np.ndarray:
    """For each spot (k, 2), the direction nearest to `first` in which a word is clear of other objects.

    The distance of a word from its spot is `margin` (k,) plus half the width of the word. The other objects are the
    other spots, the words placed before, and the small points `avoid` (m, 2). No word is above `top` or below -`top`,
    where titles and legends are.
    """
    # The requested direction comes first and then the nearest directions, so that ties keep the requested direction.
    turns = np.radians([0, 45, -45, 90, -90, 135, -135, 180])
    chosen, taken = [], np.empty((0, 2))
    for k, (spot, way) in enumerate(zip(spots, first, strict=True)):
        angles = np.arctan2(way[1], way[0]) + turns
        ways = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        # 0.12 is half the width of a word such as "×64".
        words = spot + (margin[k] + 0.12) * ways
        large = np.concatenate([np.delete(spots, k, axis=0), taken])
        # Markers are smaller than words, so the distance to a marker may be smaller by 0.1.
        room = np.minimum(_nearest(words, large), _nearest(words, avoid) + 0.1)
        # A position beyond `top` gets less room than any distance.
        room = np.where(np.abs(words[:, 1]) > top, -1.0, room)
        # Room beyond 0.26 does not count, so that the first direction with enough room is taken.
        best = int(np.argmax(np.minimum(room, 0.26)))
        chosen.append(ways[best])
        taken = np.concatenate([taken, words[best : best + 1]])
    return np.stack(chosen)


def _nearest(points: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The distance from each point (k, 2) to the nearest point of `others` (m, 2)."""
    if len(others) == 0:
        return np.full(len(points), np.inf)
    return np.linalg.norm(points[:, None] - others[None], axis=-1).min(axis=1)
