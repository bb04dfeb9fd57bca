"""What the figure of facts claims: which part of which layer a fact is lost with, at which token, and which neurons.

A layer is chosen on every second fact and scored on the others, so that the worst of many is not worst by chance.
"""

from typing import NamedTuple

import numpy as np

from ...probe.measures.tally import Clustered, clustered_error
from ..framework.causal import ABSENT, NAME
from ..framework.experiment import Claim, over, plus_minus
from .measure import CLASSES, PARTS, Results


SAME = 1e-3  # nats: by how much float32 may move an answer
FIRST = 2  # layers that put words together: without one of them little is left of any text
FELT = 0.01  # nats of log probability from which a neuron counts as harmful to lose
SUBJECT, LAST = 1, 3  # of `CLASSES`
ATTENTION, FEED_FORWARD = 0, 1  # of `PARTS`
SURELY = "by two standard errors over relations, or as many as are as improbable with few"


class Chosen(NamedTuple):
    """The layer without which a part costs the most margin, chosen on facts 0, 2, ...

    **Attributes:**

    - `layer`: Its number, from 0.
    - `margin`: The change of log P(object) - log P(foil) of facts 1, 3, ... without it.
    - `answer`: The change of log P(object) of these.
    - `place`: The layer among those that were silenced.
    """

    layer: int
    margin: np.ndarray
    answer: np.ndarray
    place: int


def by_layer(m: Results, part: int, place: int) -> np.ndarray:
    """The change of the margin without a part of each layer at some places, (facts, layers)."""
    change = m.change[:, :, part, place]
    return change[..., 0] - change[..., 1]


