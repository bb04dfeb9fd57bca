"""Attention sinks: the attention that the first and the special tokens receive, and each token; figure 2, left.

The sink mass of token j is the mean weight that the other tokens give to it, (1/(n-1)) sum_{i != j} w_ij. It is
compared with two baselines: uniform attention over all tokens that the mask allows, 1/n in an encoder, and uniform
causal attention (Xiao et al., *Efficient streaming language models with attention sinks*, 2309.17453).

Invariants: baselines use the n of each text; padding neither gives nor receives attention; for a special token that
occurs more than once the masses of its positions are summed.
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

    - `mass`: By the name of the target, "first" or a special token: the mean weight that the other tokens give to it.
    - `excess`: `mass` minus the mass of uniform attention over all allowed tokens, which is 1/n in an encoder.
    - `causal_excess`: `mass` minus the mass of uniform causal attention, for comparison with decoders and the paper.
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
    r"""The weight that the first token and the special tokens receive in each head, compared with uniform heads.

    For a text of n tokens the mass of token j is `sink_mass`, $\frac{1}{n-1}\sum_{i \ne j} w_{ij}$, summed over the
    positions of a special token that occurs more than once. The mass in a head without preference depends on the mask
    of its layer, and a sink is a mass beyond it, `excess`. ALBERT and the encoder of T5 attend in both directions: a
    head without preference gives 1/n to every token. The frequently quoted baseline $H_n/n$ is for causal attention,
    where more tokens attend to the first token than to any other; it is too high for an encoder. `causal_excess` uses
    it for comparison, whatever the mask: $(H_n - H_j)/(n-1)$, and $(H_n - H_{j-1})/n$ with `include_self`. The
    baselines are those of each text, with its own n and without padding.

    **Arguments:**

    - `model`: The model that `load` returned.
    - `texts`: The texts, or their `Encoded` form, each of at least two tokens.

    **Other arguments:**

    - `special`: Ids of special tokens by name, which every text must contain; None selects those of [CLS] and [SEP]
        that the model's tokenizer has and every text contains.
    - `include_self`: If True, the weight of a token on itself counts, and n replaces n - 1.
    - `length`, `batch_size`, `store`, `say`: As in `survey`.

    **Returns:**

    An `AttentionSinks`.

    **Raises:**

    - `ValueError` if a special token is missing from a text or is named "first", and in the cases of `survey`.

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
    # Python integers, because NumPy integers cannot be written as settings in JSON.
    special = _special(model, data) if special is None else {name: int(token) for name, token in special.items()}
    if "first" in special:
        raise ValueError(
            "special must not name a token 'first', which is what the first token of each text is called, but it is "
            f"{special!r}; choose another name."
        )
    for name, token in special.items():
        # Padding may have any id, so it is masked.
        missing = np.flatnonzero(~np.any((data.token_ids == token) & data.mask, axis=1))
        if missing.size:
            raise ValueError(
                f"special must name tokens of every text, but {name!r}, {token}, is not in text {missing[0]}; leave "
                "the token out, or the text."
            )
    dtype = dtype_of(model)
    # One measure for each batch: its targets are arrays of positions in the texts, so nothing is recompiled.
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
    # The last axis of each array is the target; an `Average` is a tuple of arrays, a number and possibly None.
    split = lambda name: {
        target: Average(*(_pick(part, k) for part in surveyed.layers[name]))
        for k, target in enumerate(["first", *special])
    }
    return AttentionSinks(split("mass"), split("excess"), split("causal"))


class Activation(NamedTuple):
    """The result of `token_activation`.

    **Attributes:**

    - `received`: (layers, heads, n): the mean weight that token j receives from all tokens, including itself.
    - `token_ids`: The ids of the tokens, (n,).
    - `words`: The tokens as strings; None if the model has no tokenizer.
    """

    received: np.ndarray
    token_ids: np.ndarray
    words: list[str] | None


