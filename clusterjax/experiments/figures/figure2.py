"""Figure 2 of Peat: the heads of a trained network, with the attention that tokens receive, sinks, and groups of heads
with similar attention.

Two heads are compared by the correlation of their attention maps, averaged over texts. Average linkage on 1 -
correlation makes two groups, as in the paper. Any set of heads can be cut in two. A cut therefore counts as two
clusters only if it is stable under resampling of articles (adjusted Rand index), no head is alone, and heads of one
group are more similar than heads of different groups by a margin and by two standard errors. All errors are over
articles.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax.random as jr
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from scipy.stats import t

from ... import probe
from ..._base.checks import check_integer, refusal
from ...plot import style, time_series
from ...probe.measures.survey import average_of, clustered_error
from ..framework.experiment import Inapplicable
from ..framework.figure import MOST_OF_NETWORK, Claim, Found, Say, Settings, claim, figure, parameter, plus_minus
from ..shared.controls import COLOURS, DRAWS, LINES, NAMES, Run, against, beyond_both, measured, random_words, runs_of
from ..shared.layout import WIDTH, drawable, letter, one_legend
from ..shared.networks import Network, articles_words, each_text, network_of
from ..shared.sources import PEAT_FIGURE_2


CLUSTERS = 2  # as in the paper
BATCH = 16
STABLE = 0.8  # the least adjusted Rand index of clusters
APART = 0.1  # the least margin of the correlation within a cluster over the correlation between clusters
CHANCE = 0.0228  # the probability of more than two standard errors by chance
SIGNED = "RdBu_r"
FIRST, LAST = 20, 3  # the numbers of first and last tokens of the text in panel (a)


@dataclass(frozen=True)
class Parameters:
    draws: int = parameter(DRAWS, "the number of networks of random weights", least=2, most=32)
    replicates: int = parameter(100, "the number of resamples of the articles", least=20, most=10_000)
    layer: int = parameter(0, "the layer of panel (a); 0 is the layer with the strongest sink", least=0,
                           most=MOST_OF_NETWORK)  # fmt: skip


class Groups(NamedTuple):
    heads: list[list[int]]  # the heads of each group, from 0, the largest group first
    within: list[float]  # the mean correlation of two heads of each group; NaN for a head alone
    across: float  # the mean correlation of two heads of different groups
    # For each group `within` minus `across`, and its standard error by resampling articles.
    margins: list[tuple[float, float]]
    stability: float  # the adjusted Rand index of the groups and the groups of a resample

    @property
    def real(self) -> bool:
        """True if the groups are stable, of two heads or more, and more similar within than across."""
        return self.stability >= STABLE and all(margin > max(APART, 2 * error) for margin, error in self.margins)

    @property
    def word(self) -> str:
        if self.real:
            return "clusters"
        return "outlier" if self.stability >= STABLE and min(map(len, self.heads)) == 1 else "unsure"

    @property
    def numbers(self) -> list[list[int]]:
        """The heads of each group, from 1."""
        return [[head + 1 for head in heads] for heads in self.heads]


def groups_of(alike: probe.HeadCorrelations, layer: int) -> Groups:
    """The groups of heads at a layer, from 0."""
    labels, mean, resampled = alike.clusters.labels[layer], alike.correlation.mean[layer], alike.resampled[:, layer]
    across = labels[:, None] != labels[None, :]
    groups, within, margins = alike.clusters.groups(layer), [], []
    for heads in groups:
        inside = np.isin(np.arange(len(labels)), heads)
        pairs = inside[:, None] & inside[None, :] & ~np.eye(len(labels), dtype=bool)
        within.append(float(_mean(mean, pairs)))
        # The standard error of the margin is its spread over resamples.
        margins.append((float(_mean(mean, pairs, across)), float(_mean(resampled, pairs, across).std(ddof=1))))
    return Groups(groups, within, float(_mean(mean, across)), margins, float(alike.clusters.stability[layer]))


def _mean(stack: np.ndarray, pairs: np.ndarray, less: np.ndarray | None = None) -> np.ndarray:
    """The mean over `pairs` of heads, minus the mean over the pairs `less`; NaN if there are no pairs."""
    if not pairs.any() or (less is not None and not less.any()):
        return np.full(stack.shape[:-2], np.nan)
    mean = stack[..., pairs].mean(axis=-1)
    return np.asarray(mean if less is None else mean - stack[..., less].mean(axis=-1))


def largest_of(name: str) -> Callable[[probe.AttentionSinks], probe.Average]:
    """A function from sinks to the excess of the head with the largest mean excess at each level."""

    def pick(sinks: probe.AttentionSinks) -> probe.Average:
        excess = sinks.excess[name]
        # The head is chosen by the mean over texts, because the largest head of each text always exceeds zero.
        heads = excess.mean.argmax(axis=1)
        return average_of(each_text(excess)[:, np.arange(len(heads)), heads])

    return pick


def targets_of(sinks: probe.AttentionSinks) -> dict[str, str]:
    """The names of the targets of attention; a special token that is always the first token has no name of its own."""
    values: dict[str, Any] = {name: average.values for name, average in sinks.mass.items()}
    same = [name for name, mass in values.items() if name != "first" and np.array_equal(mass, values["first"])]
    first = " ".join(["first token", *same])
    return {"first": first} | {name: name for name in values if name not in ("first", *same)}


@dataclass(frozen=True, eq=False)
class Results:
    p: Parameters
    network: Network
    activation: probe.Activation  # the attention that each token of one text receives
    sink_controls: probe.Controls  # the attention to the first token and to special tokens, with controls
    head_controls: probe.Controls  # the correlations of heads, with controls

    @property
    def sinks(self) -> probe.AttentionSinks:
        return self.sink_controls.trained

    @property
    def alike(self) -> probe.HeadCorrelations:
        return self.head_controls.trained

    @cached_property
    def targets(self) -> dict[str, str]:
        return targets_of(self.sinks)

    @property
    def strongest(self) -> tuple[str, int, int]:
        """The target, layer and head of the largest excess over uniform attention."""
        name = max(self.targets, key=lambda target: self.sinks.excess[target].mean.max())
        excess = self.sinks.excess[name].mean
        layer, head = np.unravel_index(np.argmax(excess), excess.shape)
        return name, int(layer), int(head)

    @property
    def shown(self) -> int:
        """The layer of panel (a), from 0."""
        return self.p.layer - 1 if self.p.layer else self.strongest[1]

    @property
    def between_resampled(self) -> np.ndarray:
        """The mean correlation of two different heads in each resample of the articles, (replicates, layers)."""
        others = ~np.eye(self.alike.correlation.mean.shape[-1], dtype=bool)
        return self.alike.resampled[..., others].mean(axis=-1)

    @property
    def lines(self) -> list[Run]:
        """The mean correlation of two heads and its error over texts, (layers,), trained and controls."""
        return runs_of(self.head_controls, lambda alike: alike.between_heads)

    @cached_property
    def groups(self) -> list[Groups]:
        return [groups_of(self.alike, layer) for layer in range(len(self.alike.between()))]

    @property
    def least_sink(self) -> float:
        """The number of standard errors that the strongest sink must exceed."""
        # Bonferroni: the strongest of so many heads, layers and targets is large by chance alone.
        num_comparisons = len(self.targets) * self.sinks.excess["first"].mean.size
        return float(t.isf(CHANCE / num_comparisons, len(np.unique(self.network.articles)) - 1))

    def over_twice(self, name: str) -> np.ndarray:
        """True where the attention to a target exceeds twice the uniform attention by two standard errors, (layers,
        heads)."""
        mass, excess = each_text(self.sinks.mass[name]), each_text(self.sinks.excess[name])
        # Uniform attention is mass - excess, so that 2 excess - mass is mass - 2 uniform.
        beyond = clustered_error(2 * excess - mass, self.network.articles)
        return beyond.mean > 2 * beyond.error


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    network = network_of(settings)
    model, texts, store = network.model, network.texts, settings.store
    say(f"measuring {model.num_heads} heads in {model.num_layers} layers on {len(texts.mask)} texts, with two controls")
    key = jr.key(settings.seed)
    sinks = partial(probe.attention_sinks, special=network.special, batch_size=BATCH)
    alike = partial(
        probe.head_correlations, clusters=CLUSTERS, replicates=p.replicates, key=key, batch_size=BATCH,
        units=network.articles,
    )  # fmt: skip
    # The two surveys keep files of equal names, and so need separate folders.
    below = lambda name: None if store is None else store / name
    sink_controls = measured(sinks, network, key, draws=p.draws, store=below("sinks"))
    head_controls = measured(alike, network, key, draws=p.draws, store=below("heads"))
    activation = probe.token_activation(model, probe.Encoded(texts.token_ids[:1], texts.mask[:1]))
    return Results(p, network, activation, sink_controls, head_controls)


@claim("the rise exceeds two standard errors", source=PEAT_FIGURE_2)
def correlations_rise(m: Results) -> Found:
    """The correlations between heads are larger at the last layer than at the first, in the mean."""
    between, resampled = m.alike.between(), m.between_resampled
    spread = resampled.std(axis=0, ddof=1)
    # The error of the rise is its spread over resamples, so that the common part of both layers does not count twice.
    rise, error = between[-1] - between[0], (resampled[:, -1] - resampled[:, 0]).std(ddof=1)
    return Found(
        f"the mean correlation of two heads is {plus_minus(between[0], spread[0], 3)} at layer 1, "
        f"{plus_minus(between[-1], spread[-1], 3)} at layer {len(between)}",
        rise > 2 * error, rise, error,
    )  # fmt: skip


@claim(
    f"at the last layer: stability at least {STABLE:g}, no head alone, and within each the correlation exceeds that "
    f"between the two by {APART:g} and by two standard errors",
    source=PEAT_FIGURE_2,
)
def two_clusters(m: Results) -> Found:
    """At the last layer the heads form two clusters."""
    last = m.groups[-1]
    listed = "; ".join(
        f"heads {numbers} have a correlation of {within:.2f}" if len(numbers) > 1 else f"head {numbers[0]} is alone"
        for numbers, within in zip(last.numbers, last.within, strict=True)
    )
    return Found(
        f"at layer {len(m.groups)} {listed}; the correlation between the two groups is {last.across:.2f}, the "
        f"stability {last.stability:.2f}. By the same criterion there are two clusters at "
        f"{sum(groups.real for groups in m.groups)} of {len(m.groups)} layers",
        last.real, last.stability,
    )  # fmt: skip


@claim("two heads or more at every layer", source=PEAT_FIGURE_2)
def first_token_strong(m: Results) -> Found:
    """At every layer two or more heads give the first token more than twice the weight of uniform attention."""
    by_layer, total = m.over_twice("first").sum(axis=1), m.alike.correlation.mean.shape[-1]
    return Found(
        f"{by_layer.min()} to {by_layer.max()} of {total} heads at a layer exceed twice the uniform weight by two "
        f"standard errors, the fewest at layer {by_layer.argmin() + 1}; two or more do at {(by_layer >= 2).sum()} of "
        f"{len(by_layer)} layers",
        (by_layer >= 2).all(), by_layer.min(),
    )  # fmt: skip


@claim(
    f"the strongest is so far beyond uniform that chance has it in {100 * CHANCE:.1f} % of the cases, over all heads, "
    "layers and targets: {m.least_sink:.2f} standard errors"
)
def sink(m: Results) -> Found:
    """Some head gives the first token or a special token more weight than uniform attention gives."""
    sinks, targets, (name, layer, head) = m.sinks, m.targets, m.strongest
    excess = sinks.excess[name]
    size, error = float(excess.mean[layer, head]), float(excess.error[layer, head])
    uniform = float(sinks.mass[name].mean[layer, head]) - size
    exceed = lambda average: (average.mean > 2 * average.error).sum()
    listed = ", ".join(
        f"{exceed(sinks.excess[target])} exceed uniform attention and {m.over_twice(target).sum()} exceed twice "
        f"uniform attention for {words}"
        for target, words in targets.items()
    )
    return Found(
        f"the strongest sink is {targets[name]} at layer {layer + 1}, head {head + 1}, with a weight of "
        f"{plus_minus(size + uniform, error, 4)} where uniform attention gives {uniform:.4f}; of {excess.mean.size} "
        f"heads and layers {listed}; {exceed(sinks.causal_excess['first'])} exceed the causal baseline H_n/n for the "
        "first token",
        size > m.least_sink * error, size, error,
    )  # fmt: skip


@claim(
    "both differences exceed {m.head_controls.sigmas:g} standard errors, or with few networks as many as are as "
    "improbable"
)
def heads_beyond_controls(m: Results) -> Found:
    """At the last layer the attention maps of the trained heads are more alike than with shuffled tokens and with
    random weights."""
    beyond = m.head_controls.beyond_shuffled, m.head_controls.beyond_random
    return beyond_both(f"mean correlation at layer {len(m.groups)}", beyond, -1, m.head_controls.sigmas)


@claim(
    "both differences exceed {m.sink_controls.sigmas:g} standard errors, or with few networks as many as are as "
    "improbable"
)
def sink_beyond_controls(m: Results) -> Found:
    """The strongest sink is stronger than the strongest of its layer with shuffled tokens and with random weights."""
    name, layer, _ = m.strongest
    words = f"excess at the head with the largest excess at layer {layer + 1}"
    return beyond_both(words, m.sink_controls.compare(largest_of(name)), layer, m.sink_controls.sigmas)


@claim("less than 1e-5", kind="identity")
def received_adds_up(m: Results) -> Found:
    """For every head the attention that the tokens of a text receive adds up to 1."""
    off = np.abs(m.activation.received.sum(axis=-1) - 1).max()
    return Found(f"the largest difference over layers and heads is {off:.1e}", off < 1e-5, off)


@claim("diagonal up to 1e-6, no eigenvalue below -1e-6", kind="identity")
def correlation_matrix(m: Results) -> Found:
    """At every layer the correlations of the heads form a correlation matrix: the diagonal is 1, and no eigenvalue is
    negative."""
    matrices = m.alike.correlation.mean
    ones = np.abs(np.diagonal(matrices, axis1=1, axis2=2) - 1).max()
    least = np.linalg.eigvalsh(matrices).min()
    measured = f"the diagonal is 1 up to {ones:.1e}; the smallest eigenvalue is {least:.2g}"
    return Found(measured, ones < 1e-6 and least > -1e-6, least)


@claim("less than 1e-6", kind="identity")
def baselines(m: Results) -> Found:
    """The difference between the two baselines of a sink is equal at all layers and heads."""
    gaps = np.stack([m.sinks.excess[name].mean - m.sinks.causal_excess[name].mean for name in m.targets])
    # Layers with and without a sliding window have different baselines.
    alike = m.network.model.network.sizes.sliding is None
    uneven, where = np.ptp(gaps, axis=(1, 2) if alike else 2).max(), "layers and heads" if alike else "heads of a layer"
    measured = f"the largest spread of their difference over {where} is {uneven:.1e}"
    says = None if alike else f"The difference between the two baselines of a sink is equal at all {where}."
    return Found(measured, uneven < 1e-6, uneven, says=says)


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    (name, layer, head), network = m.strongest, m.network
    tokens = len(m.activation.token_ids)
    shortened = f" (the first {FIRST} and the last {LAST} are shown)" if tokens > FIRST + LAST + 1 else ""
    towards = " and ".join(f"to {'the ' * (target == 'first')}{words}" for target, words in m.targets.items())
    which = "has the strongest sink" if m.shown == layer else "was chosen by hand"
    return (
        f"The heads of {network.words}, on {network.of_texts}. (a) The attention that each of {tokens} tokens of one "
        f"text receives{shortened}, the mean over the attending tokens in units of the uniform 1/n, at layer "
        f"{m.shown + 1}, which {which}. (b) The weight that the other tokens give {towards}, minus the weight of "
        "uniform attention; a dot marks a mean within two standard errors of zero. The largest excess is at layer "
        f"{layer + 1}, head {head + 1}, for {m.targets[name]}. (c) The largest excess of a head at each layer, also "
        f"with shuffled tokens and in {random_words(network, m.p.draws)}. (d) The correlations of the attention maps "
        f"of heads, in the order of the {CLUSTERS} groups of average linkage, with the stability of the groups: the "
        "adjusted Rand index under resampling of articles. A head alone is an outlier and no cluster. (e) The mean "
        "correlation of two heads; at the last layer it is "
        f"{against(m.head_controls, lambda alike: alike.between_heads, -1)}. Standard errors are over "
        f"{articles_words(network.articles)}, and for random weights over networks."
    )


def series(m: Results) -> dict:
    excess = {words: m.sinks.excess[target] for target, words in m.targets.items()}
    return (
        {"layer": np.arange(1, len(m.groups) + 1), "correlation": m.alike.between(),
         "correlation_error": m.between_resampled.std(axis=0, ddof=1), "stability": m.alike.clusters.stability}
        | {f"correlation, {name}": mean for name, (mean, _) in zip(NAMES[1:], m.lines[1:], strict=False)}
        | {"correlation_by_heads": m.alike.correlation.mean}
        | {f"excess_by_head, {words}": average.mean for words, average in excess.items()}
        | {f"error_by_head, {words}": np.nan_to_num(average.error) for words, average in excess.items()}
    )  # fmt: skip


@style()
def draw(m: Results) -> Figure:
    high, layers, num_targets = 0.55 + 0.085 * max(m.activation.received.shape[1], 8), len(m.groups), len(m.targets)
    picture = Figure(figsize=(WIDTH, high + 4.3), layout="constrained")
    top, middle, bottom = picture.subfigures(3, 1, height_ratios=(high + 0.35, 2.0, 1.95))  # pyright: ignore
    first = top.subplots()
    received_panel(first, m)
    second = middle.subplots(1, num_targets + 1, width_ratios=[1.0] * num_targets + [1.15])
    sink_panels(second[:-1], m)
    name = m.strongest[0]
    lines_panel(second[-1], runs_of(m.sink_controls, largest_of(name)), f"largest excess, {m.targets[name]}")
    second[-1].axhline(0, color="0.6", lw=0.6, zorder=0)
    # A small network has fewer than three layers.
    shown = sorted({0, (layers - 1) // 2, layers - 1})
    third = bottom.subplots(1, len(shown) + 1, width_ratios=[1.0] * len(shown) + [1.15])
    correlation_panels(third[:-1], m, shown)
    lines_panel(third[-1], m.lines, "mean correlation")
    one_legend(picture, (second[-1], third[-1]), loc="outside lower right", ncols=3, handlelength=2.8)
    letter((first, second[0], second[-1], third[0], third[-1]))
    return picture


def received_panel(ax: Axes, m: Results) -> None:
    text, names = m.activation, m.network.names or {}
    received = text.received[m.shown] * len(text.token_ids)
    tokens = [drawable(word) for word in text.words or [names.get(int(id), str(id)) for id in text.token_ids]]
    if len(tokens) > FIRST + LAST + 1:
        # A grey column stands for the tokens that are omitted.
        gap = np.full((len(received), 1), np.nan)
        received = np.hstack([received[:, :FIRST], gap, received[:, -LAST:]])
        tokens = [*tokens[:FIRST], "…", *tokens[-LAST:]]
    # The colour scale is symmetric about 1 in the logarithm.
    reach = float(np.clip(np.nanmax(received), 2.0, 32.0))
    image = ax.imshow(
        np.ma.masked_invalid(np.maximum(received, 1 / reach)), cmap=colormaps[SIGNED].with_extremes(bad="0.85"),
        norm=LogNorm(1 / reach, reach), aspect="auto", interpolation="nearest",
    )  # fmt: skip
    ax.set_xticks(np.arange(len(tokens)), tokens, rotation=90 if max(map(len, tokens)) > 2 else 0)
    head_ticks(ax.yaxis, np.arange(1, len(received) + 1))
    ax.set(ylabel="head", title=f"attention received at layer {m.shown + 1}")
    bar = colour_bar(ax, image, "× uniform")
    ticks = [tick for tick in (1 / 16, 1 / 4, 1, 4, 16) if 1 / reach <= tick <= reach]
    bar.set_ticks(ticks, labels=[f"{tick:g}" if tick >= 1 else f"1/{1 / tick:.0f}" for tick in ticks])
    bar.ax.minorticks_off()


def sink_panels(axes: Any, m: Results) -> None:
    excess = {words: m.sinks.excess[name] for name, words in m.targets.items()}
    reach, image = max(float(np.abs(average.mean).max()) for average in excess.values()), None
    for ax, (words, average) in zip(axes, excess.items(), strict=True):
        layers, heads = average.mean.shape
        image = ax.imshow(average.mean.T, cmap=SIGNED, vmin=-reach, vmax=reach, aspect="auto", interpolation="nearest")
        # A dot marks an excess within two standard errors of zero.
        layer, head = np.nonzero(np.abs(average.mean) <= 2 * average.error)
        ax.scatter(layer, head, s=2.0, color="0.25", linewidths=0)
        ax.set(title=words, xlabel="layer")
        head_ticks(ax.yaxis, np.arange(1, heads + 1))
        layer_ticks(ax, layers, 0)
    axes[0].set_ylabel("head")
    colour_bar(axes[-1], image, "excess over uniform")


def correlation_panels(axes: Any, m: Results, shown: list[int]) -> None:
    image = None
    for ax, layer in zip(axes, shown, strict=True):
        groups = m.groups[layer]
        # The heads of a group stand side by side, with lines between groups.
        order = np.array([head for heads in groups.heads for head in heads])
        matrix = m.alike.correlation.mean[layer][order][:, order]
        image = ax.imshow(matrix, cmap=SIGNED, vmin=-1, vmax=1, interpolation="nearest")
        for border in np.cumsum([len(heads) for heads in groups.heads])[:-1] - 0.5:
            for line in (ax.axhline, ax.axvline):
                line(border, color="0.1", lw=1.0)
        ax.set_title(f"layer {layer + 1}: {groups.word}, {groups.stability:.2f}", fontsize=7)
        head_ticks(ax.yaxis, order + 1)
        head_ticks(ax.xaxis, order + 1)
        ax.tick_params(axis="x", labelrotation=90 if len(order) > 9 else 0)
        ax.set_xlabel("head")
    axes[0].set_ylabel("head")
    colour_bar(axes[-1], image, "correlation")


def lines_panel(ax: Axes, runs: list[Run], label: str) -> None:
    layers = np.arange(1, len(runs[0][0]) + 1)
    for (mean, error), name, colour, line in zip(runs, NAMES, COLOURS, LINES, strict=False):
        error = error if error is not None and np.isfinite(error).all() else None
        time_series(layers, mean, error, ax, colour=colour, linestyle=line, label=name, xlabel="layer", ylabel=label)
    layer_ticks(ax, len(layers), 1)


def colour_bar(ax: Axes, image: Any, label: str) -> Any:
    bar: Any = ax.figure.colorbar(image, ax=ax, label=label, pad=0.02, fraction=0.06, aspect=22)
    bar.outline.set_linewidth(0.4)
    bar.ax.tick_params(width=0.5, length=2, which="major")
    return bar


def head_ticks(axis: Any, heads: np.ndarray) -> None:
    """A tick with its number for each head; the spines of the map are made visible."""
    size = 7 if len(heads) <= 8 else 5.5 if len(heads) <= 12 else 4.5 if len(heads) <= 16 else 3.5
    axis.set_ticks(np.arange(len(heads)), [str(head) for head in heads], fontsize=size)
    axis.set_tick_params(length=0)
    axis.axes.spines[["top", "right"]].set_visible(True)


def layer_ticks(ax: Axes, layers: int, first: int) -> None:
    """Ticks at a few layers, counted from 1; layer 1 is at the coordinate `first`."""
    shown = np.arange(1, layers + 1, max(1, -(-layers // 6)))
    ax.set_xticks(shown - 1 + first, [str(layer) for layer in shown])


def check(settings: Settings) -> None:
    model = network_of(settings).model
    if model.num_heads < 2:
        rule, problem = "have two heads or more for correlations", f"{model.name!r} has one"
        raise Inapplicable(str(refusal("albert", rule, problem, "name another network")))
    layers = model.num_layers
    remedy = "name one of the layers of the network"
    check_integer(settings.read(Parameters).layer, "layer", least=0, most=layers, remedy=remedy)


FIGURE = figure(
    __name__,
    over=lambda m: f"{articles_words(m.network.articles)}, of random weights over networks",
    on=lambda m: m.network.measured(),
    recorded=lambda m: {"network": m.network.words, "texts": m.network.of_texts, "layers": len(m.groups),
                        "heads": m.network.model.num_heads, "clusters of heads": CLUSTERS,
                        "starts": len(m.network.texts.mask), "solver": "none: layers in float32",
                        "clusters by layer": [groups.numbers for groups in m.groups]},
)  # fmt: skip
