"""Where does a causal language model keep its facts? Each layer's attention and feed-forward are silenced in turn.

A part is silenced (zero ablation) at one of four classes of tokens: the tokens of the subject before its last token,
its last token, the tokens between the subject and the last token of the text, and that last token. Tokens before the
subject are never silenced: the first token is an attention sink (see `causal-network`), which every answer needs. The
margin is log P of the object minus log P of the foil, the object of another fact of the same relation. A layer is
chosen on every second fact and scored on the others.

Neuron m of a layer writes $a_m v_m$, and promotes word w by $a_m ⟨v_m, u_w⟩$ with the unembedding u. The neurons of all
layers that promote the object most are silenced one by one at the last token. The control of each neuron is drawn from
the few neurons of its layer with the nearest alignment $sign(a_m) ⟨v_m, u_w⟩ / |v_m|$. The loss is compared per unit of
promotion, because silencing a neuron that promotes a word more costs more.

Source: Geva et al., *Transformer feed-forward layers are key-value memories* (2012.14913), Section 4; *Transformers,
part 2*, slides 16 and 17.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...plot import style, time_series
from ...probe.measures.knocked_out import PARTS, Jobs, Prepared, answers_without, prepare
from ..framework.figure import Claim, Found, Say, Settings, claim, figure, parameter, plus_minus
from ..shared.known_facts import CLASSES, COLOURS, LAST, LINES, SUBJECT, AbstractOfFacts, Facts, known_facts_of
from ..shared.layout import one_legend, panels


ATTENTION, FEED_FORWARD = 0, 1  # the indices in `PARTS`
NAMES = tuple(part.replace("_", "-") for part in PARTS)
FIRST = 2  # the number of first layers that are not chosen: every text needs them
NEAREST = 5  # the number of neurons from which a control is drawn
AT_ONCE = 64  # the number of neurons that are silenced in one batch
SAME = 1e-3  # the rounding error of an answer in float32, in nats
FELT = 0.01  # the loss of log probability, in nats, from which a neuron counts as missed
OTHERS = slice(1, None, 2)  # the facts on which no layer is chosen
SURELY = "by two standard errors over relations, or, with few relations, by as many as are as improbable"


@dataclass(frozen=True)
class Parameters:
    facts: int = parameter(200, "the largest number of known facts", least=8, most=1000, quick=16)
    every: int = parameter(1, "one of so many layers is silenced", least=1, most=64, quick=6)
    neurons: int = parameter(10, "the number of silenced neurons of each fact", least=1, most=100, quick=4)


class Neurons(NamedTuple):
    """Single neurons silenced at the last token."""

    layer: np.ndarray  # the layer of each neuron, the most promoting neuron first, (facts, neurons)
    # `promoting`, `random`: the change of log P of the object without the neuron, and without its control, (facts,
    # neurons)
    promoting: np.ndarray
    random: np.ndarray
    # `promotion`, `alignment`: the promotion and the alignment of both, (facts, neurons, 2)
    promotion: np.ndarray
    alignment: np.ndarray


class Chosen(NamedTuple):
    """The layer without which a part costs the most margin on the facts 0, 2, ..."""

    # `layer`, `index`: the number of the layer, from 0, and its index among the silenced layers
    layer: int
    # `margin`, `answer`: the change of the margin, and of log P of the object, on the facts 1, 3, ... without the part.
    margin: np.ndarray
    answer: np.ndarray
    index: int


@dataclass(frozen=True, eq=False)
class Results(AbstractOfFacts):
    # `layers`, `num_layers`: the silenced layers, from 0, and the number of all layers
    layers: np.ndarray
    num_layers: int
    log_p: np.ndarray  # log P of object and foil by the whole network, (facts, 2)
    # The change of both if a part is silenced, (facts, layers, parts, classes, 2); NaN without tokens of the class
    change: np.ndarray
    # 1 if the object is still the first answer, else 0, or NaN as in `change`, (facts, layers, parts, classes)
    first: np.ndarray
    off: float  # the largest change of an answer if nothing is silenced
    neurons: Neurons  # single neurons

    @property
    def margin(self) -> np.ndarray:
        """The change of the margin, (facts, layers, parts, classes)."""
        return self.change[..., 0] - self.change[..., 1]

    @property
    def late(self) -> np.ndarray:
        """The indices of the silenced layers from `FIRST` on."""
        return np.flatnonzero(self.layers >= FIRST)


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    model, own, listed, facts = known_facts_of(p.facts, say)
    ready = prepare(model, facts.token_ids, facts.lengths)
    log_p = np.take_along_axis(np.asarray(ready.clean.log_p), facts.answers, axis=1)
    num_layers = len(ready.order)
    # All layers of a network with few layers are silenced.
    layers = np.arange(0, num_layers, p.every if 3 * p.every <= num_layers else 1)
    jobs, cells = jobs_of(facts)
    change = np.full((len(facts), len(layers), len(PARTS), len(CLASSES), 2), np.nan)
    first = np.full(change.shape[:-1], np.nan)
    for k, layer in enumerate(layers):
        say(f"silencing layer {layer + 1} of {num_layers}, in {len(jobs.text)} ways")
        silenced = answers_without(ready, int(layer), jobs, facts.answers, best=True)
        change[jobs.text, k, jobs.part, cells] = silenced[:, :2] - log_p[jobs.text]
        first[jobs.text, k, jobs.part, cells] = silenced[:, 0] == silenced[:, 2]
    nothing = Jobs(np.arange(len(facts)), facts.begins, facts.begins, np.zeros(len(facts), int))
    off = float(np.abs(answers_without(ready, 0, nothing, facts.answers) - log_p).max())
    say("silencing single neurons")
    neurons = neurons_of(ready, facts, log_p, p.neurons, settings.seed)
    return Results(p, own, listed, facts, layers, num_layers, log_p, change, first, off, neurons)


def jobs_of(facts: Facts) -> tuple[Jobs, np.ndarray]:
    """Each part at each class of tokens that a fact has, and the class of each job."""
    last = facts.lengths - 1
    spans = np.array([
        (facts.begins, facts.ends), (facts.ends, facts.ends + 1), (facts.ends + 1, last), (last, last + 1)
    ])  # fmt: skip
    # Some subjects have one token, and the last token follows some subjects at once.
    cells, text = np.nonzero(spans[:, 0] < spans[:, 1])
    tiled = lambda column: np.tile(column, len(PARTS))
    part = np.repeat(np.arange(len(PARTS)), len(text))
    return Jobs(tiled(text), tiled(spans[cells, 0, text]), tiled(spans[cells, 1, text]), part), tiled(cells)


def neurons_of(ready: Prepared, facts: Facts, log_p: np.ndarray, many: int, seed: int) -> Neurons:
    """The `many` neurons that promote each object most, and as many controls."""
    network, rng = ready.network, np.random.default_rng(seed)
    blocks = network.blocks()
    words = np.asarray(network.unembedding())[facts.answers[:, 0]]
    fired = np.moveaxis(np.asarray(ready.clean.fired), 0, 1)
    values = [np.asarray(blocks[block].neuron_values().kernel) for block in network.order()]
    # (facts, layers, m)
    promotion = fired * np.stack([words @ values_of_layer.T for values_of_layer in values], axis=1)
    norm = np.abs(fired) * np.stack([np.linalg.norm(values_of_layer, axis=1) for values_of_layer in values])
    alignment = promotion / np.where(norm > 0, norm, 1)
    chosen, drawn = choose(promotion, alignment, many, rng)
    numbers = np.stack([chosen, drawn])
    layers, neurons = (part.ravel() for part in np.divmod(numbers, promotion.shape[2]))
    text = np.tile(np.repeat(np.arange(len(facts)), many), 2)
    without = np.full(len(text), np.nan)
    for layer in np.unique(layers):
        here = np.flatnonzero(layers == layer)
        # Copies fill up the last batch, so that one compiled program serves all batches.
        for part in np.split(here, range(AT_ONCE, len(here), AT_ONCE)):
            filled = np.concatenate([part, np.full(AT_ONCE - len(part), part[0])])
            last = facts.lengths[text[filled]] - 1
            jobs = Jobs(text[filled], last, last + 1, np.ones(AT_ONCE, int), neurons[filled])
            without[part] = answers_without(ready, int(layer), jobs, facts.answers)[: len(part), 0]
    change = without.reshape(numbers.shape) - log_p[:, 0][None, :, None]
    of_both = lambda values: np.stack(
        [np.take_along_axis(values.reshape(len(facts), -1), indices, axis=1) for indices in numbers], axis=-1
    )
    return Neurons(chosen // promotion.shape[2], change[0], change[1], of_both(promotion), of_both(alignment))


def choose(
    promotion: np.ndarray, alignment: np.ndarray, many: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The numbers layer * m + neuron of the `many` neurons that promote most in each fact, and of as many controls that
    `rng` draws, (facts, many) each; `promotion` and `alignment` are (facts, layers, m)."""
    facts, _, m = promotion.shape
    chosen = np.argsort(-promotion.reshape(facts, -1), axis=1, kind="stable")[:, :many]
    drawn = np.zeros_like(chosen)
    for i in range(facts):
        taken = set(chosen[i].tolist())
        for k, number in enumerate(chosen[i]):
            layer, neuron = divmod(int(number), m)
            nearest = np.argsort(np.abs(alignment[i, layer] - alignment[i, layer, neuron]), kind="stable")
            free = [int(other) for other in layer * m + nearest if int(other) not in taken][:NEAREST]
            drawn[i, k] = free[int(rng.integers(len(free)))]
            taken.add(int(drawn[i, k]))
    return chosen, drawn


