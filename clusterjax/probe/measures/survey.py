"""One measure over many texts: batches of few shapes, sums in double precision, and a file from which to resume.

Texts go through `stream` in batches of one size, whose width is the longest text rounded up to a power of two. The
results of the measure for each text are added to a `Tally`, which is written after each batch.

Invariants: memory does not grow with the number of texts, except for the statistics in `keep`; an interrupted run
resumes with results that are identical bit for bit; a store of another network, other texts or settings is refused.
"""

import hashlib
import json
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from flax import nnx
from jaxtyping import Array, ArrayLike, Bool, Float, PRNGKeyArray, PyTree

from ..._base.checks import (
    call_traced,
    check_array,
    check_callable,
    check_concrete,
    check_flag,
    check_host_array,
    check_instance,
    check_integer,
    check_path,
    check_say,
    check_sequence,
    refusal,
    shown,
)
from ..._base.padding import words_first
from ..._base.random import generator
from ..._base.summary import levels, short, summary
from ..._base.types import AbstractPart
from ..._files.json import Within
from ..._files.sealed import SealedFile
from ..networks.batch import Encoded, check_batch, encode
from ..networks.load import Model, check_model
from ..networks.network import run_layers_measured
from ..networks.recorded import Recorded, check_measured
from ..networks.sizes import MOST
from ..networks.token_ids import in_parts
from .table import tabled


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
            check_callable(self.layer, "layer", LAYER, takes=self.arity)

    @property
    def arity(self) -> int:
        """The number of arguments of `layer`: the allowed pairs are passed only to an `AbstractToldPairs`."""
        return 4 if isinstance(self.layer, AbstractToldPairs) else 3


class Streamed(eqx.Module):
    """The result of `stream`.

    **Attributes:**

    - `levels`: The results of `level`, their arrays stacked along a new first axis, (L + 1, ...).
    - `layers`: The results of `layer`, stacked likewise, (L, ...).
    """

    levels: PyTree
    layers: PyTree


@tabled(
    "text layer head token token_2",
    hidden="text level token dim",
    attention="text layer head token token_2",
    mask="text token",
)
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
    # The scan measures the hidden states that enter each layer: levels 0 to L - 1. Level L is the output of the last.
    last, (levels, layers) = run_layers_measured(
        network,
        mask,
        (token_ids, token_types),
        lambda hidden, weights, allowed: (
            level(hidden, mask),
            layer(*(hidden, weights, mask, allowed)[: measure.arity]),
        ),
        moved,
    )
    with_last = lambda earlier, last_level: jnp.concatenate([earlier, jnp.asarray(last_level)[None]])
    levels = jtu.tree_map(with_last, levels, level(last, mask))
    # The scan stacks layers along the first axis; `trace` moves the batch to the front, as transformers does.
    if batch_first:
        levels, layers = jtu.tree_map(lambda leaf: jnp.moveaxis(leaf, 0, 1), (levels, layers))
    return levels, layers


_FILE = SealedFile("store", "clusterjax survey", 1, "remove it, or choose another file")


@tabled(mean="*", spread="*", values="text *")
class Average(NamedTuple):
    """The mean of a statistic over texts, and its uncertainty.

    **Attributes:**

    - `mean`: The mean, in which each text has the same weight, whatever its length.
    - `spread`: The standard deviation between texts, with the divisor N - 1; NaN for one text.
    - `texts`: The number N of texts.
    - `values`: The value of each text, (N, ...), for statistics whose values are kept; otherwise None.
    """

    mean: np.ndarray
    spread: np.ndarray
    texts: int
    values: np.ndarray | None = None

    __repr__ = short

    def summary(self) -> str:
        """A summary in a few lines: mean ± standard error."""
        return f"{levels(np.asarray(self.mean), self.error)}, over {self.texts} texts"

    @property
    def error(self) -> np.ndarray:
        """The standard error of `mean`: `spread` divided by the square root of N."""
        # For a scalar statistic NumPy's quotient would be a scalar, not an array.
        return np.asarray(self.spread / np.sqrt(self.texts))


