"""A measurement beside its controls, as figures 1 and 2 show it."""

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
from ...probe.measures.controls import Comparison, _comparison
from ..framework.experiment import plus_minus
from .networks import Network, by_articles


DRAWS = 3
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
    """`probe.controls` of a network on its texts, errors over articles. The random weights are those that it had before
    training, if that is known, as it is of the one of the package.

    **Arguments:**

    - `measure`: As there.
    - `network`: The network and its texts.
    - `key`: PRNG key.
    - `model`: The same network, deeper or without some part; None is as it is.
    - `draws`: How many networks of random weights.
    - `level`, `statistic`, `store`: As there.
    """
    over_articles = lambda model, texts, **options: by_articles(measure(model, texts, **options), network.articles)
    return probe.controls(
        over_articles, network.model if model is None else model, network.texts, key=key, draws=draws,
        fixed=network.fixed, level=level, statistic=statistic, store=store, units=network.articles,
        initial=probe.bundled_start if network.bundled else None,
    )  # fmt: skip


def runs_of(seen: probe.Controls, pick: Callable[[Any], probe.Average]) -> list[Run]:
    """Mean and standard error of a statistic: trained, with shuffled tokens, and with random weights, the last over the
    networks drawn.
    """
    # Networks differ more than texts: the error of random weights is over networks.
    many = np.stack([pick(one).mean for one in seen.random])
    of_random = many.mean(axis=0), many.std(axis=0, ddof=1) / np.sqrt(len(many))
    return [*((pick(run).mean, pick(run).error) for run in (seen.trained, seen.shuffled)), of_random]


def against(seen: probe.Controls, pick: Callable[[Any], probe.Average], level: int) -> str:
    """Whether the statistic that was compared is above that of each control at a level, or below, for a caption."""
    words = []
    for beyond, name, (mean, _) in zip(
        (seen.beyond_shuffled, seen.beyond_random), NAMES_OF_CONTROLS, runs_of(seen, pick)[1:], strict=True
    ):
        # `exceeds` is one-sided; the other side is that of the difference turned round.
        less = beyond._replace(z=-beyond.z)
        word = "above" if beyond.exceeds()[level] else "below" if less.exceeds()[level] else "no different from"
        words.append(f"{word} that of {name} ({mean[level]:.2f})")
    return " and ".join(words)


def random_words(network: Network, draws: int = DRAWS) -> str:
    """What the random weights are, for a caption."""
    how = "its own were before training" if network.bundled else "transformers begins"
    return f"{draws} networks of random weights, drawn as {how}"


# A trained network beside several networks as it might have started: one start alone says nothing of another.


STARTS = 3


class Starts(NamedTuple):
    """A statistic before training.

    **Attributes:**

    - `each`: The mean over texts of each network, (networks, levels).
    - `beyond`: The trained network against them, paired by text, (levels,).
    """

    each: np.ndarray
    beyond: probe.Comparison

    @property
    def mean(self) -> np.ndarray:
        """Over the networks, (levels,)."""
        return self.each.mean(axis=0)

    @property
    def error(self) -> np.ndarray:
        """The standard error of `mean`, from the spread between networks, (levels,)."""
        return self.each.std(axis=0, ddof=1) / np.sqrt(len(self.each))

    def words(self, level: int = -1, digits: int = 3) -> str:
        """Mean, error and each network at a level."""
        every = ", ".join(f"{value:.{digits}f}" for value in self.each[:, level])
        return (
            f"{plus_minus(self.mean[level], self.error[level], digits)} over {len(self.each)} random starts ({every})"
        )

    def exceeds(self, level: int = -1) -> bool:
        """Whether the trained network is surely above."""
        return bool(self.beyond.exceeds()[level])


def starts_of(trained: np.ndarray, starts: Sequence[np.ndarray], units: np.ndarray | None = None) -> Starts:
    """Of what each text has, (texts, levels), in the trained network and in each other.

    The error is that of `probe.controls`, with the `units` of `clustered_error`, such as the article of each text.
    """
    drawn = np.stack(starts)
    each = drawn.mean(axis=1)
    # The squared error of the mean over networks; that over texts is added by `_comparison`.
    between = each.var(axis=0, ddof=1) / len(each)
    # Paired by text: the mean over networks is taken for each text before the difference.
    return Starts(each, _comparison(trained - drawn.mean(axis=0), between, float(len(each) - 1), units))


def keys_of(seed: int, starts: int = STARTS) -> list[PRNGKeyArray]:
    """A PRNG key for each start; the first of many are the same as fewer."""
    return [jr.fold_in(jr.key(seed), start) for start in range(starts)]


def seed_of(key: PRNGKeyArray) -> int:
    """An integer that a key decides, for what takes a seed."""
    # 31 bits: NumPy and others take no negative seed.
    return int(jax.device_get(jr.bits(key, dtype=jnp.uint32))) >> 1


# Numbers of a few trainings: mean, standard error, and a test that knows how few they are.


class Few(NamedTuple):
    """The mean of one number per training.

    **Attributes:**

    - `each`: The number of each training, (trainings,).
    - `mean`, `error`: Over trainings.
    """

    each: np.ndarray
    mean: float
    error: float

    @classmethod
    def of(cls, each: np.ndarray) -> "Few":
        """Of one number per training, two at least."""
        values = np.asarray(each, float)
        return cls(values, float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))))

    def above(self, than: float, sigmas: float = 2.0) -> bool:
        """Whether the mean is surely above: a one-sided t-test as improbable as two standard errors of many."""
        return bool(self._against(than).exceeds(sigmas)[0])

    def below(self, than: float, sigmas: float = 2.0) -> bool:
        """Whether it is surely below."""
        found = self._against(than)
        return bool(found._replace(z=-found.z).exceeds(sigmas)[0])

    def words(self, digits: int = 3) -> str:
        """The mean and its error."""
        return plus_minus(self.mean, self.error, digits)

    def _against(self, than: float) -> Comparison:
        # No variance besides that between trainings; where that is zero, z is infinite and the sign decides.
        return _comparison(self.each[:, None] - than, np.zeros(1), 1.0)
