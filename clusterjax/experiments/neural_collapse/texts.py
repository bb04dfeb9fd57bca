"""The stream of a causal language network: its classes are the next token, or the token that was read.

At each level the stream is what the head would read there, that is, after the last norm (the logit lens), and the rows
of the classifier are those of the head for these tokens. The first token of a text is left out: it has read nothing but
itself, and where it is a sink its stream points elsewhere than all others.
"""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from ... import probe
from ...probe.measures.stream import Measure
from ..framework.causal import spread_words, untrained
from .levels import Clustering, Measures, balanced, clusters_of, frequent, measures_of, shuffled


NEAR = 0.2**0.5  # the chordal distance of directions whose cosine is 0.9: the radius of clusters
BATCH, FEW = 8, 16


class Places(NamedTuple):
    """Some places of texts, as many of each class.

    **Attributes:**

    - `rows`, `columns`: Which text, and which of its tokens.
    - `labels`: The class of each, from 0.
    - `tokens`: The id of each class.
    """

    rows: np.ndarray
    columns: np.ndarray
    labels: np.ndarray
    tokens: np.ndarray


class OfTexts(NamedTuple):
    """A language network on some texts.

    **Attributes:**

    - `next`, `current`: The measures by level with the next token as the class, and the one that was read.
    - `shuffled`: Of the next token, labels in random order.
    - `random`: Of the next token, by networks of random weights.
    - `spread`: How these were drawn, in words.
    - `clustering`: Of the tokens of a text.
    - `classes`, `each`: How many next tokens are classes, and how many places each has.
    """

    next: Measures
    current: Measures
    shuffled: Measures
    random: tuple[Measures, ...]
    spread: str
    clustering: Clustering
    classes: int
    each: int


def measure_texts(
    model: probe.Model, texts: probe.Encoded, classes: int, each: int, keys: list[PRNGKeyArray],
    rng: np.random.Generator, draws: int,
) -> OfTexts:  # fmt: skip
    """Measure the network and its controls.

    **Raises:**

    - `ValueError` if fewer than two tokens are there `each` times.
    """
    (after,), (before,) = (places_of(texts, classes, each, rng, ahead=ahead) for ahead in (True, False))
    of_next, of_current = stream_of(model, texts, [after, before])
    rows = rows_of(model, after)
    random = []
    for key in keys:
        other = untrained(model, key)
        (found,) = stream_of(other, texts, [after])
        random.append(measures_of(found, after.labels, rows_of(other, after)))
    return OfTexts(
        measures_of(of_next, after.labels, rows),
        measures_of(of_current, before.labels, rows_of(model, before)),
        shuffled(of_next, after.labels, rows, None, rng, draws),
        tuple(random),
        spread_words(model),
        clustering_of(model, texts),
        len(after.tokens),
        each,
    )


def places_of(
    texts: probe.Encoded, classes: int, each: int, rng: np.random.Generator, *, ahead: bool,
    beside: probe.Encoded | None = None,
) -> tuple[Places, ...]:  # fmt: skip
    """Places whose next token, or whose own one, is one of the most frequent; and those of other texts with the same
    classes, which are then tokens that these texts have as often.

    **Raises:**

    - `ValueError` if fewer than two tokens are there `each` times.
    """
    several = [_labelled(one, ahead) for one in ([texts] if beside is None else [texts, beside])]
    tokens = frequent(several[0][2], classes, each)
    for _, _, labels in several[1:]:
        tokens = tokens[[np.sum(labels == token) >= each for token in tokens]]
    if len(tokens) < 2:
        raise ValueError(
            f"each must be so small that two tokens are there so often, but of {each} times there "
            f"{'is one' if len(tokens) else 'is none'}; set a smaller one, or pass more texts."
        )
    numbers = np.repeat(np.arange(len(tokens)), each)
    chosen = [balanced(labels, tokens, each, rng) for _, _, labels in several]
    return tuple(
        Places(rows[some], columns[some], numbers, tokens)
        for (rows, columns, _), some in zip(several, chosen, strict=True)
    )


def _labelled(texts: probe.Encoded, ahead: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, columns and labels of all places that have a next token, the first of each text left out."""
    ids, mask = np.asarray(texts.token_ids), np.asarray(texts.mask)
    # Neither the first token, nor the last one, after which nothing comes.
    rows, columns = np.nonzero(mask[:, 1:-1] & mask[:, 2:])
    columns = columns + 1
    return rows, columns, ids[rows, columns + ahead]


def rows_of(model: probe.Model, places: Places) -> np.ndarray:
    """The rows of the head for the classes of some places."""
    return np.asarray(model.network.unembedding())[places.tokens]


def stream_of(model: probe.Model, texts: probe.Encoded, several: list[Places]) -> list[np.ndarray]:
    """What the head would read at some places, (levels, places, d) for each of `several`."""
    found: list[list[np.ndarray]] = [[] for _ in several]
    for begin, hidden, _ in _batches(model, texts):
        # The last level is after the last norm already.
        read = np.concatenate([np.stack([model.network.finish(level) for level in hidden[:-1]]), hidden[-1:]])
        for place, parts in zip(several, found, strict=True):
            inside = (place.rows >= begin) & (place.rows < begin + BATCH)
            parts.append(read[:, place.rows[inside] - begin, place.columns[inside]])
    # Places come in the order of the texts out of the loop: back into that of the labels.
    return [
        np.concatenate(parts, axis=1)[:, np.argsort(np.argsort(place.rows // BATCH, kind="stable"))]
        for place, parts in zip(several, found, strict=True)
    ]


def clustering_of(model: probe.Model, texts: probe.Encoded) -> Clustering:
    """How far the tokens of a text cluster, the first one left out, over `FEW` texts at most."""
    rows = np.linspace(0, len(texts.mask) - 1, min(FEW, len(texts.mask))).astype(int)
    few = probe.Encoded(np.asarray(texts.token_ids)[rows], np.asarray(texts.mask)[rows])
    found = []
    for begin, hidden, mask in _batches(model, few):
        streams = jnp.moveaxis(hidden, 1, 0)[:, :, 1:]
        of_batch = np.asarray(_clusters(streams, jnp.asarray(mask[:, 1:], streams.dtype)))
        found.append(of_batch[: len(rows) - begin])
    return Clustering(*np.concatenate(found).mean(axis=0).T)


def _batches(model: probe.Model, texts: probe.Encoded) -> Iterator[tuple[int, Array, np.ndarray]]:
    """The first text of each batch, the stream at all levels, (levels, batch, n, d), and which tokens are there."""
    ids, mask = np.asarray(texts.token_ids), np.asarray(texts.mask)
    for begin in range(0, len(ids), BATCH):
        # Filled up with the last text, so that all batches have one shape.
        batch = np.minimum(np.arange(begin, begin + BATCH), len(ids) - 1)
        yield begin, probe.stream(model, ids[batch], mask[batch], _LEVELS).levels, mask[batch]


@jax.jit
def _clusters(streams: Array, counts: Array) -> Array:
    radius = jnp.asarray(NEAR, streams.dtype)
    return jax.lax.map(lambda one: clusters_of(one[0], one[1], radius, unit=True), (streams, counts))


_LEVELS = Measure(lambda hidden, mask: hidden)
