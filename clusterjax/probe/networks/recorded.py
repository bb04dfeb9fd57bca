"""Hidden states and attention that another program recorded, in a form that the measures of `probe` accept.

A measure reads a network level by level and layer by layer; here the levels and layers are given. Words are moved to
the front of each text once, as in a network, and padding becomes zero.

Invariant: a measure of a recorded trace equals the measure of the network that made the trace.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Int

from ..._base.checks import (
    as_numbers,
    check_array,
    check_concrete,
    check_flag,
    check_host_array,
    check_instance,
    check_integer,
    check_number,
    check_path,
    check_sequence,
    check_text,
    refusal,
)
from ..._base.padding import arranged, words_first
from ..._base.types import AbstractPart
from ..._files.arrays import read_arrays
from ..._files.json import read_regular
from .load import Model, check_model
from .network import HeadMatrices
from .token_ids import check_ids, check_mask


@runtime_checkable
class HasArray(Protocol):
    """A tensor of another library that NumPy reads, such as one of PyTorch."""

    def __array__(self) -> Any:
        """The tensor as an array."""


_ROWS = 1e-3  # how far from 1 the weights of a word may sum in half precision


@dataclasses.dataclass(frozen=True, eq=False)
class Recorded:
    """The hidden states and the attention of texts, made by `from_arrays`; measures accept them in place of a model.

    **Attributes:**

    - `hidden`: (texts, layers + 1, n, d), zero at padding.
    - `attention`: (texts, layers, heads, n, n), zero at padding; None if it was not recorded.
    - `mask`: True at words, which precede padding, (texts, n).
    - `token_ids`: The ids of the tokens, (texts, n); None if they were not recorded.
    - `causal`: True if no token attends to a later one.
    - `windows`: The window of each layer; None for a layer without one.
    - `name`: The name in messages.
    - `weights`: The maps of the heads; None if they were not recorded.
    """

    hidden: np.ndarray = dataclasses.field(repr=False)
    attention: np.ndarray | None = dataclasses.field(repr=False)
    mask: np.ndarray = dataclasses.field(repr=False)
    token_ids: np.ndarray | None = dataclasses.field(repr=False)
    causal: bool
    windows: tuple[int | None, ...]
    name: str
    weights: HeadMatrices | None = dataclasses.field(default=None, repr=False)

    @property
    def num_layers(self) -> int:
        """The number of layers."""
        return self.hidden.shape[1] - 1

    @property
    def num_heads(self) -> int:
        """The number of heads of each layer.

        **Raises:**

        - `ValueError` if no attention was recorded.
        """
        return self.maps.shape[2]

    @property
    def maps(self) -> np.ndarray:
        """The attention of all layers, (texts, layers, heads, n, n).

        **Raises:**

        - `ValueError` if no attention was recorded.
        """
        if self.attention is None:
            rule, problem = "have attention for this measure", f"{self.name!r} has hidden states alone"
            raise refusal("model", rule, problem, "pass attention to from_arrays as well")
        return self.attention

    @property
    def matrices(self) -> HeadMatrices:
        """The maps of the heads.

        **Raises:**

        - `ValueError` if no weights were recorded.
        """
        if self.weights is None:
            rule, problem = "have the weights of its heads for this measure", f"{self.name!r} has states alone"
            raise refusal("model", rule, problem, "pass weights to from_arrays as well")
        return self.weights

    @property
    def tokenizer(self) -> None:
        """None, because arrays have no tokenizer."""
        return None

    def allowed(self, n: int) -> np.ndarray:
        """The pairs of tokens between which the mask of each layer allows attention, (layers, n, n)."""
        # The words precede padding, so that their places are those of the network.
        apart = np.arange(n)[:, None] - np.arange(n)
        behind = apart >= 0 if self.causal else np.ones((n, n), bool)
        rules = [behind if width is None else behind & (abs(apart) < width) for width in self.windows]
        return np.asarray(rules, bool).reshape(-1, n, n)

    def measured(self, rows: Int[np.ndarray, " rows"], width: int, measure: AbstractPart) -> tuple[Any, Any]:
        """The results of both functions of a `Measure` for the texts `rows`, cut to `width` tokens, stacked by level
        and by layer."""
        hidden, mask = jnp.asarray(self.hidden[rows, :, :width]), jnp.asarray(self.mask[rows, :width])
        attention = (
            None if getattr(measure, "layer", None) is None else jnp.asarray(self.maps[rows, :, :, :width, :width])
        )
        rules = jnp.asarray(self.allowed(width))
        parts: Any = measure
        return _measured(hidden, attention, mask, rules, parts.level, parts.layer, parts.arity)


# One level and one layer at a time: statistics of pairs take n^2 numbers for each.
@eqx.filter_jit
def _measured(
    hidden: Float[Array, "texts levels n d"], attention: Array | None, mask: Array, rules: Array,
    level: Callable[..., Any] | None, layer: Callable[..., Any] | None, arity: int,
) -> tuple[Any, Any]:  # fmt: skip
    by_level = jnp.moveaxis(hidden, 1, 0)
    levels = None if level is None else lax.map(lambda x: level(x, mask), by_level)
    if layer is None or attention is None:
        return levels, None
    words = mask[:, :, None] & mask[:, None, :]
    of_layer = lambda inputs: layer(*(*inputs[:2], mask, words & inputs[2][None])[:arity])
    return levels, lax.map(of_layer, (by_level[:-1], jnp.moveaxis(attention, 1, 0), rules))


def from_arrays(
    hidden: ArrayLike | HasArray | str | os.PathLike[str],
    attention: ArrayLike | HasArray | None = None,
    mask: ArrayLike | HasArray | None = None,
    *,
    token_ids: ArrayLike | HasArray | None = None,
    causal: bool | None = None,
    weights: Mapping[str, ArrayLike | HasArray] | HeadMatrices | None = None,
    window: int | Sequence[int | None] | None = None,
    name: str = "arrays",
) -> Recorded:
    """Hidden states and attention that another program recorded, and the weights of its heads, for the measures.

    `similarity_histograms`, `first_token`, `attention_sinks`, `position_heads`, `head_correlations` and `survey` take
    the result in place of a model, without texts. With `weights` so do `value_spectra`, `value_directions`,
    `head_signs`, `head_matrices`, `place`, `particle_field` and `bridge`. Measures that run layers again, such as
    `energy_budget`, `patch` and the ablations, need the network itself.

    !!! example

        ```python
        >>> from clusterjax import probe
        >>> trace = probe.trace(probe.load(), [[2, 40, 41, 3], [2, 50, 51, 3]])
        >>> recorded = probe.from_arrays(trace.hidden, trace.attention)
        >>> probe.first_token(recorded).cosine.mean.shape
        (13,)
        ```

    **Arguments:**

    - `hidden`: The hidden states before the layers and after each, (texts, layers + 1, n, d), as an array of NumPy, jax
        or PyTorch; or the path of a safetensors file with arrays `hidden` and, if there are any, `attention`, `mask`
        and `token_ids`.
    - `attention`: The attention of each layer, (texts, layers, heads, n, n); the rows of words sum to 1.
    - `mask`: (texts, n), true at words; None if nothing is padding. Padding may be anywhere and may hold anything.

    **Other arguments:**

    - `token_ids`: (texts, n); only measures that leave ids out or look for separators need them.
    - `causal`: True if no token attends to a later one, which determines the uniform attention with which measures
        compare. None takes True if no weight of the attention is above the diagonal.
    - `weights`: The maps of the heads by name, without biases; tokens are rows, so that the query of token i is x_i @
        query[layer, head]. "query", "key" and "value" are (layers, heads, d, k) and "output" is (layers, heads, k, d);
        keys and values that heads share may have fewer heads. Optional are "scale", the factor of the scores, by
        default 1/√k; "norm", (layers, d), the scale of the norm before each attention, if norms do not act on the
        residual stream; "last_norm", (d,), the scale of the norm whose output is the last level; and "order",
        (layers,), the index of the maps of each layer, if layers share maps. `head_matrices` returns all of these.
    - `window`: w, if a token attends only to tokens at distances less than w, or one for each layer, None for a layer
        without a window. It is `sliding_window` of Mistral, Gemma and Qwen, and of ModernBERT half of
        `local_attention`, rounded down, plus 1.
    - `name`: The name in messages.

    **Returns:**

    A `Recorded`.

    **Raises:**

    - `ValueError` if shapes do not fit together, words have numbers that are not finite or attention that does not sum
        to 1 or is beyond the window, `weights` lacks a map or has an unknown one, or the file cannot be read.

    ??? cite "Source"

        Windows: Jiang et al., *Mistral 7B* (2310.06825), Section 2.
    """
    if isinstance(hidden, str | os.PathLike):
        path = Path(check_path(hidden, "hidden"))
        try:
            arrays = read_arrays(read_regular(path)).arrays
        except (ValueError, OSError) as error:
            problem = f"{str(path)!r} is none ({error})"
            raise refusal("hidden", "be a whole safetensors file", problem, "write it anew") from error
        unknown = sorted(set(arrays) - {"hidden", "attention", "mask", "token_ids"})
        if "hidden" not in arrays or unknown:
            problem = f"{str(path)!r} has {', '.join(sorted(arrays)) or 'none'}"
            raise refusal("hidden", "be a file of hidden, attention, mask and token_ids", problem, "name them so")
        if attention is not None or mask is not None or token_ids is not None:
            raise refusal("attention", "be None beside a file, which has all arrays", "it is given", "leave it out")
        parts: Any = [arrays.get(part) for part in ("hidden", "attention", "mask", "token_ids")]
        hidden, attention, mask, token_ids = parts
    arguments = {"hidden": hidden, "attention": attention, "mask": mask, "token_ids": token_ids}
    arguments |= {"weights": weights, "causal": causal, "window": window, "name": name}
    for part, value in arguments.items():
        check_concrete(value, part)
    states = _floats(hidden, "hidden", ("texts", "levels", "n", "d"))
    texts, levels, n, _ = states.shape
    words = np.asarray(check_mask(_plain(mask), (texts, n), "texts and tokens"))
    maps = None if attention is None else _floats(attention, "attention", ("texts", "layers", "heads", "n", "n"))
    if maps is not None and maps.shape != (texts, levels - 1, maps.shape[2], n, n):
        rule = f"be of shape {(texts, levels - 1, 'heads', n, n)}, one layer less than there are levels"
        raise refusal("attention", rule, f"its shape is {maps.shape}", "pass those of the same texts")
    ids = None if token_ids is None else np.asarray(check_ids(_plain(token_ids), "token_ids"))
    if ids is not None and ids.shape != (texts, n):
        raise refusal(
            "token_ids", f"be of shape {(texts, n)}", f"their shape is {ids.shape}", "pass one for each token"
        )
    if not words.any(axis=1).all():
        empty = int(np.flatnonzero(~words.any(axis=1))[0])
        raise refusal("mask", "leave each text a word", f"text {empty} has none", "leave it out")
    order, _ = words_first(words)
    if order is not None:
        reordered = lambda x, *axes: np.stack([np.asarray(arranged(x[k], order[k], *axes)) for k in range(texts)])
        states, words = reordered(states, 1), np.take_along_axis(words, order, axis=1)
        maps = None if maps is None else reordered(maps, 2, 3)
        ids = None if ids is None else np.take_along_axis(ids, order, axis=1)
    pairs = words[:, :, None] & words[:, None, :]
    states = np.where(words[:, None, :, None], states, 0)
    maps = None if maps is None else np.where(pairs[:, None, None], maps, 0)
    for part, array in (("hidden", states), ("attention", maps)):
        if array is not None and not np.isfinite(array).all():
            raise refusal(part, "be finite at words", "it holds NaN or infinity", "leave these texts out")
    if maps is not None:
        sums = maps.sum(axis=-1, dtype=np.float64)
        off = np.abs(np.where(words[:, None, None], sums - 1, 0)).max()
        if off > _ROWS or (maps < 0).any():
            problem = f"a row sums to {1 + off:.4g} or has a negative weight"
            raise refusal("attention", "have rows of words that sum to 1 over words", problem, "pass the softmax")
    seen_ahead = maps is not None and bool(np.triu(maps, 1).any())
    is_causal = bool(maps is not None and not seen_ahead) if causal is None else check_flag(causal, "causal")
    if is_causal and seen_ahead:
        raise refusal("causal", "be False where a token attends to a later one", "it is True", "leave it out")
    heads = None if weights is None else _matrices(weights, levels - 1, states.shape[3], maps)
    windows = _windows(window, levels - 1)
    recorded = Recorded(states, maps, words, ids, is_causal, windows, check_text(name, "name"), heads)
    beyond = [] if maps is None else [bool((maps[:, k] * ~rule).any()) for k, rule in enumerate(recorded.allowed(n))]
    if any(beyond):
        problem = f"layer {beyond.index(True)} has a weight beyond {recorded.windows[beyond.index(True)]}"
        raise refusal("window", "be that of the attention", problem, "pass sliding_window of the network")
    return recorded


def _windows(window: Any, layers: int) -> tuple[int | None, ...]:
    """The window of each layer, checked."""
    several = [window] * layers if window is None or isinstance(window, int | np.integer) else window
    several = check_sequence(several, "window", object, "windows, one for each layer", least=0)
    if len(several) != layers:
        problem, remedy = f"there are {len(several)}", "pass None for a layer without one"
        raise refusal("window", f"be one number, or one for each of {layers} layers", problem, remedy)
    return tuple(None if width is None else check_integer(width, "window") for width in several)


def _matrices(weights: Any, layers: int, d: int, attention: np.ndarray | None) -> HeadMatrices:
    """The weights as `HeadMatrices`, checked against the hidden states and the attention."""
    remedy = "pass those of one network, as head_matrices returns them"
    kind = (Mapping, HeadMatrices)
    check_instance(weights, "weights", kind, "arrays by name, or what head_matrices returns", remedy)
    entries = dict(weights._asdict() if isinstance(weights, HeadMatrices) else weights)
    wrong = [name for name in entries if name not in HeadMatrices._fields]
    wrong += [name for name in HeadMatrices._fields[:4] if name not in entries]
    if wrong:
        raise refusal("weights", f"have {', '.join(HeadMatrices._fields[:4])}", f"{wrong[0]!r} is amiss", remedy)

    def array(name: str, *shape: int | str) -> np.ndarray:
        entry = _floats(entries[name], f"weights[{name!r}]", shape, finite=True)
        return entry.astype(np.float64)

    order = np.arange(layers)
    if entries.get("order") is not None:
        order = check_host_array(entries["order"], "weights['order']", shape=(layers,), integers=True, least=0)
    query = array("query", int(order.max()) + 1, "heads" if attention is None else attention.shape[2], d, "k")
    blocks, heads, _, k = query.shape
    key, value = array("key", blocks, "shared heads", d, k), array("value", blocks, "shared heads", d, "v")
    for name, part in (("key", key), ("value", value)):
        if heads % part.shape[1]:
            problem = f"it has {part.shape[1]} for {heads} queries"
            raise refusal(f"weights[{name!r}]", "have heads that queries share evenly", problem, remedy)
    copied = lambda part: np.repeat(part, heads // part.shape[1], axis=1)
    output = array("output", blocks, heads, value.shape[3], d)
    scale = 1 / np.sqrt(k)
    if entries.get("scale") is not None:
        scale = check_number(entries["scale"], "weights['scale']", above=0)
    norm, last = (
        None if entries.get(name) is None else array(name, *shape)
        for name, shape in (("norm", (blocks, d)), ("last_norm", (d,)))
    )
    return HeadMatrices(query, copied(key), copied(value), output, float(scale), norm, last, order)


def check_measured(model: Any) -> Model | Recorded:
    """Returns `model` if it is a `Model` or a `Recorded`, and raises a ValueError otherwise."""
    return model if isinstance(model, Recorded) else check_model(model)


def _plain(value: Any) -> Any:
    """A tensor of PyTorch as an array; other values are returned as they are."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") and hasattr(value, "cpu") else value


def _floats(value: Any, name: str, axes: tuple[int | str, ...], finite: bool = False) -> np.ndarray:
    """The array in float32, or in float64 if it has that dtype."""
    if hasattr(value, "detach") and str(getattr(value, "dtype", "")) == "torch.bfloat16":
        value = value.float()  # NumPy has no such dtype
    value = _plain(value)
    check_concrete(value, name)
    check_array(value, name, shape=axes, finite=finite, remedy="pass those of all texts in one array")
    array = np.asarray(as_numbers(value, name))
    return array.astype(jnp.result_type(float) if array.dtype == np.float64 else np.float32)
