"""Pictures of positions: tables of sinusoidal or learned positions, and vectors of relative positions."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ._door import door, real, several
from ._maps import heatmap
from ._stream import head_look
from ._style import GREY, Colour, Numbers, legend_above, new_axes


@door(table=real("n", "d"))
def position_table(table: Numbers, ax: Axes | None = None) -> Axes:
    """Draw the vectors of positions as colours, one row for each position, with position 0 at the top and zero in
    white.

    The columns of sinusoidal positions are waves, whose wavelength increases from left to right.

    **Arguments:**

    - `table`: The vectors (n, d), such as `transformer.sinusoidal_positions(n, d)`, or `table` of
        `transformer.LearnedPositions`.
    - `ax`: The Axes to draw on; None makes a figure of one column.

    **Returns:**

    The Axes.

    **Raises:**

    - `ValueError` if `table` is not a matrix of finite numbers.

    ??? cite "Source"

        *Transformers, part 2*, slides 22 to 26; Vaswani et al., *Attention is all you need* (1706.03762), Section 3.5.
    """
    return heatmap(table, ax, xlabel="dimension", ylabel="position", label="entry", symmetric=True)


@door(table=real("n", "d"))
def position_cosines(table: Numbers, ax: Axes | None = None) -> Axes:
    """Draw the cosine of the angle between the vectors of each two positions, from -1 to 1, with position 0 at the top.

    The cosines of sinusoidal positions are constant along each diagonal. Large cosines off the diagonal of a learned
    table are learned, since those of random vectors are of order 1 / sqrt(d). Positions with a zero vector are grey.

    **Arguments:**

    - `table`: The vectors (n, d), as for `position_table`.
    - `ax`: The Axes to draw on; None makes a figure of one column.

    **Returns:**

    The Axes.

    **Raises:**

    - `ValueError` if `table` is not a matrix of finite numbers.

    ??? cite "Source"

        *Transformers, part 2*, slide 26; Devlin et al., *BERT* (1810.04805), whose table is learned.
    """
    array = np.asarray(table)
    lengths = np.linalg.norm(array, axis=1, keepdims=True)
    # Zero vectors become NaN instead of 0 / 0, so that their rows are grey.
    units = np.divide(array, lengths, out=np.full_like(array, np.nan), where=lengths > 0)
    cosines = np.clip(units @ units.T, -1.0, 1.0)
    return heatmap(
        cosines, ax, xlabel="position", ylabel="position", label="cosine", symmetric=True, limits=(-1.0, 1.0)
    )


@door(table=real("n", "d"))
def position_offsets(
    table: Numbers,
    ax: Axes | None = None,
    *,
    label: str | None = None,
    colour: Colour | None = None,
) -> Axes:
    """Draw the inner product $⟨p_i, p_{i + k}⟩$ against the offset k: the mean over i, and a band from the smallest to
    the largest.

    The inner product of sinusoidal positions depends on k alone, $∑_m cos(k / 10000^{2m/d})$, so that the band has zero
    width, and attention can read distances from the positions. Further calls on the returned Axes compare tables.

    **Arguments:**

    - `table`: The vectors (n, d), as for `position_table`, with n at least 2; k goes from -(n - 1) to n - 1.
    - `ax`: The Axes to draw on; None makes a figure of one column.
    - `label`: The name of the line in the legend; None adds no entry.
    - `colour`: The colour of the line and the band.

    **Returns:**

    The Axes.

    **Raises:**

    - `ValueError` if `table` is not a matrix of finite numbers with at least two rows.

    ??? cite "Source"

        Vaswani et al., *Attention is all you need* (1706.03762), Section 3.5; *Transformers, part 2*, slide 24.
    """
    array = np.asarray(table)
    n = len(array)
    if n < 2:
        raise ValueError("table must be of two positions at least, but it is of one; offsets lie between two.")
    products = array @ array.T
    # The products at offset k are the k-th diagonal, and those at -k are equal, since the matrix is symmetric.
    diagonals, offsets = [np.diagonal(products, k) for k in range(n)], np.arange(1 - n, n)
    low, mean, high = (np.array([f(row) for row in diagonals])[np.abs(offsets)] for f in (np.min, np.mean, np.max))
    ax = new_axes() if ax is None else ax
    (line,) = ax.plot(offsets, mean, color=colour, label=label, zorder=3)
    ax.fill_between(offsets, low, high, color=line.get_color(), alpha=0.22, linewidth=0, zorder=2)
    ax.set(xlabel="offset k between positions", ylabel="⟨p(i), p(i + k)⟩")
    ax.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    ax.margins(x=0.01)
    legend_above(ax)
    return ax


@door(vectors=real("2 m + 1", "k"), queries=real("heads", "queries", "k"), beta=several)
def relative_positions(
    vectors: Numbers,
    ax: Axes | None = None,
    *,
    queries: Numbers | None = None,
    beta: Numbers = 1.0,
    label: str | None = None,
    colour: Colour | None = None,
) -> Axes:
    """Draw the effect of relative positions at each distance $r = clip(j - i)$ from the query i to the key j.

    With queries, the picture shows the term $β_h ⟨q^h_i, a_r⟩$ that each head adds to its score: the mean over the
    queries with a band of one standard deviation. Without queries, it shows the norm of each vector, which bounds the
    term of a query of norm 1 with beta 1. Beyond the clipping distance m the value of m is drawn dotted; a causal model
    has no distances above 0. Further calls on the Axes add lines, such as the vectors of the values.

    **Arguments:**

    - `vectors`: $a_r$ for the distances -m to m, (2 m + 1, k), such as `keys` of `transformer.RelativePositions`.
    - `ax`: The Axes to draw on; None makes a figure of one column.
    - `queries`: $q^h_i$, (heads, queries, k), such as `jnp.einsum("nd,hdk->hnk", x, attention.query)`.
    - `beta`: The inverse temperature, () or (heads,), such as `attention.beta`.
    - `label`: The name of the line in the legend without queries; with queries the legend counts heads from 1.
    - `colour`: The colour of the line without queries.

    **Returns:**

    The Axes.

    **Raises:**

    - `ValueError` if the number of rows of `vectors` is even, or `queries` or `beta` do not match.

    ??? cite "Source"

        Shaw, Uszkoreit, Vaswani, *Self-attention with relative position representations* (1803.02155), eqs. (4) and
        (5); *Transformers, part 2*, slide 27.
    """
    array = np.asarray(vectors)
    if len(array) % 2 != 1:
        raise ValueError(
            f"vectors must have a row for each distance from -m to m, but their shape is {array.shape}; pass "
            "(2 m + 1, k)."
        )
    added = None if queries is None else _added(array, queries, beta)
    ax = new_axes() if ax is None else ax
    if added is None:
        _clipped(ax, np.linalg.norm(array, axis=1), None, color=colour, label=label)
        ax.set_ylim(0, 1.05 * max(float(np.max(line.get_ydata())) for line in ax.lines) or 1.0)
    else:
        ax.axhline(0, color=GREY, lw=0.5, zorder=1)
        for h, terms in enumerate(added):
            _clipped(ax, terms.mean(axis=0), terms.std(axis=0), label=f"head {h + 1}", **head_look(h))
    _name_distances(ax, len(array) // 2)
    ax.set_ylabel("length of the vector" if added is None else "added to the score")
    lines = len(ax.get_legend_handles_labels()[1])
    legend_above(ax, columns=-(-lines // max(1, -(-lines // 4))))
    return ax


def _added(vectors: np.ndarray, queries: Numbers, beta: Numbers) -> np.ndarray:
    """The term that each head adds to the score for each query and distance, (heads, queries, 2 m + 1)."""
    array, factor = np.asarray(queries), np.asarray(beta)
    if array.shape[2] != vectors.shape[1]:
        raise ValueError(
            f"queries must be (heads, queries, {vectors.shape[1]}) as vectors are, but their shape is {array.shape}; "
            "pass those of each head."
        )
    if factor.shape not in ((), array.shape[:1]):
        raise ValueError(
            f"beta must be () or ({len(array)},), but its shape is {factor.shape}; pass one for each head."
        )
    return factor.reshape(-1, 1, 1) * (array @ vectors.T)


def _clipped(ax: Axes, line: np.ndarray, spread: np.ndarray | None, **style: Any) -> None:
    """Draw a line over the distances, with dotted ends beyond the clipping distance."""
    farthest = len(line) // 2
    distances = np.arange(-farthest, farthest + 1)
    (drawn,) = ax.plot(distances, line, marker="o", ms=2.4, lw=1.1, zorder=3, **style)
    colour = drawn.get_color()
    for end, way in ((0, -1), (-1, 1)):
        # The dotted ends stand for all farther distances, which share the value of the clipping distance.
        ends = distances[end] + np.array([0.0, 0.12 * way * max(farthest, 1)])
        ax.plot(ends, line[[end, end]], ":", lw=1.1, color=colour, zorder=3)
    if spread is not None:
        ax.fill_between(distances, line - spread, line + spread, color=colour, alpha=0.18, linewidth=0, zorder=2)


def _name_distances(ax: Axes, farthest: int) -> None:
    # The axis has at most four ticks on either side of 0, and both ends.
    step = max(1, -(-farthest // 4))
    inner = [k * step for k in range(-4, 5) if abs(k * step) + 0.6 * step < farthest or k == 0]
    ticks = sorted({-farthest, *inner, farthest})
    names = [f"{tick}".replace("-", "−") for tick in ticks]
    if farthest:
        names[0], names[-1] = f"≤ {names[0]}", f"≥ {names[-1]}"
    ax.set_xticks(ticks, names)
    ax.set_xlabel("distance j − i from query i to key j")
    ax.margins(x=0.01)
