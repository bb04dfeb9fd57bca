r"""Heads that attend to particular positions: to the previous, the same, the next or the first token, or a separator.

The first token is left out of all means, because its row is determined in a causal network.

Invariants: padding neither gives nor receives attention; scores and baselines are means over the same rows; a uniform
head has the excess 0 under any mask.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._base.checks import check_instance, refusal, shown
from ..._base.numerics import einsum
from ..._base.summary import short, summary
from ..networks.batch import Encoded
from ..networks.load import Model
from ..networks.recorded import Recorded
from ..networks.token_ids import listed_ids
from .survey import Average, Measure, average_of, check_surveyed, encoded, survey
from .table import tabled


PLACES = ("previous", "self", "next", "first")


@tabled("target layer head", mass="target layer head", baseline="target layer head", excess="target layer head")
class PositionHeads(NamedTuple):
    """The result of `position_heads`; each `Average` is over texts, (layers, heads), and keeps the value of each text.

    **Attributes:**

    - `mass`: By the name of the target: the mean weight that the tokens of a text, except the first, give to it.
    - `baseline`: The mass for uniform attention over all tokens that the mask allows.
    - `excess`: `mass` minus `baseline`.
    """

    mass: dict[str, Average]
    baseline: dict[str, Average]
    excess: dict[str, Average]

    __repr__ = short

    def summary(self) -> str:
        """A summary in a few lines: each statistic over texts as mean ± standard error."""
        return summary(self)

    def strongest(self, target: str) -> tuple[int, int]:
        """The layer and the head, counted from 0, with the largest mean excess for a target.

        **Arguments:**

        - `target`: "previous", "self", "next", "first", or a separator.

        **Returns:**

        Two integers.

        **Raises:**

        - `ValueError` if there is no such target.
        """
        if not isinstance(target, str) or target not in self.excess:
            problem = f"it is {shown(target)}"
            raise refusal("target", f"be one of {', '.join(self.excess)}", problem, "choose one of these")
        mean = self.excess[target].mean
        layer, head = np.unravel_index(int(np.argmax(mean)), mean.shape)
        return int(layer), int(head)


def position_heads(
    model: Model | Recorded,
    texts: Sequence[str] | Encoded | None = None,
    *,
    separators: Mapping[str, int | Sequence[int]] | None = None,
    length: int | None = None,
    batch_size: int = 8,
    store: str | os.PathLike[str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> PositionHeads:
    """The attention of each head to the previous, the same, the next and the first token and to separators, compared
    with uniform attention over all tokens that the mask allows.

    The mass of a target is $1/(n-1) ∑_{i=2}^n w_{i,t(i)}$, with t(i) = i - 1, i, i + 1 or 1; a token without such a
    neighbour contributes zero. The mass of a separator is the sum over its positions other than i. The baseline
    replaces $w_{ij}$ by $1/m_i$, with $m_i$ the number of tokens to which token i may attend: all n in an encoder, i in
    a causal network, at most the width of a sliding window, and the tokens that the mask of `with_mask` allows. For the
    first token of a causal network the baseline is $(H_n - 1)/(n - 1)$, as in `attention_sinks`.

    !!! example

        ```python
        >>> from clusterjax import probe
        >>> model = probe.load()
        >>> found = probe.position_heads(model, probe.bundled_texts()[:4], length=32)
        >>> sorted(found.excess)
        ['[SEP]', 'first', 'next', 'previous', 'self']
        >>> found.excess["first"].mean.shape  # layers, heads
        (12, 8)
        ```

    **Arguments:**

    - `model`: The model that `load` returned, or what `from_arrays` returned.
    - `texts`: The texts, or their `Encoded` form; None for what `from_arrays` returned. Each has at least two tokens.

    **Other arguments:**

    - `separators`: Ids of tokens by name, one or several for each, such as `{"stop": [18, 28]}`; the mass is zero in
        texts without any of them. None selects [SEP] of the model's tokenizer, if it has one.
    - `length`, `batch_size`, `store`, `say`: As in `survey`.

    **Returns:**

    A `PositionHeads`.

    **Raises:**

    - `ValueError` if `separators` are not ids by name, a name is that of a position, or in the cases of `survey`.

    **Warns:** if `length` is None and texts exceed the positions of the model; the warning states their number.

    ??? cite "Source"

        Clark et al., *What does BERT look at?* (1906.04341), Section 3: heads that attend to the previous and the next
        token, and to separators. The baseline: this library.
    """
    check_surveyed(model, batch_size, store, say)
    checked = None if separators is None else check_separators(separators)
    data = encoded(model, texts, length)
    ids = _sep(model) if checked is None else checked
    mass = survey(
        model, data, lambda token_ids, mask: Measure(layer=of_layer(token_ids, mask, ids)), batch_size=batch_size,
        keep=("mass",),
        settings={
            "measure": "position heads",
            "separators": {name: list(separator_ids) for name, separator_ids in ids.items()},
        },
        store=store, say=say,
    ).layers["mass"]  # fmt: skip
    return position_heads_of(_allowed(model, data.mask.shape[1]), data, mass, ids)


def position_heads_of(
    allowed: Bool[np.ndarray, "layers n n"], data: Encoded, mass: Average, separators: Mapping[str, Sequence[int]]
) -> PositionHeads:
    """A `PositionHeads` from the masses of all targets, whose values are (texts, layers, heads, targets), and the mask
    of each layer."""
    assert mass.values is not None
    # The baseline is the same for all heads of a layer; it depends only on the mask, so no network is run.
    baseline = np.broadcast_to(_baselines(allowed, data, separators)[:, :, None], mass.values.shape)
    split = lambda values: {target: average_of(values[..., k]) for k, target in enumerate([*PLACES, *separators])}
    return PositionHeads(split(mass.values), split(baseline), split(mass.values - baseline))


def _allowed(model: Model | Recorded, n: int) -> Bool[np.ndarray, "layers n n"]:
    """True where a token may attend to another, for each layer."""
    if isinstance(model, Recorded):
        return model.allowed(n)
    blocks, context = model.network.blocks(), model.network.shared_context(n)
    places = jnp.arange(n, dtype=jnp.int32)
    # One program, instead of one for each comparison.
    rules = jax.jit(lambda places: [block.allowed(places, places, context) for block in blocks])(places)
    matrices = np.stack([np.ones((n, n), bool) if rule is None else np.asarray(rule) for rule in rules])
    # A network with one shared block repeats its mask, without a call of `order`.
    return matrices[model.network.order()] if len(blocks) > 1 else np.repeat(matrices, model.num_layers, axis=0)


def _baselines(
    allowed: Bool[np.ndarray, "layers n n"], data: Encoded, separators: Mapping[str, Sequence[int]]
) -> Float[np.ndarray, "texts layers targets"]:
    """The masses of uniform attention over all tokens that the mask of each layer allows."""
    # Few masks are distinct: usually one, or two where only some layers have a sliding window.
    different, which = np.unique(allowed.reshape(len(allowed), -1), axis=0, return_inverse=True)
    baselines = []
    for matrix in different.reshape(-1, *allowed.shape[1:]):
        rows = []
        for ids, mask in zip(*data, strict=True):
            pairs = matrix[None] & mask[None, None, :] & mask[None, :, None]
            uniform = pairs / np.maximum(pairs.sum(axis=-1, keepdims=True), 1)
            places = np.asarray(of_layer(ids[None], mask[None], separators).separators)
            rows.append(np.einsum("bij,btij->t", uniform, _chosen(np, mask[None], places)))
        baselines.append(np.array(rows) / (data.mask.sum(axis=1) - 1)[:, None])
    return np.stack(baselines, axis=1)[:, np.asarray(which).ravel()]


def _chosen(xp: Any, mask: Any, separators: Any) -> Any:
    """The pairs that count for each target, (batch, targets, n, n); `xp` is NumPy or `jax.numpy`."""
    place = xp.cumsum(mask, axis=1)
    index = xp.where(mask, place, 0)
    # Neighbours among the words of a text, wherever the padding is; (batch, n, n).
    apart = index[:, None, :] - index[:, :, None]
    word_pairs = mask[:, :, None] & mask[:, None, :]
    targets = [word_pairs & (apart == offset) for offset in (-1, 0, 1)]
    targets.append(word_pairs & (index[:, None, :] == 1))
    targets += [word_pairs & (apart != 0) & separators[:, k, None, :] for k in range(separators.shape[1])]
    # The row of the first token is left out.
    return xp.stack(targets, axis=1) & (index > 1)[:, None, :, None]


class _OfLayer(eqx.Module):
    """The mass of each target in each text, (batch, heads, targets)."""

    separators: Bool[Array, "batch separators n"]

    def __call__(self, hidden: Array, attention: Float[Array, "batch heads n n"], mask: Bool[Array, "batch n"]):
        chosen = _chosen(jnp, mask, self.separators).astype(attention.dtype)
        total = einsum("bhij,btij->bht", attention, chosen)
        rows = jnp.sum(mask, axis=1).astype(attention.dtype) - 1
        return {"mass": total / rows[:, None, None]}


def of_layer(token_ids: np.ndarray, mask: np.ndarray, separators: Mapping[str, Sequence[int]]) -> _OfLayer:
    """The measure of a layer for one batch of texts, with the positions of the separators."""
    ids = np.asarray(token_ids)
    places = [np.isin(ids, np.asarray(list(separator_ids), np.int64)) & mask for separator_ids in separators.values()]
    return _OfLayer(jnp.asarray(np.stack(places, axis=1) if places else np.zeros((len(ids), 0, ids.shape[1])), bool))


def check_separators(separators: Any) -> dict[str, tuple[int, ...]]:
    """Returns the ids of each name as tuples, or raises a ValueError."""
    rule, remedy = "be ids of tokens by name", "pass {'[SEP]': 3}, say"
    check_instance(separators, "separators", Mapping, rule.removeprefix("be "), remedy)
    ids_by_name = {}
    for name, ids in separators.items():
        if not isinstance(name, str):
            raise refusal("separators", rule, f"a name is {shown(name)}", remedy)
        if name in PLACES:
            raise refusal("separators", f"have other names than {', '.join(PLACES)}", f"one is {name!r}", "rename it")
        several = [ids] if isinstance(ids, int | np.integer) else ids
        ids_by_name[name] = tuple(listed_ids(several, f"separators[{name!r}]", least=1))
    return ids_by_name


def _sep(model: Model | Recorded) -> dict[str, tuple[int, ...]]:
    """The [SEP] of the tokenizer, if it has one."""
    token = None if model.tokenizer is None else model.tokenizer.sep_token_id
    return {} if token is None else {"[SEP]": (int(token),)}
