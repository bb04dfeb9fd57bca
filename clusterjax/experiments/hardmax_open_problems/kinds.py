"""The kinds of A, in whole numbers: how each is drawn, and what belongs to it."""

import numpy as np

from ...hardmax._exact import inertia, rank_of
from ...hardmax._examine import rational


# Normal entries in units of 1 / 16: coarse enough for short numbers, fine enough that ties are rare.
UNIT = 16
KINDS = (
    "identity", "positive definite", "semidefinite, rank d - 1", "rank one, u u^T", "rank one, -u u^T",
    "symmetric indefinite", "skew", "generic",
)  # fmt: skip


def draw_form(kind: str, rng: np.random.Generator, d: int, unit: int = UNIT) -> np.ndarray:
    """A matrix of this kind, (d, d), of integers; from normal entries in units of 1 / `unit`."""
    while True:
        form = _drawn(kind, np.round(unit * rng.normal(size=(d, d))), d) + 0.0  # a zero without its sign
        # Of the rare draws in which a determinant is zero, say, another one is drawn.
        if belongs(kind, form):
            return form


def _drawn(kind: str, m: np.ndarray, d: int) -> np.ndarray:
    match kind:
        case "identity":
            return np.eye(d)
        case "positive definite":
            return m.T @ m
        case "semidefinite, rank d - 1":
            return m[: max(d - 1, 1)].T @ m[: max(d - 1, 1)]
        case "rank one, u u^T":
            return np.outer(m[0], m[0])
        case "rank one, -u u^T":
            return -np.outer(m[0], m[0])
        case "symmetric indefinite":
            return m + m.T
        case "skew":
            return m - m.T
        case _:
            return m


def belongs(kind: str, form: np.ndarray) -> bool:
    """Whether the matrix is of this kind, exactly."""
    d, exact = len(form), rational(form)
    if kind == "skew":
        return bool(np.all(form == -form.T) and form.any())
    if kind == "generic":
        return rank_of(exact) == d and not np.all(form == form.T)
    if not np.all(form == form.T):
        return False
    positive, negative = inertia(exact)
    match kind:
        case "identity":
            return bool(np.all(form == np.eye(d)))
        case "positive definite":
            return positive == d
        case "semidefinite, rank d - 1":
            return (positive, negative) == (max(d - 1, 1), 0)
        case "rank one, u u^T":
            return (positive, negative) == (1, 0)
        case "rank one, -u u^T":
            return (positive, negative) == (0, 1)
        case _:
            return positive > 0 and negative > 0 and positive + negative == d
