"""Facts that a causal network knows, in its tokens: the relation, the subject, the object and a foil of each.

The listed facts are those of `facts.json`, each a template such as "The capital of {} is" with its subjects and
objects. A network knows a fact if the first token of the object is its most probable next token.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ... import probe
from ...plot import OKABE_ITO
from ...probe.measures.knocked_out import prepare
from ...probe.measures.survey import Clustered, clustered_error
from ...probe.networks.batch import continuation_ids, prompt_ids
from ..framework.figure import Measured, Say, Subject, plus_minus
from .causal import ABSENT, NAME, OWN, PASSAGES, SMOLLM2, name_of, smollm2_or_own
from .networks import articles_of, passages


FILE = Path(__file__).with_name("facts.json")
OWN_LENGTH = 10  # tokens of a passage for the model of the package
CLASSES = ("subject before its last token", "last token of the subject", "between", "last token")
SUBJECT, LAST = 1, 3  # of `CLASSES`
COLOURS, LINES = (OKABE_ITO[1], OKABE_ITO[5], OKABE_ITO[2], OKABE_ITO[0]), ("--", "-", ":", "-.")  # of `CLASSES`


@dataclass(frozen=True, eq=False)
class Facts:
    """Facts in token ids, padded on the right. A text is "The capital of France is", and its object " Paris".

    Invariants: no subject begins its text, and a token follows each subject; each known fact has a foil, with another
    first token than the object."""

    relations: np.ndarray  # the relation of each fact, (facts,)
    # `token_ids`, `lengths`: the texts, (facts, n), and their numbers of tokens, (facts,)
    token_ids: np.ndarray
    lengths: np.ndarray
    # `begins`, `ends`: the positions of the first and of the last token of the subject, (facts,)
    begins: np.ndarray
    ends: np.ndarray
    answers: np.ndarray  # the first token of the object, and of the foil, (facts, 2)
    whole: np.ndarray  # True if the object is one token, (facts,)
    units: np.ndarray  # the independent unit of errors, (facts,): the relation, or the article of a passage

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, rows: Any) -> "Facts":
        return Facts(*(getattr(self, name)[rows] for name in Facts.__dataclass_fields__))


@dataclass(frozen=True, eq=False)
class AbstractOfFacts:
    """The measurement of a figure on the facts that a network knows, to which each figure adds its own numbers."""

    p: Any  # the parameters of the figure
    own: bool  # True if the network is the model of the package, because SmolLM2 is not installed
    listed: int  # the number of facts that were asked; 0 for the network of the package
    facts: Facts  # the known facts

    @property
    def called(self) -> str:
        return name_of(self.own)

    @property
    def units(self) -> str:
        return f"{len(np.unique(self.facts.units))} {'articles' if self.own else 'relations'}"

    def mean(self, values: np.ndarray, rows: slice = slice(None)) -> Clustered:
        """The mean over facts that have a value, and its error over relations."""
        return clustered_error(values, self.facts.units[rows])

    def words(self, values: np.ndarray, digits: int = 2, rows: slice = slice(None)) -> str:
        return plus_minus(*self.mean(values, rows)[:2], digits)

    def known(self, stand_ins: str) -> str:
        """The facts as a sentence of a caption; `stand_ins` says what the model of the package has for a subject."""
        if self.own:
            return (
                f"{ABSENT} It knows no facts: {len(self.facts)} beginnings of passages stand for them, the most "
                f"probable next token for the object, {stand_ins}."
            )
        return (
            f"{len(self.facts)} facts of {len(np.unique(self.facts.relations))} relations that {NAME} knows, of "
            f"{self.listed} listed: the first token of the object is its first answer."
        )

    def measured(self, **size: int) -> Measured:
        data = PASSAGES if self.own else Subject("facts", f"{len(self.facts)} facts that it knows, of {self.listed}")
        return Measured(OWN if self.own else SMOLLM2, data, {"facts": len(self.facts)} | size)

    def recorded(self) -> dict[str, Any]:
        return {
            "network": self.measured().network.words, "known facts": len(self.facts), "listed": self.listed,
            "starts": len(self.facts), "relations": sorted(map(str, np.unique(self.facts.relations))),
            "places": list(CLASSES), "solver": "none: layers in float32",
        }  # fmt: skip


def read_facts() -> list[tuple[str, str, str, str]]:
    listed = json.loads(FILE.read_text("utf-8"))
    return [
        (relation, entry["template"], subject, answer)
        for relation, entry in listed.items()
        for subject, answer in entry["facts"].items()
    ]


def facts_of(model: probe.Model, listed: list[tuple[str, str, str, str]]) -> Facts:
    """The facts in the tokens of a model, without those whose subject is no run of whole tokens in the text."""
    ids_of = lambda texts: prompt_ids(model, list(texts))
    whole = ids_of(template.format(subject) for _, template, subject, _ in listed)
    # A space follows the text before the subject and the text up to the end of the subject, so that the tokens of both
    # usually begin the tokens of the whole text.
    before = ids_of(template.split("{}")[0].rstrip() for _, template, _, _ in listed)
    until = ids_of(template.split("{}")[0] + subject for _, template, subject, _ in listed)
    objects = [
        continuation_ids(model, template.format(subject), f" {answer}") for _, template, subject, answer in listed
    ]
    is_run = lambda row, some: len(some) < len(row) and row[: len(some)] == some
    usable = [
        i for i, row in enumerate(whole)
        if before[i] and len(before[i]) < len(until[i]) and is_run(row, before[i]) and is_run(row, until[i])
    ]  # fmt: skip
    ids = np.zeros((len(usable), max(len(whole[i]) for i in usable)), np.int32)
    for row, i in enumerate(usable):
        ids[row, : len(whole[i])] = whole[i]
    select = lambda values: np.array([values[i] for i in usable])
    relations = select([relation for relation, *_ in listed])
    return Facts(
        relations, ids, select([len(row) for row in whole]),
        select([len(row) for row in before]), select([len(row) - 1 for row in until]),
        np.array([(objects[i][0], -1) for i in usable]), select([len(answer) == 1 for answer in objects]), relations,
    )  # fmt: skip


def known_facts(facts: Facts, first_answers: np.ndarray, most: int) -> Facts:
    """At most `most` facts whose object is the first answer, evenly spread, each with a foil."""
    known = with_foils(facts.take(np.flatnonzero(first_answers == facts.answers[:, 0])))
    return known if len(known) <= most else known.take(np.linspace(0, len(known) - 1, most).round().astype(int))


def with_foils(facts: Facts) -> Facts:
    """The facts whose relation has another object, each with the next other object as its foil."""
    answers, with_foil = facts.answers.copy(), []
    for i, relation in enumerate(facts.relations):
        same_relation = np.flatnonzero(facts.relations == relation)
        # The search begins behind the fact and ends before it, so that foils are as frequent as objects.
        turned = np.concatenate([same_relation[same_relation > i], same_relation[same_relation < i]])
        others = facts.answers[turned, 0]
        others = others[others != answers[i, 0]]
        if others.size:
            answers[i, 1] = others[0]
            with_foil.append(i)
    return replace(facts.take(np.array(with_foil, int)), answers=answers[with_foil])


def own_facts() -> Facts:
    """Beginnings of passages for the model of the package, which knows no facts; two tokens stand for the subject."""
    ids, mask = passages(OWN_LENGTH)
    long = mask.all(axis=1)
    ids, articles = ids[long], articles_of(probe.bundled_texts())[long]
    same = lambda value: np.full(len(ids), value)
    return Facts(
        same("passage"), ids, same(OWN_LENGTH), same(4), same(6), np.full((len(ids), 2), -1), same(True), articles,
    )  # fmt: skip


def first_answers(model: probe.Model, facts: Facts) -> np.ndarray:
    """The most probable next token of each text, (facts,)."""
    first, widest = np.zeros(len(facts), int), facts.token_ids.shape[1]
    # Short texts are read separately, because all texts of a batch have the width of the longest one.
    widths = np.minimum(-(-facts.lengths // 4) * 4, widest)
    for width in np.unique(widths):
        rows = np.flatnonzero(widths == width)
        ready = prepare(model, facts.token_ids[rows, :width], facts.lengths[rows])
        first[rows] = np.asarray(ready.clean.log_p).argmax(axis=1)
    return first


def known_facts_of(most: int, say: Say) -> tuple[probe.Model, bool, int, Facts]:
    """The network, True if it is the model of the package, the number of listed facts, and at most `most` facts that it
    knows."""
    model, own = smollm2_or_own(say)
    listed = [] if own else read_facts()
    candidates = own_facts() if own else facts_of(model, listed)
    say(f"asking {len(candidates)} texts for the facts that the network knows")
    answered = first_answers(model, candidates)
    if own:
        # The answer that the model expects takes the place of a true object.
        candidates.answers[:, 0] = answered
    return model, own, len(listed), known_facts(candidates, answered, most)
