"""Pictures of hardmax tokens in the plane: the limit polytope, leaders, and the attraction of one token."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Polygon

from .._base.checks import as_numbers, check_concrete, refusal, shown
from ._door import above_zero, door, real
from ._style import GREY, INK, RED, Numbers, new_axes, shade, token_colours


@door(x=real("n", 2), corners=real("v", 2), reach=above_zero)
def polytope(
    x: Numbers,
    ax: Axes | None = None,
    *,
    corners: Numbers | None = None,
    leaders: Numbers = (),
    labels: Numbers | None = None,
    reach: float | int | None = None,
    size: float | int = 1.0,
) -> Axes:
    """Draw tokens in the plane, with leaders as stars, in front of the polytope, with a cross at the origin.

    **Arguments:**

    - `x`: Tokens (n, 2).
    - `ax`: The Axes to draw on; None makes a figure of width 6 cm.
    - `corners`: The vertices (v, 2) of the polytope, in any order, such as `limit_set(...).vertices`; two vertices give
        a segment.
    - `leaders`: The indices of the leaders, or a mask (n,).
    - `labels`: Integers (n,), with one colour for each integer, such as `limit_set(...).goes_to`.
    - `reach`: The picture shows coordinates from -`reach` to `reach`; None leaves a margin around tokens and corners.
    - `size`: The factor on the area of the markers.

    **Returns:**

    The Axes, with equal units on both axes.

    **Raises:**

    - `ValueError` if `x` or `corners` are not finite points of the plane, or `leaders` are not indices of tokens.

    ??? cite "Source"

        Alcalde, Fantuzzi, Zuazua, *Clustering in pure-attention hardmax transformers* (2407.01602), Figure 2.
    """
    tokens, hull = np.asarray(x), np.empty((0, 2)) if corners is None else np.asarray(corners)
    led = check_chosen(leaders, len(tokens), "leaders")
    ax = new_axes(2.4, 2.4) if ax is None else ax
    if len(hull):
        # The vertices of a convex polygon, sorted by their angles about the centre, give its outline.
        angles = np.arctan2(*(hull - hull.mean(axis=0)).T[::-1])
        outline = Polygon(hull[np.argsort(angles)], closed=True, facecolor="#E8EEF4", edgecolor=GREY, linewidth=0.7)
        ax.add_patch(outline)
        outline.set_zorder(1)
    faces = token_colours(len(tokens), labels)
    # Leaders are drawn separately, as stars in front of the others.
    others = np.setdiff1d(np.arange(len(tokens)), led)
    _origin(ax)
    ax.scatter(
        *tokens[others].T, s=11 * size, c=faces[others], edgecolors=list(shade(faces[others])), linewidths=0.4, zorder=3
    )
    ax.scatter(*tokens[led].T, s=62 * size, c=faces[led], marker="*", edgecolors=INK, linewidths=0.5, zorder=4)
    _frame(ax, np.concatenate([tokens, hull]), reach)
    return ax


@door(x=real("n", 2), form=real(2, 2))
def attraction(x: Numbers, token: int, ax: Axes | None = None, *, form: Numbers | None = None) -> Axes:
    """Draw the attraction of one token: token i attends to the tokens farthest in the direction $A z_i$.

    Token i is red, and the direction $A z_i$ is an arrow from the origin. The dashed line is perpendicular to the
    direction and touches the cloud at the farthest tokens; the half-plane beyond the line is shaded. Dotted lines
    connect tokens with their projections on the direction, and an arrow leads from token i to the mean of its attended
    tokens.

    **Arguments:**

    - `x`: Tokens (n, 2).
    - `token`: The index i of the token.
    - `ax`: The Axes to draw on; None makes a figure of width 6 cm.
    - `form`: A, (2, 2); None is the identity.

    **Returns:**

    The Axes, with equal units on both axes.

    **Raises:**

    - `ValueError` if `x` are not finite points of the plane, `token` is not an index, $A z_i$ is zero, or `form` is not
        (2, 2).

    ??? cite "Source"

        Alcalde, Fantuzzi, Zuazua, *Clustering in pure-attention hardmax transformers* (2407.01602), the picture that
        explains eq. (1b).
    """
    tokens = np.asarray(x)
    (i,) = check_chosen([token], len(tokens), "token")
    query = tokens[i] if form is None else np.asarray(form) @ tokens[i]
    if not np.linalg.norm(query) > 0:
        raise ValueError(f"token {i} must not be sent to the origin, but A z is {query}; choose another token.")
    along = query / np.linalg.norm(query)
    heights = tokens @ along
    # Scores that are equal within rounding errors are ties, as in the hardmax.
    drawn_to = np.flatnonzero(heights >= heights.max() - 1e-9 * np.abs(tokens).max())
    ax = new_axes(2.4, 2.4) if ax is None else ax
    far = float(np.ptp(tokens, axis=0).max())
    _half_plane(ax, along, float(heights.max()), far)
    # The projection of each token on the line through the origin along A z_i shows its score.
    feet = heights[:, None] * along
    for place, foot in zip(tokens, feet, strict=True):
        ax.plot(*np.stack([place, foot]).T, ls=":", lw=0.6, color=GREY, zorder=1.5)
    tip = (heights.max() + 0.16 * far) * along
    ax.plot(*np.stack([heights.min() * along, np.zeros(2)]).T, lw=0.6, color=GREY, zorder=1.5)
    _arrow(ax, np.zeros(2), tip, INK)
    _origin(ax)
    goal = tokens[drawn_to].mean(axis=0)
    # A leader attends to itself, and an arrow of length zero has no direction.
    if not np.array_equal(drawn_to, [i]):
        _arrow(ax, tokens[i], goal, RED)
    others = np.setdiff1d(np.arange(len(tokens)), np.append(drawn_to, i))
    ax.scatter(*tokens[others].T, s=14, c="#B9B9B9", edgecolors=GREY, linewidths=0.4, zorder=3)
    blue = token_colours(len(drawn_to))
    ax.scatter(*tokens[drawn_to].T, s=26, c=blue, edgecolors=INK, linewidths=0.5, zorder=4)
    ax.scatter(*tokens[[i]].T, s=26, c=RED, edgecolors=INK, linewidths=0.5, zorder=4)
    _name(ax, "$z_i$", tokens[i], tokens[i] - goal, RED)
    _name(ax, "$A z_i$", tip, along, INK)
    _frame(ax, np.concatenate([tokens, (tip + 0.14 * far * along)[None]]), None)
    return ax


def _name(ax: Axes, word: str, place: np.ndarray, away: np.ndarray, colour: str) -> None:
    """Write a word beside a point, in the direction `away`."""
    length = np.linalg.norm(away)
    away = np.array([0.0, 1.0]) if length == 0 else away / length
    ax.annotate(
        word, tuple(place), tuple(9 * away), textcoords="offset points", fontsize=8, color=colour, ha="center",
        va="center",
    )  # fmt: skip


def _half_plane(ax: Axes, along: np.ndarray, height: float, far: float) -> None:
    """Draw the half-plane beyond the line that touches the cloud."""
    across = np.array([-along[1], along[0]])
    # A strip of four times the size of the cloud extends beyond the picture.
    near = height * along + 4 * far * np.stack([across, -across])
    strip = Polygon(np.concatenate([near, near[::-1] + 4 * far * along]), facecolor="#F3EFE6", edgecolor="none")
    ax.add_patch(strip)
    strip.set_zorder(0)
    ax.plot(*near.T, ls="--", lw=0.9, color=INK, zorder=1)


def _arrow(ax: Axes, start: np.ndarray, end: np.ndarray, colour: str) -> None:
    arrow = FancyArrowPatch(
        tuple(start), tuple(end), arrowstyle="-|>", mutation_scale=8, lw=1.1, color=colour, shrinkA=2, shrinkB=3
    )
    ax.add_patch(arrow)
    arrow.set_zorder(3.5)


def _origin(ax: Axes) -> None:
    ax.plot([0], [0], marker="+", ms=5, mew=0.7, color=GREY, zorder=2, ls="none")


def _frame(ax: Axes, points: np.ndarray, reach: float | int | None) -> None:
    if reach is None:
        middle = (points.min(axis=0) + points.max(axis=0)) / 2
        # The margin is 13 % on either side; the minimum gives a positive width if all tokens coincide.
        half = 0.63 * max(float(np.ptp(points, axis=0).max()), 1e-9)
        ax.set(xlim=(middle[0] - half, middle[0] + half), ylim=(middle[1] - half, middle[1] + half))
    else:
        ax.set(xlim=(-reach, reach), ylim=(-reach, reach))
    ax.set_aspect("equal")
    ax.set_axis_off()


def check_chosen(tokens: Numbers | Sequence[int], n: int, name: str) -> np.ndarray:
    """Check for the numbers of some of n tokens, or a mask of all tokens, and return the numbers."""
    check_concrete(tokens, name)
    array = as_numbers(tokens, name)
    numbers = np.empty((), object) if array is None else np.asarray(array)
    # A list of booleans of another length than n is refused below.
    if numbers.dtype == bool and numbers.shape == (n,):
        return np.flatnonzero(numbers)
    if numbers.ndim and numbers.size == 0:
        return np.empty(0, int)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or numbers.min() < 0 or numbers.max() >= n:
        problem = f"it is {tokens}" if isinstance(tokens, list) and len(tokens) < 9 else f"it is {shown(tokens)}"
        raise refusal(name, f"name tokens from 0 to {n - 1}", problem, "pass their numbers, or a mask of all tokens")
    return numbers
