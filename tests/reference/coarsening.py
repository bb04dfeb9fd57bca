"""Merger times of all tokens, without coarsening: velocities by double loops, a solver of SciPy, and Kruskal's rule."""

import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import brentq, minimize_scalar

from tests.reference import attention, fields


def velocity(x, beta, *, form=None, value=None, masses=None, causal=False, normalised=True, offset=0.0, permitted=None):
    """The velocities of tokens on the sphere, (n, d), summed pair by pair over the `permitted` pairs."""
    allowed = attention.causal if causal else attention.full if permitted is None else attention.permitted(permitted)
    if normalised:
        weights = attention.softmax_weights(x, beta, form, allowed, masses)
    else:
        weights = attention.unnormalised_weights(x, beta, form, allowed, masses, offset)
    return fields.velocity(x, lambda points: weights, value)


def fast_velocity(x, beta, *, form=None, value=None, masses=None, causal=False, normalised=True, offset=0.0):
    """`velocity` without loops, for runs; a test compares it with the loops."""
    n, d = x.shape
    form, value = np.eye(d) if form is None else form, np.eye(d) if value is None else value
    seen = np.tile(np.ones(n) if masses is None else masses, (n, 1))
    seen = np.tril(seen) if causal else seen
    weights = seen * np.exp(beta * (x @ form @ x.T) - offset)
    size = (weights if normalised else seen).sum(axis=1, keepdims=True)
    pulled = weights @ x @ value.T / np.where(size > 0, size, 1)
    return pulled - np.sum(pulled * x, axis=1, keepdims=True) * x


def mergers(x0, beta, t_end, tolerance, **options):
    """Times and pairs of components that come within the tolerance, and the tokens as a function of time."""
    n, d = x0.shape
    close = lambda flat: flat.reshape(n, d) / np.linalg.norm(flat.reshape(n, d), axis=1)[:, None]
    rate = lambda t, flat: fast_velocity(close(flat), beta, **options).reshape(-1)
    found = solve_ivp(rate, (0, t_end), x0.reshape(-1), "DOP853", rtol=1e-11, atol=1e-13, dense_output=True)
    assert found.success
    gap = lambda t, i, j: float(np.linalg.norm(np.subtract(*close(found.sol(t))[[i, j]])) - tolerance)
    ts = np.append(np.linspace(found.t[:-1], found.t[1:], 8, endpoint=False, axis=1), found.t[-1])
    run = np.array([close(found.sol(t)) for t in ts])
    touches = []
    for i in range(n):
        for j in range(i + 1, n):
            gaps = np.linalg.norm(run[:, i] - run[:, j], axis=1) - tolerance
            if (time := _first_touch(lambda t, i=i, j=j: gap(t, i, j), ts, gaps, tolerance)) is not None:
                touches.append((time, i, j))
    labels, times, pairs = list(range(n)), [], []
    for time, i, j in sorted(touches):
        a, b = sorted((labels[i], labels[j]))
        if a != b:
            labels = [a if label == b else label for label in labels]
            times.append(time)
            pairs.append((a, b))
    return np.array(times), pairs, lambda t: close(found.sol(t))


def least_distance(x0, beta, i, j, times, **options):
    """The least chordal distance of tokens i and j between two times."""
    n, d = x0.shape
    rate = lambda t, flat: velocity(flat.reshape(n, d), beta, **options).reshape(-1)
    found = solve_ivp(rate, (0, times[1]), x0.reshape(-1), "DOP853", rtol=1e-12, atol=1e-14, dense_output=True)
    apart = lambda t: float(np.linalg.norm(np.subtract(*found.sol(t).reshape(n, d)[[i, j]])))
    return minimize_scalar(apart, bounds=times, method="bounded", options={"xatol": 1e-12}).fun


def _first_touch(gap, ts, gaps, tolerance):
    """The first time at which a gap closes, at `ts` or between, where tokens part again; None if there is none."""
    for k, now in enumerate(gaps):
        end = ts[k]
        if 0 < k < len(ts) - 1 and 0 < now < 0.2 * tolerance and gaps[k - 1] > now <= gaps[k + 1]:
            end = minimize_scalar(gap, bounds=(ts[k - 1], ts[k + 1]), method="bounded", options={"xatol": 1e-12}).x
            now = gap(end)
        if now <= 0:
            return 0.0 if k == 0 else brentq(gap, ts[k - 1], end, xtol=1e-14, rtol=1e-14)
    return None


def integral(integrand, ends):
    """The integral over the pieces between the `ends`, each by 40 nodes of Gauss and Legendre."""
    nodes, shares = np.polynomial.legendre.leggauss(40)
    middle, half = (ends[1:] + ends[:-1])[:, None] / 2, np.diff(ends)[:, None] / 2
    return np.sum(half * shares * integrand(middle + half * nodes))


def two_cluster_time(c0, c1, beta, m1, m2):
    """The time from cosine c0 to c1 of two clusters in full attention, by quadrature."""

    def slowness(c):
        away = np.exp(beta * (c - 1))
        return 1 / ((1 - c * c) * (m2 * away / (m1 + m2 * away) + m1 * away / (m2 + m1 * away)))

    return integral(slowness, np.append(np.minimum(c0 + np.linspace(0, 40, 81) / max(beta, 8), c1), c1))


def log_time_of_two(angle, tolerance, beta, *, normalised=True, causal=False, offset=0.0):
    """The logarithm of the time that two tokens of one mass take from an angle to a chordal distance, by quadrature.

    The rate of the angle u is sin u times e^(beta cos u - offset), for each token that moves. Softmax divides the rate
    by the sum of both weights, unnormalised attention by two; under the causal mask one of the two tokens moves.
    """

    def log_slowness(u):
        score = beta * (np.cos(u) - 1)
        rate = score - np.log1p(np.exp(score)) if normalised else score + beta - offset - np.log(2)
        return -(rate + np.log(np.sin(u)) + (0 if causal else np.log(2)))

    end = 2 * np.arcsin(tolerance / 2)
    # Most of the time goes by where the angle is near its first value, or where its sine is least.
    ends = np.unique(np.concatenate([[end, angle], angle - np.geomspace(1e-9, angle - end, 120)]).clip(end, angle))
    scale = max(log_slowness(angle), log_slowness(end))
    return scale + np.log(integral(lambda u: np.exp(log_slowness(u) - scale), ends))
