"""What is measured of two reviews: the path of each word through the layers, in the plane of the decision line.

The reviews are chosen and not drawn: of the correctly classified ones of a length that can be read, and whose farthest
leader is a frequent one, the most confident of each label. With reviews, a model is trained, and they are of its test
part; otherwise the model is that of the package, and they are a dozen that were written for the figure. The model has
two dimensions, so that a picture shows all of it: the first coordinate is the distance from the hyperplane, the second
the place along it. The mean of the first coordinate, weighted by counts, times |w| is the logit; the claims hold the
picture to that.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from ..._check import refusal
from ...plot import WordRun
from ..framework.experiment import Settings
from ..framework.parameters import parameter
from ..framework.verdict import Measured
from ..sentiment.measure import further_moves, leaders_of
from ..sentiment.model import Source, Trained, measured, shown, trained
from ..sentiment.own_reviews import OWN_REVIEWS
from ..sentiment.shipped import frequent_leaders, measured_own, shipped_model, trained_shipped


LAYERS = (0, 1, 2, 4, 8)
ON_LEADER = 0.05  # of the longest word's length
_SHIPPED = "the IMDb reviews of Maas et al. (the classifier of the package)"


@dataclass(frozen=True)
class Parameters:
    """What of the figure can be set: as many different words as can be read in a picture."""

    shortest: int = parameter(16, "the number of different words that a review has at least", least=2, most=128)
    longest: int = parameter(28, "the number of different words that a review has at most", least=2, most=128)

    def __post_init__(self):
        if self.shortest > self.longest:
            rule, is_ = f"be at most longest, {self.longest}", f"it is {self.shortest}"
            raise refusal("shortest", rule, is_, "set another of the two")


@dataclass(frozen=True, eq=False)
class Chosen:
    """One review in the coordinates of the picture: the distance from the hyperplane, and the place along it.

    **Attributes:**

    - `row`: Which of the test reviews it is.
    - `run`: Its words at each layer.
    - `ratio`: Their naive-Bayes log ratios.
    - `logit`, `error`: Its logit, and how far the mean of the words in the picture is from giving the same.
    - `gathered`: Which share of the words is at a leader after the last layer.
    - `moves`: How far a word still moves, of the longest word's length.
    """

    row: int
    run: WordRun
    ratio: np.ndarray
    logit: float
    error: float
    gathered: float
    moves: float

    @property
    def farthest(self) -> int:
        """The leader that is farthest from the hyperplane."""
        led = self.run.leading(len(self.run.xs))
        return int(led[np.argmax(np.abs(self.run.xs[0][led, 0]))])


@dataclass(frozen=True, eq=False)
class Results:
    """All that the figure shows.

    **Attributes:**

    - `fit`: The model, the reviews that it reads, and the leaders of these.
    - `pair`: The positive and the negative review.
    - `of`: Where they are from, and what the model was trained on, for the caption.
    - `on`: What was measured.
    - `seed`: Of the training.
    """

    p: Parameters
    fit: Trained
    pair: tuple[Chosen, Chosen]
    of: tuple[str, str]
    on: Measured
    seed: int


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Train the model, or take the one that is trained, and follow the words of two reviews."""
    if settings.imdb is None:
        say("following the words of two reviews by the classifier of the package")
        fit, (fitted, seed) = trained_shipped(), shipped_model()
        pair = choose(fit, 1, p, frequent_leaders(fitted)), choose(fit, 0, p, frequent_leaders(fitted))
        many = f"one of the {len(OWN_REVIEWS)} reviews that were written for this figure"
        return Results(p, fit, pair, (many, _SHIPPED), measured_own(), seed)
    fit = trained(settings, 2, say)
    say("following the words of two reviews")
    words = Source.of(settings).words
    pair = choose(fit, 1, p), choose(fit, 0, p)
    return Results(p, fit, pair, ("a test review", words), measured(settings, (2,)), settings.seed)


def choose(fit: Trained, label: int, p: Parameters = Parameters(), frequent: np.ndarray | None = None) -> Chosen:
    """The most confident correct review of this label that can be read, and whose farthest leader is a frequent one.

    **Arguments:**

    - `fit`: The model with the reviews.
    - `label`: Which label.
    - `p`: How long it may be.
    - `frequent`: The ids of the frequent leaders; None counts them in the reviews themselves.
    """
    lengths = fit.test.lengths
    allowed = fit.right & (fit.test.labels == label) & (lengths >= p.shortest) & (lengths <= p.longest)
    if not allowed.any():
        side = "positive" if label else "negative"
        raise ValueError(
            f"shortest and longest must leave a {side} review that is classified correctly, but none has "
            f"{p.shortest} to {p.longest} different words; widen the range."
        )
    away = np.abs(fit.distances(np.asarray(fit.fitted.model.embedding[:, 0])))[fit.test.ids]
    # Padding and words that do not lead get -1, below every distance.
    farthest = np.argmax(np.where(fit.led.mask, away, -1.0), axis=1)
    frequent = fit.frequent()[0] if frequent is None else frequent
    led_by = np.isin(np.take_along_axis(fit.test.ids, farthest[:, None], axis=1)[:, 0], frequent)
    # A frequent leader if some review has one; else any.
    allowed = allowed & led_by if np.any(allowed & led_by) else allowed
    # The largest |logit| of those that are allowed.
    row = int(np.argmax(np.where(allowed, np.abs(fit.logits), -1.0)))
    n, one, model = int(lengths[row]), fit.test.take(np.array([row])), fit.fitted.model
    ids, counts = one.ids[0, :n], one.counts[0, :n].astype(np.float32)
    path = np.asarray(model.path(jnp.asarray(ids), jnp.asarray(counts)), np.float64)
    w, length = np.asarray(model.w[0], np.float64), float(np.linalg.norm(np.asarray(model.w[0])))
    # The picture's axes: the distance from the hyperplane, and the place along it, a quarter turn from its normal.
    across = np.array([-w[1], w[0]]) / length
    xs = np.stack([fit.distances(path), path @ across], axis=-1)
    first = leaders_of(model, one).first[0, :n]
    # From each word to the leader next to it, after the last layer.
    away = np.linalg.norm(path[-1][:, None] - path[-1][None, first >= 0], axis=-1).min(axis=1)
    # Words that occur twice count twice, as in the model.
    mean = np.average(xs[-1][:, 0], weights=counts)
    side = "made-up " * fit.made_up + ("positive" if label else "negative")
    # A minus sign and no hyphen, as in the picture.
    logit = f"{fit.logits[row]:.1f}".replace("-", "\N{MINUS SIGN}")
    run = WordRun(xs, [shown(name) for name in fit.names[ids]], first, f"{side} review, logit {logit}")
    gathered = float(np.mean(away <= ON_LEADER * np.linalg.norm(path[0], axis=-1).max()))
    return Chosen(
        row, run, fit.ratio[ids], float(fit.logits[row]), abs(float(length * mean) - float(fit.logits[row])),
        gathered, float(further_moves(model, one)[0][0]),
    )  # fmt: skip


def spread(one: Chosen) -> np.ndarray:
    """The largest distance of a word from the leader nearest to it, at each layer, in the plane of the picture."""
    led = one.run.xs[-1][one.run.first >= 0]
    return np.linalg.norm(one.run.xs[:, :, None] - led[None, None], axis=-1).min(axis=2).max(axis=1)
