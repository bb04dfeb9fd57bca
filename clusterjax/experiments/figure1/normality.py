"""How far the cosines of a network's tokens are from normally distributed, with a test by resampling texts.

The statistic is Lilliefors': D = sup_x |F(x) - Phi((x - m) / s)|, with m and s the mean and spread of the numbers
themselves. Its tables hold for independent numbers only, and pairs of tokens of one text are not independent. The null
distribution is therefore that of a bootstrap over articles (Babu and Rao 2004), each with all its texts, in which m and
s are fitted anew each time: without that the fit would make D look smaller than chance does. Each text counts as one,
however many pairs it has.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from ... import probe
from ...probe.measures.tally import units_of
from ...probe.particle_bridge.particles import embedded_directions
from .words import words_of


GRID = np.linspace(-1.0, 1.0, 801)
RESAMPLES = 999
_BATCH = 8


class Normality(NamedTuple):
    r"""How far a distribution is from the normal one of the same mean and spread.

    **Attributes:**

    - `distance`: $D = \sup_x |F(x) - \Phi((x - m) / s)|$, of Kolmogorov and Lilliefors: 0 for a normal distribution,
        0.023 for a logistic, 0.057 for a uniform, 0.062 for a Laplace, 0.159 for an exponential one.
    - `upper`: What D is below, with 95 % confidence.
    - `p`: How often a normal distribution would have a D as large, by chance.
    - `mean`, `spread`: m and s.
    """

    distance: float
    upper: float
    p: float
    mean: float
    spread: float


def normality_of(
    model: probe.Model, texts: probe.Encoded, special: Sequence[int], rng: np.random.Generator, articles: np.ndarray
) -> Normality:
    """The `Normality` of the cosines before the first layer, without the ids `special`; () keeps all tokens. `articles`
    are the independent units of the texts."""
    words, pairs = words_of(texts.token_ids, texts.mask, special), []
    for start in range(0, len(words), _BATCH):
        # The last batch repeats the last text up to the full size, so that one compiled program serves all batches.
        rows = np.minimum(np.arange(start, start + _BATCH), len(words) - 1)
        hidden = np.asarray(embedded_directions(model, texts.token_ids[rows], texts.mask[rows]), np.float64)
        for x, word in zip(hidden, words[start : start + _BATCH], strict=False):
            unit = x[word] / np.linalg.norm(x[word], axis=1, keepdims=True)
            pairs.append((unit @ unit.T)[np.triu_indices(len(unit), 1)])
    return normality(pairs, rng, articles)


def normality(texts: Sequence[np.ndarray], rng: np.random.Generator, articles: np.ndarray) -> Normality:
    r"""A test of normality for numbers that come in independent groups, the texts of one article, but depend on each
    other within.

    The distribution of $D$ is that of the resampled articles: of $\sup_x |(F^* - \Phi^*) - (F - \Phi)|$, with mean and
    spread fitted anew each time. Each text counts as one.

    **Arguments:**

    - `texts`: The numbers of each text, two texts at least, from -1 to 1.
    - `rng`: Resamples.
    - `articles`: The article of each text, (texts,).

    ??? cite "Source"

        Babu and Rao, *Goodness-of-fit tests when parameters are estimated* (Sankhya 66, 2004): the nonparametric
        bootstrap. Articles in place of numbers: this library.
    """
    # Distribution functions of the texts on a fixed grid, (texts, grid): a resample is then one product of matrices.
    below = np.array([np.searchsorted(np.sort(one), GRID, side="right") / len(one) for one in texts])
    moments = np.array([(one.mean(), np.mean(one**2)) for one in texts])
    of = units_of(articles, len(texts))
    many = len(np.unique(of))
    # The first row weighs all texts alike: it is the sample itself; the others are resamples.
    drawn = rng.multinomial(many, np.full(many, 1 / many), size=RESAMPLES)
    counts = np.concatenate([np.ones((1, many)), drawn])[:, of]
    weights = counts / counts.sum(axis=1, keepdims=True)
    mean, square = (weights @ moments).T
    spread = np.sqrt(square - mean**2)
    apart = weights @ below - ndtr((GRID[None] - mean[:, None]) / spread[:, None])
    distance = float(np.abs(apart[0]).max())
    # Centred at the sample's own deviation, as the bootstrap of a fitted hypothesis must be.
    drawn = np.abs(apart[1:] - apart[0]).max(axis=1)
    # The sample counts among its resamples, so that the probability is never 0.
    chance = (1 + int((drawn >= distance).sum())) / (1 + RESAMPLES)
    upper = distance + float(np.quantile(drawn, 0.95))
    return Normality(distance, upper, chance, float(mean[0]), float(spread[0]))


def distances(density: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """D of histograms (levels, bins), from the normal distribution of their mean and spread, at the edges of the bins;
    NaN where that spread is less than two bins, which do not tell one distribution from another.

    The spread is corrected for the bins, as by Sheppard.
    """
    widths = np.diff(edges)
    mass = density * widths
    mass = mass / mass.sum(axis=1, keepdims=True)
    middle = edges[:-1] + widths / 2
    mean = mass @ middle
    # Sheppard: a histogram has the variance of its numbers and that of a uniform distribution over a bin.
    square = mass @ middle**2 - widths.mean() ** 2 / 12
    spread = np.sqrt(np.maximum(square - mean**2, 0.0))
    spread = np.where(spread < 2 * widths.mean(), np.nan, spread)
    below = np.concatenate([np.zeros((len(mass), 1)), np.cumsum(mass, axis=1)], axis=1)
    return np.abs(below - ndtr((edges[None] - mean[:, None]) / spread[:, None])).max(axis=1)
