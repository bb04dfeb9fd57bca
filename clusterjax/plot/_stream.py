"""The residual streams of a text side by side, and what attention moves between them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch

from ._data import Numbers, real_array
from ._style import COLUMN, INK, OKABE_ITO, new_axes, style


_RISE = 0.62  # of a layer's height, by which what is moved arrives


@style()
def residual_flow(
    moved: Numbers,
    ax: Axes | None = None,
    *,
    written: Numbers | None = None,
    tokens: Sequence[str] | None = None,
    most: int = 24,
) -> Axes:
    """Each token's residual stream as a line upwards, with arcs for what heads move from stream to stream.

    The widths of the arcs are proportional to what is moved, one colour for each head; only the strongest are drawn,
    and none from a token to itself. Boxes on the streams are the feed-forward layers, filled the more the longer what
    they write is.

    **Arguments:**

    - `moved`: (layers, heads, n, n), what the head moves to token i from token j (last axis), not negative: such as
        `moved` of `transformer.residual_stream`, or the absolute value of its `share`.
    - `ax`: Where to draw; None makes one.
    - `written`: (layers, n), the length of what each feed-forward layer writes; None draws no boxes.
    - `tokens`: Their names, below the streams.
    - `most`: How many arcs.

    **Returns:**

    The Axes.

    **Raises:**

    - `ValueError` if the shapes do not match, something is negative or not finite, or `most` is not positive.

    ??? cite "Source"

        *Transformers, part 2*, slides 5 and 6, after Jurafsky, Martin, *Speech and language processing*, Chapter 9.
    """
    flow = real_array(moved, "moved")
    if flow.ndim != 4 or flow.shape[2] != flow.shape[3] or 0 in flow.shape:
        raise ValueError(f"moved must be (layers, heads, n, n), but its shape is {flow.shape}; pass all heads.")
    layers, heads, n, _ = flow.shape
    boxes = None if written is None else real_array(written, "written")
    if boxes is not None and boxes.shape != (layers, n):
        raise ValueError(
            f"written must be of shape {(layers, n)}, as moved is, but it is {boxes.shape}; pass (layers, n)."
        )
    for name, array in (("moved", flow), ("written", boxes)):
        if array is not None and not (np.isfinite(array).all() and (array >= 0).all()):
            raise ValueError(f"{name} must be finite and not negative, but it is not; take absolute values.")
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise ValueError(f"most must be a positive integer, but it is {most!r}; pass 24, say.")
    names = [str(k + 1) for k in range(n)] if tokens is None else [str(token) for token in tokens]
    if len(names) != n:
        raise ValueError(f"tokens must be {n} names, one for each token, but there are {len(names)}; name them all.")
    ax = new_axes(max(COLUMN, 0.55 * n), 1.0 + 0.9 * layers) if ax is None else ax
    ax.vlines(np.arange(n), -0.1, layers + 0.1, color="0.75", lw=2.2, zorder=1)
    _arcs(ax, flow, most)
    if boxes is not None:
        _boxes(ax, boxes)
    ax.set_xticks(np.arange(n), names, rotation=90 if max(map(len, names)) > 4 else 0)
    ax.set_yticks(np.arange(layers) + 0.5, [f"layer {k + 1}" for k in range(layers)])
    ax.set(xlim=(-0.6, n - 0.4), ylim=(-0.15, layers + 0.15))
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.tick_params(length=0)
    handles: list[Any] = [
        Line2D([], [], color=OKABE_ITO[h % len(OKABE_ITO)], lw=2, label=f"head {h + 1}") for h in range(heads)
    ]
    ax.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=min(heads, 4), handlelength=1.4)
    return ax


def _arcs(ax: Axes, flow: np.ndarray, most: int) -> None:
    others = flow * ~np.eye(flow.shape[2], dtype=bool)
    order = np.argsort(others, axis=None)[::-1][:most]
    top = others.max()
    for index in order[::-1]:
        layer, head, i, j = np.unravel_index(index, others.shape)
        size = others[layer, head, i, j]
        if size <= 0:
            continue
        steps = np.linspace(0, 1, 24)
        x = j + (i - j) * steps
        y = layer + 0.05 + _RISE * (3 * steps**2 - 2 * steps**3) + 0.02 * head
        points = np.stack([x, y], axis=1)
        segments = np.stack([points[:-1], points[1:]], axis=1)
        ax.add_collection(
            LineCollection(
                list(segments), colors=OKABE_ITO[head % len(OKABE_ITO)], linewidths=0.4 + 3.6 * size / top, alpha=0.85,
                capstyle="round", zorder=3,
            )
        )  # fmt: skip
        ax.plot(x[-1:], y[-1:], "o", ms=2.0 + 2.5 * size / top, color=OKABE_ITO[head % len(OKABE_ITO)], zorder=4)


def _boxes(ax: Axes, boxes: np.ndarray) -> None:
    top = boxes.max() if boxes.max() > 0 else 1.0
    for layer, row in enumerate(boxes):
        for k, size in enumerate(row):
            ax.add_patch(
                FancyBboxPatch(
                    (k - 0.14, layer + 0.79), 0.28, 0.13, boxstyle="round,pad=0.02", ec=INK, lw=0.5, zorder=5,
                    fc=str(1.0 - 0.75 * size / top),
                )
            )  # fmt: skip
