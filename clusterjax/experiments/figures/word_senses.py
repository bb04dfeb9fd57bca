r"""How alike the stream of a word is in two contexts of one sense, and in contexts of two.

A causal network sees of a word's context only what stands before it, so that each context is read twice in a row, and
the word is taken where it comes the second time. The gap is the mean cosine of pairs of contexts of one sense less that
of pairs of contexts of two; a word counts as one.

Source: Springer et al., *Repetition improves language model embeddings* (2024), for contexts that are read twice.

Invariants: a word is one token, the same in all its contexts; what stands after it changes nothing.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax.random as jr
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ... import probe
from ...plot import OKABE_ITO, style, time_series
from ...probe.measures.survey import Measure, clustered_error
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, plus_minus
from ..framework.figure import declared
from ..framework.verdict import Measured, Subject
from ..shared.causal import ABSENT, NAME, OWN, SMOLLM2, smollm2, spread_words, untrained
from ..shared.controls import starts_of
from ..shared.layout import WIDTH


FILE = Path(__file__).with_name("senses.json")
BATCH = 24


@dataclass(frozen=True)
class Parameters:
    """What of the figure can be set."""

    words: int = parameter(24, "how many words, at most", least=4, most=24, quick=8)
    draws: int = parameter(3, "the number of networks of random weights", least=2, most=32, quick=2)


class Cosines(NamedTuple):
    """Mean cosines of one network's streams of each word.

    **Attributes:**

    - `same`: Of pairs of contexts of one sense, (words, levels).
    - `different`: Of pairs of contexts of two senses, (words, levels).
    """

    same: np.ndarray
    different: np.ndarray

    @property
    def gap(self) -> np.ndarray:
        """By how much the first is above the second, (words, levels)."""
        return self.same - self.different


@dataclass(frozen=True, eq=False)
class Results:
    """All that the figure shows.

    **Attributes:**

    - `own`: Whether the network is that of the package, SmolLM2 being absent.
    - `words`: Those that are one token.
    - `contexts`: How many contexts each sense has.
    - `trained`, `shuffled`: In the contexts, and with the other words of each in random order.
    - `random`: By networks of random weights.
    - `spread`: How these were drawn, in words.
    - `off`: The largest change of a cosine if what stands after the word is another token.
    """

    own: bool
    words: tuple[str, ...]
    contexts: int
    trained: Cosines
    shuffled: Cosines
    random: tuple[Cosines, ...]
    spread: str
    off: float


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Read all contexts by the network, in random order, and by random weights."""
    model = smollm2()
    own = model is None
    if model is None:
        say(ABSENT)
        model = probe.load("language-model")
    return measure_model(p, model, own, read_senses(), settings.seed, say)


def measure_model(
    p: Parameters,
    model: probe.Model,
    own: bool,
    senses: dict[str, list[list[str]]],
    seed: int,
    say: Callable[[str], None],
) -> Results:
    """The same of a model and of some words."""
    single = {word: of for word, of in senses.items() if _single(model, word) is not None}
    words = tuple(single)[: p.words]
    senses = {word: single[word] for word in words}
    rng = np.random.default_rng(seed)
    say(f"{len(words)} words")
    texts, places = texts_of(model, senses)
    mixed = {word: [[shuffled(text, word, rng) for text in of] for of in single[word]] for word in words}
    trained = cosines(model, texts, places, senses)
    # After the word stands the first token of its text.
    after = np.arange(texts.token_ids.shape[1]) > places[:, None]
    other = probe.Encoded(np.where(after, texts.token_ids[:, :1], texts.token_ids), texts.mask)
    off = max(
        float(np.abs(one - two).max()) for one, two in zip(cosines(model, other, places, senses), trained, strict=True)
    )
    say("in random order")
    in_order = cosines(model, *texts_of(model, mixed), senses)
    random = []
    for draw in range(p.draws):
        say(f"random weights, {draw + 1} of {p.draws}")
        random.append(cosines(untrained(model, jr.fold_in(jr.key(seed), draw)), texts, places, senses))
    contexts = min(len(of) for both in senses.values() for of in both)
    return Results(own, words, contexts, trained, in_order, tuple(random), spread_words(model), off)


def read_senses() -> dict[str, list[list[str]]]:
    """Contexts of both senses of each word that the package lists."""
    return json.loads(FILE.read_text("utf-8"))


def shuffled(text: str, word: str, rng: np.random.Generator) -> str:
    """The text with all words but this one in random order."""
    others = [other for other in text.split() if other != word]
    place = text.split().index(word)
    mixed = [others[i] for i in rng.permutation(len(others))]
    return " ".join([*mixed[:place], word, *mixed[place:]])


