"""Figure 1: how alike the tokens of a trained network are, layer by layer, beside what needs no training."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax.random as jr
import numpy as np

from .. import probe
from ._controls import DRAWS, NAMES, Run, against, measured, random_words, runs_of
from ._experiment import Claim, Experiment, Outcome, Settings, plus_minus
from ._figure1_measure import Alike, Both, Normality, distances, measure_alike, normality_of, special_ids
from ._figure1_panels import draw
from ._networks import further, network_of
from ._sources import PEAT_FIGURE_1


LATE = 90  # the layer at which the paper sees the spike
NORMAL = 0.025  # D of what is called nearly normal: a logistic distribution has 0.023, a uniform one 0.057
SINGLE = 0.95  # of the texts
STATISTICS = ("cosine", "near_mass", "num_clusters", "single", "height", "width")
CONTROLS = ("shuffled", "random weights")


@dataclass(frozen=True, eq=False)
class Found:
    """What figure 1 measured.

    **Attributes:**

    - `seen`: Trained, shuffled and random, each a `Both`.
    - `usual`: Of random weights of the usual scale; None is not measured.
    - `normal`: The `Normality` before the first layer, with all tokens and without the special ones.
    - `trained`: The depth of training.

    Source: this library.
    """

    seen: probe.Controls
    usual: Both | None
    normal: tuple[Normality, Normality]
    trained: int

    @property
    def levels(self) -> int:
        """How many levels there are, that before the first layer included."""
        return len(self.seen.trained.every.cosine.mean)

    @property
    def late(self) -> int:
        """The layer of the paper, or the last one if there are fewer."""
        return min(LATE, self.levels - 1)

    def runs(self, name: str, which: str = "every") -> list[Run]:
        """Mean and error of a statistic for each run; one network alone has no error."""
        pick = lambda found: getattr(getattr(found, which), name)
        return [*runs_of(self.seen, pick), *([] if self.usual is None else [(pick(self.usual).mean, None)])]

    def distances(self, which: str = "every") -> list[Run]:
        """D of the mean histogram at each level, for each run; of random weights the mean over networks."""
        of = lambda both: distances((one := getattr(both, which)).density.mean, one.edges)
        random = np.stack([of(one) for one in self.seen.random])
        error = random.std(axis=0, ddof=1) / np.sqrt(len(random))
        usual = [] if self.usual is None else [(of(self.usual), None)]
        return [(of(self.seen.trained), None), (of(self.seen.shuffled), None), (random.mean(axis=0), error), *usual]

    def beside(self, name: str, level: int, which: str = "every", scale: int = 1, digits: int = 2) -> str:
        """The same of both controls, in words."""
        runs = self.distances(which) if name == "distance" else self.runs(name, which)
        of = lambda run: f"{scale * float(run[0][level]):.{digits}f}"
        return ", ".join(f"{word} {of(run)}" for word, run in zip(CONTROLS, runs[1:3], strict=True))


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    network = network_of(settings)
    trained = network.model.num_layers
    deep = further(network.model, settings)
    if isinstance(deep.network, probe.Albert):  # as in a network of random weights, so that one compilation serves both
        deep.network.pooler = deep.network.predictions = None
    say(f"running {len(network.texts.mask)} texts through {deep.num_layers} layers, with two controls")
    special = special_ids(network)
    measure = functools.partial(measure_alike, special=special)
    key, rng = jr.key(settings.seed), np.random.default_rng(settings.seed)
    seen = measured(
        measure, network, key, model=deep, level=trained, statistic="every.cosine", store=settings.store
    )  # fmt: skip
    file = None if settings.store is None else settings.store / "usual.safetensors"
    usual = measure(probe.randomise(deep, key), network.texts, store=file) if network.bundled else None
    normal = normality_of(deep, network.texts, (), rng), normality_of(deep, network.texts, special, rng)
    found = Found(seen, usual, normal, trained)
    caption = (
        f"Cosine similarity of the tokens in {network.words}: {network.of_texts}. Top: its distribution before the "
        f"first layer, in the middle and at the end of the {trained} layers of training, and after {found.late}, where "
        "the same layers are applied further; filled: trained; thin: the normal distribution of the same mean and "
        f"spread; lines: the same tokens in random order, and {random_words(network)}"
        f"{'' if usual is None else ', and of the usual scale'}. Peaks beyond the axis are cut off. A token is never "
        "compared with itself, and padding with nothing. Below: (a) mean cosine; (b) the largest difference D from "
        "that normal distribution, as of Kolmogorov; (c) the height of the spike: the largest density above 0.9; (d) "
        "its width, between the quartiles of the cosines; and without the special tokens at both ends of a text: (e) "
        "pairs above 0.9; (f) clusters, joined by chains of cosines of 0.9 or more; in both also the trained network "
        "with these tokens. Means over texts with their standard errors; of random weights, over networks. Vertical "
        f"line: the depth of training. {_verdict(found)}{_scale(usual, trained)}"
    )
    series = {"layer": np.arange(found.levels)}
    for which, words in (("every", ""), ("words", ", without special tokens")):
        series |= {
            f"{name} {run}{words}": mean
            for name in STATISTICS
            for run, (mean, _) in zip(NAMES, found.runs(name, which), strict=False)
        }
        series |= {
            f"distance {run}{words}": mean for run, (mean, _) in zip(NAMES, found.distances(which), strict=False)
        }
    return Outcome(
        caption,
        _claims(found),
        {"network": network.words, "texts": network.of_texts, "layers": deep.num_layers, "layers of training": trained,
         "near": 0.9, "special tokens": list(special), "solver": "none: layers in float32",
         "starts": len(network.texts.mask), "draws of random weights": DRAWS},
        series,
        lambda: draw(found),
        None,
        on=network.measured(layers=deep.num_layers),
    )  # fmt: skip


def _scale(usual: Both | None, trained: int) -> str:
    if usual is None:
        return ""
    return (
        " It began with weights that write little to the tokens; random weights of the usual scale, the standard "
        f"deviation of transformers for all of them, bring the mean cosine to {usual.every.cosine.mean[trained]:.2f}."
    )


def _verdict(found: Found) -> str:
    """What is seen, and whether the controls show it as well."""
    seen, late = found.seen, found.late
    cosine = seen.trained.every.cosine.mean
    learnt = ": what it shows is learnt, and about language" if seen.clusters_beyond_controls else ""
    spikes = [_spike(run.every, late) for run in (seen.shuffled, *seen.random)]
    same = [name for name, has in (("shuffled words", spikes[0]), ("random weights", all(spikes[1:]))) if has]
    spike = "there is a spike near 1" if _spike(seen.trained.every, late) else "there is no spike near 1"
    also = f"; {' and '.join(same)} show one as well" if same else ""
    return (
        f"At the depth of training the mean cosine has gone from {cosine[0]:.2f} to {cosine[found.trained]:.2f}, "
        f"{against(seen, lambda run: run.every.cosine, found.trained)}{learnt}. At layer {late} {spike}{also}."
    )


def _spike(alike: Alike, level: int) -> bool:
    """Whether the mean histogram is highest above 0.9, and surely higher than before the first layer."""
    rise, error = _rise(alike, level)
    return bool(alike.mode[level] > 0.9 and rise > 2 * error)


def _rise(alike: Alike, level: int) -> tuple[float, float]:
    """By how much the spike exceeds the largest density before the first layer, of a text: mean and error."""
    assert alike.height.values is not None and alike.top.values is not None
    return _mean(alike.height.values[:, level] - alike.top.values[:, 0])


def _mean(values: np.ndarray) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


def _claims(found: Found) -> tuple[Claim, ...]:
    seen, trained = found.seen, found.trained
    cosine = seen.trained.every.cosine
    assert cosine.values is not None
    rise, error = _mean(cosine.values[:, trained] - cosine.values[:, 0])
    nearer = min((seen.beyond_shuffled, seen.beyond_random), key=lambda one: one.z[trained])
    mass = [(one.density.mean * np.diff(one.edges)).sum(axis=1) for one in seen.trained]
    off = float(np.abs(np.stack(mass) - 1).max())
    return (
        _claim_of_normality(found),
        Claim(
            "Tokens become more alike with depth.",
            f"mean cosine {plus_minus(cosine.mean[0], cosine.error[0], 3)} before the first layer, "
            f"{plus_minus(cosine.mean[trained], cosine.error[trained], 3)} after layer {trained}; "
            f"{found.beside('cosine', trained)} there",
            "the rise exceeds two standard errors",
            rise > 2 * error,
            "paper",
            rise,
            error,
            source=PEAT_FIGURE_1,
        ),
        _claim_of_spike(found),
        _claim_of_one_cluster(found, "every"),
        _claim_of_one_cluster(found, "words"),
        Claim(
            "The trained network clusters beyond its controls.",
            "mean cosine after the last layer of training: "
            + "; ".join(
                f"{plus_minus(one.difference[trained], one.error[trained], 3)} above {name}"
                for name, one in (("shuffled tokens", seen.beyond_shuffled), ("random weights", seen.beyond_random))
            ),
            "both differences exceed two standard errors, or with few networks as many as are as improbable",
            seen.clusters_beyond_controls,
            "finding",
            float(nearer.difference[trained]),
            float(nearer.error[trained]),
        ),
        Claim(
            "Each histogram is of all pairs, and none but these.",
            f"largest difference of its mass from 1, with and without special tokens: {off:.1e}",
            "less than 1e-5",
            off < 1e-5,
            "identity",
            off,
        ),
    )


def _claim_of_normality(found: Found) -> Claim:
    every, words = found.normal
    after = found.distances()[0][0][found.trained]
    return Claim(
        "Before the first layer the similarities are normally distributed, nearly.",
        f"largest difference D from the normal distribution of the same mean and spread {every.distance:.4f}, below "
        f"{every.upper:.4f} with 95 % confidence; without special tokens {words.distance:.4f} and {words.upper:.4f}. "
        f"Exactly normal by chance: p = {every.p:.3f} and {words.p:.3f}, texts resampled. {_capital(found)}; after "
        f"layer {found.trained} {after:.3f}; a uniform distribution has 0.057, a Laplace 0.062",
        f"D below {NORMAL:g} with 95 % confidence, with and without special tokens, against any distribution that is "
        "farther from normal",
        max(every.upper, words.upper) < NORMAL,
        "paper",
        every.distance,
        source=PEAT_FIGURE_1,
    )


def _capital(found: Found) -> str:
    text = found.beside("distance", 0, digits=3)
    return text[0].upper() + text[1:]


def _claim_of_spike(found: Found) -> Claim:
    late, words = found.late, []
    rise, error = _rise(found.seen.trained.every, late)
    for which, word in (("every", ""), ("words", "without special tokens ")):
        one = getattr(found.seen.trained, which)
        words.append(
            f"{word}most pairs at {one.mode[late]:.2f}, density above 0.9 "
            f"{plus_minus(one.height.mean[late], one.height.error[late], 1)} ({found.beside('height', late, which)}), "
            f"before the first layer {one.top.mean[0]:.1f} at most; half of the pairs within "
            f"{plus_minus(one.width.mean[late], one.width.error[late], 3)} ({found.beside('width', late, which)})"
        )
    return Claim(
        f"By layer {late} there is a spike near 1.",
        "; ".join(words),
        "the histogram is highest above 0.9, and there surely higher than anywhere before the first layer",
        _spike(found.seen.trained.every, late),
        "paper",
        rise,
        error,
        source=PEAT_FIGURE_1,
    )


def _claim_of_one_cluster(found: Found, which: str) -> Claim:
    late, one = found.late, getattr(found.seen.trained, which)
    share, error = one.single.mean[late], one.single.error[late]
    tokens = "all tokens" if which == "every" else "all but the special tokens"
    return Claim(
        f"As the layers are applied further, {tokens} come to one cluster.",
        f"after {late} layers in {plus_minus(100 * share, 100 * error, 1)} % of the texts "
        f"({found.beside('single', late, which, 100, 0)} %); {one.num_clusters.mean[late]:.2f} clusters, "
        f"{plus_minus(100 * one.near_mass.mean[late], 100 * one.near_mass.error[late], 1)} % of the pairs above 0.9",
        f"in at least {100 * SINGLE:g} % of the texts chains of cosines of 0.9 or more join them all, however many",
        bool(share >= SINGLE),
        "paper",
        float(share),
        float(error),
        source=PEAT_FIGURE_1,
    )


FIGURE1 = Experiment(
    "figure1",
    "similarity_histograms",
    "Figure 1: the similarity of tokens in a trained network",
    "The similarity of tokens is normally distributed before the first layer and has a spike at 1 by layer 90; with "
    "the layers applied further all tokens collapse.",
    _run,
    reads_texts=True,
    reads_depth=True,
)
