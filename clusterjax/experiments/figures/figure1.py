"""Figure 1 of Peat: the similarity of tokens in a trained network, layer by layer, with and without special tokens.

Pairs of tokens of one text are not independent, and passages of one article resemble each other, so that all errors and
tests are over articles. One cluster is judged by the number of clusters, because a share of pairs would depend on the
length of a text: if two special tokens are apart from 62 words, 93.8 % of the pairs are pairs of words, and 96.9 % if
there are 126 words.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import ndtr

from ... import probe
from ..._base.checks import refusal
from ..._base.numerics import matmul, normalise
from ...plot import style, time_series
from ...probe.measures.similarity import _measure_of
from ...probe.measures.survey import (
    Average,
    Clustered,
    Measure,
    average_of,
    clustered_error,
    dtype_of,
    survey,
    units_of,
)
from ...probe.particle_bridge.bridge import embedded_directions
from ..framework.experiment import MOST_OF_NETWORK, Claim, Say, Settings, parameter, percent, plus_minus
from ..framework.figure import Found, claim, figure
from ..shared.controls import COLOURS, DRAWS, LINES, NAMES, Run, beyond_both, measured, random_words, runs_of
from ..shared.ensemble import mean_and_error
from ..shared.layout import WIDTH, letter, one_legend
from ..shared.networks import Network, articles_words, each_text, further, network_of
from ..shared.sources import PEAT_FIGURE_1


BINS = 200
MERGED = 2  # the number of bins of the measurement in one bin of the picture
MIDDLE = (0.25, 0.75)  # the quantiles between which the width of a spike is measured
NEAR = 0.9
NORMAL = 0.025  # the bound on D for a nearly normal distribution; D of a logistic distribution is 0.023
SINGLE = 0.95  # the share of the texts that must be one cluster
GRID = np.linspace(-1.0, 1.0, 801)
RESAMPLES = 999
BATCH = 8
WHICH = {"every": "", "words": ", without special tokens"}
STATISTICS = ("cosine", "near_mass", "num_clusters", "height", "top", "width")
CONTROLS = ("shuffled", "random weights")
SPECIAL, WORDS = "trained, special tokens included", "trained, words alone"


@dataclass(frozen=True)
class Parameters:
    draws: int = parameter(DRAWS, "the number of networks of random weights", least=2, most=32)
    late: int = parameter(90, "the layer at which a spike is expected, at most the last layer", least=1, most=10_000)
    depth: int = parameter(0, "the number of layers that are applied; 0 is eight times the depth of training", least=0,
                           most=MOST_OF_NETWORK)  # fmt: skip
    near: float = parameter(NEAR, "the cosine from which two tokens are near each other", least=0, most=0.99)


def words_of(ids: np.ndarray, mask: np.ndarray, special: Sequence[int]) -> np.ndarray:
    """True for each token that is neither padding nor one of the ids `special`, of the shape of `ids`."""
    return np.asarray(mask) & ~np.isin(ids, np.asarray(list(special), np.int64))


def special_ids(network: Network) -> tuple[int, ...]:
    """The ids of the tokens at the ends of every text, such as [CLS] and [SEP]."""
    # A network of phonemes has no tokenizer that names its special tokens.
    if network.special is not None:
        return tuple(sorted(set(network.special.values())))
    names = ("cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id")
    ids = (getattr(network.model.tokenizer, name, None) for name in names)
    return tuple(sorted({int(token_id) for token_id in ids if token_id is not None}))


# The distance of the cosines from a normal distribution, and a test that resamples articles.
#
# The statistic is D = sup_x |F(x) - Phi((x - m) / s)| of Lilliefors, where m and s are the mean and the standard
# deviation of the numbers. The tables of Lilliefors assume independent numbers, but pairs of tokens of one text are
# dependent. The null distribution is therefore the nonparametric bootstrap distribution (Babu and Rao, *Goodness-of-fit
# tests when parameters are estimated*, Sankhya 66, 2004) over articles in place of numbers, each with all its texts, of
# sup_x |(F* - Phi*) - (F - Phi)|. Each resample fits m and s anew: without new fits D would seem smaller than it is by
# chance. Each text has the same weight, whatever its number of pairs.


class Normality(NamedTuple):
    r"""The distance of a distribution from the normal distribution of the same mean and standard deviation."""

    # $D = sup_x |F(x) - Φ((x - m) / s)|$, of Kolmogorov and Lilliefors: 0 for a normal distribution, 0.023 for a
    # logistic, 0.057 for a uniform, 0.062 for a Laplace, 0.159 for an exponential distribution.
    distance: float
    upper: float  # the upper bound of D with 95 % confidence
    p: float  # the probability that a normal distribution has a D at least as large
    # `mean`, `spread`: m and s
    mean: float
    spread: float


def normality_of(
    model: probe.Model, texts: probe.Encoded, special: Sequence[int], rng: np.random.Generator, articles: np.ndarray
) -> Normality:
    """The `Normality` of the cosines before the first layer, without the ids `special`; () keeps all tokens."""
    words, pairs = words_of(texts.token_ids, texts.mask, special), []
    for start in range(0, len(words), BATCH):
        # The last batch repeats the last text up to the full size, so that one compiled program serves all batches.
        rows = np.minimum(np.arange(start, start + BATCH), len(words) - 1)
        hidden = np.asarray(embedded_directions(model, texts, rows), np.float64)
        for x, word in zip(hidden, words[start : start + BATCH], strict=False):
            unit = x[word] / np.linalg.norm(x[word], axis=1, keepdims=True)
            pairs.append((unit @ unit.T)[np.triu_indices(len(unit), 1)])
    return normality(pairs, rng, articles)


def normality(texts: Sequence[np.ndarray], rng: np.random.Generator, articles: np.ndarray) -> Normality:
    """The `Normality` of the numbers of two or more texts, from -1 to 1, which are dependent within an article."""
    # Distribution functions on a fixed grid, (texts, grid), make a resample one product of matrices.
    below = np.array([np.searchsorted(np.sort(values), GRID, side="right") / len(values) for values in texts])
    moments = np.array([(values.mean(), np.mean(values**2)) for values in texts])
    unit_of_text = units_of(articles, len(texts))
    num_units = len(np.unique(unit_of_text))
    # The first row weighs all texts alike and is the sample; the other rows are resamples.
    drawn = rng.multinomial(num_units, np.full(num_units, 1 / num_units), size=RESAMPLES)
    counts = np.concatenate([np.ones((1, num_units)), drawn])[:, unit_of_text]
    weights = counts / counts.sum(axis=1, keepdims=True)
    mean, square = (weights @ moments).T
    spread = np.sqrt(square - mean**2)
    deviation = weights @ below - ndtr((GRID[None] - mean[:, None]) / spread[:, None])
    distance = float(np.abs(deviation[0]).max())
    # The bootstrap of a fitted hypothesis is centred at the deviation of the sample.
    drawn = np.abs(deviation[1:] - deviation[0]).max(axis=1)
    # The sample counts as one of its resamples, so that the probability is never 0.
    chance = (1 + int((drawn >= distance).sum())) / (1 + RESAMPLES)
    return Normality(distance, distance + float(np.quantile(drawn, 0.95)), chance, float(mean[0]), float(spread[0]))


def distances(density: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """D of each of the histograms (levels, bins), at the edges of the bins; NaN where the standard deviation is less
    than two bins, because so few bins determine no distribution."""
    widths = np.diff(edges)
    mass = density * widths
    mass = mass / mass.sum(axis=1, keepdims=True)
    middle = edges[:-1] + widths / 2
    mean = mass @ middle
    # Sheppard's correction: the variance of a histogram exceeds the variance of its numbers by the variance within a
    # bin.
    square = mass @ middle**2 - widths.mean() ** 2 / 12
    spread = np.sqrt(np.maximum(square - mean**2, 0.0))
    spread = np.where(spread < 2 * widths.mean(), np.nan, spread)
    below = np.concatenate([np.zeros((len(mass), 1)), np.cumsum(mass, axis=1)], axis=1)
    return np.abs(below - ndtr((edges[None] - mean[:, None]) / spread[:, None])).max(axis=1)


class Alike(NamedTuple):
    """The similarity of some tokens of each text at each level; each `Average` is over texts, with the levels first."""

    density: Average  # the density of the cosines of the pairs, (levels, bins), between `edges`, (bins + 1,)
    cosine: Average  # the mean cosine
    near_mass: Average  # the share of the pairs with a cosine above `Parameters.near`
    num_clusters: Average  # the number of clusters, which chains of cosines of `Parameters.near` or more connect
    single: Average  # 1 if there is one cluster and 0 otherwise, so that the mean is a share of the texts
    height: Average  # the height of the spike: the largest density above `Parameters.near`
    top: Average  # the largest density
    width: Average  # the distance between the quartiles of the cosines
    edges: np.ndarray

    @property
    def mode(self) -> np.ndarray:
        """The cosine at which the mean density is largest, (levels,)."""
        return (self.edges[:-1] + np.diff(self.edges) / 2)[self.density.mean.argmax(axis=1)]


class Both(NamedTuple):
    """The similarity of all tokens, `every`, and of the tokens without the special tokens, `words`.

    `apart` is the mean cosine between special tokens and words, (levels,); NaN if there are no special tokens.
    """

    every: Alike
    words: Alike
    apart: Average


def measure_alike(
    model: probe.Model,
    texts: probe.Encoded,
    *,
    special: Sequence[int],
    near: float = NEAR,
    store: str | os.PathLike[str] | None = None,
) -> Both:
    """The similarity of the tokens of the texts at each level of a network, measured as by
    `probe.similarity_histograms`, with and without the ids `special`. Raises a ValueError if a text has fewer than two
    words."""
    few = np.flatnonzero(words_of(texts.token_ids, texts.mask, special).sum(axis=1) < 2)
    if few.size:
        problem = f"text {few[0]} has fewer"
        raise refusal(
            "texts", "have two words each beside the special tokens", problem, "leave it out, or cut less off"
        )
    of_level = _measure_of(BINS, near, MIDDLE, False, dtype_of(model))
    averages = survey(
        model, texts, lambda ids, mask: Measure(_OfBoth(of_level, near, jnp.asarray(words_of(ids, mask, special)))),
        keep=[f"{which} {name}" for which in WHICH for name in STATISTICS] + ["apart"], store=store,
        settings={"measure": "figure 1", "bins": BINS, "near": near, "special": sorted(map(int, special))},
    ).levels  # fmt: skip
    # Densities are summed on the host, in double precision.
    edges = np.asarray(of_level.edges, np.float64)
    return Both(_alike(averages, "every", edges), _alike(averages, "words", edges), averages["apart"])


def _alike(averages: dict[str, Average], which: str, edges: np.ndarray) -> Alike:
    means = {name: averages[f"{which} {name}"] for name in ("density", *STATISTICS)}
    return Alike(**means, single=average_of((each_text(means["num_clusters"]) == 1).astype(float)), edges=edges)


class _OfBoth(eqx.Module):
    """The statistics of one level for all tokens and for the tokens of `words`, one row for each text."""

    of_level: Any
    near: float = eqx.field(static=True)
    words: Bool[Array, "batch n"]

    def __call__(self, hidden: Float[Array, "batch n d"], mask: Bool[Array, "batch n"]) -> dict[str, Array]:
        statistics = {}
        for which, counted in zip(WHICH, (mask, self.words), strict=True):
            numbers = self.of_level(hidden, counted)
            # The edges of the bins are not exact in float32.
            spike = jnp.where(self.of_level.edges[:-1] >= self.near - 1e-6, 1, 0).astype(hidden.dtype)
            numbers["height"] = jnp.max(numbers["density"] * spike[None], axis=1)
            numbers["top"] = jnp.max(numbers["density"], axis=1)
            numbers["width"] = numbers["quantiles"][:, 1] - numbers["quantiles"][:, 0]
            statistics |= {f"{which} {name}": numbers[name] for name in ("density", *STATISTICS)}
        return statistics | {"apart": jax.vmap(_mean_cosine)(hidden, mask & ~self.words, self.words)}


def _mean_cosine(x: Float[Array, "n d"], some: Bool[Array, " n"], others: Bool[Array, " n"]) -> Float[Array, ""]:
    """The mean cosine of the pairs of a token of `some` and a token of `others`; NaN if there are no pairs."""
    unit = jnp.where((some | others)[:, None], normalise(x), jnp.zeros_like(x))
    pairs = some[:, None] & others[None, :]
    cosines = jnp.where(pairs, matmul(unit, unit.T), jnp.zeros((len(some), len(some)), x.dtype))
    return jnp.sum(cosines) / jnp.sum(pairs).astype(x.dtype)


class Results(NamedTuple):
    p: Parameters
    network: Network
    controls: probe.Controls  # a `Both` for the trained network, shuffled texts, and each network of random weights
    usual: Both | None  # a `Both` for random weights of the usual scale; None if they were not drawn
    # The `Normality` before the first layer, with all tokens and without the special tokens.
    normal: tuple[Normality, Normality]
    trained: int  # the number of layers in training
    special: tuple[int, ...]  # the ids of the special tokens

    @property
    def layers(self) -> int:
        return len(self.controls.trained.every.cosine.mean) - 1

    @property
    def late(self) -> int:
        """The layer at which a spike is expected."""
        return min(self.p.late, self.layers)

    def rise_of(self, alike: Alike) -> Clustered:
        """The excess of the height of the spike over the largest density before the first layer."""
        rise = each_text(alike.height)[:, self.late] - each_text(alike.top)[:, 0]
        return clustered_error(rise, self.network.articles)

    def below_words(self, both: Both) -> Clustered:
        """The mean cosine of words minus the mean cosine between special tokens and words, after training."""
        difference = each_text(both.words.cosine) - each_text(both.apart)
        return clustered_error(difference[:, self.trained], self.network.articles)

    def runs(self, name: str, which: str = "every") -> list[Run]:
        """The mean and the error of a statistic for each run; a single network has no error."""
        pick = lambda both: getattr(getattr(both, which), name)
        return [*runs_of(self.controls, pick), *([] if self.usual is None else [(pick(self.usual).mean, None)])]

    def distances(self, which: str = "every") -> list[Run]:
        """D of the mean histogram at each level, for each run; for random weights the mean over networks."""
        distances_of = lambda both: distances((measured := getattr(both, which)).density.mean, measured.edges)
        random = mean_and_error(np.stack([distances_of(measured) for measured in self.controls.random]))
        usual = [] if self.usual is None else [(distances_of(self.usual), None)]
        ordered = [(distances_of(both), None) for both in (self.controls.trained, self.controls.shuffled)]
        return [*ordered, random, *usual]

    def beside(self, runs: list[Run], level: int, scale: int = 1, digits: int = 2) -> str:
        """A statistic of both controls at a level, as text."""
        value_of = lambda run: f"{scale * float(run[0][level]):.{digits}f}"
        return ", ".join(f"{word} {value_of(run)}" for word, run in zip(CONTROLS, runs[1:3], strict=True))


def with_depth(settings: Settings) -> Settings:
    depth = settings.read(Parameters).depth
    return replace(settings, depth=depth) if depth else settings


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    settings = with_depth(settings)
    network = network_of(settings)
    deep = further(network.model, settings)
    # Networks of random weights have no head. Without a head here one compiled program serves all networks.
    deep.network.drop_head()
    say(f"running {len(network.texts.mask)} texts through {deep.num_layers} layers, with two controls")
    special, trained = special_ids(network), network.model.num_layers
    both_of = partial(measure_alike, special=special, near=p.near)
    key, rng = jr.key(settings.seed), np.random.default_rng(settings.seed)
    controls = measured(
        both_of, network, key, model=deep, draws=p.draws, level=trained, statistic="every.cosine", store=settings.store
    )
    # The network of the package began with small weights (`probe.bundled_start`); the usual scale is shown beside it.
    file = None if settings.store is None else settings.store / "usual.safetensors"
    usual = both_of(probe.randomise(deep, key), network.texts, store=file) if network.bundled else None
    # Both tests draw from one generator, so that their order decides the resamples.
    every, words = (normality_of(deep, network.texts, left_out, rng, network.articles) for left_out in ((), special))
    return Results(p, network, controls, usual, (every, words), trained, special)


def at(average: Average, level: int, digits: int = 3) -> str:
    return plus_minus(average.mean[level], average.error[level], digits)


@claim(f"D below {NORMAL:g} with 95 % confidence, with and without special tokens", source=PEAT_FIGURE_1)
def normal_at_first(m: Results) -> Found:
    """Before the first layer the cosine similarities of tokens are nearly normally distributed."""
    every, words = m.normal
    runs = m.distances()
    return Found(
        f"the largest difference D from the normal distribution of the same mean and spread is {every.distance:.4f}, "
        f"below {every.upper:.4f} with 95 % confidence ({m.beside(runs, 0, digits=3)}); without special tokens D is "
        f"{words.distance:.4f}, below {words.upper:.4f}. An exactly normal distribution has such a D with probability "
        f"{every.p:.3f}, without special tokens {words.p:.3f}, by resampling articles. After layer {m.trained} D is "
        f"{runs[0][0][m.trained]:.3f}; a uniform distribution has 0.057, a Laplace distribution 0.062",
        max(every.upper, words.upper) < NORMAL, every.distance,
    )  # fmt: skip


@claim("the rise exceeds two standard errors", source=PEAT_FIGURE_1)
def more_alike(m: Results) -> Found:
    """Tokens become more alike from the embedding to the last layer of training."""
    trained, every, words = m.trained, m.controls.trained.every.cosine, m.controls.trained.words.cosine
    rise = clustered_error(each_text(every)[:, trained] - each_text(every)[:, 0], m.network.articles)
    return Found(
        f"the mean cosine is {at(every, 0)} before the first layer and {at(every, trained)} after layer "
        f"{trained} ({m.beside(m.runs('cosine'), trained)}); without special tokens {at(words, 0)} and "
        f"{at(words, trained)} ({m.beside(m.runs('cosine', 'words'), trained)})",
        rise.above(), rise.mean, rise.error,
    )  # fmt: skip


@claim(
    "less than words among each other by 0.2 and two standard errors, in shuffled words too, and with no network of "
    "random weights"
)
def special_apart(m: Results) -> Found | None:
    """After the last layer of training the special tokens at the ends of a text are less similar to the words than the
    words are to each other, also in shuffled texts, but not in networks of random weights."""
    controls, level, deepest = m.controls, m.trained, min(4 * m.trained, m.layers)
    if not m.special or np.isnan(controls.trained.apart.mean).any():
        return None
    trained, shuffled, *random = (m.below_words(run) for run in (controls.trained, controls.shuffled, *controls.random))
    runs, words = runs_of(controls, lambda both: both.apart), controls.trained.words.cosine
    apart = lambda level: f"{at(controls.trained.apart, level, 2)} ({m.beside(runs, level)})"
    return Found(
        f"the mean cosine of a special token to a word is {apart(level)} after layer {level}, and of words among each "
        f"other {at(words, level)}: the difference is {plus_minus(trained.mean, trained.error, 3)}, in shuffled "
        f"texts {plus_minus(shuffled.mean, shuffled.error, 3)}, with random weights "
        f"{', '.join(f'{run.mean:.3f}' for run in random)}; after layer {deepest} the cosines are {apart(deepest)} and "
        f"{at(words, deepest)}",
        all(run.above(0.2) for run in (trained, shuffled)) and not any(run.above(0.2) for run in random),
        trained.mean, trained.error,
    )  # fmt: skip


@claim(
    "the histogram is highest above {p.near:g}, and there surely higher than anywhere before the first layer",
    source=PEAT_FIGURE_1,
)
def spike_by_late(m: Results) -> Found:
    """At layer {m.late} the cosine similarities of tokens have a spike near 1."""
    late, parts, spike = m.late, [], m.rise_of(m.controls.trained.every)
    for which, word in (("every", ""), ("words", "without special tokens ")):
        alike = getattr(m.controls.trained, which)
        parts.append(
            f"{word}most pairs are at {alike.mode[late]:.2f}, the density above {m.p.near:g} reaches "
            f"{at(alike.height, late, 1)} ({m.beside(m.runs('height', which), late)}) and before the first layer "
            f"at most {alike.top.mean[0]:.1f}; half of the pairs are within {at(alike.width, late)} "
            f"({m.beside(m.runs('width', which), late)})"
        )
    holds = m.controls.trained.every.mode[late] > m.p.near and spike.above()
    return Found("; ".join(parts), holds, spike.mean, spike.error)


ONE_CLUSTER = f"in at least {100 * SINGLE:g} % of the texts chains of cosines of {{p.near:g}} or more connect them all"


def one_cluster(m: Results, which: str) -> Found:
    late, alike = m.late, getattr(m.controls.trained, which)
    share, error = alike.single.mean[late], alike.single.error[late]
    return Found(
        f"after {late} layers {percent(share, error)} of the texts are one cluster "
        f"({m.beside(m.runs('single', which), late, 100, 0)} %); there are {alike.num_clusters.mean[late]:.2f} "
        f"clusters, and {percent(alike.near_mass.mean[late], alike.near_mass.error[late])} of the pairs are above "
        f"{m.p.near:g}",
        share >= SINGLE, share, error,
    )  # fmt: skip


@claim(ONE_CLUSTER, source=PEAT_FIGURE_1)
def one_cluster_of_all(m: Results) -> Found:
    """When the layers are applied further, all tokens of a text come to one cluster."""
    return one_cluster(m, "every")


@claim(ONE_CLUSTER, source=PEAT_FIGURE_1)
def one_cluster_of_words(m: Results) -> Found:
    """When the layers are applied further, all tokens of a text but the special tokens come to one cluster."""
    return one_cluster(m, "words")


@claim("both differences exceed two standard errors, or with few networks as many as are as improbable")
def beyond_controls(m: Results) -> Found:
    """After training the tokens are more alike than in shuffled texts and in networks of random weights."""
    beyond = m.controls.beyond_shuffled, m.controls.beyond_random
    return beyond_both("mean cosine after the last layer of training", beyond, m.trained, m.controls.sigmas)


@claim("less than 1e-5", kind="identity")
def all_pairs(m: Results) -> Found:
    """The mass of every histogram is 1."""
    alikes = m.controls.trained.every, m.controls.trained.words
    mass = np.stack([(alike.density.mean * np.diff(alike.edges)).sum(axis=1) for alike in alikes])
    off = np.abs(mass - 1).max()
    measured = f"the mass of a histogram, with and without special tokens, differs from 1 by at most {off:.1e}"
    return Found(measured, off < 1e-5, off)


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    near, usual = f"{m.p.near:g}", "" if m.usual is None else ", and of the usual scale"
    return (
        f"The cosine similarity of the tokens in {m.network.words}, on {m.network.of_texts}. Histograms: before the "
        f"first layer, in the middle and at the end of the {m.trained} layers of training, and after layer {m.late}, "
        "where the same layers are applied further. Areas: the trained network; thin curves: the normal distribution "
        "of the same mean and spread; lines: the same tokens in random order, and "
        f"{random_words(m.network, m.p.draws)}{usual}. Peaks beyond the axis are cut off. (a) The mean cosine, in "
        "black without the special tokens at both ends of a text. (b) The largest difference D from the normal "
        f"distribution. (c) The height of the spike: the largest density above {near}. (d) The distance between the "
        f"quartiles of the cosines. (e) The share of pairs above {near} and (f) the number of clusters, which chains "
        f"of cosines of {near} or more connect, without special tokens, and in black with special tokens. Means over "
        f"texts with standard errors over {articles_words(m.network.articles)}, for random weights over networks; the "
        "vertical line is the depth of training."
    )


def series(m: Results) -> dict:
    named = {}
    for which, words in WHICH.items():
        for name in ("cosine", "near_mass", "num_clusters", "single", "height", "width"):
            named |= {f"{name} {run}{words}": mean for run, (mean, _) in zip(NAMES, m.runs(name, which), strict=False)}
        named |= {f"distance {run}{words}": mean for run, (mean, _) in zip(NAMES, m.distances(which), strict=False)}
    runs = runs_of(m.controls, lambda both: both.apart)
    named |= {f"special tokens to words {run}": mean for run, (mean, _) in zip(NAMES, runs, strict=False)}
    return {"layer": np.arange(m.layers + 1)} | named


@style()
def draw(m: Results) -> Figure:
    picture = Figure(figsize=(WIDTH, 6.1), layout="constrained")
    top, bottom = picture.subfigures(2, 1, height_ratios=(1.0, 2.2))  # pyright: ignore
    histograms(top.subplots(1, 4, sharex=True), m)
    levels, axes = np.arange(m.layers + 1), bottom.subplots(2, 3)
    scaled = lambda run: (100 * run[0], None if run[1] is None else 100 * run[1])
    panels = (
        (m.runs("cosine"), "mean cosine"),
        (m.distances(), "distance D from normal"),
        (m.runs("height"), "height of the spike"),
        (m.runs("width"), "width between quartiles"),
        (list(map(scaled, m.runs("near_mass", "words"))), f"% of word pairs above {m.p.near:g}"),
        (m.runs("num_clusters", "words"), "clusters of words"),
    )
    for ax, (runs, label) in zip(axes.flat, panels, strict=True):
        for (mean, error), word, colour, line in zip(runs, NAMES, COLOURS, LINES, strict=False):
            time_series(
                levels, mean, error, ax, colour=colour, linestyle=line, label=word, xlabel="layer", ylabel=label
            )
        ax.axvline(m.trained, color="0.6", lw=0.7, zorder=0)
    letter(axes.flat)
    every = m.controls.trained.every
    axes[1, 1].plot(levels, 100 * every.near_mass.mean, color="0.1", lw=0.8, label=SPECIAL)
    axes[1, 2].plot(levels, every.num_clusters.mean, color="0.1", lw=0.8, label=SPECIAL)
    axes[0, 0].plot(levels, m.controls.trained.words.cosine.mean, color="0.1", lw=0.8, ls=(0, (4, 1)), label=WORDS)
    for ax in (axes[0, 2], axes[1, 2]):
        ax.set_yscale("log")
    axes[0, 2].set_ylim(bottom=1e-2)
    for ax in (axes[0, 1], axes[1, 0], axes[1, 1]):
        ax.set_ylim(bottom=0)
    one_legend(picture, (axes[1, 1], *axes.flat), loc="outside lower center", ncols=3, handlelength=2.8)
    return picture


def histograms(axes: Any, m: Results) -> None:
    edges = m.controls.trained.every.edges[::MERGED]
    density = [mean.reshape(len(mean), -1, MERGED).mean(axis=2) for mean, _ in m.runs("density")]
    shown = [0, m.trained // 2, m.trained, m.late]
    # The median over the four panels cuts off a spike, which would flatten the other histograms.
    top = 1.76 * float(np.median([density[0][level].max() for level in shown]))
    for ax, level in zip(axes, shown, strict=True):
        assert isinstance(ax, Axes)
        ax.stairs(density[0][level], edges, fill=True, color=COLOURS[0], alpha=0.8, lw=0)
        for values, colour, line in zip(density[1:], COLOURS[1:], LINES[1:], strict=False):
            ax.stairs(values[level], edges, color=colour, ls=line, lw=1.1)
        normal_curve(ax, density[0][level], edges)
        peaks = max(values[level].max() for values in density)
        ax.set(xlim=(-1, 1), ylim=(0, min(top, 1.08 * peaks)), title=f"layer {level}", xlabel="cosine similarity")
        ax.set_xticks([-1, 0, 1])
    axes[0].set_ylabel("density")


def normal_curve(ax: Axes, density: np.ndarray, edges: np.ndarray) -> None:
    """The normal density of the same mean and standard deviation, unless it is narrower than a bin."""
    middle, mass = edges[:-1] + np.diff(edges) / 2, density * np.diff(edges)
    mean = float(mass @ middle / mass.sum())
    spread = float(np.sqrt(mass @ (middle - mean) ** 2 / mass.sum()))
    if spread < edges[1] - edges[0]:
        return
    x = np.linspace(-1, 1, 401)
    ax.plot(x, np.exp(-(((x - mean) / spread) ** 2) / 2) / (np.sqrt(2 * np.pi) * spread), color="0.1", lw=0.7)


FIGURE = figure(
    __name__,
    check=lambda settings: network_of(with_depth(settings)),
    over=lambda m: f"{articles_words(m.network.articles)}, of random weights over networks",
    on=lambda m: m.network.measured(layers=m.layers),
    recorded=lambda m: {"network": m.network.words, "texts": m.network.of_texts, "layers": m.layers,
                        "layers of training": m.trained, "special tokens": list(m.special),
                        "solver": "none: layers in float32", "starts": len(m.network.texts.mask)},
)  # fmt: skip
