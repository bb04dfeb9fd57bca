"""What is measured of facts: every layer's attention and feed-forward silenced at each class of places, and neurons.

Places are of four classes: the tokens of the subject before its last, its last, those between it and the last of the
text, and that last one. Tokens before the subject stay: the first one is the attention sink of `causal-network`, and
without it nothing is left of any text.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ... import probe
from ...plot import OKABE_ITO, style, time_series
from ...probe.measures.knocked_out import PARTS, Jobs, Prepared, answers_without, prepare
from ...probe.measures.survey import Clustered, clustered_error
from ...probe.networks.batch import continuation_ids, prompt_ids
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, plus_minus
from ..framework.figure import declared
from ..framework.verdict import Measured, Subject
from ..shared.causal import ABSENT, NAME, OWN, PASSAGES, SMOLLM2, smollm2
from ..shared.layout import WIDTH
from ..shared.networks import articles_of, passages


# Facts as texts: a subject in a template of its relation, and the word that completes it.
#
# A text is "The capital of France is", its object " Paris". The object is scored by its first token, which for most is
# the whole word. A fact is known if that token is the first answer of the network.
#
# Invariants: no subject begins its text, so that the first token, an attention sink, is no subject; at least one token
# follows the subject; every fact has a foil, the object of another fact of its relation that differs in its first
# token.


FILE = Path(__file__).with_name("facts.json")


@dataclass(frozen=True, eq=False)
class Facts:
    """Facts in token ids, padded on the right.

    **Attributes:**

    - `relations`: That of each fact.
    - `token_ids`: (facts, n), the texts.
    - `lengths`: (facts,), how many tokens each has.
    - `begins`, `ends`: (facts,), the place of the first token of the subject, and of its last.
    - `answers`: (facts, 2), the first token of the object, and of the foil.
    - `whole`: (facts,), whether the object is one token.
    - `units`: (facts,), the independent unit that each is of, over which errors are: its relation.
    """

    relations: np.ndarray
    token_ids: np.ndarray
    lengths: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    answers: np.ndarray
    whole: np.ndarray
    units: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, rows: Any) -> "Facts":
        """Some of the facts."""
        return Facts(*(getattr(self, name)[rows] for name in Facts.__dataclass_fields__))


def read_facts() -> list[tuple[str, str, str, str]]:
    """Relation, template, subject and object of each fact that the package lists."""
    listed = json.loads(FILE.read_text("utf-8"))
    return [
        (relation, entry["template"], subject, answer)
        for relation, entry in listed.items()
        for subject, answer in entry["facts"].items()
    ]


def facts_of(model: probe.Model, listed: list[tuple[str, str, str, str]]) -> Facts:
    """The facts in the tokens of a model; those whose subject is no run of whole tokens in the text are left out."""
    ids_of = lambda texts: prompt_ids(model, list(texts))
    whole = ids_of(template.format(subject) for _, template, subject, _ in listed)
    # The text up to the subject, and with it: both are the beginning of the text in tokens too, as a blank ends each.
    before = ids_of(template.split("{}")[0].rstrip() for _, template, _, _ in listed)
    until = ids_of(template.split("{}")[0] + subject for _, template, subject, _ in listed)
    objects = [
        continuation_ids(model, template.format(subject), f" {answer}") for _, template, subject, answer in listed
    ]
    is_run = lambda row, some: len(some) < len(row) and row[: len(some)] == some
    kept = [
        i for i, row in enumerate(whole)
        if before[i] and len(before[i]) < len(until[i]) and is_run(row, before[i]) and is_run(row, until[i])
    ]  # fmt: skip
    ids = np.zeros((len(kept), max(len(whole[i]) for i in kept)), np.int32)
    for row, i in enumerate(kept):
        ids[row, : len(whole[i])] = whole[i]
    of_kept = lambda values: np.array([values[i] for i in kept])
    relations = of_kept([relation for relation, *_ in listed])
    return Facts(
        relations, ids, of_kept([len(row) for row in whole]),
        of_kept([len(row) for row in before]), of_kept([len(row) - 1 for row in until]),
        np.array([(objects[i][0], -1) for i in kept]), of_kept([len(answer) == 1 for answer in objects]), relations,
    )  # fmt: skip


def known_facts(facts: Facts, first_answers: np.ndarray, most: int) -> Facts:
    """Those whose object is the first answer, (facts,), at most so many, evenly spread, each with a foil."""
    known = with_foils(facts.take(np.flatnonzero(first_answers == facts.answers[:, 0])))
    return known if len(known) <= most else known.take(np.linspace(0, len(known) - 1, most).round().astype(int))


def with_foils(facts: Facts) -> Facts:
    """The facts that have another object in their relation, each with the next such one as its foil."""
    answers, kept = facts.answers.copy(), []
    for i, relation in enumerate(facts.relations):
        of_relation = np.flatnonzero(facts.relations == relation)
        # From the fact on, round the relation: foils are as frequent as objects.
        turned = np.concatenate([of_relation[of_relation > i], of_relation[of_relation < i]])
        others = facts.answers[turned, 0]
        others = others[others != answers[i, 0]]
        if others.size:
            answers[i, 1] = others[0]
            kept.append(i)
    return replace(facts.take(np.array(kept, int)), answers=answers[kept])


# Single neurons that say the object: those whose values promote it most, silenced one by one at the last token.
#
# Neuron m of layer l writes $a_m v_m$; it promotes word w by $a_m \langle v_m, u_w \rangle$, with u the unembedding, as
# `transformer.key_value_memory` has it. Beside each of the neurons that promote the object most, of all layers, stands
# another one of the same layer, drawn at random of those whose writing points most nearly as much towards the object:
# by the alignment $\mathrm{sign}(a_m) \langle v_m, u_w \rangle / |v_m|$. Whoever promotes a word is missed where it is
# asked for; the control asks whether these neurons are missed for more than they promote it by.
#
# Source: Geva et al., *Transformer feed-forward layers are key-value memories* (2012.14913), Section 4.


_NEAREST = 5  # of which one is drawn
_AT_ONCE = 64


class Neurons(NamedTuple):
    """Single neurons silenced at the last token.

    **Attributes:**

    - `layer`: Of each neuron, the most promoting first, (facts, neurons).
    - `promoting`, `random`: The change of the log probability of the object, (facts, neurons).
    - `promotion`: By how much each promotes the object, and the random one, (facts, neurons, 2).
    - `alignment`: The alignment of both, (facts, neurons, 2).
    """

    layer: np.ndarray
    promoting: np.ndarray
    random: np.ndarray
    promotion: np.ndarray
    alignment: np.ndarray


def neurons_of(ready: Prepared, facts: Facts, log_p: np.ndarray, many: int, seed: int) -> Neurons:
    """The neurons that promote each object most, and as many random ones."""
    network, rng = ready.network, np.random.default_rng(seed)
    blocks, order = network.blocks(), network.order()
    words = np.asarray(network.unembedding())[facts.answers[:, 0]]
    fired = np.moveaxis(np.asarray(ready.clean.fired), 0, 1)
    values = [np.asarray(blocks[block].neuron_values().kernel) for block in order]
    # (facts, layers, m)
    promotion = fired * np.stack([words @ of_layer.T for of_layer in values], axis=1)
    size = np.abs(fired) * np.stack([np.linalg.norm(of_layer, axis=1) for of_layer in values])
    alignment = promotion / np.where(size > 0, size, 1)
    chosen, drawn = choose(promotion, alignment, many, rng)
    log_p_without = np.full(2 * len(facts) * many, np.nan)
    numbers = np.stack([chosen, drawn]).ravel()
    text = np.tile(np.repeat(np.arange(len(facts)), many), 2)
    for layer in np.unique(chosen // promotion.shape[2]):
        here = np.flatnonzero(numbers // promotion.shape[2] == layer)
        # So many at a time, the last filled up with copies: one compiled program.
        for part in np.split(here, range(_AT_ONCE, len(here), _AT_ONCE)):
            filled = np.concatenate([part, np.full(_AT_ONCE - len(part), part[0])])
            of, last = text[filled], facts.lengths[text[filled]] - 1
            jobs = Jobs(of, last, last + 1, np.ones(_AT_ONCE, int), numbers[filled] % promotion.shape[2])
            log_p_without[part] = answers_without(ready, int(layer), jobs, facts.answers)[: len(part), 0]
    change = log_p_without.reshape(2, len(facts), many) - log_p[:, 0][None, :, None]
    of_both = lambda values: np.stack(
        [np.take_along_axis(values.reshape(len(facts), -1), of, axis=1) for of in (chosen, drawn)], axis=-1
    )
    return Neurons(chosen // promotion.shape[2], change[0], change[1], of_both(promotion), of_both(alignment))


def choose(
    promotion: np.ndarray, alignment: np.ndarray, many: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers layer * m + neuron of those that promote most in each fact, and of random ones as aligned.

    **Arguments:**

    - `promotion`, `alignment`: Of each neuron, (facts, layers, m).
    - `many`: How many of each fact.
    - `rng`: Draws.

    **Returns:**

    Two arrays, (facts, many). The random ones are none of the promoting ones, and each is there once.
    """
    facts, _, m = promotion.shape
    chosen = np.argsort(-promotion.reshape(facts, -1), axis=1, kind="stable")[:, :many]
    drawn = np.zeros_like(chosen)
    for i in range(facts):
        taken = set(chosen[i].tolist())
        for k, number in enumerate(chosen[i]):
            layer, neuron = divmod(int(number), m)
            nearest = np.argsort(np.abs(alignment[i, layer] - alignment[i, layer, neuron]), kind="stable")
            free = [int(other) for other in layer * m + nearest if int(other) not in taken][:_NEAREST]
            drawn[i, k] = free[int(rng.integers(len(free)))]
            taken.add(int(drawn[i, k]))
    return chosen, drawn


