"""What the figure of facts claims: which part of which layer a fact is lost with, at which token, and which neurons.

A layer is chosen on every second fact and scored on the others, so that the worst of many is not worst by chance.
"""

from typing import NamedTuple

import numpy as np

from ...probe.measures.tally import average_of
from ..framework.causal import ABSENT
from ..framework.experiment import Claim, plus_minus
from .measure import CLASSES, PARTS, Results


SAME = 1e-3  # nats: by how much float32 may move an answer
FIRST = 2  # layers that put words together: without one of them little is left of any text
FELT = 0.01  # nats of log probability from which a neuron counts as harmful to lose
SUBJECT, LAST = 1, 3  # of `CLASSES`
ATTENTION, FEED_FORWARD = 0, 1  # of `PARTS`


class Chosen(NamedTuple):
    """The layer without which a part costs the most margin, chosen on facts 0, 2, ...

    **Attributes:**

    - `layer`: Its number, from 0.
    - `margin`: The change of log P(object) - log P(foil) of facts 1, 3, ... without it.
    - `answer`: The change of log P(object) of these.
    """

    layer: int
    margin: np.ndarray
    answer: np.ndarray


def by_layer(m: Results, part: int, place: int) -> np.ndarray:
    """The change of the margin without a part of each layer at some places, (facts, layers)."""
    change = m.change[:, :, part, place]
    return change[..., 0] - change[..., 1]


