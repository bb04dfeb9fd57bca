r"""Which single neuron, and which direction of the residual stream, tell praise from blame in a causal network.

A text is its last tokens; a unit's value is its mean over them, the first left out. Of all neurons of all layers, and
of all coordinates of the stream at all levels, the one is taken whose area under the ROC curve is farthest from one
half on the texts that units are chosen on; all that is said of it is measured on others. The direction of a level is
the difference of the two mean streams, $\bar x_+ - \bar x_-$, of one half of the first texts, the weakest of linear
probes; beside it stands Fisher's discriminant, $(C + \lambda \bar c I)^{-1} (\bar x_+ - \bar x_-)$ with the covariance
C within the two kinds and its mean diagonal entry $\bar c$. Level, $\lambda$ and threshold are chosen on the other
half.

Source: Radford, Jozefowicz, Sutskever, *Learning to generate reviews and discovering sentiment* (1704.01444), Section
4; *Transformers, part 2*, slide 12.

Invariants: no text that a unit, a direction, a level or a threshold was chosen on is scored; all networks are asked
about the same texts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax.random as jr
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ... import probe, transformer
from ...plot import OKABE_ITO, style
from ...probe.measures.neurons import UnitMeans, unit_means
from ...probe.measures.survey import clustered_error
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, plus_minus
from ..framework.figure import declared
from ..framework.verdict import Measured
from ..shared.causal import ABSENT, NAME, OWN, SMOLLM2, smollm2, spread_words, untrained
from ..shared.controls import keys_of, seed_of
from ..shared.layout import WIDTH
from ..shared.small_models import LENGTH, Corpus, Labelled, corpus_of, train_small
from ..shared.units import Unit, best_unit, best_units


SEEN = 20_000  # texts that the LSTM is trained on
KINDS = ("neuron", "coordinate", "direction", "discriminant")
STRENGTHS = (0.01, 0.1, 1.0, 10.0)  # of lambda


@dataclass(frozen=True)
class Parameters:
    """What of the figure can be set."""

    texts: int = parameter(
        1000, "the texts on which units are chosen, and as many others on which they are scored", least=20, quick=60
    )
    draws: int = parameter(3, "the number of networks of random weights", least=2, most=32, quick=2)
    steps: int = parameter(3000, "the steps of the training of the LSTM", least=16, most=100_000, quick=64)
    units: int = parameter(187, "the units of the LSTM", least=4, most=4096, quick=24)


@dataclass(frozen=True, eq=False)
class Told:
    """What one network tells of praise and blame.

    **Attributes:**

    - `best`: The best of each of `KINDS`; the unit of a direction is its level, that of a discriminant its level times
        the number of `STRENGTHS` plus the number of its own.
    - `neuron_areas`: The area of the best neuron of each layer, on the texts it is scored on, chosen on the others,
      (layers,).
    - `direction_areas`: The area of the direction of each level on the texts that it is scored on, (levels,).
    - `neurons`: How many neurons each layer has.
    """

    best: dict[str, Unit]
    neuron_areas: Float[np.ndarray, " layers"]
    direction_areas: Float[np.ndarray, " levels"]
    neurons: int


@dataclass(frozen=True, eq=False)
class Results:
    """All that the figure shows.

    **Attributes:**

    - `own`: Whether the network is the language model of the package, SmolLM2 being absent.
    - `corpus`: The texts.
    - `trained`, `shuffled`, `random`: The network, with the tokens of each text in random order, and random weights.
    - `spread`: How these were drawn, in words.
    - `small`: The language model of the package, beside SmolLM2; None if it stands for SmolLM2.
    - `lstm`: The best cell of a small LSTM trained here.
    - `off`: By how much the areas change if every value is doubled and raised by one, at most.
    """

    p: Parameters
    own: bool
    corpus: Corpus
    trained: Told
    shuffled: Told
    random: tuple[Told, ...]
    spread: str
    small: Told | None
    lstm: Unit
    off: float


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Read the texts by each network, and choose and score its units."""
    corpus = corpus_of(settings, min(SEEN, 20 * p.steps), p.texts)
    model = smollm2()
    own = model is None
    if model is None:
        say(ABSENT)
        model = probe.load("language-model")
    parts = [encoded(model, part) for part in (corpus.chosen, corpus.scored)]
    labels = corpus.chosen.labels, corpus.scored.labels
    say(f"reading {2 * p.texts} texts")
    means = [unit_means(model, *part) for part in parts]
    trained = told_by(means, labels)
    say("the same, their tokens in random order")
    keys = keys_of(settings.seed, p.draws)
    mixed = [probe.shuffle_tokens(probe.Encoded(*part), jr.fold_in(keys[0], k)) for k, part in enumerate(parts)]
    shuffled = told_by([unit_means(model, np.asarray(one.token_ids), np.asarray(one.mask)) for one in mixed], labels)
    random = []
    for draw, key in enumerate(keys):
        say(f"random weights, {draw + 1} of {p.draws}")
        other = untrained(model, key)
        random.append(told_by([unit_means(other, *part) for part in parts], labels))
    small = None
    if not own:
        say("the language model of the package")
        ours = probe.load("language-model")
        rows = [encoded(ours, part) for part in (corpus.chosen, corpus.scored)]
        small = told_by([unit_means(ours, *part) for part in rows], labels)
    say("training the LSTM")
    recipe = transformer.LanguageRecipe(
        architecture="lstm", d=64, hidden=p.units, length=LENGTH, steps=p.steps, epoch_steps=max(1, p.steps // 16),
        warm_up=p.steps // 10,
    )  # fmt: skip
    lstm = train_small(corpus.seen, recipe, seed=seed_of(keys[0]))[-1].model
    cells = best_units(lstm, corpus.chosen, corpus.scored, LENGTH)["cell"]
    return Results(
        p, own, corpus, trained, shuffled, tuple(random), spread_words(model), small, cells, _moved(means[1], labels[1])
    )


def encoded(model: probe.Model, part: Labelled) -> tuple[np.ndarray, np.ndarray]:
    """The last tokens of each text, padded on the right, and which are there, (texts, `LENGTH`) both."""
    rows = model.tokenizer(list(part.texts), add_special_tokens=False, verbose=False)["input_ids"]
    ids, present = np.zeros((len(rows), LENGTH), np.int32), np.zeros((len(rows), LENGTH), bool)
    for k, row in enumerate(rows):
        last = row[-LENGTH:]
        ids[k, : len(last)], present[k, : len(last)] = last, True
    return ids, present


def told_by(means: list[UnitMeans], labels: tuple[Bool[np.ndarray, " texts"], Bool[np.ndarray, " others"]]) -> Told:
    """The best units of one network: `means` and `labels` of the texts to choose on, and of those to score on."""
    chosen, scored = means
    flat = lambda values: values.reshape(len(values), -1)
    best = {
        "neuron": best_unit(flat(chosen.neurons), labels[0], flat(scored.neurons), labels[1]),
        "coordinate": best_unit(flat(chosen.levels), labels[0], flat(scored.levels), labels[1]),
    }
    # The direction of each level by one half; which level, and the threshold, by the other half.
    half = every_other(labels[0])
    directions = difference_of_means(chosen.levels[half], labels[0][half])
    along = lambda values: np.einsum("tld,ld->tl", values, directions)
    best["direction"] = best_unit(along(chosen.levels[~half]), labels[0][~half], along(scored.levels), labels[1])
    fitted = discriminants(chosen.levels[half], labels[0][half])
    along_fitted = lambda values: np.einsum("tld,lsd->tls", values, fitted).reshape(len(values), -1)
    best["discriminant"] = best_unit(
        along_fitted(chosen.levels[~half]), labels[0][~half], along_fitted(scored.levels), labels[1]
    )
    layers = range(chosen.neurons.shape[1])
    by_layer = [transformer.best_detector(chosen.neurons[:, layer], labels[0]).neuron for layer in layers]
    of_neurons = np.stack([scored.neurons[:, layer, neuron] for layer, neuron in zip(layers, by_layer, strict=True)], 1)
    signs = np.sign(areas(np.stack([chosen.neurons[:, k, n] for k, n in enumerate(by_layer)], 1), labels[0]) - 0.5)
    return Told(
        best, 0.5 + signs * (areas(of_neurons, labels[1]) - 0.5), areas(along(scored.levels), labels[1]),
        chosen.neurons.shape[2],
    )  # fmt: skip


def every_other(labels: Bool[np.ndarray, " texts"]) -> Bool[np.ndarray, " texts"]:
    """One half of the texts: every other one of each kind, for the kinds may alternate."""
    half = np.zeros(len(labels), bool)
    for kind in (labels, ~labels):
        half[np.flatnonzero(kind)[::2]] = True
    return half


def difference_of_means(
    levels: Float[np.ndarray, "texts levels d"], labels: Bool[np.ndarray, " texts"]
) -> Float[np.ndarray, "levels d"]:
    """The mean stream of texts that praise less that of the others, at each level."""
    levels = levels.astype(float)
    return levels[labels].mean(axis=0) - levels[~labels].mean(axis=0)


def discriminants(
    levels: Float[np.ndarray, "texts levels d"], labels: Bool[np.ndarray, " texts"]
) -> Float[np.ndarray, "levels strengths d"]:
    """Fisher's discriminant of texts that praise and others, at each level and with each of `STRENGTHS`."""
    levels, apart = levels.astype(float), difference_of_means(levels, labels)
    found = np.empty((len(apart), len(STRENGTHS), apart.shape[1]))
    for level, (x, along) in enumerate(zip(np.moveaxis(levels, 1, 0), apart, strict=True)):
        # Of each kind about its own mean.
        centred = np.concatenate([x[of] - x[of].mean(axis=0) for of in (labels, ~labels)])
        lengths, axes = np.linalg.eigh(centred.T @ centred / len(x))
        for number, strength in enumerate(STRENGTHS):
            # Where all texts are alike, as before the first layer, all directions serve alike.
            damped = np.maximum(lengths, 0) + strength * max(lengths.mean(), np.finfo(float).tiny)
            found[level, number] = axes @ ((axes.T @ along) / damped)
    return found


def areas(values: Float[np.ndarray, "texts units"], labels: Bool[np.ndarray, " texts"]) -> Float[np.ndarray, " units"]:
    """The area under the ROC curve of each unit."""
    return np.asarray(transformer.best_detector(values, labels).area)


def _moved(means: UnitMeans, labels: Bool[np.ndarray, " texts"]) -> float:
    first = means.neurons[:, 0].astype(float)
    return float(np.abs(areas(2 * first + 1, labels) - areas(first, labels)).max())


# What the figure of sentiment units claims of SmolLM2-135M-Instruct (Q4_1), its controls and an LSTM.


SHOWN = {"neuron": "neuron", "coordinate": "coordinate of the stream", "direction": "difference of mean streams",
         "discriminant": "Fisher's discriminant of the stream"}  # fmt: skip
SAME = 1e-12  # ranks of float64


def of_model(m: Results) -> str:
    """What the network is called in a sentence."""
    return "the language model of the package" if m.own else NAME


def percent(value: float, error: float) -> str:
    """A share with its error in per cent."""
    return f"{plus_minus(100 * value, 100 * error, 1)} %"


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure."""
    texts = f"{len(m.trained.best['neuron'].right)} texts on which nothing was chosen; of random weights over networks"
    return over(texts, (_sentiment(m), _order(m), _direction(m), _lstm(m), _identity(m)))


def place_of(m: Results, kind: str) -> str:
    """Where the best of a kind is, in words."""
    unit = m.trained.best[kind]
    if kind == "direction":
        return f"level {unit.unit}"
    if kind == "discriminant":
        level, number = divmod(unit.unit, len(STRENGTHS))
        return f"level {level}, lambda = {STRENGTHS[number]:g}"
    size = m.trained.neurons if kind == "neuron" else unit.many // len(m.trained.direction_areas)
    where, number = divmod(unit.unit, size)
    return f"layer {where + 1}, number {number}" if kind == "neuron" else f"level {where}, number {number}"


def of_random(m: Results, kind: str) -> tuple[float, float]:
    """The mean accuracy of the best units of random weights, and its error over networks."""
    each = np.array([one.best[kind].accuracy for one in m.random])
    return float(each.mean()), float(each.std(ddof=1) / np.sqrt(len(each)))


def paired(one: Unit, other: Unit) -> tuple[float, float]:
    """By how much the first tells more texts right, and the error, paired by text."""
    less = clustered_error(one.right.astype(float) - other.right.astype(float))
    return float(less.mean), float(less.error)


def _sentiment(m: Results) -> Claim:
    unit = m.trained.best["neuron"]
    mean, error = of_random(m, "neuron")
    gain, off = unit.accuracy - mean, float(np.hypot(unit.error, error))
    return Claim(
        says=f"The best neuron of {of_model(m)} tells praise from blame better than that of random weights.",
        measured=f"{place_of(m, 'neuron')}: {percent(unit.accuracy, unit.error)} of {len(unit.right)} texts on which "
        f"it was not chosen ({100 * unit.chosen:.1f} % of those it was); the best neuron of random weights "
        f"{m.spread} {percent(mean, error)}, {percent(gain, off)} less",
        criterion="more than that of random weights by two standard errors",
        holds=bool(gain > 2 * off),
        kind="finding",
        value=gain,
        error=off,
    )


def _order(m: Results) -> Claim:
    unit, mixed = m.trained.best["neuron"], m.shuffled.best["neuron"]
    more, error = paired(unit, mixed)
    return Claim(
        says=f"The best neuron of {of_model(m)} tells more in texts than in their words in random order.",
        measured=f"with the tokens of each text in random order, its neuron chosen anew: "
        f"{percent(mixed.accuracy, mixed.error)}, {percent(more, error)} less, paired by text",
        criterion="more in order by two standard errors",
        holds=bool(more > 2 * error),
        kind="finding",
        value=more,
        error=error,
    )


def _direction(m: Results) -> Claim:
    direction, fitted, neuron = (m.trained.best[kind] for kind in ("direction", "discriminant", "neuron"))
    more, error = paired(fitted, neuron)
    mean, off = of_random(m, "discriminant")
    return Claim(
        says=f"A direction of the stream of {of_model(m)} tells praise from blame better than its best neuron.",
        measured=f"Fisher's discriminant at {place_of(m, 'discriminant')} tells "
        f"{percent(fitted.accuracy, fitted.error)} right, {percent(more, error)} more than the neuron, paired by "
        f"text; the difference of the mean streams, at {place_of(m, 'direction')}, "
        f"{percent(direction.accuracy, direction.error)}, {percent(*paired(direction, neuron))} more than the neuron; "
        "the "
        f"discriminant of random weights {percent(mean, off)}; the best single coordinate "
        f"({place_of(m, 'coordinate')}) "
        f"{percent(m.trained.best['coordinate'].accuracy, m.trained.best['coordinate'].error)}",
        criterion="the discriminant tells more than the neuron by two standard errors",
        holds=bool(more > 2 * error),
        kind="finding",
        value=more,
        error=error,
    )


def _lstm(m: Results) -> Claim:
    neuron = m.trained.best["neuron"]
    more, error = paired(neuron, m.lstm)
    beside = ""
    if m.small is not None:
        small = m.small.best["neuron"]
        beside = f"; the best neuron of the language model of the package {percent(small.accuracy, small.error)}"
    return Claim(
        says=f"The best neuron of {of_model(m)} tells more than the best cell of an LSTM that was trained here.",
        measured=f"cell {m.lstm.unit} of {m.lstm.many} {percent(m.lstm.accuracy, m.lstm.error)}, "
        f"{percent(more, error)} less, paired by text{beside}",
        criterion="more by two standard errors",
        holds=bool(more > 2 * error),
        kind="finding",
        value=more,
        error=error,
    )


def _identity(m: Results) -> Claim:
    return Claim(
        says="The area under the ROC curve of a neuron depends on the order of the texts alone.",
        measured=f"doubled and raised by one, the areas of the first layer change by at most {m.off:.1e}",
        criterion=f"less than {SAME:g}",
        holds=m.off < SAME,
        kind="identity",
        value=m.off,
    )


def caption_of(m: Results) -> str:
    """What is seen, and what it is worth."""
    told = ", ".join(
        f"{SHOWN[kind]} ({place_of(m, kind)}) {percent(m.trained.best[kind].accuracy, m.trained.best[kind].error)}"
        for kind in KINDS
    )
    beside = "" if m.small is None else "the language model of the package and "
    return (
        f"{ABSENT + ' ' if m.own else ''}Single units of {of_model(m)} that tell praise from blame, by their means "
        f"over the last {LENGTH} tokens of {m.corpus.data.words}: chosen on {m.p.texts} texts, scored on "
        f"{m.p.texts} others. (a) The area under the ROC curve of the best neuron of each layer, and of the difference "
        "of the mean streams at each level, where one half is chance, with the tokens in random order (dashed) and by "
        f"{len(m.random)} networks of random weights {m.spread} (dotted). (b) How many texts the best unit of each "
        "kind tells "
        f"right; squares: tokens in random order; bars: random weights; beside it the best neuron of {beside}the best "
        f"cell of an LSTM trained here. Standard errors over texts, of random weights over networks. {told}."
    )


# The panels of sentiment units: areas by layer, and the share of texts that the best unit of each kind tells.


COLOURS = {"neuron": OKABE_ITO[0], "coordinate": OKABE_ITO[2], "direction": OKABE_ITO[1], "discriminant": OKABE_ITO[5]}
MARKS = {"neuron": "o", "direction": "s"}


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    _areas(left, m)
    _units(right, m)
    for letter, ax in zip("ab", (left, right), strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _areas(ax: Axes, m: Results) -> None:
    for kind, name in (("neuron", "neuron_areas"), ("direction", "direction_areas")):
        first = 1 if kind == "neuron" else 0
        of = lambda one, name=name: getattr(one, name)
        places = first + np.arange(len(of(m.trained)))
        for values, line, width, label in (
            (of(m.trained), "-", 1.4, kind),
            (of(m.shuffled), "--", 0.9, f"{kind}, random order"),
            (np.mean([of(one) for one in m.random], axis=0), ":", 1.1, f"{kind}, random weights"),
        ):
            marker = MARKS[kind] if line == "-" else None
            ax.plot(places, values, color=COLOURS[kind], ls=line, lw=width, label=label, marker=marker, ms=2)
    ax.axhline(0.5, color="0.6", lw=0.6, zorder=0)
    ax.set(xlabel="layer", ylabel="area under the ROC curve")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(fontsize=5.5, ncols=2, loc="lower left", bbox_to_anchor=(0, 1.0), handlelength=2.2, columnspacing=1)


def _units(ax: Axes, m: Results) -> None:
    labels = []
    for place, kind in enumerate(KINDS):
        unit, mixed = m.trained.best[kind], m.shuffled.best[kind]
        mean, error = of_random(m, kind)
        ax.bar(place, 100 * mean, 0.6, yerr=100 * error, color="0.85", ecolor="0.5", capsize=2)
        ax.errorbar(place, 100 * unit.accuracy, 100 * unit.error, color=COLOURS[kind], marker="o", ms=4, capsize=2)
        ax.errorbar(place + 0.2, 100 * mixed.accuracy, 100 * mixed.error, color=COLOURS[kind], marker="s", ms=3,
                    mfc="white", capsize=2)  # fmt: skip
        labels.append({"direction": "mean\ndifference", "discriminant": "discri-\nminant"}.get(kind, kind))
    others = [] if m.small is None else [("neuron, own\nmodel", m.small.best["neuron"])]
    for label, unit in [*others, ("cell of\nthe LSTM", m.lstm)]:
        ax.errorbar(len(labels), 100 * unit.accuracy, 100 * unit.error, color="0.2", marker="D", ms=4, capsize=2)
        labels.append(label)
    ax.axhline(50, color="0.4", lw=0.7, ls=":")
    ax.set_xticks(range(len(labels)), labels=labels, fontsize=6)
    lowest = min(
        unit.accuracy - unit.error for told in (m.trained, m.shuffled, *m.random) for unit in told.best.values()
    )
    ax.set(ylabel="texts told right by\nthe best unit (%)", ylim=(min(40, 100 * lowest - 2), None),
           xlim=(-0.6, len(labels) - 0.4))  # fmt: skip


# Units for sentiment as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    size = {"texts": m.p.texts, "tokens": LENGTH, "layers": len(m.trained.neuron_areas), "seeds": len(m.random)}
    on = Measured(OWN if m.own else SMOLLM2, m.corpus.data, size)
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"network": on.network.words, "texts": m.corpus.data.words, "starts": settings.starts, "scored": m.p.texts,
         "draws of random weights": len(m.random), "random weights": m.spread,
         "steps of the LSTM": m.p.steps, "units of the LSTM": m.p.units,
         "tokens": LENGTH, "solver": "none: layers in float32"},
        _series(m),
        partial(draw, m),
        None,
        on=on,
    )  # fmt: skip


def _series(m: Results) -> dict:
    series = {"level": np.arange(len(m.trained.direction_areas))}
    for run, told in (("in order", [m.trained]), ("in random order", [m.shuffled]), ("random weights", m.random)):
        series |= {
            f"area of the direction, {run}": np.mean([one.direction_areas for one in told], axis=0),
            f"area of the best neuron_by_layer, {run}": np.mean([one.neuron_areas for one in told], axis=0),
        }
        for kind in KINDS:
            series[f"{kind} tells right_by_network, {run}"] = np.array([one.best[kind].accuracy for one in told])
    return series


FIGURE = declared("sentiment-neuron", _run, parameters=Parameters)
