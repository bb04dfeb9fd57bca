"""A small causal language model along its training: do its tokens gather, do sinks arise, when does it know the
answer?"""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .. import probe, transformer
from ..plot import OKABE_ITO, style, time_series
from ._experiment import Claim, Experiment, Outcome, Settings, plus_minus
from ._layout import WIDTH
from ._starts import STARTS, Starts, keys_of, seed_of, starts_of
from ._verdict import Measured, Subject


SAME = 1e-4  # of a mean cosine, by which float32 may differ from machine to machine
SINK = 0.1  # of the weight, beyond uniform, from which a head counts as a sink


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    training = transformer.bundled_training()
    snapshots, report = training["snapshots"], training["report"]
    say(f"measuring the last of {len(snapshots)} snapshots again, and {STARTS} random starts")
    passages, recipe = _passages(report["recipe"]["length"]), transformer.LanguageRecipe(**report["recipe"])
    models = (transformer.load(), *(recipe.model(seed_of(key)) for key in keys_of(settings.seed)))
    again, *others = (transformer.depth_profile(model, *passages) for model in models)
    starts = starts_of(again.cosine, [one.cosine for one in others])
    before = np.array([one.sink.mean(axis=0).max() for one in others])
    steps = np.array([one["step"] for one in snapshots])
    names = ("cosine", "cosine error", "shuffled cosine", "shuffled cosine error", "loss", "loss error")
    last = {name: np.array([one[name][-1] for one in snapshots]) for name in names}
    head = np.unravel_index(np.argmax(snapshots[-1]["sink"]), np.shape(snapshots[-1]["sink"]))
    sink, of_sink = (np.array([one[name][head[0]][head[1]] for one in snapshots]) for name in ("sink", "sink error"))
    caption = (
        f"The language model of this package along its training: {report['recipe']['layers']} causal layers, "
        f"{report['parameters'] / 1e6:.2f} million parameters, {report['steps']} steps on film reviews and a little "
        f"of Wikipedia, {report['seconds'] / 60:.0f} minutes on two cores. (a) Loss on held-out texts; by the word "
        "before: bigrams, smoothed as by Kneser and Ney. (b) Mean cosine of the tokens after the last layer, "
        f"over {len(probe.bundled_texts())} passages that it has not seen, beside the same words in random order; at "
        f"step 0 the weights are random; crosses: {STARTS} networks as it might have started. (c) The "
        "weight that each head gives the first token beyond uniform attention; "
        f"the strongest at the end is head {head[1] + 1} of layer {head[0] + 1}. (d) What the head of the model would "
        "lose at each level (logit lens), one line for each snapshot; at level 0 a tied head repeats the word that was "
        f"read. Standard errors over passages. {_verdict(last, sink)}"
    )
    return Outcome(
        caption,
        _claims(report, snapshots[-1], last, sink, of_sink, np.asarray(again.cosine.mean(axis=0)), starts, before),
        {"recipe": report["recipe"], "texts": report["texts"], "starts": len(probe.bundled_texts()),
         "random starts": STARTS, "solver": "none: layers in float32"},
        {"step": steps, "strongest_sink": sink, "strongest_sink_error": of_sink,
         "step_by_epoch": [row["step"] for row in training["history"]],
         "held_out_loss_by_epoch": [row["held-out loss"] for row in training["history"]]}
        | {f"last layer, {name}": values for name, values in last.items()}
        | {"cosine_by_start": starts.each, "strongest_sink_by_start": before},
        lambda: _draw(training, steps, last, starts),
        None,
        on=_measured(report, len(probe.bundled_texts())),
    )  # fmt: skip


def _measured(report: dict[str, Any], texts: int) -> Measured:
    words = (
        "the causal language model of this package, whose training texts begin anywhere, "
        f"{report['parameters'] / 1e6:.2g} million parameters"
    )
    size = {"texts": texts, "tokens": report["recipe"]["length"], "layers": report["recipe"]["layers"], "seeds": STARTS}
    passages = Subject("texts", "passages of Wikipedia that it has not seen")
    return Measured(Subject("clusterjax-language-model", words), passages, size)


