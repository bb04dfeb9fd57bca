"""The similarity of the tokens at each level of a network, over many texts: figure 1.

One (n, n) product of the unit tokens of a text gives all its cosines.

Invariants: no token is compared with itself; padding enters no number; each text has the same weight, whatever its
length; histograms are counted in integers, so that no pair is lost to rounding.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Real

from ..._base.checks import check_array, check_concrete, check_flag, check_number, check_tokens
from ..._base.numerics import matmul, normalise
from ..._base.summary import short, summary
from ..._observables import effective_rank
from ..._observables.clusters import components
from ..._observables.similarity import among, among_equal, check_edges
from ..networks.batch import Encoded
from ..networks.load import Model
from ..networks.recorded import Recorded
from ..networks.token_ids import check_mask
from .sinks import OfKept, check_enough, check_kept, kept_tokens
from .survey import Average, Measure, Tally, check_surveyed, dtype_of, encoded, survey
from .table import tabled


_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_SCALARS = ("cosine", "near_mass", "effective_rank", "num_clusters")
_Bins = int | Real[np.ndarray | Array, " edges"]


@tabled(
    "level",
    edges="edge",
    density="level bin",
    probabilities="quantile",
    quantiles="level quantile",
    cosine="level",
    near_mass="level",
    effective_rank="level",
    num_clusters="level",
)
class Similarity(NamedTuple):
    """The result of `similarity_histograms`; each `Average` is over texts, its first axis the level.

    **Attributes:**

    - `edges`: The edges of the bins, (bins + 1,).
    - `density`: The density of the cosines of the pairs i < j of a text, (levels, bins); it integrates to the fraction
        of the pairs within the edges, which is 1 if the edges span [-1, 1].
    - `probabilities`: The probabilities of the quantiles.
    - `quantiles`: The quantiles of each text, (levels, quantiles), interpolated within the bins of its histogram, hence
        with an error below the width of a bin.
    - `cosine`: The mean cosine of the pairs, (levels,).
    - `near_mass`: The fraction of the pairs with a cosine above `near`, (levels,).
    - `effective_rank`: The effective rank of the normalised tokens of a text, (levels,); NaN if not requested.
    - `num_clusters`: Connected components of the graph that joins tokens with a cosine of at least `near`, (levels,).
    - `near`: The cosine above which a pair is near.
    """

    edges: np.ndarray
    density: Average
    probabilities: np.ndarray
    quantiles: Average
    cosine: Average
    near_mass: Average
    effective_rank: Average
    num_clusters: Average
    near: float

    __repr__ = short

    def summary(self) -> str:
        """A summary in a few lines: each statistic over texts as mean ± standard error."""
        return summary(self, leave_out=("edges", "density", "probabilities"))

    @property
    def radius(self) -> float:
        """The distance between unit vectors with the cosine `near`, $√(2(1-c))$: the radius of the clusters."""
        return float(np.sqrt(2 * (1 - self.near)))


def similarity_histograms(
    model: Model | Recorded,
    texts: Sequence[str] | Encoded | None = None,
    *,
    bins: _Bins = 200,
    near: float = 0.9,
    quantiles: Sequence[float] = _QUANTILES,
    rank: bool = True,
    leave_out: Sequence[int] = (),
    without_first: bool = False,
    length: int | None = None,
    batch_size: int = 8,
    store: str | os.PathLike[str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Similarity:
    """The distribution of $⟨x_i, x_j⟩ / (|x_i||x_j|)$, i < j, at each level of a network, over texts.

    A token is never compared with itself, so that there is no peak of mass 1/n at similarity 1, and padding enters no
    number. Each text has the same weight: its histogram integrates to 1, whatever its length, and the errors are those
    of a mean over texts. Memory is that of one batch at one layer; see `survey`. The result is meaningful only beside
    `controls`. Special tokens, and the first token of a causal network, are often far from all others and occur in many
    pairs: `leave_out` and `without_first` restrict the measurement to the words.

    !!! example

        ```python
        >>> from clusterjax import probe
        >>> model = probe.load()
        >>> texts = probe.encode(model, probe.bundled_texts()[:4], length=32)
        >>> found = probe.similarity_histograms(model, texts, bins=20, rank=False)
        >>> found.cosine.mean.shape  # levels 0 to 12
        (13,)
        >>> bool(found.cosine.mean[-1] > found.cosine.mean[0] + 0.2)  # tokens become alike
        True
        ```

    **Arguments:**

    - `model`: The model that `load` returned, or what `from_arrays` returned.
    - `texts`: The texts, or their `Encoded` form; None for what `from_arrays` returned. Each has at least two tokens.

    **Other arguments:**

    - `bins`: The number of equal bins of [-1, 1], or increasing edges; the histogram ignores cosines beyond the edges.
    - `near`: The cosine above which a pair is near; it also defines the clusters.
    - `quantiles`: The probabilities of the quantiles, between 0 and 1.
    - `rank`: If True, compute the effective rank, which takes longer than everything else together.
    - `leave_out`: Ids of tokens that enter no number, such as `special_ids(model)`; the network still reads them.
    - `without_first`: If True, the first token of each text enters no number.
    - `length`, `batch_size`, `store`, `say`: As in `survey`.

    **Returns:**

    A `Similarity`.

    **Raises:**

    - `ValueError` if `near` is not in [-1, 1), a quantile is no probability, `bins` is neither a positive integer nor
        increasing edges, `leave_out` has no ids, fewer than two tokens are left, or in the cases of `survey`.

    **Warns:** if `length` is None and texts exceed the positions of the model; the warning states their number.

    ??? cite "Source"

        Peat, *Clustering in Transformers*, Figure 1; Geshkovski et al., *A mathematical perspective on transformers*
        (2312.10794), Section 1, whose code also counts the pairs i = j. The rank: Roy and Vetterli, *The effective
        rank* (EUSIPCO 2007).
    """
    check_surveyed(model, batch_size, store, say)
    _check_options(bins, near, quantiles, rank)
    leave_out, without_first = check_kept(leave_out, without_first)
    data = encoded(model, texts, length)
    check_enough(data, leave_out, without_first)
    # Edges and thresholds are arrays of the measure, so that other values do not trigger compilation.
    measure = _measure_of(bins, near, quantiles, rank, dtype_of(model))
    near, quantiles = float(near), np.asarray(quantiles, np.float64).tolist()
    settings = {
        "measure": "similarity", "edges": np.asarray(measure.edges).tolist(), "near": near,
        "quantiles": quantiles, "rank": bool(rank),
    }  # fmt: skip
    batch_measure: Measure | Callable[[Any, Any], Measure] = Measure(level=measure)
    if leave_out or without_first:
        # These settings are written only on request, so that stores of all tokens remain readable.
        settings |= {"leave_out": list(leave_out), "without_first": without_first}
        # One measure for each batch: the kept tokens are an array of the measure, so nothing is recompiled.
        batch_measure = lambda ids, mask: Measure(
            level=OfKept(measure, jnp.asarray(kept_tokens(ids, mask, leave_out, without_first)))
        )
    surveyed = survey(
        model, data, batch_measure, batch_size=batch_size, keep=_SCALARS, settings=settings, store=store, say=say,
    )  # fmt: skip
    return _similarity(measure, near, surveyed.levels)


def similarity_of_hidden(
    hidden: Float[Array | np.ndarray, "texts levels n d"],
    mask: ArrayLike | Sequence[Any] | None = None,
    *,
    bins: _Bins = 200,
    near: float = 0.9,
    quantiles: Sequence[float] = _QUANTILES,
    rank: bool = True,
) -> Similarity:
    """The statistics of `similarity_histograms` from given hidden states.

    **Arguments:**

    - `hidden`: (texts, levels, n, d), such as `trace(...).hidden`, or the tokens of a simulation.
    - `mask`: (texts, n), True or 1 at words; None if nothing is padding.

    **Other arguments:**

    - `bins`, `near`, `quantiles`, `rank`: As in `similarity_histograms`.

    **Returns:**

    A `Similarity`.

    **Raises:**

    - `ValueError` if `hidden` does not have four dimensions, is not finite or has a zero token, `mask` does not fit it,
        has other numbers than 0 and 1 or leaves fewer than two tokens, or in the cases of `similarity_histograms`.

    ??? cite "Source"

        See `similarity_histograms`.
    """
    for name, value in (("hidden", hidden), ("mask", mask)):
        check_concrete(value, name)
    axes = ("texts", "levels", "n", "d")
    hidden = check_array(hidden, "hidden", shape=axes, finite=False, remedy="pass trace(...).hidden, or add axes")
    _check_options(bins, near, quantiles, rank)
    measure = _measure_of(bins, near, quantiles, rank, hidden.dtype)
    mask = np.asarray(check_mask(mask, (hidden.shape[0], hidden.shape[2]), "texts and tokens"))
    short = np.flatnonzero(mask.sum(axis=1) < 2)
    if short.size:
        raise ValueError(
            f"mask must leave each text at least two tokens, but text {short[0]} has {mask[short[0]].sum()}; leave it "
            "out."
        )
    # Padding may contain anything and is not checked.
    words = np.asarray(hidden).swapaxes(1, 2)[mask]  # (all words, levels, d)
    check_tokens(words.reshape(-1, words.shape[-1]), "hidden")
    if not words.any(axis=-1).all():
        raise ValueError("hidden must have no zero token, but a word is zero; leave it out by the mask.")
    # The sums are those of a survey, so that both functions give identical numbers.
    tally = Tally()
    for name, array in _by_level(measure, hidden, jnp.asarray(mask, bool)).items():
        tally.add(name, np.moveaxis(np.asarray(array), 1, 0), keep=name in _SCALARS)
    tally.texts = hidden.shape[0]
    return _similarity(measure, near, {name: tally.average(name) for name in tally.names()})


# One level at a time: all at once would hold levels x texts x n x n cosines.
@eqx.filter_jit
def _by_level(measure: "_OfLevel", hidden: Array, mask: Array) -> dict[str, Array]:
    return lax.map(lambda level: measure(level, mask), jnp.moveaxis(hidden, 1, 0))


class _OfLevel(eqx.Module):
    """The statistics of one level, one row per text."""

    edges: Float[Array, " edges"]
    near: Float[Array, ""]
    probabilities: Float[Array, " quantiles"]
    equal: bool = eqx.field(static=True)
    rank: bool = eqx.field(static=True)

    def __call__(self, hidden: Float[Array, "batch n d"], mask: Bool[Array, "batch n"]) -> dict[str, Array]:
        return jax.vmap(self._of_text)(hidden, mask)

    def _of_text(self, x: Float[Array, "n d"], word: Bool[Array, " n"]) -> dict[str, Array]:
        # Rows of padding are zero and stay zero; their cosines are masked below.
        unit = jnp.where(word[:, None], normalise(x), jnp.zeros_like(x))
        cosines = jnp.clip(matmul(unit, unit.T), -1, 1)
        word_pairs, place = word[:, None] & word[None, :], jnp.arange(x.shape[0])
        pairs = word_pairs & (place[:, None] < place[None, :])
        count = jnp.sum(pairs).astype(x.dtype)
        # One count of the pairs gives histogram and quantiles, without sorting n^2 / 2 cosines.
        density, quantiles = self._histogram(cosines, pairs)
        # `components` expects a reflexive relation, hence the diagonal; each padding token is its own component.
        joined = (word_pairs & (cosines >= self.near)) | jnp.eye(x.shape[0], dtype=bool)
        return {
            "density": density,
            "quantiles": quantiles,
            "cosine": jnp.sum(jnp.where(pairs, cosines, jnp.zeros_like(cosines))) / count,
            "near_mass": jnp.sum(pairs & (cosines > self.near)).astype(x.dtype) / count,
            # Zero rows add zero singular values, which do not change the rank.
            "effective_rank": effective_rank(unit) if self.rank else jnp.full((), jnp.nan, x.dtype),
            # The label of a component is its first member, so components are words that are their own label.
            "num_clusters": jnp.sum(word & (components(joined) == place)).astype(x.dtype),
        }

    def _histogram(self, cosines: Array, pairs: Array) -> tuple[Array, Array]:
        bins = self.edges.shape[0] - 1
        # Equal bins are found by arithmetic, others by a binary search.
        which = (among_equal if self.equal else among)(self.edges, cosines)
        # The last bin is closed on both sides, as in `numpy.histogram`.
        which = jnp.where(cosines == self.edges[-1], bins - 1, which)
        # Pairs below the first edge count for the quantiles but not for the histogram.
        lower = jnp.sum(pairs & (which < 0)).astype(cosines.dtype)
        # An extra bin collects the pairs that are not counted, and is dropped.
        which = jnp.where(pairs & (which >= 0) & (which < bins), which, bins)
        # Integers, because a float32 count would stop growing at 2^24.
        counts = jnp.zeros(bins + 1, jnp.int32).at[which.ravel()].add(1)[:-1].astype(cosines.dtype)
        total = jnp.sum(pairs).astype(cosines.dtype)
        # Sums of whole numbers are exact (below 2^24 in float32), so that a quantile on the edge between two bins is
        # always assigned to the lower one.
        below = lower + jnp.concatenate([jnp.zeros(1, counts.dtype), jnp.cumsum(counts)])
        ranks = self.probabilities * total
        # The first bin whose upper edge has the wanted number of pairs below it.
        k = jnp.minimum(jnp.sum(below[None, 1:] < ranks[:, None], axis=1), bins - 1)
        width = jnp.diff(self.edges)
        # The fraction of bin k, by linear interpolation; in an empty bin the quantile is the lower edge.
        inside = (ranks - below[k]) / jnp.where(counts[k] > 0, counts[k], jnp.ones_like(counts[k]))
        return counts / total / width, self.edges[k] + width[k] * jnp.clip(inside, 0, 1)


def _check_options(bins: Any, near: Any, quantiles: Any, rank: Any) -> None:
    check_concrete(bins, "bins")
    check_number(near, "near", least=-1, below=1, remedy="pass the cosine 0.9, say")
    check_concrete(quantiles, "quantiles")
    remedy = "pass probabilities such as (0.5,)"
    check_array(quantiles, "quantiles", shape=("quantiles",), least=0, most=1, remedy=remedy)
    check_flag(rank, "rank")


def _measure_of(bins: Any, near: Any, quantiles: Sequence[float], rank: bool, dtype: Any) -> _OfLevel:
    edges, probabilities = check_edges(bins, dtype), jnp.asarray(quantiles).astype(dtype)
    return _OfLevel(edges, jnp.asarray(float(near), dtype), probabilities, np.ndim(bins) == 0, bool(rank))


def _similarity(measure: _OfLevel, near: float, averages: dict[str, Average]) -> Similarity:
    return Similarity(
        edges=np.asarray(measure.edges, np.float64), probabilities=np.asarray(measure.probabilities, np.float64),
        near=float(near), **averages,
    )  # fmt: skip
