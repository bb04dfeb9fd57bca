"""What is measured of leaders: which words lead most often, how far from the hyperplane, and how many in a review.

With reviews, or with another dimension than 2, a model is trained. Otherwise they are those of the classifier that
comes with the package, counted once over the IMDb test part by `benchmarks/sentiment_shipped.py`, with this file, and
kept beside it: reviews are not in the package.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import jax.numpy as jnp
import numpy as np

from ...sentiment import Fitted, accuracy
from ...sentiment._shipped import leaders_record
from ..framework.experiment import Settings
from ..framework.parameters import parameter
from ..framework.verdict import Measured
from ..sentiment.model import CLEAR, Source, Trained, measured, reviews, trained
from ..sentiment.shipped import BY_US, measured_shipped, shipped_model


STILL = 16  # test reviews of which leaders are followed
MOST = 40  # leaders that can be shown
BINS = 60


@dataclass(frozen=True)
class Parameters:
    """What of the figure can be set."""

    d: int = parameter(2, "the dimension of the words; another than 2 trains on made-up reviews", least=2, most=64)
    leaders: int = parameter(15, "the number of most frequent leaders to show", least=3, most=MOST)


@dataclass(frozen=True, eq=False)
class Counted:
    """What is counted of the leaders of the test reviews; all of it fits into a small file.

    **Attributes:**

    - `names`, `times`, `ratio`: The most frequent leaders of confident reviews, in how many of these each leads, and
        its naive-Bayes log ratio in the training part.
    - `edges`, `leaders`, `words`: How many leaders, and how many other words, have a signed distance from the
        hyperplane between two edges.
    - `away`: The median distance of leaders and of other words.
    - `farther`: The probability that a random leader is farther from the hyperplane than a random other word.
    - `reviews_by_leaders`: How many reviews with a word have no leader, one, two, ...
    - `words_a_review`: Different words of a review, on average.
    - `confident`: How many reviews are confident and correct.
    - `own`: In which share of them the farthest leader is clearly of the sentiment of the review.
    - `planted`: In which share it is a planted word; NaN where none was planted.
    - `moved`: How far a leader moves after it began to lead, in the first reviews of the test part.
    - `accuracy`, `test`: Of the test part, and how many reviews it has.
    """

    names: tuple[str, ...]
    times: np.ndarray
    ratio: np.ndarray
    edges: np.ndarray
    leaders: np.ndarray
    words: np.ndarray
    away: tuple[float, float]
    farther: float
    reviews_by_leaders: np.ndarray
    words_a_review: float
    confident: int
    own: float
    planted: float
    moved: float
    accuracy: float
    test: int

    def first(self, many: int) -> "Counted":
        """The same with fewer of the most frequent leaders."""
        kept = {"names": self.names[:many], "times": self.times[:many], "ratio": self.ratio[:many]}
        return Counted(**({one.name: getattr(self, one.name) for one in fields(self)} | kept))

    def record(self) -> dict[str, Any]:
        """All of it for a JSON file."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "planted"}
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> "Counted":
        """What `record` was made of."""
        arrays = {"times", "ratio", "edges", "leaders", "words", "reviews_by_leaders"}
        values = {name: np.asarray(value) if name in arrays else value for name, value in record.items()}
        given: dict[str, Any] = values | {"names": tuple(record["names"]), "away": tuple(record["away"])}
        return cls(**given, planted=float("nan"))


@dataclass(frozen=True, eq=False)
class Results:
    """All that the figure shows.

    **Attributes:**

    - `fitted`: The model.
    - `counted`: What is counted of its leaders.
    - `planted`: The words that were planted; none in reviews that are not made up.
    - `of`: Which reviews these are, for the caption.
    - `on`: What was measured.
    - `seed`: Of the training.
    """

    p: Parameters
    fitted: Fitted
    counted: Counted
    planted: frozenset[str]
    of: str
    on: Measured
    seed: int


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Train the model, or take the one that is trained, and count the leaders of its test part."""
    source = Source.of(settings)
    if settings.imdb is None and p.d == 2:
        say("reading what was counted of the classifier of the package")
        record, (fitted, seed) = leaders_record(), shipped_model()
        counted = Counted.of_record(record["counted"]).first(p.leaders)
        return Results(p, fitted, counted, frozenset(), BY_US, measured_shipped(), seed)
    fit, planted = trained(settings, p.d, say), reviews(source).planted
    say("looking for the leaders of the test reviews")
    return Results(
        p, fit.fitted, count(fit, planted, p.leaders), planted, source.words, measured(settings, (p.d,)), settings.seed
    )


def count(fit: Trained, planted: frozenset[str] = frozenset(), most: int = MOST) -> Counted:
    """The leaders of the test part, of which `most` are named."""
    ids, times = fit.frequent(most)
    test = fit.test
    # Signed distances of all words of the vocabulary, then of those of each review.
    away = fit.distances(np.asarray(fit.fitted.model.embedding[:, 0]))[test.ids]
    # Which places lead, and which have a word at all.
    led, present = fit.led.mask, test.counts > 0
    # Padding and words that do not lead get -1, below every distance, so that only a leader is the farthest.
    farthest = np.argmax(np.where(led, np.abs(away), -1.0), axis=1)
    chosen = np.take_along_axis(test.ids, farthest[:, None], axis=1)[:, 0][fit.confident]
    # 1 for positive reviews and -1 for negative ones.
    signs = 2.0 * test.labels[fit.confident] - 1
    leaders, words = away[led], away[present & ~led]
    reach = 1.05 * max(np.abs(leaders).max(), np.abs(words).max())
    # Symmetric about the hyperplane, and the same for both histograms.
    edges = np.linspace(-reach, reach, BINS + 1)
    return Counted(
        names=tuple(map(str, fit.names[ids])),
        times=times,
        ratio=fit.ratio[ids],
        edges=edges,
        leaders=np.histogram(leaders, edges)[0],
        words=np.histogram(words, edges)[0],
        away=(float(np.median(np.abs(leaders))), float(np.median(np.abs(words)))),
        farther=_farther(leaders, words),
        # Over reviews that have a word at all.
        reviews_by_leaders=np.bincount(fit.led.counts[test.lengths > 0]),
        words_a_review=float(test.lengths.mean()),
        confident=len(chosen),
        own=float(np.mean(fit.ratio[chosen] * signs >= CLEAR)),
        planted=float(np.mean(np.isin(fit.names[chosen], sorted(planted)))) if planted else float("nan"),
        moved=_moved(fit),
        accuracy=accuracy(fit.logits, test.labels),
        test=len(test),
    )


def _farther(leaders: np.ndarray, words: np.ndarray) -> float:
    """The probability that a random leader is farther from the hyperplane than a random word that does not lead."""
    others = np.sort(np.abs(words))
    # The place of a leader among the sorted others is how many of them it is farther than (Mann and Whitney).
    return float(np.searchsorted(others, np.abs(leaders)).mean() / len(others))


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
