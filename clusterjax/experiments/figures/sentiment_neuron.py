"""Which single neuron, and which direction of the residual stream, tell praise from blame in a causal network?

A text is its last tokens, and the value of a unit is its mean over these tokens without the first. Of all neurons of
all layers, and of all coordinates of the stream at all levels, the unit is chosen whose area under the ROC curve is
farthest from one half. The direction of a level is the difference of the two mean streams, $m_+ - m_-$, the weakest
linear probe; beside it stands Fisher's discriminant, $(C + λcI)^{-1} (m_+ - m_-)$, with the covariance C within the two
kinds and its mean diagonal entry c. Both are fitted on one half of the texts on which units are chosen; level, λ and
threshold are chosen on the other half.

Source: Radford, Jozefowicz, Sutskever, *Learning to generate reviews and discovering sentiment* (1704.01444), Section
4; *Transformers, part 2*, slide 12.

Invariants: all scores are of texts on which no unit, direction, level or threshold was chosen; all networks classify
the same texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax.random as jr
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ... import probe, transformer
from ...plot import OKABE_ITO
from ...probe.measures.neurons import UnitMeans, unit_means
from ...probe.measures.survey import clustered_error
from ..framework.figure import Claim, Found, Measured, Say, Settings, claim, figure, parameter, plus_minus
from ..shared.causal import ABSENT, OWN, SMOLLM2, name_of, smollm2_or_own, spread_words, untrained
from ..shared.controls import keys_of, seed_of
from ..shared.ensemble import mean_and_error
from ..shared.layout import panels
from ..shared.networks import padded
from ..shared.small_models import LENGTH, Corpus, Labelled, corpus_of, train_small
from ..shared.units import Unit, best_unit, best_units


SEEN = 20_000  # the number of texts that the LSTM is trained on
KINDS = ("neuron", "coordinate", "direction", "discriminant")
STRENGTHS = (0.01, 0.1, 1.0, 10.0)  # the values of lambda
SAME = 1e-12  # the rounding error of an area in float64
WORDS = {"neuron": "neuron", "coordinate": "coordinate of the stream", "direction": "difference of mean streams",
         "discriminant": "Fisher's discriminant of the stream"}  # fmt: skip
LABELS = {"direction": "mean\ndifference", "discriminant": "discri-\nminant"}
COLOURS: dict[str, str] = dict(zip(KINDS, (OKABE_ITO[0], OKABE_ITO[2], OKABE_ITO[1], OKABE_ITO[5]), strict=True))


@dataclass(frozen=True)
class Parameters:
    texts: int = parameter(1000, "the number of texts to choose, and to score, units", least=20, quick=60)
    draws: int = parameter(3, "the number of networks of random weights", least=2, most=32, quick=2)
    steps: int = parameter(3000, "the number of steps of the training of the LSTM", least=16, most=100_000, quick=64)
    units: int = parameter(187, "the number of units of the LSTM", least=4, most=4096, quick=24)


class Best(NamedTuple):
    # The best unit of each of `KINDS`; the number of a direction is its level, and the number of a discriminant is its
    # level times the number of `STRENGTHS` plus the index of its strength.
    best: dict[str, Unit]
    # The area of the best neuron of each layer, on the texts that score it, (layers,).
    neuron_areas: Float[np.ndarray, " layers"]
    # The area of the direction of each level on the texts that score it, (levels,).
    direction_areas: Float[np.ndarray, " levels"]
    neurons: int  # the number of neurons of a layer


class Results(NamedTuple):
    p: Parameters
    own: bool  # True if the network is the language model of the package, because SmolLM2 is not installed
    corpus: Corpus
    # `trained`, `shuffled`, `random`: the network, with the tokens of each text in random order, and random weights
    trained: Best
    shuffled: Best
    random: tuple[Best, ...]
    spread: str  # the spread of the random weights, in words
    small: Best | None  # the language model of the package beside SmolLM2; None in place of SmolLM2
    lstm: Unit  # the best cell of a small LSTM trained here
    off: float  # the largest change of an area if every value is doubled and raised by one

    @property
    def called(self) -> str:
        return name_of(self.own)

    def where(self, kind: str) -> str:
        """The layer or level, and the number, of the best unit of a kind, in words."""
        unit, levels = self.trained.best[kind], len(self.trained.direction_areas)
        if kind == "direction":
            return f"level {unit.unit}"
        if kind == "discriminant":
            level, index = divmod(unit.unit, len(STRENGTHS))
            return f"level {level}, lambda = {STRENGTHS[index]:g}"
        layer, number = divmod(unit.unit, self.trained.neurons if kind == "neuron" else unit.many // levels)
        return f"layer {layer + 1}, number {number}" if kind == "neuron" else f"level {layer}, number {number}"

    def random_accuracy(self, kind: str) -> tuple[float, float]:
        """The mean accuracy of the best units of random weights, and its error over networks."""
        mean, error = mean_and_error(np.array([network.best[kind].accuracy for network in self.random]))
        return float(mean), float(error)


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    corpus = corpus_of(settings, min(SEEN, 20 * p.steps), p.texts)
    parts, labels = (corpus.chosen, corpus.scored), (corpus.chosen.labels, corpus.scored.labels)
    model, own = smollm2_or_own(say)
    texts = [encoded(model, part) for part in parts]
    say(f"reading {2 * p.texts} texts")
    means = [unit_means(model, *part) for part in texts]
    trained = measured_units(means, labels)
    say("reading the texts with their tokens in random order")
    keys = keys_of(settings.seed, p.draws)
    mixed = [probe.shuffle_tokens(probe.Encoded(*part), jr.fold_in(keys[0], k)) for k, part in enumerate(texts)]
    shuffled = measured_units(
        [unit_means(model, np.asarray(text.token_ids), np.asarray(text.mask)) for text in mixed], labels
    )
    random = []
    for draw, key in enumerate(keys, 1):
        say(f"reading the texts by random weights, {draw} of {p.draws}")
        other = untrained(model, key)
        random.append(measured_units([unit_means(other, *part) for part in texts], labels))
    small = None
    if not own:
        say("reading the texts by the language model of the package")
        ours = probe.load("language-model")
        small = measured_units([unit_means(ours, *encoded(ours, part)) for part in parts], labels)
    say("training the LSTM")
    recipe = transformer.LanguageRecipe(
        architecture="lstm", d=64, hidden=p.units, length=LENGTH, steps=p.steps, epoch_steps=max(1, p.steps // 16),
        warm_up=p.steps // 10,
    )  # fmt: skip
    lstm = train_small(corpus.training, recipe, seed=seed_of(keys[0]))[-1].model
    cell = best_units(lstm, *parts, LENGTH)["cell"]
    first = means[1].neurons[:, 0].astype(float)
    off = float(np.abs(areas(2 * first + 1, labels[1]) - areas(first, labels[1])).max())
    return Results(p, own, corpus, trained, shuffled, tuple(random), spread_words(model), small, cell, off)


def encoded(model: probe.Model, part: Labelled) -> tuple[np.ndarray, np.ndarray]:
    """The last tokens of each text, padded on the right, and the mask of tokens that exist, (texts, `LENGTH`) both."""
    rows = model.tokenizer(list(part.texts), add_special_tokens=False, verbose=False)["input_ids"]
    return padded([row[-LENGTH:] for row in rows], LENGTH)


def measured_units(
    means: Sequence[UnitMeans], labels: tuple[Bool[np.ndarray, " texts"], Bool[np.ndarray, " others"]]
) -> Best:
    """The best units of one network: `means` and `labels` of the texts to choose on, and of the texts to score on."""
    chosen, scored = means
    flat = lambda values: values.reshape(len(values), -1)
    best_of = lambda pick: best_unit(flat(pick(chosen)), labels[0], flat(pick(scored)), labels[1])
    best = {"neuron": best_of(lambda units: units.neurons), "coordinate": best_of(lambda units: units.levels)}
    half = every_other(labels[0])
    directions = difference_of_means(chosen.levels[half], labels[0][half])
    fitted = discriminants(chosen.levels[half], labels[0][half])
    along = lambda values: np.einsum("tld,ld->tl", values, directions)
    along_fitted = lambda values: flat(np.einsum("tld,lsd->tls", values, fitted))
    for kind, project in (("direction", along), ("discriminant", along_fitted)):
        held_out = project(chosen.levels[~half])
        best[kind] = best_unit(held_out, labels[0][~half], project(scored.levels), labels[1])
    layers = np.arange(chosen.neurons.shape[1])
    number = [transformer.best_detector(chosen.neurons[:, layer], labels[0]).neuron for layer in layers]
    signs = np.sign(areas(chosen.neurons[:, layers, number], labels[0]) - 0.5)
    neuron_areas = 0.5 + signs * (areas(scored.neurons[:, layers, number], labels[1]) - 0.5)
    return Best(best, neuron_areas, areas(along(scored.levels), labels[1]), chosen.neurons.shape[2])


def every_other(labels: Bool[np.ndarray, " texts"]) -> Bool[np.ndarray, " texts"]:
    """One half of the texts: every other text of each label, because the labels may alternate."""
    half = np.zeros(len(labels), bool)
    for kind in (labels, ~labels):
        half[np.flatnonzero(kind)[::2]] = True
    return half


def difference_of_means(
    levels: Float[np.ndarray, "texts levels d"], labels: Bool[np.ndarray, " texts"]
) -> Float[np.ndarray, "levels d"]:
    """The mean stream of the texts that praise minus the mean stream of the others, at each level."""
    levels = levels.astype(float)
    return levels[labels].mean(axis=0) - levels[~labels].mean(axis=0)


def discriminants(
    levels: Float[np.ndarray, "texts levels d"], labels: Bool[np.ndarray, " texts"]
) -> Float[np.ndarray, "levels strengths d"]:
    """Fisher's discriminant of the texts that praise and the others, at each level and with each of `STRENGTHS`."""
    levels, apart = levels.astype(float), difference_of_means(levels, labels)
    directions = np.empty((len(apart), len(STRENGTHS), apart.shape[1]))
    for level, (x, along) in enumerate(zip(np.moveaxis(levels, 1, 0), apart, strict=True)):
        centred = np.concatenate([x[group] - x[group].mean(axis=0) for group in (labels, ~labels)])
        eigenvalues, axes = np.linalg.eigh(centred.T @ centred / len(x))
        for number, strength in enumerate(STRENGTHS):
            # All texts may be equal before the first layer; every direction is then equally good.
            damped = np.maximum(eigenvalues, 0) + strength * max(eigenvalues.mean(), np.finfo(float).tiny)
            directions[level, number] = axes @ ((axes.T @ along) / damped)
    return directions


