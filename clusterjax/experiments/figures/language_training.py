"""What the figure of the language model's training measures: its snapshots, the model itself, and random starts.

The training of the package wrote the depth profile of every snapshot (mean cosine, attention sinks, logit lens) into
its report, so that nothing is trained here. The model that the package ships is the last snapshot: it is measured again
and must agree with the report. Sinks and cosines before training are those of several random starts, since one start
says nothing of another.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import jax.random as jr
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ... import probe, transformer
from ...plot import OKABE_ITO, style, time_series
from ...probe.measures.survey import clustered_error
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, plus_minus
from ..framework.figure import declared
from ..framework.verdict import Measured, Subject
from ..shared.controls import STARTS, Starts, keys_of, seed_of, starts_of
from ..shared.layout import WIDTH
from ..shared.networks import articles_of, articles_words, passages


_LAST = ("cosine", "cosine error", "shuffled cosine", "shuffled cosine error", "loss", "loss error")


@dataclass(frozen=True)
class Parameters:
    """What of the figure can be set."""

    draws: int = parameter(STARTS, "the number of random starts to compare with", least=2, most=32)
    sink: float = parameter(
        0.1, "the weight beyond uniform attention from which a head counts as a sink", above=0, most=1
    )


@dataclass(frozen=True, eq=False)
class Results:
    """All that the figure shows.

    **Attributes:**

    - `training`: The snapshots, the report and the history of the losses, as the training wrote them.
    - `steps`: (snapshots,), the training step of each.
    - `last`: What each snapshot has at its last level, by the name of the statistic, (snapshots,).
    - `head`: Layer and head, from 0, of the strongest sink after training.
    - `sink`, `of_sink`: (snapshots,), the weight beyond uniform attention that this head gives the first token, and its
        standard error.
    - `again`, `shuffled`: (texts, levels), the mean cosine of the model of the package, and with the tokens of each
        text in random order.
    - `starts`: Models as it might have started, and the trained one beside them.
    - `before`: (starts,), the strongest sink of each of these.
    - `articles`: The article of each text, the independent unit of errors, (texts,).
    """

    p: Parameters
    training: dict[str, Any]
    steps: np.ndarray
    last: dict[str, np.ndarray]
    head: tuple[int, int]
    sink: np.ndarray
    of_sink: np.ndarray
    again: np.ndarray
    shuffled: np.ndarray
    starts: Starts
    before: np.ndarray
    articles: np.ndarray


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Read the snapshots, and measure the model of the package and the random starts."""
    training = transformer.bundled_training()
    snapshots, report = training["snapshots"], training["report"]
    say(f"measuring the last of {len(snapshots)} snapshots again, and {p.draws} random starts")
    articles = articles_of(probe.bundled_texts())
    texts, recipe = passages(report["recipe"]["length"]), transformer.LanguageRecipe(**report["recipe"])
    # The recipe of the package is not one of an LSTM.
    random = (cast(transformer.LanguageModel, recipe.model(seed_of(key))) for key in keys_of(settings.seed, p.draws))
    models = (transformer.load(), *random)
    again, *others = (transformer.depth_profile(model, *texts) for model in models)
    mixed = probe.shuffle_tokens(probe.Encoded(*texts), jr.key(settings.seed))
    shuffled = transformer.depth_profile(transformer.load(), *mixed)
    # The sink of a start is that of its own strongest head: heads of different starts do not correspond.
    before = np.array([profile.sink.mean(axis=0).max() for profile in others])
    strongest = np.unravel_index(np.argmax(snapshots[-1]["sink"]), np.shape(snapshots[-1]["sink"]))
    head = int(strongest[0]), int(strongest[1])
    sink, of_sink = (
        np.array([snapshot[name][head[0]][head[1]] for snapshot in snapshots]) for name in ("sink", "sink error")
    )
    return Results(
        p,
        training,
        np.array([snapshot["step"] for snapshot in snapshots]),
        {name: np.array([snapshot[name][-1] for snapshot in snapshots]) for name in _LAST},
        head,
        sink,
        of_sink,
        again.cosine,
        shuffled.cosine,
        starts_of(again.cosine, [profile.cosine for profile in others], articles),
        before,
        articles,
    )


# What the figure of the language model's training claims: gathering, sinks, and answers formed layer by layer.