def token_activation(model: Model, text: str | Encoded, *, length: int | None = None) -> Activation:
    r"""The weight $\frac1n\sum_i w_{ij}$ that each token j of a text receives, by head and layer; it sums to 1 over j.

    The weight depends on the causal mask: a head without preference then gives $(H_n - H_{j-1})/n$ to token j,
    `uniform_causal_sink(n, include_self=True)`, and only the excess is a preference.

    **Arguments:**

    - `model`: The model that `load` returned.
    - `text`: A text, or the `Encoded` form of one text.

    **Other arguments:**

    - `length`: The maximum number of tokens; None is the number of positions of the model.

    **Returns:**

    An `Activation`.

    **Raises:**

    - `ValueError` if `text` is not one text of at least two tokens.

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
    """The mass of each target in each text, and its excesses, (batch, heads, targets)."""

    targets: Bool[Array, "batch targets n"]
    causal: Float[Array, "batch targets"]
    include_self: bool = eqx.field(static=True)

    def __call__(self, hidden: Array, attention: Maps, mask: Words, allowed: Pairs) -> dict[str, Array]:
        # An additional head attends uniformly to all tokens that the mask of the layer allows.
        attention = jnp.concatenate([attention, uniform_map(allowed, attention.dtype)[:, None]], axis=1)
        # The two `vmap` run over texts and heads.
        masses = jax.vmap(jax.vmap(lambda weights: sink_mass(weights, include_self=self.include_self)))(attention)
        # `sink_mass` divides by the number of rows, which includes the zero rows of padding.
        rows = jnp.sum(mask, axis=1).astype(attention.dtype)
        # So the masses are multiplied by that number and divided by the number of words of the text.
        divisor = (mask.shape[1], rows) if self.include_self else (max(mask.shape[1] - 1, 1), rows - 1)
        masses = masses * (divisor[0] / divisor[1])[:, None, None]
        # Targets are rows of booleans over positions, so the positions of one token are summed.
        mass = einsum("bhn,btn->bht", masses, self.targets.astype(masses.dtype))
        mass, uniform = mass[:, :-1], mass[:, -1:]
        return {"mass": mass, "excess": mass - uniform, "causal": mass - self.causal[:, None, :]}


def _measure_of(ids: np.ndarray, mask: np.ndarray, special: Mapping[str, int], include_self: bool, dtype: Any):
    # `place` is 1 at the first word, since padding may be on the left.
    place = np.cumsum(mask, axis=1)
    targets = np.stack([mask & (place == 1), *(mask & (ids == token) for token in special.values())], axis=1)
    causal = np.zeros(targets.shape[:2])
    for row, n in enumerate(mask.sum(axis=1)):
        uniform = np.asarray(uniform_causal_sink(int(n), include_self=include_self, dtype=jnp.result_type(float)))
        # (targets, words) times (words,): the sum of the baseline over the positions of each target.
        causal[row] = targets[row][:, mask[row]] @ uniform
    return _OfLayer(jnp.asarray(targets), jnp.asarray(causal, dtype), include_self)


def _check_special(special: Any) -> None:
    check_instance(special, "special", Mapping, "ids of tokens by name", "pass {'[CLS]': 2}, say")
    for name, token in special.items():
        if not isinstance(name, str):
            raise refusal("special", "be ids of tokens by name", f"a name is {shown(name)}", "pass {'[CLS]': 2}, say")
        check_integer(token, f"special[{name!r}]", least=0)


def _special(model: Model, data: Encoded) -> dict[str, int]:
    """The ids of [CLS] and [SEP], if the tokenizer has them and every text contains them."""
    if model.tokenizer is None:
        return {}
    known = {"[CLS]": model.tokenizer.cls_token_id, "[SEP]": model.tokenizer.sep_token_id}
    everywhere = lambda token: bool(np.all(np.any((data.token_ids == token) & data.mask, axis=1)))
    return {name: int(token) for name, token in known.items() if token is not None and everywhere(token)}


def _pick(part: Any, k: int) -> Any:
    return part[..., k] if isinstance(part, np.ndarray) else part
