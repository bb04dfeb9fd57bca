"""What is measured of sinks along training: small models of two kinds, trained with a token that begins each text and
without it, and each read with that token and without it.

Each kind is trained from several seeds, by the loop of `clusterjax train language-model`. At each snapshot, the first
of which is of random weights, the weight that each head gives the first token beyond uniform attention is measured on
texts that no model was trained on, and how long the first token is beside the others. Errors are over trainings.

Source: whether sinks come with training, Gu et al., *When attention sink emerges in language models* (2410.10781).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ... import probe, transformer
from ...plot import OKABE_ITO, style, time_series
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, plus_minus
from ..framework.figure import declared
from ..framework.verdict import Measured, Subject
from ..shared.controls import Few, keys_of, seed_of
from ..shared.layout import WIDTH
from ..shared.small_models import LENGTH, Corpus, Snapshot, corpus_of, parameters_of, rows_of, train_small


SEEN = 20_000
SNAPSHOTS = 5
KINDS = (False, True)  # whether a token begins each text


@dataclass(frozen=True)
class Parameters:
    """What of the figure can be set."""

    trainings: int = parameter(3, "the number of trainings of each kind", least=2, most=32, quick=2)
    steps: int = parameter(1200, "the steps of each training", least=16, most=100_000, quick=64)
    d: int = parameter(128, "the dimension of the stream, for four heads", least=8, most=1024, quick=16)
    layers: int = parameter(3, "the number of layers", least=1, most=32, quick=2)
    texts: int = parameter(48, "the number of texts that are measured", least=4, most=1000, quick=16)
    sink: float = parameter(
        0.05, "the weight beyond uniform attention from which a head counts as a sink", above=0, most=1
    )
    times: float = parameter(2.0, "how many times as long as the others the first token is where it is long", above=1)


@dataclass(frozen=True, eq=False)
class Seen:
    """Models of one kind, read in one way: a mean over texts for each training and snapshot.

    **Attributes:**

    - `excess`: The weight that each head gives the first token beyond uniform attention, (trainings, snapshots, layers,
        heads).
    - `ratio`: The length of the first token over the median of the others, at the level where it is largest, the last
        norm left out, (trainings, snapshots).
    - `of_texts`: The standard error over texts of the largest of `excess`, (trainings, snapshots).
    """

    excess: np.ndarray
    ratio: np.ndarray
    of_texts: np.ndarray

    @property
    def strongest(self) -> np.ndarray:
        """The largest of each model, (trainings, snapshots)."""
        return self.excess.max(axis=(2, 3))


@dataclass(frozen=True, eq=False)
class Results:
    """All that the figure shows.

    **Attributes:**

    - `corpus`: What was read.
    - `steps`: The step of each snapshot, (snapshots,), the first 0.
    - `seen`: By whether the models were trained with the token, and whether they read it.
    - `loss`: By whether the models were trained with the token, the loss of the same words, in nats, each kind read as
        it was trained, (trainings, texts).
    - `baseline`, `exact`: What uniform attention gives the first token, as `probe.position_heads` has it, and by
        harmonic numbers.
    - `parameters`: Of one model.
    """

    p: Parameters
    corpus: Corpus
    steps: np.ndarray
    seen: dict[tuple[bool, bool], Seen]
    loss: dict[bool, np.ndarray]
    baseline: float
    exact: float
    parameters: int

    def last(self, trained: bool, read: bool) -> Few:
        """The strongest head after training, over trainings."""
        return Few.of(self.seen[trained, read].strongest[:, -1])


def recipe_of(p: Parameters, begin: bool) -> transformer.LanguageRecipe:
    """How a model of one kind is trained: the same but for the token."""
    return transformer.LanguageRecipe(
        d=p.d, heads=4, hidden=4 * p.d, layers=p.layers, length=LENGTH, steps=p.steps,
        epoch_steps=max(1, p.steps // 16),
        warm_up=p.steps // 10, begin=begin,
    )  # fmt: skip


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Train the models and read the texts with each snapshot."""
    corpus = corpus_of(settings, min(SEEN, 20 * p.steps), p.texts)
    texts = {begin: _whole(corpus.scored.texts, begin) for begin in KINDS}
    raw: dict[tuple[bool, bool], list[list[Any]]] = {(trained, read): [] for trained in KINDS for read in KINDS}
    losses: dict[bool, list[np.ndarray]] = {begin: [] for begin in KINDS}
    steps, last = [], None
    for place, key in enumerate(keys_of(settings.seed, p.trainings)):
        for begin in KINDS:
            say(
                f"training {place + 1} of {p.trainings}, {'with' if begin else 'without'} a token that begins each text"
            )
            snapshots = train_small(corpus.seen, recipe_of(p, begin), seed=seed_of(key), snapshots=SNAPSHOTS)
            steps, last = [one.step for one in snapshots], snapshots[-1].model
            for read in KINDS:
                raw[begin, read].append([_read(one, texts[read]) for one in snapshots])
            losses[begin].append(_losses(snapshots[-1], texts[begin], begin))
    assert last is not None  # both kinds are trained at least once
    heads = probe.position_heads(probe.from_language_model(last), texts[True])
    harmonic = np.sum(1 / np.arange(1, LENGTH + 1))
    return Results(
        p, corpus, np.array(steps), {kind: _seen(rows) for kind, rows in raw.items()},
        {begin: np.stack(rows) for begin, rows in losses.items()}, float(heads.baseline["first"].mean[0, 0]),
        float((harmonic - 1) / (LENGTH - 1)), parameters_of(last),
    )  # fmt: skip


