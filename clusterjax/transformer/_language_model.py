"""Words in, a distribution over the next word out: embedding, positions, stack, head."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._misc import as_float, draw_normal, is_concrete
from ._head import LanguageModelHead
from ._norm import AbstractResidual, PreNorm
from ._positions import AbstractPositions, LearnedPositions
from ._transformer import Transformer


class LanguageModel(eqx.Module):
    """A Transformer that reads words and says which may follow.

    The dtype of its arrays is that of the stream; `stream_dtype` asks for another one, such as `jnp.bfloat16` for mixed
    precision: weights are rounded where they are used, softmax, norms and logits are made in float32.

    **Arguments:**

    - `embedding`: (words, d).
    - `stack`: A `Transformer` of dimension d.
    - `positions`: `LearnedPositions`, `SinusoidalPositions`, or None: relative ones are in the attention.
    - `head`: `LanguageModelHead`; by default tied to the embedding.
    - `stream_dtype`: None is the dtype of the embedding.

    **Raises:**

    - `ValueError` if the parts are not of one dimension.

    ??? cite "Source"

        *Transformers, part 2*, slides 15 and 28 to 30.
    """

    embedding: Float[Array, "words d"] = eqx.field(converter=as_float)
    stack: Transformer
    positions: AbstractPositions | None = None
    head: LanguageModelHead = LanguageModelHead()
    stream_dtype: Any = eqx.field(default=None, static=True)

    def __check_init__(self):
        if jnp.ndim(self.embedding) != 2:
            raise ValueError(
                f"embedding must be a matrix with a row for each word, but its shape is {self.embedding.shape}; pass "
                "(words, d)."
            )
        d, width = self.embedding.shape[1], self.stack.blocks.attention.query.shape[-2]
        if d != width:
            raise ValueError(
                f"embedding must be of the dimension of the stack, {width}, but its shape is {self.embedding.shape}; "
                f"pass (words, {width})."
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
        dtype: Any = None,
        stream_dtype: Any = None,
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
        dtype = dtype or jnp.result_type(float)
        of_words, of_places, of_blocks, of_head = jr.split(key, 4)
        draw = lambda key: scale * draw_normal(key, (words, d), dtype)
        stack = Transformer.random(
            of_blocks, d, heads, hidden, layers, residual=residual, causal=causal, activation=activation, bias=bias,
            scale=scale, dtype=dtype, **options,
        )  # fmt: skip
        if isinstance(positions, int):
            positions = LearnedPositions.random(of_places, positions, d, scale=scale, dtype=dtype)
        head = LanguageModelHead(None if tied else draw(of_head))
        return cls(draw(of_words), stack, positions, head, stream_dtype)

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
        ids = jnp.asarray(ids)
        if ids.ndim != 1 or not jnp.issubdtype(ids.dtype, jnp.integer) or ids.shape[0] < 1:
            raise ValueError(
                f"ids must be a vector of integers, but its shape is {ids.shape} and its dtype {ids.dtype}; pass (n,), "
                "and map over texts with jax.vmap."
            )
        self.check_range(ids)
        dtype = self.embedding.dtype if self.stream_dtype is None else self.stream_dtype
        x = self.embedding[ids].astype(dtype)
        return x if self.positions is None else x + self.positions(ids.shape[0], dtype)

    def check_range(self, ids: Any) -> None:
        """Raise a ValueError if an id is not of a word; ids that are traced are not looked at.

        Source: this library.
        """
        if is_concrete(ids):
            array = np.asarray(ids)
            wrong = array[(array < 0) | (array >= self.num_words)]
            if wrong.size:
                raise ValueError(
                    f"ids must be from 0 to {self.num_words - 1}, but one is {wrong[0]}; use the tokenizer of this "
                    "model."
                )

    def __call__(self, ids: Int[Array, " n"], present: Bool[Array, " n"] | None = None) -> Float[Array, "n words"]:
        """The logits of the word after each token, (n, words).

        **Arguments:**

        - `ids`: (n,).
        - `present`: Which tokens are there, (n,); None is all of them.
        """
        return self.head(self.stack(self.embed(ids), present), self.embedding)

    def logit_lens(
        self, ids: Int[Array, " n"], present: Bool[Array, " n"] | None = None
    ) -> Float[Array, "levels n words"]:
        """The logits that the head would give at each level, (layers + 1, n, words): what the model is about to say.

        The last norm is applied at each level; the last one is the answer of the model.

        **Arguments:**

        - `ids`, `present`: As above.

        Source: nostalgebraist, *Interpreting GPT: the logit lens* (2020).
        """
        levels = self.stack.levels(self.embed(ids), present)
        return self.head(levels if self.stack.norm is None else self.stack.norm(levels), self.embedding)

    def next_token(self, ids: Int[Array, " n"], temperature: Any = 1.0) -> Float[Array, " words"]:
        """The distribution of the word after these, (words,).

        **Arguments:**

        - `ids`: (n,).
        - `temperature`: By which the logits are divided.

        Source: *Transformers, part 2*, slide 28.
        """
        return self.head.next_token(self.stack(self.embed(ids)), self.embedding, temperature)

    def extend(
        self, ids: Int[Array, " n"], steps: int, *, key: PRNGKeyArray | None = None, temperature: Any = 1.0
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
        ids = jnp.asarray(ids)
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise ValueError(f"steps must be an integer of at least 0, but it is {steps!r}; ask for some.")
        self.embed(ids[:1])  # the checks at the door
        return _extend(self, ids, steps, key, jnp.asarray(temperature, jnp.float32))


@eqx.filter_jit
def _extend(model: LanguageModel, ids: Array, steps: int, key: PRNGKeyArray | None, temperature: Array) -> Array:
    longest = None if model.positions is None else model.positions.longest()
    total = ids.shape[0] + steps
    width = total if longest is None else min(total, longest)
    text = jnp.concatenate([ids, jnp.zeros(steps, ids.dtype)])

    def step(text: Array, place: Array) -> tuple[Array, None]:
        begin = jnp.clip(place - width, 0, total - width)
        read = lax.dynamic_slice(text, (begin,), (width,))
        x = model.stack(model.embed(read), jnp.arange(width) < place - begin)
        logits = model.head(x[place - begin - 1], model.embedding)
        if key is None:
            word = jnp.argmax(logits)
        else:
            word = jr.categorical(jr.fold_in(key, place), logits / temperature.astype(logits.dtype))
        return text.at[place].set(word.astype(text.dtype)), None

    return lax.scan(step, text, ids.shape[0] + jnp.arange(steps))[0]
