"""A measurement beside its controls, as figures 1 and 2 show it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import PRNGKeyArray

from ... import probe
from ...plot import OKABE_ITO
from .networks import Network
from .passages import by_articles


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
