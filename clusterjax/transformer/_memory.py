"""The feed-forward layer as a memory: what activates a neuron, what it promotes, and what a single one can detect.

Places of largest activation and words of largest promotion: Geva et al., *Transformer feed-forward layers are
key-value memories* (2012.14913), Sections 3 and 4. One neuron as a detector of two kinds of text: the area under its
ROC curve by ranks, which is the statistic of Mann and Whitney (1947).

Invariants: a corpus streams through in batches of one shape, and memory holds one batch and the best places so far;
ties between places are broken by text and position, so that the result does not depend on the size of a batch.
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import as_numbers, check_array, check_concrete, check_integer
from .._custom_types import Numbers
from .._padding import arranged, words_first
from ._checks import check_booleans, check_ids
from ._language_model import LanguageModel
from ._transformer import check_layer
from ._view import AbstractBlockView, AbstractView, HasView, view_of


class KeyValueMemory(NamedTuple):
    """What fires each neuron of a layer, and what it says then.

    **Attributes:**

    - `activation`: (neurons, top), how strongly it fired, strongest first; -inf where there were fewer places.
    - `text`, `position`: (neurons, top), where: which text, and which token of it.
    - `promoted`: (neurons, words), the ids of the words that its value promotes, most first.
    - `promotion`: (neurons, words), the inner products of value and unembedding.
    - `mean`, `rate`: (neurons,), its mean activation, and the share of the places where it is positive.

    Source: 2012.14913, Sections 3 and 4.
    """

    activation: np.ndarray
    text: np.ndarray
    position: np.ndarray
    promoted: np.ndarray
    promotion: np.ndarray
    mean: np.ndarray
    rate: np.ndarray


def key_value_memory(
    model: LanguageModel | HasView,
    texts: Numbers,
    present: Numbers | None = None,
    *,
    layer: int,
    top: int = 10,
    words: int = 10,
    batch_size: int = 32,
) -> KeyValueMemory:
    """The neurons of one feed-forward layer: the places of a corpus that fire each most, the words its value promotes.

    The corpus streams: memory holds one batch of activations, and the best places so far.

    **Arguments:**

    - `model`: A `LanguageModel`, or a network that `probe.load` returned.
    - `texts`: Ids, (texts, n).
    - `present`: Which tokens are present, (texts, n); None is all of them.
    - `layer`: Which layer, counted from 0, or with a negative number from the end.
    - `top`: How many places to keep for each neuron.
    - `words`: How many words.
    - `batch_size`: Texts at a time.

    **Returns:**

    A `KeyValueMemory`.

    **Raises:**

    - `ValueError` if there is no such layer, no feed-forward in it, no text, or more words than the model knows.

    ??? cite "Source"

        Geva et al., *Transformer feed-forward layers are key-value memories* (2012.14913), Sections 3 and 4;
        *Transformers, part 2*, slides 9 and 16 to 21.
    """
    view = view_of(model)
    # Raises if the block has none.
    values = view.values(check_layer(layer, view.num_layers))
    words = check_integer(words, "words", most=view.num_words, remedy="ask for as many as there are")
    top = check_integer(top, "top", remedy="pass 10, say")
    neurons = values.shape[0]
    best = _Best.empty(neurons, top)
    total, positive, places = np.zeros(neurons), np.zeros(neurons), 0
    for begin, fired, is_present in _fired(view, texts, present, layer, batch_size):
        # The best of the corpus are among the best so far and the new places; nothing else is kept.
        best = best.joined(begin, fired, is_present)
        # In float64: a corpus has too many places for sums in float32.
        total += fired[is_present].sum(axis=0, dtype=float)
        positive += (fired[is_present] > 0).sum(axis=0)
        places += int(is_present.sum())
    # (m, words): each value against the unembedding; the last norm is left out, as in the reference.
    promotion, promoted = _promoted(values, view.unembedding(), words)
    return KeyValueMemory(
        best.activation, best.text, best.position, np.asarray(promoted), np.asarray(promotion), total / places,
        positive / places,
    )  # fmt: skip


class Detector(NamedTuple):
    """How well single neurons tell two kinds of text apart.

    **Attributes:**

    - `area`: (neurons,), the area under the ROC curve of each: how often a text of the second kind has the higher
        activation, ties counting half. 0.5 is chance; below it the neuron detects the first kind.
    - `neuron`: The one whose area is farthest from 0.5.
    - `threshold`: At which it divides the texts best.
    - `sign`: 1 if it is high for the second kind, -1 if for the first.
    - `accuracy`: Of the texts it was chosen on.

    Source: *Transformers, part 2*, slide 12; Radford et al. (1704.01444) for a neuron that detects sentiment.
    """

    area: np.ndarray
    neuron: int
    threshold: float
    sign: int
    accuracy: float

    def predict(self, activations: Numbers) -> np.ndarray:
        """Whether each text is of the second kind, by the one neuron."""
        values = _activations_of(activations, len(self.area))
        return self.sign * (values[:, self.neuron] - self.threshold) > 0


def mean_activations(
    model: LanguageModel | HasView,
    texts: Numbers,
    present: Numbers | None = None,
    *,
    layer: int,
    batch_size: int = 32,
) -> np.ndarray:
    """The mean activation of each neuron over the tokens of each text, (texts, neurons).

    **Arguments:**

    - `model`, `texts`, `present`, `layer`, `batch_size`: As in `key_value_memory`.

    Source: *Transformers, part 2*, slide 12.
    """
    view = view_of(model)
    view.values(check_layer(layer, view.num_layers))
    rows = [
        # Text by text, because texts differ in how many tokens are present.
        np.stack([values[mask].mean(axis=0) for values, mask in zip(fired, is_present, strict=True)])
        for _, fired, is_present in _fired(view, texts, present, layer, batch_size)
    ]
    return np.concatenate(rows)


def best_detector(activations: Numbers, labels: Numbers) -> Detector:
    """The neuron that best separates two kinds of labelled texts.

    Chosen among many it looks better than it is: test it with `Detector.predict` on texts that it was not chosen on.

    **Arguments:**

    - `activations`: Of each neuron in each text, as by `mean_activations`.
    - `labels`: Whether each text is of the second kind.

    **Returns:**

    A `Detector`.

    **Raises:**

    - `ValueError` if the shapes do not match, or one kind is missing.

    ??? cite "Source"

        Radford, Jozefowicz, Sutskever, *Learning to generate reviews and discovering sentiment* (1704.01444); the area
        is the statistic of Mann and Whitney (1947).
    """
    from scipy.stats import rankdata

    values = _activations_of(activations, "neurons")
    check_concrete(labels, "labels")
    rule = "say of each row of activations whether it is of the second kind"
    # Booleans, or integers 0 and 1.
    labels = np.asarray(check_booleans(labels, "labels", values.shape[:1], rule))
    num_second, num_first = int(labels.sum()), int((~labels).sum())
    if not num_second or not num_first:
        told = f"{num_second} of {len(labels)} are true"
        raise ValueError(f"labels must be of both kinds, but {told}; add the other kind.")
    # Mean ranks of ties, so that a tie counts half.
    ranks = rankdata(values, axis=0)
    # U = sum of ranks - n_1 (n_1 + 1) / 2 is the number of pairs in which the second kind is higher.
    area = (ranks[labels].sum(axis=0) - num_second * (num_second + 1) / 2) / (num_second * num_first)
    neuron = int(np.argmax(np.abs(area - 0.5)))
    # With sign -1 the values are negated, so that the second kind is always the higher.
    sign = 1 if area[neuron] >= 0.5 else -1
    # Sorted once; each place between two texts is then a possible threshold.
    order = np.argsort(sign * values[:, neuron], kind="stable")
    sorted_values, sorted_labels = sign * values[order, neuron], labels[order]
    # With k texts below the threshold, those of the first kind among them and those of the second above are correct.
    firsts_below = np.concatenate([[0], np.cumsum(~sorted_labels)])
    seconds_below = np.concatenate([[0], np.cumsum(sorted_labels)])
    num_correct = firsts_below + num_second - seconds_below
    thresholds = np.concatenate([[-np.inf], (sorted_values[:-1] + sorted_values[1:]) / 2, [np.inf]])
    # No threshold lies between equal values.
    splits = np.concatenate([[True], sorted_values[:-1] < sorted_values[1:], [True]])
    # The first of the best thresholds.
    k = int(np.argmax(np.where(splits, num_correct, -1)))
    return Detector(area, neuron, float(sign * thresholds[k]), sign, float(num_correct[k] / len(labels)))


def _activations_of(value: Any, neurons: int | str) -> np.ndarray:
    """Activations, (texts, neurons), as they are: jax would round float64 to float32."""
    check_concrete(value, "activations")
    check_array(value, "activations", shape=("texts", neurons), remedy="pass (texts, neurons)")
    return np.asarray(as_numbers(value, "activations"), float)


class _Best(NamedTuple):
    """The strongest places so far, (neurons, top) each."""

    activation: np.ndarray
    text: np.ndarray
    position: np.ndarray

    @classmethod
    def empty(cls, neurons: int, top: int) -> "_Best":
        none = np.full((neurons, top), -1)
        return cls(np.full((neurons, top), -np.inf), none, none)

    def joined(self, begin: int, fired: np.ndarray, is_present: np.ndarray) -> "_Best":
        """With the places of a batch whose first text has the number `begin`."""
        # The places of the batch that hold tokens, in reading order, (places,).
        text, position = np.nonzero(is_present)
        candidates = fired[is_present].T
        top = self.activation.shape[1]
        if candidates.shape[1] > top:  # of which no more than `top` can count
            # A partial sort of the batch, O(places) for each neuron; the few that are kept are sorted below.
            keep = np.argpartition(-candidates, top - 1, axis=1)[:, :top]
        else:
            keep = np.broadcast_to(np.arange(candidates.shape[1]), candidates.shape)
        values = np.concatenate([self.activation, np.take_along_axis(candidates, keep, axis=1)], axis=1)
        texts = np.concatenate([self.text, begin + text[keep]], axis=1)
        positions = np.concatenate([self.position, position[keep]], axis=1)
        # The last key is the first: activation, then text, then position.
        order = np.lexsort((positions, texts, -values), axis=1)[:, :top]
        return _Best(*(np.take_along_axis(array, order, axis=1) for array in (values, texts, positions)))


@functools.partial(jax.jit, static_argnums=2)
def _promoted(values: Float[Array, "m d"], unembedding: Float[Array, "words d"], words: int) -> tuple[Array, Array]:
    of_value = lambda value: tuple(jax.lax.top_k(jnp.matmul(unembedding, value, precision="highest"), words))
    # In blocks of neurons: all inner products at once would be (m, words), gigabytes for a large vocabulary.
    return jax.lax.map(of_value, values, batch_size=256)


def _fired(
    view: AbstractView, texts: Any, present: Any, layer: int, batch_size: int
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """The number of the first text, activations (b, n, m) and which tokens are there (b, n), batch after batch."""
    layer_index = layer % view.num_layers
    for begin, ids, is_present, size in batches(view, texts, present, batch_size):
        fired = _activations(view, ids, is_present, jnp.asarray(layer_index))
        yield begin, np.asarray(fired)[:size], np.asarray(is_present)[:size]


def check_texts(view: AbstractView, texts: Any, present: Any) -> tuple[np.ndarray, np.ndarray]:
    """The ids of texts and which tokens are there, (texts, n) both, if they are such."""
    check_concrete(texts, "texts")
    check_concrete(present, "present")
    ids = np.asarray(check_ids(texts, view.num_words, "texts", texts=True))
    if present is None:
        return ids, np.ones(ids.shape, bool)
    return ids, np.asarray(check_booleans(present, "present", ids.shape, "say of each token whether it is there"))


def batches(view: AbstractView, texts: Any, present: Any, batch_size: int) -> Iterator[tuple[int, Array, Array, int]]:
    """The number of the first text, ids and which tokens are there, (batch_size, n), and how many of the rows are
    texts: batch after batch of one shape.

    **Raises:**

    - `ValueError` if the texts do not fit the model, or one has no token.
    """
    ids, is_present = check_texts(view, texts, present)
    batch_size = min(check_integer(batch_size, "batch_size", remedy="pass 32, say"), len(ids))
    # Raises if the texts are longer than the positions, before anything runs.
    view.check(ids.shape[1])
    if not is_present.any(axis=1).all():
        empty = int(np.flatnonzero(~is_present.any(axis=1))[0])
        raise ValueError(f"texts must hold a token each, but text {empty} holds none; leave it out.")
    for begin in range(0, len(ids), batch_size):
        batch, mask = ids[begin : begin + batch_size], is_present[begin : begin + batch_size]
        # The last batch is filled up with copies of its last text, which the caller drops.
        missing = batch_size - len(batch)
        filled = lambda part, rows=missing: jnp.asarray(np.pad(part, ((0, rows), (0, 0)), mode="edge"))
        yield begin, filled(batch), filled(mask), len(batch)


@eqx.filter_jit
def _activations(view: AbstractView, ids: Array, present: Array, layer: Array) -> Float[Array, "b n m"]:
    def of_text(ids: Array, present: Array) -> Array:
        def step(block: AbstractBlockView, carry: tuple[Array, Array, Array], _: None) -> tuple[Any, None]:
            x, kept, index = carry
            # The stream between the two sub-layers, which is what the feed-forward reads.
            middle = block.after_attention(x)
            fired = cast(Array, block.activations(block.read(1, middle)))
            # Of one layer only: those of all layers would be (layers, n, m).
            kept = jnp.where(index == layer, fired, kept)
            return (block.after_feed_forward(middle), kept, index + 1), None

        order, back = words_first(present)
        ids, present = arranged(ids, order, 0), arranged(present, order, 0)
        x = view.embed(ids, present)
        kept = jnp.zeros((ids.shape[0], neurons), x.dtype)
        return arranged(view.scan(step, (x, kept, jnp.asarray(0)), present, n=ids.shape[0])[0][1], back, 0)

    neurons = view.values(0).shape[0]
    return jax.vmap(of_text)(ids, present)
