"""The style of all pictures: sizes, fonts and colours, which apply while a picture is drawn and never globally."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from .._check import as_numbers, check_concrete, check_host_array, check_number, refusal, shown


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
    return _styled(STYLE | {known[key]: _setting(value, key, known[key]) for key, value in overrides.items()})


@contextmanager
def _styled(settings: Any) -> Iterator[None]:
    with mpl.rc_context(settings):
        yield


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
    given: Any = {setting: value}
    try:
        # matplotlib validates a setting on assignment, with several types of errors.
        (taken,) = mpl.RcParams(given).values()
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


def figure_of(ax: Axes) -> Figure | SubFigure:
    """The figure of `ax`; raises a `ValueError` if `ax` was removed from its figure."""
    figure = ax.figure
    if figure is None:
        raise refusal("ax", "be in a figure", "it was removed from its own", "pass an Axes that is still in one")
    return figure


MOST_PIXELS = 2**28  # of a picture: more pixels do not fit into memory


def check_pixels(figure: Figure, dpi: float | int, name: str = "dpi") -> None:
    """Raise a `ValueError` if the figure has too many pixels."""
    count = float(np.prod(figure.get_size_inches())) * dpi**2
    if count > MOST_PIXELS:
        rule, problem = f"be such that a picture has at most {MOST_PIXELS:.0e} pixels", f"it has {count:.0e}"
        raise refusal(name, rule, problem, "choose a smaller one, or a smaller figure")


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
