"""The feed-forward layer as a memory: the tokens that activate a neuron, the words that its value promotes, and single
neurons as detectors.

Tokens of largest activation and words of largest promotion follow Geva et al., *Transformer feed-forward layers are
key-value memories* (2012.14913), Sections 3 and 4. A neuron that detects one of two kinds of text is judged by the area
under its ROC curve, computed from ranks as the statistic of Mann and Whitney (1947).

Invariants: a corpus is read in batches of one shape, and memory holds one batch and the strongest activations so far;
ties are broken by text and position, so that the result does not depend on the batch size.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._base.checks import as_numbers, check_array, check_concrete, check_integer
from .._base.padding import arranged, words_first
from .._base.types import Numbers
from ._block import check_layer
from ._checks import check_booleans, check_ids
from ._language_model import LanguageModel
from ._residual_stream import AbstractBlockView, AbstractView, HasView, view_of


class KeyValueMemory(NamedTuple):
    """The tokens that activate each neuron of a layer, and the words that its value promotes.

    **Attributes:**

    - `activation`: (neurons, top), the largest activations in decreasing order; -inf if there are fewer tokens than
        `top`.
    - `text`, `position`: (neurons, top), the number of the text, and the position of the token in the text.
    - `promoted`: (neurons, words), the ids of the words that the value promotes most, in decreasing order.
    - `promotion`: (neurons, words), the inner products of the value with the unembedding of these words.
    - `mean`, `rate`: (neurons,), the mean activation, and the fraction of tokens with a positive activation.

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
    """For each neuron of a feed-forward layer, find the tokens of a corpus with the largest activation and the words
    that its value promotes.

    The corpus is read in batches: memory holds the activations of one batch, and the largest so far.

    **Arguments:**

    - `model`: A `LanguageModel`, or a network from `probe.load`.
    - `texts`: Ids, (texts, n).
    - `present`: The tokens that are present, (texts, n); None is all of them.
    - `layer`: The number of the layer, from 0, or negative from the end.
    - `top`: The number of tokens to keep for each neuron.
    - `words`: The number of promoted words for each neuron.
    - `batch_size`: The number of texts in a batch.

    **Returns:**

    A `KeyValueMemory`.

    **Raises:**

    - `ValueError` if the layer does not exist or has no feed-forward part, if there is no text, or if `words` exceeds
        the vocabulary.

    ??? cite "Source"

        Geva et al., *Transformer feed-forward layers are key-value memories* (2012.14913), Sections 3 and 4;
        *Transformers, part 2*, slides 9 and 16 to 21.
    """
    return memory_of(view_of(model), texts, present, layer, top, words, batch_size, _activations)


def memory_of(
    view: AbstractView, texts: Any, present: Any, layer: int, top: int, words: int, batch_size: int,
    activations: Callable[[AbstractView, Array, Array, Array], Float[Array, "b n m"]],
) -> KeyValueMemory:  # fmt: skip
    """`key_value_memory` of a view, with the function that gives the activations of a layer for a batch."""
    # `values` raises a `ValueError` if the block has no feed-forward part.
    values = view.values(check_layer(layer, view.num_layers))
    words = check_integer(words, "words", most=view.num_words, remedy="ask for as many as there are")
    top = check_integer(top, "top", remedy="pass 10, say")
    neurons = values.shape[0]
    best = _Best.empty(neurons, top)
    total, positive, places = np.zeros(neurons), np.zeros(neurons), 0
    for begin, fired, is_present in _fired(view, texts, present, layer, batch_size, activations):
        best = best.joined(begin, fired, is_present)
        # The sums are float64: a corpus has too many tokens for sums in float32.
        total += fired[is_present].sum(axis=0, dtype=float)
        positive += (fired[is_present] > 0).sum(axis=0)
        places += int(is_present.sum())
    # As in the reference, the last norm is not applied to the values.
    promotion, promoted = _promoted(values, view.unembedding(), words)
    return KeyValueMemory(
        best.activation, best.text, best.position, np.asarray(promoted), np.asarray(promotion), total / places,
        positive / places,
    )  # fmt: skip


