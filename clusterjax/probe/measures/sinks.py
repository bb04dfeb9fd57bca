"""Attention sinks: the attention that the first token, the special tokens, and every token receive; figure 2, left.

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

from ..._base.checks import check_flag, check_instance, check_integer, check_number, refusal, shown
from ..._base.numerics import einsum, matmul, normalise
from ..._base.summary import short, summary
from ..._observables import sink_mass, uniform_causal_sink
from ..networks.batch import Encoded
from ..networks.load import Model, check_model
from ..networks.recorded import Recorded
from ..networks.token_ids import listed_ids
from .heads import uniform_map
from .survey import (
    AbstractToldPairs,
    Average,
    Maps,
    Measure,
    Pairs,
    Words,
    check_surveyed,
    dtype_of,
    encoded,
    stream,
    survey,
)
from .table import tabled


@tabled("target layer head", mass="target layer head", excess="target layer head", causal_excess="target layer head")
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

    __repr__ = short

    def summary(self) -> str:
        """A summary in a few lines: each statistic over texts as mean ± standard error."""
        return summary(self)


def attention_sinks(
    model: Model | Recorded,
    texts: Sequence[str] | Encoded | None = None,
    *,
    special: Mapping[str, int] | None = None,
    include_self: bool = False,
    length: int | None = None,
    batch_size: int = 8,
    store: str | os.PathLike[str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> AttentionSinks:
    """The weight that the first token and the special tokens receive in each head, compared with uniform heads.

    For a text of n tokens the mass of token j is `sink_mass`, $1/(n-1) ∑_{i ≠ j} w_{ij}$, summed over the positions of
    a special token that occurs more than once. The mass in a head without preference depends on the mask of its layer,
    and a sink is a mass beyond it, `excess`. ALBERT and the encoder of T5 attend in both directions: a head without
    preference gives 1/n to every token. The frequently quoted baseline $H_n/n$ is for causal attention, where more
    tokens attend to the first token than to any other; it is too high for an encoder. `causal_excess` uses it for
    comparison, whatever the mask: $(H_n - H_j)/(n-1)$, and $(H_n - H_{j-1})/n$ with `include_self`. The baselines are
    those of each text, with its own n and without padding.

    **Arguments:**

    - `model`: The model that `load` returned, or what `from_arrays` returned.
    - `texts`: The texts, or their `Encoded` form; None for what `from_arrays` returned. Each has at least two tokens.

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
    checked = None if special is None else _check_special(special)
    data = encoded(model, texts, length)
    special = _special(model, data) if checked is None else checked
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
    pick: Any = lambda part, k: part[..., k] if isinstance(part, np.ndarray) else part
    split = lambda name: {
        target: Average(*(pick(part, k) for part in surveyed.layers[name]))
        for k, target in enumerate(["first", *special])
    }
    return AttentionSinks(split("mass"), split("excess"), split("causal"))


