"""The published cell of a phase diagram, by double loops: one system at a time, in plain NumPy."""

import numpy as np

from tests.reference import attention


def pull(x, beta, query_key, value, unnormalised):
    """sum_j w_ij V x_j for each token of one system (n, d)."""
    weigh = attention.unnormalised_weights if unnormalised else attention.softmax_weights
    return attention.average(weigh(x, beta, query_key), x @ value.T)


def normalised_euler(x, beta, steps, dt, query_key=None, value=None, unnormalised=False):
    """The state after `steps` steps; the step of unnormalised attention is reduced as published."""
    eye = np.eye(x.shape[1])
    query_key, value = (eye if matrix is None else matrix for matrix in (query_key, value))
    if unnormalised:
        dt = dt / max(np.sqrt(beta) * np.exp(beta - 0.5), 1)
    for _ in range(steps):
        x = x + dt * pull(x, beta, query_key, value, unnormalised)
        x = x / np.sqrt((x * x).sum(axis=1, keepdims=True))
    return x


def close_pairs(x, cosine=0.999):
    """The share of ordered pairs of two tokens whose inner product exceeds `cosine`."""
    n = len(x)
    return sum(x[i] @ x[j] > cosine for i in range(n) for j in range(n) if i != j) / (n * (n - 1))


def gram_rank(x, threshold=1e-3):
    """The number of eigenvalues of the matrix of inner products that exceed `threshold`."""
    return int(np.sum(np.linalg.eigvals(x @ x.T).real > threshold))


def cluster_rank(x, cosine=0.9999):
    """The rank of the matrix of close pairs."""
    return int(np.linalg.matrix_rank((x @ x.T > cosine).astype(float)))
