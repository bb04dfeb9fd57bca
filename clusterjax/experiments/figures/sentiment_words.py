"""Sentiment: the path of each word of two reviews through the layers, in the plane of the decision line.

The two reviews are not drawn at random. Among the correctly classified reviews that are short enough for a picture and
whose farthest leader is a frequent leader, the most confident review of each label is shown. With `--imdb` a model is
trained, and the reviews are from its test part. Otherwise the model is the classifier of the package, and the reviews
are from a dozen that were written for the figure. The model has two dimensions, so that a picture shows the whole
state: the first coordinate is the distance from the hyperplane, the second the position along the hyperplane. The mean
of the first coordinate, weighted by counts, times |w| is the logit; a claim checks the picture by this identity.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from ..._base.checks import refusal
from ...plot import WordRun, animate_words, style, words
from ...sentiment._released import leaders_record
from ..framework.figure import Claim, Found, Measured, Say, Settings, claim, figure, parameter
from ..shared import sentiment
from ..shared.layout import WIDTH


LAYERS = (0, 1, 2, 4, 8)
ON_LEADER = 0.05  # a word is at a leader within this distance, relative to the norm of the longest word
LINE = (np.array([1.0, 0.0]), 0.0)  # the hyperplane, in the coordinates of the picture


@dataclass(frozen=True)
class Parameters:
    """The least and the largest number of different words of a review, for which a picture can be read."""

    shortest: int = parameter(16, "the least number of different words of a review", least=2, most=128)
    longest: int = parameter(28, "the largest number of different words of a review", least=2, most=128)

    def __post_init__(self):
        if self.shortest > self.longest:
            rule, is_ = f"be at most longest, {self.longest}", f"it is {self.shortest}"
            raise refusal("shortest", rule, is_, "set another of the two")


class Chosen(NamedTuple):
    """One review in the coordinates of the picture: the distance from the hyperplane, and the position along it."""

    row: int  # the number of the review in the test part
    run: WordRun  # its words at each layer
    ratio: np.ndarray  # the naive-Bayes log ratios of its words
    # `logit`, `error`: its logit, and the difference of the logit that the words in the picture give
    logit: float
    error: float
    gathered: float  # the share of the words that are at a leader after the last layer
    moves: float  # the largest distance that a word still moves, relative to the norm of the longest word

    @property
    def farthest(self) -> int:
        """The leader that is farthest from the hyperplane."""
        led = self.run.leading(len(self.run.xs))
        return int(led[np.argmax(np.abs(self.run.xs[0][led, 0]))])

    @property
    def spread(self) -> np.ndarray:
        """The largest distance of a word from the leader nearest to it, in the plane of the picture, (layers + 1,)."""
        led = self.run.xs[-1][self.run.first >= 0]
        return np.linalg.norm(self.run.xs[:, :, None] - led, axis=-1).min(axis=2).max(axis=1)


class Results(NamedTuple):
    p: Parameters
    fit: sentiment.Trained  # the model, the reviews that it reads, and their leaders
    pair: tuple[Chosen, Chosen]  # the positive and the negative review
    of: tuple[str, str]  # the source of the reviews, and the training data of the model, for the caption
    on: Measured  # the network, the data and their sizes
    seed: int  # the seed of the training
    # `starts`, `quick`: the settings
    starts: int
    quick: bool


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    if settings.imdb is None:
        say("following the words of two reviews by the classifier of the package")
        fit, (fitted, seed) = sentiment.trained_shipped(), sentiment.shipped_model()
        on = sentiment.measured_shipped(sentiment.OWN, len(sentiment.OWN_REVIEWS))
        # The most frequent leaders of the classifier, as they were counted.
        frequent = np.array([fitted.vocabulary.ids[name] for name in leaders_record()["counted"]["names"][:15]])
        of = (
            f"one of the {len(sentiment.OWN_REVIEWS)} reviews that were written for this figure",
            "the IMDb reviews of Maas et al. (the classifier of the package)",
        )
    else:
        fit, seed, on = sentiment.trained(settings, 2, say), settings.seed, sentiment.measured(settings, (2,))
        say("following the words of two reviews")
        frequent, of = fit.frequent()[0], ("a test review", sentiment.Source.of(settings).words)
    pair = choose(fit, 1, p, frequent), choose(fit, 0, p, frequent)
    return Results(p, fit, pair, of, on, seed, settings.starts, settings.quick)


def choose(fit: sentiment.Trained, label: int, p: Parameters, frequent: np.ndarray) -> Chosen:
    """The most confident correct review of a label that can be read, and whose farthest leader is one of the ids
    `frequent`, or any leader if no review of the label has one of these."""
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
    led_by = np.isin(np.take_along_axis(fit.test.ids, farthest[:, None], axis=1)[:, 0], frequent)
    allowed = allowed & led_by if np.any(allowed & led_by) else allowed
    row = int(np.argmax(np.where(allowed, np.abs(fit.logits), -1.0)))
    n, review, model = int(lengths[row]), fit.test.take(np.array([row])), fit.fitted.model
    ids, counts = review.ids[0, :n], review.counts[0, :n].astype(np.float32)
    path = np.asarray(model.path(jnp.asarray(ids), jnp.asarray(counts)), np.float64)
    w, length = np.asarray(model.w[0], np.float64), float(np.linalg.norm(np.asarray(model.w[0])))
    # The second axis of the picture, the position along the hyperplane, is a quarter turn from its normal.
    across = np.array([-w[1], w[0]]) / length
    xs = np.stack([fit.distances(path), path @ across], axis=-1)
    first = sentiment.leaders_of(model, review).first[0, :n]
    # The distance from each word to the nearest leader, after the last layer.
    away = np.linalg.norm(path[-1][:, None] - path[-1][None, first >= 0], axis=-1).min(axis=1)
    # A word that occurs twice counts twice, as in the model.
    mean = np.average(xs[-1][:, 0], weights=counts)
    side = "made-up " * fit.made_up + ("positive" if label else "negative")
    logit = f"{fit.logits[row]:.1f}".replace("-", "\N{MINUS SIGN}")
    run = WordRun(xs, [sentiment.shown(name) for name in fit.names[ids]], first, f"{side} review, logit {logit}")
    gathered = float(np.mean(away <= ON_LEADER * np.linalg.norm(path[0], axis=-1).max()))
    return Chosen(
        row, run, fit.ratio[ids], float(fit.logits[row]), abs(float(length * mean) - float(fit.logits[row])),
        gathered, float(sentiment.further_moves(model, review)[0][0]),
    )  # fmt: skip


@claim("less than 1e-4", kind="identity")
def logit_of_the_picture(m: Results) -> Found:
    """The logit of a review follows from the mean of the words that are drawn."""
    error = max(review.error for review in m.pair)
    return Found(f"the largest difference is {error:.1e}", error < 1e-4, error)


@claim(
    f"log ratio at least {sentiment.CLEAR:g} in the positive review, at most -{sentiment.CLEAR:g} in the negative one",
    source=sentiment.POSTER,
)
def farthest_leaders(m: Results) -> Found:
    """In both reviews the leader farthest from the decision hyperplane conveys the sentiment of the review."""
    farthest = [(review.run.names[review.farthest], float(review.ratio[review.farthest])) for review in m.pair]
    measured = "; ".join(f'"{name}", log ratio {ratio:+.2f}' for name, ratio in farthest)
    return Found(measured, farthest[0][1] >= sentiment.CLEAR and farthest[1][1] <= -sentiment.CLEAR)


@claim("at least 75 % in both")
def gathered(m: Results) -> Found:
    """After 8 layers at least three quarters of the words of each review are at a leader."""
    shares = [review.gathered for review in m.pair]
    measured = (
        f"{100 * shares[0]:.0f} % and {100 * shares[1]:.0f} % of the words are within {100 * ON_LEADER:g} % of the "
        "norm of the longest word from a leader"
    )
    return Found(measured, min(shares) >= 0.75, min(shares))


@claim("less than 5 %", source=sentiment.POSTER)
def settled(m: Results) -> Found:
    """8 layers are enough for the clustered state of both reviews."""
    moves = max(review.moves for review in m.pair)
    measured = f"from layer 8 to 64 no word moves farther than {100 * moves:.2f} % of the norm of the longest word"
    return Found(measured, moves < 0.05, moves)


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    (which, source), p = m.of, m.p
    led = [", ".join(f'"{review.run.names[i]}"' for i in review.run.leading(len(review.run.xs))) for review in m.pair]
    return (
        f"The words of a positive (left) and of a negative review (right), each {which}, on their way through the 8 "
        f"hardmax layers of a d = 2 model, trained on {source}. Of the correctly classified reviews of {p.shortest} to "
        f"{p.longest} different words whose farthest leader is one of the 15 most frequent leaders, these are the most "
        "confident on either side. Across the picture: the distance from the decision line (dashed), negative side "
        "vermilion, positive side blue; along it: the position on the line, drawn on a larger scale. Leaders are stars "
        "from the layer on at which they attend to themselves alone; the number behind the name of a leader counts the "
        f"words that lie on it. The leaders are {led[0]} and {led[1]}. Names without room are left out."
    )


def series(m: Results) -> dict:
    return {"layer": np.arange(9), "spread_positive": m.pair[0].spread, "spread_negative": m.pair[1].spread}


@style()
def draw(m: Results) -> Figure:
    limits = limits_of(m.pair)
    row, foot, head, left = 1.42, 0.36, 0.24, 0.22
    high = row * len(LAYERS) + foot + head
    figure = Figure(figsize=(WIDTH, high))
    wide = (WIDTH - left) / 2
    # Axes are placed by hand: names of words stand outside them, and a layout engine would make room for the names.
    for column, review in enumerate(m.pair):
        for number, layer in enumerate(LAYERS):
            bottom = foot + row * (len(LAYERS) - 1 - number)
            # In inches, divided by the size of the figure below.
            place = (left + column * wide + 0.02, bottom + 0.04, wide - 0.04, row - 0.08)
            ax = figure.add_axes((place[0] / WIDTH, place[1] / high, place[2] / WIDTH, place[3] / high))
            words(
                review.run.xs[layer], list(review.run.names), ax, leaders=review.run.leading(layer), line=LINE,
                limits=limits, equal=False,
            )  # fmt: skip
            if number == 0:
                ax.set_title(review.run.title, pad=3)
            if column == 0:
                ax.text(-0.015, 0.5, f"layer {layer}", rotation=90, ha="right", va="center", transform=ax.transAxes)
            if number == len(LAYERS) - 1:
                ax.set_xticks(np.arange(np.ceil(limits[0][0]), np.floor(limits[0][1]) + 1))
                ax.set_xlabel("distance from the decision line", labelpad=2)
    return figure


def film(m: Results) -> Callable[[Path], Any]:
    hold, move = (2, 2) if m.quick else (8, 6)
    runs = [review.run for review in m.pair]
    return lambda path: animate_words(runs, path, line=LINE, limits=limits_of(m.pair), hold=hold, move=move)


def limits_of(pair: tuple[Chosen, Chosen]) -> tuple[np.ndarray, np.ndarray]:
    """Room for both reviews and for names beyond their outermost words."""
    everywhere = np.concatenate([review.run.xs.reshape(-1, 2) for review in pair])
    low, high = everywhere.min(axis=0), everywhere.max(axis=0)
    # Names stand beside their words, and need more room across the line.
    room = np.array([0.13, 0.2]) * (high - low)
    ranges = np.stack([low - room, high + room], axis=1)
    return ranges[0], ranges[1]


def recorded(m: Results) -> dict:
    fitted = m.fit.fitted
    return {
        "reviews": m.on.data.words, "trained on": m.of[1], "d": 2, "alpha": float(fitted.model.alpha[0]),
        "layers": list(LAYERS), "rows": [review.row for review in m.pair], "starts": m.starts,
        "solver": "none: layers in float32", "recipe": fitted.recipe.record(), "seed": m.seed,
    }  # fmt: skip


FIGURE = figure(__name__, on=lambda m: m.on)
