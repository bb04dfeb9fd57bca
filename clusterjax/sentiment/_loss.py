"""Training of the classifier through the hardmax: naive-Bayes initialisation, token dropout, and the loop of
`_training_loop`.

The embedding of a word starts at its naive-Bayes log ratio along w (Wang and Manning, *Baselines and bigrams*, ACL
2012, eq. (2)), plus noise. AdamW then minimises the cross entropy with the exact gradient through the hardmax layers.
Token dropout omits random words in a training step and compacts the others, which also makes the step cheaper.

Invariants: training never receives the test part; the best epoch on the validation part is kept; a killed run continues
bit for bit, and a continuation with other data is refused.
"""

import functools
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from .._base.checks import (
    check_concrete,
    check_host_array,
    check_instance,
    check_integer,
    check_key,
    check_path,
    check_say,
    check_sequence,
)
from .._base.random import draw_normal
from .._base.summary import short
from .._training.loop import Batches, Training, train
from ._encode import Encoded, check_encoded, check_reviews, encode_reviews
from ._leading import lead
from ._model import HardmaxClassifier, Recipe, check_recipe, predict_logits
from ._negation import NegatedClassifier, composed
from ._reviews import Reviews, check_labels
from ._text import TextOptions
from ._vocabulary import Vocabulary


_FEW_BATCHES = 10


