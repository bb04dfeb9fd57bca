"""What the figure of ALBERT's training measures: the snapshots on record, the last of them again, and random starts.

The training of the package wrote the mean cosine of every snapshot into its report, so that nothing is trained here.
The last snapshot is the network that the package ships: its curve is measured again and must be the one on record,
which ties the report to the weights. One random start says nothing of another, therefore the trained network is
compared with several of them, paired by text (see `framework.starts`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.random as jr
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ... import probe
from ...plot import OKABE_ITO, style, time_series
from ...probe.measures.survey import clustered_error, encoded
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, plus_minus
from ..framework.figure import declared
from ..framework.verdict import Measured, Subject
from ..shared.controls import STARTS, Starts, keys_of, starts_of
from ..shared.layout import WIDTH
from ..shared.networks import articles_of, articles_words, model_of, subject_of


_NO_CURVE = ("step", "held-out loss")  # of a snapshot: one number, not one for each level


@dataclass(frozen=True)
class Parameters:
    """What of the figure can be set."""

    draws: int = parameter(STARTS, "the number of random starts to compare with", least=2, most=32)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the figure shows.

    **Attributes:**

    - `training`: The snapshots, the report and the history of the losses, as the training wrote them.
    - `steps`: (snapshots,), the training step of each.
    - `last`: What each snapshot has at its last level, by the name of the statistic, (snapshots,).
    - `off`: The largest difference of the mean cosines on record from those of the network of the package.
    - `starts`: Networks as it might have started, and the trained one beside them.
    - `words`: The same without the special tokens at both ends of a text; snapshots on record are of all tokens.
    - `shuffled_words`: That of the trained network with its words in random order, (texts, levels).
    - `articles`: The article of each text, the independent unit of errors, (texts,).
    """

    training: dict[str, Any]
    steps: np.ndarray
    last: dict[str, np.ndarray]
    off: float
    starts: Starts
    words: Starts
    shuffled_words: np.ndarray
    articles: np.ndarray

    @property
    def of_words(self) -> np.ndarray:
        """The mean cosine of the words of the trained network, without special tokens, (levels,)."""
        return self.words.mean + self.words.beyond.difference


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Read the snapshots, and measure the network of the package and the random starts."""
    training = probe.bundled_training()
    snapshots = training["snapshots"]
    say(f"measuring the last of {len(snapshots)} snapshots again, and {p.draws} random starts")
    off, starts, words, shuffled = _measured_again(training, settings.seed, p.draws)
    steps = np.array([snapshot["step"] for snapshot in snapshots])
    last = {
        name: np.array([snapshot[name][-1] for snapshot in snapshots]) for name in snapshots[0] if name not in _NO_CURVE
    }
    return Results(training, steps, last, off, starts, words, shuffled, articles_of(probe.bundled_texts()))


def _measured_again(training: dict[str, Any], seed: int, draws: int) -> tuple[float, Starts, Starts, np.ndarray]:
    """The largest difference of the recorded mean cosines of the last snapshot from those of the network of the
    package, that network beside others as it might have started, with all tokens and with words alone, and the mean
    cosines of its words in random order."""
    model = probe.load()
    # The random starts have neither of these parts. Without them here one compiled program serves all networks.
    for part in ("pooler", "predictions"):
        setattr(model.network, part, None)
    # To the full length of the network, as the snapshots were measured.
    texts, special = encoded(model, probe.bundled_texts(), model.max_positions), probe.special_ids(model)
    others = [probe.randomise(model, key, initial=probe.bundled_start) for key in keys_of(seed, draws)]
    of = lambda network, read, left_out: _values(
        probe.similarity_histograms(network, read, rank=False, leave_out=left_out).cosine
    )
    every, words = ([of(network, texts, left_out) for network in (model, *others)] for left_out in ((), special))
    shuffled = of(model, probe.shuffle_tokens(texts, jr.key(seed), special), special)
    recorded = np.array(training["snapshots"][-1]["cosine"])
    # At any level, the first and the last included.
    off = float(np.max(np.abs(every[0].mean(axis=0) - recorded)))
    articles = articles_of(probe.bundled_texts())
    return off, starts_of(every[0], every[1:], articles), starts_of(words[0], words[1:], articles), shuffled


def _values(average: probe.Average) -> np.ndarray:
    assert average.values is not None
    return average.values


# What the figure of ALBERT's training claims: whether its tokens gather more as it is trained.


ON_RECORD = "of snapshots over passages, whose single numbers are not on record"
SAME = 1e-4  # of a mean cosine, by which float32 may differ from machine to machine


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure."""
    claims = _learnt(m), _gathers(m), _gathers_words(m), _grows(m), _same(m)
    return over(f"{articles_words(m.articles)}, {ON_RECORD}; of random starts over networks", claims)


