"""Small language models that a figure trains itself, on film reviews or on made-up texts.

With `Settings.imdb` the texts are these reviews. Otherwise they are made up: a fixed Markov chain draws each word from
the word before, and after some words, the triggers, comes one of the few words that belong to the text, or a word of
praise or of blame, mostly according to the label of the text. Attention to earlier words helps only after a trigger, as
in the Bigram-Backcopy task of Guo et al., *Active-dormant attention heads* (2410.13835, Section 2). All words are word
pieces of the tokenizer of the package, which reads both kinds of texts.

Invariants: the texts of the training, the texts on which units are chosen and the texts that are scored are disjoint;
the training is the training of `clusterjax train language-model`, and one seed always gives one model.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Bool

from ... import transformer
from ..._base.random import generator
from ..._training.corpus import tokenise
from ..._training.loop import Batches, train
from ...sentiment import Reviews, load_imdb, official_split, random_split
from ...transformer._train import _optimiser, _trainable, begun_windows, doublings, language_loss, windows
from ..framework.figure import Settings, Subject


MADE_UP_TEXTS = Subject(
    "made-up texts", "made-up texts (a Markov chain of words, words that a text repeats, and words of praise or blame)"
)
PRAISE = ("wonderful", "excellent", "perfect", "great")
BLAME = ("awful", "terrible", "boring", "horrible")
WORDS, NEXT = 200, 4  # the number of words of the chain, and of possible next words for each
TRIGGERS, OWN = 40, 6  # the number of triggers, the first words of the chain; the number of words of each text, plus 2
TRUE = 0.85  # the share of words of praise or blame that agree with the label
LENGTH = 64  # the number of tokens that a model reads at once
LONG = 80  # the number of words of a made-up text


class Labelled(NamedTuple):
    """Texts, and their labels, which are True for praise."""

    texts: list[str]
    labels: Bool[np.ndarray, " texts"]


class Corpus(NamedTuple):
    training: list[str]  # the texts to train on
    # `chosen`, `scored`: other texts, on which a unit is chosen, and further texts, on which it is scored
    chosen: Labelled
    scored: Labelled
    data: Subject  # the texts as the subject of a verdict


class Snapshot(NamedTuple):
    step: int
    model: Any


def corpus_of(settings: Settings, training: int, labelled: int) -> Corpus:
    """At most `training` texts to train on, and `labelled` texts of each of the two other parts. Raises a ValueError if
    the reviews cannot be read, or are too few."""
    if settings.imdb is None:
        rng = generator(jr.key(settings.seed))
        parts = [made_up_texts(rng, count) for count in (training, labelled, labelled)]
        return Corpus(parts[0].texts, parts[1], parts[2], MADE_UP_TEXTS)
    loaded, key = load_imdb(settings.imdb), jr.key(settings.seed)
    split = random_split(loaded, key=key) if loaded.split is None else official_split(loaded, key=key)
    if min(len(split.train) - labelled, len(split.test)) < 2:
        raise ValueError(
            f"imdb must hold more than {labelled} reviews of its training part and two of its test part, but there are "
            f"{len(split.train)} and {len(split.test)}; add others."
        )
    # Reviews are taken in random order, because files are sorted by label.
    order = np.random.default_rng(settings.seed).permutation(len(split.train))
    data = Subject("reviews", f"film reviews of {Path(settings.imdb).name}")
    texts = _labelled(split.train.take(order[labelled : labelled + training])).texts
    others = np.random.default_rng(settings.seed).permutation(len(split.test))[:labelled]
    return Corpus(texts, _labelled(split.train.take(order[:labelled])), _labelled(split.test.take(others)), data)


def _labelled(reviews: Reviews) -> Labelled:
    return Labelled([text.replace("<br />", " ") for text in reviews.texts], np.asarray(reviews.labels) == 1)


def made_up_texts(rng: np.random.Generator, count: int) -> Labelled:
    """Made-up texts, half of which praise; the table of the chain is always the same."""
    vocabulary = transformer.load_tokenizer().get_vocab()
    # The most frequent whole words, without the words of praise and blame.
    whole = sorted((i, word) for word, i in vocabulary.items() if word.isalpha() and len(word) > 3)
    every = [word for _, word in whole if word not in (*PRAISE, *BLAME)]
    words, pool = every[:WORDS], every[WORDS : 2 * WORDS]
    table = np.random.default_rng(0)
    following = np.stack([table.choice(WORDS, NEXT, replace=False) for _ in range(WORDS)])
    share = 1 / np.arange(1, NEXT + 1)
    cumulative = np.cumsum(share / share.sum())
    labels, texts = np.arange(count) % 2 == 1, []
    for label in labels:
        at, written = int(rng.integers(WORDS)), []
        own = rng.choice(pool, OWN - 2, replace=False).tolist()
        while len(written) < LONG:
            written.append(words[at])
            draws = rng.random(4)
            if at < TRIGGERS:
                kind = PRAISE if label == (draws[1] < TRUE) else BLAME
                # A third of these words are of praise or blame, and the others belong to the text.
                choices = own if draws[0] < (OWN - 2) / OWN else kind
                written.append(choices[int(draws[2] * len(choices))])
            at = int(following[at, int(np.searchsorted(cumulative, draws[3]))])
        texts.append(" ".join(written[:LONG]))
    return Labelled(texts, labels)


def train_small(
    texts: list[str], recipe: transformer.LanguageRecipe, *, seed: int, snapshots: int = 1
) -> list[Snapshot]:
    """Snapshots of a model that is trained on texts: before training, and at most `snapshots` at steps that double, the
    last one at the end.

    The loop, the loss and the optimiser come from `transformer.train_language_model`, without its files.
    """
    model = recipe.model(seed)
    pieces = tokenise(transformer.load_tokenizer(), texts)
    rows = (begun_windows if recipe.begin else windows)(pieces, recipe.length)
    saved_epochs, taken = doublings(recipe.epochs, snapshots), [Snapshot(0, model)]

    def keep(epoch: int, model: Any) -> None:
        if epoch in saved_epochs:
            taken.append(Snapshot(recipe.steps_until(epoch), model))

    # The optimiser is independent of how texts begin, so that both kinds share a compiled step.
    train(
        model, language_loss, Batches((jnp.asarray(rows),), recipe.batch_size, recipe.epoch_steps),
        optimiser=_optimiser(replace(recipe, begin=False)), epochs=recipe.epochs, key=jr.fold_in(jr.key(seed), 1),
        trainable=_trainable(model), steps=recipe.steps, keep=keep,
    )  # fmt: skip
    return taken


def parameters_of(model: Any) -> int:
    return int(sum(np.size(leaf) for leaf in jtu.tree_leaves(eqx.filter(model, eqx.is_inexact_array))))
