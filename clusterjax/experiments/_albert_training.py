"""Whether the tokens of the package's own ALBERT cluster more as it is trained."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .. import probe
from ..plot import OKABE_ITO, style, time_series
from ..probe._survey import encoded
from ._experiment import Claim, Experiment, Outcome, Settings, plus_minus
from ._layout import WIDTH
from ._networks import model_of, subject_of
from ._verdict import Measured, Subject


SAME = 1e-4  # of a mean cosine, by which float32 may differ from machine to machine


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    training = probe.bundled_training()
    snapshots, report = training["snapshots"], training["report"]
    say(f"measuring the last of {len(snapshots)} snapshots again")
    off = _measured_again(training)
    steps = np.array([one["step"] for one in snapshots])
    *early, (layers, _, _) = report["recipe"]["stages"]
    before = " and ".join(f"{few} layers on {tokens} tokens" for few, tokens, _ in early)
    last = {name: np.array([one[name][-1] for one in snapshots]) for name in snapshots[0] if name not in _OF_STEP}
    caption = (
        "The ALBERT of this package along its training: masked language modelling of film reviews, with a little of "
        f"Wikipedia and the web, {report['steps']} steps of {report['recipe']['batch_size']} x "
        f"{report['recipe']['length']} word pieces, {report['parameters'] / 1e6:.2f} million parameters. (a) Loss on "
        "held-out texts, with the layers and the length that were trained at that step; dashed: guessing by "
        "frequency. (b) Mean cosine of the tokens at each level, one line for each snapshot, over "
        f"{len(probe.bundled_texts())} passages that it has not seen. (c) The same after layer {layers} against the "
        "step, and with the tokens in random order. Standard errors over passages."
        f"{f' Dotted: until there it was trained with {before}.' if early else ''} {_verdict(steps, last)}"
    )
    return Outcome(
        caption,
        _claims(training, steps, last, off),
        {"recipe": report["recipe"], "texts": report["texts"], "starts": len(probe.bundled_texts()),
         "solver": "none: layers in float32"},
        {"step": steps, "step_by_epoch": [row["step"] for row in training["history"]],
         "held_out_loss_by_epoch": [row["held-out loss"] for row in training["history"]]}
        | {f"last layer, {name}": values for name, values in last.items()},
        lambda: _draw(training, steps, last),
        None,
        on=_measured(report, len(probe.bundled_texts())),
    )  # fmt: skip


_OF_STEP = ("step", "held-out loss")


def _measured(report: dict[str, Any], texts: int) -> Measured:
    recipe, passages = report["recipe"], Subject("texts", "passages of Wikipedia that it has not seen")
    size = {"texts": texts, "tokens": recipe["length"], "layers": recipe["stages"][-1][0], "seeds": 1}
    return Measured(subject_of(*model_of(Settings())), passages, size)


def _measured_again(training: dict[str, Any]) -> float:
    """The largest difference of the recorded mean cosines of the last snapshot from those of the network that is
    here."""
    model = probe.load()
    texts = encoded(model, probe.bundled_texts(), model.max_positions)
    found = probe.similarity_histograms(model, texts, rank=False)
    there = np.array(training["snapshots"][-1]["cosine"])
    return float(np.max(np.abs(found.cosine.mean - there)))


def _verdict(steps: np.ndarray, last: dict[str, np.ndarray]) -> str:
    cosine, error = last["cosine"], last["cosine error"]
    beyond, of_beyond = cosine[-1] - last["shuffled cosine"][-1], np.hypot(error[-1], last["shuffled cosine error"][-1])
    more = "above" if beyond > 2 * of_beyond else "below" if beyond < -2 * of_beyond else "at"
    return (
        f"The mean cosine after the last layer is {_way(steps, cosine)}; it ends {more} that of shuffled tokens, "
        f"{last['shuffled cosine'][-1]:.2f}. Networks of other seeds start elsewhere: see figure1."
    )


def _way(steps: np.ndarray, cosine: np.ndarray) -> str:
    """From where, by which extremes, to where it went."""
    top = int(cosine.argmax())
    low = top + int(cosine[top:].argmin())
    by = [f"{cosine[k]:.2f} at step {steps[k]}" for k in (top, low) if k not in (0, len(cosine) - 1)]
    return ", ".join([f"{cosine[0]:.2f} before training", *by, f"{cosine[-1]:.2f} at the end"])


def _claims(training: dict[str, Any], steps: np.ndarray, last: dict[str, np.ndarray], off: float) -> tuple[Claim, ...]:
    report, cosine, error = training["report"], last["cosine"], last["cosine error"]
    rise, of_rise = float(cosine[-1] - cosine[0]), float(np.hypot(error[-1], error[0]))
    gain = report["unigram loss"] - report["held-out loss"]
    highest = np.maximum.accumulate(cosine)
    lowest = int((highest - cosine).argmax())
    before = int(cosine[: lowest + 1].argmax())
    fall, of_fall = float(cosine[before] - cosine[lowest]), float(np.hypot(error[before], error[lowest]))
    return (
        Claim(
            "The network has learnt from context.",
            f"held-out loss {report['held-out loss']:.3f} nats a word piece, by frequency alone "
            f"{report['unigram loss']:.3f}",
            "lower by more than 0.3 nats",
            gain > 0.3,
            "finding",
            gain,
        ),
        Claim(
            "Trained, the network gathers its tokens more than as it started.",
            f"mean cosine after the last layer {plus_minus(cosine[0], error[0], 3)} before training, "
            f"{plus_minus(cosine[-1], error[-1], 3)} after it; of pairs above 0.9 "
            f"{100 * last['near_mass'][0]:.1f} % and {100 * last['near_mass'][-1]:.1f} %",
            "the rise exceeds two standard errors",
            rise > 2 * of_rise,
            "finding",
            rise,
            of_rise,
        ),
        Claim(
            "Clustering grows throughout training.",
            f"mean cosine after the last layer: {_way(steps, cosine)}; deepest fall below an earlier snapshot "
            f"{plus_minus(fall, of_fall, 3)}",
            "no fall exceeds two standard errors",
            fall <= 2 * of_fall,
            "finding",
            fall,
            of_fall,
        ),
        Claim(
            "The network of the package is the last snapshot.",
            f"mean cosines of its levels differ from those on record by at most {off:.1e}",
            f"less than {SAME:g}",
            off < SAME,
            "identity",
            off,
        ),
    )


def _ends(training: dict[str, Any]) -> list[int]:
    """The step at which each stage of training ends."""
    recipe = training["report"]["recipe"]
    epochs = -(-recipe["steps"] // recipe["epoch_steps"])
    return [round(share * epochs) * recipe["epoch_steps"] for _, _, share in recipe["stages"]]


def _shown(training: dict[str, Any]) -> list[dict[str, Any]]:
    """The snapshots at the ends of the stages, those of the last stage, and the random weights."""
    ends = [0, *_ends(training)]
    return [one for one in training["snapshots"] if one["step"] in ends or one["step"] > ends[-2]]


@style()
def _draw(training: dict[str, Any], steps: np.ndarray, last: dict[str, np.ndarray]) -> Figure:
    figure = Figure(figsize=(WIDTH, 2.7), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    history = training["history"]
    at = np.array([row["step"] for row in history])
    time_series(at, np.array([row["held-out loss"] for row in history]), None, left, colour=OKABE_ITO[0],
                xlabel="training step", ylabel="held-out loss (nats)")  # fmt: skip
    left.axhline(training["report"]["unigram loss"], color="0.4", ls="--", lw=0.9)
    left.text(at[-1], training["report"]["unigram loss"], "by frequency", ha="right", va="bottom", fontsize=6)
    levels = np.arange(len(training["snapshots"][0]["cosine"]))
    shown = _shown(training)
    for k, one in enumerate(shown):
        colour = colormaps["viridis"](k / len(shown))
        time_series(levels, np.array(one["cosine"]), np.array(one["cosine error"]), middle, colour=colour,
                    label=f"{one['step']}", xlabel="layer", ylabel="mean cosine")  # fmt: skip
    if middle.get_legend() is not None:
        middle.get_legend().remove()
    middle.legend(title="step", fontsize=5, title_fontsize=6, loc="best", handlelength=1.2)
    for name, colour, line, label in (
        ("cosine", OKABE_ITO[0], "-", "texts"),
        ("shuffled cosine", OKABE_ITO[1], "--", "tokens shuffled"),
    ):
        time_series(steps, last[name], last[f"{name} error"], right, colour=colour, linestyle=line, label=label,
                    xlabel="training step", ylabel="mean cosine, last layer")  # fmt: skip
    middle.xaxis.set_major_locator(MaxNLocator(integer=True))
    for ax in (left, right):
        ax.xaxis.set_major_locator(MaxNLocator(nbins=4))
    for end in _ends(training)[:-1]:
        for ax in (left, right):
            ax.axvline(end, color="0.6", ls=":", lw=0.8, zorder=0)
    for letter, ax in zip("abc", (left, middle, right), strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


ALBERT_TRAINING = Experiment(
    "albert-training",
    "albert_training",
    "Clustering along the training of an ALBERT",
    "Trained transformers cluster tokens: does clustering grow with training?",
    _run,
    reads_package=True,
    asks=True,
)