@final
@dataclass(frozen=True)
class Fitted:
    """A trained classifier with its vocabulary, recipe and history.

    **Attributes:**

    - `model`: The `HardmaxClassifier` of the best epoch on the validation part.
    - `vocabulary`: The words of the embedding.
    - `recipe`: The recipe of the training.
    - `history`: The loss and the accuracies of each epoch.
    - `best_epoch`: The number of the epoch of `model`, from 1.
    """

    model: HardmaxClassifier
    vocabulary: Vocabulary
    recipe: Recipe
    history: list[dict[str, float]]
    best_epoch: int

    def __repr__(self) -> str:
        return short(self)

    def summary(self) -> str:
        """The best epoch with its losses and accuracies, and the size of the vocabulary, as text."""
        rows = [f"epoch {self.best_epoch} of {len(self.history)}, {len(self.vocabulary.words)} words"]
        best = self.history[self.best_epoch - 1] if 0 < self.best_epoch <= len(self.history) else {}
        return "\n".join(rows + [f"{name}: {value:.4g}" for name, value in best.items() if np.ndim(value) == 0])

    def __post_init__(self):
        check_model(self.model, "model")
        check_instance(self.vocabulary, "vocabulary", Vocabulary, "a Vocabulary", "pass the one of its embedding")
        check_instance(self.recipe, "recipe", Recipe, "a Recipe", "pass Recipe()")
        check_sequence(self.history, "history", dict, "dictionaries, one an epoch", least=0)
        check_integer(self.best_epoch, "best_epoch", least=-1)

    def logits(self, texts: Sequence[str]) -> np.ndarray:
        """The logit of each text, which is positive for a positive review.

        **Arguments:**

        - `texts`: The texts, unprocessed.
        """
        encoded = self._encode(texts)
        return predict_logits(self.model, encoded.ids, encoded.counts)

    def predict(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Predict the sentiment of each text, with the leaders of its words.

        !!! example

            ```python
            >>> from clusterjax import sentiment
            >>> found = sentiment.load().predict(["A wonderful film.", "A waste of time."])
            >>> [(one["sentiment"], one["leaders"]) for one in found]
            [('positive', ['wonderful']), ('negative', ['waste', 'time'])]
            ```

        **Arguments:**

        - `texts`: The texts, unprocessed.

        **Returns:**

        A dictionary of values of JSON for each text: `sentiment`, which is positive or negative, `probability` of
        positive, `logit`, `known_words`, the number of words that were read, and `leaders`. `explain` adds the paths of
        the words of one text.
        """
        encoded = self._encode(texts)
        if not len(encoded):
            return []
        # Nothing after the last layer is needed, so the horizon is the depth.
        first = lead(self.model, encoded, horizon=self.model.depth).first
        predictions = []
        for row, logit in enumerate(predict_logits(self.model, encoded.ids, encoded.counts).tolist()):
            places = np.flatnonzero((first[row] >= 0).any(axis=1))
            predictions.append(
                {
                    "sentiment": sentiment_of(logit),
                    "probability": probability_of(logit),
                    "logit": logit,
                    "known_words": int(encoded.lengths[row]),
                    "leaders": self.vocabulary.decode(encoded.ids[row, places]),
                }
            )
        return predictions

    def _encode(self, texts: Sequence[str]) -> Encoded:
        texts = tuple(check_sequence(texts, "texts", str, "texts", least=0))
        unlabelled = Reviews(texts, np.zeros(len(texts), np.int8))
        return encode_reviews(unlabelled, self.vocabulary, length=self.recipe.length)


def probability_of(logit: float) -> float:
    """The probability of a positive label."""
    # This form of 1 / (1 + e^{-logit}) does not overflow for large negative logits.
    return float(np.exp(-np.logaddexp(0, -logit)))


def sentiment_of(logit: float) -> str:
    """The label of the larger probability."""
    return "positive" if logit > 0 else "negative"


def fit(
    training: Reviews,
    validation: Reviews,
    recipe: Recipe | None = None,
    *,
    key: PRNGKeyArray,
    vocabulary: Vocabulary | None = None,
    options: TextOptions | None = None,
    unlabelled: Sequence[str] = (),
    checkpoint: str | os.PathLike[str] | None = None,
    patience: int | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Fitted:
    """Train a `HardmaxClassifier` through the hardmax itself, and keep the best epoch on the validation part.

    Training is in float32, with the whole training part on the device; an epoch is one compiled `fori_loop`. The
    function has no argument for the test part.

    !!! example

        ```python
        >>> import jax
        >>> from clusterjax import sentiment
        >>> reviews = sentiment.synthetic_reviews(jax.random.key(0), 600).reviews
        >>> split = sentiment.official_split(reviews, key=jax.random.key(1))
        >>> fitted = sentiment.fit(split.train, split.validation, sentiment.Recipe(depth=2), key=jax.random.key(2))
        >>> sentiment.accuracy(fitted.logits(split.test.texts), split.test.labels) > 0.8
        True
        ```

    **Arguments:**

    - `training`, `validation`: Reviews without common films, as from `official_split`.
    - `recipe`: A `Recipe`; None is `Recipe()`.

    **Other arguments:**

    - `key`: The PRNG key.
    - `vocabulary`: The vocabulary; None builds it from the training part.
    - `options`: The conversion of texts to words for a new vocabulary; None is that of the recipe.
    - `unlabelled`: Further texts, without labels, for self-training. A bag of words that is trained on the training
        part predicts the probability of a positive label of each further text. A second bag of words, trained on the
        training part and on these predictions, gives better probabilities, on which the classifier is trained. The
        texts must not be those of a test part.
    - `checkpoint`: A file from which a killed run continues bit for bit. A finished run with a larger `epochs`
        continues as well: the learning rate rises and falls again, and the best of all epochs is kept.
    - `patience`: The number of epochs without a better validation accuracy after which training stops.
    - `say`: A function that receives a line of progress for each epoch.

    **Returns:**

    A `Fitted`.

    **Raises:**

    - `ValueError` if a part is empty, the training part has only one label, or `train` of the training loop raises.

    Source: 2407.01602, Section 5, for the model.
    """
    recipe = Recipe() if recipe is None else recipe
    check_recipe(recipe)
    check_concrete(check_key(key), "key")
    _check_progress(checkpoint, patience, say)
    if vocabulary is not None:
        check_instance(vocabulary, "vocabulary", Vocabulary, "a Vocabulary", "pass one of Vocabulary.build, or None")
    if options is not None:
        check_instance(options, "options", TextOptions, "a TextOptions", "pass TextOptions(), or None")
    for name, reviews in (("training", training), ("validation", validation)):
        check_reviews(reviews, name)
        if not len(reviews):
            raise ValueError(f"{name} must hold reviews, but it is empty; pass some.")
    if len(np.unique(training.labels)) < 2:
        raise ValueError("training must hold reviews of both labels, but all have the same; pass others.")
    if vocabulary is None:
        options = recipe.text_options() if options is None else options
        # Words of validation reviews would leak information, so the vocabulary is built from the training part only.
        vocabulary = Vocabulary.build(
            training.texts, options, min_count=recipe.min_count, negations=recipe.negation == "reflection"
        )
    unseen = encode_reviews(validation, vocabulary, length=recipe.length)
    unlabelled, targets = check_sequence(unlabelled, "unlabelled", str, "texts", least=0), None
    if unlabelled:
        # The labels of the further texts are not read.
        labels = np.pad(training.labels, (0, len(unlabelled)))
        seen = encode_reviews(Reviews((*training.texts, *unlabelled), labels), vocabulary, length=recipe.length)
        seen, targets = _labelled(seen, len(training), unseen, vocabulary.size, recipe, key=jr.fold_in(key, 1), say=say)
    else:
        seen = encode_reviews(training, vocabulary, length=recipe.length)
    start_key, train_key = keys_of(key)
    model = start(seen, vocabulary.size, recipe, key=start_key)
    if recipe.negation == "reflection":
        model = NegatedClassifier.of(model, vocabulary, recipe)
    run = train_encoded(
        model, seen, unseen, recipe, key=train_key, targets=targets, checkpoint=checkpoint, patience=patience, say=say
    )  # fmt: skip
    return Fitted(composed(run.model), vocabulary, recipe, run.history, run.best_epoch)


def _labelled(
    seen: Encoded, count: int, unseen: Encoded, words: int, recipe: Recipe, *, key: PRNGKeyArray, say: Callable
) -> tuple[Encoded, Float[np.ndarray, " reviews"]]:
    """Guess the labels of the reviews from number `count` on, by two bags of words.

    The first bag of words is trained on the reviews with labels, and the second on all reviews, with the probabilities
    that the first predicts. The function returns `seen` with the guessed labels, and the probability of a positive
    label of each review: the prediction of the second bag, or 0 or 1 for the reviews with labels.
    """
    # Each negation has a separate embedding, since a bag of words with composed embeddings is less accurate.
    bag = Recipe.bag_of_words(ngrams=recipe.ngrams, length=recipe.length, batch_size=recipe.batch_size)
    taught, targets = seen.take(np.arange(count)), seen.labels[:count].astype(np.float32)
    tell = lambda line: say(f"bag of words, {line}")
    for bag_key in jr.split(key):
        start_key, train_key = keys_of(bag_key)
        model = start(taught, words, bag, key=start_key)
        model = train_encoded(model, taught, unseen, bag, key=train_key, targets=targets, say=tell).model
        logits = predict_logits(model, seen.ids[count:], seen.counts[count:])
        targets = np.concatenate([targets[:count], np.exp(-np.logaddexp(0, -logits))], dtype=np.float32)
        taught = replace(seen, labels=(targets > 0.5).astype(np.int8))
        tell(f"{len(seen) - count} texts labelled")
    return taught, targets


def keys_of(key: PRNGKeyArray) -> tuple[PRNGKeyArray, PRNGKeyArray]:
    """Separate keys for initialisation and training, so that the batches do not depend on the initialisation."""
    start_key, train_key = jr.split(key)
    return start_key, train_key


def start(seen: Encoded, words: int, recipe: Recipe, *, key: PRNGKeyArray) -> HardmaxClassifier:
    """Create an untrained float32 classifier, with each word at its naive-Bayes log ratio along w, plus noise.

    **Arguments:**

    - `seen`: The encoded training part.
    - `words`: The number of rows of the embedding.
    - `recipe`: A `Recipe`.
    - `key`: The PRNG key.
    """
    check_encoded(seen, "seen")
    check_recipe(recipe)
    least = max(1, int(seen.ids.max(initial=0))) + 1
    words = check_integer(words, "words", least=least, most=10**9, remedy="pass the size of the vocabulary")
    w_key, noise_key = jr.split(check_key(key))
    w = draw_normal(w_key, (recipe.heads, recipe.dim), jnp.float32)
    # For unit w the log ratio of a word is its part of the logit in each head, apart from noise.
    w = w / jnp.linalg.norm(w, axis=1, keepdims=True)
    embedding = recipe.noise * draw_normal(noise_key, (words, recipe.heads, recipe.dim), jnp.float32)
    if recipe.naive_bayes:
        ratio = jnp.asarray(log_ratio(seen, words, recipe.smoothing), jnp.float32)
        embedding = embedding + ratio[:, None, None] * w[None]
    alpha = jnp.asarray(recipe.alpha, jnp.float32)
    return HardmaxClassifier(embedding, w, jnp.zeros((), jnp.float32), alpha, depth=recipe.depth)


def log_ratio(seen: Encoded, words: int, smoothing: float) -> Float[np.ndarray, " words"]:
    """The naive-Bayes log ratio $log((p_i/∑ p) / (q_i/∑ q))$, where p and q are the numbers of positive and negative
    reviews with word i, plus `smoothing`; zero for padding and unknown words.

    Source: Wang, Manning, *Baselines and bigrams* (ACL 2012), eq. (2).
    """
    present = seen.counts > 0
    is_positive = np.broadcast_to(seen.labels[:, None] == 1, present.shape)
    # The counts are numbers of reviews, not of occurrences, since each row holds a word once.
    positive = np.bincount(seen.ids[present & is_positive], minlength=words) + smoothing
    negative = np.bincount(seen.ids[present & ~is_positive], minlength=words) + smoothing
    ratio = np.log(positive / positive.sum()) - np.log(negative / negative.sum())
    # Ids 0 and 1 are padding and unknown words.
    ratio[:2] = 0
    return ratio


def train_encoded(
    model: HardmaxClassifier | NegatedClassifier,
    seen: Encoded,
    unseen: Encoded,
    recipe: Recipe,
    *,
    key: PRNGKeyArray,
    targets: Float[np.ndarray, " reviews"] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    patience: int | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Training:
    """`fit` for encoded reviews, for experiments that train many models on the same words.

    **Arguments:**

    - `model`: The initial model, as from `start`, or the `NegatedClassifier` of such a model.
    - `seen`, `unseen`: The training part, and the validation part, which determines the best epoch.
    - `recipe`: A `Recipe`, of which only the parameters of the training are used.
    - `targets`: The probability of a positive label of each review of `seen`; None is the labels.
    - `key`, `checkpoint`, `patience`, `say`: As in `fit`.

    **Returns:**

    A `Training`, with the model of the best epoch and the history.
    """
    check_model(composed(model), "model")
    for name, part in (("seen", seen), ("unseen", unseen)):
        check_encoded(part, name)
        if not len(part):
            raise ValueError(f"{name} must hold reviews, but it is empty; pass some.")
    check_recipe(recipe)
    check_concrete(check_key(key), "key")
    _check_progress(checkpoint, patience, say)
    if targets is not None:
        targets = check_host_array(targets, "targets", shape=(len(seen),), least=0, most=1)
        seen = replace(seen, rows=np.arange(len(seen)))
    # Few reviews stay in one bucket, since an epoch leaves out the reviews of a bucket that fill no batch.
    buckets = seen.buckets(3 if len(seen) >= _FEW_BATCHES * recipe.batch_size else 1)
    # The whole training part is copied to the device once.
    parts = tuple(
        (
            jnp.asarray(part.ids),
            jnp.asarray(part.counts, jnp.float32),
            jnp.asarray(part.labels if targets is None else targets[part.rows], jnp.float32),
        )
        for part in buckets
    )
    settings = recipe.record() | {"key": jr.key_data(key).tolist(), "data": _fingerprint(seen, unseen, targets)}
    batches = Batches(parts, min(recipe.batch_size, max(map(len, buckets))))
    spec = jtu.tree_map(eqx.is_inexact_array, model)
    # The gradient with respect to A is zero, so A is never trained.
    plain = lambda tree: tree.model if isinstance(tree, NegatedClassifier) else tree
    frozen = lambda tree: (plain(tree).A,) if recipe.learn_alpha else (plain(tree).A, plain(tree).raw_alpha)
    spec = eqx.tree_at(frozen, spec, replace_fn=lambda _: False, is_leaf=lambda leaf: leaf is None)

    def evaluate(model: HardmaxClassifier | NegatedClassifier) -> dict[str, float]:
        model = composed(model)
        logits = predict_logits(model, unseen.ids, unseen.counts)
        # The loss is log(1 + e^{-y logit}) with labels y of -1 and 1.
        signs = 2.0 * unseen.labels - 1
        return {
            "validation loss": float(np.mean(np.logaddexp(0, -signs * logits))),
            "validation accuracy": accuracy(logits, unseen.labels),
            "alpha": float(jnp.mean(model.alpha)),
        }

    return train(
        model, _Loss(recipe.drop, recipe.label_smoothing), batches,
        optimiser=_optimiser(recipe, batches.steps), epochs=recipe.epochs, key=key, trainable=spec,
        evaluate=evaluate, monitor="validation accuracy", patience=patience, checkpoint=checkpoint, say=say,
        settings=settings,
    )  # fmt: skip


@functools.lru_cache(maxsize=8)  # a second run gets the same object and so recompiles nothing
def _optimiser(recipe: Recipe, steps_of_epoch: int) -> optax.GradientTransformation:
    # The cosine ends with the last step of the last epoch.
    steps = recipe.epochs * steps_of_epoch
    # The schedule counts steps, since the warm-up may end within an epoch.
    rate = optax.warmup_cosine_decay_schedule(
        0.0, recipe.learning_rate, min(recipe.warm_up, steps // 2), steps, recipe.learning_rate / 50
    )
    return optax.chain(optax.clip_by_global_norm(recipe.clip), optax.adamw(rate, b2=0.99, weight_decay=0.0))


def _fingerprint(seen: Encoded, unseen: Encoded, targets: Float[np.ndarray, " reviews"] | None) -> int:
    """A checksum of the ids, counts and labels of both parts, and of the targets."""
    # The checksum uses ids, so reviews with another vocabulary count as other data.
    arrays = [array for part in (seen, unseen) for array in (part.ids, part.counts, part.labels)]
    arrays += [] if targets is None else [targets]
    return zlib.crc32(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays))


def accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    """The fraction of reviews whose logit has the sign of their label; a logit of zero counts as negative.

    **Arguments:**

    - `logits`, `labels`: Vectors with one entry for each review; labels are 0 or 1.
    """
    logits = check_host_array(logits, "logits", shape=("reviews",))
    labels = check_labels(check_host_array(labels, "labels", shape=logits.shape), "labels")
    return float(np.mean((logits > 0) == (labels == 1)))


def check_model(model: Any, name: str) -> None:
    """Raise a `ValueError` if `model` is not a `HardmaxClassifier`."""
    check_instance(model, name, HardmaxClassifier, "a HardmaxClassifier", "pass one of start, or of a Fitted")


def check_fitted(fitted: Any) -> None:
    """Raise a `ValueError` if `fitted` is not a `Fitted`."""
    check_instance(fitted, "fitted", Fitted, "a Fitted", "pass what fit or load returned")


def _check_progress(checkpoint: Any, patience: Any, say: Any) -> None:
    """Raise a `ValueError` if an argument is not a file or None, a number of epochs or None, or a function."""
    if checkpoint is not None:
        check_path(checkpoint, "checkpoint")
    if patience is not None:
        check_integer(patience, "patience", remedy="pass a number of epochs, or None")
    check_say(say)


@dataclass(frozen=True)
class _Loss:
    """The cross entropy of a batch of (ids, counts, labels), with token dropout and smoothed labels."""

    drop: float
    label_smoothing: float

    def __call__(
        self, model: HardmaxClassifier | NegatedClassifier, batch: Any, key: PRNGKeyArray
    ) -> tuple[Array, dict[str, Array]]:
        ids, counts, labels = batch
        if self.drop:
            ids, counts = thinned(ids, counts, self.drop, key)
        logits = composed(model).logits(ids, counts)
        targets = labels.astype(logits.dtype) * (1 - self.label_smoothing) + self.label_smoothing / 2
        # This form of the cross entropy with soft targets needs no logarithm of a probability.
        loss = jnp.mean(jax.nn.softplus(logits) - targets * logits)
        return loss, {"accuracy": jnp.mean((logits > 0) == (labels > 0.5), dtype=loss.dtype)}


def thinned(ids: Array, counts: Array, drop: float, key: PRNGKeyArray) -> tuple[Array, Array]:
    """Drop random words and move the others left into fewer columns, since attention costs the square of the width.

    The number of columns exceeds the mean number of kept words by a quarter; the few words beyond are dropped as well.
    """
    width = ids.shape[1]
    # The width is static, and a multiple of 16 for the strips of the streaming sum.
    kept_width = min(width, -(-int(1.25 * (1 - drop) * width + 2) // 16) * 16)
    # A word is dropped if all its occurrences are, each with probability `drop`: the probability is drop^count.
    kept = (counts > 0) & (jr.uniform(key, ids.shape, counts.dtype) >= drop**counts)
    # Dropped words get the column `kept_width`, which is out of range, so that mode="drop" ignores them.
    places = jnp.where(kept, jnp.cumsum(kept, axis=1) - 1, kept_width)
    rows = jnp.arange(ids.shape[0])[:, None]
    empty = lambda array: jnp.zeros((ids.shape[0], kept_width), array.dtype)
    compacted = lambda array: empty(array).at[rows, places].set(array, mode="drop")
    return compacted(ids), compacted(counts)
