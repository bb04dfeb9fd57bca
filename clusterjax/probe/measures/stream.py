"""Runs a network on a batch and keeps what is asked for: everything, or what a measure makes of each layer.

`stream` calls the functions of a `Measure` inside the scan over layers, so that hidden states and attention of a layer
are measured while they exist and not stored; `trace` is the measure that returns everything.

Invariants: L layers give L + 1 levels and L attentions; memory is that of one layer and of what the measure returns;
one compilation serves all batches of one shape, because the network's parameters are arguments of the program.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from flax import nnx
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree

from ..._abstract import AbstractPart
from ..._check import call_traced, check_callable, check_instance
from ..networks.batch import check_batch
from ..networks.layer_scan import run_layers_measured
from ..networks.load import Model, check_model


LEVEL, LAYER = "a function of hidden and mask", "a function of hidden, attention and mask"

_Batch = ArrayLike | Sequence[Any] | Mapping[str, Any]
# What a measure of a layer is given: attention, which tokens are words, which pairs of words the layer allows.
Maps: TypeAlias = Float[Array, "batch heads n n"]
Words: TypeAlias = Bool[Array, "batch n"]
Pairs: TypeAlias = Bool[Array, "batch n n"]


class AbstractToldPairs(AbstractPart):
    """A function of a layer that is given one argument more: between which words the mask of the layer allows
    attention, (batch, n, n)."""

    @abstractmethod
    def __call__(self, hidden: Array, attention: Maps, mask: Words, allowed: Pairs) -> dict[str, Array]:
        """The statistics of a layer."""


class Measure(AbstractPart):
    """What `stream` computes on its way through a network.

    A network of L layers has L + 1 levels of hidden states, before its layers and after each, and L attentions. So
    there are two functions: what to make of a level, and what to make of a layer, whose attention is never missing.
    Both may return any PyTree of arrays. They are compiled with the network: pass the same `Measure` again, or one with
    the same functions, and nothing compiles anew. A function that is an `eqx.Module` may hold arrays, which may change.

    **Arguments:**

    - `level`: `level(hidden, mask)`, with `hidden` (batch, n, d) and `mask` (batch, n), True at words; None for none.
    - `layer`: `layer(hidden, attention, mask)`, with the `hidden` that enters the layer and its `attention`
        (batch, heads, n, n); None for none.

    **Raises:**

    - `ValueError` if one of them is no function of two, or of three arguments.
    """

    level: Callable[..., Any] | None = None
    layer: Callable[..., Any] | None = None

    def __check_init__(self):
        if self.level is not None:
            check_callable(self.level, "level", LEVEL, takes=2)
        if self.layer is not None:
            takes = 4 if isinstance(self.layer, AbstractToldPairs) else 3
            check_callable(self.layer, "layer", LAYER, takes=takes)


class Streamed(eqx.Module):
    """The result of `stream`.

    **Attributes:**

    - `levels`: What `level` returned, its arrays stacked along a new first axis, (L + 1, ...).
    - `layers`: What `layer` returned, likewise, (L, ...).
    """

    levels: PyTree
    layers: PyTree


class Trace(eqx.Module):
    """Everything that a network does to a batch, as `trace` returns it.

    **Attributes:**

    - `hidden`: The hidden states before the layers and after each, (batch, layers + 1, n, d); zero at padding.
    - `attention`: The attention of each layer, (batch, layers, heads, n, n). Each row of a word sums to 1, over words;
        the rows and columns of padding are zero.
    - `mask`: True at words, (batch, n).
    """

    hidden: Float[Array, "batch levels n d"]
    attention: Float[Array, "batch layers heads n n"]
    mask: Bool[Array, "batch n"]


def stream(
    model: Model,
    token_ids: _Batch,
    mask: _Batch | None,
    measure: Measure,
    *,
    token_types: _Batch | None = None,
) -> Streamed:
    """Runs a model on a batch and measures each level and each layer where it is, keeping nothing else.

    The memory is that of one layer and of what the measure returns; it does not grow with depth x n^2. One compilation
    serves all batches of the same shape.

    **Arguments:**

    - `model`: The model that `load` returned.
    - `token_ids`: (batch, n), integers; or all that `encode`, or a tokenizer of `transformers`, returns, with its mask.
    - `mask`: (batch, n), true at words and false at padding; None if nothing is padding. Padding may stand anywhere:
        positions count from the first word of a text, and padding is none, as in `generate` of `transformers`.
    - `measure`: A `Measure`.

    **Other arguments:**

    - `token_types`: (batch, n), for ALBERT; None is all 0.

    **Returns:**

    A `Streamed`. Level 0 is the embedding as it enters layer 1 (for ALBERT after the map to the hidden size); the last
    level of T5 is after its last norm, as in `transformers`.

    **Raises:**

    - `ValueError` if the batch is empty or of another shape, a text has no words, or an id is not of the vocabulary.

    **Warns:** if texts are longer than the positions of the model: they are cut, and counted.
    """
    return Streamed(*_run(model, token_ids, mask, token_types, measure)[0])


def trace(model: Model, token_ids: _Batch, mask: _Batch | None = None, *, token_types: _Batch | None = None) -> Trace:
    """All hidden states and attentions of a batch, in the order of `transformers`.

    Memory grows with depth x n^2; for many texts, or long ones, `stream` measures as it goes. An ALBERT whose groups
    have several layers counts each of them, as versions 5 of `transformers` do.

    **Arguments:**

    - `model`, `token_ids`, `mask`: As in `stream`.

    **Other arguments:**

    - `token_types`: As in `stream`.

    **Returns:**

    A `Trace`.

    **Raises:**

    - `ValueError` as in `stream`.

    ??? cite "Source"

        Lan et al., *ALBERT: a lite BERT* (1909.11942), Section 3.1; Raffel et al., *Exploring the limits of transfer
        learning with a unified text-to-text transformer* (1910.10683), Section 2.1.
    """
    (hidden, attention), words = _run(model, token_ids, mask, token_types, _EVERYTHING, batch_first=True)
    return Trace(hidden, attention, words)


# At module level, so that each `trace` finds the program compiled by the first.
_EVERYTHING = Measure(lambda hidden, mask: hidden, lambda hidden, attention, mask: attention)


def _run(
    model: Model, token_ids: Any, mask: Any, token_types: Any, measure: Measure, batch_first: bool = False
) -> tuple[tuple[Any, Any], Array]:
    # A plain function would be taken for `level` by mistake, and say nothing of layers.
    check_instance(measure, "measure", Measure, "a Measure", "pass Measure(level=...), say")
    batch = check_batch(check_model(model), token_ids, mask, token_types)
    # Split so that the arrays are traced; a network closed over would be compiled into the program as constants.
    form, state = nnx.split(model.network)
    return _measure(form, state, batch, measure, batch_first), batch.mask


@eqx.filter_jit
def _measure(form: Any, state: Any, batch: Any, measure: Measure, batch_first: bool) -> tuple[Any, Any]:
    # The network again, now with traced parameters.
    (token_ids, mask, token_types, moved), network = batch, nnx.merge(form, state)
    # None is a PyTree without leaves, so that nothing is stacked for it.
    level = (lambda *_: None) if measure.level is None else partial(call_traced, measure.level, "level", LEVEL)
    layer = (lambda *_: None) if measure.layer is None else partial(call_traced, measure.layer, "layer", LAYER)
    # What the mask of the layer allows is for those that ask for it.
    told = 4 if isinstance(measure.layer, AbstractToldPairs) else 3
    # The measure sees the hidden states that enter a layer: levels 0 to L - 1. Level L is what comes out of the last.
    last, (levels, layers) = run_layers_measured(
        network,
        mask,
        (token_ids, token_types),
        lambda hidden, weights, allowed: (level(hidden, mask), layer(*(hidden, weights, mask, allowed)[:told])),
        moved,
    )
    with_last = lambda earlier, last_level: jnp.concatenate([earlier, jnp.asarray(last_level)[None]])
    levels = jtu.tree_map(with_last, levels, level(last, mask))
    # The scan stacks layers along the first axis; `trace` gives the batch first, as transformers does.
    if batch_first:
        levels, layers = jtu.tree_map(lambda leaf: jnp.moveaxis(leaf, 0, 1), (levels, layers))
    return levels, layers
