"""Clustering along the training of an ALBERT, which Peat leaves open: do tokens gather as the network is trained?

The training of the network of the package recorded the mean cosine of every snapshot, so that nothing is trained here.
The last snapshot is the network of the package: it is measured again and must agree with the record. Random starts
differ, so that the trained network is compared with several random starts, paired by text (see `controls.starts_of`).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.random as jr
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ... import probe
from ...plot import style, time_series
from ...probe.measures.survey import clustered_error, encoded
from ..framework.figure import Claim, Found, Measured, Say, Settings, Subject, claim, figure, parameter, plus_minus
from ..shared.controls import STARTS, Starts, keys_of, starts_of
from ..shared.layout import WIDTH, cosine_panel, letter, loss_panel
from ..shared.networks import articles_of, articles_words, each_text, model_of, subject_of


SAME = 1e-4  # the difference of a mean cosine in float32 between machines


@dataclass(frozen=True)
class Parameters:
    draws: int = parameter(STARTS, "the number of random starts to compare with", least=2, most=32)


class Results(NamedTuple):
    training: dict[str, Any]  # the snapshots, the report and the history of the losses, as the training recorded them
    steps: np.ndarray  # the training step of each snapshot, (snapshots,)
    last: dict[str, np.ndarray]  # the statistics of each snapshot at its last level, by name, (snapshots,)
    off: float  # the largest difference between the recorded mean cosines and the network of the package
    starts: Starts  # the random starts, and the trained network against them
    words: Starts  # `starts` for words alone, without the special tokens at both ends of a text
    shuffled_words: np.ndarray  # the mean cosine of words in random order, trained network, (texts, levels)
    articles: np.ndarray  # the article of each text, the independent unit of errors, (texts,)

    @property
    def of_words(self) -> np.ndarray:
        """The mean cosine of the words of the trained network, (levels,)."""
        return self.words.mean + self.words.beyond.difference

    @property
    def ends(self) -> list[int]:
        """The step at which each stage of training ends."""
        # The recipe gives each stage as a share of the epochs, and a stage ends with an epoch.
        recipe = self.training["report"]["recipe"]
        epochs = -(-recipe["steps"] // recipe["epoch_steps"])
        return [round(share * epochs) * recipe["epoch_steps"] for _, _, share in recipe["stages"]]


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    training, passages = probe.bundled_training(), probe.bundled_texts()
    snapshots, articles = training["snapshots"], articles_of(passages)
    say(f"measuring the last of {len(snapshots)} snapshots again, and {p.draws} random starts")
    curves = [name for name in snapshots[0] if name not in ("step", "held-out loss")]
    last = {name: np.array([snapshot[name][-1] for snapshot in snapshots]) for name in curves}
    model = probe.load()
    # The random starts have no pooler and no predictions. Without them here one compiled program serves all networks.
    for part in ("pooler", "predictions"):
        setattr(model.network, part, None)
    # The snapshots were measured with the full length of the network.
    texts, special = encoded(model, passages, model.max_positions), probe.special_ids(model)
    others = [probe.randomise(model, key, initial=probe.bundled_start) for key in keys_of(settings.seed, p.draws)]
    every, *other_cosines = (cosines(network, texts, ()) for network in (model, *others))
    words, *other_words = (cosines(network, texts, special) for network in (model, *others))
    shuffled = cosines(model, probe.shuffle_tokens(texts, jr.key(settings.seed), special), special)
    return Results(
        training, np.array([snapshot["step"] for snapshot in snapshots]), last,
        float(np.max(np.abs(every.mean(axis=0) - np.array(snapshots[-1]["cosine"])))),
        starts_of(every, other_cosines, articles), starts_of(words, other_words, articles), shuffled, articles,
    )  # fmt: skip


def cosines(network: probe.Model, texts: probe.Encoded, left_out: tuple[int, ...]) -> np.ndarray:
    """The mean cosine of the tokens of each text, without the ids `left_out`, (texts, levels)."""
    return each_text(probe.similarity_histograms(network, texts, rank=False, leave_out=left_out).cosine)


@claim("lower by more than 0.3 nats")
def learnt(m: Results) -> Found:
    """The network has learnt to use context: its held-out loss is below the loss of guesses by frequency."""
    loss, by_frequency = (m.training["report"][name] for name in ("held-out loss", "unigram loss"))
    measured = f"the held-out loss is {loss:.3f} nats a word piece, and {by_frequency:.3f} for guesses by frequency"
    return Found(measured, by_frequency - loss > 0.3, by_frequency - loss)


def beyond_starts(measured: str, starts: Starts) -> Found:
    rise, error = starts.beyond.difference[-1], starts.beyond.error[-1]
    return Found(f"{measured}; the difference is {plus_minus(rise, error, 3)}", starts.exceeds(), rise, error)


BEYOND = (
    "the difference from {m.starts.each.shape[0]} random starts exceeds two standard errors, or as many as are as "
    "improbable with so few"
)


@claim(BEYOND)
def gathers(m: Results) -> Found:
    """After training the network gathers its tokens more than random starts do."""
    cosine, error, near = m.last["cosine"], m.last["cosine error"], 100 * m.last["near_mass"]
    return beyond_starts(
        f"the mean cosine after the last layer is {plus_minus(cosine[-1], error[-1], 3)} after training, "
        f"{m.starts.words()} before it, {plus_minus(cosine[0], error[0], 3)} in its own start; {near[0]:.1f} % of the "
        f"pairs are above 0.9 in its own start, {near[-1]:.1f} % after training",
        m.starts,
    )


@claim(BEYOND)
def gathers_words(m: Results) -> Found:
    """After training the words alone, without special tokens, are more alike than in random starts."""
    shuffled = plus_minus(*clustered_error(m.shuffled_words[:, -1], m.articles)[:2], 3)
    return beyond_starts(
        f"the mean cosine of the words after the last layer is {m.of_words[-1]:.3f} after training ({shuffled} in "
        f"random order), with the special tokens {m.last['cosine'][-1]:.3f}; it is {m.words.words()} before training",
        m.words,
    )


@claim("no fall below an earlier snapshot exceeds two standard errors")
def grows(m: Results) -> Found:
    """During training the mean cosine after the last layer never falls below an earlier snapshot."""
    cosine, error = m.last["cosine"], m.last["cosine error"]
    # The deepest fall below any earlier snapshot counts a slow decline as a whole.
    lowest = int((np.maximum.accumulate(cosine) - cosine).argmax())
    before = int(cosine[: lowest + 1].argmax())
    fall, fall_error = cosine[before] - cosine[lowest], np.hypot(error[before], error[lowest])
    return Found(
        f"the mean cosine after the last layer is {way(m.steps, cosine)}; the deepest fall below an earlier snapshot "
        f"is {plus_minus(fall, fall_error, 3)}",
        fall <= 2 * fall_error, fall, fall_error,
    )  # fmt: skip


@claim(f"less than {SAME:g}", kind="identity")
def same(m: Results) -> Found:
    """The network of the package has the mean cosines that were recorded of the last snapshot."""
    measured = f"the mean cosines of its levels differ from the recorded ones by at most {m.off:.1e}"
    return Found(measured, m.off < SAME, m.off)


def way(steps: np.ndarray, cosine: np.ndarray) -> str:
    """The first and the last mean cosine, and the extremes between them, as text."""
    top = int(cosine.argmax())
    low = top + int(cosine[top:].argmin())
    by = [f"{cosine[k]:.2f} at step {steps[k]}" for k in (top, low) if k not in (0, len(cosine) - 1)]
    return ", ".join([f"{cosine[0]:.2f} before training", *by, f"{cosine[-1]:.2f} at the end"])


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    report = m.training["report"]
    recipe = report["recipe"]
    *early, (layers, _, _) = recipe["stages"]
    before = " and ".join(f"{few} layers on {tokens} tokens" for few, tokens, _ in early)
    stages = f" The dotted vertical lines end the stages with {before}." if early else ""
    return (
        "The ALBERT of this package along its training: masked language modelling of film reviews, with a little of "
        f"Wikipedia and the web, in {report['steps']} steps of {recipe['batch_size']} x {recipe['length']} word "
        f"pieces, with {report['parameters'] / 1e6:.2f} million parameters. (a) The loss on held-out texts, with the "
        "layers and the length that were trained at each step; the dashed line is the loss of guesses by frequency. "
        "(b) The mean cosine of the tokens at each level, with one line for each snapshot, over "
        f"{len(probe.bundled_texts())} passages that the network has not seen; the dotted line shows the words alone, "
        f"the dashed line the mean of {len(m.starts.each)} networks with random initial weights, with the standard "
        f"error over networks. (c) The mean cosine after layer {layers} against the step, also with the tokens in "
        "random order; the crosses are the networks with random initial weights. Other standard errors are over "
        f"passages, as recorded.{stages} All tokens are counted, also [CLS] and [SEP] at both ends of a text."
    )


def series(m: Results) -> dict:
    # The loss was recorded at every epoch, the other numbers at the snapshots.
    history = m.training["history"]
    return (
        {
            "step": m.steps,
            "step_by_epoch": [row["step"] for row in history],
            "held_out_loss_by_epoch": [row["held-out loss"] for row in history],
        }
        | {f"last layer, {name}": values for name, values in m.last.items()}
        | {"cosine_by_start": m.starts.each, "cosine_of_words": m.of_words, "cosine_of_words_by_start": m.words.each}
    )


@style()
def draw(m: Results) -> Figure:
    picture = Figure(figsize=(WIDTH, 2.7), layout="constrained")
    left, middle, right = axes = picture.subplots(1, 3)
    loss_panel(left, m.training, {"unigram loss": ("by frequency", "--")})
    levels(middle, m)
    cosine_panel(right, m.steps, m.last, m.starts.each[:, -1])
    for ax in (left, right):
        ax.xaxis.set_major_locator(MaxNLocator(nbins=4))
        for end in m.ends[:-1]:
            ax.axvline(end, color="0.6", ls=":", lw=0.8, zorder=0)
    letter(axes)
    return picture


def levels(ax: Axes, m: Results) -> None:
    # All snapshots of the last stage and the ends of earlier stages: more lines could not be told apart.
    ends = [0, *m.ends]
    shown = [entry for entry in m.training["snapshots"] if entry["step"] in ends or entry["step"] > ends[-2]]
    numbers, label = np.arange(len(m.starts.mean)), {"xlabel": "layer", "ylabel": "mean cosine"}
    for k, snapshot in enumerate(shown):
        mean, error = np.array(snapshot["cosine"]), np.array(snapshot["cosine error"])
        colour = colormaps["viridis"](k / len(shown))
        time_series(numbers, mean, error, ax, colour=colour, label=f"{snapshot['step']}", **label)
    time_series(numbers, m.starts.mean, m.starts.error, ax, colour="0.25", linestyle="--", label="starts", **label)
    ax.plot(numbers, m.of_words, color="0.1", lw=0.9, ls=(0, (1, 1)), label="words alone")
    ax.legend(title="step", fontsize=5, title_fontsize=6, loc="best", handlelength=1.2)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def measured_on(m: Results) -> Measured:
    recipe, passages = m.training["report"]["recipe"], Subject("texts", "passages of Wikipedia that it has not seen")
    size = {
        "texts": len(probe.bundled_texts()), "tokens": recipe["length"], "layers": recipe["stages"][-1][0],
        "seeds": len(m.starts.each),
    }  # fmt: skip
    # The figure is about the network of the package, whatever `Settings.albert` says.
    return Measured(subject_of(*model_of(Settings())), passages, size)


FIGURE = figure(
    __name__,
    over=lambda m: f"{articles_words(m.articles)}, of recorded snapshots over passages, of random starts over networks",
    on=measured_on,
    recorded=lambda m: {"recipe": m.training["report"]["recipe"], "texts": m.training["report"]["texts"],
                        "starts": len(probe.bundled_texts()), "solver": "none: layers in float32"},
)  # fmt: skip