def texts_of(model: probe.Model, senses: dict[str, list[list[str]]]) -> tuple[probe.Encoded, np.ndarray]:
    """All contexts, each twice in a row, and the place of the word where it comes the second time."""
    texts, ids = [], []
    for word, both in senses.items():
        for text in (text for of in both for text in of):
            texts.append(f"{text}. {text}")
            ids.append(_single(model, word))
    encoded = probe.encode(model, texts)
    found = encoded.token_ids == np.array(ids)[:, None]
    assert (found.sum(axis=1) == 2).all(), "a word comes twice in a text that is read twice"
    return encoded, found.shape[1] - 1 - np.argmax(found[:, ::-1], axis=1)


def _single(model: probe.Model, word: str) -> int | None:
    """The id of a word inside a text; None if it is several tokens."""
    # After another word, which it is apart from by a blank.
    ids = model.tokenizer(["the", f"the {word}"], add_special_tokens=False, verbose=False)["input_ids"]
    return int(ids[1][-1]) if len(ids[1]) == len(ids[0]) + 1 else None


def cosines(
    model: probe.Model, texts: probe.Encoded, places: np.ndarray, senses: dict[str, list[list[str]]]
) -> Cosines:
    """Mean cosines of the streams at some places, (texts,), by word."""
    parts = []
    for begin in range(0, len(places), BATCH):
        rows = np.arange(begin, begin + BATCH) % len(places)
        hidden = np.asarray(probe.stream(model, texts.token_ids[rows], texts.mask[rows], _LEVELS).levels)
        at = hidden[:, np.arange(BATCH), places[rows]]
        parts.append(at[:, : min(BATCH, len(places) - begin)])
    # (texts, levels, d)
    stream = np.moveaxis(np.concatenate(parts, axis=1), 1, 0).astype(np.float64)
    stream /= np.linalg.norm(stream, axis=2, keepdims=True)
    same, different, begin = [], [], 0
    for both in senses.values():
        sense = np.repeat(np.arange(len(both)), [len(of) for of in both])
        of = stream[begin : begin + len(sense)]
        begin += len(sense)
        products = np.einsum("ild,jld->ijl", of, of)
        pairs = np.triu(np.ones((len(sense), len(sense)), bool), 1)
        alike = sense[:, None] == sense[None]
        same.append(products[pairs & alike].mean(axis=0))
        different.append(products[pairs & ~alike].mean(axis=0))
    return Cosines(np.stack(same), np.stack(different))


_LEVELS = Measure(lambda hidden, mask: hidden)


# What the figure of two senses claims. The level is chosen on every second word and scored on the others.


LEAST = 8  # words, below which nothing is claimed of senses
SURELY = "by two standard errors over words, or as many as are as improbable with few"
SAME = 1e-3  # of a cosine: by how much float32 may move it


def level_of(m: Results) -> int:
    """The level at which the gap of words 0, 2, ... is largest, the embedding aside."""
    return 1 + int(np.argmax(m.trained.gap[::2, 1:].mean(axis=0)))