def chosen(m: Results, part: int, place: int) -> Chosen:
    """The layer from `FIRST` on whose part matters most at a class of tokens."""
    margin = m.margin[:, :, part, place]
    best = m.late[int(np.argmin(np.nanmean(margin[::2], axis=0)[m.late]))]
    return Chosen(int(m.layers[best]), margin[OTHERS, best], m.change[OTHERS, best, part, place, 0], best)


@claim(f"more margin is lost without the feed-forward, {SURELY}")
def subject(m: Results) -> Found | None:
    """At the last token of the subject {m.called} loses more margin without the feed-forward of a layer than without
    its attention, in the mean over the layers without the first {FIRST}."""
    # The model of the package knows no facts, and its texts have no subject.
    if m.own:
        return None
    attended, fed = m.margin[..., SUBJECT][:, m.late].mean(axis=1).T
    more = m.mean(attended - fed)
    return Found(
        f"change of the margin without one part, mean over the layers: feed-forward {m.words(fed, 3)}, attention "
        f"{m.words(attended, 3)} nats",
        more.above(), more.mean, more.error,
    )  # fmt: skip


@claim(f"the margin falls, {SURELY}, over facts on which the layer was not chosen")
def fact(m: Results) -> Found | None:
    """Without the feed-forward of one layer at the last token of the subject {m.called} prefers the object less to the
    object of another fact of the same relation."""
    if m.own:
        return None
    worst = chosen(m, FEED_FORWARD, SUBJECT)
    lost, foil = m.mean(worst.margin, OTHERS), worst.answer - worst.margin
    whole = m.log_p[OTHERS, 0] - m.log_p[OTHERS, 1]
    share = lambda values: f"{100 * float(np.nanmean(values)):.0f} %"
    return Found(
        f"layer {worst.layer + 1}: the margin, {whole.mean():.2f} nats, changes by {m.words(worst.margin, 2, OTHERS)}: "
        f"log P of the object by {m.words(worst.answer, 2, OTHERS)}, log P of the other object by "
        f"{m.words(foil, 2, OTHERS)} nats, {100 * foil.mean() / -worst.margin.mean():.0f} % of the change; the object "
        f"stays the first answer in {share(m.first[OTHERS, worst.index, FEED_FORWARD, SUBJECT])} of the facts, and "
        f"above the other object in {share(whole + worst.margin > 0)}",
        lost.below(), lost.mean, lost.error,
    )  # fmt: skip


