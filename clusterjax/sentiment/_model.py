"""The interpretable sentiment classifier: words move towards their leaders, and a hyperplane classifies their mean.

The model is that of Alcalde, Fantuzzi and Zuazua, *Clustering in pure-attention hardmax transformers* (2407.01602),
Section 5, extended by several heads and by counts as masses. `_forward` has the forward and the backward pass.

Invariants: one token of count 2 and two equal tokens of count 1 give the same logit; a review without known words has
the logit v; alpha is positive, because the inverse softplus of alpha is stored.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Num

from .._check import as_numbers, check_array, check_host_array, check_instance, check_integer, check_scalar
from .._custom_types import Numbers, RealScalarLike
from .._iterate import iterate
from .._misc import is_concrete, matmul
from ..hardmax import HardmaxLayer, SoftmaxTwin
from ._forward import Decoder, hardmax_logits, layout_of, run_layers, shares_at_first_layer


MOST_LAYERS = 10**6


class HardmaxClassifier(eqx.Module):
    r"""A sentiment classifier by clustering: $\text{logit} = \sum_h \langle w_h, \overline{z^h_K}\rangle + v$, where
    the words of a review start at their embeddings $z^h_0 = E^h$ and pass through K hardmax layers.

    Each head is the model of the paper in separate d dimensions, and one head is exactly this model. The bar denotes
    the mean over the words of the review; padding does not attend, is not attended to, and is not in the mean. Training
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
        if alpha.shape not in ((), (1,), (heads,)) or is_concrete(alpha) and not np.all(_positive(alpha)):
            told = f"it is {alpha}" if alpha.size <= 8 else f"its shape is {alpha.shape}"
            raise ValueError(f"alpha must be positive, one number or one per head, but {told}; {remedy}.")
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
        r"""The share $u$ of the embedding of each word in the mean after the last layer, for each head; the shares sum
        to 1.

        The logit is exactly $\sum_{h,i} u^h_i \langle w_h, E^h_i\rangle + v$; followers pass their shares to leaders.
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
        parts.append(np.asarray(_logits(model, jnp.asarray(ids[rows]), jnp.asarray(counts[rows]))))
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


def _positive(alpha: Array) -> np.ndarray:
    return np.asarray((np.asarray(alpha) > 0) & np.isfinite(np.asarray(alpha)))


@jax.jit  # one small program in place of four
def _inverse_softplus(alpha: Float[Array, "..."]) -> Float[Array, "..."]:
    # This form of log(e^alpha - 1) neither overflows nor cancels.
    return alpha + jnp.log(-jnp.expm1(-alpha))