@tabled("layer head token", received="layer head token", token_ids="token", words="token")
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
    """The weight $1/n ∑_i w_{ij}$ that each token j of a text receives, by head and layer; it sums to 1 over j.

    Under a causal mask a head without preference gives token j the weight $(H_n - H_{j-1})/n$,
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


def _check_special(special: Any) -> dict[str, int]:
    """Returns the id of each name as a Python integer, which can be written as a setting in JSON."""
    check_instance(special, "special", Mapping, "ids of tokens by name", "pass {'[CLS]': 2}, say")
    for name in special:
        if not isinstance(name, str):
            raise refusal("special", "be ids of tokens by name", f"a name is {shown(name)}", "pass {'[CLS]': 2}, say")
    return {name: check_integer(token, f"special[{name!r}]", least=0) for name, token in special.items()}


def _special(model: Model | Recorded, data: Encoded) -> dict[str, int]:
    """The ids of [CLS] and [SEP], if the tokenizer has them and every text contains them."""
    if model.tokenizer is None:
        return {}
    known = {"[CLS]": model.tokenizer.cls_token_id, "[SEP]": model.tokenizer.sep_token_id}
    everywhere = lambda token: bool(np.all(np.any((data.token_ids == token) & data.mask, axis=1)))
    return {name: int(token) for name, token in known.items() if token is not None and everywhere(token)}


def special_ids(model: Model) -> tuple[int, ...]:
    """The ids of the special tokens that the tokenizer of a model defines, such as [CLS] and [SEP].

    !!! example

        ```python
        >>> from clusterjax import probe
        >>> probe.special_ids(probe.load())  # [PAD], [UNK], [CLS], [SEP], [MASK]
        (0, 1, 2, 3, 4)
        ```

    **Arguments:**

    - `model`: The model that `load` returned.

    **Returns:**

    The ids in increasing order; none for a model without a tokenizer.

    **Raises:**

    - `ValueError` if `model` is not a `Model`.
    """
    tokenizer = check_model(model).tokenizer
    return () if tokenizer is None else tuple(sorted({int(number) for number in tokenizer.all_special_ids}))


def kept_tokens(
    token_ids: np.ndarray, mask: np.ndarray, leave_out: Sequence[int], without_first: bool
) -> Bool[np.ndarray, "batch n"]:
    """True at tokens that are not padding, not in `leave_out`, and, with `without_first`, not the first of a text."""
    mask = np.asarray(mask, bool)
    kept = mask & ~np.isin(np.asarray(token_ids), np.asarray(list(leave_out), np.int64))
    # `cumsum` finds the first word of each text, since padding may be on the left.
    return kept & ~(np.cumsum(mask, axis=1) == 1) if without_first else kept


def check_kept(leave_out: Any, without_first: Any) -> tuple[tuple[int, ...], bool]:
    """Returns both options, checked to be a sequence of ids and a flag."""
    # The ids are in increasing order, because they are written as settings in JSON.
    return tuple(sorted(set(listed_ids(leave_out, "leave_out")))), check_flag(without_first, "without_first")


def check_enough(data: Encoded, leave_out: Sequence[int], without_first: bool, least: int = 2) -> None:
    """Raise a ValueError if a text has fewer than `least` tokens left."""
    num_left = kept_tokens(data.token_ids, data.mask, leave_out, without_first).sum(axis=1)
    few = np.flatnonzero(num_left < least)
    if few.size:
        raise ValueError(
            f"texts must have at least {least} tokens each beside those that are left out, but text {few[0]} has "
            f"{num_left[few[0]]}; leave it out, or fewer tokens."
        )


class OfKept(eqx.Module):
    """A function of a level that is applied only to the kept tokens."""

    level: Any
    kept: Bool[Array, "batch n"]

    def __call__(self, hidden: Float[Array, "batch n d"], mask: Bool[Array, "batch n"]) -> dict[str, Array]:
        return self.level(hidden, mask & self.kept)


@tabled("level", cosine="level", cosine_of_others="level", length="level", length_of_others="level", ratio="level")
class FirstToken(NamedTuple):
    """The result of `first_token`; each `Average` is over texts, (levels,), and keeps the value of each text.

    **Attributes:**

    - `cosine`: The mean cosine of the first token to the others.
    - `cosine_of_others`: The mean cosine over pairs of the others.
    - `length`: The norm of the first token.
    - `length_of_others`: The median norm of the others.
    - `ratio`: `length` divided by `length_of_others`, in each text.
    """

    cosine: Average
    cosine_of_others: Average
    length: Average
    length_of_others: Average
    ratio: Average

    __repr__ = short

    def summary(self) -> str:
        """A summary in a few lines: each statistic over texts as mean ± standard error."""
        return summary(self)

    def apart(self, times: float = 10.0, sigmas: float = 2.0) -> Bool[np.ndarray, " levels"]:
        """True at the levels where the norm of the first token significantly exceeds `times` the norm of the others.

        **Arguments:**

        - `times`: The multiple of the median norm of the others.
        - `sigmas`: The number of standard errors by which the mean ratio must exceed `times`; with one text, which has
            no standard error, the result is False.

        **Returns:**

        One boolean for each level.

        **Raises:**

        - `ValueError` if `times` is not positive, or `sigmas` is negative.
        """
        times = check_number(times, "times", above=0, remedy="pass 10, say")
        sigmas = check_number(sigmas, "sigmas", least=0, remedy="pass 2, say")
        # A comparison with NaN is False.
        return self.ratio.mean - sigmas * self.ratio.error > times


def first_token(
    model: Model | Recorded,
    texts: Sequence[str] | Encoded | None = None,
    *,
    length: int | None = None,
    batch_size: int = 8,
    store: str | os.PathLike[str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> FirstToken:
    """Compare the first token with the others at each level: $|x_1|$ with the median of $|x_i|$, i > 1, and the mean of
    $⟨x_1, x_i⟩ / (|x_1||x_i|)$ with the mean over pairs without the first token.

    Any network is accepted: the first token of an encoder is its special token, if it has one. Levels are those of
    `trace`; a final norm of the network changes the norms of the last level.

    !!! example

        ```python
        >>> from clusterjax import probe
        >>> model = probe.load()
        >>> found = probe.first_token(model, probe.bundled_texts()[:4], length=32)
        >>> found.cosine.mean.shape  # levels 0 to 12
        (13,)
        >>> bool(found.cosine.mean[-1] < found.cosine_of_others.mean[-1] - 0.3)  # [CLS] stays far from the words
        True
        ```

    **Arguments:**

    - `model`: The model that `load` returned, or what `from_arrays` returned.
    - `texts`: The texts, or their `Encoded` form; None for what `from_arrays` returned. Each has at least three tokens.

    **Other arguments:**

    - `length`, `batch_size`, `store`, `say`: As in `survey`.

    **Returns:**

    A `FirstToken`.

    **Raises:**

    - `ValueError` if a text has fewer than three tokens, and in the cases of `survey`.

    **Warns:** if `length` is None and texts exceed the positions of the model; the warning states their number.

    ??? cite "Source"

        Sun et al., *Massive activations in large language models* (2402.17762), Section 2: the norms; Peat,
        *Clustering in Transformers*, Section 4.2.4: the first token of causal attention.
    """
    check_surveyed(model, batch_size, store, say)
    data = encoded(model, texts, length)
    check_enough(data, (), False, least=3)
    levels = survey(
        model, data, Measure(level=OF_FIRST), batch_size=batch_size, keep=FirstToken._fields,
        settings={"measure": "first token"}, store=store, say=say,
    ).levels  # fmt: skip
    return FirstToken(**levels)


def _of_text(x: Float[Array, "n d"], word: Bool[Array, " n"]) -> dict[str, Array]:
    """The statistics of one level of one text."""
    first = word & (jnp.cumsum(word) == 1)
    others = word & ~first
    lengths = jnp.linalg.norm(x, axis=1)
    # Rows of padding are zero; their cosines are masked below.
    unit = jnp.where(word[:, None], normalise(x), jnp.zeros_like(x))
    cosines = jnp.clip(matmul(unit, unit.T), -1, 1)
    mean = lambda pairs: jnp.sum(jnp.where(pairs, cosines, jnp.zeros_like(cosines))) / jnp.sum(pairs).astype(x.dtype)
    length = jnp.sum(jnp.where(first, lengths, jnp.zeros_like(lengths)))
    # The median is robust: a few of the others may have a norm as large as that of the first token.
    median = jnp.nanmedian(jnp.where(others, lengths, jnp.full_like(lengths, jnp.nan)))
    return {
        "cosine": mean(first[:, None] & others[None, :]),
        "cosine_of_others": mean(others[:, None] & others[None, :] & ~jnp.eye(len(word), dtype=bool)),
        "length": length,
        "length_of_others": median,
        "ratio": length / median,
    }


# A single function, so that each call of `first_token` finds the program that the first call compiled.
OF_FIRST = jax.vmap(_of_text)
