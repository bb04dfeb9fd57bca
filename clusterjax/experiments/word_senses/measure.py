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
from pathlib import Path
from typing import NamedTuple

import jax.random as jr
import numpy as np

from ... import probe
from ...probe.measures.stream import Measure
from ..framework.causal import ABSENT, smollm2, spread_words, untrained
from ..framework.experiment import Settings
from ..framework.parameters import parameter


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
