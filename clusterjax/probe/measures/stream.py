"""Running a network on a batch and keeping a chosen measurement of each layer, or everything.

`stream` calls the functions of a `Measure` inside the scan over layers, so that the hidden states and the attention of
a layer are measured while they exist and not stored; `trace` is the measure that returns everything.

Invariants: L layers give L + 1 levels and L attentions; memory is that of one layer plus the results of the measure;
one compilation serves all batches of one shape, because the parameters of the network are arguments of the program.
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
# The arguments of a measure of a layer: attention, the words among the tokens, and the allowed pairs of words.
Maps: TypeAlias = Float[Array, "batch heads n n"]
Words: TypeAlias = Bool[Array, "batch n"]
Pairs: TypeAlias = Bool[Array, "batch n n"]


class AbstractToldPairs(AbstractPart):
    """A function of a layer with an additional argument: the pairs of words between which the mask of the layer allows
    attention, (batch, n, n)."""

    @abstractmethod
    def __call__(self, hidden: Array, attention: Maps, mask: Words, allowed: Pairs) -> dict[str, Array]:
        """The statistics of a layer."""


class Measure(AbstractPart):
    """The functions that `stream` evaluates during the forward pass of a network.

    A network of L layers has L + 1 levels of hidden states, before its layers and after each, and L attentions. Hence
    there are two functions, one of a level and one of a layer, whose attention always exists. Both may return any
    PyTree of arrays. They are compiled with the network: passing the same `Measure`, or one with the same functions,
    does not trigger compilation. A function that is an `eqx.Module` may hold arrays, whose values may change.

    **Arguments:**

    - `level`: `level(hidden, mask)`, with `hidden` (batch, n, d) and `mask` (batch, n), True at words; or None.
    - `layer`: `layer(hidden, attention, mask)`, with the `hidden` that enters the layer and its `attention`
        (batch, heads, n, n); or None.

    **Raises:**

    - `ValueError` if `level` is not a function of two arguments, or `layer` not one of three.
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

    - `levels`: The results of `level`, their arrays stacked along a new first axis, (L + 1, ...).
    - `layers`: The results of `layer`, stacked likewise, (L, ...).
    """

    levels: PyTree
    layers: PyTree


class Trace(eqx.Module):
    """The result of `trace`: all hidden states and attentions of a batch.

    **Attributes:**

    - `hidden`: The hidden states before the layers and after each, (batch, layers + 1, n, d); zero at padding.
    - `attention`: The attention of each layer, (batch, layers, heads, n, n). The row of a word sums to 1 over words;
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
    """Run a model on a batch, evaluate a measure at each level and layer, and keep only its results.

    Memory is that of one layer plus the results of the measure; it does not grow with depth x n^2. One compilation
    serves all batches of the same shape.

    **Arguments:**

    - `model`: The model that `load` returned.
    - `token_ids`: (batch, n), integers; or the result of `encode` or of a tokenizer of `transformers`, with its mask.
    - `mask`: (batch, n), true at words and false at padding; None if nothing is padding. Padding may be anywhere: as in
        `generate` of `transformers`, positions count the words of a text from the first one and skip padding.
    - `measure`: A `Measure`.

    **Other arguments:**

    - `token_types`: (batch, n), for ALBERT; None means all 0.

    **Returns:**

    A `Streamed`. Level 0 is the embedding as it enters layer 1 (for ALBERT after the map to the hidden size); the last
    level of T5 is after its last norm, as in `transformers`.

    **Raises:**

    - `ValueError` if the batch is empty or has another shape, a text has no words, or an id is not in the vocabulary.

    **Warns:** if texts exceed the positions of the model and are cut; the warning states their number.
    """
    return Streamed(*_run(model, token_ids, mask, token_types, measure)[0])


def trace(model: Model, token_ids: _Batch, mask: _Batch | None = None, *, token_types: _Batch | None = None) -> Trace:
    """Returns all hidden states and attentions of a batch, in the order of `transformers`.

    Memory grows with depth x n^2; for many or long texts, use `stream`. In an ALBERT whose groups have several layers,
    each of these counts as a layer, as in version 5 of `transformers`.

    **Arguments:**

    - `model`, `token_ids`, `mask`: As in `stream`.

    **Other arguments:**

    - `token_types`: As in `stream`.

    **Returns:**

    A `Trace`.

    **Raises:**

    - `ValueError` in the cases of `stream`.

    ??? cite "Source"

        Lan et al., *ALBERT: a lite BERT* (1909.11942), Section 3.1; Raffel et al., *Exploring the limits of transfer
        learning with a unified text-to-text transformer* (1910.10683), Section 2.1.
    """
    (hidden, attention), words = _run(model, token_ids, mask, token_types, _EVERYTHING, batch_first=True)
    return Trace(hidden, attention, words)


# A module-level constant, so that each `trace` finds the program compiled by the first.
_EVERYTHING = Measure(lambda hidden, mask: hidden, lambda hidden, attention, mask: attention)


def _run(
    model: Model, token_ids: Any, mask: Any, token_types: Any, measure: Measure, batch_first: bool = False
) -> tuple[tuple[Any, Any], Array]:
    # Without this check a plain function would be taken for `level`.
    check_instance(measure, "measure", Measure, "a Measure", "pass Measure(level=...), say")
    batch = check_batch(check_model(model), token_ids, mask, token_types)
    # The network is split so that its arrays are traced; a closure would compile them into the program as constants.
    form, state = nnx.split(model.network)
    return _measure(form, state, batch, measure, batch_first), batch.mask


@eqx.filter_jit
def _measure(form: Any, state: Any, batch: Any, measure: Measure, batch_first: bool) -> tuple[Any, Any]:
    # The network is rebuilt with traced parameters.
    (token_ids, mask, token_types, moved), network = batch, nnx.merge(form, state)
    # None is a PyTree without leaves, so a missing function adds nothing to the scan.
    level = (lambda *_: None) if measure.level is None else partial(call_traced, measure.level, "level", LEVEL)
    layer = (lambda *_: None) if measure.layer is None else partial(call_traced, measure.layer, "layer", LAYER)
    # The allowed pairs are passed only to an `AbstractToldPairs`.
    told = 4 if isinstance(measure.layer, AbstractToldPairs) else 3
    # The scan measures the hidden states that enter each layer: levels 0 to L - 1. Level L is the output of the last.
    last, (levels, layers) = run_layers_measured(
        network,
        mask,
        (token_ids, token_types),
        lambda hidden, weights, allowed: (level(hidden, mask), layer(*(hidden, weights, mask, allowed)[:told])),
        moved,
    )
    with_last = lambda earlier, last_level: jnp.concatenate([earlier, jnp.asarray(last_level)[None]])
    levels = jtu.tree_map(with_last, levels, level(last, mask))
    # The scan stacks layers along the first axis; `trace` moves the batch to the front, as transformers does.
    if batch_first:
        levels, layers = jtu.tree_map(lambda leaf: jnp.moveaxis(leaf, 0, 1), (levels, layers))
    return levels, layers
