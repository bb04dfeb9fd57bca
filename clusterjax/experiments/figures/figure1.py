"""What figure 1 measures of a network: how alike its tokens are, with and without the special tokens, and how near to a
normal distribution.

The tokens of a text are in many pairs, and passages of one article resemble each other: neither pairs nor passages are
independent, and articles are, so that every error and every test is over articles. What is said of "one cluster" does
not depend on the length of a text: with two special tokens apart from 62 words, 93.8 % of the pairs are pairs of words,
with 126 words 96.9 %, and so no share of pairs says whether there is one cluster.
"""

import functools
import os
from collections.abc import Callable, Sequence
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
from ..framework.experiment import (
    MOST_OF_NETWORK,
    Claim,
    Outcome,
    Settings,
    over,
    parameter,
    percent,
    plus_minus,
)
from ..framework.figure import declared
from ..shared.controls import COLOURS, DRAWS, LINES, NAMES, Run, against, measured, random_words, runs_of
from ..shared.layout import WIDTH
from ..shared.networks import Network, articles_words, further, network_of
from ..shared.sources import PEAT_FIGURE_1


# Which tokens of a text are words: those beside padding and the special tokens at its ends.


def words_of(ids: np.ndarray, mask: np.ndarray, special: Sequence[int]) -> np.ndarray:
    """Which tokens are present and none of the ids `special`, of the shape of `ids`."""
    return np.asarray(mask) & ~np.isin(ids, np.asarray(list(special), np.int64))


def special_ids(network: Network) -> tuple[int, ...]:
    """The ids that stand at the ends of every text: [CLS] and [SEP], or what the network has in their place."""
    # A network of phonemes has no tokenizer that names its special tokens.
    if network.special is not None:
        return tuple(sorted(set(network.special.values())))
    names = ("cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id")
    ids = (getattr(network.model.tokenizer, name, None) for name in names)
    return tuple(sorted({int(one) for one in ids if one is not None}))


# How far the cosines of a network's tokens are from normally distributed, with a test by resampling texts.
#
# The statistic is Lilliefors': D = sup_x |F(x) - Phi((x - m) / s)|, with m and s the mean and spread of the numbers
# themselves. Its tables hold for independent numbers only, and pairs of tokens of one text are not independent. The
# null distribution is therefore that of a bootstrap over articles (Babu and Rao 2004), each with all its texts, in
# which m and s are fitted anew each time: without that the fit would make D look smaller than chance does. Each text
# counts as one, however many pairs it has.


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


BINS = 200
LATE, NEAR = 90, 0.9  # the layer at which the paper sees the spike, and from which cosine on
CONTROLS = ("shuffled", "random weights")
MIDDLE = (0.25, 0.75)  # the quantiles between which a spike has half of the pairs


@dataclass(frozen=True)
class Parameters:
    """What of figure 1 can be set."""

    draws: int = parameter(DRAWS, "the number of networks of random weights", least=2, most=32)
    late: int = parameter(LATE, "the layer at which the spike is looked for, or the last one", least=1, most=10_000)
    depth: int = parameter(
        0,
        "the layers that the network is applied, 0 being eight times those of training",
        least=0,
        most=MOST_OF_NETWORK,
    )
    near: float = parameter(NEAR, "the cosine from which two tokens are near each other", least=0, most=0.99)


