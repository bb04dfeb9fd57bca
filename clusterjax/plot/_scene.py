"""The tokens of one panel as movable artists, which a still picture draws once and an animation many times.

Artists are created once and only their data change, so that an animation of 60 frames takes seconds. All tokens are one
`EllipseCollection`, sorted so that the tokens in front are drawn last (painter's algorithm), since matplotlib sorts
artists by zorder but not the members of a collection. Tokens that are not finite are not drawn in a frame and keep
their index and colour. Sizes are in units of the view, so that the picture scales with the panel.

A number beside a spot counts the tokens on it, since a marker hides other tokens. Spots are the connected components of
tokens nearer than a link length (single linkage), found by a k-d tree in O(n log n). A spot is kept only if it is
compact and isolated, since a number beside a loose crowd would not show which tokens are counted.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection, LineCollection
from matplotlib.colors import to_rgba
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import KDTree

from .._base.checks import refusal
from ._style import GREY, INK, RED, Numbers, check_token_index, pale, shade, token_colours
from ._views import AbstractView


DIAMETER = 0.075  # of a token, in units of the radius of the circle
OUTLINE = "#CC79A7"  # of the limit shape
FAR = 0.36  # the fraction of its colour that a token keeps on the far side
COMPACT = 0.12  # the tokens of a wider spot are visible, and a number would be ambiguous
TIGHT = 0.03  # a narrower spot is one marker on paper
MOST_TOKENS = 2048  # more tokens have no counts


class Spot(NamedTuple):
    """Tokens on one spot: their indices, their mean (d,), and the largest distance from the mean."""

    members: np.ndarray
    centre: np.ndarray
    radius: float

    def growth(self) -> float:
        """The factor on the width of the marker of the spot: 2.3 for 64 tokens in one point, less for wider spots."""
        # The area grows as the count to the power 0.4, which suits both 2 and 64 tokens. The exponent decreases to 0
        # for a spot whose members are visible separately.
        return float(len(self.members)) ** (0.2 * max(0.0, 1.0 - self.radius / TIGHT))


def spots(x: np.ndarray, least: int | None) -> list[Spot]:
    """The compact and isolated spots of at least `least` tokens (n, d), largest first.

    Tokens are linked if their distance is below 0.1 and below a quarter of the distance of evenly spread neighbours. A
    spot is isolated if the number of other tokens within three times its radius is less than a fifth of its size.
    Random tokens therefore have hardly any spot, and a cluster becomes a spot only once its tokens have gathered.
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
    compact = []
    for k in np.flatnonzero(np.bincount(label) >= least):
        members = np.flatnonzero(label == k)
        centre = x[members].mean(axis=0)
        radius = float(np.linalg.norm(x[members] - centre, axis=1).max())
        if radius <= COMPACT:
            # Half a link is added, since a neighbour within a link of the border would belong to the spot.
            others = len(tree.query_ball_point(centre, 3 * radius + link / 2)) - len(members)
            if others < 0.2 * len(members):
                compact.append(Spot(members, centre, radius))
    return sorted(compact, key=lambda spot: -len(spot.members))