class Detector(NamedTuple):
    """The accuracy with which single neurons separate two kinds of text.

    **Attributes:**

    - `area`: (neurons,), the area under the ROC curve of each neuron: the fraction of pairs of texts in which the text
        of the second kind has the higher activation, with ties counted half. 0.5 is chance; a neuron with a smaller
        area detects the first kind.
    - `neuron`: The number of the neuron whose area is farthest from 0.5.
    - `threshold`: The activation at which the neuron separates the texts best.
    - `sign`: 1 if the activation is high for the second kind, -1 if it is high for the first kind.
    - `accuracy`: The accuracy on the texts on which the neuron was chosen.

    Source: *Transformers, part 2*, slide 12; Radford et al. (1704.01444) for a neuron that detects sentiment.
    """

    area: np.ndarray
    neuron: int
    threshold: float
    sign: int
    accuracy: float

    def predict(self, activations: Numbers) -> np.ndarray:
        """Predict for each text whether it is of the second kind, from the chosen neuron alone."""
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
        # Texts differ in their number of present tokens, so each mean is taken separately.
        np.stack([values[mask].mean(axis=0) for values, mask in zip(fired, is_present, strict=True)])
        for _, fired, is_present in _fired(view, texts, present, layer, batch_size, _activations)
    ]
    return np.concatenate(rows)


def best_detector(activations: Numbers, labels: Numbers) -> Detector:
    """Find the neuron that best separates two kinds of labelled texts.

    The accuracy of a neuron that is chosen among many is biased upwards: measure it with `Detector.predict` on other
    texts.

    **Arguments:**

    - `activations`: The activation of each neuron in each text, (texts, neurons), as from `mean_activations`.
    - `labels`: True for each text of the second kind, (texts,).

    **Returns:**

    A `Detector`.

    **Raises:**

    - `ValueError` if the shapes do not match, or a kind has no text.

    ??? cite "Source"

        Radford, Jozefowicz, Sutskever, *Learning to generate reviews and discovering sentiment* (1704.01444); the area
        is the statistic of Mann and Whitney (1947).
    """
    from scipy.stats import rankdata

    values = _activations_of(activations, "neurons")
    check_concrete(labels, "labels")
    rule = "say of each row of activations whether it is of the second kind"
    labels = np.asarray(check_booleans(labels, "labels", values.shape[:1], rule))
    num_second, num_first = int(labels.sum()), int((~labels).sum())
    if not num_second or not num_first:
        problem = f"{num_second} of {len(labels)} are true"
        raise ValueError(f"labels must be of both kinds, but {problem}; add the other kind.")
    # `rankdata` gives ties their mean rank, so that a tie counts half.
    ranks = rankdata(values, axis=0)
    # U = sum of ranks - n_1 (n_1 + 1) / 2 is the number of pairs in which the second kind is higher.
    area = (ranks[labels].sum(axis=0) - num_second * (num_second + 1) / 2) / (num_second * num_first)
    neuron = int(np.argmax(np.abs(area - 0.5)))
    # With sign -1 the values are negated, so that the second kind always has the higher values.
    sign = 1 if area[neuron] >= 0.5 else -1
    # After sorting, each midpoint between two neighbouring values is a possible threshold.
    order = np.argsort(sign * values[:, neuron], kind="stable")
    sorted_values, sorted_labels = sign * values[order, neuron], labels[order]
    # Texts of the first kind below the threshold and texts of the second kind above it are correct.
    firsts_below = np.concatenate([[0], np.cumsum(~sorted_labels)])
    seconds_below = np.concatenate([[0], np.cumsum(sorted_labels)])
    num_correct = firsts_below + num_second - seconds_below
    thresholds = np.concatenate([[-np.inf], (sorted_values[:-1] + sorted_values[1:]) / 2, [np.inf]])
    splits = np.concatenate([[True], sorted_values[:-1] < sorted_values[1:], [True]])
    # `argmax` takes the first of several best thresholds.
    k = int(np.argmax(np.where(splits, num_correct, -1)))
    return Detector(area, neuron, float(sign * thresholds[k]), sign, float(num_correct[k] / len(labels)))


def _activations_of(value: Any, neurons: int | str) -> np.ndarray:
    """Return activations, (texts, neurons), without rounding: jax would round float64 to float32."""
    check_concrete(value, "activations")
    check_array(value, "activations", shape=("texts", neurons), remedy="pass (texts, neurons)")
    return np.asarray(as_numbers(value, "activations"), float)


