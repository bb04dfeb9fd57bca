"""Edits, which replace values of a network at some layers, tokens, heads, neurons or dimensions.

An edit acts at one of five places of a layer: the stream that enters the layer, the outputs of its heads, its attention
update, the activations of its neurons, and its feed-forward update. Layers are scanned, so an edit has an entry for
each layer; the entry states where the edit acts. One compiled program serves all layers and values.

Invariants: where an edit does not act, every number is unchanged; tokens are counted from the first word of a text.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from ..._base.checks import check_integer, refusal


PLACES = ("stream", "head", "attention", "neuron", "feed_forward")
# The number of axes of the values at one token: (h, k) for heads, (m,) for neurons, and (d,) at the other places.
VECTOR = {"stream": 1, "head": 2, "attention": 1, "neuron": 1, "feed_forward": 1}


class LayerEdit(eqx.Module):
    """An edit of one place, for each layer, or within a scan for one layer.

    An edit of the stream has one more entry than there are layers, for the stream after the last layer.

    **Attributes:**

    - `place`: One of `PLACES`.
    - `where`: True at the tokens where the edit acts, (layers, p); the last entry holds for all further tokens.
    - `units`: True at the heads, neurons or dimensions that are edited, (layers, units); None for all.
    - `value`: The new values, (layers, texts or 1, n or 1, ...); None for a function.
    - `function`: The function that maps the old values to the new values; None for a value.
    """

    place: str = eqx.field(static=True)
    where: Bool[Array, "*layers p"]
    units: Bool[Array, "*layers units"] | None
    value: Float[Array, "..."] | None
    function: Callable[[Any], Any] | None = eqx.field(static=True, default=None)

    def __call__(self, x: Float[Array, "batch n *more"]) -> Float[Array, "batch n *more"]:
        """The values `x` of the place, with the new values where the edit acts."""
        n = x.shape[1]
        at_tokens = self.where[np.minimum(np.arange(n), self.where.shape[-1] - 1)]
        mask = at_tokens.reshape(1, n, *(1,) * (x.ndim - 2))
        if self.units is not None:
            # The axis of heads, neurons or dimensions is the first behind that of tokens.
            mask = mask & self.units.reshape(1, 1, -1, *(1,) * (x.ndim - 3))
        new = x if self.function is None else jnp.asarray(self.function(x))
        new = new if self.value is None else self.value
        if new.ndim != x.ndim or any(size not in (1, wanted) for size, wanted in zip(new.shape, x.shape, strict=True)):
            rule = f"have values of shape {x.shape} at {self.place}, or 1 along an axis"
            raise refusal("edits", rule, f"there the shape is {new.shape}", "pass those of as many texts and tokens")
        return jnp.where(mask, jnp.broadcast_to(new, x.shape).astype(x.dtype), x)

    def at_positions(self, size: int) -> "LayerEdit":
        """The edit of texts of `size` positions that are read in pieces, with an entry for each position.

        **Raises:**

        - `ValueError` if the value is a function, differs between texts, or is missing at an edited position.
        """
        where = self.where[:, np.minimum(np.arange(size), self.where.shape[-1] - 1)]
        value, problem = self.value, None
        if value is None:
            problem = "one is a function of the whole text"
        elif value.shape[1] > 1:
            problem = "the value of one differs between texts"
        elif (known := value.shape[2]) > 1:
            if bool(where[:, known:].any()):
                problem = f"one has values for {known} tokens and no later ones"
            value = jnp.pad(
                value[:, :, :size], ((0, 0), (0, 0), (0, max(0, size - known)), *((0, 0),) * (value.ndim - 3))
            )
        if problem is not None:
            rule = "have edits with one value for all texts and tokens where texts are continued"
            raise refusal("model", rule, problem, "patch single tokens, or pass a number, a vector or a MeanOver")
        return LayerEdit(self.place, where, self.units, value)

    def rows(self, first: Any, count: int) -> "LayerEdit":
        """The edit of `count` positions from `first` on, for one layer of `at_positions`."""
        part = lambda array, axis: lax.dynamic_slice_in_dim(array, first, count, axis)
        value = self.value
        if value is not None and value.shape[1] > 1:
            value = part(value, 1)
        return LayerEdit(self.place, part(self.where, 0), self.units, value)


def apply(edits: tuple[LayerEdit, ...], place: str, x: Any) -> Any:
    """`x` after the edits of a place, in their order."""
    for edit in edits:
        x = edit(x) if edit.place == place else x
    return x


def of_layers(edits: tuple[LayerEdit, ...], layers: slice | int) -> tuple[LayerEdit, ...]:
    """The edits of some layers, whose arrays have the layers as their first axis, or of one layer."""
    return jtu.tree_map(lambda leaf: leaf[layers], edits)


def chosen(value: Any, name: str, count: int | None) -> list[int]:
    """The indices in `value`, each from 0 to `count` - 1; None selects all, and negative ones count from the end."""
    if value is None:
        return list(range(count or 0))
    # A value that is no list is refused by `check_integer` below.
    several = isinstance(value, list | tuple | range) or (isinstance(value, np.ndarray) and value.ndim == 1)
    named = list(value) if several else [value]
    if not named:
        raise refusal(name, "name one at least", "it is empty", "pass None for all")
    if count is None:
        return [check_integer(index, name, least=0, remedy="count from 0") for index in named]
    return [
        check_integer(index, name, least=-count, most=count - 1, remedy=f"there are {count}") % count for index in named
    ]