@claim(f"the first third costs more than each other third, {SURELY}")
def depth(m: Results) -> Found | None:
    """At the last token of the subject {m.called} loses more margin without a feed-forward of the first third of the
    layers than without a feed-forward of either other third."""
    if m.own:
        return None
    margin = m.margin[:, :, FEED_FORWARD, SUBJECT]
    thirds = [margin[:, third].mean(axis=1) for third in np.array_split(m.late, 3) if third.size]
    beyond = [m.mean(other - thirds[0]) for other in thirds[1:]]
    least = min(beyond, key=lambda average: float(average.mean))
    return Found(
        f"mean change of the margin without one layer, in nats, for each third of the layers after the first {FIRST}: "
        f"{', '.join(m.words(third, 3) for third in thirds)}",
        all(average.above() for average in beyond), least.mean, least.error,
    )  # fmt: skip


@claim(f"more margin is lost than without each feed-forward, {SURELY}, over facts on which no layer was chosen")
def last(m: Results) -> Found:
    """At the last token {m.called} loses more margin without the attention of one layer than without the feed-forward
    of any layer after the first {FIRST}."""
    attended, fed = (chosen(m, part, LAST) for part in (ATTENTION, FEED_FORWARD))
    # The comparison is with every feed-forward, and not only with the worst one of the chosen facts.
    beyond = [m.mean(m.margin[OTHERS, layer, FEED_FORWARD, LAST] - attended.margin, OTHERS) for layer in m.late]
    least = min(beyond, key=lambda average: float(average.mean))
    described = lambda name, missed: (
        f"{name} of layer {missed.layer + 1}: margin {m.words(missed.margin, 2, OTHERS)}, log P of the object "
        f"{m.words(missed.answer, 2, OTHERS)}"
    )
    return Found(
        f"change in nats without the layer that is missed most: {described('attention', attended)}; "
        f"{described('feed-forward', fed)}; least difference from any of {len(beyond)} feed-forwards "
        f"{plus_minus(least.mean, least.error)}",
        all(average.above() for average in beyond), least.mean, least.error,
    )  # fmt: skip


