"""The interpretable sentiment classifier: words move towards their leaders, and a hyperplane classifies their mean.

The model is that of Alcalde, Fantuzzi and Zuazua, *Clustering in pure-attention hardmax transformers* (2407.01602),
Section 5, extended by several heads and by counts as masses. `_forward` has the forward and the backward pass.

Invariants: one token of count 2 and two equal tokens of count 1 give the same logit; a review without known words has
the logit v; alpha is positive, because the inverse softplus of alpha is stored.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Num

from .._base.checks import (
    as_numbers,
    check_array,
    check_choice,
    check_flag,
    check_host_array,
    check_instance,
    check_integer,
    check_number,
    check_scalar,
)
from .._base.numerics import is_concrete, matmul
from .._base.types import Numbers, RealScalarLike
from .._dynamics.iterate import iterate
from ..hardmax import HardmaxLayer, SoftmaxTwin
from ._forward import Decoder, hardmax_logits, layout_of, run_layers, shares_at_first_layer
from ._text import MOST, WIDE_NEGATORS, TextOptions


MOST_LAYERS = 10**6


class HardmaxClassifier(eqx.Module):
    """A sentiment classifier by clustering: $logit = ∑_h ⟨w_h, mean(z^h_K)⟩ + v$, where the words of a review start at
    their embeddings $z^h_0 = E^h$ and pass through K hardmax layers.

    Each head is the model of the paper in separate d dimensions, and one head is exactly this model. The mean is over
    the words of the review; padding does not attend, is not attended to, and is not in the mean. Training
    differentiates through the hardmax itself: the gradient exists almost everywhere and is exact (reverse mode only),
    so that the trained model and the tested model agree. A positive definite A is redundant, since the embedding can
    absorb A, and the gradient with respect to any A is zero, so A is not trained.

    **Arguments:**

    - `embedding`: E, (words, d), or (words, heads, d).
    - `w`: The normal of the dividing hyperplane, (d,) or (heads, d).
    - `v`: The offset of the hyperplane, ().
    - `alpha`: The step of the layers, > 0, () or (heads,).
    - `A`: The matrix of the scores, (d, d) or (heads, d, d); None is the identity.
    - `depth`: K, the number of layers; 0 is a bag of words.

    **Raises:**

    - `ValueError` if the shapes do not match, `alpha` is not positive, or `depth` is negative.

    ??? cite "Source"

        Alcalde, Fantuzzi, Zuazua, *Clustering in pure-attention hardmax transformers* (2407.01602), Section 5.
    """

    embedding: Float[Array, "words heads d"]
    w: Float[Array, "heads d"]
    v: Float[Array, ""]
    raw_alpha: Float[Array, " heads"]
    A: Float[Array, "heads d d"] | None
    depth: int = eqx.field(static=True)

    def __init__(
        self, embedding: Numbers, w: Numbers, v: Numbers, alpha: Numbers, A: Numbers | None = None, *, depth: int = 8
    ):
        embedding = check_array(embedding, "embedding", remedy="pass a row of numbers for each word")
        embedding = embedding[:, None, :] if embedding.ndim == 2 else embedding
        if embedding.ndim != 3 or 0 in embedding.shape:
            raise ValueError(
                f"embedding must be of shape (words, d) or (words, heads, d), but it is {embedding.shape}; pass a row "
                "for each word."
            )
        heads, d = embedding.shape[1:]
        depth = check_integer(depth, "depth", least=0, most=MOST_LAYERS, remedy="pass 8, as the paper has")
        remedy = "pass 1, for example"
        # The rules for single numbers refuse True and "1".
        if _is_number(alpha, "alpha"):
            alpha = check_scalar(alpha, "alpha", embedding.dtype, above=0, remedy=remedy)
        alpha = check_array(alpha, "alpha", least=0, remedy=remedy).astype(embedding.dtype)
        if alpha.shape not in ((), (1,), (heads,)) or is_concrete(alpha) and not np.all(np.asarray(alpha) > 0):
            problem = f"it is {alpha}" if alpha.size <= 8 else f"its shape is {alpha.shape}"
            raise ValueError(f"alpha must be positive, one number or one per head, but {problem}; {remedy}.")
        self.embedding = embedding
        self.w = _shaped(w, "w", (heads, d), embedding.dtype)
        self.v = _shaped(v, "v", (), embedding.dtype)
        # The stored parameter is unconstrained, so that gradient steps cannot make alpha negative.
        self.raw_alpha = _shaped(jnp.broadcast_to(_inverse_softplus(alpha), (heads,)), "alpha", (heads,), alpha.dtype)
        self.A = None if A is None else _shaped(A, "A", (heads, d, d), embedding.dtype)
        self.depth = depth

    @property
    def alpha(self) -> Float[Array, " heads"]:
        """The step alpha of the layers of each head, which is positive."""
        return jax.nn.softplus(self.raw_alpha)

    def logits(self, ids: Int[ArrayLike, "reviews n"], counts: Num[ArrayLike, "reviews n"]) -> Float[Array, " reviews"]:
        """The logit of each review, which is positive for a positive review, and v for a review without words.

        **Arguments:**

        - `ids`: (reviews, n), rows of the embedding.
        - `counts`: (reviews, n), the count of each word; 0 for padding. A repeated word may be one token of count 2 or
            two tokens of count 1, with equal logits.

        The gradient of each logit with respect to the embedding of each head is of rank one.
        """
        ids, counts = self._checked(ids, counts)
        return hardmax_logits(self.depth, self.embedding, Decoder(self.w, self.v), self.alpha, self.A, ids, counts)

    def softmax_logits(
        self, ids: Int[ArrayLike, "reviews n"], counts: Num[ArrayLike, "reviews n"], beta: RealScalarLike
    ) -> Float[Array, " reviews"]:
        """The logits with softmax attention at inverse temperature `beta` instead of the hardmax.

        The paper trains this model with `beta` = 1000; each layer and review needs `n^2` exponentials.

        Source: 2407.01602, Section 5.
        """
        ids, counts = self._checked(ids, counts)
        beta = check_scalar(beta, "beta", self.embedding.dtype)

        def of_review(ids, counts):
            # All shares of an empty review are zero, so its logit is v.
            share = counts / jnp.maximum(jnp.sum(counts), 1)
            total = self.v
            for head in range(self.embedding.shape[1]):
                tokens = self.embedding[ids, head]
                if self.depth:
                    layer = SoftmaxTwin(self.layer(head, counts), beta)  # pyright: ignore[reportCallIssue]
                    tokens = iterate(layer, tokens, self.depth).x1
                total = total + matmul(self.w[head], matmul(share, tokens))
            return total

        # Reviews are handled in turn: n^2 exponentials of all reviews would not fit into memory.
        return jax.lax.map(lambda review: of_review(*review), (ids, counts))

    def shares(
        self, ids: Int[ArrayLike, "reviews n"], counts: Num[ArrayLike, "reviews n"]
    ) -> Float[Array, "reviews n heads"]:
        """The share u of the embedding of each word in the mean after the last layer, for each head; the shares sum to
        1.

        The logit is exactly $∑_{h,i} u^h_i ⟨w_h, E^h_i⟩ + v$; followers pass their shares to leaders.
        """
        ids, counts = self._checked(ids, counts)
        layout, heads = layout_of(self.embedding), self.embedding.shape[1]
        run = run_layers(self.depth, layout, self.embedding, self.w, self.alpha, self.A, ids, counts)
        start = layout.lanes(counts / jnp.maximum(jnp.sum(counts, axis=1, keepdims=True), 1), heads)
        return layout.words(shares_at_first_layer(layout, run, start)[0], heads)

    def layer(self, head: int = 0, counts: Numbers | None = None) -> HardmaxLayer:
        """The hardmax layer of one head, for `iterate`, `hardmax.leaders` and `hardmax.limit_set`.

        Source: 2407.01602, eq. (1).
        """
        head = check_integer(head, "head", least=0, most=self.embedding.shape[1] - 1)
        if counts is not None:
            counts = check_array(counts, "counts", shape=("n",), least=0)
            # Attention over tokens of zero total mass is undefined.
            if is_concrete(counts) and not np.any(np.asarray(counts)):
                raise ValueError(
                    "counts must hold a word, but all of them are zero; pass those of a review with words."
                )
        A = None if self.A is None else self.A[head]
        return HardmaxLayer(self.alpha[head], A, masses=counts)  # pyright: ignore[reportArgumentType]

    def path(
        self, ids: Int[ArrayLike, " n"], counts: Numbers | None = None, head: int = 0
    ) -> Float[Array, "layers n d"]:
        """The positions of the words of one review before the first layer and after each layer, (depth + 1, n, d)."""
        head = check_integer(head, "head", least=0, most=self.embedding.shape[1] - 1)
        ids, counts = self._checked(ids, counts, ("n",))
        start = self.embedding[ids, head]
        # Without layers (a bag of words) the words do not move.
        if not self.depth:
            return start[None]
        return iterate(self.layer(head, counts), start, self.depth).xs

    def _checked(self, ids: Any, counts: Any, shape: tuple[str, ...] = ("reviews", "n")) -> tuple[Array, Any]:
        """Return ids and counts of the same shape if they are valid; counts may be None for a single review."""
        most, remedy = self.embedding.shape[0] - 1, "pass what encode_reviews returned"
        ids = check_array(ids, "ids", shape=shape, integers=True, least=0, most=most, remedy=remedy)
        if counts is not None or len(shape) == 2:
            counts = check_array(counts, "counts", shape=ids.shape, least=0, remedy=remedy)
            # Counts are masses of the layers, hence floats.
            counts = counts.astype(self.embedding.dtype)
        return ids, counts


def predict_logits(model: HardmaxClassifier, ids: Numbers, counts: Numbers, *, batch_size: int = 64) -> np.ndarray:
    """The logits of many reviews, computed in batches, so that memory does not grow with the number of reviews.

    **Arguments:**

    - `model`: The classifier.
    - `ids`, `counts`: (reviews, n), as in `HardmaxClassifier.logits`.
    - `batch_size`: The number of reviews in memory at once; 64 reviews fit into the cache of a CPU.

    **Returns:**

    A NumPy vector with one logit for each review.
    """
    check_instance(model, "model", HardmaxClassifier, "a HardmaxClassifier", "pass the model of a Fitted")
    most, remedy = model.embedding.shape[0] - 1, "pass what encode_reviews returned"
    ids = check_host_array(ids, "ids", shape=(None, "n"), integers=True, least=0, most=most, remedy=remedy)
    counts = check_host_array(counts, "counts", shape=ids.shape, least=0, remedy=remedy)
    size = max(1, min(check_integer(batch_size, "batch_size"), len(ids)))
    parts = []
    for start in range(0, len(ids), size):
        # Copies of the last review fill the last batch, so that one shape is compiled.
        rows = np.minimum(np.arange(start, start + size), len(ids) - 1)
        parts.append(np.asarray(_logits(model, *jax.device_put((ids[rows], counts[rows])))))
    return np.concatenate(parts)[: len(ids)] if parts else np.zeros(0, model.embedding.dtype)


@eqx.filter_jit
def _logits(model: HardmaxClassifier, ids: Array, counts: Array) -> Array:
    return model.logits(ids, counts)


def _shaped(value: Any, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return `value` as an array of this shape; with one head, `value` may lack the axis of heads."""
    if not shape and _is_number(value, name):
        return check_scalar(value, name, dtype)
    value = check_array(value, name, remedy="mend it").astype(dtype)
    if is_concrete(value) and not np.all(np.isfinite(np.asarray(value))):
        raise ValueError(f"{name} must be finite in {value.dtype}, but some of its entries are not; mend them.")
    # The arrays of the paper have one head and no axis of heads.
    if shape and value.ndim == len(shape) - 1 and shape[0] == 1:
        value = value[None]
    if value.shape != shape:
        raise ValueError(f"{name} must be of shape {shape} for this embedding, but it is {value.shape}; mend it.")
    return value