def areas(values: Float[np.ndarray, "texts units"], labels: Bool[np.ndarray, " texts"]) -> Float[np.ndarray, " units"]:
    """The area under the ROC curve of each unit."""
    return np.asarray(transformer.best_detector(values, labels).area)


def percent(value: float, error: float) -> str:
    """A share and its error in per cent; 0.0 % and 100.0 % keep their error, unlike in `framework.experiment`."""
    return f"{plus_minus(100 * value, 100 * error, 1)} %"


def accuracy(unit: Unit) -> str:
    return percent(unit.accuracy, unit.error)


def paired(first: Unit, second: Unit) -> tuple[float, float]:
    """The difference of two accuracies, and its error, paired by text."""
    more = clustered_error(first.right.astype(float) - second.right.astype(float))
    return float(more.mean), float(more.error)


@claim("better than that of random weights by two standard errors")
def beyond_random(m: Results) -> Found:
    """The best neuron of {m.called} distinguishes praise from blame better than the best neuron of random weights."""
    unit, (mean, error) = m.trained.best["neuron"], m.random_accuracy("neuron")
    gain, off = unit.accuracy - mean, float(np.hypot(unit.error, error))
    return Found(
        f"{m.where('neuron')}: {accuracy(unit)} of {len(unit.right)} texts on which the neuron was not chosen "
        f"({100 * unit.chosen:.1f} % of the texts on which it was); the best neuron of random weights {m.spread} "
        f"{percent(mean, error)}, {percent(gain, off)} less",
        gain > 2 * off, gain, off,
    )  # fmt: skip


