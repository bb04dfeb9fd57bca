"""Controls of a measurement: shuffled tokens, random weights, and the few networks or trainings of an error."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from ... import probe
from ...plot import OKABE_ITO
from ...probe.measures.controls import _comparison
from ...probe.measures.survey import clustered_error
from ..framework.figure import Found, plus_minus
from .ensemble import mean_and_error
from .networks import Network, by_articles


DRAWS = STARTS = 3
NAMES = ("trained", "tokens shuffled", "random weights", "random weights, usual scale")
NAMES_OF_CONTROLS = ("shuffled tokens", "random weights")
COLOURS = (OKABE_ITO[0], OKABE_ITO[1], OKABE_ITO[2], OKABE_ITO[3])
LINES = ("-", "--", ":", "-.")

Run = tuple[np.ndarray, np.ndarray | None]


def measured(
    measure: Callable[..., Any],
    network: Network,
    key: PRNGKeyArray,
    *,
    model: probe.Model | None = None,
    draws: int = DRAWS,
    level: int = -1,
    statistic: str | None = None,
    store: Path | None = None,
) -> probe.Controls:
    """`probe.controls` of a network, or of a variant `model` such as a deeper one, on its texts, with errors over
    articles. The random weights of the network of the package are drawn as before its training."""
    over_articles = lambda model, texts, **options: by_articles(measure(model, texts, **options), network.articles)
    return probe.controls(
        over_articles, network.model if model is None else model, network.texts, key=key, draws=draws,
        fixed=network.fixed, level=level, statistic=statistic, store=store, units=network.articles,
        initial=probe.bundled_start if network.bundled else None,
    )  # fmt: skip


def runs_of(controls: probe.Controls, pick: Callable[[Any], probe.Average]) -> list[Run]:
    """The mean and the standard error of a statistic: trained, with shuffled tokens, and with random weights."""
    # The error of random weights is over networks, which differ more than texts.
    random = mean_and_error(np.stack([pick(network).mean for network in controls.random]))
    return [*((pick(run).mean, pick(run).error) for run in (controls.trained, controls.shuffled)), random]


def against(controls: probe.Controls, pick: Callable[[Any], probe.Average], level: int) -> str:
    """Words for a caption: whether a statistic at a level is above that of each control, below, or no different."""
    words = []
    for beyond, name, (mean, _) in zip(
        (controls.beyond_shuffled, controls.beyond_random),
        NAMES_OF_CONTROLS,
        runs_of(controls, pick)[1:],
        strict=True,
    ):
        # `exceeds` is one-sided; the negative difference tests the other side.
        less = beyond._replace(z=-beyond.z)
        word = "above" if beyond.exceeds()[level] else "below" if less.exceeds()[level] else "no different from"
        words.append(f"{word} that of {name} ({mean[level]:.2f})")
    return " and ".join(words)


def beyond_both(what: str, beyond: tuple[probe.Comparison, probe.Comparison], level: int, sigmas: float) -> Found:
    """The claim that a statistic of the trained network exceeds both controls at a level."""
    # The nearer control decides, because the network must exceed both.
    nearer = min(beyond, key=lambda control: control.z[level])
    listed = "; ".join(
        f"{plus_minus(control.difference[level], control.error[level], 3)} above {name}"
        for name, control in zip(NAMES_OF_CONTROLS, beyond, strict=True)
    )
    holds = all(control.exceeds(sigmas)[level] for control in beyond)
    return Found(f"{what}: {listed}", holds, nearer.difference[level], nearer.error[level])


def random_words(network: Network, draws: int = DRAWS) -> str:
    how = "its own were before training" if network.bundled else "transformers draws them"
    return f"{draws} networks of random weights, drawn as {how}"


class Starts(NamedTuple):
    """A statistic of several random starts, because one start does not tell how much starts differ."""

    each: np.ndarray  # the mean over texts for each random start, (networks, levels)
    beyond: probe.Comparison  # the comparison of the trained network with the starts, paired by text, (levels,)

    @property
    def mean(self) -> np.ndarray:
        """The mean over the networks, (levels,)."""
        return self.each.mean(axis=0)

    @property
    def error(self) -> np.ndarray:
        """The standard error of `mean` over the networks, (levels,)."""
        return self.each.std(axis=0, ddof=1) / np.sqrt(len(self.each))

    def words(self, level: int = -1, digits: int = 3) -> str:
        """The mean, its error and the value of each network at a level, in words."""
        every = ", ".join(f"{value:.{digits}f}" for value in self.each[:, level])
        return (
            f"{plus_minus(self.mean[level], self.error[level], digits)} over {len(self.each)} random starts ({every})"
        )

    def exceeds(self, level: int = -1) -> bool:
        """True if the trained network is significantly above the starts at a level."""
        return bool(self.beyond.exceeds()[level])


def starts_of(trained: np.ndarray, starts: Sequence[np.ndarray], units: np.ndarray | None = None) -> Starts:
    """The `Starts` of a statistic of each text, (texts, levels), in the trained network and in each random start.

    The error is computed as by `probe.controls`, with the `units` of `clustered_error`, such as the article of each
    text.
    """
    drawn = np.stack(starts)
    each = drawn.mean(axis=1)
    # The squared error of the mean over networks; `_comparison` adds the squared error over texts.
    between = each.var(axis=0, ddof=1) / len(each)
    # The difference is paired by text: the mean over networks is taken for each text.
    return Starts(each, _comparison(trained - drawn.mean(axis=0), between, float(len(each) - 1), units))


def keys_of(seed: int, starts: int = STARTS) -> list[PRNGKeyArray]:
    """A PRNG key for each start; the keys of fewer starts are the first keys of more starts."""
    return [jr.fold_in(jr.key(seed), start) for start in range(starts)]


def seed_of(key: PRNGKeyArray) -> int:
    """An integer seed that a key determines."""
    # The seed has 31 bits, because NumPy and others take no negative seed.
    return int(jax.device_get(jr.bits(key, dtype=jnp.uint32))) >> 1


class Few(NamedTuple):
    """The mean of one number per training, with tests that allow for the small number of trainings."""

    each: np.ndarray  # the number of each training, (trainings,)
    # `mean`, `error`: the mean over trainings and its standard error
    mean: float
    error: float

    @classmethod
    def of(cls, each: np.ndarray) -> "Few":
        """The mean of one number per training, of at least two trainings."""
        mean, error, _ = clustered_error(each)
        return cls(np.asarray(each, float), float(mean), float(error))

    def above(self, than: float, sigmas: float = 2.0) -> bool:
        """True if the mean is significantly above `than`: a one-sided t-test over the trainings."""
        return clustered_error(self.each).above(than, sigmas)

    def below(self, than: float, sigmas: float = 2.0) -> bool:
        """True if the mean is significantly below `than`, by the same test."""
        return clustered_error(self.each).below(than, sigmas)

    def words(self, digits: int = 3) -> str:
        """The mean and its error, in words."""
        return plus_minus(self.mean, self.error, digits)