def _is_number(value: Any, name: str) -> bool:
    array = as_numbers(value, name)
    return array is not None and array.ndim == 0


@jax.jit  # one small program instead of four
def _inverse_softplus(alpha: Float[Array, "..."]) -> Float[Array, "..."]:
    # This form of log(e^alpha - 1) neither overflows nor cancels.
    return alpha + jnp.log(-jnp.expm1(-alpha))


@final
@dataclass(frozen=True)
class Recipe:
    """The hyperparameters of a classifier, plain values that JSON can hold. The defaults are the best values found on
    validation data for d = 2 and one head.

    **Arguments:**

    - `dim`, `heads`, `depth`: The dimension d, the number of heads, and the number of layers K.
    - `length`: The number of last words of a review that are read; with the 128 of the paper the accuracy is half a
        percentage point lower.
    - `min_count`: The smallest count in the training part of a word of the vocabulary.
    - `ngrams`: With 2, each pair of neighbouring words becomes a word too, as in `TextOptions`; `length` and
        `min_count` then apply to words and pairs.
    - `epochs`, `batch_size`, `learning_rate`, `warm_up`, `clip`: The parameters of AdamW ($b_2 = 0.99$, no weight
        decay), whose learning rate rises for `warm_up` steps and then falls as a cosine to a fiftieth; `clip` bounds
        the norm of the gradient.
    - `smoothing`: The number that is added to each count in the naive-Bayes initialisation $E_i = r_i w/|w| + noise$,
        where $r_i$ is the log ratio of the fractions of positive and negative reviews with word i; rare words start
        near zero.
    - `naive_bayes`: True for this initialisation; otherwise E is noise.
    - `noise`: The standard deviation of the noise.
    - `drop`: A word of count c is dropped in a training step with probability $drop^c$: it does not attend, is not
        attended to, and is not in the mean.
    - `label_smoothing`: The fraction of each label that is distributed evenly over both labels.
    - `alpha`: The initial step of the layers, which is fixed unless `learn_alpha` is True.
    - `learn_alpha`: True if the steps are trained.
    - `negation`: With `"words"` each negation of the training part, such as `not_good`, has a separate embedding. With
        `"reflection"` the embedding of `not_good` is the reflection of the embedding of `good` across the hyperplane
        plus a residual, negations that the training part lacks are known too, and `negation_rules` of `TextOptions`
        apply.
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
    negation: Literal["words", "reflection"] = "words"

    def __post_init__(self):
        checked: dict[str, Any] = {}
        for name in ("dim", "heads", "length", "min_count", "ngrams", "epochs", "batch_size"):
            checked[name] = check_integer(getattr(self, name), name, most=MOST)
        checked["depth"] = check_integer(self.depth, "depth", least=0, most=MOST_LAYERS, remedy="pass 8, as the paper")
        checked["warm_up"] = check_integer(self.warm_up, "warm_up", least=0, remedy="pass 0 for none")
        for name in ("learning_rate", "smoothing", "alpha", "clip"):
            checked[name] = check_number(getattr(self, name), name, above=0)
        checked["noise"] = check_number(self.noise, "noise", least=0, remedy="pass 0 for none")
        check_choice(self.negation, "negation", ("words", "reflection"))
        for name in ("drop", "label_smoothing"):
            checked[name] = check_number(getattr(self, name), name, least=0, below=1, remedy="pass 0 for none")
        # Plain Python values can be written as JSON and hashed by `lru_cache`.
        for name in ("naive_bayes", "learn_alpha"):
            checked[name] = check_flag(getattr(self, name), name)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of_dim(cls, dim: int, **changes: float | int | bool | str) -> "Recipe":
        """The best recipe found for this d and for the `heads` and `ngrams` in `changes`, with `changes` applied.

        Several heads have the fixed alpha = 1.3. With n-grams, `min_count` is 5, since there are more words.
        """
        dim = check_integer(dim, "dim", most=MOST)
        # In more dimensions more noise is needed, or all words stay near the line along w.
        if dim <= 4:
            numbers: dict[str, Any] = {"noise": 0.1 if dim <= 2 else 0.2}
        else:
            numbers = {"noise": 0.3, "drop": 0.6} if dim <= 8 else {"noise": 0.4, "learning_rate": 6e-3}
        _check_names(changes)
        # The check precedes the comparison, which would raise a `TypeError` for a string.
        if check_integer(changes.get("heads", 1), "heads", most=MOST) > 1:
            numbers |= {"alpha": 1.3, "learn_alpha": False}
        if check_integer(changes.get("ngrams", 1), "ngrams", most=MOST) > 1:
            numbers |= {"min_count": 5}
        numbers = {"dim": dim} | numbers | changes
        return cls(**numbers)

    @classmethod
    def bag_of_words(cls, **changes: float | int | bool | str) -> "Recipe":
        """The recipe of a model without layers, which is linear in the counts of words: the baseline of clustering."""
        numbers: dict[str, Any] = {"dim": 1, "depth": 0, "noise": 0.01, "learning_rate": 1e-2}
        _check_names(changes)
        if check_integer(changes.get("ngrams", 1), "ngrams", most=MOST) > 1:
            numbers |= {"min_count": 5}
        numbers = numbers | changes
        return cls(**numbers)

    def text_options(self) -> TextOptions:
        """The conversion of texts to words for `ngrams` and `negation`."""
        if self.negation == "words":
            return TextOptions(ngrams=self.ngrams)
        return TextOptions(ngrams=self.ngrams, negation_scope=1, negators=WIDE_NEGATORS, negation_rules=True)

    def record(self) -> dict[str, Any]:
        """The recipe as a dictionary of values of JSON."""
        return asdict(self)

    def with_(self, **changes: float | int | bool | str) -> "Recipe":
        """The recipe with some fields changed."""
        _check_names(changes)
        return replace(self, **changes)


def _check_names(changes: dict[str, Any]) -> None:
    """Raise a `ValueError` if `changes` has a name that is not a field of a recipe."""
    for name in changes:
        if name not in Recipe.__dataclass_fields__:
            raise ValueError(
                f"{name} must be a number of a recipe, but it is none; pass some of {', '.join(asdict(Recipe()))}."
            )


def check_recipe(recipe: Any) -> None:
    """Raise a `ValueError` if `recipe` is not a `Recipe`."""
    check_instance(recipe, "recipe", Recipe, "a Recipe", "pass Recipe(), or one of its methods")