def chosen(m: Results, part: int, place: int) -> Chosen:
    """The layer whose part matters most at these places, of those from `FIRST` on."""
    margin, late = by_layer(m, part, place), np.flatnonzero(m.layers >= FIRST)
    best = late[int(np.argmin(np.nanmean(margin[::2], axis=0)[late]))]
    return Chosen(int(m.layers[best]), margin[1::2, best], m.change[1::2, best, part, place, 0], best)


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure."""
    # The model of the package knows no facts, so that no claim on subjects is about one.
    of_subjects = () if m.own else (_claim_of_subject(m), _claim_of_fact(m), _claim_of_depth(m))
    rest = (_claim_of_last(m), _claim_of_first(m), _claim_of_neurons(m), _claim_of_nothing(m))
    return over(units_words(m), (*of_subjects, *rest))


def units_words(m: Results) -> str:
    """What errors are over."""
    return f"{len(np.unique(m.facts.units))} {'articles' if m.own else 'relations'}"


def surely(m: Results, values: np.ndarray, rows: slice = slice(None)) -> Clustered:
    """The mean over some facts that have such a place, and its error over relations."""
    return clustered_error(values, m.facts.units[rows])


OTHERS = slice(1, None, 2)  # the facts on which no layer was chosen


def of_model(m: Results) -> str:
    """What the network is called in a sentence."""
    return "the language model of the package" if m.own else NAME


def _told(m: Results, values: np.ndarray, digits: int = 2, rows: slice = slice(None)) -> str:
    mean, error, _ = surely(m, values, rows)
    return plus_minus(mean, error, digits)


def _claim_of_subject(m: Results) -> Claim:
    late = m.layers >= FIRST
    fed, attended = (by_layer(m, part, SUBJECT)[:, late].mean(axis=1) for part in (FEED_FORWARD, ATTENTION))
    more = surely(m, attended - fed)
    return Claim(
        says=f"At the last token of the subject {of_model(m)} loses more margin without the feed-forward of a layer "
        "than "
        f"without its attention, in the mean over the layers, the first {FIRST} aside.",
        measured=f"change of the margin without one of them, mean over the layers: feed-forward {_told(m, fed, 3)}, "
        f"attention {_told(m, attended, 3)} nats",
        criterion=f"more is lost with the feed-forward, {SURELY}",
        holds=more.above(),
        kind="finding",
        value=float(more.mean),
        error=float(more.error),
    )


def _claim_of_last(m: Results) -> Claim:
    one, other = chosen(m, ATTENTION, LAST), chosen(m, FEED_FORWARD, LAST)
    late = np.flatnonzero(m.layers >= FIRST)
    fed = by_layer(m, FEED_FORWARD, LAST)[OTHERS]
    # Of every layer, and not of the one that looks worst alone.
    beyond = [surely(m, fed[:, layer] - one.margin, OTHERS) for layer in late]
    least = min(beyond, key=lambda each: float(each.mean))
    told = lambda part, of: (
        f"{PARTS[part].replace('_', '-')} of layer {of.layer + 1}: margin {_told(m, of.margin, 2, OTHERS)}, log P of "
        "the "
        f"object {_told(m, of.answer, 2, OTHERS)}"
    )
    return Claim(
        says=f"At the last token {of_model(m)} loses more margin without the attention of one layer than without the "
        f"feed-forward of any, the first {FIRST} layers aside.",
        measured=f"change in nats without the layer that is missed most: {told(ATTENTION, one)}; "
        f"{told(FEED_FORWARD, other)}; least difference from any of {len(late)} feed-forwards "
        f"{plus_minus(least.mean, least.error)}",
        criterion=f"more margin lost than with each of them, {SURELY}, over facts on which no layer was chosen",
        holds=all(each.above() for each in beyond),
        kind="finding",
        value=float(least.mean),
        error=float(least.error),
    )


def _claim_of_fact(m: Results) -> Claim:
    found = chosen(m, FEED_FORWARD, SUBJECT)
    lost, foil = surely(m, found.margin, OTHERS), found.answer - found.margin
    whole = m.log_p[OTHERS, 0] - m.log_p[OTHERS, 1]
    first = m.first[OTHERS, found.place, FEED_FORWARD, SUBJECT]
    share = lambda values: f"{100 * float(np.nanmean(values)):.0f} %"
    return Claim(
        says=f"Without the feed-forward of one layer at the last token of the subject {of_model(m)} prefers the "
        "object less "
        "to that of another fact of the same relation.",
        measured=f"layer {found.layer + 1}: the margin, {whole.mean():.2f} nats, changes by "
        f"{plus_minus(lost.mean, lost.error)}: log P of the object by {_told(m, found.answer, 2, OTHERS)}, that of the "
        f"other object by {_told(m, foil, 2, OTHERS)} nats, {100 * foil.mean() / -found.margin.mean():.0f} % of it; "
        "the "
        f"object stays the first answer in {share(first)} of the facts and before the other in "
        f"{share(whole + found.margin > 0)}",
        criterion=f"the margin falls, {SURELY}, over facts on which the layer was not chosen",
        holds=lost.below(),
        kind="finding",
        value=float(lost.mean),
        error=float(lost.error),
    )


def thirds(m: Results) -> np.ndarray:
    """The change of the margin without the feed-forward of a layer at the last token of the subject, mean over the
    first, middle and last third of the layers from `FIRST` on, (facts, 3); NaN where there is no such layer."""
    margin = by_layer(m, FEED_FORWARD, SUBJECT)
    parts = np.array_split(np.flatnonzero(m.layers >= FIRST), 3)
    return np.stack([margin[:, of].mean(axis=1) if of.size else np.full(len(margin), np.nan) for of in parts], axis=1)


def _claim_of_depth(m: Results) -> Claim:
    each = thirds(m)
    there = [column for column in each.T if not np.isnan(column).any()]
    beyond = [surely(m, other - there[0]) for other in there[1:]]
    least = min(beyond, key=lambda one: float(one.mean))
    return Claim(
        says=f"At the last token of the subject {of_model(m)} loses more margin without a feed-forward of the first "
        "third "
        "of the layers than without one of the other two.",
        measured=f"mean change of the margin without one layer, in nats, third by third of the layers, the first "
        f"{FIRST} aside: {', '.join(_told(m, column, 3) for column in there)}",
        criterion=f"the first third costs more than each other one, {SURELY}",
        holds=all(one.above() for one in beyond),
        kind="finding",
        value=float(least.mean),
        error=float(least.error),
    )


def _claim_of_first(m: Results) -> Claim:
    answer = m.change[:, :, FEED_FORWARD, :, 0]
    layer = m.layers[np.argmin(np.nanmean(answer, axis=0), axis=0)]
    first = answer[:, 0]
    mean = surely(m, np.nanmean(first, axis=1))
    of = "; ".join(
        f"{name}: layer {int(at) + 1}, {_told(m, first[:, k])} without layer 1"
        for k, (name, at) in enumerate(zip(CLASSES, layer, strict=True))
    )
    return Claim(
        says=f"Of the feed-forward layers of {of_model(m)} the first one costs log P of the object most if it is "
        "silenced, "
        "in the mean over the facts, at each of four classes of tokens.",
        measured=f"layer whose loss costs log P of the object most, and the change in nats: {of}",
        criterion="the mean over the facts is lowest for the first layer, for every class of tokens",
        holds=bool((layer == 0).all()),
        kind="finding",
        value=float(mean.mean),
        error=float(mean.error),
    )


def _claim_of_neurons(m: Results) -> Claim:
    both = (m.neurons.promoting, m.neurons.random)
    share = lambda change: _told(m, 100 * (change < -FELT).mean(axis=1), 0)
    # For each unit of what they promote it by: that the more promoting are missed more would say nothing.
    for_unit = [
        change.sum(axis=1) / promotion.sum(axis=1)
        for change, promotion in zip(both, np.moveaxis(m.neurons.promotion, 2, 0), strict=True)
    ]
    more = surely(m, for_unit[1] - for_unit[0])
    median = lambda values, k: f"{np.median(values[..., k]):.2g}"
    return Claim(
        says=f"The neurons of {of_model(m)} that promote the object most are missed for more than they promote it by, "
        "beside others of their layers whose writing is as aligned with it.",
        measured=f"of the {m.neurons.promoting.shape[1]} that promote it most {share(both[0])} % cost log P of the "
        "object "
        f"more than {FELT:g} nats if silenced at the last token, of the others {share(both[1])} %; mean change "
        f"{_told(m, both[0].mean(axis=1), 3)} and {_told(m, both[1].mean(axis=1), 3)} nats; for each unit by which "
        "they "
        f"promote it {_told(m, for_unit[0], 4)} and {_told(m, for_unit[1], 4)}, difference "
        f"{plus_minus(more.mean, more.error, 4)}; median alignment {median(m.neurons.alignment, 0)} and "
        f"{median(m.neurons.alignment, 1)}",
        criterion=f"more is lost for each unit by which they promote the object, {SURELY}",
        holds=more.above(),
        kind="finding",
        value=float(more.mean),
        error=float(more.error),
    )


def _claim_of_nothing(m: Results) -> Claim:
    return Claim(
        says="If nothing is silenced, nothing changes.",
        measured=f"largest change of a log probability {m.off:.1e} nats",
        criterion=f"less than {SAME:g}",
        holds=m.off < SAME,
        kind="identity",
        value=m.off,
    )


def caption_of(m: Results) -> str:
    """What is seen, and what holds."""
    known = (
        f"{ABSENT} It knows no facts: {len(m.facts)} beginnings of passages stand for them, with what it expects next "
        "for the object, two tokens for the subject, and the answer of another passage for the foil. "
        if m.own else
        f"{len(m.facts)} facts of {len(np.unique(m.facts.relations))} relations that {NAME} knows, of {m.listed} "
        "listed: the first token of the object is its first answer. "
    )  # fmt: skip
    subject, last = chosen(m, FEED_FORWARD, SUBJECT), chosen(m, ATTENTION, LAST)
    step = "every layer" if len(m.layers) == m.num_layers else f"one layer of {m.p.every}"
    return (
        f"{known}What {step} writes is silenced, one part at one class of tokens at a time (zero ablation); tokens "
        "before the subject stay. Change of the log probability of the object without (a) the attention, (b) the "
        "feed-forward of a layer. (c), (d) The same of the margin, log P of the object less that of the object of "
        "another fact of the relation. (e) The change of log P "
        "of the object without one neuron at the last token, of those that promote it most and of others of their "
        "layers whose writing is as aligned with it. (f) The margin, mean over layers {FIRST + 1} and on. Means over "
        f"facts with their standard errors over {units_words(m)}; on facts on which no layer was chosen, at the last "
        "token of the subject the feed-forward of "
        f"layer {subject.layer + 1} is missed most, {subject.margin.mean():.2f} nats of margin, and at the last "
        f"token the attention of layer {last.layer + 1}, {last.margin.mean():.2f}."
    )