class Clustered(NamedTuple):
    """A mean, its standard error, and the number of independent units behind it; see `clustered_error`.

    **Attributes:**

    - `mean`, `error`: The mean of the numbers and its standard error.
    - `units`: The number of independent units.
    """

    mean: np.ndarray
    error: np.ndarray
    units: int

    def above(self, than: float = 0.0, sigmas: float = 2.0) -> bool:
        """True if the mean, a scalar, is significantly above `than`: a one-sided t-test over the units."""
        return bool(self.mean - threshold(self.units - 1, sigmas) * self.error > than)

    def below(self, than: float = 0.0, sigmas: float = 2.0) -> bool:
        """True if the mean, a scalar, is significantly below `than`: a one-sided t-test over the units."""
        return bool(self.mean + threshold(self.units - 1, sigmas) * self.error < than)


def clustered_error(values: Any, units: Any | None = None) -> Clustered:
    """The mean of numbers, and its standard error if numbers of the same unit are dependent.

    Passages of one article, facts of one relation, and texts of one training run resemble each other: the errors of
    their numbers do not average out like independent errors. With the residuals $r_i = x_i - m$ from the mean m and G
    units, the squared error of the mean of N numbers is $G/(G - 1) ∑_g (∑_{i ∈ g} r_i)² / N²$. If each number is its
    own unit, this is the variance divided by N.

    Every ± of the figures is this error: give the unit of each number here, and state the number of units beside the ±
    (`over` in `experiments/framework/experiment.py` does so for the claims of a figure).

    **Arguments:**

    - `values`: (N, ...). NaN marks a number that a text does not have, and is left out.
    - `units`: The unit of each number, (N,): the name or number of its article, relation or seed. None makes each
        number its own unit, for independent numbers.

    **Returns:**

    A `Clustered`; its error is NaN for a single unit.

    ??? cite "Source"

        Liang and Zeger, *Longitudinal data analysis using generalized linear models* (Biometrika, 1986), Section 2; the
        factor: Cameron and Miller, *A practitioner's guide to cluster-robust inference* (2015), Section II.
    """
    values = np.asarray(values, np.float64)
    names, unit_of_row = np.unique(np.arange(len(values)) if units is None else np.asarray(units), return_inverse=True)
    present = ~np.isnan(values)
    num_present = np.maximum(present.sum(axis=0), 1)
    mean = np.where(present, values, 0.0).sum(axis=0) / num_present
    residuals = np.where(present, values - mean, 0.0)
    sums = np.zeros((len(names), *values.shape[1:]))
    np.add.at(sums, unit_of_row, residuals)
    # A unit whose numbers are all missing does not count.
    counted = np.zeros(sums.shape, bool)
    np.logical_or.at(counted, unit_of_row, present)
    counts = counted.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.sqrt(counts / (counts - 1) * np.sum(sums**2, axis=0)) / num_present
    empty = counts == 0
    return Clustered(
        np.asarray(np.where(empty, np.nan, mean)), np.asarray(np.where(counts > 1, error, np.nan)),
        int(np.max(counts, initial=0)),
    )  # fmt: skip


def threshold(freedom: Any, sigmas: float = 2.0) -> Any:
    """The quantile of Student's t with the tail probability of `sigmas` standard deviations of a normal variable: the
    number of estimated standard errors that is equally improbable."""
    import scipy.special  # imported on demand: the import takes as long as a small run

    return -scipy.special.stdtrit(freedom, scipy.special.ndtr(-sigmas))


def average_of(values: np.ndarray, units: Any | None = None) -> Average:
    """The `Average` of one value per text, (N, ...). With `units` its error is that of `clustered_error`, and its
    spread that of N independent texts with this error."""
    tally = Tally()
    tally.add("it", values, keep=True)
    tally.texts = len(values)
    average = tally.average("it")
    return average if units is None else of_units(average, units)


def of_units(average: Average, units: Any) -> Average:
    """The average with the error of `clustered_error`, and the spread of as many independent texts with this error; an
    average without the values of texts is returned unchanged."""
    if average.values is None:
        return average
    return average._replace(spread=clustered_error(average.values, units).error * np.sqrt(average.texts))