def chosen(m: Results, part: int, place: int) -> Chosen:
    """The layer whose part matters most at these places, of those from `FIRST` on."""
    margin, late = by_layer(m, part, place), np.flatnonzero(m.layers >= FIRST)
    best = late[int(np.argmin(np.nanmean(margin[::2], axis=0)[late]))]
    return Chosen(int(m.layers[best]), margin[1::2, best], m.change[1::2, best, part, place, 0])


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure."""
    # The model of the package knows no facts, so that no claim on subjects is about one.
    of_subjects = () if m.own else (_claim_of_subject(m), _claim_of_fact(m), _claim_of_depth(m))
    return (*of_subjects, _claim_of_last(m), _claim_of_first(m), _claim_of_neurons(m), _claim_of_nothing(m))


def of_model(m: Results) -> str:
    """What the network is called in a sentence."""
    return "the language model of the package" if m.own else "SmolLM2"


def _claim_of_subject(m: Results) -> Claim:
    late = m.layers >= FIRST
    fed, attended = (by_layer(m, part, SUBJECT)[:, late].mean(axis=1) for part in (FEED_FORWARD, ATTENTION))
    more = average_of(attended - fed)
    return Claim(
        says=f"At the last token of the subject the feed-forward of a layer of {of_model(m)} is worth more of a fact "
        f"than its attention, the first {FIRST} layers aside.",
        measured=f"change of the margin without one of them, mean over the layers: feed-forward "
        f"{plus_minus(*_mean(fed), 3)}, attention {plus_minus(*_mean(attended), 3)} nats",
        criterion="more is lost with the feed-forward, by two standard errors",
        holds=bool(more.mean > 2 * more.error),
        kind="finding",
        value=float(more.mean),
        error=float(more.error),
    )


def _claim_of_last(m: Results) -> Claim:
    one, other = chosen(m, ATTENTION, LAST), chosen(m, FEED_FORWARD, LAST)
    more = average_of(other.margin - one.margin)
    told = lambda part, of: (
        f"{PARTS[part].replace('_', '-')} of layer {of.layer + 1}: margin {plus_minus(*_mean(of.margin))}, log P of "
        f"the object {plus_minus(*_mean(of.answer))}"
    )
    return Claim(
        says=f"At the last token the attention of one layer of {of_model(m)} is worth more of a fact than the "
        f"feed-forward of any, the first {FIRST} layers aside.",
        measured=f"change in nats without the layer that is missed most: {told(ATTENTION, one)}; "
        f"{told(FEED_FORWARD, other)}",
        criterion="more margin lost by two standard errors, over facts on which the layers were not chosen",
        holds=bool(more.mean > 2 * more.error),
        kind="finding",
        value=float(more.mean),
        error=float(more.error),
    )


def _claim_of_fact(m: Results) -> Claim:
    found = chosen(m, FEED_FORWARD, SUBJECT)
    lost, of_foil = _mean(found.margin), _mean(found.answer - found.margin)
    return Claim(
        says=f"Without the feed-forward of one layer at the last token of the subject {of_model(m)} loses the fact, "
        "and not all answers alike.",
        measured=f"layer {found.layer + 1}: log P of the object changes by {plus_minus(*_mean(found.answer))}, that of "
        f"the object of another fact of the same relation by {plus_minus(*of_foil)} nats",
        criterion="the object loses more by two standard errors",
        holds=bool(lost[0] < -2 * lost[1]),
        kind="finding",
        value=float(lost[0]),
        error=float(lost[1]),
    )


def thirds(m: Results) -> np.ndarray:
    """The change of the margin without the feed-forward of a layer at the last token of the subject, mean over the
    first, middle and last third of the layers from `FIRST` on, (facts, 3); NaN where there is no such layer."""
    margin = by_layer(m, FEED_FORWARD, SUBJECT)
    parts = np.array_split(np.flatnonzero(m.layers >= FIRST), 3)
    return np.stack([margin[:, of].mean(axis=1) if of.size else np.full(len(margin), np.nan) for of in parts], axis=1)


def _claim_of_depth(m: Results) -> Claim:
    each = thirds(m)
    other = 1 + int(np.nanargmin(each[:, 1:].mean(axis=0)))
    more = average_of(each[:, other] - each[:, 0])
    told = ", ".join(plus_minus(*_mean(column), 3) for column in each.T if not np.isnan(column).any())
    return Claim(
        says=f"What the feed-forward of {of_model(m)} adds at the last token of the subject matters most in the first "
        "third of the layers.",
        measured=f"mean change of the margin without one layer, in nats, third by third of the layers, the first "
        f"{FIRST} aside: {told}",
        criterion="the first third costs more than each other one, by two standard errors",
        holds=bool(more.mean > 2 * more.error),
        kind="finding",
        value=float(more.mean),
        error=float(more.error),
    )


def _claim_of_first(m: Results) -> Claim:
    answer = m.change[:, :, FEED_FORWARD, :, 0]
    layer = m.layers[np.argmin(np.nanmean(answer, axis=0), axis=0)]
    first = answer[:, 0]
    values = np.nanmean(first, axis=1)
    value, error = _mean(values)
    of = "; ".join(
        f"{name}: layer {int(at) + 1}, {plus_minus(*_mean(first[:, k]))} without layer 1"
        for k, (name, at) in enumerate(zip(CLASSES, layer, strict=True))
    )
    return Claim(
        says=f"Of all feed-forward layers {of_model(m)} misses the first one most, at whatever token it is silenced.",
        measured=f"layer whose loss costs log P of the object most, and the change in nats: {of}",
        criterion="it is the first layer for every class of tokens",
        holds=bool((layer == 0).all()),
        kind="finding",
        value=value,
        error=error,
    )


def _claim_of_neurons(m: Results) -> Claim:
    harmful = lambda change: (change < -FELT).mean(axis=1)
    promoting, random = harmful(m.neurons.promoting), harmful(m.neurons.random)
    more = average_of(promoting - random)
    share = lambda values: " ± ".join(f"{100 * value:.0f}" for value in _mean(values))
    # By what each writes, as some that promote most have no other of their size in their layer.
    both = (m.neurons.promoting, m.neurons.random)
    of_size = [
        change.sum(axis=1) / size.sum(axis=1)
        for change, size in zip(both, np.moveaxis(m.neurons.size, 2, 0), strict=True)
    ]
    less = average_of(of_size[1] - of_size[0])
    return Claim(
        says=f"Of the neurons of {of_model(m)} whose values promote the object, more are missed than of "
        "others of their "
        "layers, nearest to them in what they write.",
        measured=f"of the {m.neurons.promoting.shape[1]} that promote it most {share(promoting)} % cost log P of the "
        f"object more than {FELT:g} nats if silenced at the last token, of the others {share(random)} %; mean change "
        f"{plus_minus(*_mean(m.neurons.promoting.mean(axis=1)), 3)} and "
        f"{plus_minus(*_mean(m.neurons.random.mean(axis=1)), 3)}; for each unit of what they write "
        f"{_mean(of_size[0])[0]:.4f} and {_mean(of_size[1])[0]:.4f}; median of what they write "
        f"{np.median(m.neurons.size[..., 0]):.0f} and {np.median(m.neurons.size[..., 1]):.0f}",
        criterion="a larger share, and more for each unit of what they write, both by two standard errors",
        holds=bool(more.mean > 2 * more.error and less.mean > 2 * less.error),
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


def _mean(values: np.ndarray) -> tuple[float, float]:
    """Mean and standard error over the facts that have such a place."""
    of = average_of(values[~np.isnan(values)])
    return float(of.mean), float(of.error)


def caption_of(m: Results) -> str:
    """What is seen, and what holds."""
    known = (
        f"{ABSENT} It knows no facts: {len(m.facts)} beginnings of passages stand for them, with what it expects next "
        "for the object, two tokens for the subject, and the answer of another passage for the foil. "
        if m.own else
        f"{len(m.facts)} facts of {len(np.unique(m.facts.relations))} relations that SmolLM2 knows, of {m.listed} "
        "listed: the first token of the object is its first answer. "
    )  # fmt: skip
    subject, last = chosen(m, FEED_FORWARD, SUBJECT), chosen(m, ATTENTION, LAST)
    step = "every layer" if len(m.layers) == m.num_layers else f"one layer of {m.p.every}"
    return (
        f"{known}What {step} writes is silenced, one part at one class of tokens at a time (zero ablation); tokens "
        "before the subject stay. Change of the log probability of the object without (a) the attention, (b) the "
        "feed-forward of a layer. (c), (d) The same of the margin, log P of the object less that of the object of "
        "another fact of the relation: what is lost of the fact, and not of all answers alike. (e) The change of log P "
        "of the object without one neuron at the last token, of those that promote it most and of others of their "
        f"layers, nearest in what they write. (f) The margin, mean over layers {FIRST + 1} and on. Means over "
        f"facts with their "
        "standard errors; on facts on which no layer was chosen, at the last token of the subject the feed-forward of "
        f"layer {subject.layer + 1} is missed most, {_mean(subject.margin)[0]:.2f} nats of margin, and at the last "
        f"token the attention of layer {last.layer + 1}, {_mean(last.margin)[0]:.2f}."
    )