@claim("more in order by two standard errors")
def order(m: Results) -> Found:
    """The best neuron of {m.called} distinguishes praise from blame better in texts than in shuffled texts."""
    mixed = m.shuffled.best["neuron"]
    more, error = paired(m.trained.best["neuron"], mixed)
    return Found(
        f"with the tokens of each text in random order, and a neuron chosen in random order: {accuracy(mixed)}, "
        f"{percent(more, error)} less, paired by text",
        more > 2 * error, more, error,
    )  # fmt: skip


@claim("the discriminant is better than the neuron by two standard errors")
def direction(m: Results) -> Found:
    """Fisher's discriminant of the stream of {m.called} distinguishes praise from blame better than its best neuron."""
    best = m.trained.best
    more, error = paired(best["discriminant"], best["neuron"])
    means = paired(best["direction"], best["neuron"])
    return Found(
        f"Fisher's discriminant at {m.where('discriminant')} classifies {accuracy(best['discriminant'])} of the texts "
        f"correctly, {percent(more, error)} more than the neuron, paired by text; the difference of the mean streams, "
        f"at {m.where('direction')}, {accuracy(best['direction'])}, {percent(*means)} more than the neuron; the "
        f"discriminant of random weights {percent(*m.random_accuracy('discriminant'))}; the best single coordinate "
        f"({m.where('coordinate')}) {accuracy(best['coordinate'])}",
        more > 2 * error, more, error,
    )  # fmt: skip