def of_model(m: Results) -> str:
    """What the network is called in a sentence."""
    return "the language model of the package" if m.own else NAME


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure; of few words, as of the network of the package, only what must hold."""
    if len(m.words) < LEAST:
        return (_claim_of_rest(m),)
    level = level_of(m)
    of_rest = lambda cosines: cosines.gap[1::2, level]
    gap, mixed = clustered_error(of_rest(m.trained)), clustered_error(of_rest(m.shuffled))
    ordered = clustered_error(of_rest(m.trained) - of_rest(m.shuffled))
    beyond = starts_of(m.trained.gap[1::2], [one.gap[1::2] for one in m.random])
    told = lambda values: plus_minus(*clustered_error(values)[:2], 3)
    where = f"after layer {level}, the level of the largest gap in the other words"
    claims = (
        Claim(
            says=f"In {of_model(m)} a word is more alike in two contexts of one sense than in contexts of two.",
            measured=f"mean cosine {told(m.trained.same[1::2, level])} and {told(m.trained.different[1::2, level])}, "
            f"gap {plus_minus(gap.mean, gap.error, 3)}, {where}",
            criterion=f"a gap above zero {SURELY}",
            holds=gap.above(),
            kind="finding",
            value=float(gap.mean),
            error=float(gap.error),
        ),
        Claim(
            says=f"For {of_model(m)} the words of a context tell the sense in random order too, and less than in "
            "order.",
            measured=f"gap with the other words in random order {told(of_rest(m.shuffled))}, "
            f"{plus_minus(ordered.mean, ordered.error, 3)} less than in order: "
            f"{100 * ordered.mean / gap.mean:.0f} % of it is of the order, {where}",
            criterion=f"in random order the gap is above zero, and less than in order, both {SURELY}",
            holds=mixed.above() and ordered.above(),
            kind="finding",
            value=float(ordered.mean),
            error=float(ordered.error),
        ),
        Claim(
            says=f"The gap of {of_model(m)} comes with training: it is larger than that of random weights.",
            measured=f"gap of random weights {m.spread}, {beyond.words(level)}, "
            f"{plus_minus(beyond.beyond.difference[level], beyond.beyond.error[level], 3)} less, {where}",
            criterion="less by two standard errors, or with few words and networks by as many as are as improbable",
            holds=beyond.exceeds(level),
            kind="finding",
            value=float(beyond.beyond.difference[level]),
            error=float(beyond.beyond.error[level]),
        ),
        _claim_of_rest(m),
    )
    return over(f"{gap.units} words on which the level was not chosen", claims)


def _claim_of_rest(m: Results) -> Claim:
    return Claim(
        says="What stands after a word changes nothing of it.",
        measured=f"largest change of a cosine {m.off:.1e} with another token in all places after it",
        criterion=f"less than {SAME:g}",
        holds=m.off < SAME,
        kind="identity",
        value=m.off,
    )


def caption_of(m: Results) -> str:
    """What is seen, and what holds."""
    level = level_of(m)
    gap = clustered_error(m.trained.gap[1::2, level])
    told = (
        "Its vocabulary has too few such words for a claim."
        if len(m.words) < LEAST
        else f"After layer {level} the gap is {plus_minus(gap.mean, gap.error, 3)}, over words on which the layer was "
        "not chosen."
    )
    return (
        f"{ABSENT + ' ' if m.own else ''}The stream of {len(m.words)} words of two senses, from {m.words[0]} to "
        f"{m.words[-1]}, in {of_model(m)}; {m.contexts} contexts of each sense, each read twice, as a causal network "
        "sees only what stands before a word. (a) Mean cosine of pairs of contexts of one sense, and of two. "
        "(b) The gap "
        f"between the two, beside that with the other words in random order and that of {len(m.random)} networks of "
        f"random weights {m.spread}. Means over words with their standard errors; of random weights, over networks. "
        f"{told}"
    )


# The panels of two senses: cosines within and between senses, and the gap beside its controls.


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 2.7), layout="constrained")
    left, right = figure.subplots(1, 2)
    _series(left, m.trained.same, "one sense", OKABE_ITO[0], "-", "mean cosine")
    _series(left, m.trained.different, "two senses", OKABE_ITO[1], "--", "mean cosine")
    _series(right, m.trained.gap, "in order", OKABE_ITO[0], "-", "gap of mean cosines")
    _series(right, m.shuffled.gap, "random order", OKABE_ITO[1], "--", "gap of mean cosines")
    random = np.stack([one.gap.mean(axis=0) for one in m.random])
    _series(right, random, "random weights", OKABE_ITO[2], "-.", "gap of mean cosines")
    right.axhline(0, color="0.6", lw=0.6, zorder=0)
    for letter, ax in zip("ab", (left, right), strict=True):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.legend(fontsize=6, handlelength=2.8)
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _series(ax: Axes, values: np.ndarray, label: str, colour: str, line: str, ylabel: str) -> None:
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    time_series(np.arange(values.shape[1]), values.mean(axis=0), error, ax, label=label, colour=colour,
                linestyle=line, xlabel="layer", ylabel=ylabel)  # fmt: skip


# Two senses of a word as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    levels = m.trained.gap.shape[1]
    data = Subject("word senses", f"{len(m.words)} words of two senses, {m.contexts} contexts of each")
    size = {"words": len(m.words), "contexts": m.contexts, "layers": levels - 1, "seeds": len(m.random)}
    on = Measured(OWN if m.own else SMOLLM2, data, size)
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"network": on.network.words, "words": list(m.words), "contexts": m.contexts, "starts": len(m.words),
         "draws of random weights": len(m.random), "random weights": m.spread, "solver": "none: layers in float32"},
        _experiment_series(m),
        partial(draw, m),
        None,
        on=on,
    )  # fmt: skip


def _experiment_series(m: Results) -> dict:
    series = {"layer": np.arange(m.trained.gap.shape[1])}
    for run, cosines in (("in order", m.trained), ("in random order", m.shuffled)):
        for name in ("same", "different", "gap"):
            values = getattr(cosines, name)
            of = clustered_error(values)
            series |= {f"{name} {run}": of.mean, f"{name} {run}, error": of.error}
    return series | {"gap by random weights_by_network": np.stack([one.gap.mean(axis=0) for one in m.random])}


FIGURE = declared("word-senses", _run, parameters=Parameters)