CLASSES = ("subject before its last token", "last token of the subject", "between", "last token")
OWN_LENGTH = 10  # tokens of a passage, of the model of the package


@dataclass(frozen=True)
class Parameters:
    """What of the figure can be set."""

    facts: int = parameter(200, "how many known facts, at most", least=8, most=1000, quick=16)
    every: int = parameter(1, "which layers: every so many", least=1, most=64, quick=6)
    neurons: int = parameter(10, "neurons of each fact that are silenced one by one", least=1, most=100, quick=4)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the figure shows.

    **Attributes:**

    - `own`: Whether the network is that of the package, SmolLM2 being absent.
    - `listed`: How many facts were asked for; 0 of the network of the package.
    - `facts`: Those that are known.
    - `layers`: Which were silenced, from 0.
    - `num_layers`: How many there are.
    - `log_p`: Of object and foil by the whole network, (facts, 2).
    - `change`: The change of both, (facts, layers, parts, classes, 2); NaN where a fact has no such place.
    - `first`: Whether the object is still the first answer, 1 or 0, (facts, layers, parts, classes); NaN as there.
    - `off`: By how much an answer moves, at most, if nothing is silenced.
    - `neurons`: Single neurons.
    """

    p: Parameters
    own: bool
    listed: int
    facts: Facts
    layers: np.ndarray
    num_layers: int
    log_p: np.ndarray
    change: np.ndarray
    first: np.ndarray
    off: float
    neurons: Neurons


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Find the known facts, and silence every part."""
    model = smollm2()
    own = model is None
    if model is None:
        say(ABSENT)
        model = probe.load("language-model")
        listed, asked = 0, own_facts()
    else:
        listed, asked = len(read_facts()), facts_of(model, read_facts())
    say(f"{len(asked)} texts: what is known")
    first = first_answers(model, asked)
    if own:
        # What it expects takes the place of what is true.
        asked.answers[:, 0] = first
    facts = known_facts(asked, first, p.facts)
    ready = prepare(model, facts.token_ids, facts.lengths)
    return measure_prepared(p, ready, facts, own, listed, settings.seed, say)