SAME = 1e-4  # of a mean cosine, by which float32 may differ from machine to machine


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure."""
    claims = _learnt(m), _gathers(m), _beyond_shuffled(m), _sink(m), _layer_by_layer(m), _same(m)
    return over(
        f"passages, as on record; of the difference from random starts over {articles_words(m.articles)} and networks",
        claims,
    )


def _learnt(m: Results) -> Claim:
    report = m.training["report"]
    gain = report["bigram loss"] - report["held-out loss"]
    return Claim(
        says="The model has learnt more than which word follows which.",
        measured=f"held-out loss {report['held-out loss']:.3f} nats a word piece, by the word before "
        f"{report['bigram loss']:.3f}, by frequency {report['unigram loss']:.3f}",
        criterion="lower than by the word before by more than 0.3 nats",
        holds=gain > 0.3,
        kind="finding",
        value=gain,
    )


def _gathers(m: Results) -> Claim:
    starts, cosine, error = m.starts, m.last["cosine"], m.last["cosine error"]
    return Claim(
        says="Trained, the model gathers its tokens more than as it might have started.",
        measured=f"mean cosine after the last layer {plus_minus(cosine[-1], error[-1], 3)} after training, "
        f"{starts.words()} before it, {plus_minus(cosine[0], error[0], 3)} as it started itself; difference "
        f"{plus_minus(starts.beyond.difference[-1], starts.beyond.error[-1], 3)}",
        criterion=f"the difference from {len(starts.each)} random starts exceeds two standard errors, or as many "
        "as are as improbable with so few",
        holds=starts.exceeds(),
        kind="finding",
        value=float(starts.beyond.difference[-1]),
        error=float(starts.beyond.error[-1]),
    )


def _beyond_shuffled(m: Results) -> Claim:
    # Measured again, since the report has no values of single texts to pair.
    again, other = m.again[:, -1], m.shuffled[:, -1]
    beyond = clustered_error(again - other, m.articles)
    told = lambda values: plus_minus(*clustered_error(values, m.articles)[:2], 3)
    return Claim(
        says="Trained, the model gathers the tokens of a text more than the same words in random order.",
        measured=f"mean cosine after the last layer {told(again)}, in random order {told(other)}; difference, paired "
        f"by text, {plus_minus(beyond.mean, beyond.error, 3)} (± over {articles_words(m.articles)})",
        criterion="the difference exceeds two standard errors",
        holds=beyond.above(),
        kind="finding",
        value=float(beyond.mean),
        error=float(beyond.error),
    )


def _sink(m: Results) -> Claim:
    before = m.before
    # One number for each random start.
    of_before = before.std(ddof=1) / np.sqrt(len(before))
    return Claim(
        says="In this causal model, whose training texts begin anywhere, a head becomes a sink of the first token.",
        measured=f"weight beyond uniform attention of the strongest head {plus_minus(m.sink[-1], m.of_sink[-1], 3)} "
        f"after training; of the strongest before it {plus_minus(before.mean(), of_before, 3)} over {len(before)} "
        "random starts. No token began its training texts, so that this says nothing of models whose texts begin "
        "with one: sink-training trains both kinds",
        criterion=f"more than {m.p.sink:g} after training, by two standard errors",
        holds=bool(m.sink[-1] - 2 * m.of_sink[-1] > m.p.sink),
        kind="finding",
        value=float(m.sink[-1]),
        error=float(m.of_sink[-1]),
    )


def _layer_by_layer(m: Results) -> Claim:
    lens = np.array(m.training["snapshots"][-1]["loss"])
    return Claim(
        says="The loss of the logit lens falls at every level: the answer is formed layer by layer.",
        measured="loss at the levels: " + ", ".join(f"{value:.2f}" for value in lens),
        criterion="each is lower than the one before",
        holds=bool(np.all(np.diff(lens) < 0)),
        kind="finding",
        value=float(lens[-1]),
    )


def _same(m: Results) -> Claim:
    # Level by level.
    off = float(np.max(np.abs(m.again.mean(axis=0) - np.array(m.training["snapshots"][-1]["cosine"]))))
    return Claim(
        says="The model of the package is the last snapshot.",
        measured=f"mean cosines of its levels differ from those on record by at most {off:.1e}",
        criterion=f"less than {SAME:g}",
        holds=off < SAME,
        kind="identity",
        value=off,
    )


def caption_of(m: Results) -> str:
    """What is seen, and what it is worth."""
    report, (layer, head) = m.training["report"], m.head
    return (
        f"The language model of this package along its training: {report['recipe']['layers']} causal layers, "
        f"{report['parameters'] / 1e6:.2f} million parameters, {report['steps']} steps on film reviews and a little of "
        f"Wikipedia, {report['seconds'] / 60:.0f} minutes on two cores. (a) Loss on held-out texts; by the word "
        "before: bigrams, smoothed as by Kneser and Ney. (b) Mean cosine of the tokens after the last layer, over "
        f"{len(probe.bundled_texts())} passages that it has not seen, beside the same words in random order; at step 0 "
        f"the weights are random; crosses: {len(m.starts.each)} networks as it might have started. (c) The weight that "
        f"each head gives the first token beyond uniform attention; the strongest at the end is head {head + 1} of "
        f"layer {layer + 1}. (d) What the head of the model would lose at each level (logit lens), one line for each "
        "snapshot; at level 0 a tied head repeats the word that was read. Standard errors over passages. "
        f"{_verdict(m)}"
    )


def _verdict(m: Results) -> str:
    cosine, other = m.last["cosine"][-1], m.last["shuffled cosine"][-1]
    error = np.hypot(m.last["cosine error"][-1], m.last["shuffled cosine error"][-1])
    more = "more" if cosine - other > 2 * error else "less" if other - cosine > 2 * error else "no more"
    # The words of the claim on sinks, for either outcome.
    weak = "is hardly a sink, in this model, whose training texts begin anywhere; sink-training compares both kinds"
    return (
        f"Training gathers the tokens, but those of a text {more} than the same words in random order; and even the "
        f"strongest head {'is a sink' if m.sink[-1] > m.p.sink else weak}."
    )


# The panels of the language model's training: losses, the mean cosine, sinks of each head, and the logit lens.


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    (loss, cosine), (sinks, lens) = figure.subplots(2, 2)
    _losses(loss, m.training)
    _cosine(cosine, m)
    _sinks(sinks, m)
    _lens(lens, m.training)
    for ax in (loss, cosine, sinks):
        ax.xaxis.set_major_locator(MaxNLocator(nbins=5))
    for letter, ax in zip("abcd", (loss, cosine, sinks, lens), strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _losses(ax: Axes, training: dict[str, Any]) -> None:
    history, report = training["history"], training["report"]
    at = np.array([row["step"] for row in history])
    time_series(at, np.array([row["held-out loss"] for row in history]), None, ax, colour=OKABE_ITO[0],
                xlabel="training step", ylabel="held-out loss (nats)")  # fmt: skip
    for name, line, label in (("bigram loss", "--", "by the word before"), ("unigram loss", ":", "by frequency")):
        ax.axhline(report[name], color="0.4", ls=line, lw=0.9)
        ax.text(at[-1], report[name], label, ha="right", va="bottom", fontsize=6)


def _cosine(ax: Axes, m: Results) -> None:
    for name, colour, line, label in (
        ("cosine", OKABE_ITO[0], "-", "texts"),
        ("shuffled cosine", OKABE_ITO[1], "--", "words in random order"),
    ):
        time_series(m.steps, m.last[name], m.last[f"{name} error"], ax, colour=colour, linestyle=line, label=label,
                    xlabel="training step", ylabel="mean cosine, last layer")  # fmt: skip
    each = m.starts.each[:, -1]
    ax.plot(np.zeros(len(each)), each, "x", color="0.25", ms=4, label="random starts")
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, fontsize=6, handlelength=1.6)


def _sinks(ax: Axes, m: Results) -> None:
    snapshots = m.training["snapshots"]
    layers, heads = np.shape(snapshots[0]["sink"])
    for layer in range(layers):
        for head in range(heads):
            values = np.array([snapshot["sink"][layer][head] for snapshot in snapshots])
            # One entry of the legend for each layer: its heads share a colour.
            ax.plot(m.steps, values, color=OKABE_ITO[layer % len(OKABE_ITO)], lw=0.9,
                    label=f"layer {layer + 1}" if head == 0 else None)  # fmt: skip
    ax.axhline(0, color="0.5", lw=0.6)
    ax.set(xlabel="training step", ylabel="weight on the first token\nbeyond uniform")
    ax.legend(fontsize=6)


def _lens(ax: Axes, training: dict[str, Any]) -> None:
    snapshots = training["snapshots"]
    # From violet, random weights, to yellow, trained.
    for k, snapshot in enumerate(snapshots):
        colour = colormaps["viridis"](k / len(snapshots))
        ax.errorbar(np.arange(len(snapshot["loss"])), snapshot["loss"], snapshot["loss error"], color=colour,
                    lw=1.0, marker="o", ms=2.5, label=str(snapshot["step"]))  # fmt: skip
    ax.set(xlabel="level", ylabel="loss of the logit lens (nats)", yscale="log")
    # A logarithmic axis over less than a decade has one labelled tick by default, which says too little.
    ax.set_yticks([4, 5, 6, 8, 10, 15, 20], labels=["4", "5", "6", "8", "10", "15", "20"])
    ax.minorticks_off()
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(title="step", fontsize=5, title_fontsize=6, ncols=2)


# The language model's training as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    report = m.training["report"]
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"recipe": report["recipe"], "texts": report["texts"], "starts": len(probe.bundled_texts()),
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
            "strongest_sink": m.sink,
            "strongest_sink_error": m.of_sink,
            "step_by_epoch": [row["step"] for row in history],
            "held_out_loss_by_epoch": [row["held-out loss"] for row in history],
        }
        | {f"last layer, {name}": values for name, values in m.last.items()}
        | {"cosine_by_start": m.starts.each, "strongest_sink_by_start": m.before}
    )


def _measured(m: Results) -> Measured:
    report = m.training["report"]
    words = (
        "the causal language model of this package, whose training texts begin anywhere, "
        f"{report['parameters'] / 1e6:.2g} million parameters"
    )
    size = {
        "texts": len(probe.bundled_texts()), "tokens": report["recipe"]["length"],
        "layers": report["recipe"]["layers"], "seeds": len(m.starts.each),
    }  # fmt: skip
    passages = Subject("texts", "passages of Wikipedia that it has not seen")
    # No paper has this network: its key agrees with no source.
    return Measured(Subject("clusterjax-language-model", words), passages, size)


FIGURE = declared("language-training", _run, parameters=Parameters)