@claim("more by two standard errors")
def beyond_lstm(m: Results) -> Found:
    """The best neuron of {m.called} distinguishes praise from blame better than the best cell of an LSTM."""
    more, error = paired(m.trained.best["neuron"], m.lstm)
    small = "" if m.small is None else (
        f"; the best neuron of the language model of the package {accuracy(m.small.best['neuron'])}"
    )  # fmt: skip
    return Found(
        f"cell {m.lstm.unit} of {m.lstm.many} {accuracy(m.lstm)}, {percent(more, error)} less, paired by text{small}",
        more > 2 * error, more, error,
    )  # fmt: skip


@claim(f"less than {SAME:g}", kind="identity")
def ranks(m: Results) -> Found:
    """The area under the ROC curve of a neuron depends only on the order of the texts by its value."""
    words = f"if every value is doubled and raised by one, the areas of the first layer change by at most {m.off:.1e}"
    return Found(words, m.off < SAME, m.off)


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"{ABSENT + ' ' if m.own else ''}Single units of {m.called} that distinguish praise from blame by their means "
        f"over the last {LENGTH} tokens of {m.corpus.data.words}: chosen on {m.p.texts} texts, scored on {m.p.texts} "
        "others. (a) The area under the ROC curve of the best neuron of each layer, and of the difference of the mean "
        f"streams at each level; one half is chance; with the tokens in random order (dashed), and for {len(m.random)} "
        f"networks of random weights {m.spread} (dotted). (b) The share of texts that the best unit of each kind "
        "classifies correctly; squares: tokens in random order; bars: random weights; beside them the best neuron of "
        f"{'' if m.small is None else 'the language model of the package and '}the best cell of an LSTM trained here. "
        "Standard errors over texts, of random weights over networks."
    )


