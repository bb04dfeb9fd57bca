"""What is measured of facts: every layer's attention and feed-forward silenced at each class of places, and neurons.

Places are of four classes: the tokens of the subject before its last, its last, those between it and the last of the
text, and that last one. Tokens before the subject stay: the first one is the attention sink of `causal-network`, and
without it nothing is left of any text.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ... import probe
from ...probe.measures.knocked_out import PARTS, Jobs, Prepared, answers_without, prepare
from ..framework.causal import ABSENT, smollm2
from ..framework.experiment import Settings
from ..framework.parameters import parameter
from ..framework.passages import articles_of, passages
from .known import Facts, facts_of, known_facts, read_facts
from .neurons import Neurons, neurons_of


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
