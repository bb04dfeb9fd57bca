"""The style of all pictures: sizes, fonts and colours, which apply while a picture is drawn and never globally."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, to_rgba, to_rgba_array
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D

from .._base.checks import as_numbers, check_concrete, check_host_array, check_integer, check_number, refusal, shown
from .._base.types import Numbers as Numbers


OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
"""The palette of Okabe and Ito, blue first: eight colours that colour-blind readers can tell apart."""

BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW, BLACK = OKABE_ITO
RED = "#D40A1E"  # the highlighted token, which also has another size and outline
INK = "#222222"
GREY = "#8C8C8C"
MISSING = "#D9D9D9"

COLUMN = 3.35  # inches: one column of a two-column paper, 8.5 cm

STYLE: dict[str, Any] = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.prop_cycle": cycler(color=OKABE_ITO),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 8,
    "figure.dpi": 150,
    "figure.facecolor": "white",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
    "image.cmap": "cividis",
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "lines.linewidth": 1.3,
    "mathtext.fontset": "dejavusans",
    # Journals require TrueType instead of Type 3 fonts.
    "pdf.fonttype": 42,
    # `save` crops the margins.
    "savefig.bbox": None,
    "savefig.dpi": 300,
    "savefig.facecolor": "auto",
    "savefig.transparent": False,
    # Outlines of letters make the file independent of installed fonts.
    "svg.fonttype": "path",
    # Without a salt the ids in an SVG are random, and files are not reproducible.
    "svg.hashsalt": "clusterjax",
    "text.color": INK,
    "text.usetex": False,
    "xtick.color": INK,
    "xtick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.color": INK,
    "ytick.labelsize": 7,
    "ytick.major.width": 0.6,
}


def style(**overrides: Any):
    """A context with the settings of matplotlib of this library; the former settings are restored afterwards.

    Every function of `clusterjax.plot` already draws in this context; use the context for additional drawing. `style`
    also works as a decorator.

    **Arguments:**

    - `overrides`: Further settings of matplotlib, with underscores instead of dots in their names:
        `style(font_size=10)`.

    **Raises:**

    - `ValueError` if an override is not a setting of matplotlib, or its value is invalid.
    """
    # Keywords cannot contain dots.
    known = {name.replace(".", "_"): name for name in mpl.rcParams} if overrides else {}
    unknown = [key for key in overrides if key not in known]
    if unknown:
        remedy = "write its name with underscores, such as font_size for font.size"
        raise refusal("overrides", "be settings of matplotlib", f"there is {unknown[0]!r}", remedy)
    settings: Any = STYLE | {known[key]: _setting(value, key, known[key]) for key, value in overrides.items()}
    return mpl.rc_context(settings)


# The bounds of settings by the end of their name.
_SIZES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("size", {"above": 0, "most": 1000}),
    ("width", {"least": 0, "most": 1000}),
    ("dpi", {"above": 0, "most": 5000}),
)


def _setting(value: Any, name: str, setting: str) -> Any:
    """Return `value` if it is valid for the setting of matplotlib, finite, and of a size that can be drawn."""
    check_concrete(value, name)
    array = as_numbers(value, name)
    settings: Any = {setting: value}
    try:
        # matplotlib validates a setting on assignment, with several types of errors.
        (taken,) = mpl.RcParams(settings).values()
    except (TypeError, ValueError, OverflowError):
        raise refusal(name, f"be what matplotlib takes for {setting}", f"it is {shown(value)}", "pass that") from None
    if isinstance(taken, float):
        return check_number(value, name, **next((bounds for end, bounds in _SIZES if setting.endswith(end)), {}))
    if array is not None and np.issubdtype(array.dtype, np.inexact):
        check_host_array(array, name)
    return value


def new_axes(width: float | int = COLUMN, height: float | int = 2.4) -> Axes:
    """An Axes in a new Figure of `width` by `height` inches, without any global state."""
    # Figures of pyplot would live until they are closed.
    return Figure(figsize=(width, height), layout="constrained").add_subplot()


def figure_of(ax: Axes, name: str = "ax") -> Figure | SubFigure:
    """The figure or subfigure of `ax`; raises a `ValueError` if `ax` was removed from its figure."""
    if ax.figure is None:
        raise refusal(name, "be in a figure", "it was removed from its own", "pass an Axes that is still in one")
    return ax.figure


def top_figure(ax: Axes) -> Figure:
    """The figure that contains `ax`, possibly in a subfigure; only this figure has a layout and is saved."""
    figure = figure_of(ax)
    return figure if isinstance(figure, Figure) else figure.figure


MOST_PIXELS = 2**28  # of a picture: more pixels do not fit into memory


def check_pixels(figure: Figure, dpi: float | int) -> None:
    """Raise a `ValueError` if the figure has too many pixels."""
    count = float(np.prod(figure.get_size_inches())) * dpi**2
    if count > MOST_PIXELS:
        rule, problem = f"be such that a picture has at most {MOST_PIXELS:.0e} pixels", f"it has {count:.0e}"
        raise refusal("dpi", rule, problem, "choose a smaller one, or a smaller figure")


def legend_above(ax: Axes, title: str | None = None, columns: int = 3) -> None:
    """Draw a legend above the data of `ax`, where it hides nothing, and the title above the legend."""
    handles, names = ax.get_legend_handles_labels()
    columns = max(1, min(columns, len(names)))
    rows = -(-len(names) // columns)
    if names:
        ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, borderaxespad=0.2, columnspacing=1.2)
    if title is not None:
        # A row of the legend is 11.5 points high.
        ax.set_title(title, pad=4.0 + 11.5 * rows * bool(names))


# Conversion of the data of pictures to checked NumPy arrays, without frames after an event.


@runtime_checkable
class TrajectoryLike(Protocol):
    """Anything with the save times `ts`, (T,), and the tokens at those times `xs`, (T, n, d)."""

    ts: Any
    xs: Any


@runtime_checkable
class Outlined(Protocol):
    """Anything that can be drawn as lines, such as the shape that `limit_shape` gives."""

    def outline(self, reach: float) -> Sequence[Any]:
        """The lines of the shape, each (points, d); unbounded lines have the length `reach`."""
        ...


Limit: TypeAlias = Outlined | Sequence[Any]
"""A shape behind tokens: what has an outline, or lines, each (points, d)."""


class Frames(NamedTuple):
    """Save times and tokens to draw; `stopped` is True if frames without a finite token were dropped."""

    ts: np.ndarray
    xs: np.ndarray
    stopped: bool


LARGEST = 1e100  # the largest number in a picture: squares and ranges of larger numbers overflow


def real_array(value: Any, name: str, *, shape: Any = None, finite: bool = False) -> np.ndarray:
    """Return `value` as a float64 array; raise a `ValueError` for complex numbers, words and other shapes."""
    array = check_host_array(value, name, shape=shape, finite=finite).astype(np.float64)
    check_size(array, name)
    return array


def check_size(array: np.ndarray, name: str) -> None:
    """Raise a `ValueError` if a finite number is too large to be drawn."""
    # Numbers that are not finite are not drawn, so they are allowed.
    beyond = np.isfinite(array) & (np.abs(array) > LARGEST)
    if beyond.any():
        rule, problem = f"be numbers of at most {LARGEST:.0e} in size", f"one is {array[beyond].flat[0]:.3g}"
        raise refusal(name, rule, problem, "scale them")


def check_unit_tokens(x: Numbers, d: int, name: str = "x", *, other: str | None = None) -> np.ndarray:
    """Return `x` as an (n, d) array of unit vectors; rows that are not finite are kept for the caller to skip."""
    x = real_array(x, name)
    if x.ndim != 2 or x.shape[0] < 1 or x.shape[1] != d:
        remedy = f"pass one unit vector per row, shape (n, {d})"
        if x.ndim == 2 and other is not None:
            remedy += f", or draw it with {other}"
        raise ValueError(f"{name} must have the shape (n, {d}) with n >= 1, but its shape is {x.shape}; {remedy}.")
    norms = np.linalg.norm(x, axis=1)
    # A tolerance of 0.01 is larger than the error of any solver and invisible in a picture.
    off = np.flatnonzero(np.isfinite(norms) & (np.abs(norms - 1.0) > 1e-2))
    if off.size:
        raise ValueError(
            f"{name} must hold unit vectors, but row {off[0]} has norm {norms[off[0]]:.4g}; "
            "retract it first, with clusterjax.Sphere().retract(x)."
        )
    return x


def frames_of(trajectory: TrajectoryLike | Numbers, ts: Numbers | None = None) -> Frames:
    """The frames with at least one finite token of a trajectory, or of tokens (T, n, d) at the times `ts`."""
    xs, name, when = trajectory, "trajectory", "ts"
    # A class with these attributes also satisfies the protocol, but is not a run.
    if isinstance(trajectory, TrajectoryLike) and not isinstance(trajectory, type):
        xs, name = trajectory.xs, "trajectory.xs"
        ts, when = (trajectory.ts, "trajectory.ts") if ts is None else (ts, when)
    elif as_numbers(trajectory, "trajectory") is None:
        rule = "be a trajectory with ts and xs, or real numbers of shape (times, n, d)"
        raise refusal(name, rule, f"it is {shown(trajectory)}", "pass one run")
    xs = real_array(xs, name)
    if xs.ndim != 3 or 0 in xs.shape:
        raise ValueError(
            f"{name} must have the shape (times, n, d) with nothing empty, but its shape is {xs.shape}; "
            "pass one run, not a batch of them, saved at one time or more."
        )
    ts = np.arange(len(xs), dtype=np.float64) if ts is None else real_array(ts, when)
    if ts.shape != xs.shape[:1]:
        raise ValueError(
            f"{when} must hold one time for each of the {len(xs)} frames, but its shape is {ts.shape}; "
            "pass the save times, shape (times,)."
        )
    # After an event all tokens of a run are NaN. Frames without any finite token are dropped; other frames keep their
    # tokens that are not finite.
    has_tokens = np.any(np.isfinite(xs).all(axis=2), axis=1)
    if np.any(has_tokens & ~np.isfinite(ts)):
        k = int(np.flatnonzero(has_tokens & ~np.isfinite(ts))[0])
        raise refusal(when, "be finite at each frame with tokens", f"entry {k} is {ts[k]}", "pass the save times")
    keep = np.isfinite(ts) & has_tokens
    if not keep.any():
        raise ValueError(
            f"{name} must have a frame with a finite token in it, but it has none; look at the result of the run first."
        )
    if np.any(np.diff(ts[keep]) <= 0):
        raise ValueError(f"{when} must increase, but two neighbouring times do not; sort the frames by time.")
    return Frames(ts[keep], xs[keep], not bool(keep.all()))


def check_token_index(index: int | None, n: int) -> None:
    """Raise a `ValueError` if `index` is neither None nor the index of one of `n` tokens."""
    if index is not None:
        check_integer(index, "highlight", least=0, most=n - 1, remedy="pass a token of those, or None")


def time_labels(ts: np.ndarray, symbol: str, digits: int | None = None) -> list[str]:
    """A label such as `t = 3` for each time, as short as possible, or with `digits` digits after the point."""
    if digits is None:
        return [f"{symbol} = {t:.4g}" for t in ts]
    return [f"{symbol} = {t:.{digits}f}" for t in ts]


def digits_between(ts: np.ndarray) -> int:
    """The number of digits after the point, at most four, that shows times to a twentieth of their smallest gap."""
    ts = np.unique(ts)
    # With this tolerance titles of neighbouring frames never show equal times.
    slack = 0.05 * (np.min(np.diff(ts)) if len(ts) > 1 else abs(ts[0]))
    for digits in range(4):
        if np.max(np.abs(ts - np.round(ts, digits))) <= slack:
            return digits
    return 4


# The colours of tokens, and the legend for a highlighted token.


Colour: TypeAlias = str | Sequence[Any] | np.ndarray
"""One colour, as matplotlib takes it: a name, a hexadecimal string, or three or four numbers from 0 to 1."""

Colours: TypeAlias = str | Numbers
"""One colour, or a sequence of a colour or a number for each token."""


_BESIDE_RED = tuple(colour for colour in OKABE_ITO if colour not in (VERMILION, BLACK))


def token_colours(n: int, labels: Numbers | None = None, colours: Any = None) -> np.ndarray:
    """The colour of each token, (n, 4), from cluster labels (n,), one colour, n colours or n numbers."""
    if labels is not None and colours is not None:
        raise ValueError("colours must be None where labels are given, but both say how tokens are coloured; pass one.")
    if labels is not None:
        return _label_colours(n, np.asarray(labels))
    if colours is None or isinstance(colours, str):
        return np.tile(to_rgba(BLUE if colours is None else colours), (n, 1))
    # Numbers are mapped to viridis; strings and RGB tuples are colours.
    if np.ndim(colours) == 1 and np.asarray(colours).dtype.kind in "iufb":
        rgba = np.asarray(colormaps["viridis"](Normalize()(real_array(colours, "colours"))))
    else:
        rgba = to_rgba_array(colours)
    if rgba.shape != (n, 4):
        raise ValueError(
            f"colours must be one for each of the {n} tokens, but there are {len(rgba)}; pass one colour, or {n}."
        )
    return rgba


def _label_colours(n: int, labels: np.ndarray) -> np.ndarray:
    if labels.shape != (n,) or labels.dtype.kind not in "iub":
        raise ValueError(
            f"labels must be {n} integers, one per token, but are of shape {labels.shape} and dtype {labels.dtype}; "
            "pass what clusterjax.cluster_labels gives."
        )
    # All negative labels count as one, which sorts first; after the shift, the ranks of the others start at 0.
    names, ranks = np.unique(np.where(labels < 0, -1, labels), return_inverse=True)
    ranks = ranks - int(names[0] < 0)
    most = int(ranks.max()) + 1
    # Vermilion and black are excluded: they resemble the red of the highlighted token and the outlines.
    palette = to_rgba_array(_BESIDE_RED) if most <= len(_BESIDE_RED) else colormaps["viridis"](np.linspace(0, 1, most))
    return np.where(ranks[:, None] < 0, to_rgba(GREY), palette[ranks])


def pale(rgba: Any, share: float | np.ndarray) -> np.ndarray:
    """Opaque colours mixed with white, which do not darken where markers overlap, unlike translucent colours."""
    rgba = np.array(rgba, dtype=np.float64)
    rgba[..., :3] = 1.0 - share * (1.0 - rgba[..., :3])
    return rgba


def shade(rgba: Any, light: float = 0.72) -> np.ndarray:
    """Slightly darker colours, for the rims of markers; white rims would whiten a spot with many tokens."""
    return np.array(rgba, dtype=np.float64) * [light, light, light, 1.0]


def token_legend(highlight: int | None, labels: Any = None, colours: Any = None) -> list[Line2D]:
    """The entries of the legend: the highlighted token, if there is one, and the others if they share one colour."""
    if highlight is None:
        return []
    shown: list[tuple[Any, Any, float, str]] = [
        (RED, INK, 5.5, "first token" if highlight == 0 else f"token {highlight}")
    ]
    if labels is None and (colours is None or isinstance(colours, str)):
        face = BLUE if colours is None else colours
        shown.insert(0, (face, shade(to_rgba(face)), 5.0, "tokens"))
    return [
        Line2D([], [], linestyle="", marker="o", markersize=size, mfc=face, mec=edge, mew=0.5, label=name)
        for face, edge, size, name in shown
    ]