def _whole(texts: list[str], begin: bool) -> probe.Encoded:
    """The texts that fill a row, with the token before them or not: the same ones for both kinds."""
    long = rows_of(texts, LENGTH)[1].all(axis=1)
    return probe.Encoded(*(part[long] for part in rows_of(texts, LENGTH, begin=begin)))


def _read(snapshot: Snapshot, texts: probe.Encoded) -> tuple[np.ndarray, float, float]:
    """The excess of each head, the largest ratio of lengths, and the error over texts of the strongest head."""
    model = probe.from_language_model(snapshot.model)
    many = len(texts.mask)
    heads = probe.position_heads(model, texts, batch_size=many)
    excess = heads.excess["first"]
    # The last level is that after the last norm, where all tokens have about one length.
    ratio = probe.first_token(model, texts, batch_size=many).ratio.mean[:-1]
    return excess.mean, float(ratio.max()), float(excess.error[heads.strongest("first")])


def _losses(snapshot: Snapshot, texts: probe.Encoded, begin: bool) -> np.ndarray:
    """The mean loss of each text over words that both kinds guess from words before them, (texts,)."""
    found = probe.token_losses(probe.from_language_model(snapshot.model), texts, batch_size=len(texts.mask))
    # Column i is of token i + 1: with [CLS] first that is word i, without it word i + 1. Words 1 to LENGTH - 2 are
    # guessed by both from all words before them.
    return (found[:, 1:] if begin else found[:, :-1]).mean(axis=1)


def _seen(rows: list[list[Any]]) -> Seen:
    excess, ratio, of_texts = ([[one[k] for one in snapshots] for snapshots in rows] for k in range(3))
    return Seen(np.array(excess), np.array(ratio), np.array(of_texts))


# What the figure of sinks along training claims: whether they come, with which texts, and what they change.


