"""What is measured of leaders: which words lead most often, how far from the hyperplane, and how many in a review."""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from ..framework.experiment import Settings
from ..framework.parameters import parameter
from ..sentiment.model import Source, Trained, reviews, trained


STILL = 16  # test reviews of which leaders are followed


@dataclass(frozen=True)
class Parameters:
    """What of the figure can be set."""

    d: int = parameter(2, "the dimension of the words", least=2, most=64)
    leaders: int = parameter(15, "the number of most frequent leaders to show", least=3, most=40)


@dataclass(frozen=True, eq=False)
class Counted:
    """What is counted of the leaders of the test reviews.

    **Attributes:**

    - `ids`, `times`: The most frequent leaders of confident reviews, and in how many of these each leads.
    - `leaders`, `words`: Signed distances from the hyperplane, of all leaders and of all other words.
    - `counts`: Leaders in each review.
    - `farthest`: The id of the farthest leader of each confident review.
    """

    ids: np.ndarray
    times: np.ndarray
    leaders: np.ndarray
    words: np.ndarray
    counts: np.ndarray
    farthest: np.ndarray


@dataclass(frozen=True, eq=False)
class Results:
    """All that the figure shows.

    **Attributes:**

    - `fit`: The model, its test part, and the leaders of it.
    - `counted`: What is counted of these leaders.
    - `planted`: The words that were planted; none in reviews that are not made up.
    - `moved`: How far a leader moves after it began to lead, in the first reviews of the test part.
    """

    p: Parameters
    fit: Trained
    counted: Counted
    planted: frozenset[str]
    moved: float


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Train the model, or take the one that is trained, and count the leaders of its test part."""
    fit = trained(settings, p.d, say)
    say("looking for the leaders of the test reviews")
    return Results(p, fit, count(fit, p.leaders), reviews(Source.of(settings)).planted, _moved(fit))


def count(fit: Trained, most: int) -> Counted:
    """The leaders of the test part, of which `most` are named."""
    ids, times = fit.frequent(most)
    # Signed distances of all words of the vocabulary, then of those of each review.
    away = fit.distances(np.asarray(fit.fitted.model.embedding[:, 0]))[fit.test.ids]
    # Which places lead, and which have a word at all.
    led, present = fit.led.mask, fit.test.counts > 0
    # Padding and words that do not lead get -1, below every distance, so that only a leader is the farthest.
    farthest = np.argmax(np.where(led, np.abs(away), -1.0), axis=1)
    chosen = np.take_along_axis(fit.test.ids, farthest[:, None], axis=1)[:, 0]
    return Counted(
        ids, times, away[led], away[present & ~led], fit.led.counts[fit.test.lengths > 0], chosen[fit.confident]
    )


def _moved(fit: Trained) -> float:
    """How far a leader moves from the layer at which it begins to lead to the last, at most."""
    model, moved = fit.fitted.model, 0.0
    for row in range(min(STILL, len(fit.test))):
        n = int(fit.test.lengths[row])
        if n:
            counts = jnp.asarray(fit.test.counts[row, :n], jnp.float32)
            path = np.asarray(model.path(jnp.asarray(fit.test.ids[row, :n]), counts))
            # From the layer at which it leads on.
            for i in np.flatnonzero(fit.led.mask[row, :n]):
                moved = max(moved, float(np.abs(path[fit.led.first[row, i] :, i] - path[-1, i]).max()))
    return moved
