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
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from ..._base.checks import refusal
from ...plot import WordRun, animate_words, style, words
from ..framework.experiment import Claim, Outcome, Settings, parameter
from ..framework.figure import declared
from ..framework.verdict import Measured
from ..shared.layout import WIDTH
from ..shared.sentiment import (
    CLEAR,
    OWN_REVIEWS,
    POSTER,
    Source,
    Trained,
    frequent_leaders,
    further_moves,
    leaders_of,
    measured,
    measured_own,
    shipped_model,
    shown,
    trained,
    trained_shipped,
)


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


# What is claimed of words on their way: that they gather at leaders, which carry the sentiment of the review.


def claims_of(pair: tuple[Chosen, Chosen]) -> tuple[Claim, ...]:
    """All claims of the figure."""
    # Of either review: the leader farthest from the line, and how much it says of sentiment.
    farthest = [(review.run.names[review.farthest], float(review.ratio[review.farthest])) for review in pair]
    error = max(review.error for review in pair)
    # The worse of the two reviews decides.
    gathered = min(review.gathered for review in pair)
    moves = max(review.moves for review in pair)
    return (
        Claim(
            says="The logit is what the decoder reads from the mean of the words that are drawn.",
            measured=f"largest difference {error:.1e}",
            criterion="less than 1e-4",
            holds=error < 1e-4,
            kind="identity",
            value=error,
        ),
        Claim(
            says="The leaders furthest away from the decision hyperplane convey sentiment.",
            measured="; ".join(f'"{name}", log ratio {ratio:+.2f}' for name, ratio in farthest),
            criterion=f"log ratio at least {CLEAR:g} in the positive review, at most -{CLEAR:g} in the negative one",
            holds=farthest[0][1] >= CLEAR and farthest[1][1] <= -CLEAR,
            kind="paper",
            source=POSTER,
        ),
        Claim(
            says="After 8 layers the words are gathered at their leaders, three quarters of them in both reviews.",
            measured=f"{100 * pair[0].gathered:.0f} % and {100 * pair[1].gathered:.0f} % of the words are within "
            f"{100 * ON_LEADER:g} % of the longest word's length from a leader",
            criterion="at least 75 % in both",
            holds=gathered >= 0.75,
            kind="finding",
            value=gathered,
        ),
        Claim(
            says="8 layers are enough for the clustered state.",
            measured=f"from layer 8 to 64 no word moves farther than {100 * moves:.2f} % of the longest word's length",
            criterion="less than 5 %",
            holds=moves < 0.05,
            kind="paper",
            value=moves,
            source=POSTER,
        ),
    )


def caption_of(m: Results) -> str:
    """What is seen."""
    (which, source), p = m.of, m.p
    led = [", ".join(f'"{review.run.names[i]}"' for i in review.run.leading(len(review.run.xs))) for review in m.pair]
    return (
        f"The words of a positive (left) and of a negative review (right), each {which}, on their way through the 8 "
        f"hardmax layers of a d = 2 model, trained on {source}. Of the correctly classified reviews of {p.shortest} to "
        f"{p.longest} different words whose farthest leader is one of the 15 most frequent ones, these are the most "
        "confident on either side. Across the picture: the distance from the decision line (dashed), negative side "
        "vermilion, positive side blue; along it: the place on the line, drawn on a larger scale. Leaders are stars "
        "from the layer on at which they attend to themselves alone; the number behind a leader's name is how many "
        f"words lie on it. The leaders are {led[0]} and {led[1]}. Names without room are left out."
    )


# The picture of two reviews: words at five layers, and the same as a moving picture.


LINE = (np.array([1.0, 0.0]), 0.0)  # the hyperplane, in the coordinates of the picture


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    pair, limits = m.pair, limits_of(m.pair)
    row, foot, head, left = 1.42, 0.36, 0.24, 0.22
    high = row * len(LAYERS) + foot + head
    figure = Figure(figsize=(WIDTH, high))
    wide = (WIDTH - left) / 2
    # Axes are placed by hand: names of words stand outside them, for which a layout engine would make room.
    for column, review in enumerate(pair):
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
                ax.set_xticks(_ticks(limits[0]))
                ax.set_xlabel("distance from the decision line", labelpad=2)
    return figure


def write_film(m: Results, quick: bool, path: Path) -> Any:
    """Write the moving picture as a GIF."""
    hold, move = (2, 2) if quick else (8, 6)
    return animate_words(
        [review.run for review in m.pair], path, line=LINE, limits=limits_of(m.pair), hold=hold, move=move
    )


def limits_of(pair: tuple[Chosen, Chosen]) -> tuple[np.ndarray, np.ndarray]:
    """Room for both reviews and for names beyond their outermost words."""
    everywhere = np.concatenate([review.run.xs.reshape(-1, 2) for review in pair])
    low, high = everywhere.min(axis=0), everywhere.max(axis=0)
    # Names stand beside their words, and need more room across the line.
    room = np.array([0.13, 0.2]) * (high - low)
    ranges = np.stack([low - room, high + room], axis=1)
    return ranges[0], ranges[1]


def _ticks(limits: np.ndarray) -> np.ndarray:
    return np.arange(np.ceil(limits[0]), np.floor(limits[1]) + 1)


# Words on their way as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    fitted = m.fit.fitted
    return Outcome(
        caption_of(m),
        claims_of(m.pair),
        {"reviews": m.on.data.words, "trained on": m.of[1], "d": 2, "alpha": float(fitted.model.alpha[0]),
         "layers": list(LAYERS), "rows": [one.row for one in m.pair], "starts": settings.starts,
         "solver": "none: layers in float32", "recipe": fitted.recipe.record(), "seed": m.seed},
        {"layer": np.arange(9), "spread_positive": spread(m.pair[0]), "spread_negative": spread(m.pair[1])},
        partial(draw, m),
        partial(write_film, m, settings.quick),
        on=m.on,
    )  # fmt: skip


FIGURE = declared("sentiment-words", _run, parameters=Parameters)
