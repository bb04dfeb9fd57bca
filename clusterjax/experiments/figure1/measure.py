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
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float

from ... import probe
from ..._misc import matmul, normalise
from ...probe.measures.similarity import _measure_of
from ...probe.measures.stream import Measure
from ...probe.measures.survey import dtype_of, survey
from ...probe.measures.tally import Average, average_of
from ..framework.controls import DRAWS, Run, measured, runs_of
from ..framework.experiment import MOST_OF_NETWORK, Settings
from ..framework.networks import Network, further
from ..framework.parameters import parameter
from .normality import Normality, distances, normality_of
from .words import special_ids, words_of


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
