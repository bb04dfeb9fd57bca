"""What the figure of sentiment units claims of SmolLM2-135M-Instruct (Q4_1), its controls and an LSTM."""

import numpy as np

from ...probe.measures.tally import clustered_error
from ..framework.causal import ABSENT, NAME
from ..framework.experiment import Claim, over, plus_minus
from ..framework.units import Unit
from .measure import KINDS, LENGTH, STRENGTHS, Results


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
