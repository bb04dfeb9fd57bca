"""One measure over many texts: batches of few shapes, sums in double precision, and a file from which to resume.

Texts go through `stream` in batches of one size, whose width is the longest text rounded up to a power of two. The
results of the measure for each text are added to a `Tally`, which is written after each batch.

Invariants: memory does not grow with the number of texts, except for the statistics in `keep`; an interrupted run
resumes with results that are identical bit for bit; a store of another network, other texts or settings is refused.
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

    - `levels`: An `Average` for each statistic of the levels, its arrays (layers + 1, ...).
    - `layers`: An `Average` for each statistic of the layers, its arrays (layers, ...).
    - `resampled`: The means of the replicates for each resampled statistic, (replicates, levels, ...).
    - `texts`: The number of texts.
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
    """The mean over texts, and its standard error, of a measure at each level and layer.

    The texts go through `stream` in batches that are cut to their longest text, rounded up to a power of two: a few
    shapes, with one compilation for each. Only sums are kept, so that memory grows neither with depth x n^2 nor with
    the number of texts, except for the statistics in `keep`. With a `store` the sums are written atomically after each
    batch; an interrupted run resumes from there, and its numbers equal those of an uninterrupted run, bit for bit.

    **Arguments:**

    - `model`: The model that `load` returned.
    - `texts`: The texts, or their `Encoded` form (required for a model without a tokenizer), or the result of a
        tokenizer of `transformers`. Each text has at least two tokens.
    - `measure`: A `Measure` whose functions return dictionaries from the names of statistics to arrays with one row per
        text, (batch, ...), to which padding has contributed nothing. Or a function of (token_ids, mask) that returns
        such a `Measure` for each batch; these may differ only in their arrays. All padding is behind the words.

    **Other arguments:**

    - `length`: The maximum number of tokens, at least two; None is the number of positions of the model. Strings are
        cut by the tokenizer, so that the last special token stays; an `Encoded` loses the tokens after the maximum.
    - `batch_size`: The number of texts in a batch.
    - `keep`: Names of statistics of which the value of each text is kept, `Average.values`.
    - `resample`: Names of statistics of which the means over resampled texts are kept.
    - `replicates`: (replicates, texts): the multiplicity of each text in each resample; see `bootstrap_counts`.
    - `settings`: The settings of the measure, written as JSON: a store with other settings is refused, and so is a
        store with other statistics, or with other statistics kept or resampled.
    - `finite`: If True, a text whose hidden states overflow is refused; otherwise its statistics are not finite.
    - `store`: A file (safetensors with JSON in its header) to write and to resume from; None for no file.
    - `say`: A function that receives a line of progress for each batch.

    **Returns:**

    A `Survey`.

    **Raises:**

    - `ValueError` if there are no texts, one has fewer than two tokens, the model has no tokenizer for them, `length`
        is below 2 or beyond the positions, hidden states are not finite, the store belongs to other settings, texts or
        weights, or it cannot be written (the version of the previous batch stays).

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
    # All texts are encoded at once, (texts, longest): token ids need little memory compared with hidden states.
    data = encoded(model, texts, length)
    if replicates is not None:
        check_array(replicates, "replicates", shape=("replicates", len(data.mask)), integers=True, least=0)
        replicates = np.asarray(replicates)
    # With fewer texts than `batch_size`, no copies are needed to fill the batch.
    size = min(batch_size, len(data.mask))
    tally, path = Tally(), None if store is None else Path(store)
    # The names are known before the first batch, so that a wrong name or a store of other statistics is refused early.
    statistics = _names(model, measure, next(_batches(data, size, 0))) if path or keep or resample else []
    for argument, names in (("keep", keep), ("resample", resample)):
        unknown = sorted(set(names) - {name.split(".", 1)[1] for name in statistics})
        if unknown:
            told = f"{unknown[0]!r} is none of {statistics}"
            raise refusal(argument, "name statistics of the measure", told, "choose of these")
    asked: dict[str, Any] = {}
    if path is not None:  # reading all weights takes longer than running a short text
        asked = {"model": fingerprint(model, data.mask.shape[1]), "texts": digest(data), "batch_size": size}
        asked |= settings or {}
        asked |= {"keep": sorted(keep), "statistics": statistics}
        if replicates is not None:
            asked |= {"resample": sorted(resample), "replicates": digest([replicates])}
    # `restore` compares the settings entry by entry and names the first difference.
    if path is not None and path.exists():
        tally.restore(path, asked, asked["statistics"], most=len(data.mask), finite=finite)
        say(f"resuming after {tally.texts} of {len(data.mask)} texts")
    for rows, ids, mask in _batches(data, size, tally.texts):
        made = _made(measure, ids, mask)
        # The finiteness of hidden states is measured together with `level`, in the same pass.
        streamed = stream(model, ids, mask, Measure(_WithFinite(made.level), made.layer))
        if finite:
            # Only the rows of this batch's texts: copies fill the last batch.
            _check_finite(model, np.asarray(streamed.levels[_FINITE])[:, : len(rows)], rows)
        # The finiteness is not a statistic of the caller.
        streamed.levels.pop(_FINITE)
        _check_rows(streamed.layers or {}, len(mask), axis=1)
        for kind, by_name in (("levels", streamed.levels), ("layers", streamed.layers)):
            for name, array in (by_name or {}).items():
                # (levels, texts, ...) to (texts, levels, ...), without the copies that fill the batch.
                each = np.moveaxis(np.asarray(array), 1, 0)[: len(rows)]
                weights = replicates[:, rows] if replicates is not None and name in resample else None
                tally.add(f"{kind}.{name}", each, keep=name in keep, weights=weights)
        # The count rises after all statistics are added, and then the file is written: it never holds half a batch.
        tally.texts += len(rows)
        if path is not None:
            tally.save(path, asked)
        say(f"{tally.texts} of {len(data.mask)} texts")
    return _survey_of(tally, resample, replicates)