def units_of(units: Any | None, texts: int) -> np.ndarray:
    """The index of the unit of each text, from 0, (texts,); without `units` each text is its own unit."""
    if units is None:
        return np.arange(texts)
    remedy = "pass an integer for each text, the same for passages of one article"
    units = check_host_array(units, "units", shape=(texts,), integers=True, remedy=remedy)
    return np.unique(units, return_inverse=True)[1]


class Tally:
    """Statistics by name, each as the mean and the sum of squared deviations of the texts so far.

    The deviations are from the running mean (Chan, Golub and LeVeque 1983), so that no digits cancel. With
    `weights`, (replicates, texts of this batch), the weighted sums of each replicate are kept as well.
    """

    def __init__(self):
        self.texts = 0
        self.arrays: dict[str, np.ndarray] = {}

    def add(self, name: str, rows: Any, *, keep: bool = False, weights: np.ndarray | None = None) -> None:
        """Add a batch, (texts in it, ...); the caller increases `texts` after the statistics of all names are added."""
        # C order, like rows read from a store: NumPy sums in memory order, so that the sums are bitwise equal.
        rows = np.array(rows, np.float64, order="C")
        before, new = self.texts, len(rows)
        # Where states overflow (a network without its norms) the statistics are NaN, without a warning from NumPy.
        with np.errstate(invalid="ignore"):
            mean = np.mean(rows, axis=0)
            squares = np.sum((rows - mean) ** 2, axis=0)
            # n_A and n_B texts: mean = mean_A + shift n_B / n, squares = squares_A + squares_B + shift^2 n_A n_B / n.
            if before:
                shift = mean - self.arrays[f"{name}/mean"]
                mean = self.arrays[f"{name}/mean"] + shift * (new / (before + new))
                squares = self.arrays[f"{name}/squares"] + squares + shift**2 * (before * new / (before + new))
        self.arrays[f"{name}/mean"], self.arrays[f"{name}/squares"] = mean, squares
        if keep:
            self.append(f"{name}/values", rows)
        if weights is not None:
            # (replicates, ...): a replicate only changes the integer weights of the texts, so its sum suffices.
            sums = np.tensordot(weights.astype(np.float64), rows, axes=1)
            self.arrays[f"{name}/sums"] = self.arrays.get(f"{name}/sums", 0.0) + sums

    def average(self, name: str) -> Average:
        """The mean of a statistic, its spread between texts, and its values if they are kept."""
        squares = self.arrays[f"{name}/squares"]
        # One text gives no estimate of the spread: NaN, because 0 would suggest certainty.
        spread = np.sqrt(squares / (self.texts - 1)) if self.texts > 1 else np.full_like(squares, np.nan)
        return Average(self.arrays[f"{name}/mean"], spread, self.texts, self.arrays.get(f"{name}/values"))

    def resampled(self, name: str, totals: np.ndarray) -> np.ndarray:
        """The mean of each replicate, (replicates, ...), after all texts; `totals` are the sums of the weights."""
        sums = self.arrays[f"{name}/sums"]
        return sums / totals.reshape(-1, *(1,) * (sums.ndim - 1))

    def names(self) -> list[str]:
        """The names of the statistics that have been added."""
        return [entry.removesuffix("/mean") for entry in self.arrays if entry.endswith("/mean")]

    def append(self, name: str, rows: np.ndarray) -> None:
        """Append rows to an array, or start the array."""
        previous = self.arrays.get(name)
        self.arrays[name] = rows if previous is None else np.concatenate([previous, rows])

    def save(self, path: Path, settings: dict[str, Any]) -> None:
        """Write everything to `path` atomically."""
        _FILE.write(path, self.arrays, settings, texts=self.texts)

    def restore(
        self,
        path: Path,
        settings: dict[str, Any],
        names: Sequence[str] | None = None,
        *,
        most: int = 2**62,
        finite: bool = True,
    ) -> None:
        """Resume from `path`, with at most `most` texts and with the statistics `names`; None accepts any."""
        header, arrays = _FILE.read(path, settings, {"texts": Within(int, 0, most)})
        fault = _wrong(arrays, names, header["texts"], finite)
        if fault is not None:
            raise ValueError(f"store must be whole, but in {path} {fault}; {_FILE.remedy}.")
        # The fields are assigned last, so that a refused file leaves the tally empty.
        self.texts, self.arrays = header["texts"], arrays


