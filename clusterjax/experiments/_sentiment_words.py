"""The words of a positive and a negative review on their way to their leaders."""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from ..plot import WordRun, animate_words, style, words
from ._experiment import Claim, Experiment, Outcome, Settings
from ._layout import WIDTH
from ._sentiment_measure import further_moves, leaders_of
from ._sentiment_model import CLEAR, POSTER, Source, Trained, measured, shown, trained


LAYERS = (0, 1, 2, 4, 8)
SHORTEST, LONGEST = 16, 28  # different words: as many as can be read in a picture
ON_LEADER = 0.05  # of the longest word's length
LINE = (np.array([1.0, 0.0]), 0.0)  # the hyperplane, in the coordinates of the picture


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

    Source: this library.
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


def _choose(found: Trained, label: int) -> Chosen:
    """The most confident correct review of this label that can be read, and whose farthest leader is a frequent one."""
    lengths = found.test.lengths
    allowed = found.right & (found.test.labels == label) & (lengths >= SHORTEST) & (lengths <= LONGEST)
    away = np.abs(found.distances(np.asarray(found.fitted.model.embedding[:, 0])))[found.test.ids]
    farthest = np.argmax(np.where(found.led.mask, away, -1.0), axis=1)
    frequent = np.isin(np.take_along_axis(found.test.ids, farthest[:, None], axis=1)[:, 0], found.frequent()[0])
    allowed = allowed & frequent if np.any(allowed & frequent) else allowed
    row = int(np.argmax(np.where(allowed, np.abs(found.logits), -1.0)))
    n, one, model = int(lengths[row]), found.test.take(np.array([row])), found.fitted.model
    ids, counts = one.ids[0, :n], one.counts[0, :n].astype(np.float32)
    path = np.asarray(model.path(jnp.asarray(ids), jnp.asarray(counts)), np.float64)
    w, length = np.asarray(model.w[0], np.float64), float(np.linalg.norm(np.asarray(model.w[0])))
    across = np.array([-w[1], w[0]]) / length
    xs = np.stack([found.distances(path), path @ across], axis=-1)
    first = leaders_of(model, one).first[0, :n]
    away = np.linalg.norm(path[-1][:, None] - path[-1][None, first >= 0], axis=-1).min(axis=1)
    mean = np.average(xs[-1][:, 0], weights=counts)
    side = "made-up " * found.made_up + ("positive" if label else "negative")
    logit = f"{found.logits[row]:.1f}".replace("-", "\N{MINUS SIGN}")
    run = WordRun(xs, [shown(name) for name in found.names[ids]], first, f"{side} review, logit {logit}")
    gathered = float(np.mean(away <= ON_LEADER * np.linalg.norm(path[0], axis=-1).max()))
    return Chosen(
        row, run, found.ratio[ids], float(found.logits[row]), abs(float(length * mean) - float(found.logits[row])),
        gathered, float(further_moves(model, one)[0][0]),
    )  # fmt: skip


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    found = trained(settings, 2, say)
    say("following the words of two reviews")
    pair = (_choose(found, 1), _choose(found, 0))
    source = Source.of(settings)
    limits = _limits(pair)
    led = [", ".join(f'"{one.run.names[i]}"' for i in one.run.leading(len(one.run.xs))) for one in pair]
    caption = (
        "The words of a positive (left) and of a negative test review (right) on their way through the 8 hardmax "
        f"layers of a d = 2 model, trained on {source.words}. Of the correctly classified reviews of {SHORTEST} to "
        f"{LONGEST} different words whose farthest leader is one of the 15 most frequent ones, these are the most "
        "confident on either side. Across the picture: the distance from the decision line (dashed), negative side "
        "vermilion, positive side blue; along it: the place on the line, drawn on a larger scale. Leaders are stars "
        "from the layer on at which they attend to themselves alone; the number behind a leader's name is how many "
        f"words lie on it. The leaders are {led[0]} and {led[1]}. Names without room are left out."
    )
    return Outcome(
        caption,
        _claims(pair),
        {"reviews": source.words, "d": 2, "alpha": float(found.fitted.model.alpha[0]), "layers": list(LAYERS),
         "rows": [one.row for one in pair], "starts": settings.starts, "solver": "none: layers in float32",
         "recipe": found.fitted.recipe.record()},
        {"layer": np.arange(9), "spread_positive": _spread(pair[0]), "spread_negative": _spread(pair[1])},
        lambda: _draw(pair, limits),
        lambda path: animate_words(
            [one.run for one in pair], path, line=LINE, limits=limits, hold=2 if settings.quick else 8,
            move=2 if settings.quick else 6,
        ),
        on=measured(settings, (2,)),
    )  # fmt: skip


