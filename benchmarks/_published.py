"""The published schemes in NumPy, vectorised as published but rewritten, for comparison."""

import numpy as np


def velocity(x: np.ndarray, beta: float, causal: bool, query=None, key=None, value=None) -> np.ndarray:
    """Softmax attention without a shift of exponents, as in the published scripts: full attention has no projection to
    the tangent space, and causal attention has one.

    The matrices are multiplied also where they are the default, the identity, as in the scripts.
    """
    eye = np.eye(x.shape[1], dtype=x.dtype)
    query, key, value = (eye if matrix is None else matrix for matrix in (query, key, value))
    kernel = np.exp(beta * ((x @ query.T) @ (x @ key.T).T))
    if causal:
        kernel = kernel * np.tril(np.ones_like(kernel))
    average = (kernel / kernel.sum(axis=1, keepdims=True)) @ (x @ value.T)
    return average - np.sum(average * x, axis=1, keepdims=True) * x if causal else average


def normalised_euler(
    x: np.ndarray, beta: float, causal: bool, step: float, steps: int, save_every: int | None = None
) -> np.ndarray:
    """x <- normalise(x + step * velocity(x)), `steps` times; the start and every `save_every`-th state are returned."""
    saved = [x]
    for k in range(steps):
        x = x + step * velocity(x, beta, causal)
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
        if (k + 1) % (save_every or steps) == 0:
            saved.append(x)
    return np.stack(saved)