def _verdict(last: dict[str, np.ndarray], sink: np.ndarray) -> str:
    cosine, other = last["cosine"][-1], last["shuffled cosine"][-1]
    error = np.hypot(last["cosine error"][-1], last["shuffled cosine error"][-1])
    more = "more" if cosine - other > 2 * error else "less" if other - cosine > 2 * error else "no more"
    sinks = "is a sink" if sink[-1] > SINK else "is hardly a sink, where texts in training begin anywhere"
    return (
        f"Training gathers the tokens, but those of a text {more} than the same words in random order; and even the "
        f"strongest head {sinks}."
    )


def _passages(length: int) -> tuple[np.ndarray, np.ndarray]:
    """The first word pieces of each passage of the package, and which of them are there."""
    tokenizer = transformer.load_tokenizer()
    found = [one.ids[:length] for one in tokenizer.encode_batch(probe.bundled_texts(), add_special_tokens=False)]
    there = np.arange(length)[None, :] < np.array([len(one) for one in found])[:, None]
    ids = np.zeros(there.shape, np.int32)
    ids[there] = np.concatenate(found)
    return ids, there


def _claims(
    report: dict[str, Any],
    final: dict[str, Any],
    last: dict[str, np.ndarray],
    sink: np.ndarray,
    of_sink: np.ndarray,
    again: np.ndarray,
    starts: Starts,
    before: np.ndarray,
) -> tuple[Claim, ...]:
    gain = report["bigram loss"] - report["held-out loss"]
    cosine, error, other, of_other = (
        last[name] for name in ("cosine", "cosine error", "shuffled cosine", "shuffled cosine error")
    )
    rise, of_rise = float(starts.beyond.difference[-1]), float(starts.beyond.error[-1])
    of_before = before.std(ddof=1) / np.sqrt(len(before))
    beyond, of_beyond = float(cosine[-1] - other[-1]), float(np.hypot(error[-1], of_other[-1]))
    lens = np.array(final["loss"])
    off = float(np.max(np.abs(again - np.array(final["cosine"]))))
    return (
        Claim(
            "The model has learnt more than which word follows which.",
            f"held-out loss {report['held-out loss']:.3f} nats a word piece, by the word before "
            f"{report['bigram loss']:.3f}, by frequency {report['unigram loss']:.3f}",
            "lower than by the word before by more than 0.3 nats",
            gain > 0.3,
            "finding",
            gain,
        ),
        Claim(
            "Trained, the model gathers its tokens more than as it might have started.",
            f"mean cosine after the last layer {plus_minus(cosine[-1], error[-1], 3)} after training, "
            f"{starts.words()} before it, {plus_minus(cosine[0], error[0], 3)} as it started itself",
            f"the difference from {len(starts.each)} random starts exceeds two standard errors, or as many as are as "
            "improbable with so few",
            starts.exceeds(),
            "finding",
            rise,
            of_rise,
        ),
        Claim(
            "Trained, the model gathers the tokens of a text more than the same words in random order.",
            f"mean cosine after the last layer {plus_minus(cosine[-1], error[-1], 3)}, in random order "
            f"{plus_minus(other[-1], of_other[-1], 3)}",
            "the difference exceeds two standard errors, taken as if the two were independent",
            beyond > 2 * of_beyond,
            "finding",
            beyond,
            of_beyond,
        ),
        Claim(
            "In this causal model, whose training texts begin anywhere, a head becomes a sink of the first token.",
            f"weight beyond uniform attention of the strongest head {plus_minus(sink[-1], of_sink[-1], 3)} after "
            f"training; of the strongest before it {plus_minus(before.mean(), of_before, 3)} over {len(before)} random "
            "starts. No token began its training texts, so that this says nothing of models whose texts begin with one",
            f"more than {SINK:g} after training",
            bool(sink[-1] > SINK),
            "finding",
            float(sink[-1]),
            float(of_sink[-1]),
        ),
        Claim(
            "The answer is formed layer by layer: the loss of the logit lens falls at every level.",
            "loss at the levels: " + ", ".join(f"{value:.2f}" for value in lens),
            "each is lower than the one before",
            bool(np.all(np.diff(lens) < 0)),
            "finding",
            float(lens[-1]),
        ),
        Claim(
            "The model of the package is the last snapshot.",
            f"mean cosines of its levels differ from those on record by at most {off:.1e}",
            f"less than {SAME:g}",
            off < SAME,
            "identity",
            off,
        ),
    )