def _learnt(m: Results) -> Claim:
    report = m.training["report"]
    gain = report["unigram loss"] - report["held-out loss"]
    return Claim(
        says="The network has learnt from context.",
        measured=f"held-out loss {report['held-out loss']:.3f} nats a word piece, by frequency alone "
        f"{report['unigram loss']:.3f}",
        criterion="lower by more than 0.3 nats",
        holds=gain > 0.3,
        kind="finding",
        value=gain,
    )


def _gathers(m: Results) -> Claim:
    starts, cosine, error, near = m.starts, m.last["cosine"], m.last["cosine error"], m.last["near_mass"]
    rise, of_rise = float(starts.beyond.difference[-1]), float(starts.beyond.error[-1])
    return Claim(
        says="Trained, the network gathers its tokens more than as it might have started.",
        measured=f"mean cosine after the last layer {plus_minus(cosine[-1], error[-1], 3)} after training, "
        f"{starts.words()} before it, {plus_minus(cosine[0], error[0], 3)} as it started itself; difference "
        f"{plus_minus(rise, of_rise, 3)}; of pairs above 0.9 {100 * near[0]:.1f} % as it started and "
        f"{100 * near[-1]:.1f} % after training",
        criterion=f"the difference from {len(starts.each)} random starts exceeds two standard errors, or as many "
        "as are as improbable with so few",
        holds=starts.exceeds(),
        kind="finding",
        value=rise,
        error=of_rise,
    )


def _gathers_words(m: Results) -> Claim:
    words, beyond = m.words, m.words.beyond
    shuffled = m.shuffled_words[:, -1]
    of_shuffled = plus_minus(*clustered_error(shuffled, m.articles)[:2], 3)
    return Claim(
        says="The words alone, without the special tokens, are gathered more than as they might have started too.",
        measured=f"mean cosine of the words after the last layer {m.of_words[-1]:.3f} after training ({of_shuffled} in "
        f"random order), with the special tokens {m.last['cosine'][-1]:.3f}; {words.words()} before it; difference "
        f"{plus_minus(beyond.difference[-1], beyond.error[-1], 3)}",
        criterion=f"the difference from {len(words.each)} random starts exceeds two standard errors, or as many as are "
        "as improbable with so few",
        holds=words.exceeds(),
        kind="finding",
        value=float(beyond.difference[-1]),
        error=float(beyond.error[-1]),
    )


def _grows(m: Results) -> Claim:
    cosine, error = m.last["cosine"], m.last["cosine error"]
    # The deepest fall below any earlier snapshot, not only below the one before: a slow decline counts as a whole.
    highest = np.maximum.accumulate(cosine)
    lowest = int((highest - cosine).argmax())
    before = int(cosine[: lowest + 1].argmax())
    fall, of_fall = float(cosine[before] - cosine[lowest]), float(np.hypot(error[before], error[lowest]))
    return Claim(
        says="Along training the mean cosine after the last layer falls nowhere.",
        measured=f"mean cosine after the last layer: {_way(m.steps, cosine)}; deepest fall below an earlier snapshot "
        f"{plus_minus(fall, of_fall, 3)}",
        criterion="no fall below an earlier snapshot exceeds two standard errors",
        holds=fall <= 2 * of_fall,
        kind="finding",
        value=fall,
        error=of_fall,
    )


