"""What is measured of training in several dimensions: accuracy, how settled the words are, and how few lead."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...sentiment import accuracy
from ..framework.experiment import Settings
from ..framework.parameters import parameter
from ..sentiment.measure import further_moves, leaders_of, sample
from ..sentiment.model import BAG, trained


DIMS, QUICK_DIMS = (2, 4, 8, 16), (2, 16)
SETTLED = 0.01  # of the longest word's length


@dataclass(frozen=True)
class Parameters:
    """What of the figure can be set."""

    sampled: int = parameter(
        2000, "the number of test reviews whose words are followed", quick=500, least=2, most=50_000
    )


@dataclass(frozen=True, eq=False)
class Curves:
    """One model.

    **Attributes:**

    - `history`: Of each epoch, by name: loss and accuracies.
    - `best`: The epoch that was kept.
    - `accuracy`, `error`: On the test part, and its standard error.
    - `alpha`: The step of its layers.
    - `moves`: For each sampled test review, how far a word still moves after the last layer.
    - `growth`: How much farther out than at the start a word gets, at most; 1 is not at all.
    - `per_word`: Leaders per word of the sampled reviews.
    - `per_review`: Leaders per review.
    """

    history: dict[str, np.ndarray]
    best: int
    accuracy: float
    error: float
    alpha: float
    moves: np.ndarray
    growth: float
    per_word: float
    per_review: float

    @property
    def settled(self) -> float:
        """The share of reviews in which no word still moves by more than a hundredth of the longest one's length."""
        return float(np.mean(self.moves < SETTLED))


@dataclass(frozen=True, eq=False)
class Results:
    """All that the figure shows.

    **Attributes:**

    - `curves`: The model of each dimension, in rising order.
    - `bag`: The test accuracy of a bag of words, the model without layers.
    """

    p: Parameters
    curves: dict[int, Curves]
    bag: float


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Train a model of each dimension and a bag of words, or take those that are trained, and measure them."""
    curves = {dim: _curves(p, settings, dim, say) for dim in (QUICK_DIMS if settings.quick else DIMS)}
    plain = trained(settings, BAG, say)
    return Results(p, curves, accuracy(plain.logits, plain.test.labels))


def _curves(p: Parameters, settings: Settings, dim: int, say: Callable[[str], None]) -> Curves:
    fit = trained(settings, dim, say)
    say(f"following words for {dim} dimensions to layer 64")
    some, model = sample(fit.test, p.sampled), fit.fitted.model
    moves, growth = further_moves(model, some)
    led = leaders_of(model, some)
    # The test part was not seen in choosing the epoch.
    right = accuracy(fit.logits, fit.test.labels)
    history = {name: np.array([epoch[name] for epoch in fit.fitted.history]) for name in fit.fitted.history[0]}
    return Curves(
        history, fit.fitted.best_epoch, right, float(np.sqrt(right * (1 - right) / len(fit.test))),
        float(model.alpha[0]), moves, growth, led.per_word, float(led.counts.mean()),
    )  # fmt: skip