def check_texts(texts: Any, name: str) -> Any:
    """Returns `texts` if they are an `Encoded` or a list of texts, and raises a ValueError otherwise."""
    whole = isinstance(texts, Encoded) or isinstance(texts, Mapping) and "input_ids" in texts
    return texts if whole else check_sequence(texts, name, str, "texts")


def encoded(model: Model, texts: Sequence[str] | Encoded | Mapping[str, Any], length: int | None = None) -> Encoded:
    """The texts as one batch, padded on the right, with at most `length` tokens and at most the number of positions,
    each of at least two tokens."""
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
    # Statistics over pairs of tokens divide by the number of pairs, which is 0 for a single token.
    short = np.flatnonzero(mask.sum(axis=1) < 2)
    if short.size:
        raise ValueError(f"texts must have at least two tokens each, but text {short[0]} has one; leave it out.")
    return Encoded(ids, mask)


def bootstrap_counts(key: PRNGKeyArray, replicates: int, texts: int) -> np.ndarray:
    """The number of times each text is drawn in each resample with replacement, (replicates, texts), int32.

    **Arguments:**

    - `key`: PRNG key.
    - `replicates`, `texts`: The number of resamples and of texts.

    **Returns:**

    An array whose rows sum to `texts`.

    **Raises:**

    - `ValueError` if `replicates` or `texts` is not a positive integer, or `key` is not a PRNG key.

    ??? cite "Source"

        Efron, *Bootstrap methods: another look at the jackknife* (Annals of Statistics, 1979).
    """
    check_integer(replicates, "replicates", most=_MOST, remedy="pass 100, say")
    check_integer(texts, "texts", most=_MOST, remedy="pass how many there are")
    return generator(key).multinomial(texts, np.full(texts, 1 / texts), size=replicates).astype(np.int32)


