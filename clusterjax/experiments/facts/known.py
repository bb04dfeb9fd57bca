"""Facts as texts: a subject in a template of its relation, and the word that completes it.

A text is "The capital of France is", its object " Paris". The object is scored by its first token, which for most is
the whole word. A fact is known if that token is the first answer of the network.

Invariants: no subject begins its text, so that the first token, an attention sink, is no subject; at least one token
follows the subject; every fact has a foil, the object of another fact of its relation that differs in its first token.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ... import probe
from ...probe.networks.batch import continuation_ids, prompt_ids


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
