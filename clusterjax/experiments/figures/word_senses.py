r"""Does the residual stream of a word tell in which sense it is meant, and from which layer on?

A causal network sees only the context before a word. Each context is therefore read twice in a row, and the stream of
the word is taken at its second occurrence. The gap is the mean cosine of pairs of contexts of one sense minus the mean
cosine of pairs of contexts of two senses, for each word. The level is chosen on every second word and scored on the
others.

Source: Springer et al., *Repetition improves language model embeddings* (2024), for contexts that are read twice.

Invariants: a word is one token, the same in all its contexts; the text after a word does not change its stream.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax.random as jr
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ... import probe
from ...plot import OKABE_ITO
from ...probe.measures.survey import Clustered, Measure, clustered_error
from ..framework.figure import Claim, Found, Measured, Say, Settings, Subject, claim, figure, parameter, plus_minus
from ..shared.causal import ABSENT, OWN, SMOLLM2, name_of, smollm2_or_own, spread_words, untrained
from ..shared.controls import starts_of
from ..shared.ensemble import mean_and_error
from ..shared.layout import layer_lines, panels


FILE = Path(__file__).with_name("senses.json")
BATCH = 24
LEAST = 8  # the number of words below which the figure makes no claim on senses
SAME = 1e-3  # the rounding error of a cosine in float32
SURELY = "by two standard errors over words, or, with few words, by as many as are as improbable"
LEVELS = Measure(lambda hidden, mask: hidden)


@dataclass(frozen=True)
class Parameters:
    words: int = parameter(24, "the largest number of words", least=4, most=24, quick=8)
    draws: int = parameter(3, "the number of networks of random weights", least=2, most=32, quick=2)


class Cosines(NamedTuple):
    """Mean cosines of the streams of each word, over pairs of contexts of one sense and of two, (words, levels)."""

    same: np.ndarray
    different: np.ndarray

    @property
    def gap(self) -> np.ndarray:
        return self.same - self.different


class Results(NamedTuple):
    own: bool  # True if the network is the model of the package, because SmolLM2 is not installed
    words: tuple[str, ...]  # the words that are one token
    contexts: int  # the number of contexts of each sense
    # `trained`, `shuffled`, `random`: the cosines in the contexts, with the other words of each context in random
    # order, and by each network of random weights
    trained: Cosines
    shuffled: Cosines
    random: tuple[Cosines, ...]
    spread: str  # the spread of the random weights, in words
    off: float  # the largest change of a cosine if other tokens follow the word

    @property
    def called(self) -> str:
        return name_of(self.own)

    @property
    def level(self) -> int:
        """The level after the embedding with the largest gap of the words 0, 2, ..."""
        return 1 + int(np.argmax(self.trained.gap[::2, 1:].mean(axis=0)))

    @property
    def where(self) -> str:
        return f"after layer {self.level}, the level of the largest gap in the other words"

    def scored(self, values: np.ndarray) -> Clustered:
        return clustered_error(values[1::2, self.level])

    def words_of(self, values: np.ndarray) -> str:
        return plus_minus(*self.scored(values)[:2], 3)


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    return measure_model(p, *smollm2_or_own(say), read_senses(), settings.seed, say)


def measure_model(
    p: Parameters, model: probe.Model, own: bool, senses: dict[str, list[list[str]]], seed: int, say: Callable
) -> Results:
    single = [word for word in senses if _single(model, word) is not None]
    senses = {word: senses[word] for word in single[: p.words]}
    rng = np.random.default_rng(seed)
    say(f"reading the contexts of {len(senses)} words")
    texts, at = texts_of(model, senses)
    mixed = {
        word: [[shuffled(text, word, rng) for text in sense_texts] for sense_texts in by_sense]
        for word, by_sense in senses.items()
    }
    trained = cosines(model, texts, at, senses)
    # The first token of its text replaces every token after the word.
    after = np.arange(texts.token_ids.shape[1]) > at[:, None]
    other = probe.Encoded(np.where(after, texts.token_ids[:, :1], texts.token_ids), texts.mask)
    off = float(np.abs(np.subtract(cosines(model, other, at, senses), trained)).max())
    say("reading the contexts in random order")
    in_order = cosines(model, *texts_of(model, mixed), senses)
    random = []
    for draw in range(p.draws):
        say(f"reading the contexts by random weights, {draw + 1} of {p.draws}")
        random.append(cosines(untrained(model, jr.fold_in(jr.key(seed), draw)), texts, at, senses))
    contexts = min(len(sense_texts) for by_sense in senses.values() for sense_texts in by_sense)
    return Results(own, tuple(senses), contexts, trained, in_order, tuple(random), spread_words(model), off)


def read_senses() -> dict[str, list[list[str]]]:
    """The contexts of both senses of each word that the package lists."""
    return json.loads(FILE.read_text("utf-8"))


def shuffled(text: str, word: str, rng: np.random.Generator) -> str:
    """The text with all words but this one in random order."""
    others = [other for other in text.split() if other != word]
    at = text.split().index(word)
    mixed = [others[i] for i in rng.permutation(len(others))]
    return " ".join([*mixed[:at], word, *mixed[at:]])


def texts_of(model: probe.Model, senses: dict[str, list[list[str]]]) -> tuple[probe.Encoded, np.ndarray]:
    """All contexts, each twice in a row, and the position of the second occurrence of the word, (texts,)."""
    pairs = [(word, text) for word, by_sense in senses.items() for contexts in by_sense for text in contexts]
    encoded = probe.encode(model, [f"{text}. {text}" for _, text in pairs])
    is_word = encoded.token_ids == np.array([_single(model, word) for word, _ in pairs])[:, None]
    assert (is_word.sum(axis=1) == 2).all(), "a word comes twice in a text that is read twice"
    return encoded, is_word.shape[1] - 1 - np.argmax(is_word[:, ::-1], axis=1)


def _single(model: probe.Model, word: str) -> int | None:
    """The id of a word after another word; None if it is several tokens."""
    ids = model.tokenizer(["the", f"the {word}"], add_special_tokens=False, verbose=False)["input_ids"]
    return int(ids[1][-1]) if len(ids[1]) == len(ids[0]) + 1 else None


def cosines(model: probe.Model, texts: probe.Encoded, at: np.ndarray, senses: dict[str, list[list[str]]]) -> Cosines:
    """The mean cosines of the streams at the positions `at`, (texts,), by word."""
    parts = []
    for begin in range(0, len(at), BATCH):
        rows = np.arange(begin, begin + BATCH) % len(at)
        hidden = np.asarray(probe.stream(model, texts.token_ids[rows], texts.mask[rows], LEVELS).levels)
        parts.append(hidden[:, np.arange(BATCH), at[rows]][:, : min(BATCH, len(at) - begin)])
    # (texts, levels, d)
    stream = np.moveaxis(np.concatenate(parts, axis=1), 1, 0).astype(np.float64)
    stream /= np.linalg.norm(stream, axis=2, keepdims=True)
    same, different, begin = [], [], 0
    for by_sense in senses.values():
        sense = np.repeat(np.arange(len(by_sense)), [len(part) for part in by_sense])
        part = stream[begin : begin + len(sense)]
        begin += len(sense)
        products = np.einsum("ild,jld->ijl", part, part)
        pairs = np.triu(np.ones((len(sense), len(sense)), bool), 1)
        alike = sense[:, None] == sense[None]
        same.append(products[pairs & alike].mean(axis=0))
        different.append(products[pairs & ~alike].mean(axis=0))
    return Cosines(np.stack(same), np.stack(different))


@claim(f"the gap is above zero {SURELY}")
def gap(m: Results) -> Found | None:
    """In {m.called} the stream of a word is more similar in two contexts of one sense than of two senses."""
    if len(m.words) < LEAST:
        return None
    gap = m.scored(m.trained.gap)
    return Found(
        f"mean cosine {m.words_of(m.trained.same)} in one sense and {m.words_of(m.trained.different)} in two, gap "
        f"{m.words_of(m.trained.gap)}, {m.where}",
        gap.above(), gap.mean, gap.error,
    )  # fmt: skip


@claim(f"in random order the gap is above zero, and smaller than in order, both {SURELY}")
def order(m: Results) -> Found | None:
    """With the other words of a context in random order the gap of {m.called} is smaller, but still above zero."""
    if len(m.words) < LEAST:
        return None
    lost = m.trained.gap - m.shuffled.gap
    less = m.scored(lost)
    return Found(
        f"gap with the other words in random order {m.words_of(m.shuffled.gap)}, {m.words_of(lost)} less than in "
        f"order, which is {100 * less.mean / m.scored(m.trained.gap).mean:.0f} % of the gap, {m.where}",
        m.scored(m.shuffled.gap).above() and less.above(), less.mean, less.error,
    )  # fmt: skip


@claim("larger by two standard errors, or, with few words and networks, by as many as are as improbable")
def training(m: Results) -> Found | None:
    """The gap of {m.called} comes with training: it is larger than the gap of random weights."""
    if len(m.words) < LEAST:
        return None
    starts = starts_of(m.trained.gap[1::2], [network.gap[1::2] for network in m.random])
    difference, error = starts.beyond.difference[m.level], starts.beyond.error[m.level]
    return Found(
        f"gap of random weights {m.spread}, {starts.words(m.level)}; difference {plus_minus(difference, error, 3)}, "
        f"{m.where}",
        starts.exceeds(m.level), difference, error,
    )  # fmt: skip


@claim(f"less than {SAME:g}", kind="identity")
def causal(m: Results) -> Found:
    """The text after a word does not change its stream."""
    return Found(f"largest change of a cosine with other tokens after the word {m.off:.1e}", m.off < SAME, m.off)


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    few = "The vocabulary of this network has too few such words for a claim."
    verdict = (
        f"After layer {m.level} the gap is {m.words_of(m.trained.gap)}, over words on which the layer was not chosen."
    )
    return (
        f"{ABSENT + ' ' if m.own else ''}The stream of {len(m.words)} words of two senses, from {m.words[0]} to "
        f"{m.words[-1]}, in {m.called}; {m.contexts} contexts of each sense, each read twice, because a causal network "
        "sees only the context before a word. (a) The mean cosine of pairs of contexts of one sense, and of two. (b) "
        "The gap between the two, beside the gap with the other words in random order and the gap of "
        f"{len(m.random)} networks of random weights {m.spread}. Means over words with standard errors; of random "
        f"weights, over networks. {few if len(m.words) < LEAST else verdict}"
    )


def series(m: Results) -> dict:
    table = {"layer": np.arange(m.trained.gap.shape[1])}
    for run, run_cosines in (("in order", m.trained), ("in random order", m.shuffled)):
        for name in ("same", "different", "gap"):
            mean, error, _ = clustered_error(getattr(run_cosines, name))
            table |= {f"{name} {run}": mean, f"{name} {run}, error": error}
    return table | {"gap by random weights_by_network": _random_gaps(m)}


def _random_gaps(m: Results) -> np.ndarray:
    return np.stack([network.gap.mean(axis=0) for network in m.random])


def draw(m: Results) -> Figure:
    def curves(ylabel: str, *shown: tuple[np.ndarray, str]) -> Callable[[Axes, Results], None]:
        looks = zip(shown, OKABE_ITO, ("-", "--", "-."), strict=False)
        lines = [(label, mean_and_error(values), colour, line) for (values, label), colour, line in looks]
        return lambda ax, m: layer_lines(ax, ylabel, lines)

    left = curves("mean cosine", (m.trained.same, "one sense"), (m.trained.different, "two senses"))
    random = _random_gaps(m), "random weights"
    right = curves("gap of mean cosines", (m.trained.gap, "in order"), (m.shuffled.gap, "random order"), random)
    shown = panels(m, (left, right), columns=2, height=2.7)
    shown.get_axes()[1].axhline(0, color="0.6", lw=0.6, zorder=0)
    return shown


def on(m: Results) -> Measured:
    data = Subject("word senses", f"{len(m.words)} words of two senses, {m.contexts} contexts of each")
    size = {
        "words": len(m.words), "contexts": m.contexts, "layers": m.trained.gap.shape[1] - 1, "seeds": len(m.random)
    }  # fmt: skip
    return Measured(OWN if m.own else SMOLLM2, data, size)


FIGURE = figure(
    __name__,
    over=lambda m: f"{len(m.words[1::2])} words on which the level was not chosen",
    recorded=lambda m: {
        "network": on(m).network.words, "words read": list(m.words), "contexts": m.contexts, "starts": len(m.words),
        "random weights": m.spread, "solver": "none: layers in float32",
    },
)  # fmt: skip
