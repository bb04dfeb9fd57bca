"""Activation patching: values of a network are replaced by zeros, means, values of another text, or a function.

`activations` returns the values of a network at a place, `patch` makes a network with other values at a place, and
`causal_trace` restores the stream of a text, one level and token at a time, in a run on a corrupted text.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from flax import nnx
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from ..._base.checks import (
    check_callable,
    check_choice,
    check_concrete,
    check_fits,
    check_host_array,
    check_integer,
    check_key,
    check_number,
    check_sequence,
    check_text,
    refusal,
    shown,
)
from ..networks.batch import Encoded, check_batch, encode
from ..networks.block import blank
from ..networks.edits import PLACES, VECTOR, LayerEdit, apply, chosen, of_layers
from ..networks.load import Model, check_model, replace_network
from ..networks.network import Network, run_layers_measured, scan_layers
from .survey import dtype_of, encoded
from .table import tabled


_Batch = ArrayLike | Sequence[Any] | Mapping[str, Any]
_TOKENS = 32  # the number of tokens for which an edit has entries is a multiple of this number


class MeanOver(NamedTuple):
    """The mean of a place over all words of given texts, as the value of an `Edit`.

    **Arguments:**

    - `texts`: The texts, or their `Encoded` form.
    """

    texts: Sequence[str] | Encoded


class CopyOf(NamedTuple):
    """The values at the same place, layer and token in other texts, as the value of an `Edit`.

    **Arguments:**

    - `texts`: One text, whose values are copied into every text, or one text for each text that the network will read,
        with as many tokens.
    """

    texts: Sequence[str] | Encoded


class Edit(NamedTuple):
    """The replacement of the values at a place of a network by other values.

    **Arguments:**

    - `place`: "embedding"; "stream", the stream that enters a layer (for layer 0 the embedding, and for the number of
        layers the stream after the last layer); "head", the output of a head before its map into the stream;
        "attention" or "feed_forward", the update of the stream by this part; "neuron", the activation of a neuron.
    - `value`: A number; an array with the axes (texts, n, ...) of the place, where leading axes may be absent; a
        function that maps the values (texts, n, ...) to an array of the same shape; a `MeanOver` or a `CopyOf`.
    - `layer`: The layers, counted from 0, or from the end; None selects all.
    - `index`: The heads, the neurons, or at the other places the dimensions; None selects all.
    - `token`: The tokens of every text, counted from its first word; None selects all.
    """

    place: str
    value: ArrayLike | Callable[[Any], Any] | MeanOver | CopyOf = 0.0
    layer: int | Sequence[int] | None = None
    index: int | Sequence[int] | None = None
    token: int | Sequence[int] | None = None


def patch(model: Model, edits: Edit | Sequence[Edit]) -> Model:
    """Replace values at some places of a network.

    !!! example

        ```python
        >>> from clusterjax import probe
        >>> model = probe.load("language-model")
        >>> mean = probe.MeanOver(["the river runs", "a king"])
        >>> patched = probe.patch(model, probe.Edit("head", mean, layer=1, index=2))
        >>> probe.trace(patched, [[5, 80, 300]]).hidden.shape
        (1, 5, 3, 128)
        ```

    **Arguments:**

    - `model`: The model that `load` returned; it is not modified.
    - `edits`: An `Edit`, or several, which act one after another.

    **Returns:**

    A `Model`. `residual_stream` has the contribution of the edits as a separate part. `generate` accepts edits with one
    value for all texts. `energy_budget`, the bridge to particles and the tools of `transformer` refuse edits.

    **Raises:**

    - `ValueError` if a place, layer, index or token does not exist, or a value does not have its shape.

    ??? cite "Source"

        Vig et al., *Causal mediation analysis for interpreting neural NLP* (2004.12265), Section 3; `without` is the
        special case in which an attention or a feed-forward is replaced by zero.
    """
    network: Any = nnx.clone(check_model(model).network)
    several = [edits] if isinstance(edits, Edit) else check_sequence(edits, "edits", Edit, "edits")
    stored = tuple(_stored(model, edit) for edit in several)
    network.edits = nnx.data((*network.edits, *stored))
    return replace_network(model, network, f"{model.name} patched at {', '.join(edit.place for edit in several)}")


def activations(
    model: Model, token_ids: _Batch, mask: _Batch | None = None, *, place: str
) -> Float[Array, "batch layers n *more"]:
    """The values at a place of a network in all layers, after the replacements of `patch`, if there are any.

    **Arguments:**

    - `model`: The model that `load` returned.
    - `token_ids`, `mask`: As in `trace`; padding is behind the words.

    **Other arguments:**

    - `place`: As in `Edit`.

    **Returns:**

    (batch, layers, n, ...): "head" (heads, k), "neuron" (neurons,), and otherwise (d,); "stream" has layers + 1 levels.
    Values at padding have no meaning.

    **Raises:**

    - `ValueError` if there is no such place, padding precedes a word, and in the cases of `trace`.
    """
    check_choice(place, "place", PLACES)
    check_concrete(token_ids, "token_ids")
    check_concrete(mask, "mask")
    batch = check_batch(check_model(model), token_ids, mask, None)
    if batch.moved[0] is not None:
        raise refusal("mask", "have padding behind the words", "it precedes some", "pad on the right")
    form, state = nnx.split(model.network)
    return jnp.moveaxis(stands_at(form, state, batch.token_ids, batch.mask, place), 0, 1)


@eqx.filter_jit
def stands_at(form: Any, state: Any, ids: Array, mask: Array, place: str) -> Array:
    """The values at a place, (layers, batch, n, ...), for texts whose words precede their padding."""
    network = nnx.merge(form, state)
    start, step = at_place(network, ids, mask, place)
    layers = network.num_layers
    layer_edits = of_layers(network.edits, slice(layers))
    last, values = scan_layers(network, step, start, mask.shape[1], layer_edits, edited=True)
    if place != "stream":
        return values
    last = apply(of_layers(tuple(edit for edit in network.edits if edit.place == "stream"), layers), "stream", last)
    return jnp.concatenate([values, blank(last, mask)[None]])


def at_place(network: Network, ids: Array, mask: Array, place: str) -> tuple[Array, Callable[..., tuple[Array, Array]]]:
    """The embedding, and the step of `scan_layers` that returns the stream after a layer and the values at a place."""
    context = network.shared_context(mask.shape[1], jnp.sum(mask, axis=1))

    def step(block: Any, hidden: Array, given: Any) -> tuple[Array, Array]:
        gains, edits = given
        hidden = blank(apply(edits, "stream", blank(hidden, mask)), mask)
        entered = block.enter(hidden)
        attended, _ = block.attend(block.read(0, entered), mask, context)
        middle = block.write(0, entered + block.added_by_heads(attended, gains, edits))
        after = block.after_feed_forward(entered, middle, gains, edits)
        if place == "stream":
            return after, hidden
        if place == "head":
            return after, apply(edits, place, attended)
        if place == "attention":
            return after, block.added_by_heads(attended, edits=edits)
        read = block.read(1, middle, entered)
        if place == "neuron":
            return after, apply(edits, place, block.activations(read))
        return after, block.added(read, gains, edits)

    return blank(network.embed(ids), mask), step


def _stored(model: Model, edit: Edit) -> LayerEdit:
    """The edit in the form in which a network stores it, with an entry for each layer."""
    check_choice(edit.place, "place", ("embedding", *PLACES))
    if edit.place == "embedding":
        if edit.layer is not None:
            raise refusal("layer", "be None for the embedding", f"it is {shown(edit.layer)}", "leave it out")
        edit = edit._replace(place="stream", layer=0)
    network, place, dtype = model.network, edit.place, dtype_of(model)
    levels = network.num_layers + (place == "stream")
    layers = chosen(edit.layer, "layer", levels)
    tokens = None if edit.token is None else chosen(edit.token, "token", None)
    # The last entry holds for all further tokens; the length is rounded up, so that few programs are compiled.
    where = np.zeros((levels, 1 if tokens is None else -(-(max(tokens) + 2) // _TOKENS) * _TOKENS), bool)
    where[np.ix_(layers, [0] if tokens is None else tokens)] = True
    units = None
    if edit.index is not None:
        sizes = network.sizes
        count = {"head": network.num_heads, "neuron": sizes.intermediate_size}.get(place, sizes.hidden_size)
        units = np.zeros((levels, count), bool)
        units[:, chosen(edit.index, "index", count)] = True
    as_array = lambda array: None if array is None else jnp.asarray(array)
    if callable(edit.value):
        function = check_callable(edit.value, "value", "a function of what stands there", takes=1)
        return LayerEdit(place, jnp.asarray(where), as_array(units), None, function)
    if isinstance(edit.value, MeanOver | CopyOf):
        values = _read(model, edit.value, place)
    else:
        values = np.asarray(check_host_array(edit.value, "value", remedy="pass a number, or an array of the place"))
        # Leading axes may be absent: those of layers, texts and tokens.
        most = 2 + VECTOR[place]
        if values.ndim > most:
            rule = f"have at most the {most} axes of {place!r}, (texts, n, ...)"
            raise refusal("value", rule, f"its shape is {values.shape}", "name the layers by edits of their own")
        values = values.reshape((1,) * (1 + most - values.ndim) + values.shape)
        values = np.broadcast_to(values, (levels, *values.shape[1:]))
    return LayerEdit(place, jnp.asarray(where), as_array(units), jnp.asarray(values, dtype))


def _read(model: Model, source: MeanOver | CopyOf, place: str) -> np.ndarray:
    """The values of other texts at a place, (layers, texts or 1, n or 1, ...)."""
    data = encoded(model, source.texts)
    values = np.moveaxis(np.asarray(activations(model, *data, place=place), np.float64), 1, 0)
    if isinstance(source, CopyOf):
        return values
    words = values[:, data.mask]
    return words.mean(axis=1)[:, None, None]


@tabled("level token", restored="level token", clean="", corrupted="")
class CausalTrace(NamedTuple):
    """The result of `causal_trace`: log probabilities of the answer at the last token, in nats.

    **Attributes:**

    - `restored`: The log probability in the corrupted run with the stream of one level and one token restored,
        (layers + 1, n).
    - `clean`, `corrupted`: The log probabilities for the text, and for the text with corrupted tokens.
    """

    restored: np.ndarray
    clean: float
    corrupted: float

    @property
    def effect(self) -> np.ndarray:
        """The fraction of the loss of log probability that restoring each place reverses, (layers + 1, n)."""
        return (self.restored - self.corrupted) / (self.clean - self.corrupted)


def causal_trace(
    model: Model,
    text: str | Encoded,
    answer: int,
    *,
    tokens: Sequence[int] | None,
    key: PRNGKeyArray,
    spread: float | None = None,
    draws: int = 8,
) -> CausalTrace:
    """Find the levels and tokens at which a causal network stores what it knows of some tokens: noise corrupts the
    embedding of these tokens, and the stream of the text is restored at one level and one token at a time.

    One compiled program, which is mapped over levels and tokens, computes all results.

    **Arguments:**

    - `model`: A causal model with a head.
    - `text`: A text, or the `Encoded` form of one text.
    - `answer`: The id of the word whose log probability at the last token is measured.

    **Other arguments:**

    - `tokens`: The corrupted tokens, counted from the first word, or from the end if negative; None selects all.
    - `key`: PRNG key of the noise.
    - `spread`: The standard deviation of the noise; None is three times that of the word embeddings.
    - `draws`: The number of draws of the noise, over which log probabilities are averaged.

    **Returns:**

    A `CausalTrace`.

    **Raises:**

    - `ValueError` if the model has no head, is not causal, or a token or the answer does not exist.

    ??? cite "Source"

        Meng et al., *Locating and editing factual associations in GPT* (2202.05262), Section 2.1.
    """
    network = check_model(model).network
    if not isinstance(text, str | Encoded):
        raise refusal("text", "be one text", f"it is {shown(text)}", "pass a string, or the Encoded of one")
    for name, value in (("answer", answer), ("tokens", tokens), ("key", key), ("spread", spread), ("draws", draws)):
        check_concrete(value, name)
    answer = check_integer(answer, "answer", least=0, most=network.sizes.vocab_size - 1)
    data = encode(model, [check_text(text, "text")]) if isinstance(text, str) else text
    if len(data.mask) != 1:
        raise refusal("text", "be one text", f"there are {len(data.mask)}", "pass one")
    if (n := int(data.mask.sum())) < 2:
        raise refusal("text", "have at least two tokens", f"it has {n}", "pass a longer text")
    data = encoded(model, data)
    corrupt = chosen(tokens, "tokens", n)
    check_key(key)
    draws = check_integer(draws, "draws", remedy="pass 8, say")
    words, _ = network.word_factors()
    spread = 3 * float(words.std()) if spread is None else check_number(spread, "spread", above=0)
    check_fits(np.asarray(spread), "spread", dtype_of(model))
    ids = data.token_ids[:, :n]
    levels = activations(model, ids, place="stream")[0]
    start = np.asarray(levels[0])
    noise = np.zeros((draws, n, start.shape[-1]))
    noise[:, corrupt] = spread * np.asarray(jr.normal(key, (draws, len(corrupt), start.shape[-1]), jnp.float32))
    corrupted = jnp.asarray(start[None] + noise, levels.dtype)
    form, state = nnx.split(network)
    arguments = (form, state, jnp.asarray(ids, jnp.int32), jnp.asarray(answer))
    clean, spoiled, restored = _traced(*arguments, levels, corrupted)
    return CausalTrace(np.asarray(restored, np.float64), float(clean), float(spoiled))


@eqx.filter_jit
def _traced(form: Any, state: Any, ids: Array, answer: Array, levels: Array, corrupted: Array) -> Any:
    count, n = levels.shape[:2]

    def log_prob(where: Array, value: Array) -> Array:
        """The mean log probability of the answer if `value` replaces the stream at the places where `where` is True."""
        # Flax does not allow changes inside a map to a network that was built outside, so it is rebuilt here.
        network: Any = nnx.merge(form, state)
        network.edits = nnx.data((LayerEdit("stream", where, None, value),))
        texts = jnp.broadcast_to(ids, (value.shape[1], n))
        last, _ = run_layers_measured(network, jnp.ones(texts.shape, bool), (texts,), None)
        scores = network.logits(last[:, -1:])[:, 0]
        return jnp.mean(jax.nn.log_softmax(scores, axis=-1)[:, answer])

    draws = len(corrupted)
    # The new values are the corrupted embedding at level 0, and the clean stream at all later levels.
    value = jnp.broadcast_to(levels[:, None], (count, draws, *levels.shape[1:])).at[0].set(corrupted)
    at_start = jnp.zeros((count, n), bool).at[0].set(True)
    nothing = jnp.zeros((count, n), bool)

    def restored(place: Array) -> Array:
        level, token = place
        where = at_start.at[level, token].set(True)
        # At level 0 the clean embedding of the token replaces the corrupted one.
        first = jnp.where((level == 0) & (jnp.arange(n) == token)[None, :, None], levels[0][None], value[0])
        return log_prob(where, value.at[0].set(first))

    places = jnp.stack(jnp.meshgrid(jnp.arange(count), jnp.arange(n), indexing="ij"), axis=-1).reshape(-1, 2)
    log_probs = jax.lax.map(restored, places, batch_size=16)
    return log_prob(nothing, value), log_prob(at_start, value), log_probs.reshape(count, n)
