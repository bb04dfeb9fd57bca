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

import jax.random as jr
import numpy as np
from jaxtyping import Bool, Float

from ... import probe, transformer
from ...probe.measures.unit_means import UnitMeans, unit_means
from ..framework.causal import ABSENT, smollm2, spread_words, untrained
from ..framework.experiment import Settings
from ..framework.parameters import parameter
from ..framework.small_models import LENGTH, Corpus, Labelled, corpus_of, train_small
from ..framework.starts import keys_of, seed_of
from ..framework.units import Unit, best_unit, best_units


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
