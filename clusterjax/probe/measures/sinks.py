"""Which tokens receive the attention of the others: attention sinks, and what each token receives; figure 2, left.

The sink mass of token j is the mean weight that the other tokens give it, (1/(n-1)) sum_{i != j} w_ij, compared with
two baselines: that of uniform attention to all that the mask allows, 1/n in an encoder, and that of uniform causal
attention (Xiao et al., *Efficient streaming language models with attention sinks*, 2309.17453).

Invariants: baselines are those of each text with its own n; padding neither gives nor receives; a special token that
occurs more than once counts with the sum over its places.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._check import check_flag, check_instance, check_integer, refusal, shown
from ..._misc import einsum
from ..._observables import sink_mass, uniform_causal_sink
from ..._summary import short, summary
from ..networks.batch import Encoded
from ..networks.load import Model, check_model
from .head_correlations import uniform_map
from .stream import AbstractToldPairs, Maps, Measure, Pairs, Words, stream
from .survey import check_surveyed, dtype_of, encoded, survey
from .tally import Average


class AttentionSinks(NamedTuple):
    """The result of `attention_sinks`; each `Average` is over texts, (layers, heads), and keeps the value of each text.

    **Attributes:**

    - `mass`: By the name of the target, "first" or a special token: the mean weight that the other tokens give it.
    - `excess`: `mass` beyond that of uniform attention to all that the mask of the layer allows; in an encoder, 1/n.
    - `causal_excess`: `mass` beyond that of uniform causal attention, for comparison with decoders and the paper.
    """

    mass: dict[str, Average]
    excess: dict[str, Average]
    causal_excess: dict[str, Average]

    def __repr__(self) -> str:
        return short(self)

    def summary(self) -> str:
        """A summary in a few lines: each statistic over texts as mean ± standard error."""
        return summary(self)


def attention_sinks(
    model: Model,
    texts: Sequence[str] | Encoded,
    *,
    special: Mapping[str, int] | None = None,
    include_self: bool = False,
    length: int | None = None,
    batch_size: int = 8,
    store: str | os.PathLike[str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> AttentionSinks:
    r"""The weight that the first token and the special tokens receive, by head and layer, beyond that of uniform heads.

    For a text of n tokens the mass of token j is `sink_mass`, $\frac{1}{n-1}\sum_{i \ne j} w_{ij}$; where a special
    token occurs more than once, the sum over its places. What a head without preference gives it depends on the mask of
    its layer, and what exceeds that is a sink, `excess`. ALBERT and the encoder of T5 attend in both directions: such a
    head gives every token 1/n. The baseline $H_n/n$ that is often named is that of causal attention, where the first
    token is seen by more tokens than any other; it is too high for an encoder, and `causal_excess` has it for
    comparison, whatever the mask: $(H_n - H_j)/(n-1)$, and $(H_n - H_{j-1})/n$ with
    `include_self`. The baselines are those of each text, with its own n, padding left out.

    **Arguments:**

    - `model`: The model that `load` returned.
    - `texts`: The texts, or their `Encoded` form, each of at least two tokens.

    **Other arguments:**

    - `special`: Ids of special tokens by name, each in every text; None is [CLS] and [SEP] of the model's tokenizer, so
        far as it has them and they occur in every text.
    - `include_self`: Whether a token's weight on itself counts, with n in place of n - 1.
    - `length`, `batch_size`, `store`, `say`: As in `survey`.

    **Returns:**

    An `AttentionSinks`.

    **Raises:**

    - `ValueError` if a special token is missing from a text or is named "first", and as in `survey`.

    **Warns:** if `length` is None and texts exceed the positions of the model; the warning states their number.

    ??? cite "Source"

        Xiao et al., *Efficient streaming language models with attention sinks* (2309.17453); Peat, *Clustering in
        Transformers*, Figure 2, left.
    """
    check_surveyed(model, batch_size, store, say)
    include_self = check_flag(include_self, "include_self")
    if special is not None:
        _check_special(special)
    data = encoded(model, texts, length)
    # Python integers: ids of NumPy could not be written as settings in JSON.
    special = _special(model, data) if special is None else {name: int(token) for name, token in special.items()}
    if "first" in special:
        raise ValueError(
            "special must not name a token 'first', which is what the first token of each text is called, but it is "
            f"{special!r}; choose another name."
        )
    for name, token in special.items():
        # Padding may have any id, hence the mask.
        missing = np.flatnonzero(~np.any((data.token_ids == token) & data.mask, axis=1))
        if missing.size:
            raise ValueError(
                f"special must name tokens of every text, but {name!r}, {token}, is not in text {missing[0]}; leave "
                "the token out, or the text."
            )
    dtype = dtype_of(model)
    # Made for each batch: the targets are places in its texts, and are arrays of the measure, so nothing compiles anew.
    measure = lambda ids, mask: Measure(layer=_measure_of(ids, mask, special, include_self, dtype))
    surveyed = survey(
        model,
        data,
        measure,
        batch_size=batch_size,
        keep=("mass", "excess", "causal"),
        settings={"measure": "sinks beyond the mask", "special": special, "include_self": include_self},
        store=store,
        say=say,
    )
    # The last axis of each array is the target; an `Average` is a tuple of arrays, a number and perhaps None.
    split = lambda name: {
        target: Average(*(_pick(part, k) for part in surveyed.layers[name]))
        for k, target in enumerate(["first", *special])
    }
    return AttentionSinks(split("mass"), split("excess"), split("causal"))


class Activation(NamedTuple):
    """The result of `token_activation`.

    **Attributes:**

    - `received`: (layers, heads, n): the mean weight that token j is given, by all tokens, itself included.
    - `token_ids`: (n,).
    - `words`: The tokens as strings; None if the model has no tokenizer.
    """

    received: np.ndarray
    token_ids: np.ndarray
    words: list[str] | None


def token_activation(model: Model, text: str | Encoded, *, length: int | None = None) -> Activation:
    r"""$\frac1n\sum_i w_{ij}$ of each token j of one text, by head and layer; adds up to 1 over the tokens.

    A causal mask is part of what is received: a head without preference gives token j then $(H_n - H_{j-1})/n$,
    `uniform_causal_sink(n, include_self=True)`, and only what exceeds that is a preference.

    **Arguments:**

    - `model`: The model that `load` returned.
    - `text`: A text, or the `Encoded` of one.

    **Other arguments:**

    - `length`: A longer text is cut to so many tokens; None is the positions of the model.

    **Returns:**

    An `Activation`.

    **Raises:**

    - `ValueError` if it is not one text of at least two tokens.

    ??? cite "Source"

        Peat, *Clustering in Transformers*, Figure 2, left.
    """
    check_model(model)
    if not isinstance(text, str | Encoded):
        raise refusal("text", "be one text", f"it is {shown(text)}", "pass a string, or the Encoded of one")
    data = encoded(model, [text] if isinstance(text, str) else text, length)
    if len(data.mask) != 1:
        raise ValueError(f"text must be one text, but there are {len(data.mask)}; pass one.")
    # (layers, heads, words): the batch is this one text.
    received = np.asarray(stream(model, *data, _RECEIVED).layers, np.float64)[:, 0][:, :, data.mask[0]]
    ids = data.token_ids[0, data.mask[0]]
    words = None if model.tokenizer is None else model.tokenizer.convert_ids_to_tokens(ids.tolist())
    return Activation(received, ids, words)


def _received(hidden: Array, attention: Maps, mask: Words) -> Array:
    words = jnp.sum(mask, axis=1).astype(attention.dtype)
    return jnp.sum(attention, axis=2) / words[:, None, None]


_RECEIVED = Measure(layer=_received)


class _OfLayer(AbstractToldPairs):
    """The mass of each target in each text, and its excesses; (batch, heads, targets)."""

    targets: Bool[Array, "batch targets n"]
    causal: Float[Array, "batch targets"]
    include_self: bool = eqx.field(static=True)

    def __call__(self, hidden: Array, attention: Maps, mask: Words, allowed: Pairs) -> dict[str, Array]:
        # One head more, which attends uniformly to all that the mask of the layer allows.
        attention = jnp.concatenate([attention, uniform_map(allowed, attention.dtype)[:, None]], axis=1)
        # Over texts and heads.
        masses = jax.vmap(jax.vmap(lambda weights: sink_mass(weights, include_self=self.include_self)))(attention)
        # `sink_mass` divides by the number of rows, and those of padding are zero.
        rows = jnp.sum(mask, axis=1).astype(attention.dtype)
        # Multiplied by the n that `sink_mass` divided by, and divided by the words of the text.
        divisor = (mask.shape[1], rows) if self.include_self else (max(mask.shape[1] - 1, 1), rows - 1)
        masses = masses * (divisor[0] / divisor[1])[:, None, None]
        # Targets are rows of booleans over places, so several places of one token are summed.
        mass = einsum("bhn,btn->bht", masses, self.targets.astype(masses.dtype))
        mass, uniform = mass[:, :-1], mass[:, -1:]
        return {"mass": mass, "excess": mass - uniform, "causal": mass - self.causal[:, None, :]}


def _measure_of(ids: np.ndarray, mask: np.ndarray, special: Mapping[str, int], include_self: bool, dtype: Any):
    # 1 at the first word, wherever it stands: padding may be on the left.
    place = np.cumsum(mask, axis=1)
    targets = np.stack([mask & (place == 1), *(mask & (ids == token) for token in special.values())], axis=1)
    causal = np.zeros(targets.shape[:2])
    for row, n in enumerate(mask.sum(axis=1)):
        uniform = np.asarray(uniform_causal_sink(int(n), include_self=include_self, dtype=jnp.result_type(float)))
        # (targets, words) times (words,): the sum of the baseline over the places of each target.
        causal[row] = targets[row][:, mask[row]] @ uniform
    return _OfLayer(jnp.asarray(targets), jnp.asarray(causal, dtype), include_self)


def _check_special(special: Any) -> None:
    check_instance(special, "special", Mapping, "ids of tokens by name", "pass {'[CLS]': 2}, say")
    for name, token in special.items():
        if not isinstance(name, str):
            raise refusal("special", "be ids of tokens by name", f"a name is {shown(name)}", "pass {'[CLS]': 2}, say")
        check_integer(token, f"special[{name!r}]", least=0)


def _special(model: Model, data: Encoded) -> dict[str, int]:
    """[CLS] and [SEP], so far as the tokenizer has them and every text does."""
    if model.tokenizer is None:
        return {}
    known = {"[CLS]": model.tokenizer.cls_token_id, "[SEP]": model.tokenizer.sep_token_id}
    everywhere = lambda token: bool(np.all(np.any((data.token_ids == token) & data.mask, axis=1)))
    return {name: int(token) for name, token in known.items() if token is not None and everywhere(token)}


def _pick(part: Any, k: int) -> Any:
    return part[..., k] if isinstance(part, np.ndarray) else part