@claim("the mean over the facts is lowest for the first layer, for every class of tokens")
def first_layer(m: Results) -> Found:
    """At each of four classes of tokens, silencing the first feed-forward of {m.called} lowers log P of the object
    most, in the mean over the facts."""
    answer = m.change[:, :, FEED_FORWARD, :, 0]
    worst = m.layers[np.argmin(np.nanmean(answer, axis=0), axis=0)]
    mean = m.mean(np.nanmean(answer[:, 0], axis=1))
    by_class = "; ".join(
        f"{name}: layer {layer + 1}, {m.words(answer[:, 0, k])} without layer 1"
        for k, (name, layer) in enumerate(zip(CLASSES, worst, strict=True))
    )
    words = f"layer without which log P of the object falls most, and the change in nats: {by_class}"
    return Found(words, (worst == 0).all(), mean.mean, mean.error)


@claim(f"more is lost for each unit by which they promote the object, {SURELY}")
def neurons(m: Results) -> Found:
    """The neurons of {m.called} that promote the object most are missed more, for each unit of promotion, than other
    neurons of their layers whose values are as aligned with the object."""
    measured = m.neurons
    changes = measured.promoting, measured.random
    share = lambda change: m.words(100 * (change < -FELT).mean(axis=1), 0)
    per_unit = [change.sum(axis=1) / measured.promotion[..., k].sum(axis=1) for k, change in enumerate(changes)]
    more = m.mean(per_unit[1] - per_unit[0])
    median = lambda k: f"{np.median(measured.alignment[..., k]):.2g}"
    return Found(
        f"{share(changes[0])} % of the {changes[0].shape[1]} neurons that promote the object most cost log P of the "
        f"object more than {FELT:g} nats if silenced at the last token, {share(changes[1])} % of the others; mean "
        f"change {m.words(changes[0].mean(axis=1), 3)} and {m.words(changes[1].mean(axis=1), 3)} nats; for each unit "
        f"of promotion {m.words(per_unit[0], 4)} and {m.words(per_unit[1], 4)}, difference "
        f"{plus_minus(more.mean, more.error, 4)}; median alignment {median(0)} and {median(1)}",
        more.above(), more.mean, more.error,
    )  # fmt: skip


@claim(f"less than {SAME:g}", kind="identity")
def nothing(m: Results) -> Found:
    """If nothing is silenced, no answer changes."""
    return Found(f"largest change of a log probability {m.off:.1e} nats", m.off < SAME, m.off)


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    known = m.known("three tokens for the subject, and the answer of another passage for the foil")
    fed, attended = chosen(m, FEED_FORWARD, SUBJECT), chosen(m, ATTENTION, LAST)
    return (
        f"{known} The output of {'every layer' if len(m.layers) == m.num_layers else f'one layer of {m.p.every}'} is "
        "silenced, one part at one class of tokens at a time (zero ablation); tokens before the subject never are. "
        "(a), (b) The change of log P of the object without the attention, and without the feed-forward of a layer. "
        "(c), (d) The change of the margin, log P of the object minus log P of the object of another fact of the "
        "relation. (e) The change of log P of the object without one neuron at the last token, for the neurons that "
        "promote the object most and for others of their layers whose values are as aligned with it. (f) The change "
        f"of the margin, mean over layers {FIRST + 1} and on. Means over facts with standard errors over {m.units}; on "
        f"facts on which no layer was chosen, the feed-forward of layer {fed.layer + 1} is missed most at the last "
        f"token of the subject, {fed.margin.mean():.2f} nats of margin, and the attention of layer "
        f"{attended.layer + 1} at the last token, {attended.margin.mean():.2f}."
    )