SAME = 1e-5  # of a weight, by which float32 may move it
CHEAP = 0.05  # nats a token: what the token may change of the loss
SURELY = "by two standard errors, or as many as are as improbable with few trainings"


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure."""
    claims = (
        _comes(m), _not_without(m), _of_the_token(m), _first_word(m), _unread(m), _not_before(m), _length(m), _loss(m),
        _baseline(m),
    )  # fmt: skip
    return over(f"{m.p.trainings} trainings", claims)


def _pair(m: Results, trained: bool, read: bool) -> str:
    """The strongest head after training and before it, in words."""
    before = Few.of(m.seen[trained, read].strongest[:, 0])
    return f"{m.last(trained, read).words()} after training, {before.words()} with random weights"


def _comes(m: Results) -> Claim:
    last = m.last(True, True)
    of_texts = m.seen[True, True].of_texts[:, -1].max()
    return Claim(
        says="Trained on texts that all begin with one token, a head becomes a sink of that token.",
        measured=f"weight beyond uniform attention of the strongest head: {_pair(m, True, True)} (error over texts at "
        f"most {of_texts:.3f})",
        criterion=f"above {m.p.sink:g} {SURELY}",
        holds=last.above(m.p.sink),
        kind="finding",
        value=last.mean,
        error=last.error,
    )


def _not_without(m: Results) -> Claim:
    last = m.last(False, False)
    return Claim(
        says="Trained on texts that begin anywhere, the strongest head of these models is no sink of the first token.",
        measured=f"weight beyond uniform attention of the strongest head: {_pair(m, False, False)}, at most "
        f"{last.each.max():.3f}",
        criterion=f"below {m.p.sink:g} {SURELY}",
        holds=last.below(m.p.sink),
        kind="finding",
        value=last.mean,
        error=last.error,
    )


def _of_the_token(m: Results) -> Claim:
    with_it, without = m.seen[True, True].strongest[:, -1], m.seen[True, False].strongest[:, -1]
    difference = Few.of(with_it - without)
    return Claim(
        says="Models trained with the token give it most: without it the same models give the first word less.",
        measured=f"the strongest head of models trained with the token gives the first place "
        f"{m.last(True, True).words()} "
        f"with it and {m.last(True, False).words()} without it, {difference.words()} more",
        criterion=f"the difference is above zero {SURELY}",
        holds=difference.above(0.0),
        kind="finding",
        value=difference.mean,
        error=difference.error,
    )


def _first_word(m: Results) -> Claim:
    last = m.last(True, False)
    return Claim(
        says="Trained with the token and read without it, a head is a sink of the first word.",
        measured=f"weight beyond uniform attention of the strongest head: {_pair(m, True, False)}",
        criterion=f"above {m.p.sink:g} {SURELY}",
        holds=last.above(m.p.sink),
        kind="finding",
        value=last.mean,
        error=last.error,
    )


def _unread(m: Results) -> Claim:
    last = m.last(False, True)
    return Claim(
        says="Models that never read the token have a head that is a sink of it when it is put before a text.",
        measured=f"the strongest head of models trained without it: {_pair(m, False, True)}; texts without it "
        f"{m.last(False, False).words()}",
        criterion=f"above {m.p.sink:g} {SURELY}",
        holds=last.above(m.p.sink),
        kind="finding",
        value=last.mean,
        error=last.error,
    )


def _not_before(m: Results) -> Claim:
    strongest = max(float(seen.strongest[:, 0].max()) for seen in m.seen.values())
    return Claim(
        says="Random weights have no sink in these models.",
        measured=f"the strongest head of all {2 * m.p.trainings} has {strongest:.4f} beyond uniform attention, "
        "whichever way they read",
        criterion=f"less than a tenth of {m.p.sink:g}",
        holds=strongest < m.p.sink / 10,
        kind="finding",
        value=strongest,
    )


def _length(m: Results) -> Claim:
    begun, plain = (Few.of(m.seen[kind, kind].ratio[:, -1]) for kind in (True, False))
    return Claim(
        says=f"The token that begins every text becomes more than {m.p.times:g} times as long as the others.",
        measured=f"its length over the median of the others {begun.words(2)} where it is largest; of the first word of "
        f"models trained without the token {plain.words(2)}; with random weights "
        f"{Few.of(m.seen[True, True].ratio[:, 0]).words(2)} and {Few.of(m.seen[False, False].ratio[:, 0]).words(2)}",
        criterion=f"above {m.p.times:g} {SURELY}",
        holds=begun.above(m.p.times),
        kind="finding",
        value=begun.mean,
        error=begun.error,
    )


def loss_change(m: Results) -> Few:
    """By how much the token changes the loss of the same words, for each pair of trainings."""
    return Few.of(m.loss[True].mean(axis=1) - m.loss[False].mean(axis=1))


def _loss(m: Results) -> Claim:
    change = loss_change(m)
    of_texts = (m.loss[True] - m.loss[False]).mean(axis=0)
    return Claim(
        says=f"The token hardly changes what the models learn: the loss of other words by less than {CHEAP:g} nats.",
        measured=f"loss of the same words {Few.of(m.loss[True].mean(axis=1)).words()} nats with the token and "
        f"{Few.of(m.loss[False].mean(axis=1)).words()} without it; difference {change.words()} (error over texts "
        f"{of_texts.std(ddof=1) / np.sqrt(len(of_texts)):.3f})",
        criterion=f"the difference is above {-CHEAP:g} and below {CHEAP:g} nats, both {SURELY}",
        holds=change.above(-CHEAP) and change.below(CHEAP),
        kind="finding",
        value=change.mean,
        error=change.error,
    )


def _baseline(m: Results) -> Claim:
    off = abs(m.baseline - m.exact)
    return Claim(
        says="Uniform causal attention gives the first token (H_n - 1) / (n - 1).",
        measured=f"{m.baseline:.6f}, by harmonic numbers {m.exact:.6f}",
        criterion=f"the same to {SAME:g}",
        holds=off < SAME,
        kind="identity",
        value=off,
    )


def caption_of(m: Results) -> str:
    """What is seen, and what it is worth."""
    begun, plain = m.last(True, True), m.last(False, False)
    come = "a sink comes" if begun.above(m.p.sink) else "hardly any comes"
    without = "none does" if plain.below(m.p.sink) else "one may"
    word = m.last(True, False)
    return (
        f"Two kinds of small causal models ({m.p.layers} layers, d = {m.p.d}, {m.parameters:,} parameters), trained "
        "for "
        f"{m.p.steps} steps on {m.corpus.data.words}: with a token that begins each text, and without it; "
        f"{m.p.trainings} trainings of each, whose standard errors are shown. At step 0 the weights are random. (a) "
        "The "
        "weight beyond uniform causal attention that the strongest head gives the first token, when models read texts "
        "with the token and without it. (b) The same, mean over heads. (c) The length of the first token over the "
        "median of the others, at the level where it is largest. (d) Each head after training. With the token "
        f"{come} ({plus_minus(begun.mean, begun.error)}), without it {without} "
        f"({plus_minus(plain.mean, plain.error)}); where models trained with the token read texts without it, they "
        "give the "
        f"first word {plus_minus(word.mean, word.error)}. This says nothing of networks of other sizes, or trained "
        "for longer."
    )


# The panels of sinks along training: the strongest head, the mean of all, the length of the first token, each head.


# By whether the models were trained with the token, and whether they read it.
LOOKS = {
    (True, True): (OKABE_ITO[5], "-", "trained with it, read with it"),
    (True, False): (OKABE_ITO[1], "--", "trained with it, read without"),
    (False, True): (OKABE_ITO[2], "-.", "trained without, read with it"),
    (False, False): (OKABE_ITO[0], ":", "trained without, read without"),
}


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 4.8), layout="constrained")
    (strongest, mean), (length, heads) = figure.subplots(2, 2)
    _curves(strongest, m, lambda seen: seen.strongest, "strongest head: weight on the\nfirst token beyond uniform")
    _curves(mean, m, lambda seen: seen.excess.mean(axis=(2, 3)), "all heads: weight on the\nfirst token beyond uniform")
    _curves(length, m, lambda seen: seen.ratio, "length of the first token\nover that of the others")
    _heads(heads, m)
    strongest.axhline(m.p.sink, color="0.6", lw=0.7, ls=(0, (1, 2)))
    for ax in (strongest, mean, length):
        ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        if ax.get_legend() is not None:
            ax.get_legend().remove()
    length.axhline(1, color="0.6", lw=0.6, zorder=0)
    figure.legend(*strongest.get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=6,
                  title="the token that begins a text", title_fontsize=6)  # fmt: skip
    for letter, ax in zip("abcd", (strongest, mean, length, heads), strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _curves(ax: Axes, m: Results, pick, ylabel: str) -> None:
    for kind, (colour, line, label) in LOOKS.items():
        values = pick(m.seen[kind])
        time_series(m.steps, values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values)), ax, colour=colour,
                    linestyle=line, label=label, xlabel="training step", ylabel=ylabel)  # fmt: skip
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)


def _heads(ax: Axes, m: Results) -> None:
    """One point for each head and training, over its layer; the two kinds side by side, each read as it was trained."""
    rng = np.random.default_rng(0)
    for kind, marker in zip(KINDS, ("x", "o"), strict=True):
        last = m.seen[kind, kind].excess[:, -1]
        layers = np.broadcast_to(np.arange(1, m.p.layers + 1)[None, :, None], last.shape)
        # A little to the side, so that heads of one weight are seen apart.
        aside = (0.12 if kind else -0.12) + 0.05 * rng.uniform(-1, 1, last.shape)
        ax.plot((layers + aside).ravel(), last.ravel(), marker, color=LOOKS[kind, kind][0], ms=3, mfc="none")
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)
    ax.axhline(m.p.sink, color="0.6", lw=0.7, ls=(0, (1, 2)))
    ax.set_xticks(range(1, m.p.layers + 1))
    ax.set(xlabel="layer", ylabel="each head after training:\nweight beyond uniform", xlim=(0.5, m.p.layers + 0.5))


# Sinks along training as an experiment: what is measured, claimed, recorded and drawn.


NETWORK = Subject("small-causal-models", "small causal language models, trained here")
NAMES = {False: "without", True: "with"}


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    recipe = recipe_of(m.p, True)
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"starts": settings.starts, "texts": m.corpus.data.words, "trainings": m.p.trainings, "steps": m.p.steps,
         "batch size": recipe.batch_size, "learning rate": recipe.learning_rate, "tokens": LENGTH,
         "solver": "none: layers in float32"},
        _series(m),
        partial(draw, m),
        None,
        on=Measured(NETWORK, m.corpus.data, {
            "texts": m.loss[True].shape[1], "tokens": LENGTH, "layers": m.p.layers, "d": m.p.d, "steps": m.p.steps,
            "seeds": m.p.trainings,
        }),
    )  # fmt: skip


def _series(m: Results) -> dict:
    series = {"step": m.steps}
    for trained in KINDS:
        for read in KINDS:
            words, seen = f"trained {NAMES[trained]}, read {NAMES[read]}", m.seen[trained, read]
            # (snapshots, trainings): a row for each step.
            series |= {f"strongest head, {words}": seen.strongest.T, f"longest first token, {words}": seen.ratio.T}
            series[f"heads, {words}"] = seen.excess.mean(axis=0)
        series[f"loss_by_training, trained {NAMES[trained]}"] = m.loss[trained].mean(axis=1)
    return series


FIGURE = declared("sink-training", _run, parameters=Parameters)
