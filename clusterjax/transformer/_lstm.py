r"""A language model of one LSTM layer: a cell state stores what the words so far have written, and gates write, keep
and read the cell state.

The layer is that of Hochreiter and Schmidhuber, *Long short-term memory* (1997), with the forget gate of Gers,
Schmidhuber and Cummins, *Learning to forget* (2000), as in `equinox.nn.LSTMCell`. The forget gate is initially open
(Jozefowicz, Zaremba, Sutskever, *An empirical exploration of recurrent network architectures*, 2015). The contribution
of the words to the gates is computed for all positions at once; the rest is one `lax.scan` along the text.

Invariants: a state depends on the words up to its position only; padding leaves the state unchanged; a text that is
continued from a state gives the same states as the whole text.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._base.checks import check_flag, check_instance, check_integer, check_key, check_scalar
from .._base.random import draw_normal
from .._base.types import AbstractPart, DTypeLike, RealScalarLike
from ._attention import contract
from ._checks import check_draw, check_ids, check_present, check_sizes, weights
from ._head import LanguageModelHead


class LSTMStates(NamedTuple):
    """The states and gates of an LSTM at each position of a text, (n, m) each: $c_t = f_t c_{t-1} + i_t g_t$,
    $h_t = o_t tanh(c_t)$.

    **Attributes:**

    - `cell`: c, the cell state after the word at the position.
    - `hidden`: h, the hidden state, which the head reads.
    - `input_gate`: i from 0 to 1, the fraction of the candidate that is written.
    - `forget_gate`: f from 0 to 1, the fraction of the cell state that is kept.
    - `candidate`: g from -1 to 1, the value to write.
    - `output_gate`: o from 0 to 1, the fraction of tanh(c) that is read.

    Source: Gers, Schmidhuber, Cummins, *Learning to forget* (2000); *Transformers, part 2*, slides 10 and 11.
    """

    cell: Float[Array, "n m"]
    hidden: Float[Array, "n m"]
    input_gate: Float[Array, "n m"]
    forget_gate: Float[Array, "n m"]
    candidate: Float[Array, "n m"]
    output_gate: Float[Array, "n m"]


class LSTMLanguageModel(AbstractPart):
    """An LSTM that reads words one by one and returns the logits $U W_o^T h_t$ of the next word.

    **Arguments:**

    - `embedding`: The vectors of the words, (words, d).
    - `cell`: `equinox.nn.LSTMCell(d, m)`, of m units.
    - `output`: $W_o$, (m, d), from the hidden state to the input of the head.
    - `head`: `LanguageModelHead`; the default is tied to the embedding.

    **Raises:**

    - `ValueError` if the shapes of the parts do not match.

    ??? cite "Source"

        Hochreiter, Schmidhuber, *Long short-term memory* (1997); *Transformers, part 2*, slides 10 to 14.
    """

    embedding: Float[Array, "words d"] = eqx.field(converter=weights("embedding", "(words, d)"))
    cell: eqx.nn.LSTMCell
    output: Float[Array, "m d"] = eqx.field(converter=weights("output", "(m, d)"))
    head: LanguageModelHead = LanguageModelHead()

    def __check_init__(self):
        check_instance(self.cell, "cell", eqx.nn.LSTMCell, "an LSTMCell", "pass equinox.nn.LSTMCell(d, m, key=key)")
        check_instance(self.head, "head", LanguageModelHead, "a LanguageModelHead", "pass LanguageModelHead()")
        cell, (words, d) = self.cell, jnp.shape(self.embedding)
        m = cell.hidden_size
        expected = {"weight_ih": (4 * m, d), "weight_hh": (4 * m, m)} | ({"bias": (4 * m,)} if cell.use_bias else {})
        shapes = {name: jnp.shape(getattr(cell, name)) for name in expected}
        if 0 in (words, d, m) or shapes != expected or cell.input_size != d:
            raise ValueError(
                f"cell must read words of dimension {d}, that of embedding, with weights {expected}, but they are "
                f"{shapes} and its input size is {cell.input_size}; pass equinox.nn.LSTMCell({d}, m, key=key)."
            )
        if jnp.shape(self.output) != (m, d):
            raise ValueError(
                f"output must be from the {m} units to dimension {d}, but its shape is {jnp.shape(self.output)}; pass "
                f"({m}, {d})."
            )
        if self.head.unembedding is not None and self.head.unembedding.shape != (words, d):
            raise ValueError(
                f"head must be of the shape of the embedding, ({words}, {d}), but its unembedding is "
                f"{self.head.unembedding.shape}; pass such one, or LanguageModelHead()."
            )

    @classmethod
    def random(
        cls,
        key: PRNGKeyArray,
        words: int,
        d: int,
        hidden: int,
        *,
        tied: bool = True,
        forget: RealScalarLike = 1.0,
        scale: float = 1.0,
        dtype: DTypeLike | None = None,
    ) -> "LSTMLanguageModel":
        """A model with random weights: uniform up to 1/√m in the cell, as drawn by Equinox, and normal elsewhere.

        **Arguments:**

        - `words`, `d`, `hidden`: The sizes; `hidden` is m.
        - `tied`: True if the head shares the weights of the embedding.
        - `forget`: The bias of the forget gate; a large bias keeps the gate open.
        - `scale`: The standard deviation of the embedding; `output` has the standard deviation 1/√m. No layer norm
            scales the input of the cell, so with the 0.02 of a Transformer a word would hardly change the gates.

        **Raises:**

        - `ValueError` if a size is not a positive integer.

        Source: Jozefowicz, Zaremba, Sutskever (2015), Section 2.2, for the bias of the forget gate.
        """
        embedding_key, cell_key, output_key, head_key = jr.split(check_key(key), 4)
        words, d = check_sizes(words=words, d=d)
        d, hidden, _ = check_sizes(d=d, hidden=hidden, gates=4)
        deviation, dtype = check_draw(scale, dtype)
        open_by = check_scalar(forget, "forget", dtype)
        cell = eqx.nn.LSTMCell(d, hidden, dtype=dtype, key=cell_key)
        # Equinox stacks the gates in the order input, forget, candidate, output.
        cell = eqx.tree_at(lambda c: c.bias, cell, jnp.zeros(4 * hidden, dtype).at[hidden : 2 * hidden].set(open_by))
        draw = lambda key: deviation * draw_normal(key, (words, d), dtype)
        output = draw_normal(output_key, (hidden, d), dtype) * jnp.asarray(hidden**-0.5, dtype)
        head = LanguageModelHead(None if check_flag(tied, "tied") else draw(head_key))
        return cls(draw(embedding_key), cell, output, head)

    @property
    def num_words(self) -> int:
        """The number of words of the vocabulary."""
        return self.embedding.shape[0]

    @property
    def num_units(self) -> int:
        """m, the number of units of the cell."""
        return self.cell.hidden_size

    def states(self, ids: Int[Array, " n"], present: Bool[Array, " n"] | None = None) -> LSTMStates:
        """The cell state, the hidden state and the gates at each position, (n, m) each; both states start at zero.

        **Arguments:**

        - `ids`: The ids of the words, (n,).
        - `present`: The tokens that are present, (n,); padding leaves the state unchanged. None is all of them.

        **Returns:**

        `LSTMStates`.

        **Raises:**

        - `ValueError` if an id is out of the vocabulary.

        Source: *Transformers, part 2*, slides 10, 11 and 14.
        """
        ids = jnp.asarray(check_ids(ids, self.num_words))
        present = check_present(present, ids.shape[0])
        return self._states(ids, jnp.ones(ids.shape, bool) if present is None else present)

    def _states(self, ids: Array, present: Array) -> LSTMStates:
        # (n, 4 m): one product computes the contribution of all words to the gates.
        gate_inputs = contract("nd,gd->ng", self.embedding[ids], self.cell.weight_ih)
        return lax.scan(lambda state, inputs: self._step(state, *inputs), self._empty(), (gate_inputs, present))[1]

    def _empty(self) -> tuple[Array, Array]:
        zero = jnp.zeros(self.num_units, self.embedding.dtype)
        return zero, zero

    def _step(self, state: tuple[Array, Array], given: Array, present: Array) -> tuple[tuple[Array, Array], LSTMStates]:
        """The hidden and cell state after one more word, and its `LSTMStates`."""
        before, cell_before = state
        scores = given + contract("gm,m->g", self.cell.weight_hh, before)
        if self.cell.bias is not None:
            scores = scores + self.cell.bias
        write, keep, candidate, read = jnp.split(scores, 4)
        write, keep, read = (jax.nn.sigmoid(part) for part in (write, keep, read))
        candidate = jnp.tanh(candidate)
        cell = keep * cell_before + write * candidate
        hidden = read * jnp.tanh(cell)
        cell, hidden = jnp.where(present, cell, cell_before), jnp.where(present, hidden, before)
        return (hidden, cell), LSTMStates(cell, hidden, write, keep, candidate, read)

    def _logits(self, hidden: Float[Array, "*batch m"]) -> Float[Array, "*batch words"]:
        return self.head._logits(contract("...m,md->...d", hidden, self.output), self.embedding)

    def __call__(self, ids: Int[Array, " n"], present: Bool[Array, " n"] | None = None) -> Float[Array, "n words"]:
        """The logits of the word after each token, (n, words), float32 at least.

        **Arguments:**

        - `ids`, `present`: As in `states`.
        """
        return self._logits(self.states(ids, present).hidden)

    def next_token(self, ids: Int[Array, " n"], temperature: RealScalarLike = 1.0) -> Float[Array, " words"]:
        """The distribution of the word after `ids`, (words,).

        **Arguments:**

        - `ids`: The ids of the words, (n,).
        - `temperature`: The divisor of the logits, > 0.

        Source: *Transformers, part 2*, slide 28.
        """
        temperature = check_scalar(temperature, "temperature", above=0)
        logits = self._logits(self.states(ids).hidden[-1])
        return jax.nn.softmax(logits / temperature.astype(logits.dtype))

    def extend(
        self, ids: Int[Array, " n"], steps: int, *, key: PRNGKeyArray | None = None, temperature: RealScalarLike = 1.0
    ) -> Int[Array, " total"]:
        """Extend `ids` by `steps` words, each drawn from the distribution given the words before it.

        The state is carried along, so the cost of a word does not depend on the length of the text.

        **Arguments:**

        - `ids`, `steps`, `key`, `temperature`: As in `LanguageModel.extend`.

        **Returns:**

        The ids of all words, (n + steps,).

        Source: *Transformers, part 2*, slide 28.
        """
        ids = jnp.asarray(check_ids(ids, self.num_words))
        steps = check_integer(steps, "steps", least=0, remedy="ask for some")
        key = None if key is None else check_key(key)
        return _extend(self, ids, steps, key, check_scalar(temperature, "temperature", jnp.float32, above=0))


@eqx.filter_jit
def _extend(model: LSTMLanguageModel, ids: Array, steps: int, key: PRNGKeyArray | None, temperature: Array) -> Array:
    read = model._states(ids, jnp.ones(ids.shape, bool))

    def step(state: tuple[Array, Array], place: Array) -> tuple[tuple[Array, Array], Array]:
        logits = model._logits(state[0])
        if key is None:
            word = jnp.argmax(logits)
        else:
            # The key of a word depends on its position in the text alone, as in the Transformer.
            word = jr.categorical(jr.fold_in(key, place), logits / temperature.astype(logits.dtype))
        gate_inputs = contract("gd,d->g", model.cell.weight_ih, model.embedding[word])
        return model._step(state, gate_inputs, jnp.asarray(True))[0], word.astype(ids.dtype)

    last = read.hidden[-1], read.cell[-1]
    return jnp.concatenate([ids, lax.scan(step, last, ids.shape[0] + jnp.arange(steps))[1]])
