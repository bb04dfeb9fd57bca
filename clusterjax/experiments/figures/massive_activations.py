r"""Which entries of the stream of a causal network are massive, what do they cost to remove, and do sinks go with them?

An entry of the stream is a dimension of a token at a level; level l is the stream that enters layer l + 1. An entry is
massive in a text if it is above 100 in size, and at least 1,000 times the median size of all entries of the text at its
level. In a network without such entries, entries of at least 100 medians, of any size, are studied in their place, and
every sentence calls them large. The entries are found on the articles 0, 2, ... as those that are massive in more than
half of the passages. Each entry is edited at the first level at which it is massive, and its mean is over the passages
on which it was found. All numbers are of the passages of the articles 1, 3, ....

A patch sets the entries to zero, or to their means. Controls set as many entries to zero: the same dimensions and
levels at another token ("elsewhere"), and other dimensions of the same tokens and levels ("other dimensions"), drawn at
random. These entries are ordinary, so that the controls are equal in number and place, but not in the distance by
which they move the stream. The sink of a layer is the mean weight that its heads give the first token, beyond uniform
causal attention; the sink of a text is the mean over the layers that read the first edited level, and over later ones.

What would refute each claim was written before the first run:
- entries are massive: none is found, or those that are found are massive in half of the other passages or fewer;
- they are at the first token: a tenth or more of the massive entries of the other passages is at other tokens;
- zero breaks the network: the loss grows by one nat a token or less, or not by more than with both controls;
- the mean does not: a change of the loss of 0.02 nats a token or more cannot be excluded;
- sinks go with the entries: zero leaves half of the sink or more, or takes no more of it than both controls;
- sinks stay with the mean: a change of a tenth of the sink cannot be excluded.
The norm of the first token and the sinks of the same network were known by then from `causal-network`.

Source: Sun et al., *Massive activations in large language models* (2402.17762), Sections 2 to 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ... import probe
from ..._base.checks import refusal
from ...plot import OKABE_ITO
from ...probe.measures.survey import Clustered, Measure, clustered_error
from ..framework.figure import Claim, Found, Measured, Say, Settings, claim, figure, parameter, percent, plus_minus
from ..shared.causal import ABSENT, OWN, SMOLLM2, Reading, name_of, reading_or_own
from ..shared.controls import Starts, starts_of
from ..shared.layout import layer_lines, panels
from ..shared.networks import articles_words, each_text


BATCH = 4
WEAKER = 10  # the factor by which the bound in medians is lower in a network without massive entries
MOST = 16  # the largest number of entries that are edited
LITTLE = 0.02  # nats a token: a change of the loss below it is small
SAME = 1e-3  # nats: the change of a loss that float32 may cause
CONTROLS = ("elsewhere", "other dimensions")
LEVELS = Measure(lambda hidden, mask: hidden)
SURELY = "by two standard errors over articles, or, with few articles, by as many as are as improbable"
LOOKS = {
    "unpatched": (OKABE_ITO[0], "-"), "other tokens": ("0.5", "--"), "mean": (OKABE_ITO[2], "--"),
    "zero": (OKABE_ITO[5], "-."), "elsewhere": (OKABE_ITO[3], ":"), "other dimensions": (OKABE_ITO[1], ":"),
}  # fmt: skip


@dataclass(frozen=True)
class Parameters:
    draws: int = parameter(4, "the number of draws of each control", least=2, most=64, quick=2)
    size: float = parameter(100.0, "the size above which an entry of the stream may be massive", above=0)
    times: float = parameter(1000.0, "the least size of a massive entry, in medians of the stream", above=1)


class Entry(NamedTuple):
    """An entry of the stream, by the first level at which it is massive, and its mean there."""

    level: int
    token: int
    dimension: int
    mean: float


class Results(NamedTuple):
    p: Parameters
    own: bool  # True if the network is the model of the package, because SmolLM2 is not installed
    reading: Reading  # the network and all passages
    articles: np.ndarray  # the article of each scored passage, (texts,)
    rank: int  # 0 if the entries are massive, 1 if they are large, 2 if there is only the largest entry to edit
    entries: tuple[Entry, ...]  # the entries, the largest first
    held: np.ndarray  # True if one of the entries is massive, (texts,)
    at_first: np.ndarray  # the share of the first token among massive or large entries, (texts,); NaN without any
    # The mean size in medians by dimension at the level of the largest entry, (2, d): of the first token, and the
    # largest of the other tokens
    sizes: np.ndarray
    # The largest size in medians by level, (texts, levels): of the first token, also with zeros, and of the others
    largest: dict[str, np.ndarray]
    loss: dict[str, np.ndarray]  # nats a token by patch, (runs, texts)
    sinks: dict[str, np.ndarray]  # the weight on the first token beyond uniform by patch, (runs, texts, layers)
    own_values: float  # the largest change of a loss if the entries are set to their own values
    before: float  # the largest change of a loss before the token of a patch elsewhere

    @property
    def called(self) -> str:
        return name_of(self.own)

    @property
    def kind(self) -> str:
        return "massive" if self.rank == 0 else "large"

    @property
    def where(self) -> str:
        return "; ".join(
            f"dimension {e.dimension} of token {e.token + 1} from level {e.level} on, mean {e.mean:.0f}"
            for e in self.entries
        )

    def mean(self, values: np.ndarray) -> Clustered:
        return clustered_error(values, self.articles)

    def cost(self, name: str) -> np.ndarray:
        """The change of the loss, (runs, texts)."""
        return self.loss[name] - self.loss["unpatched"]

    def sink(self, name: str) -> np.ndarray:
        """The sink of each text, (runs, texts)."""
        return self.sinks[name][..., min(e.level for e in self.entries) :].mean(axis=2)

    def lost(self, name: str) -> np.ndarray:
        """The decrease of the sink, (runs, texts)."""
        return self.sink("unpatched") - self.sink(name)

    def words(self, values: np.ndarray, digits: int = 3) -> str:
        return plus_minus(*self.mean(values)[:2], digits)

    def beyond(self, zero: np.ndarray, control: np.ndarray) -> Starts:
        """What zero does to each text, (texts,), beside the draws of a control, (draws, texts)."""
        return starts_of(zero[:, None], list(control[..., None]), self.articles)


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    return measure_reading(p, *reading_or_own(settings, say), settings.seed, say)


def measure_reading(p: Parameters, reading: Reading, own: bool, seed: int, say: Say) -> Results:
    model, texts, articles = reading.model, reading.texts, reading.articles
    odd = np.unique(articles, return_inverse=True)[1] % 2 == 1
    if not odd.any():
        raise refusal("most_texts", "be two or more", "all texts are of one article", "read others, or more")
    searched, scored = (probe.Encoded(texts.token_ids[half], texts.mask[half]) for half in (~odd, odd))
    say(f"looking for massive entries in {np.sum(~odd)} passages")
    rank, entries = entries_of(streams_of(model, searched), p)
    say(f"found {('massive', 'large', 'ordinary')[rank]} entries: {len(entries)}")
    streams, at = streams_of(model, scored), tuple(np.array([e[:3] for e in entries]).T)
    sizes = in_medians(streams)
    massive = massive_in(streams, p)
    counts = massive[min(rank, 1)].sum(axis=(1, 3))
    with np.errstate(invalid="ignore"):
        at_first = counts[:, 0] / counts.sum(axis=1)
    of_first = lambda sizes: sizes[:, :, 0].max(axis=2)
    largest = {"unpatched": of_first(sizes), "other tokens": sizes[:, :, 1:].max(axis=(2, 3))}

    rng, n, width = np.random.default_rng(seed), streams.shape[2], streams.shape[3]
    means, zeros = [e.mean for e in entries], [0.0] * len(entries)
    others = [elsewhere(entries, n, rng) for _ in range(p.draws)]
    models = {
        "unpatched": [model], "mean": [patched(model, entries, means)], "zero": [patched(model, entries, zeros)],
        "elsewhere": [patched(model, other, zeros) for other in others],
        "other dimensions": [patched(model, other_dimensions(entries, width, rng), zeros) for _ in range(p.draws)],
    }  # fmt: skip
    losses, sinks = {}, {}
    for name, several in models.items():
        say(f"measuring losses and sinks: {name}")
        losses[name] = np.stack([probe.token_losses(each, scored, batch_size=BATCH) for each in several])
        beyond = [probe.attention_sinks(each, scored, special={}, batch_size=BATCH) for each in several]
        sinks[name] = np.stack([each_text(each.excess["first"]).mean(axis=2) for each in beyond])
    largest["zero"] = of_first(in_medians(streams_of(models["zero"][0], scored)))
    # Entry i of the losses is the loss of token i + 1.
    change = np.abs(losses["elsewhere"] - losses["unpatched"])
    before = max(float(change[draw, :, : other[0].token].max()) for draw, other in enumerate(others))
    few = probe.Encoded(scored.token_ids[:BATCH], scored.mask[:BATCH])
    same = patched(model, entries, [streams[:BATCH, e.level] for e in entries])
    off = np.abs(probe.token_losses(same, few, batch_size=BATCH) - losses["unpatched"][0, :BATCH]).max()
    shown = sizes[:, entries[0].level].mean(axis=0)
    return Results(
        p, own, reading, articles[odd], rank, entries, np.any(massive[0][:, *at], axis=1), at_first,
        np.stack([shown[0], shown[1:].max(axis=0)]), largest,
        {name: loss.mean(axis=2) for name, loss in losses.items()}, sinks, float(off), before,
    )  # fmt: skip


def streams_of(model: probe.Model, texts: probe.Encoded) -> np.ndarray:
    """The streams that enter the layers, after all edits, (texts, levels, n, d)."""
    parts = []
    for begin in range(0, len(texts.mask), BATCH):
        ids, mask = (part[begin : begin + BATCH] for part in texts)
        # The last level is left out, because the last norm changes it.
        parts.append(np.asarray(probe.stream(model, ids, mask, LEVELS).levels)[:-1])
    return np.moveaxis(np.concatenate(parts, axis=1), 1, 0)


def in_medians(streams: np.ndarray) -> np.ndarray:
    """The size of each entry, divided by the median size of all entries of its text at its level."""
    sizes = np.abs(streams)
    return sizes / np.median(sizes, axis=(2, 3), keepdims=True)


def massive_in(streams: np.ndarray, p: Parameters) -> tuple[np.ndarray, np.ndarray]:
    """True at massive entries, and at large entries."""
    sizes = in_medians(streams)
    return (np.abs(streams) > p.size) & (sizes >= p.times), sizes >= p.times / WEAKER


def entries_of(streams: np.ndarray, p: Parameters) -> tuple[int, tuple[Entry, ...]]:
    """The entries that are massive in more than half of the texts, else those that are large, else the largest one; 0,
    1 or 2 says which."""
    sizes = in_medians(streams).mean(axis=0)
    often = [massive.mean(axis=0) > 0.5 for massive in massive_in(streams, p)] + [sizes == sizes.max()]
    rank = next(rank for rank, massive in enumerate(often) if massive.any())
    # An entry is edited at the first level at which it is massive.
    places = [(int(np.argmax(often[rank][:, t, j])), int(t), int(j)) for t, j in np.argwhere(often[rank].any(axis=0))]
    places.sort(key=lambda place: -sizes[place])
    return rank, tuple(Entry(*place, float(streams[:, *place].mean())) for place in places[:MOST])


def patched(model: probe.Model, entries: Sequence[Entry], values: Sequence) -> probe.Model:
    """The model with these values at the entries."""
    at = lambda e: {"layer": e.level, "index": e.dimension, "token": e.token}
    return probe.patch(model, [probe.Edit("stream", value, **at(e)) for e, value in zip(entries, values, strict=True)])


def elsewhere(entries: Sequence[Entry], n: int, rng: np.random.Generator) -> list[Entry]:
    """The same levels and dimensions at one other token, which has no entry."""
    token = int(rng.choice(np.setdiff1d(np.arange(1, n - 1), [e.token for e in entries])))
    return [e._replace(token=token) for e in entries]


def other_dimensions(entries: Sequence[Entry], width: int, rng: np.random.Generator) -> list[Entry]:
    """The same levels and tokens at other dimensions, none of which is that of an entry."""
    free = np.setdiff1d(np.arange(width), [e.dimension for e in entries])
    drawn = rng.choice(free, len(entries), replace=False)
    return [e._replace(dimension=int(j)) for e, j in zip(entries, drawn, strict=True)]


@claim(f"the share is above one half {SURELY}")
def massive(m: Results) -> Found:
    """In {m.called} some entries of the stream are above {p.size:g} in size and {p.times:g} medians, in more than half
    of the passages on which they were not found."""
    share = m.mean(m.held.astype(float))
    none = f"no entry is massive in more than half of the passages; the largest: {m.where}"
    some = f"share of the {len(m.held)} passages with a massive entry {percent(*share[:2])}; found: {m.where}"
    return Found(some if m.rank == 0 else none, share.above(0.5), share.mean, share.error)


@claim(f"the mean share over passages that have such entries is above nine tenths {SURELY}")
def first(m: Results) -> Found | None:
    """More than nine tenths of the {m.kind} entries of {m.called}, over all levels, are entries of the first token."""
    if m.rank == 2 or np.isnan(m.at_first).all():
        return None
    share, num_passages = m.mean(m.at_first), int((~np.isnan(m.at_first)).sum())
    measured = f"share of the first token {percent(*share[:2])}, in {num_passages} of {len(m.at_first)} passages"
    return Found(measured, share.above(0.9), share.mean, share.error)


@claim(f"the loss grows by more than one nat a token {SURELY}")
def zero(m: Results) -> Found | None:
    """Setting the {m.kind} entries of {m.called} to zero where they appear costs more than one nat a token."""
    if m.rank == 2:
        return None
    (cost,) = m.cost("zero")
    return Found(
        f"{m.kind} entries: {len(m.entries)}; loss {m.words(m.loss['unpatched'][0])} nats a token, with zeros "
        f"{m.words(m.loss['zero'][0])}, change {m.words(cost)}",
        m.mean(cost).above(1.0), m.mean(cost).mean, m.mean(cost).error,
    )  # fmt: skip


@claim(f"the change of the loss is between -{LITTLE:g} and {LITTLE:g} nats a token {SURELY}")
def mean_value(m: Results) -> Found | None:
    """Setting the {m.kind} entries of {m.called} to their means over other passages changes the loss by less than
    {LITTLE:g} nats a token."""
    if m.rank == 2:
        return None
    (cost,) = m.cost("mean")
    change = m.mean(cost)
    holds = change.below(LITTLE) and change.above(-LITTLE)
    return Found(f"change of the loss {m.words(cost, 4)} nats a token", holds, change.mean, change.error)


@claim(
    "all four differences are above zero by two standard errors over articles and draws, or, with few, by as many as "
    "are as improbable"
)
def beyond_controls(m: Results) -> Found | None:
    """Zeros at the {m.kind} entries of {m.called} cost more loss, and take more of the sink, than zeros at the same
    dimensions of another token, and than zeros at other dimensions of the same tokens."""
    if m.rank == 2:
        return None
    costs = {name: m.beyond(m.cost("zero")[0], m.cost(name)) for name in CONTROLS}
    sinks = {name: m.beyond(m.lost("zero")[0], m.lost(name)) for name in CONTROLS}
    words = lambda control: plus_minus(control.mean[0], control.error[0], 4)
    listed = (f"{name}: cost {words(costs[name])}, sink taken {words(sinks[name])}" for name in CONTROLS)
    # The control with the smaller z decides.
    nearer = min((starts.beyond for starts in costs.values()), key=lambda difference: float(difference.z[0]))
    return Found(
        f"{'; '.join(listed)} (± over {m.p.draws} draws); zeros cost "
        f"{plus_minus(nearer.difference[0], nearer.error[0], 3)} nats a token more than the nearer control",
        all(starts.exceeds() for starts in (*costs.values(), *sinks.values())), nearer.difference[0], nearer.error[0],
    )  # fmt: skip


@claim(f"the sink falls by more than half {SURELY}")
def sinks_go(m: Results) -> Found | None:
    """With zeros at the {m.kind} entries of {m.called} its heads lose more than half of their weight on the first token
    beyond uniform causal attention."""
    if m.rank == 2:
        return None
    (lost,), (whole,) = m.lost("zero"), m.sink("unpatched")
    return Found(
        f"weight beyond uniform {m.words(whole)}, with zeros {m.words(m.sink('zero')[0])}, change {m.words(-lost)}",
        m.mean(lost - 0.5 * whole).above(), m.mean(lost).mean, m.mean(lost).error,
    )  # fmt: skip


@claim(f"the sink changes by less than a tenth of itself {SURELY}")
def sinks_stay(m: Results) -> Found | None:
    """With the {m.kind} entries of {m.called} at their means the weight of its heads on the first token beyond uniform
    causal attention changes by less than a tenth."""
    if m.rank == 2:
        return None
    (lost,), (whole,) = m.lost("mean"), m.sink("unpatched")
    holds = m.mean(0.1 * whole - lost).above() and m.mean(0.1 * whole + lost).above()
    return Found(f"change of the weight {m.words(-lost, 4)}", holds, m.mean(-lost).mean, m.mean(lost).error)


@claim(f"less than {SAME:g}", kind="identity")
def own_values(m: Results) -> Found:
    """A patch that sets the entries to their own values changes no loss."""
    return Found(f"largest change of a loss {m.own_values:.1e} nats", m.own_values < SAME, m.own_values)


@claim(f"less than {SAME:g}", kind="identity")
def before_token(m: Results) -> Found:
    """A patch at a token changes no loss of this token and of earlier ones."""
    return Found(f"largest change of such a loss {m.before:.1e} nats", m.before < SAME, m.before)


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    finding = {
        0: f"Massive entries, found on other articles: {m.where}",
        1: f"No entry is massive by these bounds; large entries, of {m.p.times / WEAKER:g} medians: {m.where}",
        2: f"No entry is massive, or of {m.p.times / WEAKER:g} medians; the largest is edited: {m.where}",
    }[m.rank]
    tokens = m.reading.texts.mask.shape[1]
    begin = f"{ABSENT} " if m.own else ""
    return (
        f"{begin}The largest entries of the stream of {m.called}, on passages of {tokens} tokens; massive are "
        f"entries above {m.p.size:g} in size and {m.p.times:g} medians of all entries of their text and level. (a) "
        "The largest entry of the first token by level, also with zeros at the edited entries, and the largest of "
        f"all other tokens; line: {m.p.times:g} medians. (b) The mean size of each dimension at level "
        f"{m.entries[0].level}, of the first token, and the largest of all other tokens. (c) The change of the loss "
        "with the entries at their means or at zero where they appear, and with zeros at as many ordinary entries, "
        f"of {m.p.draws} draws each (crosses). (d) The weight that the heads of each layer give the first token "
        "beyond uniform causal attention; lines that are not seen lie below others. Means over passages with "
        f"standard errors over {articles_words(m.articles)}. {finding}."
    )


def series(m: Results) -> dict:
    table = {"level": np.arange(m.reading.model.num_layers)}
    for name, values in m.largest.items():
        mean, error, _ = m.mean(values)
        table |= {f"largest entry in medians, {name}": mean, f"largest entry in medians, {name}, error": error}
    for name, values in m.sinks.items():
        mean, error, _ = m.mean(values.mean(axis=0))
        table |= {f"weight beyond uniform, {name}": mean, f"weight beyond uniform, {name}, error": error}
    costs = {name: m.cost(name).mean(axis=1) for name in m.loss}
    return table | {f"change of the loss, {name}_by_draw": cost for name, cost in costs.items()}


def draw(m: Results) -> Figure:
    return panels(m, (_draw_largest, _draw_dimensions, _draw_costs, _draw_sinks), columns=2, height=5.2)


def _draw_largest(ax: Axes, m: Results) -> None:
    shown = {"unpatched": "first token", "other tokens": "other tokens", "zero": "first token, zeros"}
    lines = [(label, m.mean(m.largest[name]), *LOOKS[name]) for name, label in shown.items()]
    layer_lines(ax, "largest entry / median", lines)
    ax.axhline(m.p.times, color="0.6", lw=0.7, zorder=0)
    ax.set(yscale="log", xlabel="level")


def _draw_dimensions(ax: Axes, m: Results) -> None:
    for sizes, label, name, marker in zip(m.sizes, ("first token", "other tokens"), LOOKS, "ox", strict=False):
        ax.plot(sizes, marker, color=LOOKS[name][0], ms=2.5, mew=0.6, label=label)
    ax.axhline(m.p.times, color="0.6", lw=0.7, zorder=0)
    ax.set(yscale="log", xlabel="dimension", ylabel=f"size / median, level {m.entries[0].level}")
    ax.legend(fontsize=6)


def _draw_costs(ax: Axes, m: Results) -> None:
    names = [name for name in m.loss if name != "unpatched"]
    for place, name in enumerate(names):
        cost = m.cost(name)
        mean, error, _ = m.mean(cost.mean(axis=0))
        ax.bar(place, mean, 0.7, yerr=error, color=LOOKS[name][0], lw=0, error_kw={"elinewidth": 0.8}, capsize=2)
        if len(cost) > 1:
            ax.plot(np.full(len(cost), place), cost.mean(axis=1), "x", color="0.1", ms=3.5, mew=0.8)
        ax.annotate(f"{mean:.4f}", (place, max(mean + error, *cost.mean(axis=1), 0)), (0, 4), ha="center",
                    textcoords="offset points", fontsize=6)  # fmt: skip
    ax.axhline(0, color="0.3", lw=0.6)
    ax.set_xticks(range(len(names)), labels=[name.replace(" ", "\n") for name in names], fontsize=7)
    ax.set_yscale("symlog", linthresh=LITTLE)
    # Room for the labels above the bars, on an axis that is linear up to `LITTLE` and logarithmic above.
    ax.set(ylabel="change of the loss\n(nats a token)", ylim=(-LITTLE, 4 * ax.get_ylim()[1]))


def _draw_sinks(ax: Axes, m: Results) -> None:
    lines = [(name, m.mean(values.mean(axis=0)), *LOOKS[name]) for name, values in m.sinks.items()]
    layer_lines(ax, "weight on the first token\nbeyond uniform", lines, first=1)
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)
    low, high = ax.get_ylim()
    ax.set_ylim(low, high + 0.35 * (high - low))  # room for the legend
    ax.legend(fontsize=6, ncols=2, loc="upper left", handlelength=2.2)


def on(m: Results) -> Measured:
    texts, tokens = len(m.articles), m.reading.texts.mask.shape[1]
    size = {"texts": texts, "tokens": tokens, "layers": m.reading.model.num_layers, "seeds": m.p.draws}
    return Measured(OWN if m.own else SMOLLM2, m.reading.data, size)


FIGURE = figure(
    __name__,
    over=lambda m: f"{articles_words(m.articles)} on which the entries were not found",
    recorded=lambda m: {
        "network": on(m).network.words, "texts": m.reading.data.words, "starts": len(m.articles),
        "entries": [f"level {e.level}, token {e.token}, dimension {e.dimension}" for e in m.entries],
        "solver": "none: layers in float32",
    },
)  # fmt: skip