def _same(m: Results) -> Claim:
    return Claim(
        says="The network of the package is the last snapshot.",
        measured=f"mean cosines of its levels differ from those on record by at most {m.off:.1e}",
        criterion=f"less than {SAME:g}",
        holds=m.off < SAME,
        kind="identity",
        value=m.off,
    )


def caption_of(m: Results) -> str:
    """What is seen, and which way it went."""
    report = m.training["report"]
    *early, (layers, _, _) = report["recipe"]["stages"]
    before = " and ".join(f"{few} layers on {tokens} tokens" for few, tokens, _ in early)
    return (
        "The ALBERT of this package along its training: masked language modelling of film reviews, with a little of "
        f"Wikipedia and the web, {report['steps']} steps of {report['recipe']['batch_size']} x "
        f"{report['recipe']['length']} word pieces, {report['parameters'] / 1e6:.2f} million parameters. (a) Loss on "
        "held-out texts, with the layers and the length that were trained at that step; dashed: guessing by "
        "frequency. (b) Mean cosine of the tokens at each level, one line for each snapshot, over "
        f"{len(probe.bundled_texts())} passages that it has not seen; dotted: the words alone; dashed: "
        f"{len(m.starts.each)} networks as it "
        f"might have started, the mean and its standard error over networks. (c) The same after layer {layers} against "
        "the step, and with the tokens in random order; crosses: those networks. Other standard errors are over "
        f"passages, as they are on record.{f' Dotted: until there it was trained with {before}.' if early else ''} "
        f"All tokens are counted, also [CLS] and [SEP] at both ends of a text: the words alone end at "
        f"{m.of_words[-1]:.2f}, and began at {m.words.mean[-1]:.2f} ± {m.words.error[-1]:.2f} in those networks. "
        f"{_verdict(m.steps, m.last, m.starts)}"
    )


def _verdict(steps: np.ndarray, last: dict[str, np.ndarray], starts: Starts) -> str:
    cosine, error = last["cosine"], last["cosine error"]
    # Not paired, as the report has no values of single texts.
    beyond, of_beyond = cosine[-1] - last["shuffled cosine"][-1], np.hypot(error[-1], last["shuffled cosine error"][-1])
    more = "above" if beyond > 2 * of_beyond else "below" if beyond < -2 * of_beyond else "at"
    # The other side of a one-sided comparison.
    less = starts.beyond._replace(z=-starts.beyond.z).exceeds()[-1]
    other = "above" if starts.exceeds() else "below" if less else "no different from"
    return (
        f"The mean cosine after the last layer is {_way(steps, cosine)}; it ends {more} that of shuffled tokens, "
        f"{last['shuffled cosine'][-1]:.2f}, and {other} that of random starts, {starts.mean[-1]:.2f} ± "
        f"{starts.error[-1]:.2f}."
    )


def _way(steps: np.ndarray, cosine: np.ndarray) -> str:
    """From where, by which extremes, to where it went."""
    # The highest snapshot, and the lowest one after it: both are named unless they are the first or the last.
    top = int(cosine.argmax())
    low = top + int(cosine[top:].argmin())
    by = [f"{cosine[k]:.2f} at step {steps[k]}" for k in (top, low) if k not in (0, len(cosine) - 1)]
    return ", ".join([f"{cosine[0]:.2f} before training", *by, f"{cosine[-1]:.2f} at the end"])