def series(m: Results) -> dict:
    table = {"layer": m.layers + 1, "log P of object and foil_by_fact": m.log_p}
    for k, part in enumerate(NAMES):
        for c, place in enumerate(CLASSES):
            for name, values in (("object", m.change[:, :, k, c, 0]), ("margin", m.margin[:, :, k, c])):
                words, average = f"{name} without {part}, {place}", m.mean(values)
                table |= {words: average.mean, f"{words}, error": average.error}
            table[f"object first without {part}, {place}"] = np.nanmean(m.first[:, :, k, c], axis=0)
    return table | {"without a promoting neuron_by_fact": m.neurons.promoting,
                    "without a random neuron_by_fact": m.neurons.random}  # fmt: skip


@style()
def draw(m: Results) -> Figure:
    by_layer = [
        partial(_by_layer, change=values[:, :, part], ylabel=f"without {NAMES[part]}:\nchange of {quantity} (nats)")
        for quantity, values in (("log P(object)", m.change[..., 0]), ("the margin", m.margin))
        for part in range(len(PARTS))
    ]
    shown = panels(m, (*by_layer, _neurons, _totals), columns=2, height=7.2)
    axes = shown.get_axes()
    for row in (axes[:2], axes[2:4]):
        # Both parts share a scale, so that they can be compared.
        low, high = (pick(ax.get_ylim()[end] for ax in row) for end, pick in enumerate((min, max)))
        for ax in row:
            ax.set_ylim(low, high)
    one_legend(shown, axes[:4], loc="outside upper center", ncols=4, fontsize=6)
    return shown


def _by_layer(ax: Axes, m: Results, change: np.ndarray, ylabel: str) -> None:
    mean, error, _ = m.mean(change)
    for k, name in enumerate(CLASSES):
        time_series(m.layers + 1, mean[:, k], error[:, k], ax, label=name, colour=COLOURS[k], linestyle=LINES[k],
                    xlabel="layer", ylabel=ylabel)  # fmt: skip
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)
    # The first layer costs nats, later layers hundredths of a nat.
    ax.set_yscale("symlog", linthresh=0.1, linscale=0.7)
    ax.set_yticks([-10, -1, -0.1, 0, 0.1], labels=["−10", "−1", "−0.1", "0", "0.1"])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _neurons(ax: Axes, m: Results) -> None:
    for change, colour, line, label in (
        (m.neurons.promoting, COLOURS[1], "-", "promote the object most"),
        (m.neurons.random, COLOURS[3], "--", "others, as aligned"),
    ):
        ax.ecdf(change.ravel(), ls=line, color=colour, label=label)
    ax.axvline(0, color="0.6", lw=0.6, zorder=0)
    ax.set_xscale("symlog", linthresh=0.01, linscale=0.7)
    ax.set_xticks([-1, -0.1, -0.01, 0, 0.01, 0.1], labels=["−1", "−0.1", "−0.01", "0", "0.01", "0.1"], fontsize=6)
    ax.set(xlabel="without one neuron: change of log P(object) (nats)", ylabel="share of neurons", ylim=(0, 1))
    ax.legend(fontsize=6, loc="upper left")


def _totals(ax: Axes, m: Results) -> None:
    at = np.arange(len(CLASSES))
    for k, (part, colour, hatch) in enumerate(zip(NAMES, (COLOURS[3], COLOURS[1]), ("", "//"), strict=True)):
        mean, error, _ = m.mean(m.margin[:, m.late, k].mean(axis=1))
        ax.bar(at + 0.38 * (k - 0.5), mean, 0.36, yerr=error, color=colour, hatch=hatch, edgecolor="white", lw=0,
               capsize=2, label=part)  # fmt: skip
    ax.axhline(0, color="0.6", lw=0.6)
    ax.set_xticks(at, labels=("subject,\nearlier", "subject,\nlast", "between", "last"), fontsize=6)
    ax.set(ylabel=f"change of the margin (nats),\nmean over layers {FIRST + 1} and on")
    ax.legend(fontsize=6)


FIGURE = figure(
    __name__,
    over=lambda m: m.units,
    on=lambda m: m.measured(layers=m.num_layers),
    recorded=lambda m: m.recorded() | {"parts": list(PARTS), "objects of one token": int(m.facts.whole.sum())},
)
