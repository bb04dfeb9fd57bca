"""What figure 1 measures of a network: how alike its tokens are, with and without the special tokens, and how near to a
normal distribution.

The tokens of a text are in many pairs, so that pairs are not independent, and texts are: every error and every test is
over texts. What is said of "one cluster" does not depend on the length of a text: with two special tokens apart from 62
words, 93.8 % of the pairs are pairs of words, with 126 words 96.9 %, and so no share of pairs says whether there is one
cluster.
"""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from scipy.special import ndtr

from .. import probe
from ..probe._bridge import _embed
from ..probe._similarity import _measure_of
from ..probe._stream import Measure
from ..probe._survey import dtype_of, survey
from ..probe._tally import Average, average_of
from ._networks import Network


BINS = 200
NEAR = 0.9
MIDDLE = (0.25, 0.75)  # the quantiles between which a spike has half of the pairs
GRID = np.linspace(-1.0, 1.0, 801)
RESAMPLES = 999
_BATCH = 8


class Alike(NamedTuple):
    """How alike some tokens of each text are, level by level; each `Average` is over texts, its first axis the level.

    **Attributes:**

    - `density`: Of the cosines of the pairs, (levels, bins); between `edges`.
    - `cosine`: The mean cosine.
    - `near_mass`: The share of the pairs with a cosine above 0.9.
    - `num_clusters`: Clusters, joined by chains of cosines of 0.9 or more.
    - `single`: Whether there is one such cluster: the mean is the share of the texts.
    - `height`: The largest density above 0.9: the height of the spike, if there is one.
    - `top`: The largest density anywhere.
    - `width`: Between the quartiles of the cosines: a spike is the sharper the narrower it is.
    - `edges`: Of the bins, (bins + 1,).

    Source: this library.
    """

    density: Average
    cosine: Average
    near_mass: Average
    num_clusters: Average
    single: Average
    height: Average
    top: Average
    width: Average
    edges: np.ndarray

    @property
    def mode(self) -> np.ndarray:
        """The cosine at which the mean density is largest, (levels,)."""
        return (self.edges[:-1] + np.diff(self.edges) / 2)[self.density.mean.argmax(axis=1)]


class Both(NamedTuple):
    """The same with all tokens, and without the special ones.

    Source: this library.
    """

    every: Alike
    words: Alike


def measure_alike(
    model: probe.Model, texts: probe.Encoded, *, special: Sequence[int], store: str | os.PathLike[str] | None = None
) -> Both:
    """How alike the tokens of the texts are at each level of a network, with and without the ids `special`.

    **Raises:**

    - `ValueError` if a text has fewer than two other tokens, and as `probe.similarity_histograms`.

    Source: this library; see `probe.similarity_histograms`.
    """
    few = np.flatnonzero(_words(texts.token_ids, texts.mask, special).sum(axis=1) < 2)
    if few.size:
        raise ValueError(
            f"texts must have two words each beside the special tokens, but text {few[0]} has fewer; leave it out, or "
            "cut texts to more tokens."
        )
    of_level = _measure_of(BINS, NEAR, MIDDLE, False, dtype_of(model))
    found = survey(
        model, texts, lambda ids, mask: Measure(_OfBoth(of_level, jnp.asarray(_words(ids, mask, special)))),
        keep=[f"{which} {name}" for which in Both._fields for name in _KEPT], store=store,
        settings={"measure": "figure 1", "bins": BINS, "near": NEAR, "special": sorted(map(int, special))},
    ).levels  # fmt: skip
    edges = np.asarray(of_level.edges, np.float64)
    return Both(*(_alike({name: found[f"{which} {name}"] for name in _NAMES}, edges) for which in Both._fields))


_KEPT = ("cosine", "near_mass", "num_clusters", "height", "top", "width")
_NAMES = ("density", *_KEPT)


def _alike(found: dict[str, Average], edges: np.ndarray) -> Alike:
    clusters = found["num_clusters"].values
    assert clusters is not None
    return Alike(**found, single=average_of((clusters == 1).astype(float)), edges=edges)


def _words(ids: np.ndarray, mask: np.ndarray, special: Sequence[int]) -> np.ndarray:
    return np.asarray(mask) & ~np.isin(ids, np.asarray(list(special), np.int64))


class _OfBoth(eqx.Module):
    """The statistics of one level, of all tokens and of those of `words`, one row a text."""

    of_level: Any
    words: Bool[Array, "batch n"]

    def __call__(self, hidden: Float[Array, "batch n d"], mask: Bool[Array, "batch n"]) -> dict[str, Array]:
        found = {}
        for which, counted in zip(Both._fields, (mask, self.words), strict=True):
            numbers = self.of_level(hidden, counted)
            spike = jnp.where(self.of_level.edges[:-1] >= NEAR - 1e-6, 1, 0).astype(hidden.dtype)
            numbers["height"] = jnp.max(numbers["density"] * spike[None], axis=1)
            numbers["top"] = jnp.max(numbers["density"], axis=1)
            numbers["width"] = numbers["quantiles"][:, 1] - numbers["quantiles"][:, 0]
            found |= {f"{which} {name}": numbers[name] for name in _NAMES}
        return found


