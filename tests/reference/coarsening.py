"""Merger times of all tokens, without coarsening: velocities by double loops, a solver of SciPy, and Kruskal's rule."""

import numpy as np
from scipy.integrate import quad, solve_ivp
from scipy.optimize import brentq


def velocity(x, beta, *, form=None, value=None, masses=None, causal=False, normalised=True, offset=0.0):
    """The velocities of tokens on the sphere, (n, d), one pair after the other."""
    n, d = x.shape
    form, value = np.eye(d) if form is None else form, np.eye(d) if value is None else value
    masses = np.ones(n) if masses is None else masses
    result = np.zeros((n, d))
    for i in range(n):
        total, size, attended = np.zeros(d), 0.0, 0.0
        for j in range(i + 1 if causal else n):
            weight = masses[j] * np.exp(beta * (x[i] @ form @ x[j]) - offset)
            total, size, attended = total + weight * (value @ x[j]), size + weight, attended + masses[j]
        size = size if normalised else attended
        if size > 0:
            pulled = total / size
            result[i] = pulled - (x[i] @ pulled) * x[i]
    return result


def fast_velocity(x, beta, *, form=None, value=None, masses=None, causal=False, normalised=True, offset=0.0):
    """`velocity` without loops, for runs of thousands of clouds."""
    n, d = x.shape
    form, value = np.eye(d) if form is None else form, np.eye(d) if value is None else value
    seen = np.tile(np.ones(n) if masses is None else masses, (n, 1))
    seen = np.tril(seen) if causal else seen
    weights = seen * np.exp(beta * (x @ form @ x.T) - offset)
    size = (weights if normalised else seen).sum(axis=1, keepdims=True)
    pulled = weights @ x @ value.T / np.where(size > 0, size, 1)
    return pulled - np.sum(pulled * x, axis=1, keepdims=True) * x


def mergers(x0, beta, t_end, tolerance, *, fast=False, **options):
    """Times and pairs of components that come to the tolerance, and the tokens as a function of time."""
    n, d = x0.shape
    close = lambda flat: flat.reshape(n, d) / np.linalg.norm(flat.reshape(n, d), axis=1)[:, None]
    rate = lambda t, flat: (fast_velocity if fast else velocity)(close(flat), beta, **options).reshape(-1)
    found = solve_ivp(rate, (0, t_end), x0.reshape(-1), "DOP853", rtol=1e-11, atol=1e-13, dense_output=True)
    assert found.success
    gap = lambda t, i, j: float(np.linalg.norm(np.subtract(*close(found.sol(t))[[i, j]])) - tolerance)
    touches = []
    for i in range(n):
        for j in range(i + 1, n):
            far = np.array([gap(t, i, j) for t in found.t]) > 0
            if not far.all():
                k = int(np.argmin(far))
                time = 0.0 if k == 0 else brentq(gap, found.t[k - 1], found.t[k], (i, j), xtol=1e-14, rtol=1e-14)
                touches.append((time, i, j))
    labels, times, pairs = list(range(n)), [], []
    for time, i, j in sorted(touches):
        a, b = sorted((labels[i], labels[j]))
        if a != b:
            labels = [a if label == b else label for label in labels]
            times.append(time)
            pairs.append((a, b))
    return np.array(times), pairs, lambda t: close(found.sol(t))


def two_cluster_time(c0, c1, beta, m1, m2):
    """The time from cosine c0 to c1 of two clusters in full attention, by quadrature of its logarithm's scale."""

    def slowness(c):
        away = np.exp(beta * (c - 1))
        return 1 / ((1 - c * c) * (m2 * away / (m1 + m2 * away) + m1 * away / (m2 + m1 * away)))

    scale = slowness(c0)
    ends = np.unique(np.concatenate([[c0], np.minimum(c0 + np.linspace(0, 40, 81) / max(beta, 1), c1), [c1]]))
    parts = (
        quad(lambda c: slowness(c) / scale, a, b, epsabs=0, epsrel=1e-12)[0]
        for a, b in zip(ends, ends[1:], strict=False)
    )
    return scale * sum(parts)