def _wrong(arrays: dict[str, np.ndarray], names: Sequence[str] | None, texts: int, finite: bool) -> str | None:
    """A description of the fault in the arrays of a file; None if there is none."""
    for entry, array in arrays.items():
        # Sums are float64; a file with another dtype was not written by `save`.
        if array.dtype.kind != "f":
            return f"{entry!r} is of {array.dtype} in place of floats"
        # A statistic that was not requested is NaN throughout.
        if finite and not np.all(np.isfinite(array)) and not np.all(np.isnan(array)):
            return f"{entry!r} holds NaN or infinity"
    for name in () if names is None or not texts else names:
        entries = (f"{name}/mean", f"{name}/squares")
        shapes = [arrays[entry].shape if entry in arrays else None for entry in entries]
        values = arrays.get(f"{name}/values")
        parts = [array for entry, array in arrays.items() if entry.startswith(f"{name}/") and array.size]
        # A statistic that was not requested is NaN in its mean, its squares and its values alike.
        if finite and len({bool(np.isnan(array).all()) for array in parts}) > 1:
            return f"{name!r} is NaN in one part and not in another"
        if None in shapes or shapes[0] != shapes[1]:
            return f"{name!r} has no mean and sum of squares of one shape"
        if values is not None and values.shape != (texts, *(shapes[0] or ())):
            return f"the values of {name!r} are of shape {values.shape}"
    return None


_NARROWEST = 16
_FINITE = "hidden states are finite"


@tabled("level", levels="level *", layers="layer *", resampled="replicate *")
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

    __repr__ = short

    def summary(self) -> str:
        """A summary in a few lines: each statistic over texts as mean ± standard error."""
        return summary(self)