def first_answers(model: probe.Model, facts: Facts) -> np.ndarray:
    """The most probable next token of each text, (facts,)."""
    first, widest = np.zeros(len(facts), int), facts.token_ids.shape[1]
    # Short texts apart from long ones, whose width all of a batch have.
    widths = np.minimum(-(-facts.lengths // 4) * 4, widest)
    for width in np.unique(widths):
        rows = np.flatnonzero(widths == width)
        some = facts.take(rows)
        some = replace(some, token_ids=some.token_ids[:, :width])
        first[rows] = np.asarray(prepare(model, some.token_ids, some.lengths).clean.log_p).argmax(axis=1)
    return first


def measure_prepared(
    p: Parameters, ready: Prepared, facts: Facts, own: bool, listed: int, seed: int, say: Callable[[str], None]
) -> Results:
    """The same of texts that a network has read."""
    log_p = np.take_along_axis(np.asarray(ready.clean.log_p), facts.answers, axis=1)
    # A network of few layers is silenced in all.
    layers = np.arange(0, len(ready.order), p.every if 3 * p.every <= len(ready.order) else 1)
    jobs, cells = jobs_of(facts)
    change = np.full((len(facts), len(layers), len(PARTS), len(CLASSES), 2), np.nan)
    first = np.full(change.shape[:-1], np.nan)
    for k, layer in enumerate(layers):
        say(f"layer {layer + 1} of {len(ready.order)} silenced, in {len(jobs.text)} ways")
        found = answers_without(ready, int(layer), jobs, facts.answers, best=True)
        change[jobs.text, k, jobs.part, cells] = found[:, :2] - log_p[jobs.text]
        first[jobs.text, k, jobs.part, cells] = found[:, 0] == found[:, 2]
    nothing = Jobs(np.arange(len(facts)), facts.begins, facts.begins, np.zeros(len(facts), int))
    off = float(np.abs(answers_without(ready, 0, nothing, facts.answers) - log_p).max())
    say("single neurons")
    return Results(
        p, own, listed, facts, layers, len(ready.order), log_p, change, first, off,
        neurons_of(ready, facts, log_p, p.neurons, seed),
    )  # fmt: skip


def jobs_of(facts: Facts) -> tuple[Jobs, np.ndarray]:
    """Each part at each class of places of each fact, and of which class each is."""
    last = facts.lengths - 1
    spans = np.array([
        (facts.begins, facts.ends), (facts.ends, facts.ends + 1), (facts.ends + 1, last), (last, last + 1)
    ])  # fmt: skip
    # (classes, facts): some subjects have one token, and some are followed by the last token at once.
    cells, text = np.nonzero(spans[:, 0] < spans[:, 1])
    both = lambda column: np.tile(column, len(PARTS))
    part = np.repeat(np.arange(len(PARTS)), len(text))
    return Jobs(both(text), both(spans[cells, 0, text]), both(spans[cells, 1, text]), part), both(cells)


def own_facts() -> Facts:
    """Beginnings of passages for the model of the package, which knows no facts: two of their tokens for a subject."""
    ids, mask = passages(OWN_LENGTH)
    long = mask.all(axis=1)
    ids, articles = ids[long], articles_of(probe.bundled_texts())[long]
    of_all = lambda value: np.full(len(ids), value)
    answers = np.full((len(ids), 2), -1)
    return Facts(
        np.array(["passage"] * len(ids)), ids, of_all(OWN_LENGTH), of_all(4), of_all(6), answers,
        np.ones(len(ids), bool), articles,
    )  # fmt: skip


# What the figure of facts claims: which part of which layer a fact is lost with, at which token, and which neurons.
#
# A layer is chosen on every second fact and scored on the others, so that the worst of many is not worst by chance.


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


# The panels of facts: what each layer's parts are worth at each class of tokens, and single neurons.


COLOURS, LINES = (OKABE_ITO[1], OKABE_ITO[5], OKABE_ITO[2], OKABE_ITO[0]), ("--", "-", ":", "-.")


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 7.2), layout="constrained")
    axes = figure.subplots(3, 2, sharex=False)
    margin = m.change[..., 0] - m.change[..., 1]
    for k, part in enumerate(PARTS):
        name = part.replace("_", "-")
        _by_layer(axes[0, k], m, m.change[..., 0][:, :, k], f"without {name}:\nchange of log P(object) (nats)")
        _by_layer(axes[1, k], m, margin[:, :, k], f"without {name}:\nchange of the margin (nats)")
    for row in axes[:2]:
        # One scale for both parts, so that they can be compared.
        low = min(ax.get_ylim()[0] for ax in row)
        high = max(ax.get_ylim()[1] for ax in row)
        for ax in row:
            ax.set_ylim(low, high)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize=6)
    _neurons(axes[2, 0], m)
    _totals(axes[2, 1], m, margin)
    for letter, ax in zip("abcdef", axes.flat, strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _by_layer(ax: Axes, m: Results, change: np.ndarray, ylabel: str) -> None:
    mean, error, _ = clustered_error(change, m.facts.units)
    for k, name in enumerate(CLASSES):
        time_series(m.layers + 1, mean[:, k], error[:, k], ax, label=name, colour=COLOURS[k], linestyle=LINES[k],
                    xlabel="layer", ylabel=ylabel)  # fmt: skip
    if (legend := ax.get_legend()) is not None:
        legend.remove()
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)
    # The first layer costs nats, later ones hundredths of a nat.
    ax.set_yscale("symlog", linthresh=0.1, linscale=0.7)
    ax.set_yticks([-10, -1, -0.1, 0, 0.1], labels=["−10", "−1", "−0.1", "0", "0.1"])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _neurons(ax: Axes, m: Results) -> None:
    for change, colour, line, label in (
        (m.neurons.promoting, COLOURS[1], "-", "promote the object most"),
        (m.neurons.random, COLOURS[3], "--", "others, as aligned"),
    ):
        values = np.sort(change.ravel())
        ax.plot(values, np.arange(1, values.size + 1) / values.size, line, color=colour, label=label)
    ax.axvline(0, color="0.6", lw=0.6, zorder=0)
    ax.set_xscale("symlog", linthresh=0.01, linscale=0.7)
    ax.set_xticks([-1, -0.1, -0.01, 0, 0.01, 0.1], labels=["−1", "−0.1", "−0.01", "0", "0.01", "0.1"], fontsize=6)
    ax.set(xlabel="without one neuron: change of log P(object) (nats)", ylabel="share of neurons", ylim=(0, 1))
    ax.legend(fontsize=6, loc="upper left")


