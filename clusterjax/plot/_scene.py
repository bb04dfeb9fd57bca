"""The tokens of one panel as movable artists, which a still picture draws once and an animation many times.

Artists are created once and only their data change, so that a GIF of 60 frames takes seconds. All tokens are one
`EllipseCollection`, sorted so that the tokens in front are drawn last (painter's algorithm), since matplotlib sorts
artists by zorder but not the members of a collection. Tokens that are not finite are not drawn in a frame and keep
their index and colour.
"""

from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection, LineCollection
from matplotlib.colors import to_rgba, to_rgba_array
from matplotlib.patheffects import withStroke
from matplotlib.text import Text

from .._check import refusal
from ._colours import Colours, pale, shade, token_colours
from ._counts import Group, groups
from ._data import Numbers, check_token_index, real_array
from ._style import GREY, INK, RED
from ._views import AbstractView


DIAMETER = 0.075  # of a token, in units of the radius of the circle
OUTLINE = "#CC79A7"  # of the limit shape
FAR = 0.36  # the fraction of its colour that a token keeps on the far side


@final
class Scene:
    """One panel: the background, the tokens, their counts, the trail of one token, and arrows.

    Sizes are in units of the data, so that the picture scales with the panel.
    """

    def __init__(
        self,
        ax: Axes,
        view: AbstractView,
        n: int,
        *,
        labels: Numbers | None = None,
        colours: Colours | None = None,
        highlight: int | None = None,
        arrows: Mapping[str, Numbers] | None = None,
        counts_from: int | None = 5,
        size: float | int = 1.0,
        outline: Sequence[np.ndarray] = (),
    ):
        if ax.name != "rectilinear":
            remedy = "pass a plain one, as Figure().add_subplot() makes"
            raise refusal("ax", "be rectilinear", f"it is an Axes of projection {ax.name!r}", remedy)
        check_token_index(highlight, n)
        self.ax, self.view, self.n, self.highlight, self.counts_from = ax, view, n, highlight, counts_from
        self.diameter = DIAMETER * size
        self.faces = token_colours(n, labels, colours)
        if highlight is not None:
            self.faces[highlight] = to_rgba(RED)
        # The limits are square and fixed, so that moving tokens do not rescale the picture.
        reach = view.reach + (view.reach_of_arrows if arrows else 0.0)
        ax.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
        ax.set_axis_off()
        self.background = view.background(ax)
        self.lines = list(outline)
        self.outline = LineCollection([], colors=OUTLINE, linewidths=0.9, zorder=2)
        ax.add_collection(self.outline, autolim=False)
        self._draw_outline()
        # autolim=False keeps the data of artists from changing the limits.
        self.trail = LineCollection([], zorder=3, linewidths=1.1, capstyle="butt")
        ax.add_collection(self.trail, autolim=False)
        self.tokens = EllipseCollection(
            [],
            [],
            [],
            units="xy",
            offsets=np.empty((0, 2)),
            offset_transform=ax.transData,
            zorder=4,
            linewidths=0.25,
        )
        self.tokens.set_label("tokens")
        ax.add_collection(self.tokens, autolim=False)
        self.counts: list[Text] = []
        self.arrows = [_Arrow(ax, name, vector, view) for name, vector in (arrows or {}).items()]

    def update(self, x: np.ndarray, trail: np.ndarray | None = None, view: AbstractView | None = None) -> None:
        """Move the artists to tokens (n, d), a trail (T, d), and optionally another view."""
        if view is not None:
            self.view = view
            view.refresh(self.background)
            self._draw_outline()
            for arrow in self.arrows:
                arrow.turn(view)
        # After an event some rows are NaN, and the k-d tree of `groups` needs finite points.
        alive = np.flatnonzero(np.isfinite(x).all(axis=1))
        crowds = groups(x[alive], self.counts_from)
        across = np.full(len(alive), self.diameter)
        for group in crowds:
            # The marker of a group stands for all its tokens, so its width increases with their number.
            across[group.members] *= group.growth()
        xy, height = self.view.project(x[alive])
        followed = alive == self.highlight
        across[followed] = 1.3 * self.diameter
        # `lexsort` sorts by its last key first: the far side comes first, and the highlighted token last on its side.
        order = np.lexsort((height, followed, height >= 0))
        self._move_tokens(alive[order], xy[order], height[order], across[order])
        self._write_counts(crowds)
        self._follow(trail)

    def _draw_outline(self) -> None:
        """Move the lines of the limit shape to their positions in the view."""
        self.outline.set_segments([self.view.project(line)[0] for line in self.lines])

    def palette(self) -> np.ndarray:
        """The colours (k, 4) that a small palette must contain: tokens on both sides, and fixed artists."""
        near = np.unique(self.faces, axis=0)
        # A GIF has 256 colours: about 24 faces, near and far, leave room for intermediate colours.
        near = near[:: max(1, len(near) // 24)]
        return np.concatenate([near, pale(near, FAR), to_rgba_array(["white", INK, RED, GREY, "#B9B9B9", OUTLINE])])

    def _move_tokens(self, index: np.ndarray, xy: np.ndarray, height: np.ndarray, across: np.ndarray) -> None:
        front = (height >= 0)[:, None]
        followed = (index == self.highlight)[:, None]
        far = pale(self.faces[index], FAR)
        rim = np.where(followed, to_rgba(INK), shade(self.faces[index]))
        # Tokens on the near side are up to 16 % larger, as a hint of perspective, which the projection lacks.
        across = across * (1.0 if self.view.d == 2 else 1.0 + 0.16 * np.clip(height, -1, 1))
        self.tokens.set(
            offsets=xy,
            widths=across,
            heights=across,
            angles=np.zeros(len(index)),
            facecolor=np.where(front, self.faces[index] * [1, 1, 1, 0.85], far),
            edgecolor=np.where(front, rim, np.where(followed, to_rgba(GREY), shade(far, 0.88))),
        )

    def _write_counts(self, crowds: list[Group]) -> None:
        # Groups appear and disappear between frames, so unused texts are hidden and reused.
        while len(self.counts) < len(crowds):
            self.counts.append(self.ax.text(0, 0, "", fontsize=6, zorder=6, path_effects=_halo()))
        for text in self.counts[len(crowds) :]:
            text.set_visible(False)
        if not crowds:
            return
        xy, height = self.view.project(np.stack([group.centre for group in crowds]))
        margin = 0.05 + np.array([max(0.5 * self.diameter * group.growth(), group.radius) for group in crowds])
        # Counts avoid tokens and the names of arrows.
        names = np.array([arrow.text.get_position() for arrow in self.arrows]).reshape(-1, 2)
        avoid = np.concatenate([np.asarray(self.tokens.get_offsets()), names])
        places, ways = self.view.beside(xy, margin, avoid)
        for text, group, place, way, h in zip(self.counts, crowds, places, ways, height, strict=False):
            text.set(text=f"×{len(group.members)}", position=place, alpha=1.0 if h >= 0 else 0.6, visible=True)
            # The alignment follows the direction, so that the near end of the text is beside the spot.
            text.set_horizontalalignment("center" if abs(way[0]) < 0.5 else "left" if way[0] > 0 else "right")
            text.set_verticalalignment("center" if abs(way[1]) < 0.5 else "bottom" if way[1] > 0 else "top")

    def _follow(self, trail: np.ndarray | None) -> None:
        if trail is not None:
            trail = trail[np.isfinite(trail).all(axis=1)]
        if trail is None or len(trail) < 2:
            self.trail.set_segments([])
            return
        xy, height = self.view.path(trail)
        # Older parts and parts on the far side are paler.
        share = np.linspace(0.45, 1.0, len(xy) - 1) * np.where(height[1:] >= 0, 1.0, 0.45)
        colours = pale(np.tile(to_rgba(RED), (len(share), 1)), share[:, None])
        self.trail.set(segments=list(np.stack([xy[:-1], xy[1:]], axis=1)), edgecolor=colours)


@final
class _Arrow:
    """An arrow for a direction, such as an eigenvector, from the centre of the picture."""

    def __init__(self, ax: Axes, name: str, vector: Numbers, view: AbstractView):
        direction = real_array(vector, f"arrows[{name!r}]")
        if direction.shape != (view.d,) or not 0 < np.linalg.norm(direction) < np.inf:
            problem = f"it is {direction}" if direction.size <= 8 else f"its shape is {direction.shape}"
            rule = f"be a vector of shape ({view.d},) that is not zero"
            raise refusal(f"arrows[{name!r}]", rule, problem, "pass a direction")
        self.direction = direction / np.linalg.norm(direction)
        tip = {"arrowstyle": "-|>,head_length=.35,head_width=.16", "shrinkA": 0, "shrinkB": 0}
        self.arrow = ax.annotate("", (1, 0), (0, 0), zorder=5, arrowprops=tip | {"color": INK, "linewidth": 0.9})
        self.text = ax.text(0, 0, name, ha="center", va="center", fontsize=7, zorder=6, path_effects=_halo())
        self.turn(view)

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
