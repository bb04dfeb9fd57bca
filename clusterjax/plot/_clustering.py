"""The phase diagrams of the papers: a statistic over time and beta, with the exact curve of equiangular tokens."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap, to_rgba

from .._base.checks import refusal, shown
from .._model.mask import CausalMask
from .._observables import equiangular_time, orthogonal_time
from .._observables.equiangular import MOST_BETA, MOST_TOKENS
from ._door import door, integer_from, text
from ._maps import phase_diagram
from ._style import COLUMN, GREY, INK, MISSING, figure_of, new_axes


_LABELS = {"close_pairs": "share of close pairs", "gram_rank": "rank of the tokens", "cluster_rank": "clusters"}


@runtime_checkable
class DatasetLike(Protocol):
    """The used interface of an `xarray.Dataset`; the protocol avoids the import of xarray."""

    @property
    def coords(self) -> Mapping[Any, Any]: ...

    @property
    def attrs(self) -> Mapping[Any, Any]: ...

    def __contains__(self, key: object, /) -> bool: ...

    def __getitem__(self, key: Any, /) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...


@door(n=integer_from(1, 10**9), statistic=text)
def clustering_diagram(
    dataset: DatasetLike,
    ax: Axes | None = None,
    *,
    statistic: str = "close_pairs",
    n: int | None = None,
    delta: float | None = 1e-3,
    log_x: bool = False,
    title: str | None = None,
) -> Axes:
    """Draw the result of `clusterjax.sweep.phase_diagram` as colours, with time to the right and beta upwards.

    A curve shows the time at which all cosines of n initially orthogonal tokens, the limit of random tokens for d → ∞,
    are 1 - δ; for softmax attention a second curve shows the asymptote $e^β/(2β)$ for large β. A causal mask has no
    such common time, and three curves show the times at which a tenth, half and nine tenths of the pairs are this
    close, see `orthogonal_time`. Other masks, random V and random Q^T K have no curve.

    **Arguments:**

    - `dataset`: An `xarray.Dataset` over `beta` and `t`.
    - `ax`: The Axes to draw on; None makes a figure of one column.
    - `statistic`: The name of the variable of `dataset` to draw.
    - `n`: The number of tokens for the curves; None uses the attribute of `dataset`.
    - `delta`: The parameter δ of the curves; None draws no curve.
    - `title`: As for `phase_diagram`.
    - `log_x`: True draws time on a logarithmic axis, without time zero.

    **Returns:**

    The Axes.

    **Raises:**

    - `ValueError` if `dataset` is not a phase diagram, or has no such statistic or no number of tokens.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), the figures of Section 6.
    """
    remedy = "pass what clusterjax.sweep.phase_diagram returns"
    if isinstance(dataset, type) or not {"beta", "t"} <= set(getattr(dataset, "coords", ())):
        raise refusal("dataset", "have the coordinates beta and t", f"{shown(dataset)} has not", remedy)
    if statistic not in dataset or set(dataset[statistic].dims) != {"beta", "t"}:
        known = sorted(name for name in dataset if set(dataset[name].dims) == {"beta", "t"})
        raise ValueError(f"statistic must be one of {known}, but it is {statistic!r}; choose one of them.")
    grid = dataset[statistic].transpose("beta", "t").sortby("beta")
    grid = grid.isel(t=np.asarray(grid.t) > 0) if log_x else grid
    tokens: Any = dataset.attrs.get("n") if n is None else n
    if delta is not None and tokens is None:
        raise ValueError("n must be the number of tokens, for dataset does not say it; pass it, or delta=None.")
    other = dataset.attrs.get("attention") == "unnormalised"
    betas = np.asarray(grid.beta, float)
    plain = all(dataset.attrs.get(name, "Identity()") == "Identity()" for name in ("query_key", "value"))
    mask = dataset.attrs.get("mask", "FullMask()")
    if delta is None or not plain or mask not in ("FullMask()", "CausalMask()"):
        curves = {}
    elif mask == "CausalMask()":
        curves = _causal_curves(betas, np.asarray(grid.t, float), int(tokens), other, delta)
    else:
        curves = _curves(betas, int(tokens), other, delta)
    label = str(_LABELS.get(statistic) or grid.attrs.get("description", statistic))
    return phase_diagram(
        np.asarray(grid.t), betas, np.asarray(grid), ax, curves=curves, xlabel="time $t$",
        ylabel=r"inverse temperature $\beta$", label=label, log_x=log_x,
        limits=(0.0, 1.0) if statistic == "close_pairs" else None, title=title,
    )  # fmt: skip


def _curves(betas: np.ndarray, n: int, unnormalised: bool, delta: float) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The curves by name, extended slightly beyond the diagram."""
    margin = 0.05 * (np.ptp(betas) + 1)
    beta = np.linspace(max(betas[0] - margin, 0), betas[-1] + margin, 400)
    # Times beyond any diagram would overflow, so the logarithm is bounded.
    late = np.minimum(np.asarray(equiangular_time(1 - delta, beta, n, unnormalised=unnormalised, log=True)), 80.0)
    curves = {r"theory, $d \to \infty$": (np.exp(late), beta)}
    if not unnormalised:
        # The asymptote e^beta / (2 beta) is meaningless for beta < 1, where it increases again as beta decreases.
        beyond = beta[beta >= 1]
        if beyond.size:
            curves[r"$e^\beta / 2\beta$"] = np.exp(np.minimum(beyond, 80.0)) / (2 * beyond), beyond
    return curves