# The panels of ALBERT's training: the loss, the mean cosine by level, and the last level against the step.


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 2.7), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    _losses(left, m.training)
    _levels(middle, m)
    _last_level(right, m)
    for ax in (left, right):
        ax.xaxis.set_major_locator(MaxNLocator(nbins=4))
    # The last stage ends with the axis.
    for end in _ends(m.training)[:-1]:
        for ax in (left, right):
            ax.axvline(end, color="0.6", ls=":", lw=0.8, zorder=0)
    for letter, ax in zip("abc", (left, middle, right), strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _losses(ax: Axes, training: dict[str, Any]) -> None:
    history, by_frequency = training["history"], training["report"]["unigram loss"]
    at = np.array([row["step"] for row in history])
    time_series(at, np.array([row["held-out loss"] for row in history]), None, ax, colour=OKABE_ITO[0],
                xlabel="training step", ylabel="held-out loss (nats)")  # fmt: skip
    ax.axhline(by_frequency, color="0.4", ls="--", lw=0.9)
    ax.text(at[-1], by_frequency, "by frequency", ha="right", va="bottom", fontsize=6)


def _levels(ax: Axes, m: Results) -> None:
    levels, shown = np.arange(len(m.training["snapshots"][0]["cosine"])), _shown(m.training)
    # From violet, random weights, to yellow, trained.
    for k, snapshot in enumerate(shown):
        colour = colormaps["viridis"](k / len(shown))
        time_series(levels, np.array(snapshot["cosine"]), np.array(snapshot["cosine error"]), ax, colour=colour,
                    label=f"{snapshot['step']}", xlabel="layer", ylabel="mean cosine")  # fmt: skip
    time_series(levels, m.starts.mean, m.starts.error, ax, colour="0.25", linestyle="--", label="starts",
                xlabel="layer", ylabel="mean cosine")  # fmt: skip
    ax.plot(levels, m.of_words, color="0.1", lw=0.9, ls=(0, (1, 1)), label="words alone")
    if (legend := ax.get_legend()) is not None:  # `time_series` makes one, without a title
        legend.remove()
    ax.legend(title="step", fontsize=5, title_fontsize=6, loc="best", handlelength=1.2)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _last_level(ax: Axes, m: Results) -> None:
    for name, colour, line, label in (
        ("cosine", OKABE_ITO[0], "-", "texts"),
        ("shuffled cosine", OKABE_ITO[1], "--", "tokens shuffled"),
    ):
        time_series(m.steps, m.last[name], m.last[f"{name} error"], ax, colour=colour, linestyle=line, label=label,
                    xlabel="training step", ylabel="mean cosine, last layer")  # fmt: skip
    # One cross for each random start, at step 0, where no axis may clip it.
    each = m.starts.each[:, -1]
    ax.plot(np.zeros(len(each)), each, "x", color="0.25", ms=4, label="starts", clip_on=False)
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, fontsize=6, handlelength=1.6, columnspacing=0.8)


def _ends(training: dict[str, Any]) -> list[int]:
    """The step at which each stage of training ends."""
    # The recipe gives each stage as a share of the epochs, and a stage ends with an epoch.
    recipe = training["report"]["recipe"]
    epochs = -(-recipe["steps"] // recipe["epoch_steps"])
    return [round(share * epochs) * recipe["epoch_steps"] for _, _, share in recipe["stages"]]


def _shown(training: dict[str, Any]) -> list[dict[str, Any]]:
    """The snapshots at the ends of the stages, those of the last stage, and the random weights."""
    # All snapshots of the last stage, and the ends of those before: more lines could not be told apart.
    ends = [0, *_ends(training)]
    return [snapshot for snapshot in training["snapshots"] if snapshot["step"] in ends or snapshot["step"] > ends[-2]]


# ALBERT's training as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    report = m.training["report"]
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"recipe": report["recipe"], "texts": report["texts"], "starts": len(probe.bundled_texts()),
         # What was run, which the parameter `draws` decides.
         "random starts": len(m.starts.each), "solver": "none: layers in float32"},
        _series(m),
        partial(draw, m),
        None,
        on=_measured(m),
    )  # fmt: skip


def _series(m: Results) -> dict:
    # The loss was recorded at every epoch, the rest at the snapshots.
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


def _measured(m: Results) -> Measured:
    recipe, passages = m.training["report"]["recipe"], Subject("texts", "passages of Wikipedia that it has not seen")
    size = {
        "texts": len(probe.bundled_texts()), "tokens": recipe["length"], "layers": recipe["stages"][-1][0],
        "seeds": len(m.starts.each),
    }  # fmt: skip
    # Of the package, whatever `Settings.albert` says.
    return Measured(subject_of(*model_of(Settings())), passages, size)


FIGURE = declared("albert-training", _run, parameters=Parameters)