def _totals(ax: Axes, m: Results, margin: np.ndarray) -> None:
    places = np.arange(len(CLASSES))
    for k, (part, colour, hatch) in enumerate(zip(PARTS, (COLOURS[3], COLOURS[1]), ("", "//"), strict=True)):
        mean, error, _ = clustered_error(margin[:, m.layers >= FIRST, k].mean(axis=1), m.facts.units)
        ax.bar(places + 0.38 * (k - 0.5), mean, 0.36, yerr=error, color=colour, hatch=hatch, edgecolor="white", lw=0,
               capsize=2, label=part.replace("_", "-"))  # fmt: skip
    ax.axhline(0, color="0.6", lw=0.6)
    labels = ("subject,\nearlier", "subject,\nlast", "between", "last")
    ax.set_xticks(places, labels=labels, fontsize=6)
    ax.set(ylabel=f"change of the margin (nats),\nmean over layers {FIRST + 1} and on")
    ax.legend(fontsize=6)


# Facts as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    on = _measured(m)
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"network": on.network.words, "facts": len(m.facts), "listed": m.listed,
         "relations": sorted(map(str, np.unique(m.facts.relations))), "places": list(CLASSES), "parts": list(PARTS),
         "objects of one token": int(m.facts.whole.sum()), "starts": len(m.facts),
         "solver": "none: layers in float32"},
        _series(m),
        partial(draw, m),
        None,
        on=on,
    )  # fmt: skip


def _series(m: Results) -> dict:
    series = {"layer": m.layers + 1, "log P of object and foil_by_fact": m.log_p}
    for k, part in enumerate(PARTS):
        for c, place in enumerate(CLASSES):
            change = m.change[:, :, k, c]
            for name, values in (("object", change[..., 0]), ("margin", change[..., 0] - change[..., 1])):
                words = f"{name} without {part.replace('_', '-')}, {place}"
                of = clustered_error(values, m.facts.units)
                series |= {words: of.mean, f"{words}, error": of.error}
            series[f"object first without {part.replace('_', '-')}, {place}"] = np.nanmean(m.first[:, :, k, c], axis=0)
    neurons = {"promoting": m.neurons.promoting, "random": m.neurons.random}
    return series | {f"without a {name} neuron_by_fact": change for name, change in neurons.items()}


def _measured(m: Results) -> Measured:
    size = {"facts": len(m.facts), "layers": m.num_layers}
    if m.own:
        return Measured(OWN, PASSAGES, size)
    return Measured(SMOLLM2, Subject("facts", f"{len(m.facts)} facts that it knows, of {m.listed}"), size)


FIGURE = declared("facts", _run, parameters=Parameters)