@final
class Scene:
    """One panel: the background, the tokens, their counts, the trail of one token, and arrows."""

    def __init__(
        self,
        ax: Axes,
        view: AbstractView,
        n: int,
        *,
        labels: Numbers | None = None,
        colours: Numbers | str | None = None,
        highlight: int | None = None,
        arrows: Mapping[str, Any] | None = None,
        counts_from: int | None = 5,
        size: float | int = 1.0,
        outline: Sequence[np.ndarray] = (),
    ):
        if ax.name != "rectilinear":
            remedy = "pass a plain one, as Figure().add_subplot() makes"
            raise refusal("ax", "be rectilinear", f"it is an Axes of projection {ax.name!r}", remedy)
        check_token_index(highlight, n)
        self.ax, self.view, self.highlight, self.counts_from = ax, view, highlight, counts_from
        self.diameter = DIAMETER * size
        self.faces = token_colours(n, labels, colours)
        if highlight is not None:
            self.faces[highlight] = to_rgba(RED)
        # The limits are square and fixed, so that moving tokens do not rescale the picture.
        reach = view.reach + (view.reach_of_arrows if arrows else 0.0)
        ax.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
        ax.set_axis_off()
        self.background = view.background(ax)
        self.lines = outline
        self.outline = LineCollection([], colors=OUTLINE, linewidths=0.9, zorder=2)
        self.trail = LineCollection([], zorder=3, linewidths=1.1, capstyle="butt")
        self.tokens = EllipseCollection(
            [], [], [], units="xy", offsets=np.empty((0, 2)), offset_transform=ax.transData, zorder=4,
            linewidths=0.25, label="tokens",
        )  # fmt: skip
        for collection in (self.outline, self.trail, self.tokens):
            # autolim=False keeps the data of artists from changing the limits.
            ax.add_collection(collection, autolim=False)
        self.counts: list[Text] = []
        self.arrows = [_Arrow(ax, name, vector, view.d) for name, vector in (arrows or {}).items()]
        self.look(view)

    def look(self, view: AbstractView) -> None:
        """Move all artists but the tokens, their counts and the trail to their positions in a view."""
        self.view = view
        view.refresh(self.background)
        self.outline.set_segments([view.project(line)[0] for line in self.lines])
        for arrow in self.arrows:
            arrow.turn(view)

    def update(self, x: np.ndarray, trail: np.ndarray | None = None) -> None:
        """Move the tokens to (n, d), and the trail to (T, d)."""
        # After an event some rows are NaN, and the k-d tree of `spots` needs finite points.
        alive = np.flatnonzero(np.isfinite(x).all(axis=1))
        crowds = spots(x[alive], self.counts_from)
        across = np.full(len(alive), self.diameter)
        for spot in crowds:
            # The marker of a spot stands for all its tokens, so its width increases with their number.
            across[spot.members] *= spot.growth()
        xy, height = self.view.project(x[alive])
        followed = alive == self.highlight
        across[followed] = 1.3 * self.diameter
        # `lexsort` sorts by its last key first: the far side comes first, and the highlighted token last on its side.
        order = np.lexsort((height, followed, height >= 0))
        self._move_tokens(alive[order], xy[order], height[order], across[order])
        self._write_counts(crowds)
        self._follow(np.empty((0, x.shape[1])) if trail is None else trail[np.isfinite(trail).all(axis=1)])

    def _move_tokens(self, index: np.ndarray, xy: np.ndarray, height: np.ndarray, across: np.ndarray) -> None:
        front = (height >= 0)[:, None]
        followed = (index == self.highlight)[:, None]
        far = pale(self.faces[index], FAR)
        rim = np.where(followed, to_rgba(INK), shade(self.faces[index]))
        # Tokens on the near side are up to 16 % larger, as a hint of perspective, which the projection lacks.
        across = across * (1.0 if self.view.d == 2 else 1.0 + 0.16 * np.clip(height, -1, 1))
        self.tokens.set(
            offsets=xy, widths=across, heights=across, angles=np.zeros(len(index)),
            facecolor=np.where(front, self.faces[index] * [1, 1, 1, 0.85], far),
            edgecolor=np.where(front, rim, np.where(followed, to_rgba(GREY), shade(far, 0.88))),
        )  # fmt: skip

    def _write_counts(self, crowds: list[Spot]) -> None:
        # Spots appear and disappear between frames, so unused texts are hidden and reused.
        while len(self.counts) < len(crowds):
            self.counts.append(self.ax.text(0, 0, "", fontsize=6, zorder=6, path_effects=_halo()))
        for text in self.counts[len(crowds) :]:
            text.set_visible(False)
        if not crowds:
            return
        xy, height = self.view.project(np.stack([spot.centre for spot in crowds]))
        margin = 0.05 + np.array([max(0.5 * self.diameter * spot.growth(), spot.radius) for spot in crowds])
        # Counts avoid tokens and the names of arrows.
        names = np.array([arrow.text.get_position() for arrow in self.arrows]).reshape(-1, 2)
        avoid = np.concatenate([np.asarray(self.tokens.get_offsets()), names])
        places, ways = self.view.beside(xy, margin, avoid)
        for text, spot, place, way, h in zip(self.counts, crowds, places, ways, height, strict=False):
            text.set(text=f"×{len(spot.members)}", position=place, alpha=1.0 if h >= 0 else 0.6, visible=True)
            # The alignment follows the direction, so that the near end of the text is beside the spot.
            text.set_horizontalalignment("center" if abs(way[0]) < 0.5 else "left" if way[0] > 0 else "right")
            text.set_verticalalignment("center" if abs(way[1]) < 0.5 else "bottom" if way[1] > 0 else "top")

    def _follow(self, trail: np.ndarray) -> None:
        if len(trail) < 2:
            self.trail.set_segments([])
            return
        xy, height = self.view.path(trail)
        # Older parts and parts on the far side are paler.
        share = np.linspace(0.45, 1.0, len(xy) - 1) * np.where(height[1:] >= 0, 1.0, 0.45)
        colours = pale(np.tile(to_rgba(RED), (len(share), 1)), share[:, None])
        self.trail.set(segments=list(np.stack([xy[:-1], xy[1:]], axis=1)), edgecolor=colours)


def unit_direction(vector: np.ndarray, d: int, name: str) -> np.ndarray:
    """The unit vector (d,) of the arrow `name`."""
    if vector.shape != (d,) or not np.linalg.norm(vector) > 0:
        problem = f"it is {vector}" if vector.size <= 8 else f"its shape is {vector.shape}"
        rule = f"be a vector of shape ({d},) that is not zero"
        raise refusal(f"arrows[{name!r}]", rule, problem, "pass a direction")
    return vector / np.linalg.norm(vector)


@final
class _Arrow:
    """An arrow for a direction, such as an eigenvector, from the centre of the picture."""

    def __init__(self, ax: Axes, name: str, vector: np.ndarray, d: int):
        self.direction = unit_direction(vector, d, name)
        tip = {"arrowstyle": "-|>,head_length=.35,head_width=.16", "shrinkA": 0, "shrinkB": 0}
        self.arrow = ax.annotate("", (1, 0), (0, 0), zorder=5, arrowprops=tip | {"color": INK, "linewidth": 0.9})
        self.text = ax.text(0, 0, name, ha="center", va="center", fontsize=7, zorder=6, path_effects=_halo())

    def turn(self, view: AbstractView) -> None:
        """Move the arrow to the direction of its vector in the view; an arrow away from the eye is fainter."""
        tip, height = view.aim(self.direction)
        alpha = 1.0 if height >= 0 else 0.4
        # The head of an annotation arrow has a size on paper, not in units of the data.
        self.arrow.xy = tuple(view.arrow_length * tip)
        # matplotlib declares `arrow_patch` as optional.
        if self.arrow.arrow_patch is not None:
            self.arrow.arrow_patch.set_alpha(alpha)
        # The name is beyond the tip; an arrow towards the eye has no direction on paper, hence the maximum.
        beyond = tip / max(float(np.linalg.norm(tip)), 1e-12)
        self.text.set(position=view.arrow_length * tip + 0.13 * beyond, alpha=alpha)


def _halo() -> list[withStroke]:
    """A white rim that makes words readable on lines."""
    return [withStroke(linewidth=1.4, foreground="white")]