class Alike(NamedTuple):
    """How alike some tokens of each text are, level by level; each `Average` is over texts, its first axis the level.

    **Attributes:**

    - `density`: Of the cosines of the pairs, (levels, bins); between `edges`.
    - `cosine`: The mean cosine.
    - `near_mass`: The share of the pairs with a cosine above `Parameters.near`.
    - `num_clusters`: Clusters, joined by chains of cosines of that or more.
    - `single`: Whether there is one such cluster: the mean is the share of the texts.
    - `height`: The largest density above it: the height of the spike, if there is one.
    - `top`: The largest density anywhere.
    - `width`: Between the quartiles of the cosines: a spike is the sharper the narrower it is.
    - `edges`: Of the bins, (bins + 1,).
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


WHICH = ("every", "words")


class Both(NamedTuple):
    """How alike the tokens are, with the special ones and without them.

    **Attributes:**

    - `every`, `words`: Of all tokens, and without the special ones.
    - `apart`: The mean cosine of a special token to a word, (levels,); NaN if there are no special tokens.
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
    """How alike the tokens of the texts are at each level of a network, with and without the ids `special`.

    **Raises:**

    - `ValueError` if a text has fewer than two other tokens, and as `probe.similarity_histograms`.

    See `probe.similarity_histograms`.
    """
    # One word has no pair, and the mean over no pairs is none.
    few = np.flatnonzero(words_of(texts.token_ids, texts.mask, special).sum(axis=1) < 2)
    if few.size:
        raise ValueError(
            f"texts must have two words each beside the special tokens, but text {few[0]} has fewer; leave it out, or "
            "cut texts to more tokens."
        )
    of_level = _measure_of(BINS, near, MIDDLE, False, dtype_of(model))
    averages = survey(
        model, texts, lambda ids, mask: Measure(_OfBoth(of_level, near, jnp.asarray(words_of(ids, mask, special)))),
        keep=[f"{which} {name}" for which in WHICH for name in _KEPT] + ["apart"], store=store,
        settings={"measure": "figure 1", "bins": BINS, "near": near, "special": sorted(map(int, special))},
    ).levels  # fmt: skip
    # In double precision for the host, where densities are summed.
    edges = np.asarray(of_level.edges, np.float64)
    whole, words = (_alike({name: averages[f"{which} {name}"] for name in _NAMES}, edges) for which in WHICH)
    return Both(whole, words, averages["apart"])


_KEPT = ("cosine", "near_mass", "num_clusters", "height", "top", "width")
_NAMES = ("density", *_KEPT)


def _alike(averages: dict[str, Average], edges: np.ndarray) -> Alike:
    # Values of single texts: whether there is one cluster is decided for each.
    clusters = averages["num_clusters"].values
    assert clusters is not None
    return Alike(**averages, single=average_of((clusters == 1).astype(float)), edges=edges)


class _OfBoth(eqx.Module):
    """The statistics of one level, of all tokens and of those of `words`, one row per text."""

    of_level: Any
    near: float = eqx.field(static=True)
    words: Bool[Array, "batch n"]

    def __call__(self, hidden: Float[Array, "batch n d"], mask: Bool[Array, "batch n"]) -> dict[str, Array]:
        statistics = {}
        for which, counted in zip(WHICH, (mask, self.words), strict=True):
            numbers = self.of_level(hidden, counted)
            # Bins that begin at `near` or above it; their edges are not exact in float32.
            spike = jnp.where(self.of_level.edges[:-1] >= self.near - 1e-6, 1, 0).astype(hidden.dtype)
            numbers["height"] = jnp.max(numbers["density"] * spike[None], axis=1)
            numbers["top"] = jnp.max(numbers["density"], axis=1)
            # Quantiles 1/4 and 3/4, see MIDDLE.
            numbers["width"] = numbers["quantiles"][:, 1] - numbers["quantiles"][:, 0]
            statistics |= {f"{which} {name}": numbers[name] for name in _NAMES}
        return statistics | {"apart": jax.vmap(_mean_cosine)(hidden, mask & ~self.words, self.words)}


def _mean_cosine(x: Float[Array, "n d"], some: Bool[Array, " n"], others: Bool[Array, " n"]) -> Float[Array, ""]:
    """The mean cosine of the pairs of one of `some` with one of `others`; NaN if there are none."""
    unit = jnp.where((some | others)[:, None], normalise(x), jnp.zeros_like(x))
    pairs = some[:, None] & others[None, :]
    cosines = jnp.where(pairs, matmul(unit, unit.T), jnp.zeros((len(some), len(some)), x.dtype))
    return jnp.sum(cosines) / jnp.sum(pairs).astype(x.dtype)


