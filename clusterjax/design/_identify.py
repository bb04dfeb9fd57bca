r"""Identifiability of parameters: Fisher information, its null space in words, and the Cramer-Rao bound.

**Algorithm.** With independent normal errors of standard deviation $\sigma$ the information of parameters $\theta$ is
$F = J^\top J / \sigma^2$, where $J$ is the derivative of the observations. Each column is scaled by the root mean
square of its leaf, so that the singular values are comparable. Singular values below `ROUNDING` $\sqrt\epsilon$ times
the largest span the null space: no observation changes along its directions. Known symmetries are then tested for
membership in the null space: a scaling of two leaves against each other, and a change of basis between two leaves.
**Reference.** Rothenberg, *Identification in parametric models* (1971); Stoica and Marzetta, *Parameter estimation
problems with singular information matrices* (2001), for the pseudo-inverse.
**Invariants.** The null space and the identifiable directions together span all parameters; a named direction lies in
the null space up to ten square roots of the machine epsilon.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from ._parameters import Parameters


# Threshold for a singular value relative to the largest, in square roots of the machine epsilon.
ROUNDING = 1.0
# The largest component of a named unit vector outside of the null space, in square roots of the machine epsilon.
OUTSIDE = 10.0


class Identified(NamedTuple):
    """The directions in parameter space that observations determine, and the directions that they do not determine."""

    fisher: np.ndarray  # (p, p)
    covariance: np.ndarray  # (p, p), the pseudo-inverse of `fisher`
    combinations: np.ndarray  # (r, p), orthonormal directions, the best determined first
    bounds: np.ndarray  # (r,), the least standard deviation of each combination
    null: np.ndarray  # (p - r, p), orthonormal
    words: tuple[str, ...]  # a description of the null space


def identify(jacobian: np.ndarray, noise: float, parameters: Parameters, leaves: tuple[np.ndarray, ...]) -> Identified:
    """The directions that residuals with derivative `jacobian`, (N, p), and standard deviation `noise` determine."""
    jacobian, point = np.asarray(jacobian, np.float64), np.concatenate([np.ravel(leaf) for leaf in leaves])
    sizes = np.concatenate([np.full(np.size(leaf), _size(leaf)) for leaf in leaves])
    # The triangular factor has the same singular values and right vectors, and avoids an (N, N) matrix.
    _, singular, rows = np.linalg.svd(np.linalg.qr(jacobian * sizes, mode="r"), full_matrices=True)
    singular = np.concatenate([singular, np.zeros(len(rows) - len(singular))])
    epsilon = np.finfo(np.asarray(leaves[0]).dtype).eps
    seen = singular > ROUNDING * math.sqrt(epsilon) * singular.max(initial=0.0)
    # Undoing the scaling of the columns makes the null vectors oblique, so they are orthonormalised.
    null = np.linalg.qr((rows[~seen] * sizes).T)[0].T if not seen.all() else np.zeros((0, len(point)))
    # The projection orthogonal to the null space, along which the observations give no bound.
    keep = np.eye(len(point)) - null.T @ null
    fisher = jacobian.T @ jacobian / noise**2 if noise > 0 else np.full((len(point),) * 2, np.inf)
    wide = keep @ (rows[seen] * sizes[None, :]).T / np.where(seen, singular, 1)[seen]
    spread = wide @ wide.T
    values, vectors = np.linalg.eigh(spread)
    last = len(point) - len(null)
    # eigh sorts in ascending order: the zeros of the null space come first, then the best determined combinations.
    values, vectors = values[len(point) - last :], vectors[:, len(point) - last :]
    bounds = noise * np.sqrt(np.maximum(values, 0.0))
    return Identified(
        fisher,
        noise**2 * spread,
        vectors.T,
        bounds,
        null,
        _words(null, point, parameters, OUTSIDE * math.sqrt(epsilon)),
    )


def _size(leaf: np.ndarray) -> float:
    size = float(np.sqrt(np.mean(np.square(leaf)))) if np.size(leaf) else 1.0
    return size if size > 0 else 1.0


def _words(null: np.ndarray, point: np.ndarray, parameters: Parameters, outside: float) -> tuple[str, ...]:
    """The null space in words: the symmetries that it contains, and the leaves that its other directions change."""
    words, found = [], np.zeros((0, len(point)))
    for says, directions in _symmetries(point, parameters):
        lengths = np.linalg.norm(directions, axis=1, keepdims=True)
        directions = directions[lengths[:, 0] > 0] / lengths[lengths[:, 0] > 0]
        inside = (
            bool(len(directions)) and np.linalg.norm(directions - directions @ null.T @ null, axis=1).max() < outside
        )
        more = _basis(np.concatenate([found, directions]), outside) if inside else found
        if len(more) > len(found):
            words.append(f"{says} ({_dimensions(len(more) - len(found))})")
            found = more
    rest = _basis(null - null @ found.T @ found, outside) if len(null) > len(found) else null[:0]
    if len(rest):
        shares = [float(np.sum(np.square(part))) / len(rest) for part in parameters.split(rest)]
        named = ", ".join(n for n, share in zip(parameters.names, shares, strict=True) if share > outside)
        words.append(f"combinations of {named} that no observed token shows ({_dimensions(len(rest))})")
    return tuple(words)


def _dimensions(count: int) -> str:
    return f"{count} dimension{'s' if count > 1 else ''}"


def _basis(rows: np.ndarray, outside: float) -> np.ndarray:
    """Orthonormal rows with the span of `rows`."""
    _, singular, basis = np.linalg.svd(rows, full_matrices=False)
    return basis[singular > outside]


def _symmetries(point: np.ndarray, parameters: Parameters) -> list[tuple[str, np.ndarray]]:
    """Candidate symmetries, each a description and its directions; the caller tests which ones hold for the field."""
    parts, names = parameters.split(point), parameters.names
    along = [np.concatenate([np.ravel(p if k == a else 0 * p) for k, p in enumerate(parts)]) for a in range(len(parts))]
    tries: list[tuple[str, np.ndarray]] = []
    for a, name in enumerate(names):
        tries.append((f"the scale of {name}", along[a][None, :]))
    pairs = [(a, b) for a in range(len(parts)) for b in range(a + 1, len(parts))]
    for a, b in pairs:
        # The stacked factors are (..., d, k) and (..., d, k), or (..., d, k) and (..., k, e), contracted over k.
        for turned in (False, True):
            directions = _changes(parts, a, b, turned)
            if directions is not None:
                says = f"the basis between {names[a]} and {names[b]}, rotations among its changes"
                tries.append((says, directions))
    # The relative scale of two factors is a change of basis, so it is tried after the changes of basis.
    for a, b in pairs:
        tries.append((f"the scale of {names[a]} against {names[b]}", (along[a] - along[b])[None, :]))
    return tries


def _changes(parts: tuple[Any, ...], a: int, b: int, turned: bool) -> np.ndarray | None:
    """The directions of A -> A (1 + E), B -> (1 - E) B for each elementary matrix E; B transposed unless `turned`."""
    left, right = parts[a], parts[b] if turned else np.swapaxes(parts[b], -1, -2) if np.ndim(parts[b]) > 1 else parts[b]
    if left.ndim not in (2, 3) or right.ndim != left.ndim or left.shape[-1] != right.shape[-2]:
        return None
    if left.shape[:-2] != right.shape[:-2]:
        return None
    k, rows = left.shape[-1], []
    for head in range(left.shape[0] if left.ndim == 3 else 1):
        for i in range(k):
            for j in range(k):
                unit = np.zeros((*left.shape[:-2], k, k))
                unit[(head, i, j) if left.ndim == 3 else (i, j)] = 1.0
                moved = -unit @ right
                changed = {a: left @ unit, b: moved if turned else np.swapaxes(moved, -1, -2)}
                rows.append(np.concatenate([np.ravel(changed.get(m, 0 * part)) for m, part in enumerate(parts)]))
    return np.stack(rows)
