r"""Derivatives of the velocities of clusters, in NumPy: held, by products with gradients, and within a cluster.

**Invariants.** Where V is a multiple of the identity a cluster's own term is left out, as in velocities, so that
derivatives are right relatively too. What is radial moves no cluster, and what is tangent stays so.
"""

from collections.abc import Callable

import numpy as np

from .law import AttendedMasses, Law, pulling, weights


def jacobian(law: Law, y: np.ndarray, attended: AttendedMasses) -> tuple[np.ndarray, np.ndarray]:
    """The derivative (m d, m d) of the velocities at unit vectors y, in units of `Moves`, and the velocities."""
    m, d = y.shape
    w, _ = pulling(law, y, attended.seen)
    cosines, eye = y @ y.T, np.eye(d)
    queries = y if law.form is None else y @ law.form
    keys = y if law.form is None else y @ law.form.T
    tangent = eye - y[:, :, None] * y[:, None, :]
    if law.value is not None:
        images = y @ law.value.T
        projected = y @ images.T
        along = np.sum(w * projected, axis=1)
        turned, others = tangent @ law.value, w
        parts = images.T[None] - y[:, :, None] * projected[:, None, :]
    else:
        others = w - np.diag(w.diagonal())
        along = law.factor * np.sum(others * cosines, axis=1)
        turned = law.factor * tangent
        parts = law.factor * (y.T[None] - y[:, :, None] * cosines[:, None, :])
        parts[np.arange(m), :, np.arange(m)] = 0
    # Layout (a, i, b): what b adds to component i of the velocity of a.
    velocity = (parts @ others[:, :, None])[:, :, 0]
    centred = parts - velocity[:, :, None] if law.normalised else parts
    centred *= w[:, None, :]
    # By directions along y_b nothing changes: queries and V are projected there.
    scores = law.beta * (queries[:, None, :] - (queries @ y.T)[:, :, None] * y[None])
    found = (turned.reshape(m * d, d) @ np.swapaxes(tangent, 0, 1).reshape(d, m * d)).reshape(m, d, m, d)
    found *= others[:, None, :, None]
    found += centred[..., None] * scores[:, None, :, :]
    here = law.beta * (centred @ keys) - along[:, None, None] * tangent
    # The tangent space turns with its point: what is tangent before stays so.
    here -= y[:, :, None] * velocity[:, None, :]
    found[np.arange(m), :, np.arange(m)] += here @ tangent
    return found.reshape(m * d, m * d), velocity


def contraction(
    law: Law, y: np.ndarray, rows: np.ndarray, seen: np.ndarray, own: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The largest rates at which k tokens part from clusters `rows`, where they are, and the logarithms of their units
    of time, (k,); negative if they come there.

    Each is an eigenvalue of the symmetric part of the derivative of a velocity by the token. Each sees masses of
    clusters `seen`, (k, m), its `own` (k,) among them, which moves along with it and so holds it not.
    """
    points, d = y[rows], y.shape[1]
    w, units = weights(law, y, seen, points)
    average = w @ y
    keys = y if law.form is None else y @ law.form.T
    value = law.factor * np.eye(d) if law.value is None else law.value
    tangent = np.eye(d) - points[:, :, None] * points[:, None, :]
    moments = (w @ (y[:, :, None] * keys[:, None, :]).reshape(len(y), d * d)).reshape(-1, d, d)
    if law.normalised:
        moments -= average[:, :, None] * (w @ keys)[:, None, :]
    change = tangent @ value @ (law.beta * moments) @ tangent
    k = np.arange(len(rows))
    share = w[k, rows] * own / np.where(seen[k, rows] > 0, seen[k, rows], 1)
    images = points @ value.T
    held = np.sum(average @ value.T * points, axis=1) - share * np.sum(points * images, axis=1)
    # The direction of the point itself is none of the sphere: its eigenvalue is put below all others.
    far = 1 + 2 * np.abs(change).sum(axis=(1, 2))
    radial = far[:, None, None] * points[:, :, None] * points[:, None, :]
    rates = np.linalg.eigvalsh((change + change.swapaxes(1, 2)) / 2 - radial)
    return rates[:, -1] - held, units


def transposed(
    law: Law, y: np.ndarray, attended: AttendedMasses
) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """The velocities, and a function that multiplies gradients (k, m, d), tangent, by the transposed `jacobian`."""
    w, _ = pulling(law, y, attended.seen)
    others = w - np.diag(w.diagonal()) if law.value is None else w
    value = law.factor * np.eye(y.shape[1]) if law.value is None else law.value
    images = y @ value.T
    along = np.sum(others * (y @ images.T), axis=1)
    velocity = others @ images - along[:, None] * y
    queries = y if law.form is None else y @ law.form
    keys = y if law.form is None else y @ law.form.T

    def product(gradients: np.ndarray) -> np.ndarray:
        found = np.empty_like(gradients)
        for k, one in enumerate(gradients):
            pulls = one @ images.T
            if law.value is None:
                np.fill_diagonal(pulls, 0)
            if law.normalised:
                pulls -= np.sum(one * velocity, axis=1, keepdims=True)
            pulls *= w
            result = law.beta * (pulls.T @ queries + pulls @ keys) + others.T @ (one @ value) - along[:, None] * one
            found[k] = result - np.sum(result * y, axis=1, keepdims=True) * y
        return found

    return velocity, product
