"""The trained networks at hand, each with its passages, and claims that are made about each of them.

The networks are the ALBERT and the language model of this package, and SmolLM2 if it is installed. The independent unit
of a text is its article. Random weights are drawn as before the training of each network.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import PRNGKeyArray

from ... import probe
from ..framework.figure import Found, Measured, Say, Settings, Subject, claim
from . import causal
from .causal import LENGTH, NAME, PASSAGES
from .networks import articles_of, articles_words, rows_of, spread


ALBERT_OWN = Subject("clusterjax-albert", "the ALBERT of this package")
NETWORKS = {"albert": "the ALBERT of the package", "own": causal.name_of(True), "smollm2": NAME}  # in a sentence
ABSENT = f"{NAME} is not installed (pip install 'clusterjax[smollm2]') and is left out."


class AtHand(NamedTuple):
    """A trained network and its texts."""

    name: str  # the network in a sentence
    subject: Subject  # the network, for the verdict
    data: Subject  # its texts
    model: probe.Model
    texts: probe.Encoded
    articles: np.ndarray  # the article of each text, the independent unit of errors
    initial: Callable[[PRNGKeyArray], Any]  # the network with random weights
    drawn: str  # how its weights were drawn, in words

    @property
    def tokens(self) -> int:
        """The largest number of tokens of a text."""
        return self.texts.mask.shape[1]

    def random(self, key: PRNGKeyArray) -> probe.Model:
        """The model with random weights."""
        return probe.randomise(self.model, key, initial=self.initial)

    def measured(self, **size: Any) -> Measured:
        """The network, its texts and its size, with these further numbers."""
        return Measured(self.subject, self.data, {"texts": len(self.articles), "tokens": self.tokens} | size)


def networks_at_hand(settings: Settings, say: Say) -> dict[str, AtHand]:
    """The networks by the keys of `NETWORKS`, without SmolLM2 if it is not installed."""
    # SmolLM2 is read first, because texts that do not fit are refused here.
    reading = causal.reading_of(settings, LENGTH)
    length = LENGTH if settings.length is None else settings.length
    num_texts = settings.most_texts or (causal.QUICK_TEXTS if settings.quick else causal.TEXTS)
    chosen = spread(probe.bundled_texts(), num_texts)
    albert, own, articles = probe.load(), probe.load("language-model"), articles_of(chosen)
    networks: dict[str, tuple[Any, ...]] = {
        "albert": (ALBERT_OWN, PASSAGES, albert, probe.encode(albert, chosen, length=length), articles),
        "own": (causal.OWN, PASSAGES, own, probe.Encoded(*rows_of(chosen, length)), articles),
    }
    if reading is None:
        say(ABSENT)
    else:
        networks["smollm2"] = (causal.SMOLLM2, reading.data, reading.model, reading.texts, reading.articles)
    return {key: at_hand(key, *arguments) for key, arguments in networks.items()}


def at_hand(
    key: str, subject: Subject, data: Subject, model: probe.Model, texts: probe.Encoded, articles: np.ndarray
) -> AtHand:
    """The network of a key of `NETWORKS` with these texts."""
    if key == "albert":
        initial, drawn = probe.bundled_start, "as before its training"
    else:
        initial, drawn = lambda key: causal.untrained(model, key).network, causal.spread_words(model)
    return AtHand(NETWORKS[key], subject, data, model, texts, articles, initial, drawn)


def in_each(criterion: str) -> Callable[[Callable[[Any], Found]], tuple[Callable, ...]]:
    """A decorator that turns a function of the measurement of one network into a claim about each network.

    The measurement of a figure has the attribute `networks`, the measurements of its networks, each with the network
    itself as `given` and with `on`. The name of the network replaces NETWORK in the docstring of the function; the
    claim does not apply if the network is not installed.
    """

    def about(function: Callable[[Any], Found], key: str) -> Callable:
        def found(m: Any) -> Found | None:
            if (network := m.networks.get(key)) is None:
                return None
            result, over = function(network), f"(± over {articles_words(network.given.articles)})"
            measured = f"{result.measured} {over}" if "±" in result.measured else result.measured
            return replace(result, measured=measured, on=network.on)

        words = " ".join((function.__doc__ or "").split())
        return claim(criterion, says=words.replace("NETWORK", NETWORKS[key]))(found)

    return lambda function: tuple(about(function, key) for key in NETWORKS)


def measured_on(networks: dict[str, Any], listed: str, size: dict[str, Any]) -> Measured:
    """The networks, the passages and the size that a figure of several networks measured."""
    first = networks["albert"].given
    # SmolLM2 may have read the passages, which the two networks of the package have not.
    data = Subject(PASSAGES.key, "passages of Wikipedia")
    size = {"networks": len(networks), "texts": len(first.articles), "tokens": first.tokens} | size
    return Measured(Subject("several networks", listed), data, size)