@dataclass(frozen=True, eq=False)
class Results:
    """All that figure 1 shows.

    **Attributes:**

    - `seen`: Trained, shuffled and random, each a `Both`.
    - `usual`: Of random weights of the usual scale; None is not measured.
    - `normal`: The `Normality` before the first layer, with all tokens and without the special ones.
    - `trained`, `layers`: The depth of training, and how many layers were run.
    - `special`: The ids of the special tokens.
    - `articles`: The article of each text, the independent unit of errors, (texts,).
    """

    p: Parameters
    seen: probe.Controls
    usual: Both | None
    normal: tuple[Normality, Normality]
    trained: int
    layers: int
    special: tuple[int, ...]
    articles: np.ndarray

    @property
    def levels(self) -> int:
        """How many levels there are, that before the first layer included."""
        return len(self.seen.trained.every.cosine.mean)

    @property
    def late(self) -> int:
        """The layer of the paper, or the last one if there are fewer."""
        return min(self.p.late, self.levels - 1)

    @property
    def deepest(self) -> int:
        """Four times the depth of training, or the last level if there are fewer."""
        return min(4 * self.trained, self.levels - 1)

    def runs(self, name: str, which: str = "every") -> list[Run]:
        """Mean and error of a statistic for each run; one network alone has no error."""
        # A statistic of all tokens or of the words alone, by its name.
        pick = lambda both: getattr(getattr(both, which), name)
        return [*runs_of(self.seen, pick), *([] if self.usual is None else [(pick(self.usual).mean, None)])]

    def distances(self, which: str = "every") -> list[Run]:
        """D of the mean histogram at each level, for each run; of random weights the mean over networks."""
        of = lambda both: distances((one := getattr(both, which)).density.mean, one.edges)
        # D of the mean histogram of each network, and then the mean of these: D of one mean histogram would be another.
        random = np.stack([of(one) for one in self.seen.random])
        error = random.std(axis=0, ddof=1) / np.sqrt(len(random))
        usual = [] if self.usual is None else [(of(self.usual), None)]
        # D of one histogram has no error over texts here.
        return [(of(self.seen.trained), None), (of(self.seen.shuffled), None), (random.mean(axis=0), error), *usual]

    def apart(self, level: int) -> str:
        """The mean cosine of special tokens to words at a level, with its error, of the network and of both controls,
        in words."""
        (mean, error), shuffled, random = runs_of(self.seen, lambda both: both.apart)[:3]
        assert error is not None
        beside = ", ".join(
            f"{word} {run[0][level]:.2f}" for word, run in zip(CONTROLS, (shuffled, random), strict=True)
        )
        return f"{mean[level]:.2f} ± {error[level]:.2f} ({beside})"

    def beside(self, name: str, level: int, which: str = "every", scale: int = 1, digits: int = 2) -> str:
        """The same of both controls, in words."""
        runs = self.distances(which) if name == "distance" else self.runs(name, which)
        of = lambda run: f"{scale * float(run[0][level]):.{digits}f}"
        return ", ".join(f"{word} {of(run)}" for word, run in zip(CONTROLS, runs[1:3], strict=True))


def measure(p: Parameters, network: Network, settings: Settings, say: Callable[[str], None]) -> Results:
    """Run the texts of the network through its layers and the controls, and test the cosines before the first layer."""
    deep = further(network.model, settings)
    # The networks of random weights have no pooler and no head. Without them here one compiled program serves all.
    deep.network.drop_head()
    say(f"running {len(network.texts.mask)} texts through {deep.num_layers} layers, with two controls")
    special, trained = special_ids(network), network.model.num_layers
    of = functools.partial(measure_alike, special=special, near=p.near)
    key, rng = jr.key(settings.seed), np.random.default_rng(settings.seed)
    seen = measured(
        of, network, key, model=deep, draws=p.draws, level=trained, statistic="every.cosine", store=settings.store
    )
    # The package's own network began with small weights (`probe.bundled_start`); the usual scale is shown beside it.
    file = None if settings.store is None else settings.store / "usual.safetensors"
    usual = of(probe.randomise(deep, key), network.texts, store=file) if network.bundled else None
    # One generator after the other: the order of these two decides which texts are resampled.
    every, words = (normality_of(deep, network.texts, left_out, rng, network.articles) for left_out in ((), special))
    return Results(p, seen, usual, (every, words), trained, deep.num_layers, special, network.articles)


# What figure 1 claims of a trained network: similarities that are normal at first, then a spike, then one cluster.


NORMAL = 0.025  # D of what is called nearly normal: a logistic distribution has 0.023, a uniform one 0.057
SINGLE = 0.95  # of the texts


