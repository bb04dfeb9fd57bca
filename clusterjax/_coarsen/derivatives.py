r"""Derivatives of the velocities of clusters, in NumPy: as a matrix, as products with gradients, within a cluster.

**Invariants.** Where V is a multiple of the identity, a cluster's own term is left out, as in the velocities, so that
derivatives have small relative errors too. Radial displacements move no cluster; tangent displacements stay tangent.
"""

from collections.abc import Callable

import numpy as np

from .law import AttendedMasses, Law, pulling, weights


def jacobian(law: Law, y: np.ndarray, attended: AttendedMasses) -> tuple[np.ndarray, np.ndarray]:
    """The derivative of the velocities at unit vectors y, (m d, m d), in units of `Moves`, and the velocities."""
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
    # Layout (a, i, b): the contribution of b to component i of the velocity of a.
    velocity = (parts @ others[:, :, None])[:, :, 0]
    centred = parts - velocity[:, :, None] if law.normalised else parts
    centred *= w[:, None, :]
    # Displacements along y_b change nothing: queries and V are projected onto the tangent space at y_b.
    scores = law.beta * (queries[:, None, :] - (queries @ y.T)[:, :, None] * y[None])
    found = (turned.reshape(m * d, d) @ np.swapaxes(tangent, 0, 1).reshape(d, m * d)).reshape(m, d, m, d)
    found *= others[:, None, :, None]
    found += centred[..., None] * scores[:, None, :, :]
    here = law.beta * (centred @ keys) - along[:, None, None] * tangent
    # The tangent space turns with its point: this term keeps tangent displacements tangent.
    here -= y[:, :, None] * velocity[:, None, :]
    found[np.arange(m), :, np.arange(m)] += here @ tangent
    return found.reshape(m * d, m * d), velocity


def contraction(
    law: Law, y: np.ndarray, rows: np.ndarray, seen: np.ndarray, own: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The largest rates at which k tokens part from clusters `rows` at their points, negative for contraction, and the
    logarithms of their units of time, (k,).

    A rate is an eigenvalue of the symmetric part of the derivative of a velocity by the token. Each token sees the
    masses `seen` of clusters, (k, m). Its `own` mass (k,) is included, but moves along and does not attract it.
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
    # The radial direction is not tangent to the sphere: its eigenvalue is shifted below all others.
    far = 1 + 2 * np.abs(change).sum(axis=(1, 2))
    radial = far[:, None, None] * points[:, :, None] * points[:, None, :]
    rates = np.linalg.eigvalsh((change + change.swapaxes(1, 2)) / 2 - radial)
    return rates[:, -1] - held, units


def transposed(
    law: Law, y: np.ndarray, attended: AttendedMasses
) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """The velocities, and a function that multiplies tangent gradients (k, m, d) by the transposed `jacobian`."""
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
