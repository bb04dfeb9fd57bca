"""A causal language model: embedding, positions, stack, head.

The model of GPT-2 (Radford et al., *Language models are unsupervised multitask learners*, 2019, Section 2.3) is the
default of `random`. `extend` samples word by word in one `lax.scan` over places, without a cache of keys and values:
each step reads the window of the last words again.

Invariants: ids are checked where they are concrete, since a lookup beyond the table is silently clamped; the stream is
in `stream_dtype`, parameters in their own dtype, logits in float32 at least.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._abstract import AbstractPart
from .._check import (
    check_flag,
    check_float_dtype,
    check_instance,
    check_integer,
    check_key,
    check_scalar,
)
from .._custom_types import DTypeLike, Numbers, RealScalarLike
from .._padding import arranged, words_first
from .._random import draw_normal
from ._checks import check_draw, check_ids, check_optional, check_present, check_range, check_sizes, weights
from ._head import LanguageModelHead
from ._norm import AbstractResidual, PreNorm
from ._positions import AbstractPositions, LearnedPositions
from ._transformer import Transformer, check_stack


def _stream_dtype(value: DTypeLike | None) -> DTypeLike | None:
    check_float_dtype(value, "stream_dtype")
    return value


class LanguageModel(AbstractPart):
    """A Transformer that reads words and says which may follow.

    The dtype of its arrays is that of the stream; `stream_dtype` asks for another one, such as `jnp.bfloat16` for mixed
    precision: weights are rounded where they are used, softmax, norms and logits are made in float32.

    **Arguments:**

    - `embedding`: (words, d).
    - `stack`: A `Transformer` of dimension d.
    - `positions`: `LearnedPositions`, `SinusoidalPositions`, or None: relative and rotary ones are in the attention.
    - `head`: `LanguageModelHead`; by default tied to the embedding.
    - `stream_dtype`: None is the dtype of the embedding.

    **Raises:**

    - `ValueError` if the parts are not of one dimension.

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
        # The last axis but one of the queries, (..., h, d, k), with or without an axis of layers.
        d, width = self.embedding.shape[1], self.stack.blocks.attention.query.shape[-2]
        if d != width:
            raise ValueError(
                f"embedding must be of the dimension of the stack, {width}, but its shape is {self.embedding.shape}; "
                f"pass (words, {width})."
            )
        # Sinusoidal positions are checked when they are made; relative ones belong to the attention.
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
        """Random weights as GPT-2 has them: causal, normalised before each layer, tied head, learned positions.

        **Arguments:**

        - `words`, `d`, `heads`, `hidden`, `layers`: The sizes.
        - `positions`: How many learned positions, or positions of another kind, or None.
        - `tied`: Whether the head has the weights of the embedding.
        - `scale`: Standard deviation of all weights.
        - The others are those of `Transformer.random` and `Block.random`.

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
        # A tied head draws nothing, but its key is split off in any case, so that the other weights do not depend on
        # it.
        draw = lambda key: deviation * draw_normal(key, (words, d), dtype)
        stack = Transformer.random(
            stack_key, d, heads, hidden, layers, residual=residual, causal=causal, activation=activation, bias=bias,
            scale=scale, dtype=dtype, **options,
        )  # fmt: skip
        # A number is how many learned positions there are to be.
        if isinstance(positions, int):
            positions = LearnedPositions.random(positions_key, positions, d, scale=scale, dtype=dtype)
        head = LanguageModelHead(None if tied else draw(head_key))
        return cls(draw(embedding_key), stack, positions, head, stream_dtype)

    @property
    def num_words(self) -> int:
        """How many words it knows."""
        return self.embedding.shape[0]

    def embed(self, ids: Int[Array, " n"]) -> Float[Array, "n d"]:
        """What enters the stack: the embedding of each word, and its position.

        **Raises:**

        - `ValueError` if an id is not of a word, or there are more than positions.

        Source: *Transformers, part 2*, slide 23.
        """
        return self._embed(check_ids(ids, self.num_words))

    def _embed(self, ids: Any, present: Any = None) -> Array:
        ids = jnp.asarray(ids)
        # The stream has the dtype of what enters it; everything in the stack follows.
        dtype = self.embedding.dtype if self.stream_dtype is None else self.stream_dtype
        x = self.embedding[ids].astype(dtype)
        # Positions count the tokens that are present.
        _, places = words_first(present)
        return x if self.positions is None else x + arranged(self.positions(ids.shape[0], dtype), places, 0)

    def check_range(self, ids: Numbers) -> None:
        """Raise a ValueError if an id is not of a word; ids that are traced are not checked."""
        check_range(ids, self.num_words)

    def __call__(self, ids: Int[Array, " n"], present: Bool[Array, " n"] | None = None) -> Float[Array, "n words"]:
        """The logits of the word after each token, (n, words).

        **Arguments:**

        - `ids`: (n,).
        - `present`: Which tokens are present, (n,); None is all of them. Positions count from the first of them.
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
        """The logits that the head would give at each level, (layers + 1, n, words): what the model is about to say.

        The last norm is applied at each level; the last one is the answer of the model.

        **Arguments:**

        - `ids`, `present`: As above.

        Source: nostalgebraist, *Interpreting GPT: the logit lens* (2020).
        """
        # (layers + 1, n, d); norm and head act on the last axis only.
        levels = self.stack._levels(*self._enter(ids, present))
        return self.head._logits(self.stack._last(levels), self.embedding)

    def next_token(self, ids: Int[Array, " n"], temperature: RealScalarLike = 1.0) -> Float[Array, " words"]:
        """The distribution of the word after these, (words,).

        **Arguments:**

        - `ids`: (n,).
        - `temperature`: By which the logits are divided.

        Source: *Transformers, part 2*, slide 28.
        """
        temperature = check_scalar(temperature, "temperature", above=0)
        return self.head._next_token(self.stack._through(*self._enter(ids, None)), self.embedding, temperature)

    def extend(
        self, ids: Int[Array, " n"], steps: int, *, key: PRNGKeyArray | None = None, temperature: RealScalarLike = 1.0
    ) -> Int[Array, " total"]:
        """`ids` and `steps` more words, each drawn of the distribution after all before it.

        Texts longer than the positions are continued from their last words.

        **Arguments:**

        - `ids`: The beginning, (n,), one word at least.
        - `steps`: How many more.
        - `key`: PRNG key; None takes the likeliest word each time.
        - `temperature`: By which the logits are divided, > 0.

        **Returns:**

        (n + steps,).

        **Raises:**

        - `ValueError` if `steps` is negative or the model not causal.

        Source: *Transformers, part 2*, slide 28.
        """
        ids = jnp.asarray(check_ids(ids, self.num_words))
        steps = check_integer(steps, "steps", least=0, remedy="ask for some")
        key = None if key is None else check_key(key)
        return _extend(self, ids, steps, key, check_scalar(temperature, "temperature", jnp.float32, above=0))