def caption_of(network: Network, m: Results) -> str:
    """What is seen, and whether the controls show it as well."""
    near = f"{m.p.near:g}"
    return (
        f"Cosine similarity of the tokens in {network.words}: {network.of_texts}. Top: its distribution before the "
        f"first layer, in the middle and at the end of the {m.trained} layers of training, and after {m.late}, where "
        "the same layers are applied further; filled: trained; thin: the normal distribution of the same mean and "
        f"spread; lines: the same tokens in random order, and {random_words(network, m.p.draws)}"
        f"{'' if m.usual is None else ', and of the usual scale'}. Peaks beyond the axis are cut off. A token is never "
        "compared with itself, and padding with nothing. Below: (a) mean cosine, and in black that of the words of the "
        "trained network, without the special tokens at both ends of a text; (b) the largest difference D from "
        f"that normal distribution, as of Kolmogorov; (c) the height of the spike: the largest density above {near}; "
        "(d) its width, between the quartiles of the cosines; and without the special tokens at both ends of a text: "
        f"(e) pairs above {near}; (f) clusters, joined by chains of cosines of {near} or more; in both also the "
        "trained network with these tokens. Means over texts with their standard errors, over "
        f"{articles_words(m.articles)}; of random weights, over networks. Vertical line: the depth of training. "
        f"{_verdict(m)}{_scale(m.usual, m.trained)}"
    )


def _scale(usual: Both | None, trained: int) -> str:
    if usual is None:
        return ""
    return (
        " It began with weights that write little to the tokens; random weights of the usual scale, the standard "
        f"deviation of transformers for all of them, bring the mean cosine to {usual.every.cosine.mean[trained]:.2f}."
    )


def _verdict(m: Results) -> str:
    """What is seen, and whether the controls show it as well."""
    seen, late = m.seen, m.late
    cosine = seen.trained.every.cosine.mean
    learnt = ": what it shows is learnt, and about language" if seen.clusters_beyond_controls else ""
    spikes = [_spike(m, run.every) for run in (seen.shuffled, *seen.random)]
    same = [name for name, has in (("shuffled words", spikes[0]), ("random weights", all(spikes[1:]))) if has]
    spike = "there is a spike near 1" if _spike(m, seen.trained.every) else "there is no spike near 1"
    also = f"; {' and '.join(same)} show one as well" if same else ""
    words = seen.trained.words.cosine.mean
    apart = f" (without special tokens from {words[0]:.2f} to {words[m.trained]:.2f})" if m.special else ""
    return (
        f"At the depth of training the mean cosine has gone from {cosine[0]:.2f} to {cosine[m.trained]:.2f}{apart}, "
        f"{against(seen, lambda run: run.every.cosine, m.trained)}{learnt}. At layer {late} {spike}{also}."
    )


def _spike(m: Results, alike: Alike) -> bool:
    """Whether the mean histogram is highest near 1, and surely higher than before the first layer."""
    return bool(alike.mode[m.late] > m.p.near and _rise(m, alike).above())


