"""The colours of tokens, and the legend for a highlighted token."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import Normalize, to_rgba, to_rgba_array
from matplotlib.lines import Line2D

from ._data import Numbers, real_array
from ._style import BLACK, BLUE, GREY, INK, OKABE_ITO, RED, VERMILION


Colour: TypeAlias = str | Sequence[Any] | np.ndarray
"""One colour, as matplotlib takes it: a name, a hexadecimal string, or three or four numbers from 0 to 1."""

Colours: TypeAlias = str | Numbers
"""One colour, or a sequence of a colour or a number for each token."""


_BESIDE_RED = tuple(colour for colour in OKABE_ITO if colour not in (VERMILION, BLACK))


def token_colours(n: int, labels: Numbers | None = None, colours: Any = None) -> np.ndarray:
    """The colour of each token, (n, 4), from cluster labels (n,), one colour, n colours or n numbers.

    Up to six labels have colours of Okabe and Ito, more labels have colours of viridis, and negative labels are grey.
    """
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