def _spread(one: Chosen) -> np.ndarray:
    """The largest distance of a word from the leader nearest to it, at each layer, in the plane of the picture."""
    led = one.run.xs[-1][one.run.first >= 0]
    return np.linalg.norm(one.run.xs[:, :, None] - led[None, None], axis=-1).min(axis=2).max(axis=1)


def _claims(pair: tuple[Chosen, Chosen]) -> tuple[Claim, ...]:
    farthest = [(one.run.names[one.farthest], float(one.ratio[one.farthest])) for one in pair]
    error = max(one.error for one in pair)
    gathered = min(one.gathered for one in pair)
    moves = max(one.moves for one in pair)
    return (
        Claim(
            "The logit is what the decoder reads from the mean of the words that are drawn.",
            f"largest difference {error:.1e}",
            "less than 1e-4",
            error < 1e-4,
            "identity",
            error,
        ),
        Claim(
            "The leaders furthest away from the decision hyperplane convey sentiment.",
            "; ".join(f'"{name}", log ratio {ratio:+.2f}' for name, ratio in farthest),
            f"log ratio at least {CLEAR:g} in the positive review, at most -{CLEAR:g} in the negative one",
            farthest[0][1] >= CLEAR and farthest[1][1] <= -CLEAR,
            "paper",
            source=POSTER,
        ),
        Claim(
            "After 8 layers the words are gathered at their leaders.",
            f"{100 * pair[0].gathered:.0f} % and {100 * pair[1].gathered:.0f} % of the words are within "
            f"{100 * ON_LEADER:g} % of the longest word's length from a leader",
            "at least 75 % in both",
            gathered >= 0.75,
            "finding",
            gathered,
        ),
        Claim(
            "8 layers are enough for the clustered state.",
            f"from layer 8 to 64 no word moves farther than {100 * moves:.2f} % of the longest word's length",
            "less than 5 %",
            moves < 0.05,
            "paper",
            moves,
            source=POSTER,
        ),
    )


def _limits(pair: tuple[Chosen, Chosen]) -> tuple[np.ndarray, np.ndarray]:
    """Room for both reviews and for names beyond their outermost words."""
    everywhere = np.concatenate([one.run.xs.reshape(-1, 2) for one in pair])
    low, high = everywhere.min(axis=0), everywhere.max(axis=0)
    room = np.array([0.13, 0.2]) * (high - low)
    ranges = np.stack([low - room, high + room], axis=1)
    return ranges[0], ranges[1]


@style()
def _draw(pair: tuple[Chosen, Chosen], limits: tuple[np.ndarray, np.ndarray]) -> Figure:
    row, foot, head, left = 1.42, 0.36, 0.24, 0.22
    high = row * len(LAYERS) + foot + head
    figure = Figure(figsize=(WIDTH, high))
    wide = (WIDTH - left) / 2
    for column, one in enumerate(pair):
        for number, layer in enumerate(LAYERS):
            bottom = foot + row * (len(LAYERS) - 1 - number)
            place = (left + column * wide + 0.02, bottom + 0.04, wide - 0.04, row - 0.08)
            ax = figure.add_axes((place[0] / WIDTH, place[1] / high, place[2] / WIDTH, place[3] / high))
            words(
                one.run.xs[layer], list(one.run.names), ax, leaders=one.run.leading(layer), line=LINE, limits=limits,
                equal=False,
            )  # fmt: skip
            if number == 0:
                ax.set_title(one.run.title, pad=3)
            if column == 0:
                ax.text(-0.015, 0.5, f"layer {layer}", rotation=90, ha="right", va="center", transform=ax.transAxes)
            if number == len(LAYERS) - 1:
                ax.set_xticks(_ticks(limits[0]))
                ax.set_xlabel("distance from the decision line", labelpad=2)
    return figure


def _ticks(limits: np.ndarray) -> np.ndarray:
    return np.arange(np.ceil(limits[0]), np.floor(limits[1]) + 1)


SENTIMENT_WORDS = Experiment(
    "sentiment-words",
    "sentiment_words",
    "Sentiment: words come to their leaders",
    "The transformer captures context by clustering words around leaders; the leaders furthest away from the decision "
    "hyperplane convey sentiment (layers 0 to 8, d = 2).",
    _run,
    reads_reviews=True,
)