def _rise(m: Results, alike: Alike) -> Clustered:
    """By how much the spike exceeds the largest density before the first layer, of a text."""
    assert alike.height.values is not None and alike.top.values is not None
    # Of each text: its own largest density before the first layer.
    return clustered_error(alike.height.values[:, m.late] - alike.top.values[:, 0], m.articles)


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure."""
    seen, trained = m.seen, m.trained
    cosine = seen.trained.every.cosine
    assert cosine.values is not None
    # Paired by text: the rise of each.
    rise = clustered_error(cosine.values[:, trained] - cosine.values[:, 0], m.articles)
    # The control that is closer decides: both must be exceeded.
    nearer = min((seen.beyond_shuffled, seen.beyond_random), key=lambda control: control.z[trained])
    # A density times the width of its bins adds up to one.
    mass = [
        (control.density.mean * np.diff(control.edges)).sum(axis=1)
        for control in (seen.trained.every, seen.trained.words)
    ]
    off = float(np.abs(np.stack(mass) - 1).max())
    claims = (
        _claim_of_normality(m),
        Claim(
            says="Tokens become more alike with depth.",
            measured=f"mean cosine {plus_minus(cosine.mean[0], cosine.error[0], 3)} before the first layer, "
            f"{plus_minus(cosine.mean[trained], cosine.error[trained], 3)} after layer {trained}; "
            f"{m.beside('cosine', trained)} there; without special tokens {_words_alone(m, 0)} and "
            f"{_words_alone(m, trained)} ({m.beside('cosine', trained, 'words')})",
            criterion="the rise exceeds two standard errors",
            holds=rise.above(),
            kind="paper",
            value=float(rise.mean),
            error=float(rise.error),
            source=PEAT_FIGURE_1,
        ),
        *_claims_of_special(m),
        _claim_of_spike(m),
        _claim_of_one_cluster(m, "every"),
        _claim_of_one_cluster(m, "words"),
        Claim(
            says="The tokens of the trained network are more alike than those of both controls.",
            measured="mean cosine after the last layer of training: "
            + "; ".join(
                f"{plus_minus(control.difference[trained], control.error[trained], 3)} above {name}"
                for name, control in (("shuffled tokens", seen.beyond_shuffled), ("random weights", seen.beyond_random))
            ),
            criterion="both differences exceed two standard errors, or with few networks as many as are as improbable",
            holds=seen.clusters_beyond_controls,
            kind="finding",
            value=float(nearer.difference[trained]),
            error=float(nearer.error[trained]),
        ),
        Claim(
            says="Each histogram is of all pairs, and none but these.",
            measured=f"largest difference of its mass from 1, with and without special tokens: {off:.1e}",
            criterion="less than 1e-5",
            holds=off < 1e-5,
            kind="identity",
            value=off,
        ),
    )
    return over(f"{articles_words(m.articles)}, of random weights over networks", claims)


def _words_alone(m: Results, level: int) -> str:
    cosine = m.seen.trained.words.cosine
    return plus_minus(cosine.mean[level], cosine.error[level], 3)


def _claims_of_special(m: Results) -> tuple[Claim, ...]:
    """That the special tokens stand apart, of a network that has some."""
    level, (trained, shuffled, random) = m.trained, (m.seen.trained, m.seen.shuffled, m.seen.random)
    if not m.special or np.isnan(trained.apart.mean).any():
        return ()
    of_trained, of_shuffled, *of_random = (_below(m, one) for one in (trained, shuffled, *random))
    return (
        Claim(
            says="The special tokens at the ends of a text stay apart from its words, which they mix into the mean "
            "cosine; those of random weights do not, and those of shuffled words do.",
            measured=f"mean cosine of a special token to a word {m.apart(level)} after layer {level}, of words among "
            "each "
            f"other {_words_alone(m, level)}: less by {plus_minus(of_trained.mean, of_trained.error, 3)}, shuffled "
            f"by {plus_minus(of_shuffled.mean, of_shuffled.error, 3)}, random weights by "
            f"{', '.join(f'{one.mean:.3f}' for one in of_random)}; after layer {m.deepest} {m.apart(m.deepest)}, of "
            f"words {_words_alone(m, m.deepest)}",
            criterion="less than words among each other by 0.2 and two standard errors, in shuffled words too, and "
            "with "
            "no network of random weights",
            holds=all(one.above(0.2) for one in (of_trained, of_shuffled))
            and not any(one.above(0.2) for one in of_random),
            kind="finding",
            value=float(of_trained.mean),
            error=float(of_trained.error),
        ),
    )


def _below(m: Results, both: Both) -> Clustered:
    """By how much the mean cosine of special tokens to words is below that of words after training, of a text."""
    assert both.words.cosine.values is not None and both.apart.values is not None
    return clustered_error(both.words.cosine.values[:, m.trained] - both.apart.values[:, m.trained], m.articles)


def _claim_of_normality(m: Results) -> Claim:
    every, words = m.normal
    # Of the trained network, D at the end of training.
    after = m.distances()[0][0][m.trained]
    return Claim(
        says="Before the first layer the similarities are normally distributed, nearly.",
        measured=f"largest difference D from the normal distribution of the same mean and spread {every.distance:.4f}, "
        f"below {every.upper:.4f} with 95 % confidence; without special tokens {words.distance:.4f} and "
        f"{words.upper:.4f}. Exactly normal by chance: p = {every.p:.3f} and {words.p:.3f}, articles "
        f"resampled. {_capital(m)}; after layer {m.trained} {after:.3f}; a uniform distribution has 0.057, a Laplace "
        "0.062",
        criterion=f"D below {NORMAL:g} with 95 % confidence, with and without special tokens, against any distribution "
        "that is farther from normal",
        holds=max(every.upper, words.upper) < NORMAL,
        kind="paper",
        value=every.distance,
        source=PEAT_FIGURE_1,
    )


def _capital(m: Results) -> str:
    text = m.beside("distance", 0, digits=3)
    return text[0].upper() + text[1:]


def _claim_of_spike(m: Results) -> Claim:
    late, words = m.late, []
    rise = _rise(m, m.seen.trained.every)
    # The same sentence with and without special tokens.
    for which, word in (("every", ""), ("words", "without special tokens ")):
        alike = getattr(m.seen.trained, which)
        words.append(
            f"{word}most pairs at {alike.mode[late]:.2f}, density above {m.p.near:g} "
            f"{plus_minus(alike.height.mean[late], alike.height.error[late], 1)} ({m.beside('height', late, which)}), "
            f"before the first layer {alike.top.mean[0]:.1f} at most; half of the pairs within "
            f"{plus_minus(alike.width.mean[late], alike.width.error[late], 3)} ({m.beside('width', late, which)})"
        )
    return Claim(
        says=f"By layer {late} there is a spike near 1.",
        measured="; ".join(words),
        criterion=f"the histogram is highest above {m.p.near:g}, and there surely higher than anywhere before the "
        "first layer",
        holds=_spike(m, m.seen.trained.every),
        kind="paper",
        value=float(rise.mean),
        error=float(rise.error),
        source=PEAT_FIGURE_1,
    )


def _claim_of_one_cluster(m: Results, which: str) -> Claim:
    late, alike = m.late, getattr(m.seen.trained, which)
    share, error = alike.single.mean[late], alike.single.error[late]
    tokens = "all tokens" if which == "every" else "all but the special tokens"
    return Claim(
        says=f"As the layers are applied further, {tokens} come to one cluster.",
        measured=f"after {late} layers in {percent(share, error)} of the texts "
        f"({m.beside('single', late, which, 100, 0)} %); {alike.num_clusters.mean[late]:.2f} clusters, "
        f"{percent(alike.near_mass.mean[late], alike.near_mass.error[late])} of the pairs above "
        f"{m.p.near:g}",
        criterion=f"in at least {100 * SINGLE:g} % of the texts chains of cosines of {m.p.near:g} or more join them "
        "all, however many",
        holds=bool(share >= SINGLE),
        kind="paper",
        value=float(share),
        error=float(error),
        source=PEAT_FIGURE_1,
    )


# The panels of figure 1: histograms at four layers, and what they show against the layer.


MERGED = 2  # bins of the measurement in one that is drawn
SPECIAL, WORDS = "trained, special tokens included", "trained, words alone"


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 6.1), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.0, 2.2))  # pyright: ignore
    _histograms(top.subplots(1, 4, sharex=True), m)
    levels, axes = np.arange(m.levels), bottom.subplots(2, 3)
    panels = (
        (m.runs("cosine"), "mean cosine"),
        (m.distances(), "distance D from normal"),
        (m.runs("height"), "height of the spike"),
        (m.runs("width"), "width between quartiles"),
        (_percent(m.runs("near_mass", "words")), f"% of word pairs above {m.p.near:g}"),
        (m.runs("num_clusters", "words"), "clusters of words"),
    )
    for letter, ax, (runs, label) in zip("abcdef", axes.flat, panels, strict=True):
        for (mean, error), word, colour, line in zip(runs, NAMES, COLOURS, LINES, strict=False):
            time_series(
                levels, mean, error, ax, colour=colour, linestyle=line, label=word, xlabel="layer", ylabel=label
            )
        ax.axvline(m.trained, color="0.6", lw=0.7, zorder=0)
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    every = m.seen.trained.every
    axes[1, 1].plot(levels, 100 * every.near_mass.mean, color="0.1", lw=0.8, label=SPECIAL)
    axes[1, 2].plot(levels, every.num_clusters.mean, color="0.1", lw=0.8, label=SPECIAL)
    axes[0, 0].plot(levels, m.seen.trained.words.cosine.mean, color="0.1", lw=0.8, ls=(0, (4, 1)), label=WORDS)
    for ax in (axes[0, 2], axes[1, 2]):
        ax.set_yscale("log")
    axes[0, 2].set_ylim(bottom=1e-2)
    for ax in (axes[0, 1], axes[1, 0], axes[1, 1]):
        ax.set_ylim(bottom=0)
    # That panel has all lines, the one with special tokens included.
    handles, names = axes[1, 1].get_legend_handles_labels()
    handles.append(axes[0, 0].get_lines()[-1])
    names.append(WORDS)
    for ax in axes.flat:
        # One legend for all panels, below.
        if ax.get_legend() is not None:
            ax.get_legend().remove()
    figure.legend(handles, names, loc="outside lower center", ncols=3, handlelength=2.8)
    return figure


def _percent(runs: list[Any]) -> list[Any]:
    return [(100 * mean, None if error is None else 100 * error) for mean, error in runs]


def _histograms(axes: Any, m: Results) -> None:
    fine = m.seen.trained.every.edges
    edges = fine[::MERGED]
    # Two bins of the measurement in one of the picture: half of them would be noise.
    density = [mean.reshape(len(mean), -1, MERGED).mean(axis=2) for mean, _ in m.runs("density")]
    shown = [0, m.trained // 2, m.trained, m.late]
    # The median over the four panels: a spike is cut off rather than flattening the others.
    top = 1.76 * float(np.median([density[0][level].max() for level in shown]))
    for ax, level in zip(axes, shown, strict=True):
        assert isinstance(ax, Axes)
        ax.stairs(density[0][level], edges, fill=True, color=COLOURS[0], alpha=0.8, lw=0)
        # The trained network is filled, the controls are lines on it.
        for values, colour, line in zip(density[1:], COLOURS[1:], LINES[1:], strict=False):
            ax.stairs(values[level], edges, color=colour, ls=line, lw=1.1)
        _normal(ax, density[0][level], edges)
        peaks = max(values[level].max() for values in density)
        ax.set(xlim=(-1, 1), ylim=(0, min(top, 1.08 * peaks)), title=f"layer {level}", xlabel="cosine similarity")
        ax.set_xticks([-1, 0, 1])
    axes[0].set_ylabel("density")


def _normal(ax: Axes, density: np.ndarray, edges: np.ndarray) -> None:
    """The normal density of the same mean and spread, unless that is narrower than a bin."""
    middle, mass = edges[:-1] + np.diff(edges) / 2, density * np.diff(edges)
    mean = float(mass @ middle / mass.sum())
    spread = float(np.sqrt(mass @ (middle - mean) ** 2 / mass.sum()))
    # A curve narrower than a bin would be a needle.
    if spread < edges[1] - edges[0]:
        return
    x = np.linspace(-1, 1, 401)
    ax.plot(x, np.exp(-(((x - mean) / spread) ** 2) / 2) / (np.sqrt(2 * np.pi) * spread), color="0.1", lw=0.7)


# Figure 1 as an experiment: what is measured, claimed, recorded and drawn.


STATISTICS = ("cosine", "near_mass", "num_clusters", "single", "height", "width")


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    settings = _with_depth(settings)
    network = network_of(settings)
    m = measure(p, network, settings, say)
    return Outcome(
        caption_of(network, m),
        claims_of(m),
        {"network": network.words, "texts": network.of_texts, "layers": m.layers, "layers of training": m.trained,
         "near": p.near, "special tokens": list(m.special), "solver": "none: layers in float32",
         "starts": len(network.texts.mask), "draws of random weights": p.draws},
        _series(m),
        partial(draw, m),
        None,
        on=network.measured(layers=m.layers),
    )  # fmt: skip


def _with_depth(settings: Settings) -> Settings:
    """The settings with the depth of the parameters, where that is given."""
    depth = settings.read(Parameters).depth
    return replace(settings, depth=depth) if depth else settings


def _series(m: Results) -> dict:
    series = {"layer": np.arange(m.levels)}
    # Each statistic twice: with the special tokens and without.
    for which, words in (("every", ""), ("words", ", without special tokens")):
        series |= {
            f"{name} {run}{words}": mean
            for name in STATISTICS
            # Only the means go into results.json; the errors are in the picture and in the claims.
            for run, (mean, _) in zip(NAMES, m.runs(name, which), strict=False)
        }
        series |= {f"distance {run}{words}": mean for run, (mean, _) in zip(NAMES, m.distances(which), strict=False)}
    # With a key of its own: the mean cosine of a special token to a word.
    runs = runs_of(m.seen, lambda both: both.apart)
    return series | {f"special tokens to words {run}": mean for run, (mean, _) in zip(NAMES, runs, strict=False)}


FIGURE = declared("figure1", _run, parameters=Parameters, check=lambda settings: network_of(_with_depth(settings)))
