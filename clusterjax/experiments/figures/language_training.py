"""The language model of the package along its training: tokens gather, a sink forms, predictions form layer by layer.

The training of the package wrote the depth profile of each snapshot (mean cosine, attention sinks, logit lens) into its
report, so that this figure trains nothing. The model of the package is the last snapshot: its profile is measured again
and must agree with the report. The model is compared with several random starts, because one start does not tell how
much starts differ.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax.random as jr
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ... import probe, transformer
from ...plot import OKABE_ITO
from ...probe.measures.survey import clustered_error
from ..framework.figure import Claim, Found, Measured, Say, Settings, Subject, claim, figure, parameter, plus_minus
from ..shared.controls import STARTS, Starts, keys_of, seed_of, starts_of
from ..shared.ensemble import mean_and_error
from ..shared.layout import cosine_panel, loss_panel, panels
from ..shared.networks import articles_of, articles_words, passages


SAME = 1e-4  # the difference of a mean cosine in float32 between machines
LAST = ("cosine", "cosine error", "shuffled cosine", "shuffled cosine error", "loss", "loss error")
# No paper has this network, and no source has its key.
NETWORK, TEXTS = "clusterjax-language-model", Subject("texts", "passages of Wikipedia that it has not seen")


@dataclass(frozen=True)
class Parameters:
    draws: int = parameter(STARTS, "the number of random starts for comparison", least=2, most=32)
    sink: float = parameter(0.1, "the least weight of a sink beyond uniform attention", above=0, most=1)


class Results(NamedTuple):
    p: Parameters
    training: dict[str, Any]  # the snapshots, the report and the history of the losses, as the training wrote them
    steps: np.ndarray  # the training step of each snapshot, (snapshots,)
    last: dict[str, np.ndarray]  # the statistics of each snapshot at its last level, by name, (snapshots,)
    head: tuple[int, int]  # layer and head, from 0, of the strongest sink after training
    # `sink`, `of_sink`: the weight beyond uniform attention that this head gives the first token, and its standard
    # error, (snapshots,)
    sink: np.ndarray
    sink_error: np.ndarray
    # `again`, `shuffled`: the mean cosine of the model of the package, and with the tokens of each text in random
    # order, (texts, levels)
    again: np.ndarray
    shuffled: np.ndarray
    starts: Starts  # the trained model beside random starts
    before: np.ndarray  # the strongest sink of each random start, (starts,)
    articles: np.ndarray  # the article of each text, the independent unit of errors, (texts,)

    @property
    def report(self) -> dict[str, Any]:
        return self.training["report"]


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    training = transformer.bundled_training()
    snapshots, recipe = training["snapshots"], transformer.LanguageRecipe(**training["report"]["recipe"])
    say(f"measuring the last of {len(snapshots)} snapshots again, and {p.draws} random starts")
    articles, texts = articles_of(probe.bundled_texts()), passages(recipe.length)
    random = (cast(transformer.LanguageModel, recipe.model(seed_of(key))) for key in keys_of(settings.seed, p.draws))
    again, *others = (transformer.depth_profile(model, *texts) for model in (transformer.load(), *random))
    mixed = probe.shuffle_tokens(probe.Encoded(*texts), jr.key(settings.seed))
    shuffled = transformer.depth_profile(transformer.load(), *mixed)
    # The strongest head of each start: the heads of different starts do not correspond.
    before = np.array([profile.sink.mean(axis=0).max() for profile in others])
    column = lambda name: np.array([snapshot[name] for snapshot in snapshots])
    layer, head = map(int, np.unravel_index(column("sink")[-1].argmax(), column("sink")[-1].shape))
    return Results(
        p, training, column("step"), {name: column(name)[:, -1] for name in LAST}, (layer, head),
        column("sink")[:, layer, head], column("sink error")[:, layer, head], again.cosine, shuffled.cosine,
        starts_of(again.cosine, [profile.cosine for profile in others], articles), before, articles,
    )  # fmt: skip


@claim("the held-out loss is lower than by the word before by more than 0.3 nats")
def learnt(m: Results) -> Found:
    """The model has learnt more than a bigram model: its loss is lower."""
    loss, bigram, unigram = (m.report[f"{name} loss"] for name in ("held-out", "bigram", "unigram"))
    return Found(
        f"held-out loss {loss:.3f} nats per word piece; {bigram:.3f} by the word before, {unigram:.3f} by frequency",
        bigram - loss > 0.3, bigram - loss,
    )  # fmt: skip


@claim(
    "the difference from {p.draws} random starts exceeds two standard errors, or, with so few starts, as many as are "
    "as improbable"
)
def gathers(m: Results) -> Found:
    """After training the model gathers its tokens more than models with random initial weights."""
    cosine, error = m.last["cosine"], m.last["cosine error"]
    difference, difference_error = m.starts.beyond.difference[-1], m.starts.beyond.error[-1]
    return Found(
        f"mean cosine after the last layer {plus_minus(cosine[-1], error[-1], 3)} after training, {m.starts.words()}, "
        f"{plus_minus(cosine[0], error[0], 3)} at the start of the model itself; difference from the random starts "
        f"{plus_minus(difference, difference_error, 3)}",
        m.starts.exceeds(), difference, difference_error,
    )  # fmt: skip


@claim("the difference exceeds two standard errors")
def beyond_shuffled(m: Results) -> Found:
    """After training the tokens of a text are more alike than the same words in random order."""
    # The report has no values of single texts, which a difference paired by text needs.
    again, other = m.again[:, -1], m.shuffled[:, -1]
    beyond = clustered_error(again - other, m.articles)
    words = lambda values: plus_minus(*clustered_error(values, m.articles)[:2], 3)
    return Found(
        f"mean cosine after the last layer {words(again)}, in random order {words(other)}; difference, paired by text, "
        f"{words(again - other)} (± over {articles_words(m.articles)})",
        beyond.above(), beyond.mean, beyond.error,
    )  # fmt: skip


@claim("more than {p.sink:g} after training, by two standard errors")
def sink(m: Results) -> Found:
    """In this causal model, whose training texts begin at any word, a head becomes a sink of the first token."""
    return Found(
        f"weight beyond uniform attention of the strongest head {plus_minus(m.sink[-1], m.sink_error[-1], 3)} after "
        f"training, {plus_minus(*mean_and_error(m.before), 3)} before training over {len(m.before)} random starts. Its "
        "training texts begin with no special token; sink-training also trains models whose texts begin with one",
        m.sink[-1] - 2 * m.sink_error[-1] > m.p.sink, m.sink[-1], m.sink_error[-1],
    )  # fmt: skip


@claim("the loss at each level is lower than at the level before")
def layer_by_layer(m: Results) -> Found:
    """The loss of the logit lens falls at every level: the answer is formed layer by layer."""
    lens = np.array(m.training["snapshots"][-1]["loss"])
    words = ", ".join(f"{value:.2f}" for value in lens)
    return Found(f"loss at the levels: {words}", np.all(np.diff(lens) < 0), lens[-1])


@claim(f"less than {SAME:g}", kind="identity")
def same(m: Results) -> Found:
    """The model of the package has the mean cosines that were recorded of the last snapshot."""
    off = float(np.max(np.abs(m.again.mean(axis=0) - np.array(m.training["snapshots"][-1]["cosine"]))))
    return Found(f"largest difference of the mean cosines of its levels from the record: {off:.1e}", off < SAME, off)


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    report, (layer, head) = m.report, m.head
    return (
        f"The language model of this package along its training: {report['recipe']['layers']} causal layers, "
        f"{report['parameters'] / 1e6:.2f} million parameters, {report['steps']} steps on film reviews and a little of "
        f"Wikipedia, {report['seconds'] / 60:.0f} minutes on two cores. (a) The loss on held-out texts; by the word "
        "before: bigrams with Kneser-Ney smoothing. (b) The mean cosine of the tokens after the last layer, over "
        f"{len(m.articles)} passages that the model has not seen, beside the same words in random order; at step 0 the "
        f"weights are random; crosses: {len(m.starts.each)} random starts. (c) The weight beyond uniform attention "
        f"that each head gives the first token; the strongest at the end is head {head + 1} of layer {layer + 1}. (d) "
        "The loss of the head of the model at each level (logit lens), a line for each snapshot; at level 0 a tied "
        "head repeats the word that it reads. Standard errors over passages. The training texts begin anywhere; "
        "sink-training compares such models with others."
    )


def series(m: Results) -> dict:
    # The loss was recorded at every epoch, and the other statistics at the snapshots.
    history = m.training["history"]
    return {
        "step": m.steps, "strongest_sink": m.sink, "strongest_sink_error": m.sink_error,
        "step_by_epoch": [row["step"] for row in history],
        "held_out_loss_by_epoch": [row["held-out loss"] for row in history],
        **{f"last layer, {name}": values for name, values in m.last.items()},
        "cosine_by_start": m.starts.each, "strongest_sink_by_start": m.before,
    }  # fmt: skip


def draw(m: Results) -> Figure:
    baselines = {"bigram loss": ("by the word before", "--"), "unigram loss": ("by frequency", ":")}
    losses = lambda ax, m: loss_panel(ax, m.training, baselines)
    cosine = lambda ax, m: cosine_panel(ax, m.steps, m.last, m.starts.each[:, -1])
    shown = panels(m, (losses, cosine, _sinks, _lens), columns=2, height=4.6)
    for ax in shown.get_axes()[:3]:
        ax.xaxis.set_major_locator(MaxNLocator(nbins=5))
    return shown


def _sinks(ax: Axes, m: Results) -> None:
    sinks = np.array([snapshot["sink"] for snapshot in m.training["snapshots"]])
    for layer, layer_sinks in enumerate(np.moveaxis(sinks, 1, 0)):
        lines = ax.plot(m.steps, layer_sinks, color=OKABE_ITO[layer % len(OKABE_ITO)], lw=0.9)
        lines[0].set_label(f"layer {layer + 1}")  # the heads of a layer share a colour
    ax.axhline(0, color="0.5", lw=0.6)
    ax.set(xlabel="training step", ylabel="weight on the first token\nbeyond uniform")
    ax.legend(fontsize=6)


def _lens(ax: Axes, m: Results) -> None:
    snapshots = m.training["snapshots"]
    for k, snapshot in enumerate(snapshots):
        colour = colormaps["viridis"](k / len(snapshots))
        ax.errorbar(np.arange(len(snapshot["loss"])), snapshot["loss"], snapshot["loss error"], color=colour,
                    lw=1.0, marker="o", ms=2.5, label=str(snapshot["step"]))  # fmt: skip
    ax.set(xlabel="level", ylabel="loss of the logit lens (nats)", yscale="log")
    # By default a logarithmic axis over less than a decade has a single labelled tick.
    ax.set_yticks([4, 5, 6, 8, 10, 15, 20], labels=["4", "5", "6", "8", "10", "15", "20"])
    ax.minorticks_off()
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(title="step", fontsize=5, title_fontsize=6, ncols=2)


def on(m: Results) -> Measured:
    millions, recipe = m.report["parameters"] / 1e6, m.report["recipe"]
    words = f"the causal language model of this package, whose training texts begin anywhere, {millions:.2g} million "
    size = {"texts": len(m.articles), "tokens": recipe["length"], "layers": recipe["layers"], "seeds": len(m.before)}
    return Measured(Subject(NETWORK, f"{words}parameters"), TEXTS, size)


FIGURE = figure(
    __name__,
    over=lambda m: (
        f"passages, as on record; of the difference from random starts over {articles_words(m.articles)} and networks"
    ),
    recorded=lambda m: {
        "recipe": m.report["recipe"], "texts": m.report["texts"], "starts": len(m.articles),
        "solver": "none: layers in float32",
    },
)  # fmt: skip