class _Best(NamedTuple):
    """The largest activations so far, with their texts and positions, (neurons, top) each."""

    activation: np.ndarray
    text: np.ndarray
    position: np.ndarray

    @classmethod
    def empty(cls, neurons: int, top: int) -> "_Best":
        none = np.full((neurons, top), -1)
        return cls(np.full((neurons, top), -np.inf), none, none)

    def joined(self, begin: int, fired: np.ndarray, is_present: np.ndarray) -> "_Best":
        """Merge the activations of a batch whose first text has the number `begin`."""
        # The present tokens of the batch in reading order.
        text, position = np.nonzero(is_present)
        candidates = fired[is_present].T
        top = self.activation.shape[1]
        if candidates.shape[1] > top:  # at most `top` of them can enter
            # A partial sort costs O(tokens) for each neuron; the few kept activations are sorted below.
            keep = np.argpartition(-candidates, top - 1, axis=1)[:, :top]
        else:
            keep = np.broadcast_to(np.arange(candidates.shape[1]), candidates.shape)
        values = np.concatenate([self.activation, np.take_along_axis(candidates, keep, axis=1)], axis=1)
        texts = np.concatenate([self.text, begin + text[keep]], axis=1)
        positions = np.concatenate([self.position, position[keep]], axis=1)
        # `lexsort` sorts by its last key first: activation, then text, then position.
        order = np.lexsort((positions, texts, -values), axis=1)[:, :top]
        return _Best(*(np.take_along_axis(array, order, axis=1) for array in (values, texts, positions)))


@functools.partial(jax.jit, static_argnums=2)
def _promoted(values: Float[Array, "m d"], unembedding: Float[Array, "words d"], words: int) -> tuple[Array, Array]:
    of_value = lambda value: tuple(jax.lax.top_k(jnp.matmul(unembedding, value, precision="highest"), words))
    # Blocks of neurons bound the memory: the array of all inner products, (m, words), takes gigabytes for a large
    # vocabulary.
    return jax.lax.map(of_value, values, batch_size=256)


def _fired(
    view: AbstractView, texts: Any, present: Any, layer: int, batch_size: int, activations: Callable[..., Array]
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield for each batch the number of its first text, activations (b, n, m) and flags of present tokens (b, n)."""
    layer_index = layer % view.num_layers
    for begin, ids, is_present, size in batches(view, texts, present, batch_size):
        fired = activations(view, ids, is_present, jnp.asarray(layer_index))
        yield begin, np.asarray(fired)[:size], np.asarray(is_present)[:size]


def check_texts(view: AbstractView, texts: Any, present: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of texts and the flags of present tokens, (texts, n) both, if they are valid."""
    check_concrete(texts, "texts")
    check_concrete(present, "present")
    ids = np.asarray(check_ids(texts, view.num_words, "texts", texts=True))
    if present is None:
        return ids, np.ones(ids.shape, bool)
    return ids, np.asarray(check_booleans(present, "present", ids.shape, "say of each token whether it is there"))


def batches(view: AbstractView, texts: Any, present: Any, batch_size: int) -> Iterator[tuple[int, Array, Array, int]]:
    """Yield for each batch the number of its first text, ids and flags of present tokens, (batch_size, n) both, and the
    number of rows that are texts. All batches have one shape.

    **Raises:**

    - `ValueError` if the texts do not fit the model, or a text has no token.
    """
    ids, is_present = check_texts(view, texts, present)
    batch_size = min(check_integer(batch_size, "batch_size", remedy="pass 32, say"), len(ids))
    # Texts with more tokens than positions are refused before anything runs.
    view.check(ids.shape[1])
    if not is_present.any(axis=1).all():
        empty = int(np.flatnonzero(~is_present.any(axis=1))[0])
        raise ValueError(f"texts must hold a token each, but text {empty} holds none; leave it out.")
    for begin in range(0, len(ids), batch_size):
        batch, mask = ids[begin : begin + batch_size], is_present[begin : begin + batch_size]
        # Copies of its last text, which the caller drops, fill the last batch.
        missing = batch_size - len(batch)
        filled = lambda part, rows=missing: jnp.asarray(np.pad(part, ((0, rows), (0, 0)), mode="edge"))
        yield begin, filled(batch), filled(mask), len(batch)


@eqx.filter_jit
def _activations(view: AbstractView, ids: Array, present: Array, layer: Array) -> Float[Array, "b n m"]:
    def of_text(ids: Array, present: Array) -> Array:
        def step(block: AbstractBlockView, carry: tuple[Array, Array, Array], _: None) -> tuple[Any, None]:
            x, activations, index = carry
            entered = block.enter(x, x)
            fired = cast(Array, block.activations(block.read(1, block.after_attention(entered), entered)))
            # Only the activations of one layer are kept: an array of all layers would be (layers, n, m).
            activations = jnp.where(index == layer, fired, activations)
            return (block.after(x), activations, index + 1), None

        order, back = words_first(present)
        ids, present = arranged(ids, order, 0), arranged(present, order, 0)
        x = view.embed(ids, present)
        activations = jnp.zeros((ids.shape[0], neurons), x.dtype)
        return arranged(view.scan(step, (x, activations, jnp.asarray(0)), present, n=ids.shape[0])[0][1], back, 0)

    neurons = view.values(0).shape[0]
    return jax.vmap(of_text)(ids, present)