@style()
def _draw(training: dict[str, Any], steps: np.ndarray, last: dict[str, np.ndarray], starts: Starts) -> Figure:
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    (loss, cosine), (sinks, lens) = figure.subplots(2, 2)
    _draw_loss(loss, training)
    for name, colour, line, label in (
        ("cosine", OKABE_ITO[0], "-", "texts"),
        ("shuffled cosine", OKABE_ITO[1], "--", "words in random order"),
    ):
        time_series(steps, last[name], last[f"{name} error"], cosine, colour=colour, linestyle=line, label=label,
                    xlabel="training step", ylabel="mean cosine, last layer")  # fmt: skip
    cosine.plot(np.zeros(len(starts.each)), starts.each[:, -1], "x", color="0.25", ms=4, label="random starts")
    cosine.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, fontsize=6, handlelength=1.6)
    layers, heads = np.shape(training["snapshots"][0]["sink"])
    for layer in range(layers):
        for head in range(heads):
            values = np.array([one["sink"][layer][head] for one in training["snapshots"]])
            sinks.plot(steps, values, color=OKABE_ITO[layer % len(OKABE_ITO)], lw=0.9,
                       label=f"layer {layer + 1}" if head == 0 else None)  # fmt: skip
    sinks.axhline(0, color="0.5", lw=0.6)
    sinks.set(xlabel="training step", ylabel="weight on the first token\nbeyond uniform")
    sinks.legend(fontsize=6)
    shown = training["snapshots"]
    for k, one in enumerate(shown):
        lens.errorbar(np.arange(layers + 1), one["loss"], one["loss error"], color=colormaps["viridis"](k / len(shown)),
                      lw=1.0, marker="o", ms=2.5, label=str(one["step"]))  # fmt: skip
    lens.set(xlabel="level", ylabel="loss of the logit lens (nats)", yscale="log")
    lens.set_yticks([4, 5, 6, 8, 10, 15, 20], labels=["4", "5", "6", "8", "10", "15", "20"])
    lens.minorticks_off()
    lens.xaxis.set_major_locator(MaxNLocator(integer=True))
    lens.legend(title="step", fontsize=5, title_fontsize=6, ncols=2)
    for ax in (loss, cosine, sinks):
        ax.xaxis.set_major_locator(MaxNLocator(nbins=5))
    for letter, ax in zip("abcd", (loss, cosine, sinks, lens), strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _draw_loss(ax: Axes, training: dict[str, Any]) -> None:
    history, report = training["history"], training["report"]
    at = np.array([row["step"] for row in history])
    time_series(at, np.array([row["held-out loss"] for row in history]), None, ax, colour=OKABE_ITO[0],
                xlabel="training step", ylabel="held-out loss (nats)")  # fmt: skip
    for name, line, label in (("bigram loss", "--", "by the word before"), ("unigram loss", ":", "by frequency")):
        ax.axhline(report[name], color="0.4", ls=line, lw=0.9)
        ax.text(at[-1], report[name], label, ha="right", va="bottom", fontsize=6)


LANGUAGE_TRAINING = Experiment(
    "language-training",
    "language_model",
    "A language model along its training",
    "Trained transformers cluster tokens, and attend to sinks: what of it comes with training, in a causal model?",
    _run,
    reads_package=True,
    asks=True,
)