def check_model(model: Any) -> LanguageModel:
    """`model`, if it is a language model."""
    return check_instance(model, "model", LanguageModel, "a LanguageModel", "pass clusterjax.transformer.load()")


@eqx.filter_jit
def _extend(model: LanguageModel, ids: Array, steps: int, key: PRNGKeyArray | None, temperature: Array) -> Array:
    longest = None if model.positions is None else model.positions.longest()
    total = ids.shape[0] + steps
    # A static width: one program for all steps. Longer texts are read through a window of as many words as there are
    # positions.
    width = total if longest is None else min(total, longest)
    # The text has its final length from the start, since shapes are static.
    text = jnp.concatenate([ids, jnp.zeros(steps, ids.dtype)])

    def step(text: Array, place: Array) -> tuple[Array, None]:
        # The window ends before the word to be drawn; early on it begins at 0 and holds words still to come, which are
        # not present.
        begin = jnp.clip(place - width, 0, total - width)
        window = lax.dynamic_slice(text, (begin,), (width,))
        # Absolute positions count from the beginning of the window.
        x = model.stack(model.embed(window), jnp.arange(width) < place - begin)
        # The last word before `place`, at place - begin - 1 of the window.
        logits = model.head(x[place - begin - 1], model.embedding)
        if key is None:
            word = jnp.argmax(logits)
        else:
            # A key for each place in the text.
            word = jr.categorical(jr.fold_in(key, place), logits / temperature.astype(logits.dtype))
        return text.at[place].set(word.astype(text.dtype)), None

    return lax.scan(step, text, ids.shape[0] + jnp.arange(steps))[0]
