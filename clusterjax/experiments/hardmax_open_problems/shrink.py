"""Counterexamples: found at random in the plane, then made smaller as long as the clause fails, which is proved."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from ...hardmax import Examination
from ...hardmax._examine import examine_exactly, rational
from .kinds import KINDS, belongs, draw_form


SHARE = Fraction(1, 2)  # of the way that tokens go in a layer: alpha = 1
DEPTH = 40  # the most layers; what is not proved by then is open
COARSE = 8  # tokens of the search: normal ones in units of 1 / 8


class Counterexample(NamedTuple):
    """A cloud of nonzero, distinct tokens with small whole coordinates on which a clause fails.

    **Attributes:**

    - `kind`: Of A.
    - `clause`: The number of the clause.
    - `form`: A.
    - `tokens`: (n, 2).
    - `found`: What is proved of it.
    """

    kind: str
    clause: int
    form: np.ndarray
    tokens: np.ndarray
    found: Examination

    @property
    def reach(self) -> int:
        """The largest coordinate or entry of A."""
        return int(max(np.abs(self.form).max(), np.abs(self.tokens).max()))


def examined(tokens: np.ndarray, form: np.ndarray, depth: int = DEPTH) -> Examination:
    """What is proved of tokens and a form of whole numbers."""
    return examine_exactly(rational(tokens), rational(form), SHARE, depth)


def search(seed: int, tries: int, n: int) -> list[Counterexample]:
    """For each kind of A and each clause, the smallest that a few shrunk ones come to; none where none is found."""
    out = []
    for number, kind in enumerate(KINDS):
        rng = np.random.default_rng([seed, number])
        best: dict[int, Counterexample] = {}
        seen: dict[int, int] = {}
        for _ in range(tries):
            tokens, form = np.round(COARSE * rng.normal(size=(n, 2))) + 0.0, draw_form(kind, rng, 2, unit=1)
            if not _distinct(tokens):
                continue
            for clause in _failed(examined(tokens, form)):
                seen[clause] = seen.get(clause, 0) + 1
                # Shrinking takes a hundred times as long as a look at a cloud.
                if seen[clause] <= 4:
                    small = shrink(kind, clause, tokens, form)
                    if clause not in best or _size(small) < _size(best[clause]):
                        best[clause] = small
        out += [best[clause] for clause in sorted(best)]
    return out


def shrink(kind: str, clause: int, tokens: np.ndarray, form: np.ndarray) -> Counterexample:
    """Leave out tokens and bring numbers nearer to zero, as long as the clause fails for an A of this kind."""

    def fails(x: np.ndarray, a: np.ndarray) -> bool:
        return _distinct(x) and belongs(kind, a) and clause in _failed(examined(x, a))

    shrunk = True
    while shrunk:
        shrunk = False
        for x, a in _smaller(tokens, form):
            if fails(x, a):
                tokens, form, shrunk = x, a, True
                break
    return Counterexample(kind, clause, form, tokens, examined(tokens, form))


def _smaller(tokens: np.ndarray, form: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for i in range(len(tokens)):
        if len(tokens) > 1:
            yield np.delete(tokens, i, axis=0), form
    halves: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
        lambda x: np.trunc(x / 2) + 0.0,
        lambda x: np.round(x / 4) + 0.0,
    )
    for half in halves:
        if np.abs(form).max() > 1:
            yield tokens, half(form)
        if np.abs(tokens).max() > 1:
            yield half(tokens), form
    for place in np.ndindex(tokens.shape):
        for value in _nearer(float(tokens[place])):
            yield _with(tokens, [place], [value]), form
    for a, b in np.ndindex(form.shape):
        for value in _nearer(float(form[a, b])):
            # Symmetric and skew forms keep what they are: both entries change.
            yield tokens, _with(form, [(a, b)], [value])
            if a < b:
                yield tokens, _with(form, [(a, b), (b, a)], [value, value])
                yield tokens, _with(form, [(a, b), (b, a)], [value, -value])


def _nearer(value: float) -> list[float]:
    """Whole numbers nearer to zero, the nearest first."""
    size, sign = abs(value), np.sign(value)
    return sorted({sign * smaller for smaller in (0.0, 1.0, size // 2, size - 1) if 0 <= smaller < size}, key=abs)


def _with(array: np.ndarray, places: list[tuple[int, ...]], values: list[float]) -> np.ndarray:
    array = array.copy()
    for place, value in zip(places, values, strict=True):
        array[place] = value + 0.0  # a zero without its sign
    return array


def _distinct(tokens: np.ndarray) -> bool:
    """Whether the theorem allows these tokens: nonzero and distinct."""
    return bool(tokens.any(axis=1).all()) and len(np.unique(tokens, axis=0)) == len(tokens)


def _failed(found: Examination) -> list[int]:
    """Which clauses fail; where there is no leader at all, that alone counts."""
    failed = [number for number, clause in enumerate(found.clauses) if clause.verdict == "failed"]
    return [0] if 0 in failed else failed


def _size(one: Counterexample) -> tuple[int, int, float]:
    return len(one.tokens), one.reach, float(np.abs(one.tokens).sum() + np.abs(one.form).sum())
