"""How does the first token of a causal network move, and how much loss do attention sinks save?

In causal attention the first token moves independently, and all other tokens attend to it. One pass over the texts
gives all numbers of a network: of the trained network, of the same tokens in random order, and of random weights. The
network is SmolLM2-135M-Instruct (Q4_1) if it is installed. The language model of the package, whose training texts
began at any word, is measured beside it.

Attention sinks are measured by the loss under a sliding window (Xiao et al., *Efficient streaming language models with
attention sinks*, 2309.17453, Sections 3.1 and 3.2). A window w lets token i attend to tokens i - w + 1 to i, and with k
tokens kept also to the first k. The cost of a window is the mean of its loss minus the loss under the full causal mask,
over the positions from w on, where the window leaves out a token. Tokens keep their positions in the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ... import SinkMask, WindowMask, probe
from ...plot import OKABE_ITO
from ...probe.measures.position_heads import _allowed, of_layer, position_heads_of
from ...probe.measures.sinks import OF_FIRST
from ...probe.measures.survey import Average, Clustered, Measure, average_of, clustered_error, survey
from ..framework.figure import Claim, ClaimOf, Found, Say, Settings, claim, figure, parameter, plus_minus
from ..framework.verdict import Measured
from ..shared.causal import ABSENT, NAME, OWN, PASSAGES, SMOLLM2, Reading, reading_of, untrained
from ..shared.controls import Starts, keys_of, starts_of
from ..shared.ensemble import mean_and_error
from ..shared.every_network import AtHand, at_hand
from ..shared.layout import layer_lines, panels
from ..shared.networks import USUAL, articles_of, articles_words, each_text, passages


DRAWS = 3
OWN_NAME = "the language model of the package"
OWN_TOKENS = 64  # the number of tokens of a text in the training of the language model of the package
MARKS, MARK = ".,;:!?", "punctuation"
PLACE_WORDS = {"previous": "the token before", "self": "the token itself", MARK: MARK}
SEVERAL = 4  # the number of texts whose first token is followed alone
LONGEST = 256
KEPT = (0, 1, 4)

SMALL = 0.02  # the change of a mean cosine that counts as small
ALONE = 1e-4  # the relative change of a norm that float32 may cause where sums are taken in another order
SUDDEN = 2.0  # the largest ratio of norms one level before a sudden growth
SAME = 1e-3  # nats: the change of a loss that float32 may cause under a window that leaves nothing out

TRAINED, SHUFFLED, RANDOM, FIRST, USUAL_SHOWN = (OKABE_ITO[k] for k in (0, 1, 2, 5, 3))


@dataclass(frozen=True)
class Parameters:
    draws: int = parameter(DRAWS, "the number of networks of random weights", least=2, most=32, quick=2)
    times: float = parameter(10.0, "the ratio of the norm of the first token to others that counts as large", above=1)
    sink: float = parameter(0.3, "the least weight on a position beyond uniform attention", above=0, most=1)
    width: int = parameter(64, "the number of tokens of the widest window", least=8, most=128)


class Run(NamedTuple):
    first: probe.FirstToken  # the first token against the others
    cosine: Average  # the mean cosine of all pairs, including the first token, (levels,)
    heads: probe.PositionHeads  # the weight that heads give to positions

    @property
    def levels(self) -> int:
        return len(self.cosine.mean)


class Compared(NamedTuple):
    given: AtHand  # the network and its texts
    # `trained`, `shuffled`: the network on the texts, and on their tokens in random order
    trained: Run
    shuffled: Run
    random: tuple[Run, ...]  # networks of random weights, drawn as before training, on the texts
    # Networks of random weights with the spread `USUAL`; none if the network began with its own spread alone
    usual: tuple[Run, ...]

    @property
    def name(self) -> str:
        """The network in a sentence."""
        return self.given.name

    @property
    def late(self) -> int:
        """The last level before the last norm."""
        return self.trained.levels - 2

    @property
    def on(self) -> Measured:
        return self.given.measured(layers=self.trained.levels - 1, seeds=len(self.random))

    def mean_of(self, values: np.ndarray) -> Clustered:
        """The mean of numbers of the texts, and its error over articles."""
        return clustered_error(values, self.given.articles)

    def onset(self, times: float, run: Run | None = None) -> int | None:
        """The first level at which the norm of the first token significantly exceeds `times` times the norm of the
        others, also at the next level; None if there is none."""
        apart = (self.trained if run is None else run).first.apart(times)
        levels = np.flatnonzero(apart[:-1] & apart[1:])
        return int(levels[0]) if levels.size else None


class Windows(NamedTuple):
    """The cost of each window, in nats per token."""

    widths: tuple[int, ...]  # the windows, in increasing order
    loss: Average  # the loss of the full mask over all tokens of a text
    # The cost by width and number of tokens kept, over the texts that are longer than the width
    cost: dict[tuple[int, int], Average]
    articles: dict[int, np.ndarray]  # the article of each text that is longer than a width, by width
    off: float  # the largest difference of a loss from the loss of the full mask where the window leaves nothing out

    @property
    def listed(self) -> str:
        return ", ".join(map(str, self.widths))

    def words(self, kept: int) -> str:
        costs = {width: self.cost[width, kept] for width in self.widths}
        return "; ".join(f"window {width}: {plus_minus(cost.mean, cost.error)}" for width, cost in costs.items())

    def given_back(self, width: int, kept: int, than: int = 0, share: float = 0.0) -> Clustered:
        """The decrease of the cost with `kept` tokens, from `than`, paired by text, less a share of the latter cost."""
        less, more = each_text(self.cost[width, than]), each_text(self.cost[width, kept])
        return clustered_error((1 - share) * less - more, self.articles[width])


class Results(NamedTuple):
    p: Parameters
    reading: Reading | None  # SmolLM2 and its texts; None if it is not installed
    network: Compared  # SmolLM2, or else the language model of the package
    own: Compared  # the language model of the package
    # The cost of windows for SmolLM2; None without SmolLM2 or without texts that are longer than a window
    windows: Windows | None
    alone: float  # the largest relative change of the stream of a first token when all later tokens are removed

    @property
    def onset(self) -> int | None:
        """The level from which the norm of the first token of the network is large."""
        return self.network.onset(self.p.times)


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    # The texts are read first, because texts that do not fit are refused here.
    reading = reading_of(settings, LONGEST)
    own_model, own_texts = probe.load("language-model"), probe.Encoded(*passages(OWN_TOKENS))
    network_at_hand = at_hand("own", OWN, PASSAGES, own_model, own_texts, articles_of(probe.bundled_texts()))
    own = compare(network_at_hand, jr.key(settings.seed), keys_of(settings.seed, p.draws), say)
    if reading is None:
        say(ABSENT)
        return Results(p, None, own, own, None, first_alone(own_model, own_texts))
    say(f"{NAME} reads {len(reading.texts.mask)} texts")
    weights, orders = jr.split(jr.key(settings.seed))
    network_at_hand = at_hand("smollm2", SMOLLM2, reading.data, reading.model, reading.texts, reading.articles)
    draws = [jr.fold_in(weights, draw) for draw in range(p.draws)]
    network = compare(network_at_hand, orders, draws, say, usual=True, store=settings.store)
    windows = windows_of(reading.model, reading.whole, reading.articles, p.width, settings.quick, say)
    alone = first_alone(reading.model, reading.texts)
    return Results(p, reading, network, own, windows if windows.widths else None, alone)


def compare(
    network: AtHand,
    order: PRNGKeyArray,
    weights: Sequence[PRNGKeyArray],
    say: Say,
    *,
    usual: bool = False,
    store: Path | None = None,
) -> Compared:
    """Measures a network and its controls; `order` shuffles the tokens, and each of `weights` draws random weights."""
    model, texts = network.model, network.texts
    words = model.tokenizer.batch_decode([[i] for i in range(model.network.sizes.vocab_size)])
    marks = tuple(i for i, word in enumerate(words) if word.strip() and word.strip() in list(MARKS))

    def run(file: str, model: probe.Model, texts: probe.Encoded) -> Run:
        say(f"measuring {network.name}: {file}")
        return measure_run(model, texts, {MARK: marks}, network.articles, store and store / f"{file}.safetensors")

    shuffled, trained = run("shuffled", model, probe.shuffle_tokens(texts, order)), run("trained", model, texts)
    random = tuple(run(f"random-{k}", untrained(model, key), texts) for k, key in enumerate(weights))
    others = tuple(run(f"usual-{k}", untrained(model, key, USUAL), texts) for k, key in enumerate(weights) if usual)
    return Compared(network, trained, shuffled, random, others)


def measure_run(
    model: probe.Model,
    texts: probe.Encoded,
    separators: dict[str, Sequence[int]],
    articles: np.ndarray,
    store: Path | None = None,
) -> Run:
    """The results of `probe.first_token` and `probe.position_heads` in one pass; errors are over articles."""
    surveyed = survey(
        model, texts, lambda ids, mask: Measure(OF_FIRST, of_layer(ids, mask, separators)),
        keep=(*probe.FirstToken._fields, "mass"), store=store,
        settings={
            "measure": "causal network", "separators": {name: list(entries) for name, entries in separators.items()}
        },
    )  # fmt: skip
    over_articles = lambda statistic: average_of(statistic.values, articles)
    first = probe.FirstToken(**{name: over_articles(statistic) for name, statistic in surveyed.levels.items()})
    heads = position_heads_of(_allowed(model, texts.mask.shape[1]), texts, surveyed.layers["mass"], separators)
    heads = probe.PositionHeads(
        *({place: over_articles(statistic) for place, statistic in entries.items()} for entries in heads)
    )
    # Of n (n - 1) / 2 pairs, n - 1 contain the first token: these pairs weigh 2 / n, and the others (n - 2) / n.
    n = texts.mask.sum(axis=1)[:, None]
    cosine = (2 * each_text(first.cosine) + (n - 2) * each_text(first.cosine_of_others)) / n
    return Run(first, average_of(cosine, articles), heads)


def first_alone(model: probe.Model, texts: probe.Encoded) -> float:
    """The largest change of the stream of a first token when all later tokens are removed, relative to its norm."""
    few, mask = texts.token_ids[:SEVERAL], texts.mask[:SEVERAL]
    inside = np.asarray(probe.trace(model, few, mask).hidden, float)[:, :, 0]
    alone = np.asarray(probe.trace(model, few[:, :1], mask[:, :1]).hidden, float)[:, :, 0]
    return float(np.max(np.linalg.norm(inside - alone, axis=-1) / np.linalg.norm(alone, axis=-1)))


def windows_of(
    model: probe.Model, texts: probe.Encoded, articles: np.ndarray, width: int, quick: bool, say: Say
) -> Windows:
    # A quick run measures the widest window only, since each window takes a pass over all texts.
    widths = (width,) if quick else (width // 4, width // 2, width)
    say("measuring the loss under the full causal mask")
    plain = probe.token_losses(model, texts)
    words, cost, off, articles_by_width = texts.mask.sum(axis=1), {}, 0.0, {}
    for w in widths:
        # Position w is the first from which the window does not reach token 0, and the last loss is at n - 2.
        long = words - 1 > w
        if (counted := int(long.sum())) < 2:
            say(f"leaving out the window of {w} tokens: only {counted} texts are longer")
            continue
        articles_by_width[w] = articles[long]
        for kept in KEPT:
            say(f"measuring the loss under a window of {w} tokens with {kept} kept")
            mask = SinkMask(w, kept) if kept else WindowMask(w, causal=True)
            lost = probe.token_losses(probe.with_mask(model, mask), texts) - plain
            cost[w, kept] = average_of(np.nanmean(lost[long, w:], axis=1), articles[long])
            off = max(off, float(np.nanmax(np.abs(lost[:, :w]))))
    loss = average_of(np.nanmean(plain, axis=1), articles)
    return Windows(tuple(articles_by_width), loss, cost, articles_by_width, off)


def _at(average: Average, at: Any, digits: int = 3) -> str:
    """The mean and its error at a level, or at a layer and head, in words."""
    return plus_minus(average.mean[at], average.error[at], digits)


def _layer(level: int | None) -> str:
    return "no layer" if level is None else f"layer {level}"


@claim(f"less than {ALONE:g} at every level", kind="identity")
def alone(m: Results) -> Found:
    """The first token moves independently: the tokens after it do not change its stream."""
    measured = f"the largest difference from its stream without them, relative to its norm, is {m.alone:.1e}"
    return Found(measured, m.alone < ALONE, m.alone)


@claim(f"by less than {SMALL:g} at every level, in the mean over texts")
def mean_cosine(m: Results) -> Found:
    """At every level the first token changes the mean cosine of tokens of {m.network.name} by less than {SMALL:g}."""
    whole, others = m.network.trained.cosine, m.network.trained.first.cosine_of_others
    change = each_text(others) - each_text(whole)
    level = int(np.argmax(np.abs(change.mean(axis=0))))
    mean, error, _ = m.network.mean_of(change[:, level])
    return Found(
        f"the change is largest at level {level}: {_at(whole, level)} with the first token, {_at(others, level)} "
        f"without; in texts of at most {m.network.given.tokens} tokens",
        abs(float(mean)) < SMALL, mean, error,
    )  # fmt: skip


def _beside(network: Compared, random: tuple[Run, ...]) -> Starts:
    """The trained network beside networks of random weights in the mean cosine without the first token."""
    cosine_of = lambda run: each_text(run.first.cosine_of_others)
    return starts_of(cosine_of(network.trained), [cosine_of(run) for run in random], network.given.articles)


@claim("each difference exceeds two standard errors, or with few articles and networks as many as are as improbable")
def controls(m: Results) -> Found:
    """The tokens of {m.network.name} are less alike than the same tokens in random order, and more alike than with
    random weights."""
    net, level = m.network, m.network.late
    cosine_of = lambda run: each_text(run.first.cosine_of_others)[:, level]
    shuffled = net.mean_of(cosine_of(net.trained) - cosine_of(net.shuffled))
    own = _beside(net, net.random)
    described = lambda starts: (
        f"{starts.words(level)}, difference "
        f"{plus_minus(starts.beyond.difference[level], starts.beyond.error[level], 3)}"
    )
    measured = (
        f"mean cosine without the first token after layer {level} {cosine_of(net.trained).mean():.3f}; in random order "
        f"{cosine_of(net.shuffled).mean():.3f}, difference {plus_minus(shuffled.mean, shuffled.error, 3)}; random "
        f"weights {net.given.drawn}: {described(own)}"
    )
    says, holds = None, shuffled.below() and own.exceeds(level)
    if net.usual:
        usual = _beside(net, net.usual)
        says = (
            f"The tokens of {net.name} are less alike than the same tokens in random order, and more alike than with "
            f"random weights drawn as before training, but less alike than with weights of spread {USUAL:g}."
        )
        measured += f"; of spread {USUAL:g}: {described(usual)}"
        # The comparison is one-sided: the negative difference tests the other side.
        holds = holds and bool(usual.beyond._replace(z=-usual.beyond.z).exceeds()[level])
    return Found(measured, holds, own.beyond.difference[level], own.beyond.error[level], says=says)


@claim(
    "at two levels in a row the mean over texts of the ratio exceeds {p.times:g} by two standard errors, at the level "
    f"before it is below {SUDDEN:g}, and with random weights there are no such levels"
)
def sudden(m: Results) -> Found:
    """In one layer the norm of the first token of {m.network.name} grows from less than {SUDDEN:g} to more than
    {p.times:g} times the norm of the others, which it does with no random weights."""
    net, times, onset = m.network, m.p.times, m.onset
    first = net.trained.first
    highest, large = int(np.argmax(first.ratio.mean)), np.flatnonzero(first.apart(times))
    at = highest if onset is None else onset
    shuffled, *random = (net.onset(times, run) for run in (net.shuffled, *net.random))
    norms = lambda level: (
        f"{_at(first.length, level, 0)} against {_at(first.length_of_others, level, 0)} after layer {level}"
    )
    return Found(
        f"more than {times:g} times the median norm of the others from {_layer(onset)} on, up to "
        f"{_layer(int(large[-1]) if large.size else None)}: {norms(at)}, {norms(max(at - 1, 0))}; the largest ratio of "
        f"all levels is that after layer {highest}, {_at(first.ratio, highest, 1)}; with tokens in random order from "
        f"{_layer(shuffled)} on, with random weights from {', '.join(map(_layer, random))} on",
        # An onset at level 0 has no level before it.
        bool(onset and first.ratio.mean[onset - 1] < SUDDEN) and random == [None] * len(random),
        first.ratio.mean[at], first.ratio.error[at],
    )  # fmt: skip


@claim("less by more than two standard errors")
def less_alike(m: Results) -> Found:
    """Where its norm is large, the first token of {m.network.name} is less similar to the others than the others are to
    each other."""
    net, first, onset = m.network, m.network.trained.first, m.onset
    says = (
        "After the first layer the first token of {} is less similar to the others than the others are to each other."
    )
    part = slice(onset or 1, net.late + 1)
    over_part = lambda average: each_text(average)[:, part].mean(axis=1)
    less, other = (
        net.mean_of(over_part(run.cosine_of_others) - over_part(run.cosine)) for run in (first, net.shuffled.first)
    )
    return Found(
        f"mean over layers {part.start} to {part.stop - 1} of its cosine to the others "
        f"{first.cosine.mean[part].mean():.3f}, of the others among each other "
        f"{first.cosine_of_others.mean[part].mean():.3f}: {plus_minus(less.mean, less.error, 3)} less; in random order "
        f"{plus_minus(other.mean, other.error, 3)} less",
        less.above(), less.mean, less.error,
        says=says.format(net.name) if onset is None else None,
    )  # fmt: skip


def _surely(average: Average, than: float) -> np.ndarray:
    """True for heads above `than` by two standard errors."""
    return average.mean - 2 * average.error > than


@claim(
    "more than half of the heads of the later layers, and no more than a quarter of the heads before, are sinks by "
    "more than {p.sink:g} beyond uniform causal attention, by two standard errors; no head of random weights is"
)
def sinks(m: Results) -> Found:
    """Most heads of {m.network.name} in the layers that read the large first token are sinks of the first token, but
    few heads of earlier layers are."""
    net, heads = m.network, m.network.trained.heads
    sinks_of = lambda run: _surely(run.heads.excess["first"], m.p.sink)
    is_sink, strongest = sinks_of(net.trained), heads.strongest("first")
    # Layer k + 1 reads level k: the heads from the onset on see a large first token.
    early, late = np.split(is_sink, [len(is_sink) if m.onset is None else m.onset])
    share = lambda part: f"{int(part.sum())} of {part.size}" if part.size else "none"
    others = ", ".join(f"{run.heads.excess['first'].mean.max():.3f}" for run in net.random)
    holds = late.size > 0 and late.mean() > 0.5 and (not early.size or early.mean() <= 0.25)
    return Found(
        f"sinks beyond {m.p.sink:g}: {share(early)} heads up to layer {len(early)}, {share(late)} in later layers; in "
        f"random order {int(sinks_of(net.shuffled).sum())} of {is_sink.size}; uniform causal attention gives the first "
        f"token {float(heads.baseline['first'].mean[0, 0]):.3f}; the strongest is head {strongest[1] + 1} of layer "
        f"{strongest[0] + 1}, which gives it {_at(heads.mass['first'], strongest)}; strongest of random weights "
        f"{others} beyond uniform",
        bool(holds) and not any(sinks_of(run).any() for run in net.random), late.mean() if late.size else 0.0,
    )  # fmt: skip


def place_claim(place: str) -> ClaimOf:
    @claim(
        "at least one head exceeds uniform attention by {p.sink:g} and two standard errors, and none of random weights "
        "does",
        says=f"At least one head of {{m.network.name}} attends to {PLACE_WORDS[place]} more than uniformly.",
    )
    def attends(m: Results) -> Found:
        net, heads, excess = m.network, m.network.trained.heads, m.network.trained.heads.excess[place]
        at = heads.strongest(place)
        baseline, shuffled = float(heads.baseline[place].mean[at]), net.shuffled.heads.excess[place]
        count = lambda run: int(_surely(run.heads.excess[place], m.p.sink).sum())
        random = ", ".join(f"{run.heads.excess[place].mean.max():.3f}" for run in net.random)
        return Found(
            f"{count(net.trained)} of {excess.mean.size} heads by more than {m.p.sink:g} beyond uniform; the "
            f"strongest, head {at[1] + 1} of layer {at[0] + 1}, gives {_at(heads.mass[place], at)} where uniform "
            f"attention gives {baseline:.3f}, and in random order "
            f"{plus_minus(shuffled.mean[at] + baseline, shuffled.error[at], 3)}; strongest of random weights {random} "
            "beyond uniform",
            count(net.trained) > 0 and not any(map(count, net.random)), excess.mean[at], excess.error[at],
        )  # fmt: skip

    return attends


@claim("at no level and in no head, in the mean over texts")
def own_model(m: Results) -> Found | None:
    """In the language model of the package, whose training texts begin at any word, no first token has {p.times:g}
    times the norm of the others, and no head gives the first token {p.sink:g} beyond uniform attention."""
    if m.reading is None:
        return None
    ratio, heads = m.own.trained.first.ratio, m.own.trained.heads
    level, at, excess = int(np.argmax(ratio.mean)), heads.strongest("first"), heads.excess["first"]
    return Found(
        f"norm of the first token over the median of the others at most {_at(ratio, level, 2)}, after layer {level}; "
        f"the strongest head gives it {_at(excess, at)} beyond uniform causal attention (± over "
        f"{articles_words(m.own.given.articles)})",
        bool(ratio.mean.max() < m.p.times and excess.mean.max() < m.p.sink), excess.mean[at], excess.error[at],
        on=m.own.on,
    )  # fmt: skip


@claim("more than 1 by two standard errors, for every window")
def window(m: Results) -> Found | None:
    """A sliding window of {m.windows.listed} tokens without the first tokens costs {NAME} more than one nat a token."""
    if (windows := m.windows) is None:
        return None
    loss, last = windows.loss, windows.cost[windows.widths[-1], 0]
    texts = ", ".join(f"{len(windows.articles[w])} of {loss.texts}" for w in windows.widths)
    return Found(
        f"cost in nats a token, {windows.words(0)}; loss of the full mask {plus_minus(loss.mean, loss.error)} nats a "
        f"token; over the positions that the window cuts short, in {texts} texts",
        all(clustered_error(each_text(windows.cost[w, 0]), windows.articles[w]).above(1.0) for w in windows.widths),
        last.mean, last.error,
    )  # fmt: skip


@claim("more than half by two standard errors, for every window")
def first_kept(m: Results) -> Found | None:
    """More than half of the cost of a window is given back by keeping the first token alone in sight."""
    if (windows := m.windows) is None:
        return None
    back = {w: windows.given_back(w, 1) for w in windows.widths}
    words = ", ".join(
        f"{plus_minus(part.mean, part.error)} of it by window {w} "
        f"({100 * float(part.mean / windows.cost[w, 0].mean):.0f} %)"
        for w, part in back.items()
    )
    last = back[windows.widths[-1]]
    return Found(
        f"cost in nats a token with the first token, {windows.words(1)}; given back {words}",
        all(windows.given_back(w, 1, share=0.5).above() for w in windows.widths), last.mean, last.error,
    )  # fmt: skip


@claim("in the mean over texts, for every window")
def four_kept(m: Results) -> Found | None:
    """Three further kept tokens regain less than a fifth of the cost that the first token regains."""
    if (windows := m.windows) is None:
        return None
    more = {w: windows.given_back(w, 4, than=1) for w in windows.widths}
    less = ", ".join(plus_minus(gain.mean, gain.error, 3) for gain in more.values())
    last = more[windows.widths[-1]]
    return Found(
        f"cost in nats a token with the first four, {windows.words(4)}; less than with one by {less}",
        all(bool(gain.mean < 0.2 * windows.given_back(w, 1).mean) for w, gain in more.items()), last.mean, last.error,
    )  # fmt: skip


@claim(f"less than {SAME:g}", kind="identity")
def window_of_all(m: Results) -> Found | None:
    """A window does not change the loss at positions at which it leaves no token out."""
    if (windows := m.windows) is None:
        return None
    return Found(f"the largest difference of a loss there is {windows.off:.1e} nats", windows.off < SAME, windows.off)


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    net, first, verdict, windows = m.network, m.network.trained.first, "", "(e) No windows. "
    network = f"{NAME} on {net.given.data.words}"
    if m.reading is None:
        network = f"{OWN_NAME} on passages of Wikipedia"
    if m.windows is not None:
        width = m.windows.widths[-1]
        windows = (
            "(e) The cost of a sliding window in loss, over the positions that it cuts short: with no further token, "
            "with the first token, and with the first four tokens in sight. "
        )
        verdict = (
            f"; a window of {width} tokens costs {m.windows.cost[width, 0].mean:.2f} nats a token, of which the first "
            f"token in sight gives back {m.windows.given_back(width, 1).mean:.2f}"
        )
    large = f"No first token of {net.name} has a norm far larger than the norm of the others"
    if m.onset is not None:
        large = (
            f"From layer {m.onset} on the first token of {net.name} has up to {first.ratio.mean.max():.0f} times the "
            "norm of the others"
        )
    return (
        f"{'' if m.reading else f'{ABSENT} '}A causal network: {network}; texts are cut to {net.given.tokens} tokens. "
        "(a) The mean cosine of the tokens at each level, with and without the first token of a text, for the tokens "
        f"in random order, and for {len(net.random)} networks of random weights {net.given.drawn}"
        f"{f' and of spread {USUAL:g}' if net.usual else ''}. (b) The mean cosine of the first token to the others. "
        "(c) Its norm, and the median norm of the others; vertical line: the level from which the ratio significantly "
        f"exceeds {m.p.times:g}. (d) The weight that each head gives the first token beyond uniform causal attention. "
        f"{windows}(f) The weight beyond uniform attention of the strongest head of each run to four positions. Means "
        f"over texts with standard errors over {articles_words(net.given.articles)}; of random weights, over networks. "
        f"{large}{verdict}."
    )


def series(m: Results) -> dict:
    values = _series_of(m.network, "")
    if m.reading is not None:
        # The two networks have different numbers of levels.
        values |= _series_of(m.own, "_by_level, language model of the package")
    if m.windows is not None:
        values["width_by_window"] = np.array(m.windows.widths)
        for kept in KEPT:
            costs = [m.windows.cost[width, kept] for width in m.windows.widths]
            values[f"cost with {kept} kept_by_window"] = np.array([float(cost.mean) for cost in costs])
            values[f"cost with {kept} kept, error_by_window"] = np.array([float(cost.error) for cost in costs])
    return values


def _series_of(network: Compared, by: str) -> dict:
    values = {f"layer{by}": np.arange(network.trained.levels)}
    for run, measured in (("trained", network.trained), ("tokens shuffled", network.shuffled)):
        for name, average in measured.first._asdict().items():
            values |= {f"{name} {run}{by}": average.mean, f"{name} {run}, error{by}": average.error}
    for name, drawn in (("random weights", network.random), (f"random weights of spread {USUAL:g}", network.usual)):
        values |= {f"cosine by {name} {k}{by}": measured.cosine.mean for k, measured in enumerate(drawn)}
    for place, average in network.trained.heads.excess.items():
        values[f"weight on {place} beyond uniform_by_layer_and_head{by}"] = average.mean
    return values


def draw(m: Results) -> Figure:
    fills = (_draw_cosines, _draw_first, _draw_norms, _draw_sinks, _draw_windows, _draw_places)
    return panels(m, fills, columns=2, height=6.4)


def _draw_cosines(ax: Axes, m: Results) -> None:
    net = m.network
    of_random = lambda drawn: mean_and_error(np.stack([run.cosine.mean for run in drawn]))
    lines = [
        ("trained", net.trained.cosine, TRAINED, "-"),
        ("without its first token", net.trained.first.cosine_of_others, "0.1", ":"),
        ("tokens shuffled", net.shuffled.cosine, SHUFFLED, "--"),
        ("random weights, own spread", of_random(net.random), RANDOM, "-."),
    ]
    if net.usual:
        lines.append((f"random weights, spread {USUAL:g}", of_random(net.usual), USUAL_SHOWN, "-."))
    layer_lines(ax, "mean cosine", lines)
    ax.set_ylim(0, 1)


def _draw_first(ax: Axes, m: Results) -> None:
    random = mean_and_error(np.stack([run.first.cosine.mean for run in m.network.random]))
    runs = (("trained", m.network.trained, TRAINED, "-"), ("tokens shuffled", m.network.shuffled, SHUFFLED, "--"))
    lines = [(label, run.first.cosine, colour, line) for label, run, colour, line in runs]
    layer_lines(ax, "cosine of the first\ntoken to the others", [*lines, ("random weights", random, RANDOM, "-.")])
    ax.set_ylim(0, 1)


def _draw_norms(ax: Axes, m: Results) -> None:
    first = m.network.trained.first
    lines = [("first token", first.length, FIRST, "-"), ("others, median", first.length_of_others, TRAINED, "--")]
    layer_lines(ax, "norm of the stream", lines)
    if m.onset is not None:
        ax.axvline(m.onset, color="0.6", lw=0.7, zorder=0)
    ax.set_yscale("log")


def _draw_sinks(ax: Axes, m: Results) -> None:
    excess = m.network.trained.heads.excess["first"].mean
    # Layer k makes level k, and there is no layer 0.
    layers = np.arange(1, len(excess) + 1)
    ax.plot(np.repeat(layers, excess.shape[1]), excess.ravel(), ".", color=FIRST, ms=3, label="trained, each head")
    ax.plot(layers, excess.mean(axis=1), color=TRAINED, lw=1.2, label="mean over heads")
    random = mean_and_error(np.stack([run.heads.excess["first"].mean.mean(axis=1) for run in m.network.random]))
    layer_lines(ax, "weight on the first token\nbeyond uniform", [("random weights", random, RANDOM, "-.")], first=1)
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)


def _draw_windows(ax: Axes, m: Results) -> None:
    if m.windows is None:
        ax.text(0.5, 0.5, f"no windows without {NAME}", ha="center", va="center", transform=ax.transAxes)
        ax.set_axis_off()
        return
    places, names = np.arange(len(m.windows.widths)), ("none kept", "first token kept", f"first {KEPT[-1]} kept")
    looks = zip(KEPT, names, (FIRST, TRAINED, SHUFFLED), ("", "//", ".."), strict=True)
    for k, (kept, label, colour, hatch) in enumerate(looks):
        costs = [m.windows.cost[width, kept] for width in m.windows.widths]
        ax.bar(places + 0.27 * (k - 1), [cost.mean for cost in costs], 0.25, yerr=[cost.error for cost in costs],
               color=colour, hatch=hatch, edgecolor="white", lw=0, capsize=2, label=label)  # fmt: skip
    ax.set_xticks(places, labels=[f"{width}" for width in m.windows.widths])
    ax.set(xlabel="window (tokens)", ylabel="cost of the window\n(nats a token)")
    ax.legend(fontsize=6)


def _draw_places(ax: Axes, m: Results) -> None:
    names = [name for name in m.network.trained.heads.excess if name != "next"]
    places = np.arange(len(names))
    for drawn, colour, marker, label in (
        ((m.network.trained,), TRAINED, "o", "trained"),
        ((m.network.shuffled,), SHUFFLED, "s", "tokens shuffled"),
        (m.network.random, RANDOM, "x", "random weights"),
    ):
        strongest = np.array([[run.heads.excess[name].mean.max() for name in names] for run in drawn])
        ax.plot(np.tile(places, len(drawn)), strongest.ravel(), marker, color=colour, ms=4, label=label)
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)
    ax.set_xticks(places, labels=names, fontsize=6)
    ax.set(ylabel="strongest head: weight\nbeyond uniform", xlim=(-0.5, len(names) - 0.5))
    ax.legend(fontsize=6)


FIGURE = figure(
    __name__,
    claims=(alone, mean_cosine, controls, sudden, less_alike, sinks, *map(place_claim, PLACE_WORDS), own_model, window,
     first_kept, four_kept, window_of_all),
    over=lambda m: articles_words(m.network.given.articles),
    on=lambda m: m.network.on,
    recorded=lambda m: {
        "network": m.network.given.subject.words, "texts": m.network.given.data.words, "tokens": m.network.given.tokens,
        "random weights": m.network.given.drawn, "articles": len(np.unique(m.network.given.articles)),
        "starts": m.network.on.size["texts"], "windows": [] if m.windows is None else list(m.windows.widths),
        "solver": "none: layers in float32",
    },
)  # fmt: skip
