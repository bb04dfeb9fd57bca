"""What is measured of sinks along training: small models of two kinds, trained with a token that begins each text and
without it, and each read with that token and without it.

Each kind is trained from several seeds, by the loop of `clusterjax train language-model`. At each snapshot, the first
of which is of random weights, the weight that each head gives the first token beyond uniform attention is measured on
texts that no model was trained on, and how long the first token is beside the others. Errors are over trainings.

Source: whether sinks come with training, Gu et al., *When attention sink emerges in language models* (2410.10781).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import probe, transformer
from ..framework.experiment import Settings
from ..framework.few import Few
from ..framework.parameters import parameter
from ..framework.small_models import LENGTH, Corpus, Snapshot, corpus_of, parameters_of, rows_of, train_small
from ..framework.starts import keys_of, seed_of


SEEN = 20_000
SNAPSHOTS = 5
KINDS = (False, True)  # whether a token begins each text


@dataclass(frozen=True)
class Parameters:
    """What of the figure can be set."""

    trainings: int = parameter(3, "the number of trainings of each kind", least=2, most=32, quick=2)
    steps: int = parameter(1200, "the steps of each training", least=16, most=100_000, quick=64)
    d: int = parameter(128, "the dimension of the stream, for four heads", least=8, most=1024, quick=16)
    layers: int = parameter(3, "the number of layers", least=1, most=32, quick=2)
    texts: int = parameter(48, "the number of texts that are measured", least=4, most=1000, quick=16)
    sink: float = parameter(
        0.05, "the weight beyond uniform attention from which a head counts as a sink", above=0, most=1
    )
    times: float = parameter(2.0, "how many times as long as the others the first token is where it is long", above=1)


@dataclass(frozen=True, eq=False)
class Seen:
    """Models of one kind, read in one way: a mean over texts for each training and snapshot.

    **Attributes:**

    - `excess`: The weight that each head gives the first token beyond uniform attention, (trainings, snapshots, layers,
        heads).
    - `ratio`: The length of the first token over the median of the others, at the level where it is largest, the last
        norm left out, (trainings, snapshots).
    - `of_texts`: The standard error over texts of the largest of `excess`, (trainings, snapshots).
    """

    excess: np.ndarray
    ratio: np.ndarray
    of_texts: np.ndarray

    @property
    def strongest(self) -> np.ndarray:
        """The largest of each model, (trainings, snapshots)."""
        return self.excess.max(axis=(2, 3))


@dataclass(frozen=True, eq=False)
class Results:
    """All that the figure shows.

    **Attributes:**

    - `corpus`: What was read.
    - `steps`: The step of each snapshot, (snapshots,), the first 0.
    - `seen`: By whether the models were trained with the token, and whether they read it.
    - `loss`: By whether the models were trained with the token, the loss of the same words, in nats, each kind read as
        it was trained, (trainings, texts).
    - `baseline`, `exact`: What uniform attention gives the first token, as `probe.position_heads` has it, and by
        harmonic numbers.
    - `parameters`: Of one model.
    """

    p: Parameters
    corpus: Corpus
    steps: np.ndarray
    seen: dict[tuple[bool, bool], Seen]
    loss: dict[bool, np.ndarray]
    baseline: float
    exact: float
    parameters: int

    def last(self, trained: bool, read: bool) -> Few:
        """The strongest head after training, over trainings."""
        return Few.of(self.seen[trained, read].strongest[:, -1])


def recipe_of(p: Parameters, begin: bool) -> transformer.LanguageRecipe:
    """How a model of one kind is trained: the same but for the token."""
    return transformer.LanguageRecipe(
        d=p.d, heads=4, hidden=4 * p.d, layers=p.layers, length=LENGTH, steps=p.steps,
        epoch_steps=max(1, p.steps // 16),
        warm_up=p.steps // 10, begin=begin,
    )  # fmt: skip


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Train the models and read the texts with each snapshot."""
    corpus = corpus_of(settings, min(SEEN, 20 * p.steps), p.texts)
    texts = {begin: _whole(corpus.scored.texts, begin) for begin in KINDS}
    raw: dict[tuple[bool, bool], list[list[Any]]] = {(trained, read): [] for trained in KINDS for read in KINDS}
    losses: dict[bool, list[np.ndarray]] = {begin: [] for begin in KINDS}
    steps, last = [], None
    for place, key in enumerate(keys_of(settings.seed, p.trainings)):
        for begin in KINDS:
            say(
                f"training {place + 1} of {p.trainings}, {'with' if begin else 'without'} a token that begins each text"
            )
            snapshots = train_small(corpus.seen, recipe_of(p, begin), seed=seed_of(key), snapshots=SNAPSHOTS)
            steps, last = [one.step for one in snapshots], snapshots[-1].model
            for read in KINDS:
                raw[begin, read].append([_read(one, texts[read]) for one in snapshots])
            losses[begin].append(_losses(snapshots[-1], texts[begin], begin))
    assert last is not None  # both kinds are trained at least once
    heads = probe.position_heads(probe.from_language_model(last), texts[True])
    harmonic = np.sum(1 / np.arange(1, LENGTH + 1))
    return Results(
        p, corpus, np.array(steps), {kind: _seen(rows) for kind, rows in raw.items()},
        {begin: np.stack(rows) for begin, rows in losses.items()}, float(heads.baseline["first"].mean[0, 0]),
        float((harmonic - 1) / (LENGTH - 1)), parameters_of(last),
    )  # fmt: skip


def _whole(texts: list[str], begin: bool) -> probe.Encoded:
    """The texts that fill a row, with the token before them or not: the same ones for both kinds."""
    long = rows_of(texts, LENGTH)[1].all(axis=1)
    return probe.Encoded(*(part[long] for part in rows_of(texts, LENGTH, begin=begin)))


def _read(snapshot: Snapshot, texts: probe.Encoded) -> tuple[np.ndarray, float, float]:
    """The excess of each head, the largest ratio of lengths, and the error over texts of the strongest head."""
    model = probe.from_language_model(snapshot.model)
    many = len(texts.mask)
    heads = probe.position_heads(model, texts, batch_size=many)
    excess = heads.excess["first"]
    # The last level is that after the last norm, where all tokens have about one length.
    ratio = probe.first_token(model, texts, batch_size=many).ratio.mean[:-1]
    return excess.mean, float(ratio.max()), float(excess.error[heads.strongest("first")])


def _losses(snapshot: Snapshot, texts: probe.Encoded, begin: bool) -> np.ndarray:
    """The mean loss of each text over words that both kinds guess from words before them, (texts,)."""
    found = probe.token_losses(probe.from_language_model(snapshot.model), texts, batch_size=len(texts.mask))
    # Column i is of token i + 1: with [CLS] first that is word i, without it word i + 1. Words 1 to LENGTH - 2 are
    # guessed by both from all words before them.
    return (found[:, 1:] if begin else found[:, :-1]).mean(axis=1)


def _seen(rows: list[list[Any]]) -> Seen:
    excess, ratio, of_texts = ([[one[k] for one in snapshots] for snapshots in rows] for k in range(3))
    return Seen(np.array(excess), np.array(ratio), np.array(of_texts))
