"""Do attention sinks come with training? Small causal models, trained with and without a token that begins each text.

Each kind is trained from several seeds by the loop of `clusterjax train language-model`, and reads texts that no model
was trained on, with the token and without it. At each snapshot, the first of which has random weights, the figure shows
the weight beyond uniform attention that each head gives the first token, and the ratio of the norm of the first token
to the others. Errors are over trainings.

Source: Gu et al., *When attention sink emerges in language models* (2410.10781).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ... import probe, transformer
from ...plot import OKABE_ITO, style, time_series
from ..framework.figure import Claim, ClaimOf, Found, Measured, Say, Settings, Subject, claim, figure, parameter, unmet
from ..shared.controls import Few, keys_of, seed_of
from ..shared.ensemble import mean_and_error
from ..shared.layout import one_legend, panels
from ..shared.networks import rows_of
from ..shared.small_models import LENGTH, Corpus, Snapshot, corpus_of, parameters_of, train_small


SEEN = 20_000
SNAPSHOTS = 5
NAMES = {False: "without", True: "with"}  # whether a token begins each text
SAME = 1e-5  # the rounding error of a weight in float32
CHEAP = 0.05  # the change of the loss, in nats per token, that counts as small
SURELY = "by two standard errors, or, with few trainings, by as many as are as improbable"
NETWORK = Subject("small-causal-models", "small causal language models, trained here")
# The look of each pair: trained with the token, and read with the token.
LOOKS = {
    (True, True): (OKABE_ITO[5], "-", "trained with it, read with it"),
    (True, False): (OKABE_ITO[1], "--", "trained with it, read without"),
    (False, True): (OKABE_ITO[2], "-.", "trained without, read with it"),
    (False, False): (OKABE_ITO[0], ":", "trained without, read without"),
}


@dataclass(frozen=True)
class Parameters:
    trainings: int = parameter(3, "the number of trainings of each kind", least=2, most=32, quick=2)
    steps: int = parameter(1200, "the number of steps of each training", least=16, most=100_000, quick=64)
    d: int = parameter(128, "the dimension of the stream of four heads", least=8, most=1024, quick=16)
    layers: int = parameter(3, "the number of layers", least=1, most=32, quick=2)
    texts: int = parameter(48, "the number of texts that are measured", least=4, most=1000, quick=16)
    sink: float = parameter(0.05, "the least weight of a sink beyond uniform attention", above=0, most=1)
    times: float = parameter(2.0, "the ratio of norms above which the first token counts as large", above=1)


class Reading(NamedTuple):
    """Models of one kind, read in one way; means over texts for each training and snapshot."""

    # The weight beyond uniform attention that each head gives the first token, (trainings, snapshots, layers, heads)
    excess: np.ndarray
    # The norm of the first token over the median norm of the others, at the level where this ratio is largest, without
    # the level after the last norm, (trainings, snapshots)
    ratio: np.ndarray
    text_error: np.ndarray  # the standard error over texts of the largest `excess`, (trainings, snapshots)

    @property
    def strongest(self) -> np.ndarray:
        return self.excess.max(axis=(2, 3))


class Results(NamedTuple):
    p: Parameters
    corpus: Corpus
    steps: np.ndarray  # the step of each snapshot, (snapshots,), the first 0
    readings: dict[tuple[bool, bool], Reading]  # by the pair (trained with the token, read with the token)
    # By training with the token, the loss of the same words in nats, each kind read as it was trained, (trainings,
    # texts)
    loss: dict[bool, np.ndarray]
    # `baseline`, `exact`: the mean weight of the first token in uniform attention, by `probe.position_heads` and by
    # harmonic numbers
    baseline: float
    exact: float
    parameters: int  # the number of parameters of one model

    def strongest(self, trained: bool, read: bool, snapshot: int = -1) -> Few:
        return Few.of(self.readings[trained, read].strongest[:, snapshot])


def recipe_of(p: Parameters, begin: bool) -> transformer.LanguageRecipe:
    return transformer.LanguageRecipe(
        d=p.d, heads=4, hidden=4 * p.d, layers=p.layers, length=LENGTH, steps=p.steps,
        epoch_steps=max(1, p.steps // 16), warm_up=p.steps // 10, begin=begin,
    )  # fmt: skip


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    corpus = corpus_of(settings, min(SEEN, 20 * p.steps), p.texts)
    texts = {begin: _whole(corpus.scored.texts, begin) for begin in NAMES}
    raw: dict[tuple[bool, bool], list[list[Any]]] = {kind: [] for kind in LOOKS}
    losses: dict[bool, list[np.ndarray]] = {begin: [] for begin in NAMES}
    snapshots = []
    for number, key in enumerate(keys_of(settings.seed, p.trainings), 1):
        for begin, name in NAMES.items():
            say(f"training {number} of {p.trainings}, {name} a token that begins each text")
            snapshots = train_small(corpus.training, recipe_of(p, begin), seed=seed_of(key), snapshots=SNAPSHOTS)
            for read in NAMES:
                raw[begin, read].append([_read(snapshot, texts[read]) for snapshot in snapshots])
            losses[begin].append(_losses(snapshots[-1], texts[begin], begin))
    model = snapshots[-1].model
    heads = probe.position_heads(probe.from_language_model(model), texts[True])
    exact = float((np.sum(1 / np.arange(1, LENGTH + 1)) - 1) / (LENGTH - 1))
    part = lambda rows, k: np.array([[snapshot[k] for snapshot in rows_of_training] for rows_of_training in rows])
    return Results(
        p, corpus, np.array([snapshot.step for snapshot in snapshots]),
        {kind: Reading(part(rows, 0), part(rows, 1), part(rows, 2)) for kind, rows in raw.items()},
        {begin: np.stack(rows) for begin, rows in losses.items()}, float(heads.baseline["first"].mean[0, 0]), exact,
        parameters_of(model),
    )  # fmt: skip


def _whole(texts: list[str], begin: bool) -> probe.Encoded:
    """The texts that fill a row, the same for both kinds, with or without the token before them."""
    long = rows_of(texts, LENGTH)[1].all(axis=1)
    return probe.Encoded(*(part[long] for part in rows_of(texts, LENGTH, begin=begin)))


def _read(snapshot: Snapshot, texts: probe.Encoded) -> tuple[np.ndarray, float, float]:
    """The excess of each head, the largest ratio of norms, and the error over texts of the strongest head."""
    model = probe.from_language_model(snapshot.model)
    num_texts = len(texts.mask)
    heads = probe.position_heads(model, texts, batch_size=num_texts)
    excess = heads.excess["first"]
    # All tokens have about the same norm at the last level, which is after the last norm.
    ratio = probe.first_token(model, texts, batch_size=num_texts).ratio.mean[:-1]
    return excess.mean, float(ratio.max()), float(excess.error[heads.strongest("first")])


def _losses(snapshot: Snapshot, texts: probe.Encoded, begin: bool) -> np.ndarray:
    """The mean loss of each text over the words that both kinds predict from earlier words, (texts,)."""
    losses = probe.token_losses(probe.from_language_model(snapshot.model), texts, batch_size=len(texts.mask))
    # Column i belongs to token i + 1, which is word i with [CLS] first and word i + 1 without it. Both kinds predict
    # words 1 to LENGTH - 2 from all words before.
    return (losses[:, 1:] if begin else losses[:, :-1]).mean(axis=1)


def strongest(trained: bool, read: bool, says: str, *, sink: bool = True) -> ClaimOf:
    @claim(f"{'above' if sink else 'below'} {{p.sink:g}} {SURELY}", says=says)
    def strongest_head(m: Results) -> Found:
        last, text_error = m.strongest(trained, read), m.readings[trained, read].text_error[:, -1].max()
        return Found(
            f"weight beyond uniform attention of the strongest head: {last.words()} after training (largest "
            f"{last.each.max():.3f}; error over texts at most {text_error:.3f}), "
            f"{m.strongest(trained, read, 0).words()} with random weights",
            last.above(m.p.sink) if sink else last.below(m.p.sink), last.mean, last.error,
        )  # fmt: skip

    return strongest_head


@claim(f"the difference is above zero {SURELY}")
def of_the_token(m: Results) -> Found:
    """Without the token the models that were trained with it give the first word less weight."""
    difference = Few.of(m.readings[True, True].strongest[:, -1] - m.readings[True, False].strongest[:, -1])
    return Found(
        "weight that the strongest head of models trained with the token gives the first position: "
        f"{m.strongest(True, True).words()} with it, {m.strongest(True, False).words()} without it, difference "
        f"{difference.words()}",
        difference.above(0.0), difference.mean, difference.error,
    )  # fmt: skip


@claim("less than a tenth of {p.sink:g}")
def not_before(m: Results) -> Found:
    """Random weights have no sink in these models."""
    largest = max(float(reading.strongest[:, 0].max()) for reading in m.readings.values())
    return Found(
        f"the strongest head of all {2 * m.p.trainings} models has {largest:.4f} beyond uniform attention, over both "
        "ways to read",
        largest < m.p.sink / 10, largest,
    )  # fmt: skip


@claim(f"above {{p.times:g}} {SURELY}")
def norm(m: Results) -> Found:
    """The norm of the token that begins every text grows to more than {p.times:g} times the median of the others."""
    ratio = lambda kind, snapshot: Few.of(m.readings[kind, kind].ratio[:, snapshot])
    begun = ratio(True, -1)
    return Found(
        f"norm of the token over the median of the others, where it is largest: {begun.words(2)}; for the first word "
        f"of models trained without the token {ratio(False, -1).words(2)}; with random weights "
        f"{ratio(True, 0).words(2)} and {ratio(False, 0).words(2)}",
        begun.above(m.p.times), begun.mean, begun.error,
    )  # fmt: skip


@claim(f"the difference is above {-CHEAP:g} and below {CHEAP:g} nats, both {SURELY}")
def loss(m: Results) -> Found:
    """The token hardly changes the loss of the other words: by less than {CHEAP:g} nats."""
    with_it, without = m.loss[True].mean(axis=1), m.loss[False].mean(axis=1)
    change = Few.of(with_it - without)
    text_error = float(mean_and_error((m.loss[True] - m.loss[False]).mean(axis=0))[1])
    return Found(
        f"loss of the same words {Few.of(with_it).words()} nats with the token and {Few.of(without).words()} without "
        f"it; difference {change.words()} (error over texts {text_error:.3f})",
        change.above(-CHEAP) and change.below(CHEAP), change.mean, change.error,
    )  # fmt: skip


@claim(f"the same to {SAME:g}", kind="identity")
def baseline(m: Results) -> Found:
    """Uniform causal attention gives the first token the mean weight (H_n - 1) / (n - 1)."""
    off = abs(m.baseline - m.exact)
    return Found(f"{m.baseline:.6f}, by harmonic numbers {m.exact:.6f}", off < SAME, off)


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"Two kinds of small causal models ({m.p.layers} layers, d = {m.p.d}, {m.parameters:,} parameters), trained "
        f"for {m.p.steps} steps on {m.corpus.data.words}: with a token that begins each text, and without it; "
        f"{m.p.trainings} trainings of each, with standard errors over trainings. At step 0 the weights are random. "
        "(a) The weight beyond uniform causal attention that the strongest head gives the first token, in texts with "
        "the token and without it. (b) The mean of this weight over heads. (c) The norm of the first token over the "
        "median norm of the others, at the level where it is largest. (d) Each head after training, each kind read as "
        f"it was trained. The strongest head gives the token {m.strongest(True, True).words()} beyond uniform "
        f"attention, and the first word of texts without it {m.strongest(False, False).words()}. Networks of other "
        f"sizes or of longer training may differ. {unmet(claims)}"
    )


def series(m: Results) -> dict:
    table = {"step": m.steps}
    for (trained, read), reading in m.readings.items():
        words = f"trained {NAMES[trained]}, read {NAMES[read]}"
        # The steps are the first axis.
        table |= {
            f"strongest head, {words}": reading.strongest.T, f"longest first token, {words}": reading.ratio.T,
            f"heads, {words}": reading.excess.mean(axis=0),
        }  # fmt: skip
    return table | {f"loss_by_training, trained {name}": m.loss[kind].mean(axis=1) for kind, name in NAMES.items()}


@style()
def draw(m: Results) -> Figure:
    def curves(
        pick: Callable[[Reading], np.ndarray], ylabel: str, level: float | None
    ) -> Callable[[Axes, Results], None]:
        def fill(ax: Axes, m: Results) -> None:
            for kind, (colour, line, label) in LOOKS.items():
                time_series(m.steps, *mean_and_error(pick(m.readings[kind])), ax, colour=colour, linestyle=line,
                            label=label, xlabel="training step", ylabel=ylabel)  # fmt: skip
            ax.axhline(0, color="0.6", lw=0.6, zorder=0)
            if level is not None:
                ax.axhline(level, color="0.6", lw=0.7, ls=(0, (1, 2)))
            ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))

        return fill

    weight = "weight on the\nfirst token beyond uniform"
    strongest = curves(lambda reading: reading.strongest, f"strongest head: {weight}", m.p.sink)
    mean = curves(lambda reading: reading.excess.mean(axis=(2, 3)), f"all heads: {weight}", None)
    ratio = curves(lambda reading: reading.ratio, "norm of the first token over\nthe median of the others", 1.0)
    shown = panels(m, (strongest, mean, ratio, _heads), columns=2, height=4.8)
    one_legend(shown, shown.get_axes(), loc="outside upper center", ncols=2, fontsize=6, title_fontsize=6,
               title="the token that begins a text")  # fmt: skip
    return shown


def _heads(ax: Axes, m: Results) -> None:
    """A point for each head and training at its layer; the two kinds side by side, each read as it was trained."""
    rng = np.random.default_rng(0)
    for kind, marker in zip(NAMES, ("x", "o"), strict=True):
        last = m.readings[kind, kind].excess[:, -1]
        layers = np.broadcast_to(np.arange(1, m.p.layers + 1)[None, :, None], last.shape)
        # Small horizontal shifts separate the heads of equal weight.
        aside = (0.12 if kind else -0.12) + 0.05 * rng.uniform(-1, 1, last.shape)
        ax.plot((layers + aside).ravel(), last.ravel(), marker, color=LOOKS[kind, kind][0], ms=3, mfc="none")
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)
    ax.axhline(m.p.sink, color="0.6", lw=0.7, ls=(0, (1, 2)))
    ax.set_xticks(range(1, m.p.layers + 1))
    ax.set(xlabel="layer", ylabel="each head after training:\nweight beyond uniform", xlim=(0.5, m.p.layers + 0.5))


FIGURE = figure(
    __name__,
    claims=(
        strongest(True, True, "If all texts in training begin with one token, a head becomes a sink of that token."),
        strongest(
            False, False,
            "If texts in training begin at any word, the strongest head is no sink of the first token.",
            sink=False,
        ),
        of_the_token,
        strongest(True, False, "Models trained with the token and read without it have a sink of the first word."),
        strongest(False, True, "Models that never read the token in training have a sink of it when it begins a text."),
        not_before, norm, loss, baseline,
    ),
    over=lambda m: f"{m.p.trainings} trainings",
    on=lambda m: Measured(NETWORK, m.corpus.data, {
        "texts": m.loss[True].shape[1], "tokens": LENGTH, "layers": m.p.layers, "d": m.p.d, "steps": m.p.steps,
        "seeds": m.p.trainings,
    }),
    recorded=lambda m: {
        "starts": m.p.trainings, "data": m.corpus.data.words, "tokens": LENGTH,
        "batch size": recipe_of(m.p, True).batch_size, "learning rate": recipe_of(m.p, True).learning_rate,
        "solver": "none: layers in float32",
    },
)  # fmt: skip