def survey(
    model: Model | Recorded,
    texts: Sequence[str] | Encoded | None,
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

    - `model`: The model that `load` returned, or what `from_arrays` returned.
    - `texts`: The texts, or their `Encoded` form (required for a model without a tokenizer), or the result of a
        tokenizer of `transformers`. Each text has at least two tokens. None for what `from_arrays` returned.
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
    keep = check_sequence(keep, "keep", str, "names", least=0)
    resample = check_sequence(resample, "resample", str, "names", least=0)
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
            problem = f"{unknown[0]!r} is none of {statistics}"
            raise refusal(argument, "name statistics of the measure", problem, "choose of these")
    run_settings: dict[str, Any] = {}
    if path is not None:  # reading all weights takes longer than running a short text
        run_settings = {"model": fingerprint(model, data.mask.shape[1]), "texts": digest(data), "batch_size": size}
        run_settings |= settings or {}
        run_settings |= {"keep": sorted(keep), "statistics": statistics}
        if replicates is not None:
            run_settings |= {"resample": sorted(resample), "replicates": digest([replicates])}
    # `restore` compares the settings entry by entry and names the first difference.
    if path is not None and path.exists():
        tally.restore(path, run_settings, run_settings["statistics"], most=len(data.mask), finite=finite)
        say(f"resuming after {tally.texts} of {len(data.mask)} texts")
    for rows, filled, ids, mask in _batches(data, size, tally.texts):
        batch_measure = _made(measure, ids, mask)
        # The finiteness of hidden states is measured together with `level`, in the same pass.
        whole = Measure(_WithFinite(batch_measure.level), batch_measure.layer)
        if isinstance(model, Recorded):
            streamed = Streamed(*model.measured(filled, mask.shape[1], whole))
        else:
            streamed = stream(model, ids, mask, whole)
        if finite:
            # Only the rows of this batch's texts: copies fill the last batch.
            _check_finite(model, np.asarray(streamed.levels[_FINITE])[:, : len(rows)], rows)
        # The finiteness is not a statistic of the caller.
        streamed.levels.pop(_FINITE)
        _check_rows(streamed.layers or {}, len(mask), axis=1)
        for kind, by_name in (("levels", streamed.levels), ("layers", streamed.layers)):
            for name, array in (by_name or {}).items():
                # (levels, texts, ...) to (texts, levels, ...), without the copies that fill the batch.
                by_text = np.moveaxis(np.asarray(array), 1, 0)[: len(rows)]
                weights = replicates[:, rows] if replicates is not None and name in resample else None
                tally.add(f"{kind}.{name}", by_text, keep=name in keep, weights=weights)
        # The count rises after all statistics are added, and then the file is written: it never holds half a batch.
        tally.texts += len(rows)
        if path is not None:
            tally.save(path, run_settings)
        say(f"{tally.texts} of {len(data.mask)} texts")
    return _survey_of(tally, resample, replicates)


def check_texts(texts: Any, name: str) -> Any:
    """Returns `texts` if they are an `Encoded` or a list of texts, and raises a ValueError otherwise."""
    whole = isinstance(texts, Encoded) or isinstance(texts, Mapping) and "input_ids" in texts
    return texts if whole else check_sequence(texts, name, str, "texts")


def encoded(
    model: Model | Recorded,
    texts: Sequence[str] | Encoded | Mapping[str, Any] | None,
    length: int | None = None,
) -> Encoded:
    """The texts as one batch, padded on the right, with at most `length` tokens and at most the number of positions,
    each of at least two tokens."""
    if isinstance(model, Recorded):
        return _encoded_of(model, texts, length)
    limit = check_model(model).max_positions
    if length is not None:
        length = check_integer(length, "length", least=2, most=limit, remedy="pass None for the positions of the model")
    texts = check_texts(texts, "texts")
    if isinstance(texts, Mapping):
        ids, mask, _ = in_parts(texts, None, None)
        texts = Encoded(np.asarray(ids), np.ones(np.shape(ids), bool) if mask is None else np.asarray(mask))
    if not isinstance(texts, Encoded):
        texts = encode(model, check_sequence(texts, "texts", str, "texts"), length=length)
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


def _encoded_of(model: Recorded, texts: Any, length: int | None) -> Encoded:
    """The tokens of a recorded trace; where their ids were not recorded, each is -1."""
    # A measure encodes its texts before it surveys them.
    known = isinstance(texts, Encoded) and texts.mask is model.mask
    for name, value in (("texts", None if known else texts), ("length", length)):
        if value is not None:
            raise refusal(name, "be None for recorded arrays", f"it is {shown(value)}", "leave it out")
    short = np.flatnonzero(model.mask.sum(axis=1) < 2)
    if short.size:
        raise ValueError(f"model must have two words in each text, but text {short[0]} has one; leave it out.")
    return Encoded(np.full(model.mask.shape, -1) if model.token_ids is None else model.token_ids, model.mask)


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
    check_integer(replicates, "replicates", most=MOST, remedy="pass 100, say")
    check_integer(texts, "texts", most=MOST, remedy="pass how many there are")
    return generator(key).multinomial(texts, np.full(texts, 1 / texts), size=replicates).astype(np.int32)


def fingerprint(model: Model | Recorded, n: int | None = None) -> str:
    """A hash of the network: its sizes, depth and heads, its weights, its knocked-out parts, and, for texts of `n`
    tokens, its attention mask; without `n` a mask of `with_mask` is left out."""
    if isinstance(model, Recorded):
        # Measures of attention have baselines that depend on the mask.
        rules = np.asarray([model.causal, *(width or 0 for width in model.windows)])
        parts = (model.hidden, model.attention, model.mask, rules, *(model.weights or ()))
        return digest([np.asarray(part) for part in parts if part is not None])
    network = model.network
    hasher = hashlib.sha256(repr((_sizes_said(network.sizes), network.depth, network.num_heads)).encode())
    # The leaves are in the order of their names, so that the same weights always give the same hash.
    for leaf in jtu.tree_leaves(nnx.state(network)):
        hasher.update(np.ascontiguousarray(leaf).tobytes())
    if network.gains is not None:
        # The leaves include the gains but not the names of their parts.
        named = [name for name, gain in zip(network.gains._fields, network.gains, strict=True) if gain is not None]
        hasher.update(repr(named).encode())
    for edit in network.edits:
        # The leaves include the arrays of edits but neither their places nor their functions.
        hasher.update(repr((edit.place, getattr(edit.function, "__qualname__", None))).encode())
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


def dtype_of(model: Model | Recorded) -> np.dtype:
    """The dtype of the weights, and thus of all hidden states."""
    if isinstance(model, Recorded):
        return model.hidden.dtype
    return np.dtype(jtu.tree_leaves(nnx.state(model.network, nnx.Param))[0].dtype)


class _WithFinite(eqx.Module):
    """A function of a level: the statistics of `level`, and True for each text whose hidden states are finite."""

    level: Callable[..., Any] | None

    def __call__(self, hidden: Float[Array, "batch n d"], mask: Bool[Array, "batch n"]) -> dict[str, Array]:
        result = {} if self.level is None else call_traced(self.level, "level", LEVEL, hidden, mask)
        statistics = {} if self.level is None else _check_rows(result, len(mask))
        return {**statistics, _FINITE: jnp.all(jnp.isfinite(hidden), axis=(1, 2))}


def _check_finite(model: Model | Recorded, finite: Bool[np.ndarray, "levels texts"], rows: np.ndarray) -> None:
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
        problem = "some have other rows" if isinstance(statistics, dict) else f"one returns {shown(statistics)}"
        rule = "have functions that return dictionaries of arrays with one row per text"
        raise refusal("measure", rule, problem, "return {'mean': jnp.mean(hidden, axis=(1, 2))}, say")
    return statistics


def _made(measure: Any, ids: np.ndarray, mask: np.ndarray) -> Measure:
    if isinstance(measure, Measure):
        return measure
    result = measure(ids, mask)
    return check_instance(result, "measure", Measure, "a Measure, or return one", "return Measure(level=...), say")


def _names(model: Model | Recorded, measure: Any, batch: tuple[np.ndarray, ...]) -> list[str]:
    """The names of all statistics of a measure, without running the network."""
    # `eval_shape` computes shapes alone: no network runs, and nothing is compiled.
    batch_measure, (size, n), dtype = _made(measure, *batch[2:]), batch[2].shape, dtype_of(model)
    width = model.hidden.shape[-1] if isinstance(model, Recorded) else model.network.sizes.hidden_size
    hidden = jax.ShapeDtypeStruct((size, n, width), dtype)
    heads = 1 if batch_measure.layer is None else model.num_heads
    attention = jax.ShapeDtypeStruct((size, heads, n, n), dtype)
    mask = jax.ShapeDtypeStruct((size, n), bool)
    level, layer = batch_measure.level, batch_measure.layer
    levels = {} if level is None else eqx.filter_eval_shape(partial(call_traced, level, "level", LEVEL), hidden, mask)
    arguments = (hidden, attention, mask, jax.ShapeDtypeStruct((size, n, n), bool))[: batch_measure.arity]
    layers = {} if layer is None else eqx.filter_eval_shape(partial(call_traced, layer, "layer", LAYER), *arguments)
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


def _batches(data: Encoded, size: int, done: int) -> Iterator[tuple[np.ndarray, ...]]:
    """The rows of each batch; these with the copies, which are not counted, that fill the last batch; its arrays."""
    for start in range(done, len(data.mask), size):
        rows = np.arange(start, min(start + size, len(data.mask)))
        # Copies of the first row give the last batch the shape of the others.
        filled = np.concatenate([rows, np.full(size - len(rows), rows[0])])
        longest = int(np.flatnonzero(data.mask[rows].any(axis=0))[-1]) + 1
        # A power of two: texts of up to 512 tokens give six widths, hence at most six programs.
        width = min(data.mask.shape[1], max(_NARROWEST, 1 << (longest - 1).bit_length()))
        yield rows, filled, data.token_ids[filled, :width], data.mask[filled, :width]


def digest(arrays: Sequence[np.ndarray]) -> str:
    """A hash of the arrays, with their shapes and dtypes."""
    hasher = hashlib.sha256()
    for array in arrays:
        # Shape and dtype are hashed too, since arrays with the same bytes may differ in them.
        hasher.update(repr((array.shape, str(array.dtype))).encode() + np.ascontiguousarray(array).tobytes())
    return hasher.hexdigest()


def check_surveyed(model: Any, batch_size: Any, store: Any, say: Any) -> None:
    """Raise a ValueError unless these arguments of a survey are valid."""
    check_measured(model)
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
