"""One look for every picture: sizes, fonts and colours, applied while a picture is drawn and never globally."""

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
RED = "#D40A1E"  # the one token that is followed; it differs from its neighbours in size and outline as well
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
    # TrueType, which journals ask for, in place of Type 3.
    "pdf.fonttype": 42,
    # `save` cuts the margins itself.
    "savefig.bbox": None,
    "savefig.dpi": 300,
    "savefig.facecolor": "auto",
    "savefig.transparent": False,
    # Letters as outlines: the file looks the same where the font is not installed.
    "svg.fonttype": "path",
    # Without a salt the ids in an SVG are random, and no two files are the same.
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
    """The look of this library as a context: inside it the settings of matplotlib are ours, after it as they were.

    Every function of `clusterjax.plot` draws inside it already; use it around drawing of your own. It works as a
    decorator too.

    **Arguments:**

    - `overrides`: Settings of matplotlib that differ from ours, with underscores in place of dots in their names:
        `style(font_size=10)`.

    **Raises:**

    - `ValueError` if an override is not a setting of matplotlib, or not what that setting can be.
    """
    # Keywords have no dots.
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


# What a setting may be whose name ends so.
_SIZES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("size", {"above": 0, "most": 1000}),
    ("width", {"least": 0, "most": 1000}),
    ("dpi", {"above": 0, "most": 5000}),
)


def _setting(value: Any, name: str, setting: str) -> Any:
    """`value`, if matplotlib takes it for a setting, and it is finite and of a size that can be drawn."""
    check_concrete(value, name)
    array = as_numbers(value, name)
    given: Any = {setting: value}
    try:
        # matplotlib validates a setting as it is put into its dictionary, and tells by several kinds of errors.
        (taken,) = mpl.RcParams(given).values()
    except (TypeError, ValueError, OverflowError):
        raise refusal(name, f"be what matplotlib takes for {setting}", f"it is {shown(value)}", "pass that") from None
    if isinstance(taken, float):
        return check_number(value, name, **next((bounds for end, bounds in _SIZES if setting.endswith(end)), {}))
    if array is not None and np.issubdtype(array.dtype, np.inexact):
        check_host_array(array, name)
    return value


def new_axes(width: float | int = COLUMN, height: float | int = 2.4) -> Axes:
    """An Axes in a Figure of its own, `width` by `height` inches, which no global state knows of."""
    # Not by pyplot: its figures live until they are closed.
    return Figure(figsize=(width, height), layout="constrained").add_subplot()


def figure_of(ax: Axes) -> Figure | SubFigure:
    """The figure that holds `ax`, which is never None for an Axes that can be drawn on."""
    figure = ax.figure
    if figure is None:
        raise refusal("ax", "be in a figure", "it was removed from its own", "pass an Axes that is still in one")
    return figure


MOST_PIXELS = 2**28  # of a picture: more fit no memory


def check_pixels(figure: Figure, dpi: float | int, name: str = "dpi") -> None:
    """Raise a ValueError if the figure has too many pixels."""
    count = float(np.prod(figure.get_size_inches())) * dpi**2
    if count > MOST_PIXELS:
        rule, problem = f"be such that a picture has at most {MOST_PIXELS:.0e} pixels", f"it has {count:.0e}"
        raise refusal(name, rule, problem, "choose a smaller one, or a smaller figure")


def legend_above(ax: Axes, title: str | None = None, columns: int = 3) -> None:
    """A legend above the data of `ax`, where it hides nothing, and the title above the legend."""
    handles, names = ax.get_legend_handles_labels()
    columns = max(1, min(columns, len(names)))
    # -(-a // b) is a / b rounded up.
    rows = -(-len(names) // columns)
    if names:
        ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, borderaxespad=0.2, columnspacing=1.2)
    if title is not None:
        # 11.5 points are a row of the legend.
        ax.set_title(title, pad=4.0 + 11.5 * rows * bool(names))