def fingerprint(model: Model, n: int | None = None) -> str:
    """A hash of the network: its sizes, depth and heads, its weights, its knocked-out parts, and, for texts of `n`
    tokens, its attention mask; without `n` a mask of `with_mask` is left out."""
    network = model.network
    hasher = hashlib.sha256(repr((_sizes_said(network.sizes), network.depth, network.num_heads)).encode())
    # The leaves are in the order of their names, so that the same weights always give the same hash.
    for leaf in jtu.tree_leaves(nnx.state(network)):
        hasher.update(np.ascontiguousarray(leaf).tobytes())
    if network.gains is not None:
        # The leaves include the gains but not the names of their parts.
        named = [name for name, gain in zip(network.gains._fields, network.gains, strict=True) if gain is not None]
        hasher.update(repr(named).encode())
    # A mask is not a leaf. A full mask adds nothing, so that files of version 0.1.0 remain readable.
    context = network.context(1) if n is None else network.shared_context(n)
    if context.causal:
        hasher.update(b"causal")
    if n is not None and context.allowed is not None:
        hasher.update(b"allowed" + np.asarray(context.allowed).tobytes())
    return hasher.hexdigest()


def _sizes_said(sizes: Any) -> Any:
    """The sizes, with functions replaced by their names, since the `repr` of a function differs between processes."""
    if not any(map(callable, sizes)):
        return sizes
    name = lambda entry: f"{entry.__module__}.{getattr(entry, '__qualname__', type(entry).__name__)}"
    return [name(entry) if callable(entry) else entry for entry in sizes]


def dtype_of(model: Model) -> np.dtype:
    """The dtype of the weights, and thus of all hidden states."""
    return np.dtype(jtu.tree_leaves(nnx.state(model.network, nnx.Param))[0].dtype)


class _WithFinite(eqx.Module):
    """A function of a level: the statistics of `level`, and True for each text whose hidden states are finite."""

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
    """Returns the result of a measure, checked to be a dictionary of arrays with one row per text along `axis`."""
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
    # `eval_shape` computes shapes alone: no network runs, and nothing is compiled.
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
    # Names in the tally have the form levels.<name> and layers.<name>.
    averages: dict[str, dict[str, Average]] = {"levels": {}, "layers": {}}
    resampled = {}
    for path in tally.names():
        kind, name = path.split(".", 1)
        averages[kind][name] = tally.average(path)
        if replicates is not None and name in resample:
            resampled[name] = tally.resampled(path, replicates.sum(axis=1))
    return Survey(averages["levels"], averages["layers"], resampled, tally.texts)


def _batches(data: Encoded, size: int, done: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The rows of each batch and its arrays; copies, which are not counted, fill the last batch."""
    for start in range(done, len(data.mask), size):
        rows = np.arange(start, min(start + size, len(data.mask)))
        # Copies of the first row give the last batch the shape of the others.
        filled = np.concatenate([rows, np.full(size - len(rows), rows[0])])
        longest = int(np.flatnonzero(data.mask[rows].any(axis=0))[-1]) + 1
        # A power of two: texts of up to 512 tokens give six widths, hence at most six programs.
        width = min(data.mask.shape[1], max(_NARROWEST, 1 << (longest - 1).bit_length()))
        yield rows, data.token_ids[filled, :width], data.mask[filled, :width]


def digest(arrays: Sequence[np.ndarray]) -> str:
    """A hash of the arrays, with their shapes and dtypes."""
    hasher = hashlib.sha256()
    for array in arrays:
        # Shape and dtype are hashed too, since arrays with the same bytes may differ in them.
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
        # Settings are written and compared as JSON; a value that JSON cannot represent would never compare equal.
        json.dumps(settings)
    except (TypeError, ValueError, RecursionError) as error:
        raise refusal("settings", "be what JSON can hold", f"that says: {error}", remedy) from error