@runtime_checkable
class PlaceLike(Protocol):
    """Any object with the averages over texts of `beta`, `eigenvalue` and `rotation`, such as what `probe.place`
    returns."""

    @property
    def beta(self) -> Any: ...

    @property
    def eigenvalue(self) -> Any: ...

    @property
    def rotation(self) -> Any: ...


def _place(value: Any, name: str) -> Any:
    if isinstance(value, type) or not isinstance(value, PlaceLike):
        raise refusal(name, "be the places of heads", f"it is {shown(value)}", "pass what probe.place returns")
    return value


@door(heads=_place, depth=integer_from(1, 10**6), statistic=text)
def place(
    heads: PlaceLike,
    dataset: DatasetLike | None = None,
    ax: Axes | None = None,
    *,
    depth: int = 1,
    statistic: str = "close_pairs",
    title: str | None = None,
) -> Axes:
    """Draw the heads of a network as points over a phase diagram, at the time and the beta of the particle model.

    Both axes of `clustering_diagram` are numbers of a head: the flow of the diagram has V = I and B = βI, and a head
    with V = λI does in one layer, the unit of time, what this flow does in the time λ. A head is therefore at the real
    part of the leading eigenvalue of its V and at its effective beta, as `probe.place` defines both, with bars of one
    standard error over texts. The diagram has no place for a head whose leading eigenvalue is negative, which repels
    tokens: it is drawn left of the line at time 0. A head whose leading eigenvalues are a complex pair, which also
    rotates tokens, is a ring. Colours count the layers. Heads along checkpoints are lines, with a point at the last
    checkpoint. The cells are those of the tokens of `dataset`, not of the network; where the picture is grey, `dataset`
    has none.

    **Arguments:**

    - `heads`: The result of `probe.place` or `probe.place_checkpoints`.
    - `dataset`: The result of `clusterjax.phase.phase_diagram`; None draws the heads alone.
    - `ax`: The Axes to draw on; None makes a figure of one column.
    - `depth`: The number of layers in a row in which a head acts; times are multiplied by it.
    - `statistic`, `title`: As for `clustering_diagram`.

    **Returns:**

    The Axes.

    **Raises:**

    - `ValueError` if `heads` is not a result of `probe.place`, or in the cases of `clustering_diagram`.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2: heads and layers as a
        flow; Section 6: the diagram.
    """
    averages = heads.eigenvalue, heads.beta, heads.rotation
    shapes = {np.shape(part) for average in averages for part in (average.mean, average.error)}
    if len(shapes) > 1 or len(min(shapes)) < 2:
        problem = f"their shapes are {sorted(shapes)}"
        raise refusal("heads", "have averages of one shape (layers, heads)", problem, "pass what probe.place returns")
    means, errors = (
        np.asarray(parts, float).reshape(3, -1, *min(shapes)[-2:])
        for parts in ([average.mean for average in averages], [average.error for average in averages])
    )
    (times, betas, rotation), (late, off, _) = means, errors
    times, late = depth * times, depth * late
    ax = new_axes(COLUMN, 2.6) if ax is None else ax
    reach = [(0.0, 0.0), (0.0, 0.0)]
    if dataset is not None:
        clustering_diagram(dataset, ax, statistic=statistic, title=title)
        reach = [ax.get_xlim(), ax.get_ylim()]
    _, layers, count = times.shape
    colours = colormaps["RdPu"](np.linspace(0.35, 1.0, layers))  # apart from cividis and from the red curves
    for layer, colour in enumerate(colours):
        for head in range(count):
            at = (slice(None), layer, head)
            ax.plot(times[at], betas[at], color=colour, linewidth=0.7, zorder=5)
        last = (-1, layer)
        ax.errorbar(
            times[last], betas[last], off[last], late[last], linestyle="none", ecolor=colour, elinewidth=0.6, zorder=5
        )
        ring, white = (rotation[last] > 0)[:, None], to_rgba("white")
        faces, rims = np.where(ring, white, colour[None]), np.where(ring, colour[None], white)
        widths = np.where(ring[:, 0], 1.0, 0.4)
        points = ax.scatter(times[last], betas[last], s=16, c=faces, zorder=6)
        points.set(edgecolors=rims, linewidths=widths)
    # The picture holds the whole diagram and all heads.
    limits = [
        (min(low, values.min() - margin), max(high, values.max() + margin))
        for (low, high), values in zip(reach, (times, betas), strict=True)
        for margin in [0.03 * max(high, np.ptp(values))]
    ]
    ax.axvline(0, color=GREY, linewidth=0.5, zorder=2)
    ax.set(facecolor=MISSING, xlim=limits[0], ylim=limits[1], xlabel="time $t$, eigenvalue of heads")
    ax.set_ylabel(r"inverse temperature $\beta$")
    shade = ScalarMappable(BoundaryNorm(np.arange(layers + 1) - 0.5, layers), ListedColormap(colours))
    bar = figure_of(ax).colorbar(shade, ax=ax, label="layer", pad=0.02, fraction=0.05, aspect=24)
    bar.set_ticks(sorted({0, layers // 2, layers - 1}))
    bar.ax.tick_params(which="both", width=0.5, length=0)
    if dataset is None and title is not None:
        ax.set_title(title)
    return ax


# The fractions of pairs whose curves are drawn over a causal diagram, and the number of betas of each curve.
_SHARES, _BETAS = (0.1, 0.5, 0.9), 25


def _causal_curves(
    betas: np.ndarray, times: np.ndarray, n: int, unnormalised: bool, delta: float
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The times at which a fraction of the pairs is close, by name; times beyond the diagram are not computed."""
    # Larger betas and larger numbers of tokens would take minutes.
    if n > MOST_TOKENS or betas[0] > MOST_BETA:
        return {}
    beta, curves = np.linspace(betas[0], min(betas[-1], MOST_BETA), _BETAS), []
    for b in beta.tolist():
        late = orthogonal_time(np.array(_SHARES), b, n, 1 - delta, mask=CausalMask(), unnormalised=unnormalised)
        curves.append(late)
        # With softmax attention the times increase with beta.
        if not unnormalised and late[0] > times[-1]:
            break
    return {
        rf"${share:.0%}$ of pairs, $d \to \infty$".replace("%", r"\%"): (curve, beta[: len(curves)])
        for share, curve in zip(_SHARES, np.stack(curves, axis=1), strict=True)
    }


@runtime_checkable
class MergeTreeLike(Protocol):
    """Any object with the `times` and `pairs` of mergers among `num_tokens` tokens, and the final time `t_end`."""

    times: Any
    pairs: Any
    num_tokens: int
    t_end: float


def _tree(value: Any, name: str) -> Any:
    if isinstance(value, type) or not isinstance(value, MergeTreeLike):
        raise refusal(name, "be a tree of mergers", f"it is {shown(value)}", "pass what clusterjax.coarsen returns")
    return value


@door(tree=_tree)
def dendrogram(tree: MergeTreeLike, ax: Axes | None = None) -> Axes:
    """Draw the mergers of tokens as a tree, with time to the right on a logarithmic axis.

    Tokens are ordered so that no two lines cross. Mergers at time 0 are at the left edge, and the lines of the final
    clusters continue to the right edge.

    **Arguments:**

    - `tree`: The result of `coarsen`.
    - `ax`: The Axes to draw on; None makes a figure of one column.

    **Returns:**

    The Axes.

    **Raises:**

    - `ValueError` if `tree` is not a tree of mergers.
    """
    times, pairs = np.asarray(tree.times, float), np.asarray(tree.pairs, int)
    n = int(tree.num_tokens)
    if times.ndim != 1 or pairs.shape != (len(times), 2) or np.any(pairs < 0) or np.any(pairs >= n):
        raise refusal("tree", "hold a pair of tokens for each time", "it does not", "pass what coarsen returns")
    first, last = _range(times, float(tree.t_end))
    # The members of each component, in the order of the picture.
    members = {token: [token] for token in range(n)}
    for a, b in pairs.tolist():
        if a == b or a not in members or b not in members:
            remedy = "pass what coarsen returns"
            raise refusal("tree", "merge clusters that are still there", f"it merges {a} with {b}", remedy)
        members[a] += members.pop(b)
    order = [token for component in members.values() for token in component]
    height = {token: float(place) for place, token in enumerate(order)}
    since = dict.fromkeys(range(n), first)
    ax = new_axes() if ax is None else ax
    lines = []
    for time, (a, b) in zip(np.clip(times, first, last), pairs.tolist(), strict=True):
        low, high = height[a], height.pop(b)
        lines += [([since[a], time], [low, low]), ([since.pop(b), time], [high, high]), ([time, time], [low, high])]
        height[a], since[a] = (low + high) / 2, time
    lines += [([since[token], last], [height[token]] * 2) for token in height]
    for x, y in lines:
        ax.plot(x, y, color=INK, linewidth=0.8, solid_capstyle="round")
    ax.set(xscale="log", xlim=(first, last), ylim=(-0.5, n - 0.5), xlabel="t", ylabel="token")
    ax.set_yticks(range(n) if n <= 24 else [], [str(token) for token in order] if n <= 24 else [])
    return ax


def _range(times: np.ndarray, t_end: float) -> tuple[float, float]:
    """The two ends of the axis of time, with a margin around the times of mergers."""
    later = times[times > 0]
    if not later.size:
        return min(1.0, t_end) / 10, t_end if t_end < 1e3 else 10.0
    first = float(later.min()) / 3
    return first, max(min(float(later.max()) * 3, t_end), first * 1.1)
