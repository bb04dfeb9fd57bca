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
from ._starts import STARTS, Starts, keys_of, starts_of
from ._verdict import Measured, Subject


SAME = 1e-4  # of a mean cosine, by which float32 may differ from machine to machine


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    training = probe.bundled_training()
    snapshots, report = training["snapshots"], training["report"]
    say(f"measuring the last of {len(snapshots)} snapshots again, and {STARTS} random starts")
    off, starts = _measured_again(training, settings.seed)
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
        f"{len(probe.bundled_texts())} passages that it has not seen; dashed: {STARTS} networks as it might have "
        f"started, the mean and its standard error over networks. (c) The same after layer {layers} against the "
        "step, and with the tokens in random order; crosses: those networks. Other standard errors are over passages."
        f"{f' Dotted: until there it was trained with {before}.' if early else ''} {_verdict(steps, last, starts)}"
    )
    return Outcome(
        caption,
        _claims(training, steps, last, off, starts),
        {"recipe": report["recipe"], "texts": report["texts"], "starts": len(probe.bundled_texts()),
         "random starts": STARTS, "solver": "none: layers in float32"},
        {"step": steps, "step_by_epoch": [row["step"] for row in training["history"]],
         "held_out_loss_by_epoch": [row["held-out loss"] for row in training["history"]]}
        | {f"last layer, {name}": values for name, values in last.items()}
        | {"cosine_by_start": starts.each},
        lambda: _draw(training, steps, last, starts),
        None,
        on=_measured(report, len(probe.bundled_texts())),
    )  # fmt: skip


_OF_STEP = ("step", "held-out loss")


def _measured(report: dict[str, Any], texts: int) -> Measured:
    recipe, passages = report["recipe"], Subject("texts", "passages of Wikipedia that it has not seen")
    size = {"texts": texts, "tokens": recipe["length"], "layers": recipe["stages"][-1][0], "seeds": STARTS}
    return Measured(subject_of(*model_of(Settings())), passages, size)


def _measured_again(training: dict[str, Any], seed: int) -> tuple[float, Starts]:
    """The largest difference of the recorded mean cosines of the last snapshot from those of the network that is
    here, and that network beside others as it might have started."""
    model = probe.load()
    for part in ("pooler", "predictions"):
        setattr(model.network, part, None)  # as in those, so that one compilation serves all
    texts = encoded(model, probe.bundled_texts(), model.max_positions)
    others = [probe.randomise(model, key, initial=probe.bundled_start) for key in keys_of(seed)]
    found = [probe.similarity_histograms(one, texts, rank=False).cosine for one in (model, *others)]
    there = np.array(training["snapshots"][-1]["cosine"])
    values = [one.values for one in found if one.values is not None]
    return float(np.max(np.abs(found[0].mean - there))), starts_of(values[0], values[1:])


def _verdict(steps: np.ndarray, last: dict[str, np.ndarray], starts: Starts) -> str:
    cosine, error = last["cosine"], last["cosine error"]
    beyond, of_beyond = cosine[-1] - last["shuffled cosine"][-1], np.hypot(error[-1], last["shuffled cosine error"][-1])
    more = "above" if beyond > 2 * of_beyond else "below" if beyond < -2 * of_beyond else "at"
    less = starts.beyond._replace(z=-starts.beyond.z).exceeds()[-1]
    other = "above" if starts.exceeds() else "below" if less else "no different from"
    return (
        f"The mean cosine after the last layer is {_way(steps, cosine)}; it ends {more} that of shuffled tokens, "
        f"{last['shuffled cosine'][-1]:.2f}, and {other} that of random starts, {starts.mean[-1]:.2f} ± "
        f"{starts.error[-1]:.2f}."
    )


def _way(steps: np.ndarray, cosine: np.ndarray) -> str:
    """From where, by which extremes, to where it went."""
    top = int(cosine.argmax())
    low = top + int(cosine[top:].argmin())
    by = [f"{cosine[k]:.2f} at step {steps[k]}" for k in (top, low) if k not in (0, len(cosine) - 1)]
    return ", ".join([f"{cosine[0]:.2f} before training", *by, f"{cosine[-1]:.2f} at the end"])


def _claims(
    training: dict[str, Any], steps: np.ndarray, last: dict[str, np.ndarray], off: float, starts: Starts
) -> tuple[Claim, ...]:
    report, cosine, error = training["report"], last["cosine"], last["cosine error"]
    rise, of_rise = float(starts.beyond.difference[-1]), float(starts.beyond.error[-1])
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
            "Trained, the network gathers its tokens more than as it might have started.",
            f"mean cosine after the last layer {plus_minus(cosine[-1], error[-1], 3)} after training, "
            f"{starts.words()} before it, {plus_minus(cosine[0], error[0], 3)} as it started itself; difference "
            f"{plus_minus(rise, of_rise, 3)}; of pairs above 0.9 {100 * last['near_mass'][0]:.1f} % as it started and "
            f"{100 * last['near_mass'][-1]:.1f} % after training",
            f"the difference from {len(starts.each)} random starts exceeds two standard errors, or as many as are as "
            "improbable with so few",
            starts.exceeds(),
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
def _draw(training: dict[str, Any], steps: np.ndarray, last: dict[str, np.ndarray], starts: Starts) -> Figure:
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
    time_series(levels, starts.mean, starts.error, middle, colour="0.25", linestyle="--", label="starts",
                xlabel="layer", ylabel="mean cosine")  # fmt: skip
    if middle.get_legend() is not None:
        middle.get_legend().remove()
    middle.legend(title="step", fontsize=5, title_fontsize=6, loc="best", handlelength=1.2)
    for name, colour, line, label in (
        ("cosine", OKABE_ITO[0], "-", "texts"),
        ("shuffled cosine", OKABE_ITO[1], "--", "tokens shuffled"),
    ):
        time_series(steps, last[name], last[f"{name} error"], right, colour=colour, linestyle=line, label=label,
                    xlabel="training step", ylabel="mean cosine, last layer")  # fmt: skip
    right.plot(np.zeros(len(starts.each)), starts.each[:, -1], "x", color="0.25", ms=4, label="starts", clip_on=False)
    right.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, fontsize=6, handlelength=1.6, columnspacing=0.8)
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
