"""Training the classifier through the hardmax: recipe, naive-Bayes start, token dropout."""

import functools
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from .._misc import draw_normal
from .._training import Batches, Training, train
from ._encode import Encoded, encode_reviews
from ._model import HardmaxClassifier, predict_logits
from ._reviews import Reviews
from ._text import TextOptions
from ._vocabulary import Vocabulary


@final
@dataclass(frozen=True)
class Recipe:
    r"""How a classifier is built and trained. The defaults are the best that was found for d = 2 and one head.

    **Arguments:**

    - `dim`, `heads`, `depth`: d, the number of heads, and K.
    - `length`: The last so many words of a review are read; the paper has 128, which costs half a point.
    - `min_count`: Words of the training part that are rarer are left out.
    - `ngrams`: 2 makes each two neighbouring words a word too, as in `TextOptions`; `length` and `min_count` are
        then of both.
    - `epochs`, `batch_size`, `learning_rate`, `warm_up`, `clip`: Of AdamW ($b_2 = 0.99$, no decay), whose learning
        rate rises for `warm_up` steps and falls as a cosine to a fiftieth.
    - `smoothing`: Of the naive-Bayes start $E_i = r_i w/|w| + \text{noise}$, $r_i$ the log ratio of the shares of
        positive and negative reviews with word i, `smoothing` added to each count: rare words start near zero.
    - `naive_bayes`: Whether there is this start; otherwise E is noise.
    - `noise`: Standard deviation of the start.
    - `drop`: Each word of a review is left out of a training step with probability `drop` to the power of its count:
        as query, as key and from the mean.
    - `label_smoothing`: The share of each label that goes to both.
    - `alpha`: Where the steps of the layers start, or stay.
    - `learn_alpha`: Whether they are trained.

    Source: this library.
    """

    dim: int = 2
    heads: int = 1
    depth: int = 8
    length: int = 256
    min_count: int = 3
    ngrams: int = 1
    epochs: int = 6
    batch_size: int = 64
    learning_rate: float = 3e-3
    warm_up: int = 200
    clip: float = 5.0
    smoothing: float = 10.0
    naive_bayes: bool = True
    noise: float = 0.1
    drop: float = 0.5
    label_smoothing: float = 0.1
    alpha: float = 1.0
    learn_alpha: bool = True

    def __post_init__(self):
        for name in ("dim", "heads", "length", "min_count", "ngrams", "epochs", "batch_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a positive integer, but it is {value!r}; pass at least 1.")
        if isinstance(self.depth, bool) or not isinstance(self.depth, int) or self.depth < 0:
            raise ValueError(f"depth must be an integer, 0 or more, but it is {self.depth!r}; the paper has 8 layers.")
        for name in ("learning_rate", "smoothing", "alpha", "clip"):
            if not 0 < getattr(self, name) < np.inf:
                raise ValueError(f"{name} must be positive, but it is {getattr(self, name)}; pass a number above zero.")
        for name in ("noise", "warm_up"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ValueError(f"{name} must not be negative, but it is {getattr(self, name)}; pass 0 for none.")
        for name in ("drop", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must lie in [0, 1), but it is {getattr(self, name)}; pass 0 for none.")

    @classmethod
    def of_dim(cls, dim: int, **changes: Any) -> "Recipe":
        """The recipe that was found for this d, and for the heads and n-grams among `changes`; with `changes`.

        Several heads keep alpha = 1.3. With n-grams there are more words, and each is seen 5 times.

        Source: this library.
        """
        if dim <= 4:
            found: dict[str, Any] = {"noise": 0.1 if dim <= 2 else 0.2}
        else:
            found = {"noise": 0.3, "drop": 0.6} if dim <= 8 else {"noise": 0.4, "learning_rate": 6e-3}
        if changes.get("heads", 1) > 1:
            found |= {"alpha": 1.3, "learn_alpha": False}
        if changes.get("ngrams", 1) > 1:
            found |= {"min_count": 5}
        found = {"dim": dim} | found | changes
        return cls(**found)

    @classmethod
    def bag_of_words(cls, **changes: Any) -> "Recipe":
        """The same model with no layer, which is linear in the counts of words: what clustering is held against.

        Source: this library.
        """
        found: dict[str, Any] = {"dim": 1, "depth": 0, "noise": 0.01, "learning_rate": 1e-2}
        if changes.get("ngrams", 1) > 1:
            found |= {"min_count": 5}
        return cls(**found | changes)

    def record(self) -> dict[str, Any]:
        """The recipe as a dictionary that JSON can hold.

        Source: this library.
        """
        return asdict(self)

    def with_(self, **changes: Any) -> "Recipe":
        """The recipe with some of its numbers changed.

        Source: this library.
        """
        return replace(self, **changes)


@final
@dataclass(frozen=True)
class Fitted:
    """A trained classifier with all that it takes to use it.

    **Attributes:**

    - `model`: The `HardmaxClassifier` of the best epoch on the validation part.
    - `vocabulary`: Its words.
    - `recipe`: How it was trained.
    - `history`: Loss and accuracies of each epoch.
    - `best_epoch`: Which epoch `model` is of, the first being 1.

    Source: this library.
    """

    model: HardmaxClassifier
    vocabulary: Vocabulary
    recipe: Recipe
    history: list[dict[str, float]]
    best_epoch: int

    def logits(self, texts: Any) -> np.ndarray:
        """The logit of each text; positive means a positive review.

        Source: this library.
        """
        texts = tuple(texts)
        found = encode_reviews(
            Reviews(texts, np.zeros(len(texts), np.int8)), self.vocabulary, length=self.recipe.length
        )
        return predict_logits(self.model, found.ids, found.counts)


def fit(
    training: Reviews,
    validation: Reviews,
    recipe: Recipe | None = None,
    *,
    key: PRNGKeyArray,
    vocabulary: Vocabulary | None = None,
    options: TextOptions | None = None,
    checkpoint: Any = None,
    patience: int | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Fitted:
    """Train a `HardmaxClassifier` through the hardmax itself, and keep its best epoch on the validation part.

    In float32, with the whole training part on the device; an epoch is one compiled scan. The test part is no argument
    and is never seen.

    **Arguments:**

    - `training`, `validation`: Reviews, as `official_split` gives them: with films apart.
    - `recipe`: A `Recipe`; None is `Recipe()`.

    **Other arguments:**

    - `key`: PRNG key.
    - `vocabulary`: None counts the words of the training part.
    - `options`: How texts become words, if the vocabulary is counted here; None is the defaults, with the recipe's
        `ngrams`.
    - `checkpoint`: A file from which a killed run goes on, bit for bit.
    - `patience`: Stop after so many epochs without a better validation accuracy.
    - `say`: Is given a line of progress for each epoch.

    **Returns:**

    A `Fitted`.

    **Raises:**

    - `ValueError` if there is nothing to train or to validate on, or only one label; and as `train`.

    Source: this library; the model is that of 2407.01602, Section 5.
    """
    recipe = Recipe() if recipe is None else recipe
    for name, reviews in (("training", training), ("validation", validation)):
        if not len(reviews):
            raise ValueError(f"{name} must hold reviews, but it is empty; pass some.")
    if len(np.unique(training.labels)) < 2:
        raise ValueError("training must hold reviews of both labels, but all have the same; pass others.")
    if vocabulary is None:
        options = TextOptions(ngrams=recipe.ngrams) if options is None else options
        vocabulary = Vocabulary.build(training.texts, options, min_count=recipe.min_count)
    seen = encode_reviews(training, vocabulary, length=recipe.length)
    unseen = encode_reviews(validation, vocabulary, length=recipe.length)
    start_key, train_key = jr.split(key)
    model = start(seen, vocabulary.size, recipe, key=start_key)
    done = train_encoded(model, seen, unseen, recipe, key=train_key, checkpoint=checkpoint, patience=patience, say=say)
    return Fitted(done.model, vocabulary, recipe, done.history, done.best_epoch)


def start(seen: Encoded, words: int, recipe: Recipe, *, key: PRNGKeyArray) -> HardmaxClassifier:
    """An untrained classifier, float32: each word at its naive-Bayes log ratio along w, with noise.

    **Arguments:**

    - `seen`: The training part.
    - `words`: Rows of the embedding.
    - `recipe`: A `Recipe`.
    - `key`: PRNG key.

    Source: this library.
    """
    for_w, for_noise = jr.split(key)
    w = draw_normal(for_w, (recipe.heads, recipe.dim), jnp.float32)
    w = w / jnp.linalg.norm(w, axis=1, keepdims=True)
    embedding = recipe.noise * draw_normal(for_noise, (words, recipe.heads, recipe.dim), jnp.float32)
    if recipe.naive_bayes:
        ratio = jnp.asarray(log_ratio(seen, words, recipe.smoothing), jnp.float32)
        embedding = embedding + ratio[:, None, None] * w[None]
    alpha = jnp.asarray(recipe.alpha, jnp.float32)
    return HardmaxClassifier(embedding, w, jnp.zeros((), jnp.float32), alpha, depth=recipe.depth)


def log_ratio(seen: Encoded, words: int, smoothing: float) -> Float[np.ndarray, " words"]:
    r"""Naive Bayes: $\log\frac{p_i/\sum p}{q_i/\sum q}$, with p and q the positive and negative reviews that have word
    i, plus `smoothing`; zero for padding and unknown words.

    Source: Wang, Manning, *Baselines and bigrams* (ACL 2012), eq. (2).
    """
    present = seen.counts > 0
    rows = np.broadcast_to(seen.labels[:, None] == 1, present.shape)
    positive = np.bincount(seen.ids[present & rows], minlength=words) + smoothing
    negative = np.bincount(seen.ids[present & ~rows], minlength=words) + smoothing
    ratio = np.log(positive / positive.sum()) - np.log(negative / negative.sum())
    ratio[:2] = 0
    return ratio


def train_encoded(
    model: HardmaxClassifier,
    seen: Encoded,
    unseen: Encoded,
    recipe: Recipe,
    *,
    key: PRNGKeyArray,
    checkpoint: Any = None,
    patience: int | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Training:
    """`fit` for reviews that are arrays already: for experiments that train many models on the same words.

    **Arguments:**

    - `model`: Where training starts, as `start` gives it.
    - `seen`, `unseen`: The training part, and the validation part by which the best epoch is chosen.
    - `recipe`: A `Recipe`, of which the numbers of the training are read.
    - `key`, `checkpoint`, `patience`, `say`: As in `fit`.

    **Returns:**

    A `Training`, with the best epoch's model and the history.

    Source: this library.
    """
    parts = tuple(
        (
            jnp.asarray(part.ids),
            jnp.asarray(part.counts, jnp.float32),
            jnp.asarray(part.labels, jnp.float32),
        )
        for part in seen.buckets()
    )
    batches = Batches(parts, recipe.batch_size)
    spec = jtu.tree_map(eqx.is_inexact_array, model)
    frozen = lambda tree: (tree.A,) if recipe.learn_alpha else (tree.A, tree.raw_alpha)
    spec = eqx.tree_at(frozen, spec, replace_fn=lambda _: False, is_leaf=lambda leaf: leaf is None)

    def evaluate(model: HardmaxClassifier) -> dict[str, float]:
        logits = predict_logits(model, unseen.ids, unseen.counts)
        signs = 2.0 * unseen.labels - 1
        return {
            "validation loss": float(np.mean(np.logaddexp(0, -signs * logits))),
            "validation accuracy": accuracy(logits, unseen.labels),
            "alpha": float(jnp.mean(model.alpha)),
        }

    return train(
        model, _Loss(recipe.drop, recipe.label_smoothing), batches, optimiser=_optimiser(recipe, batches.steps),
        epochs=recipe.epochs, key=key, trainable=spec, evaluate=evaluate, monitor="validation accuracy",
        patience=patience, checkpoint=checkpoint, say=say,
        settings=recipe.record() | {"key": jr.key_data(key).tolist(), "data": _fingerprint(seen, unseen)},
    )  # fmt: skip


@functools.lru_cache(maxsize=8)  # the same object, so that a second run compiles nothing anew
def _optimiser(recipe: Recipe, steps_of_epoch: int) -> optax.GradientTransformation:
    steps = recipe.epochs * steps_of_epoch
    rate = optax.warmup_cosine_decay_schedule(
        0.0, recipe.learning_rate, min(recipe.warm_up, steps // 2), steps, recipe.learning_rate / 50
    )
    return optax.chain(optax.clip_by_global_norm(recipe.clip), optax.adamw(rate, b2=0.99, weight_decay=0.0))


def _fingerprint(*parts: Encoded) -> int:
    """A number that other reviews, words or labels do not share."""
    arrays = [array for part in parts for array in (part.ids, part.counts, part.labels)]
    return zlib.crc32(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays))


def accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    """The share of reviews whose logit has the sign of their label; a logit of zero counts as negative.

    **Arguments:**

    - `logits`, `labels`: Vectors of one entry a review; labels are 0 or 1.

    Source: this library.
    """
    return float(np.mean((logits > 0) == (labels == 1)))


@dataclass(frozen=True)
class _Loss:
    """Cross entropy of a batch of (ids, counts, labels), with token dropout and smoothed labels."""

    drop: float
    label_smoothing: float

    def __call__(self, model: HardmaxClassifier, batch: Any, key: PRNGKeyArray) -> tuple[Array, dict[str, Array]]:
        ids, counts, labels = batch
        if self.drop:
            ids, counts = thinned(ids, counts, self.drop, key)
        logits = model.logits(ids, counts)
        goals = labels * (1 - self.label_smoothing) + self.label_smoothing / 2
        loss = jnp.mean(jax.nn.softplus(logits) - goals * logits)
        return loss, {"accuracy": jnp.mean((logits > 0) == (labels > 0.5), dtype=loss.dtype)}


def thinned(ids: Array, counts: Array, drop: float, key: PRNGKeyArray) -> tuple[Array, Array]:
    """The words that are left, moved together to the left, in fewer columns: attention costs their square.

    There are columns for a quarter more words than the mean; the few beyond them are left out too.

    Source: this library.
    """
    width = ids.shape[1]
    left = min(width, -(-int(1.25 * (1 - drop) * width + 2) // 16) * 16)
    stay = (counts > 0) & (jr.uniform(key, ids.shape, counts.dtype) >= drop**counts)
    places = jnp.where(stay, jnp.cumsum(stay, axis=1) - 1, left)
    rows = jnp.arange(ids.shape[0])[:, None]
    moved = lambda array: jnp.zeros((ids.shape[0], left), array.dtype).at[rows, places].set(array, mode="drop")
    return moved(ids), moved(counts)
