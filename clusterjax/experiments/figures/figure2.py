"""What figure 2 measures of the heads of a network: what tokens receive, sinks, and groups of heads that are alike.

Two heads are compared by the correlation of their attention maps, mean over texts. Groups are those of average linkage
on 1 - correlation, cut at two, as the paper says. Any set of heads can be cut in two, so that a cut counts as clusters
only if it is stable under resampled articles (adjusted Rand index), has no head alone, and heads of a group are more
alike than heads of different groups by a margin and by two standard errors. All errors are over articles, each with all
its texts.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax.random as jr
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from scipy.stats import t

from ... import probe
from ..._base.checks import check_integer
from ...plot import style, time_series
from ...probe.measures.survey import average_of, clustered_error
from ..framework.experiment import (
    MOST_OF_NETWORK,
    Claim,
    Outcome,
    Settings,
    over,
    parameter,
    plus_minus,
)
from ..framework.figure import declared
from ..shared.controls import (
    COLOURS,
    DRAWS,
    LINES,
    NAMES,
    NAMES_OF_CONTROLS,
    Run,
    against,
    measured,
    random_words,
    runs_of,
)
from ..shared.layout import WIDTH, drawable
from ..shared.networks import Network, articles_words, network_of
from ..shared.sources import PEAT_FIGURE_2


CLUSTERS = 2  # as the paper says
BATCH = 16
STABLE = 0.8  # adjusted Rand index
APART = 0.1  # by how much the correlation within a cluster exceeds that between two


@dataclass(frozen=True)
class Parameters:
    """What of figure 2 can be set."""

    draws: int = parameter(DRAWS, "the number of networks of random weights", least=2, most=32)
    replicates: int = parameter(100, "how often articles are resampled", least=20, most=10_000)
    layer: int = parameter(
        0, "the layer at which a text is shown, 0 being the one with the strongest sink", least=0, most=MOST_OF_NETWORK
    )


@dataclass(frozen=True, eq=False)
class Results:
    """All that figure 2 shows: what is measured of the heads of a network, over texts.

    **Attributes:**

    - `activation`: What each token of one text receives.
    - `of_sinks`: The mass on the first token and on special ones, beside its controls.
    - `targets`: What each of these is called; one that is the first token of every text is not there twice.
    - `of_heads`: The correlations of heads, beside their controls.
    - `articles`: The article of each text, the independent unit of errors, (texts,).
    """

    p: Parameters
    activation: probe.Activation
    of_sinks: probe.Controls
    targets: dict[str, str]
    of_heads: probe.Controls
    articles: np.ndarray

    @property
    def sinks(self) -> probe.AttentionSinks:
        """Of the trained network on its texts."""
        return self.of_sinks.trained

    @property
    def alike(self) -> probe.HeadCorrelations:
        """Likewise."""
        return self.of_heads.trained

    @property
    def strongest(self) -> tuple[str, int, int]:
        """Target, layer and head of the largest excess over uniform attention."""
        # The target whose largest excess is the largest of all.
        name = max(self.targets, key=lambda target: self.sinks.excess[target].mean.max())
        excess = self.sinks.excess[name].mean
        # argmax of a matrix is a number in its flattened form.
        layer, head = np.unravel_index(np.argmax(excess), excess.shape)
        return name, int(layer), int(head)

    @property
    def shown(self) -> int:
        """The layer at which a text is shown, from 0."""
        return self.p.layer - 1 if self.p.layer else self.strongest[1]

    @property
    def between(self) -> np.ndarray:
        """The mean correlation of two different heads, (layers,)."""
        return self.alike.between()

    @property
    def between_resampled(self) -> np.ndarray:
        """The same for each resample of the articles, (replicates, layers)."""
        # The diagonal holds each head with itself, which is 1 and says nothing.
        others = ~np.eye(self.alike.correlation.mean.shape[-1], dtype=bool)
        return self.alike.resampled[..., others].mean(axis=-1)

    @property
    def lines(self) -> list[Run]:
        """The mean correlation of two heads: mean and error over texts, (layers,), trained and controls."""
        return runs_of(self.of_heads, lambda alike: alike.between_heads)

    @property
    def beyond(self) -> tuple[probe.Comparison, probe.Comparison]:
        """The excess of the strongest sink, at the head that has most of it, beyond those of the controls."""
        return self.of_sinks.compare(largest_of(self.strongest[0]))

    def groups(self, layer: int) -> "Groups":
        """The clusters at a layer, from 0."""
        return groups_of(self.alike, layer)

    def over_twice(self, name: str) -> np.ndarray:
        """Where the mass exceeds twice the uniform one by two standard errors, (layers, heads)."""
        mass, excess = self.sinks.mass[name].values, self.sinks.excess[name].values
        assert mass is not None and excess is not None
        # The uniform mass of a text is mass - excess, so that mass - 2 * uniform is this, text by text.
        beyond = clustered_error(2 * excess - mass, self.articles)
        return beyond.mean > 2 * beyond.error


class Groups(NamedTuple):
    """The clusters of heads at one layer.

    **Attributes:**

    - `heads`: The heads of each, from 0, the largest first.
    - `within`: The mean correlation of two heads of each; NaN for a head alone.
    - `across`: That of two heads of different clusters.
    - `margins`: By how much the former exceeds the latter, with its error by resampling articles.
    - `stability`: The adjusted Rand index of the clusters and those of a resample.
    """

    heads: list[list[int]]
    within: list[float]
    across: float
    margins: list[tuple[float, float]]
    stability: float

    @property
    def real(self) -> bool:
        """Whether they are clusters: stable, of two heads or more, more alike than heads of different ones."""
        return self.stability >= STABLE and all(margin > max(APART, 2 * error) for margin, error in self.margins)

    @property
    def word(self) -> str:
        """What they are, in a word."""
        if self.real:
            return "clusters"
        return "outlier" if self.stability >= STABLE and min(map(len, self.heads)) == 1 else "unsure"

    @property
    def numbers(self) -> list[list[int]]:
        """The heads of each, from 1."""
        return [[head + 1 for head in heads] for heads in self.heads]


def groups_of(alike: probe.HeadCorrelations, layer: int) -> Groups:
    """The clusters at a layer, and how far they are any."""
    labels, mean, resampled = alike.clusters.labels[layer], alike.correlation.mean[layer], alike.resampled[:, layer]
    # (heads, heads): pairs of heads of different clusters.
    apart = labels[:, None] != labels[None, :]
    groups = alike.clusters.groups(layer)
    within, margins = [], []
    for heads in groups:
        # Pairs of two different heads of this cluster; a head alone has none.
        inside = np.isin(np.arange(len(labels)), heads)
        pairs = inside[:, None] & inside[None, :] & ~np.eye(len(labels), dtype=bool)
        within.append(float(_mean(mean, pairs)))
        # The margin of each resample, whose spread is the standard error.
        spread = _mean(resampled, pairs, apart).std(ddof=1)
        margins.append((float(_mean(mean, pairs, apart)), float(spread)))
    return Groups(groups, within, float(_mean(mean, apart)), margins, float(alike.clusters.stability[layer]))


def _mean(stack: np.ndarray, pairs: np.ndarray, less: np.ndarray | None = None) -> np.ndarray:
    """The mean over pairs of heads, less that over others; NaN if there are none."""
    # The mean over no pairs is none.
    if not pairs.any() or (less is not None and not less.any()):
        return np.full(stack.shape[:-2], np.nan)
    mean = stack[..., pairs].mean(axis=-1)
    return np.asarray(mean if less is None else mean - stack[..., less].mean(axis=-1))


def measure(p: Parameters, network: Network, settings: Settings, say: Callable[[str], None]) -> Results:
    """All measures of one network on its texts; the text that is shown alone is the first. A run that was killed goes
    on from the folder `settings.store`.

    **Raises:**

    - `ValueError` if the network has one head.
    """
    model, texts, store = network.model, network.texts, settings.store
    if model.num_heads < 2:
        raise ValueError(f"albert must have two heads or more for figure 2, but {model.name!r} has one; name another.")
    say(f"measuring {model.num_heads} heads in {model.num_layers} layers on {len(texts.mask)} texts, with two controls")
    key = jr.key(settings.seed)
    sinks = functools.partial(probe.attention_sinks, special=network.special, batch_size=BATCH)
    alike = functools.partial(
        probe.head_correlations, clusters=CLUSTERS, replicates=p.replicates, key=key, batch_size=BATCH,
        units=network.articles,
    )  # fmt: skip
    # Two folders: the two surveys keep files of the same names.
    below = lambda name: None if store is None else store / name
    of_sinks = measured(sinks, network, key, draws=p.draws, store=below("sinks"))
    of_heads = measured(alike, network, key, draws=p.draws, store=below("heads"))
    # One text, the first: its tokens are drawn by name.
    one = probe.token_activation(model, probe.Encoded(texts.token_ids[:1], texts.mask[:1]))
    return Results(p, one, of_sinks, targets_of(of_sinks.trained), of_heads, network.articles)


def largest_of(name: str) -> Callable[[probe.AttentionSinks], probe.Average]:
    """Picks the excess of the head that has most of it in the mean, (levels,), with the values of texts."""

    def pick(sinks: probe.AttentionSinks) -> probe.Average:
        excess = sinks.excess[name]
        assert excess.values is not None
        # The head is chosen by the mean over texts and then kept for all of them: a largest head for each text would
        # always be beyond zero.
        heads = excess.mean.argmax(axis=1)
        values = excess.values[:, np.arange(len(heads)), heads]
        return average_of(values)

    return pick


def targets_of(sinks: probe.AttentionSinks) -> dict[str, str]:
    """What the targets are called; a special token that always stands first is that, and not another."""
    values: dict[str, Any] = {name: average.values for name, average in sinks.mass.items()}
    # [CLS] stands first in every text: the first token and it are one target.
    same = [name for name, each in values.items() if name != "first" and np.array_equal(each, values["first"])]
    first = " ".join(["first token", *same])
    return {"first": first} | {name: name for name in values if name not in ("first", *same)}


# The panels of figure 2: heads against tokens, layers against heads, heads against heads.


SIGNED = "RdBu_r"
FIRST, LAST = 20, 3  # tokens of the text that are shown


@dataclass(frozen=True, eq=False)
class Panels:
    """What figure 2 draws.

    **Attributes:**

    - `received`: What the tokens of a text receive at one layer, (heads, n), 1 for uniform.
    - `tokens`: Their names; the first `ends[0]` and the last `ends[1]` are shown.
    - `layer`: That layer, from 1.
    - `excess`: By what the target is called, beyond uniform, the `Average` over texts, (layers, heads).
    - `target`: What the target of panel (c) is called.
    - `largest`: Its excess at the head that has most of it: mean and standard error, (layers,), trained and controls.
    - `correlation`: The matrices (heads, heads) to show, by layer from 1.
    - `groups`: The clusters of heads by layer from 1, heads from 0.
    - `verdicts`: What to say of them, likewise.
    - `between`: The mean correlation of two heads: mean and standard error, (layers,), trained and controls.
    """

    received: np.ndarray
    tokens: list[str]
    ends: tuple[int, int]
    layer: int
    excess: dict[str, probe.Average]
    target: str
    largest: list[Run]
    correlation: dict[int, np.ndarray]
    groups: dict[int, list[list[int]]]
    verdicts: dict[int, str]
    between: list[Run]


def draw(network: Network, m: Results) -> Figure:
    """The picture."""
    return _draw(panels_of(network, m))


def panels_of(network: Network, m: Results) -> Panels:
    """What is drawn of the measurement: one text at one layer, and three layers of groups."""
    one, names, layer = m.activation, network.names or {}, m.shown
    layers = len(m.between)
    # First, middle and last layer; a set, as few layers have fewer.
    shown = sorted({0, (layers - 1) // 2, layers - 1})
    groups = {k: m.groups(k) for k in shown}
    return Panels(
        # Times n: 1 is what uniform attention gives.
        received=one.received[layer] * len(one.token_ids),
        tokens=one.words or [names.get(int(token), str(token)) for token in one.token_ids],
        ends=(FIRST, LAST),
        layer=layer + 1,
        excess={words: m.sinks.excess[name] for name, words in m.targets.items()},
        target=m.targets[m.strongest[0]],
        largest=runs_of(m.of_sinks, largest_of(m.strongest[0])),
        correlation={k + 1: m.alike.correlation.mean[k] for k in shown},
        groups={k + 1: groups[k].heads for k in shown},
        verdicts={k + 1: f"{groups[k].word}, {groups[k].stability:.2f}" for k in shown},
        between=m.lines,
    )


@style()
def _draw(panels: Panels) -> Figure:
    heads = len(panels.received)
    high = 0.55 + 0.085 * max(heads, 8)
    figure = Figure(figsize=(WIDTH, high + 4.3), layout="constrained")
    top, middle, bottom = figure.subfigures(3, 1, height_ratios=(high + 0.35, 2.0, 1.95))  # pyright: ignore
    _activation(top.subplots(), panels)
    many = len(panels.excess)
    axes = middle.subplots(1, many + 1, width_ratios=[1.0] * many + [1.15])
    _sinks(axes[:-1], panels)
    _lines(axes[-1], panels.largest, f"largest excess, {panels.target}")
    axes[-1].axhline(0, color="0.6", lw=0.6, zorder=0)
    many = len(panels.correlation)
    axes = bottom.subplots(1, many + 1, width_ratios=[1.0] * many + [1.15])
    _correlations(axes[:-1], panels)
    _lines(axes[-1], panels.between, "mean correlation")
    figure.legend(*axes[-1].get_legend_handles_labels(), loc="outside lower right", ncols=3, handlelength=2.8)
    lettered = (top.axes[0], middle.axes[0], middle.axes[len(panels.excess)], axes[0], axes[-1])
    for letter, ax in zip("abcde", lettered, strict=True):
        ax.text(-0.03, 1.03, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _activation(ax: Axes, panels: Panels) -> None:
    first, last = panels.ends
    received, names = panels.received, [drawable(token) for token in panels.tokens]
    if len(names) > first + last + 1:
        # A grey column stands for the tokens that are left out.
        gap = np.full((len(received), 1), np.nan)
        received = np.hstack([received[:, :first], gap, received[:, -last:]])
        names = [*names[:first], "…", *names[-last:]]
    # The colour scale is symmetric about 1 in the logarithm, and bounded.
    reach = float(np.clip(np.nanmax(received), 2.0, 32.0))
    image = ax.imshow(
        np.ma.masked_invalid(np.maximum(received, 1 / reach)), cmap=colormaps[SIGNED].with_extremes(bad="0.85"),
        norm=LogNorm(1 / reach, reach), aspect="auto", interpolation="nearest",
    )  # fmt: skip
    ax.set_xticks(np.arange(len(names)), names, rotation=90 if max(map(len, names)) > 2 else 0)
    _head_ticks(ax.yaxis, np.arange(1, len(received) + 1))
    ax.set(ylabel="head", title=f"attention received at layer {panels.layer}")
    ticks = [tick for tick in (1 / 16, 1 / 4, 1, 4, 16) if 1 / reach <= tick <= reach]
    _bar(ax, image, "× uniform", ticks, [f"{tick:g}" if tick >= 1 else f"1/{1 / tick:.0f}" for tick in ticks])
    _frame(ax)


def _sinks(axes: Any, panels: Panels) -> None:
    reach = max(float(np.abs(average.mean).max()) for average in panels.excess.values())
    image = None
    for ax, (words, average) in zip(axes, panels.excess.items(), strict=True):
        layers, heads = average.mean.shape
        image = ax.imshow(average.mean.T, cmap=SIGNED, vmin=-reach, vmax=reach, aspect="auto", interpolation="nearest")
        # Dots mark what is not beyond two standard errors of zero.
        layer, head = np.nonzero(np.abs(average.mean) <= 2 * average.error)
        ax.scatter(layer, head, s=2.0, color="0.25", linewidths=0)
        ax.set(title=words, xlabel="layer")
        _head_ticks(ax.yaxis, np.arange(1, heads + 1))
        _layer_ticks(ax, layers)
        _frame(ax)
    axes[0].set_ylabel("head")
    _bar(axes[-1], image, "excess over uniform")


def _correlations(axes: Any, panels: Panels) -> None:
    image = None
    for ax, (layer, matrix) in zip(axes, panels.correlation.items(), strict=True):
        groups = panels.groups[layer]
        # Heads of a cluster stand side by side, lines between clusters.
        order = np.array([head for heads in groups for head in heads])
        image = ax.imshow(matrix[order][:, order], cmap=SIGNED, vmin=-1, vmax=1, interpolation="nearest")
        for border in np.cumsum([len(heads) for heads in groups])[:-1] - 0.5:
            for line in (ax.axhline, ax.axvline):
                line(border, color="0.1", lw=1.0)
        ax.set_title(f"layer {layer}: {panels.verdicts[layer]}", fontsize=7)
        _head_ticks(ax.yaxis, order + 1)
        _head_ticks(ax.xaxis, order + 1)
        ax.tick_params(axis="x", labelrotation=90 if len(order) > 9 else 0)
        ax.set_xlabel("head")
        _frame(ax)
    axes[0].set_ylabel("head")
    _bar(axes[-1], image, "correlation")


def _lines(ax: Axes, runs: list[Run], label: str) -> None:
    """Trained and controls against the layer."""
    layers = np.arange(1, len(runs[0][0]) + 1)
    for (mean, error), name, colour, line in zip(runs, NAMES, COLOURS, LINES, strict=False):
        error = error if error is not None and np.isfinite(error).all() else None
        time_series(layers, mean, error, ax, colour=colour, linestyle=line, label=name, xlabel="layer", ylabel=label)
    legend = ax.get_legend()
    if legend is not None:
        legend.remove()
    _layer_ticks(ax, len(layers), from_zero=False)


def _bar(ax: Axes, image: Any, label: str, ticks: Any = None, labels: Any = None) -> None:
    figure: Any = ax.figure
    bar = figure.colorbar(image, ax=ax, label=label, pad=0.02, fraction=0.06, aspect=22)
    bar.outline.set_linewidth(0.4)
    bar.ax.tick_params(width=0.5, length=2, which="major")
    if ticks is not None:
        bar.set_ticks(ticks, labels=labels)
        bar.ax.minorticks_off()


def _head_ticks(axis: Any, heads: np.ndarray) -> None:
    # Many heads have small numbers.
    size = 7 if len(heads) <= 8 else 5.5 if len(heads) <= 12 else 4.5 if len(heads) <= 16 else 3.5
    axis.set_ticks(np.arange(len(heads)), [str(head) for head in heads], fontsize=size)
    axis.set_tick_params(length=0)


def _layer_ticks(ax: Axes, layers: int, *, from_zero: bool = True) -> None:
    """Ticks at a few layers, counted from 1; in a map layer 1 stands at 0."""
    step = max(1, -(-layers // 6))
    shown = np.arange(1, layers + 1, step)
    # True counts as 1: in a map layer 1 is drawn at 0.
    ax.set_xticks(shown - from_zero, [str(layer) for layer in shown])


def _frame(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(True)


# Figure 2: what the heads of a trained network attend to, and which of them do it alike.


CHANCE = 0.0228  # how often nothing exceeds two standard errors


def caption_of(network: Network, m: Results) -> str:
    """What is seen, and what the groups of heads are worth."""
    name, layer, head = m.strongest
    groups, between = m.groups(-1), m.between
    listed = " and ".join(map(str, groups.numbers))
    # The word of `Groups.word` decides the sentence.
    verdict = {
        "clusters": f"At the last layer {listed} are two stable clusters",
        "outlier": f"At the last layer {listed} are not two clusters, but one and a head apart from it",
        "unsure": f"At the last layer {listed} are not borne out as two clusters",
    }[groups.word]
    tokens = len(m.activation.token_ids)
    shortened = f", the first {FIRST} and the last {LAST} of them" if tokens > FIRST + LAST + 1 else ""
    towards = " and ".join(f"to {'the ' * (target == 'first')}{words}" for target, words in m.targets.items())
    return (
        f"The heads of {network.words}: {network.of_texts}. Heads and layers are counted from 1. (a) What each of "
        f"{tokens} tokens of one text receives{shortened}: the mean over the attending tokens, 1 being the uniform "
        f"1/n, at layer {m.shown + 1}, which {'has' if m.shown == layer else 'was asked for and has not'} the "
        f"strongest sink. (b) The weight that the other tokens give {towards}, beyond that of uniform attention; means "
        f"over texts, with a dot where this is within two standard errors of none. It is largest at layer "
        f"{layer + 1}, head {head + 1}, {m.targets[name]}. (c) This excess at the head that has most "
        "of it at each layer, with that of shuffled tokens and of "
        f"{random_words(network, m.p.draws)}. (d) Correlations of the attention maps of heads, ordered by the "
        f"{CLUSTERS} clusters of average linkage, with lines between these, and their stability: the adjusted Rand "
        f"index of the clusters when articles are resampled; a head alone is an outlier and no cluster. {verdict}, "
        f"stability {groups.stability:.2f}. (e) The mean correlation of two heads, from {between[0]:.2f} at the first "
        f"layer to {between[-1]:.2f} at the last, {against(m.of_heads, lambda alike: alike.between_heads, -1)}. "
        f"Standard errors are over {articles_words(m.articles)}, of random weights over networks. Padding counts "
        "nowhere."
    )


def claims_of(m: Results) -> tuple[Claim, ...]:
    """What the paper says of heads, what is found, and what must hold."""
    claims = (
        _claim_of_rise(m),
        _claim_of_groups(m),
        _claim_of_first(m),
        _claim_of_sinks(m),
        _claim_beyond(
            "Trained heads are more alike at the last layer than those of the controls.",
            "mean correlation",
            m.of_heads,
            (m.of_heads.beyond_shuffled, m.of_heads.beyond_random),
            -1,
        ),
        _claim_beyond(
            "The strongest sink is stronger than the strongest of the same layer in both controls.",
            "excess at the head that has most of it",
            m.of_sinks,
            m.beyond,
            m.strongest[1],
        ),
        *_identities(m),
    )
    return over(f"{articles_words(m.articles)}, of random weights over networks", claims)


def _claim_of_rise(m: Results) -> Claim:
    between, resampled = m.between, m.between_resampled
    # Over resamples of the articles: the standard error of the mean.
    spread = resampled.std(axis=0, ddof=1)
    # The rise of each resample, so that what both layers share does not count twice.
    rise, error = float(between[-1] - between[0]), float((resampled[:, -1] - resampled[:, 0]).std(ddof=1))
    return Claim(
        says="The correlations between heads increase with depth.",
        measured=f"mean correlation of two heads {plus_minus(between[0], spread[0], 3)} at layer 1, "
        f"{plus_minus(between[-1], spread[-1], 3)} at layer {len(between)}",
        criterion="the rise exceeds two standard errors",
        holds=rise > 2 * error,
        kind="paper",
        value=rise,
        error=error,
        source=PEAT_FIGURE_2,
    )


def _claim_of_groups(m: Results) -> Claim:
    each = [m.groups(layer) for layer in range(len(m.between))]
    last = each[-1]
    listed = "; ".join(
        f"heads {numbers}, correlation {within:.2f} within" if len(numbers) > 1 else f"head {numbers[0]} alone"
        for numbers, within in zip(last.numbers, last.within, strict=True)
    )
    return Claim(
        says="The heads form two clusters, each strongly correlated.",
        measured=f"at layer {len(each)}: {listed}; {last.across:.2f} between the two; stability {last.stability:.2f}. "
        f"By the same criterion there are two clusters at {sum(one.real for one in each)} of {len(each)} layers",
        criterion=f"at the last layer: stability at least {STABLE:g}, no head alone, and within each the correlation "
        f"exceeds that between the two by {APART:g} and by two standard errors",
        holds=last.real,
        kind="paper",
        value=last.stability,
        source=PEAT_FIGURE_2,
    )


def _claim_of_first(m: Results) -> Claim:
    # How many heads do so at each layer.
    by_layer = m.over_twice("first").sum(axis=1)
    total = m.alike.correlation.mean.shape[-1]
    return Claim(
        says="Several heads give the first token a strong weight, at all layers.",
        measured=f"over twice the uniform weight by two standard errors are {by_layer.min()} to {by_layer.max()} of "
        f"{total} heads at a layer, fewest at layer {int(by_layer.argmin()) + 1}; two or more at "
        f"{int((by_layer >= 2).sum())} of {len(by_layer)} layers",
        criterion="two heads or more at every layer",
        holds=bool((by_layer >= 2).all()),
        kind="paper",
        value=float(by_layer.min()),
        source=PEAT_FIGURE_2,
    )


def _claim_of_sinks(m: Results) -> Claim:
    sinks, targets = m.sinks, m.targets
    name, layer, head = m.strongest
    excess = sinks.excess[name]
    size, error = float(excess.mean[layer, head]), float(excess.error[layer, head])
    uniform = float(sinks.mass[name].mean[layer, head]) - size
    beyond = {target: _beyond(sinks.excess[target]) for target in targets}
    # Bonferroni: the strongest of so many heads, layers and targets is large by chance alone.
    least = float(t.isf(CHANCE / (excess.mean.size * len(targets)), len(np.unique(m.articles)) - 1))
    listed = ", ".join(
        f"{int(beyond[target].sum())} are beyond uniform and {int(m.over_twice(target).sum())} beyond twice uniform "
        f"for {words}"
        for target, words in targets.items()
    )
    return Claim(
        says="Some head gives the first token or a special token more than uniform attention does.",
        measured=f"strongest: {targets[name]} at layer {layer + 1}, head {head + 1}, with a weight of "
        f"{plus_minus(size + uniform, error, 4)} where uniform attention gives {uniform:.4f}; of {excess.mean.size} "
        f"heads and layers {listed}; the causal baseline H_n/n would leave "
        f"{int(_beyond(sinks.causal_excess['first']).sum())} for the first token",
        criterion=f"the strongest is so far beyond uniform that chance has it in {100 * CHANCE:.1f} % of the cases, "
        f"over all heads, layers and targets: {least:.2f} standard errors",
        holds=bool(size > least * error),
        kind="finding",
        value=size,
        error=error,
    )


def _claim_beyond(
    says: str, what: str, seen: probe.Controls, beyond: tuple[probe.Comparison, probe.Comparison], level: int
) -> Claim:
    # The control that is closer decides: both must be exceeded.
    nearer = min(beyond, key=lambda control: control.z[level])
    listed = "; ".join(
        f"{plus_minus(control.difference[level], control.error[level], 3)} above {name}"
        for name, control in zip(NAMES_OF_CONTROLS, beyond, strict=True)
    )
    return Claim(
        says=says,
        measured=f"{what} at layer {level % len(nearer.z) + 1}: {listed}",
        criterion=f"both differences exceed {seen.sigmas:g} standard errors, or with few networks as many as are as "
        "improbable",
        holds=all(bool(control.exceeds(seen.sigmas)[level]) for control in beyond),
        kind="finding",
        value=float(nearer.difference[level]),
        error=float(nearer.error[level]),
    )


def _beyond(average: probe.Average) -> np.ndarray:
    return average.mean > 2 * average.error


def _identities(m: Results) -> tuple[Claim, ...]:
    off = float(np.abs(m.activation.received.sum(axis=-1) - 1).max())
    matrices = m.alike.correlation.mean
    ones = float(np.abs(np.diagonal(matrices, axis1=1, axis2=2) - 1).max())
    # A correlation matrix is positive semidefinite.
    least = float(np.linalg.eigvalsh(matrices).min())
    # The two baselines are functions of the lengths of texts and of nothing else.
    gaps = np.stack([m.sinks.excess[name].mean - m.sinks.causal_excess[name].mean for name in m.targets])
    uneven = float(np.ptp(gaps, axis=(1, 2)).max())
    return (
        Claim(
            says="What the tokens receive adds up to 1.",
            measured=f"largest difference over layers and heads: {off:.1e}",
            criterion="less than 1e-5",
            holds=off < 1e-5,
            kind="identity",
            value=off,
        ),
        Claim(
            says="The correlations of heads are a correlation matrix at every layer.",
            measured=f"diagonal 1 up to {ones:.1e}; smallest eigenvalue {least:.2g}",
            criterion="diagonal up to 1e-6, no eigenvalue below -1e-6",
            holds=ones < 1e-6 and least > -1e-6,
            kind="identity",
            value=least,
        ),
        Claim(
            says="The two baselines of a sink depend on the text alone, not on layer or head.",
            measured=f"largest spread of their difference over layers and heads: {uneven:.1e}",
            criterion="less than 1e-6",
            holds=uneven < 1e-6,
            kind="identity",
            value=uneven,
        ),
    )


# Figure 2 as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p, network = settings.read(Parameters), network_of(settings)
    m = measure(p, network, settings, say)
    # Heads counted from 1, as everywhere that a reader sees them.
    groups = [m.groups(layer).numbers for layer in range(len(m.between))]
    return Outcome(
        caption_of(network, m),
        claims_of(m),
        {"network": network.words, "texts": network.of_texts, "layers": len(groups), "heads": network.model.num_heads,
         "clusters of heads": CLUSTERS, "resamples": p.replicates, "starts": len(network.texts.mask),
         "solver": "none: layers in float32", "clusters by layer": groups},
        _series(m),
        partial(draw, network, m),
        None,
        on=network.measured(),
    )  # fmt: skip


def _series(m: Results) -> dict:
    targets = m.targets.items()
    return (
        {"layer": np.arange(1, len(m.between) + 1), "correlation": m.between,
         "correlation_error": m.between_resampled.std(axis=0, ddof=1), "stability": m.alike.clusters.stability}
        # Of the controls; that of the trained network is "correlation".
        | {f"correlation, {name}": mean for name, (mean, _) in zip(NAMES[1:], m.lines[1:], strict=False)}
        | {"correlation_by_heads": m.alike.correlation.mean}
        | {f"excess_by_head, {words}": m.sinks.excess[target].mean for target, words in targets}
        | {f"error_by_head, {words}": np.nan_to_num(m.sinks.excess[target].error) for target, words in targets}
    )  # fmt: skip


def _check(settings: Settings) -> None:
    layers = network_of(settings).model.num_layers
    check_integer(settings.read(Parameters).layer, "layer", least=0, most=layers, remedy="name one of the network")


FIGURE = declared("figure2", _run, parameters=Parameters, check=_check)