def special_ids(found: Network) -> tuple[int, ...]:
    """The ids that stand at the ends of every text: [CLS] and [SEP], or what the network has in their place.

    Source: this library.
    """
    if found.special is not None:
        return tuple(sorted(set(found.special.values())))
    names = ("cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id")
    ids = (getattr(found.model.tokenizer, name, None) for name in names)
    return tuple(sorted({int(one) for one in ids if one is not None}))


class Normality(NamedTuple):
    r"""How far a distribution is from the normal one of the same mean and spread.

    **Attributes:**

    - `distance`: $D = \sup_x |F(x) - \Phi((x - m) / s)|$, of Kolmogorov and Lilliefors: 0 for a normal distribution,
        0.023 for a logistic, 0.057 for a uniform, 0.062 for a Laplace, 0.159 for an exponential one.
    - `upper`: What D is below, with 95 % confidence.
    - `p`: How often a normal distribution would have a D as large, by chance.
    - `mean`, `spread`: m and s.

    Source: this library.
    """

    distance: float
    upper: float
    p: float
    mean: float
    spread: float


def normality_of(model: probe.Model, texts: probe.Encoded, special: Sequence[int], rng: np.random.Generator):
    """The `Normality` of the cosines before the first layer, without the ids `special`; () keeps all tokens.

    Source: this library.
    """
    words, pairs = _words(texts.token_ids, texts.mask, special), []
    for start in range(0, len(words), _BATCH):
        rows = np.minimum(np.arange(start, start + _BATCH), len(words) - 1)  # one shape, so that one compilation serves
        hidden = np.asarray(_embed(model, texts.token_ids[rows], texts.mask[rows]), np.float64)
        for x, word in zip(hidden, words[start : start + _BATCH], strict=False):
            unit = x[word] / np.linalg.norm(x[word], axis=1, keepdims=True)
            pairs.append((unit @ unit.T)[np.triu_indices(len(unit), 1)])
    return normality(pairs, rng)


def normality(texts: Sequence[np.ndarray], rng: np.random.Generator) -> Normality:
    r"""A test of normality for numbers that come in independent groups, one a text, but depend on each other within.

    The distribution of $D$ is that of the resampled texts: of $\sup_x |(F^* - \Phi^*) - (F - \Phi)|$, with mean and
    spread fitted anew each time. Each text counts as one.

    **Arguments:**

    - `texts`: The numbers of each text, two texts at least, from -1 to 1.
    - `rng`: Resamples.

    ??? cite "Source"

        Babu and Rao, *Goodness-of-fit tests when parameters are estimated* (Sankhya 66, 2004): the nonparametric
        bootstrap. Texts in place of numbers: this library.
    """
    below = np.array([np.searchsorted(np.sort(one), GRID, side="right") / len(one) for one in texts])
    moments = np.array([(one.mean(), np.mean(one**2)) for one in texts])
    many = len(texts)
    weights = np.concatenate(
        [np.full((1, many), 1 / many), rng.multinomial(many, np.full(many, 1 / many), size=RESAMPLES) / many]
    )
    mean, square = (weights @ moments).T
    spread = np.sqrt(square - mean**2)
    apart = weights @ below - ndtr((GRID[None] - mean[:, None]) / spread[:, None])
    distance = float(np.abs(apart[0]).max())
    drawn = np.abs(apart[1:] - apart[0]).max(axis=1)
    chance = (1 + int((drawn >= distance).sum())) / (1 + RESAMPLES)
    upper = distance + float(np.quantile(drawn, 0.95))
    return Normality(distance, upper, chance, float(mean[0]), float(spread[0]))


def distances(density: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """D of histograms (levels, bins), from the normal distribution of their mean and spread, at the edges of the bins;
    NaN where that spread is less than two bins, which do not tell one distribution from another.

    Source: this library; the spread is corrected for the bins, as by Sheppard.
    """
    widths = np.diff(edges)
    mass = density * widths
    mass = mass / mass.sum(axis=1, keepdims=True)
    middle = edges[:-1] + widths / 2
    mean = mass @ middle
    square = mass @ middle**2 - widths.mean() ** 2 / 12
    spread = np.sqrt(np.maximum(square - mean**2, 0.0))
    spread = np.where(spread < 2 * widths.mean(), np.nan, spread)
    below = np.concatenate([np.zeros((len(mass), 1)), np.cumsum(mass, axis=1)], axis=1)
    return np.abs(below - ndtr((edges[None] - mean[:, None]) / spread[:, None])).max(axis=1)