def series(m: Results) -> dict:
    table = {"level": np.arange(len(m.trained.direction_areas))}
    for run, networks in (("in order", [m.trained]), ("in random order", [m.shuffled]), ("random weights", m.random)):
        table |= {
            f"area of the direction, {run}": np.mean([net.direction_areas for net in networks], axis=0),
            f"area of the best neuron_by_layer, {run}": np.mean([net.neuron_areas for net in networks], axis=0),
        }
        for kind in KINDS:
            table[f"{kind} tells right_by_network, {run}"] = np.array([net.best[kind].accuracy for net in networks])
    return table


def draw(m: Results) -> Figure:
    return panels(m, (_areas, _units), columns=2, height=2.9)


def _areas(ax: Axes, m: Results) -> None:
    trained, shuffled = ([m.trained], "-", 1.4, ""), ([m.shuffled], "--", 0.9, ", random order")
    runs = trained, shuffled, (m.random, ":", 1.1, ", random weights")
    for kind, first, mark in (("neuron", 1, "o"), ("direction", 0, "s")):
        for networks, line, width, label in runs:
            area = np.mean([getattr(net, f"{kind}_areas") for net in networks], axis=0)
            ax.plot(first + np.arange(len(area)), area, color=COLOURS[kind], ls=line, lw=width, label=f"{kind}{label}",
                    marker=mark if line == "-" else None, ms=2)  # fmt: skip
    ax.axhline(0.5, color="0.6", lw=0.6, zorder=0)
    ax.set(xlabel="layer", ylabel="area under the ROC curve")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(fontsize=5.5, ncols=2, loc="lower left", bbox_to_anchor=(0, 1.0), handlelength=2.2, columnspacing=1)


def _units(ax: Axes, m: Results) -> None:
    dot = lambda x, unit, **looks: ax.errorbar(x, 100 * unit.accuracy, 100 * unit.error, capsize=2, **looks)
    for x, kind in enumerate(KINDS):
        mean, error = m.random_accuracy(kind)
        ax.bar(x, 100 * mean, 0.6, yerr=100 * error, color="0.85", ecolor="0.5", capsize=2)
        dot(x, m.trained.best[kind], color=COLOURS[kind], marker="o", ms=4)
        dot(x + 0.2, m.shuffled.best[kind], color=COLOURS[kind], marker="s", ms=3, mfc="white")
    labels = [LABELS.get(kind, kind) for kind in KINDS]
    others = [] if m.small is None else [("neuron, own\nmodel", m.small.best["neuron"])]
    for label, unit in [*others, ("cell of\nthe LSTM", m.lstm)]:
        dot(len(labels), unit, color="0.2", marker="D", ms=4)
        labels.append(label)
    ax.axhline(50, color="0.4", lw=0.7, ls=":")
    ax.set_xticks(range(len(labels)), labels=labels, fontsize=6)
    units = [unit for network in (m.trained, m.shuffled, *m.random) for unit in network.best.values()]
    lowest = 100 * min(unit.accuracy - unit.error for unit in units)
    ax.set(ylabel="texts classified correctly\nby the best unit (%)", ylim=(min(40, lowest - 2), None),
           xlim=(-0.6, len(labels) - 0.4))  # fmt: skip


def on(m: Results) -> Measured:
    size = {"texts": m.p.texts, "tokens": LENGTH, "layers": len(m.trained.neuron_areas), "seeds": len(m.random)}
    return Measured(OWN if m.own else SMOLLM2, m.corpus.data, size)


FIGURE = figure(
    __name__,
    over=lambda m: (
        f"{len(m.trained.best['neuron'].right)} texts on which nothing was chosen; of random weights over networks"
    ),
    recorded=lambda m: {
        "network": on(m).network.words, "data": m.corpus.data.words, "starts": m.p.draws, "scored": m.p.texts,
        "random weights": m.spread, "tokens": LENGTH, "solver": "none: layers in float32",
    },
)  # fmt: skip
