"""A causal language model: embedding, positions, stack, head.

The defaults of `random` are those of GPT-2 (Radford et al., *Language models are unsupervised multitask learners*,
2019, Section 2.3). `extend` samples word by word in one `lax.scan` over positions, without a cache of keys and values:
each step evaluates the model on the window of the last words.

Invariants: ids are checked if they are concrete, since jax silently clamps a lookup beyond the table; the stream has
the dtype `stream_dtype`, parameters keep their dtype, and logits are float32 at least.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._base.checks import (
    check_flag,
    check_float_dtype,
    check_instance,
    check_integer,
    check_key,
    check_scalar,
)
from .._base.padding import arranged, words_first
from .._base.random import draw_normal
from .._base.types import AbstractPart, DTypeLike, Numbers, RealScalarLike
from ._block import Transformer, check_stack
from ._checks import check_draw, check_ids, check_optional, check_present, check_range, check_sizes, weights
from ._head import LanguageModelHead
from ._norm import AbstractResidual, PreNorm
from ._positions import AbstractPositions, LearnedPositions


def _stream_dtype(value: DTypeLike | None) -> DTypeLike | None:
    check_float_dtype(value, "stream_dtype")
    return value


class LanguageModel(AbstractPart):
    """A Transformer that reads words and returns the logits of the next word.

    The stream has the dtype of the embedding unless `stream_dtype` is given, such as `jnp.bfloat16` for mixed
    precision: weights are then rounded where they are used, and softmax, norms and logits are computed in float32.

    **Arguments:**

    - `embedding`: The vectors of the words, (words, d).
    - `stack`: A `Transformer` of dimension d.
    - `positions`: `LearnedPositions`, `SinusoidalPositions`, or None; relative and rotary positions belong to the
        attention.
    - `head`: `LanguageModelHead`; the default is tied to the embedding.
    - `stream_dtype`: The dtype of the stream; None is the dtype of the embedding.

    **Raises:**

    - `ValueError` if the parts differ in dimension.

    ??? cite "Source"

        *Transformers, part 2*, slides 15 and 28 to 30.
    """

    embedding: Float[Array, "words d"] = eqx.field(converter=weights("embedding", "(words, d)"))
    stack: Transformer
    positions: AbstractPositions | None = None
    head: LanguageModelHead = LanguageModelHead()
    stream_dtype: DTypeLike | None = eqx.field(default=None, static=True, converter=_stream_dtype)

    def __check_init__(self):
        if jnp.ndim(self.embedding) != 2 or 0 in self.embedding.shape:
            raise ValueError(
                f"embedding must be a matrix with a row for each word, but its shape is {self.embedding.shape}; pass "
                "(words, d)."
            )
        check_stack(self.stack)
        check_optional(
            self.positions, "positions", AbstractPositions, "LearnedPositions, SinusoidalPositions", "pass such ones"
        )
        check_instance(self.head, "head", LanguageModelHead, "a LanguageModelHead", "pass LanguageModelHead()")
        # Queries are (..., h, d, k), with or without an axis of layers, so d is the last axis but one.
        d, width = self.embedding.shape[1], self.stack.blocks.attention.query.shape[-2]
        if d != width:
            raise ValueError(
                f"embedding must be of the dimension of the stack, {width}, but its shape is {self.embedding.shape}; "
                f"pass (words, {width})."
            )
        if isinstance(self.positions, LearnedPositions) and self.positions.table.shape[1] != d:
            raise ValueError(
                f"positions must be of the dimension of the embedding, {d}, but their table is "
                f"{self.positions.table.shape}; pass (positions, {d})."
            )

    @classmethod
    def random(
        cls,
        key: PRNGKeyArray,
        words: int,
        d: int,
        heads: int,
        hidden: int,
        layers: int,
        *,
        positions: int | AbstractPositions | None = 256,
        tied: bool = True,
        residual: AbstractResidual = PreNorm(),  # noqa: B008
        causal: bool = True,
        activation: Callable[[Array], Array] = jax.nn.gelu,
        bias: bool = True,
        scale: float = 0.02,
        dtype: DTypeLike | None = None,
        stream_dtype: DTypeLike | None = None,
        **options: Any,
    ) -> "LanguageModel":
        """A model with random weights; the defaults are those of GPT-2: causal, pre-norm, tied head, learned positions.

        **Arguments:**

        - `words`, `d`, `heads`, `hidden`, `layers`: The sizes.
        - `positions`: The number of learned positions, or positions of another kind, or None.
        - `tied`: True if the head shares the weights of the embedding.
        - `scale`: The standard deviation of all weights.
        - Further arguments are those of `Transformer.random` and `Block.random`.

        **Raises:**

        - `ValueError` if `heads` does not divide `d`.

        Source: Radford et al., *Language models are unsupervised multitask learners* (2019), Section 2.3.
        """
        embedding_key, positions_key, stack_key, head_key = jr.split(check_key(key), 4)
        words, d = check_sizes(words=words, d=d)
        deviation, dtype = check_draw(scale, dtype)
        check_float_dtype(stream_dtype, "stream_dtype")
        check_flag(tied, "tied")
        if not isinstance(positions, AbstractPositions | None):
            (positions,) = check_sizes(positions=positions)
        # The key of the head is split off even if the head is tied, so that the other weights do not depend on `tied`.
        draw = lambda key: deviation * draw_normal(key, (words, d), dtype)
        stack = Transformer.random(
            stack_key, d, heads, hidden, layers, residual=residual, causal=causal, activation=activation, bias=bias,
            scale=scale, dtype=dtype, **options,
        )  # fmt: skip
        if isinstance(positions, int):
            positions = LearnedPositions.random(positions_key, positions, d, scale=scale, dtype=dtype)
        head = LanguageModelHead(None if tied else draw(head_key))
        return cls(draw(embedding_key), stack, positions, head, stream_dtype)

    @property
    def num_words(self) -> int:
        """The number of words of the vocabulary."""
        return self.embedding.shape[0]

    def embed(self, ids: Int[Array, " n"]) -> Float[Array, "n d"]:
        """The input of the stack: the embedding of each word plus the vector of its position.

        **Raises:**

        - `ValueError` if an id is out of the vocabulary, or there are more ids than positions.

        Source: *Transformers, part 2*, slide 23.
        """
        return self._embed(check_ids(ids, self.num_words))

    def _embed(self, ids: Any, present: Any = None) -> Array:
        ids = jnp.asarray(ids)
        # All layers follow the dtype of the input of the stack.
        dtype = self.embedding.dtype if self.stream_dtype is None else self.stream_dtype
        x = self.embedding[ids].astype(dtype)
        # Positions count present tokens only.
        _, places = words_first(present)
        return x if self.positions is None else x + arranged(self.positions(ids.shape[0], dtype), places, 0)

    def check_range(self, ids: Numbers) -> None:
        """Raise a `ValueError` if an id is out of the vocabulary; ids that are traced are not checked."""
        check_range(ids, self.num_words)

    def __call__(self, ids: Int[Array, " n"], present: Bool[Array, " n"] | None = None) -> Float[Array, "n words"]:
        """The logits of the word after each token, (n, words).

        **Arguments:**

        - `ids`: The ids of the words, (n,).
        - `present`: The tokens that are present, (n,); None is all of them. Positions count from the first present
            token.
        """
        return self._logits(ids, present)

    def _logits(self, ids: Any, present: Any = None, unroll: int = 1) -> Float[Array, "n words"]:
        return self.head._logits(self.stack._through(*self._enter(ids, present), unroll), self.embedding)

    def _enter(self, ids: Any, present: Any) -> tuple[Array, Array | None]:
        ids = check_ids(ids, self.num_words)
        present = check_present(present, ids.shape[0])
        return self._embed(ids, present), present

    def logit_lens(
        self, ids: Int[Array, " n"], present: Bool[Array, " n"] | None = None
    ) -> Float[Array, "levels n words"]:
        """The logits of the head applied to each level of the stream, (layers + 1, n, words).

        The last norm is applied at each level; the last level is the output of the model.

        **Arguments:**

        - `ids`, `present`: As in `__call__`.

        Source: nostalgebraist, *Interpreting GPT: the logit lens* (2020).
        """
        levels = self.stack._levels(*self._enter(ids, present))
        return self.head._logits(self.stack._last(levels), self.embedding)

    def next_token(self, ids: Int[Array, " n"], temperature: RealScalarLike = 1.0) -> Float[Array, " words"]:
        """The distribution of the word after `ids`, (words,).

        **Arguments:**

        - `ids`: The ids of the words, (n,).
        - `temperature`: The divisor of the logits, > 0.

        Source: *Transformers, part 2*, slide 28.
        """
        temperature = check_scalar(temperature, "temperature", above=0)
        return self.head._next_token(self.stack._through(*self._enter(ids, None)), self.embedding, temperature)

    def extend(
        self, ids: Int[Array, " n"], steps: int, *, key: PRNGKeyArray | None = None, temperature: RealScalarLike = 1.0
    ) -> Int[Array, " total"]:
        """Extend `ids` by `steps` words, each drawn from the distribution given the words before it.

        A text that is longer than the number of positions is continued from its last words.

        **Arguments:**

        - `ids`: The ids of the first words, (n,), with n at least 1.
        - `steps`: The number of further words.
        - `key`: The PRNG key; None takes the most likely word at each step.
        - `temperature`: The divisor of the logits, > 0.

        **Returns:**

        The ids of all words, (n + steps,).

        **Raises:**

        - `ValueError` if `steps` is negative.

        Source: *Transformers, part 2*, slide 28.
        """
        ids = jnp.asarray(check_ids(ids, self.num_words))
        steps = check_integer(steps, "steps", least=0, remedy="ask for some")
        key = None if key is None else check_key(key)
        return _extend(self, ids, steps, key, check_scalar(temperature, "temperature", jnp.float32, above=0))


def check_model(model: Any) -> LanguageModel:
    """Return `model` if it is a `LanguageModel`; raise a `ValueError` otherwise."""
    return check_instance(model, "model", LanguageModel, "a LanguageModel", "pass clusterjax.transformer.load()")


@eqx.filter_jit
def _extend(model: LanguageModel, ids: Array, steps: int, key: PRNGKeyArray | None, temperature: Array) -> Array:
    longest = None if model.positions is None else model.positions.longest()
    total = ids.shape[0] + steps
    # A static width gives one program for all steps. A window of as many words as positions reads longer texts.
    width = total if longest is None else min(total, longest)
    # Shapes are static, so the text has its final length from the start.
    text = jnp.concatenate([ids, jnp.zeros(steps, ids.dtype)])

    def step(text: Array, place: Array) -> tuple[Array, None]:
        # The window ends before the word to be drawn. Early windows begin at 0 and contain words that are not drawn
        # yet, which are marked as not present.
        begin = jnp.clip(place - width, 0, total - width)
        window = lax.dynamic_slice(text, (begin,), (width,))
        # Absolute positions count from the start of the window.
        x = model.stack(model.embed(window), jnp.arange(width) < place - begin)
        # The last word before `place` has the index place - begin - 1 in the window.
        logits = model.head(x[place - begin - 1], model.embedding)
        if key is None:
            word = jnp.argmax(logits)
        else:
            # The key of a word depends on its position in the text alone.
            word = jr.categorical(jr.fold_in(key, place), logits / temperature.astype(logits.dtype))
        return text.at[place].set(word.astype(text.dtype)), None

    return lax.scan(step, text, ids.shape[0] + jnp.arange(steps))[0]


# The folder of the small trained language model that the package contains.
BUNDLED = Path(__file__).parent / "data"


def unigram_loss(rows: Int[np.ndarray, "rows n"], held: Int[np.ndarray, "held m"], words: int) -> float:
    """The mean loss in nats per word of a unigram model on all words of `held` except the first of each row.

    Every count is increased by one, so that no word has probability zero.

    **Arguments:**

    - `rows`: The ids of the training text, (rows, n).
    - `held`: The ids of the held-out text, (held, m).
    - `words`: The number of words of the vocabulary.

    Source: Laplace's rule of succession.
    """
    counts = np.bincount(rows[:, 1:].ravel(), minlength=words) + 1.0
    return float(-np.mean(np.log(counts / counts.sum())[held[:, 1:]]))


def bigram_loss(rows: Int[np.ndarray, "rows n"], held: Int[np.ndarray, "held m"], words: int) -> float:
    """The mean loss in nats per word of a bigram model with interpolated Kneser-Ney smoothing.

    $p(w | v) = (max(c(vw) - D, 0) + D N(v·) p(w)) / c(v)$ with $D = n_1/(n_1 + 2 n_2)$, where N(v·) is the number of
    different words after v, and p(w) is proportional to one plus the number of different words before w. After a word
    that is never followed by another word in `rows`, the probabilities are p(w).

    **Arguments:**

    - `rows`, `held`, `words`: As in `unigram_loss`.

    ??? cite "Source"

        Chen, Goodman, *An empirical study of smoothing techniques for language modeling* (1999), Section 2.7.
    """
    # Each pair is encoded as the integer v * words + w, so that sorting counts the pairs.
    pairs = _pairs(rows, words)
    distinct_pairs, counts = np.unique(pairs, return_counts=True)
    once, twice = (int((counts == k).sum()) for k in (1, 2))
    # The estimate of Ney, Essen and Kneser uses the numbers of pairs seen once and twice; D is 0.5 if no pair is seen
    # once.
    discount = once / (once + 2 * twice) if once else 0.5
    first, second = np.divmod(distinct_pairs, words)
    total = np.bincount(first, counts, minlength=words)
    followers = np.bincount(first, minlength=words)
    # The continuation count of Kneser and Ney is the number of different words before w, not the frequency of w.
    predecessors = np.bincount(second, minlength=words) + 1.0
    continuation = predecessors / predecessors.sum()
    held_pairs = _pairs(held, words)
    # The distinct pairs are sorted, so a binary search finds a pair; an unseen pair has the count 0.
    place = np.minimum(np.searchsorted(distinct_pairs, held_pairs), len(distinct_pairs) - 1)
    pair_counts = np.where(distinct_pairs[place] == held_pairs, counts[place], 0)
    v, w = np.divmod(held_pairs, words)
    divisor = np.maximum(total[v], 1)
    probability = np.maximum(pair_counts - discount, 0) / divisor + discount * followers[v] / divisor * continuation[w]
    # A word without a follower in `rows` has no bigram counts, so only the continuation probability remains.
    return float(-np.mean(np.log(np.where(total[v] > 0, probability, continuation[w]))))


def _pairs(rows: Int[np.ndarray, "rows n"], words: int) -> Int[np.ndarray, " pairs"]:
    """The pair of each word and the next word of its row, encoded as one integer."""
    return (rows[:, :-1].astype(np.int64) * words + rows[:, 1:]).ravel()
