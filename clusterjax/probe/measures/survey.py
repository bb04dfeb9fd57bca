"""One measure over many texts: batches of few shapes, sums in double precision, a file to go on from.

Texts go through `stream` in batches of one size, whose width is the longest text rounded up to a power of two; what
the measure returns for each text is added to a `Tally`, and the tally is written after each batch.

Invariants: memory does not grow with the number of texts, but for what `keep` names; a killed run goes on and gives
the same numbers bit for bit; a store of another network, other texts or other settings is refused.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ..._check import (
    call_traced,
    check_array,
    check_callable,
    check_concrete,
    check_flag,
    check_instance,
    check_integer,
    check_path,
    check_say,
    check_sequence,
    refusal,
    shown,
)
from ..._padding import words_first
from ..._random import generator
from ..._summary import short, summary
from ..networks.batch import Encoded, check_batch, encode
from ..networks.load import Model, check_model
from ..networks.token_ids import in_parts
from .stream import LAYER, LEVEL, AbstractToldPairs, Measure, stream
from .tally import Average, Tally


_NARROWEST = 16
_FINITE = "hidden states are finite"
_MOST = 2**31 - 1


class Survey(NamedTuple):
    """The result of `survey`.

    **Attributes:**

    - `levels`: For each statistic of the levels an `Average`, its arrays (layers + 1, ...).
    - `layers`: For each statistic of the layers an `Average`, its arrays (layers, ...).
    - `resampled`: For each statistic that was resampled the means of the replicates, (replicates, levels, ...).
    - `texts`: How many texts there were.
    """

    levels: dict[str, Average]
    layers: dict[str, Average]
    resampled: dict[str, np.ndarray]
    texts: int

    def __repr__(self) -> str:
        return short(self)

    def summary(self) -> str:
        """A summary in a few lines: each statistic over texts as mean ± standard error."""
        return summary(self)


def survey(
    model: Model,
    texts: Sequence[str] | Encoded,
    measure: Measure | Callable[[Any, Any], Measure],
    *,
    length: int | None = None,
    batch_size: int = 8,
    keep: Sequence[str] = (),
    resample: Sequence[str] = (),
    replicates: np.ndarray | None = None,
    settings: dict[str, Any] | None = None,
    finite: bool = True,
    store: str | os.PathLike[str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Survey:
    """The mean over texts, and its standard error, of what a measure finds at each level and layer.

    The texts go through `stream` in batches that are cut to the longest text in them, rounded up to a power of two: a
    few shapes, and one compilation for each. Nothing is kept but the sums, so that memory does not grow with
    depth x n^2, nor with the number of texts, except for what `keep` names. With a `store` the sums are written after
    each batch, in one piece; a run that was killed goes on from there, and its numbers are those of a run that was
    not, bit for bit.

    **Arguments:**

    - `model`: The model that `load` returned.
    - `texts`: The texts, or the `Encoded` of them, for a model without a tokenizer, or what a tokenizer of
        `transformers` returns. At least two tokens each.
    - `measure`: A `Measure` whose functions return dictionaries, by the name of a statistic, of arrays with one row a
        text, (batch, ...), to which padding has contributed nothing. Or a function of (token_ids, mask) that makes
        one for each batch, the same but for its arrays. Padding stands behind the words in all that they are given.

    **Other arguments:**

    - `length`: Longer texts are cut to so many tokens, at least two; None is the positions of the model. Strings are
        cut by the tokenizer, so that the last special token stays; an `Encoded` loses the tokens from there on.
    - `batch_size`: Texts in a batch.
    - `keep`: Names of statistics of which the value of each text is kept, `Average.values`.
    - `resample`: Names of statistics of which the means over resampled texts are kept.
    - `replicates`: (replicates, texts): how often each text is in each resample; see `bootstrap_counts`.
    - `settings`: What the measure was asked for, to be written in JSON: a store of other settings is refused,
        and so is one of other statistics, or of which others were kept or resampled.
    - `finite`: Whether a text is refused whose hidden states overflow; else its statistics are what comes of them.
    - `store`: A file (safetensors with JSON in its header) to go on from; None for none.
    - `say`: Is given a line of progress for each batch.

    **Returns:**

    A `Survey`.

    **Raises:**

    - `ValueError` if there are no texts, one has fewer than two tokens, the model has no tokenizer for them, `length`
        is below 2 or beyond the positions, hidden states are not finite, the store is of other settings, texts or
        weights, or it cannot be written (the one of the batch before stays).

    **Warns:** if `length` is None and texts exceed the positions of the model; the warning states their number.

    The deviations of batches are combined by the formula of Chan, Golub and LeVeque (1983).
    """
    check_surveyed(model, batch_size, store, say)
    if not isinstance(measure, Measure):
        check_callable(measure, "measure", "a Measure, or a function of token_ids and mask", takes=2)
    keep, resample = (
        check_sequence(names, name, str, "names", least=0) for name, names in (("keep", keep), ("resample", resample))
    )
    check_flag(finite, "finite")
    _check_settings(settings)
    check_concrete(replicates, "replicates")
    # All texts are encoded at once, (texts, longest): token ids are small beside hidden states.
    data = encoded(model, texts, length)
    if replicates is not None:
        check_array(replicates, "replicates", shape=("replicates", len(data.mask)), integers=True, least=0)
        replicates = np.asarray(replicates)
    # Fewer texts than a batch: no copies to fill it up.
    size = min(batch_size, len(data.mask))
    tally, path = Tally(), None if store is None else Path(store)
    # Known before the first batch runs, so that a wrong name, or a store of other statistics, is refused at once.
    statistics = _names(model, measure, next(_batches(data, size, 0))) if path or keep or resample else []
    for argument, names in (("keep", keep), ("resample", resample)):
        unknown = sorted(set(names) - {name.split(".", 1)[1] for name in statistics})
        if unknown:
            told = f"{unknown[0]!r} is none of {statistics}"
            raise refusal(argument, "name statistics of the measure", told, "choose of these")
    asked: dict[str, Any] = {}
    if path is not None:  # reading all weights takes longer than a short text
        asked = {"model": fingerprint(model, data.mask.shape[1]), "texts": digest(data), "batch_size": size}
        asked |= settings or {}
        asked |= {"keep": sorted(keep), "statistics": statistics}
        if replicates is not None:
            asked |= {"resample": sorted(resample), "replicates": digest([replicates])}
    # `restore` compares the settings entry by entry, and names the first that differs.
    if path is not None and path.exists():
        tally.restore(path, asked, asked["statistics"], most=len(data.mask), finite=finite)
        say(f"resuming after {tally.texts} of {len(data.mask)} texts")
    for rows, ids, mask in _batches(data, size, tally.texts):
        made = _made(measure, ids, mask)
        # Whether hidden states are finite is measured beside `level`, in the same pass.
        streamed = stream(model, ids, mask, Measure(_WithFinite(made.level), made.layer))
        if finite:
            # Only the rows of this batch's texts: the last batch is filled up with copies.
            _check_finite(model, np.asarray(streamed.levels[_FINITE])[:, : len(rows)], rows)
        # It is no statistic of the caller's.
        streamed.levels.pop(_FINITE)
        _check_rows(streamed.layers or {}, len(mask), axis=1)
        for kind, by_name in (("levels", streamed.levels), ("layers", streamed.layers)):
            for name, array in (by_name or {}).items():
                # (levels, texts, ...) to (texts, levels, ...), without the copies that fill up the batch.
                each = np.moveaxis(np.asarray(array), 1, 0)[: len(rows)]
                weights = replicates[:, rows] if replicates is not None and name in resample else None
                tally.add(f"{kind}.{name}", each, keep=name in keep, weights=weights)
        # After all statistics of the batch are added, then written: a file never holds half of a batch.
        tally.texts += len(rows)
        if path is not None:
            tally.save(path, asked)
        say(f"{tally.texts} of {len(data.mask)} texts")
    return _survey_of(tally, resample, replicates)


def check_texts(texts: Any, name: str) -> Any:
    """`texts`, if they are an `Encoded` or a list of texts."""
    whole = isinstance(texts, Encoded) or isinstance(texts, Mapping) and "input_ids" in texts
    return texts if whole else check_sequence(texts, name, str, "texts")


def encoded(model: Model, texts: Sequence[str] | Encoded | Mapping[str, Any], length: int | None = None) -> Encoded:
    """The texts as one batch, padded on the right wherever they were, no longer than `length` and the positions, each
    of at least two tokens."""
    limit = check_model(model).max_positions
    if length is not None:
        length = check_integer(length, "length", least=2, most=limit, remedy="pass None for the positions of the model")
    texts = check_texts(texts, "texts")
    if isinstance(texts, Mapping):
        ids, mask, _ = in_parts(texts, None, None)
        texts = Encoded(np.asarray(ids), np.ones(np.shape(ids), bool) if mask is None else np.asarray(mask))
    if not isinstance(texts, Encoded):
        texts = encode(model, texts, length=length)
    order, _ = words_first(texts.mask)
    if order is not None:
        texts = Encoded(*(np.take_along_axis(part, order, axis=1) for part in texts))
    if length is not None:
        texts = Encoded(texts.token_ids[:, :length], texts.mask[:, :length])
    batch = check_batch(model, texts.token_ids, texts.mask, None)
    ids, mask = np.asarray(batch.token_ids), np.asarray(batch.mask)
    # Statistics over pairs of tokens divide by the number of pairs, which is 0 for one token.
    short = np.flatnonzero(mask.sum(axis=1) < 2)
    if short.size:
        raise ValueError(f"texts must have at least two tokens each, but text {short[0]} has one; leave it out.")
    return Encoded(ids, mask)


def bootstrap_counts(key: PRNGKeyArray, replicates: int, texts: int) -> np.ndarray:
    """(replicates, texts): how often each text is drawn if so many are drawn with replacement; int32.

    **Arguments:**

    - `key`: PRNG key.
    - `replicates`, `texts`: How many of each.

    **Returns:**

    An array whose rows sum to `texts`.

    **Raises:**

    - `ValueError` if `replicates` or `texts` is not a positive integer, or `key` is no PRNG key.

    ??? cite "Source"

        Efron, *Bootstrap methods: another look at the jackknife* (Annals of Statistics, 1979).
    """
    check_integer(replicates, "replicates", most=_MOST, remedy="pass 100, say")
    check_integer(texts, "texts", most=_MOST, remedy="pass how many there are")
    return generator(key).multinomial(texts, np.full(texts, 1 / texts), size=replicates).astype(np.int32)


def fingerprint(model: Model, n: int | None = None) -> str:
    """A hash of the network: its sizes, depth and heads, its weights, which parts are knocked out, and, for texts of
    `n` tokens, who attends to whom; without `n` a mask that was given is left out."""
    network = model.network
    hasher = hashlib.sha256(repr((_sizes_said(network.sizes), network.depth, network.num_heads)).encode())
    # In the order of the tree, which is that of the names: the same weights always give the same hash.
    for leaf in jtu.tree_leaves(nnx.state(network)):
        hasher.update(np.ascontiguousarray(leaf).tobytes())
    if network.gains is not None:
        # Their numbers are among the leaves, but not of which part they are.
        named = [name for name, gain in zip(network.gains._fields, network.gains, strict=True) if gain is not None]
        hasher.update(repr(named).encode())
    # A mask is no weight. Nothing is added where all attend to all, so that files of 0.1.0 are still read.
    context = network.context(1) if n is None else network.shared_context(n)
    if context.causal:
        hasher.update(b"causal")
    if n is not None and context.allowed is not None:
        hasher.update(b"allowed" + np.asarray(context.allowed).tobytes())
    return hasher.hexdigest()


def _sizes_said(sizes: Any) -> Any:
    """The sizes, with functions by their names: what `repr` says of a function is another in each process."""
    if not any(map(callable, sizes)):
        return sizes
    name = lambda entry: f"{entry.__module__}.{getattr(entry, '__qualname__', type(entry).__name__)}"
    return [name(entry) if callable(entry) else entry for entry in sizes]


def dtype_of(model: Model) -> np.dtype:
    """The dtype of the weights, and so of all hidden states."""
    return np.dtype(jtu.tree_leaves(nnx.state(model.network, nnx.Param))[0].dtype)


class _WithFinite(eqx.Module):
    """A function of a level: the statistics of `level`, and whether the hidden states of each text are finite."""

    level: Callable[..., Any] | None

    def __call__(self, hidden: Float[Array, "batch n d"], mask: Bool[Array, "batch n"]) -> dict[str, Array]:
        made = {} if self.level is None else call_traced(self.level, "level", LEVEL, hidden, mask)
        statistics = {} if self.level is None else _check_rows(made, len(mask))
        return {**statistics, _FINITE: jnp.all(jnp.isfinite(hidden), axis=(1, 2))}


def _check_finite(model: Model, finite: Bool[np.ndarray, "levels texts"], rows: np.ndarray) -> None:
    if not finite.all():
        text = int(np.flatnonzero(~finite.all(axis=0))[0])
        raise ValueError(
            f"texts must have finite hidden states, but those of text {rows[text]} are not from level "
            f"{int(np.argmin(finite[:, text]))} of {model.name!r} on, level k being what layer k gives; load the model "
            "with dtype=float64, or leave that text out."
        )


def _check_rows(statistics: Any, texts: int, axis: int = 0) -> dict[str, Any]:
    """What a measure returned, if it is a dictionary of arrays with one row per text along `axis`."""
    has_rows = lambda array: np.shape(array)[axis : axis + 1] == (texts,)
    if not isinstance(statistics, dict) or not all(map(has_rows, statistics.values())):
        what = "some have other rows" if isinstance(statistics, dict) else f"one returns {shown(statistics)}"
        rule = "have functions that return dictionaries of arrays with one row per text"
        raise refusal("measure", rule, what, "return {'mean': jnp.mean(hidden, axis=(1, 2))}, say")
    return statistics


def _made(measure: Any, ids: np.ndarray, mask: np.ndarray) -> Measure:
    if isinstance(measure, Measure):
        return measure
    made = measure(ids, mask)
    return check_instance(made, "measure", Measure, "a Measure, or return one", "return Measure(level=...), say")


def _names(model: Model, measure: Any, batch: tuple[np.ndarray, np.ndarray, np.ndarray]) -> list[str]:
    """The names of all statistics of a measure, without running the network."""
    # Shapes alone, by `eval_shape`: no network runs, and nothing is compiled.
    made, (size, n), dtype = _made(measure, *batch[1:]), batch[1].shape, dtype_of(model)
    hidden = jax.ShapeDtypeStruct((size, n, model.network.sizes.hidden_size), dtype)
    attention = jax.ShapeDtypeStruct((size, model.num_heads, n, n), dtype)
    mask = jax.ShapeDtypeStruct((size, n), bool)
    level, layer = made.level, made.layer
    levels = {} if level is None else eqx.filter_eval_shape(partial(call_traced, level, "level", LEVEL), hidden, mask)
    given = (hidden, attention, mask)
    if isinstance(made.layer, AbstractToldPairs):
        given += (jax.ShapeDtypeStruct((size, n, n), bool),)
    layers = {} if layer is None else eqx.filter_eval_shape(partial(call_traced, layer, "layer", LAYER), *given)
    return sorted([*(f"levels.{name}" for name in levels), *(f"layers.{name}" for name in layers)])


def _survey_of(tally: Tally, resample: Sequence[str], replicates: np.ndarray | None) -> Survey:
    # Names in the tally are levels.<name> and layers.<name>.
    averages: dict[str, dict[str, Average]] = {"levels": {}, "layers": {}}
    resampled = {}
    for path in tally.names():
        kind, name = path.split(".", 1)
        averages[kind][name] = tally.average(path)
        if replicates is not None and name in resample:
            resampled[name] = tally.resampled(path, replicates.sum(axis=1))
    return Survey(averages["levels"], averages["layers"], resampled, tally.texts)


def _batches(data: Encoded, size: int, done: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The rows of each batch and its arrays; the last batch is filled up with copies, which are not counted."""
    for start in range(done, len(data.mask), size):
        rows = np.arange(start, min(start + size, len(data.mask)))
        # Copies of the first row, so that the last batch has the shape of the others.
        filled = np.concatenate([rows, np.full(size - len(rows), rows[0])])
        longest = int(np.flatnonzero(data.mask[rows].any(axis=0))[-1]) + 1
        # A power of two: texts of up to 512 tokens give six widths, and so six programs at most.
        width = min(data.mask.shape[1], max(_NARROWEST, 1 << (longest - 1).bit_length()))
        yield rows, data.token_ids[filled, :width], data.mask[filled, :width]


def digest(arrays: Sequence[np.ndarray]) -> str:
    """A hash of the arrays, with their shapes and dtypes."""
    hasher = hashlib.sha256()
    for array in arrays:
        # Shape and dtype too: the same bytes may be another array.
        hasher.update(repr((array.shape, str(array.dtype))).encode() + np.ascontiguousarray(array).tobytes())
    return hasher.hexdigest()


def check_surveyed(model: Any, batch_size: Any, store: Any, say: Any) -> None:
    """Raise a ValueError unless these arguments of a survey are valid."""
    check_model(model)
    check_integer(batch_size, "batch_size", remedy="pass 8, say")
    if store is not None:
        check_path(store, "store")
    check_say(say)


def _check_settings(settings: Any) -> None:
    if settings is None:
        return
    remedy = "pass plain numbers and texts by name"
    check_instance(settings, "settings", dict, "a dictionary", remedy)
    try:
        # Written and compared as JSON; what JSON cannot hold would never compare equal.
        json.dumps(settings)
    except (TypeError, ValueError, RecursionError) as error:
        raise refusal("settings", "be what JSON can hold", f"that says: {error}", remedy) from error
