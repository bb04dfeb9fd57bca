"""Rosenbrock methods by the book: rooted trees, conditions of order, the stability function, and one step.

Hairer, Wanner, *Solving Ordinary Differential Equations II*, section IV.7, with the book's coefficients alpha, gamma
and b; the package computes with a transformed method. The conditions hold only for the coefficients of a method of that
order.
"""

import math
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np


class Method(NamedTuple):
    """k_i = h f(t + c_i h, y + sum_j alpha_ij k_j) + h J sum_j gamma_ij k_j + d_i h^2 f_t, and y + sum_i b_i k_i."""

    alpha: np.ndarray
    gamma: np.ndarray
    times: np.ndarray
    by_time: np.ndarray
    # Weights of the step and of the embedded method, and the polynomials of degree 4 of the interpolant, (8, 5).
    b: np.ndarray
    embedded: np.ndarray
    dense: np.ndarray


def method_of(gamma, stages, coupling, times, by_time, weights, dense):
    """The method of a form without products by J, whose stages are u = Gamma k, with C = 1 / gamma - Gamma^{-1}."""
    square = lambda rows: np.array([[*row, *[0.0] * (8 - len(row))] for row in rows])
    full = np.linalg.inv(np.eye(8) / gamma - square(coupling))
    weights = np.array(weights)
    last = np.eye(8)[7]
    # (1 - s) y0 + s (y1 + (1 - s) (D1 + s D2 + s^2 D3)), by powers of s: 1, s, s^2, s^3, s^4.
    d1, d2, d3 = square(dense)
    powers = np.stack([np.zeros(8), weights + d1, d2 - d1, d3 - d2, -d3], axis=1)
    return Method(
        square(stages) @ full,
        full,
        np.array(times),
        square([by_time])[0],
        weights @ full,
        (weights - last) @ full,
        full.T @ powers,
    )


def trees(order):
    """The rooted trees with `order` nodes: a tree is the sorted tuple of the trees that hang on its root."""
    return sorted(tuple(sorted(branches)) for branches in _forests(order - 1, order - 1))


def _forests(nodes, largest):
    if nodes == 0:
        return {()}
    found = set()
    for size in range(1, min(nodes, largest) + 1):
        for count in range(1, nodes // size + 1):
            for chosen in combinations_with_replacement(trees(size), count):
                found |= {rest + chosen for rest in _forests(nodes - size * count, size - 1)}
    return found


def size(tree):
    return 1 + sum(map(size, tree))


def density(tree):
    """gamma(t): the number of nodes times the gamma of each branch."""
    return size(tree) * math.prod(map(density, tree))


def elementary(method, tree):
    """Phi_i(t): a single branch is summed with alpha + gamma, each of several branches with alpha."""
    matrix = method.alpha + method.gamma if len(tree) == 1 else method.alpha
    result = np.ones(8)
    for branch in tree:
        result = result * (matrix @ elementary(method, branch))
    return result


def residuals(method):
    """Residuals, zero for a stiffly accurate method of order 5, with embedded method and interpolant of order 4."""
    found = {
        "times": method.alpha.sum(axis=1) - method.times,
        "derivative by time": method.gamma.sum(axis=1) - method.by_time,
        "diagonal": np.diag(method.gamma) - method.gamma[0, 0],
        "stiffly accurate": (method.alpha + method.gamma)[7] - method.b,
        "embedded is the last stage": method.alpha[7] - method.embedded,
    }
    for order in range(1, 6):
        for tree in trees(order):
            phi, exact = elementary(method, tree), 1 / density(tree)
            found[f"step {tree}"] = method.b @ phi - exact
            if order < 5:
                found[f"embedded {tree}"] = method.embedded @ phi - exact
                # sum_i b_i(s) Phi_i = s^order / gamma(t), for each power of s.
                found[f"dense {tree}"] = phi @ method.dense - exact * np.eye(5)[order]
    return found


def stability(method, weights, z):
    """R(z) = 1 + z b^T (I - z (alpha + gamma))^{-1} 1, the factor of one step for y' = z y."""
    return 1 + z * weights @ np.linalg.solve(np.eye(8) - z * (method.alpha + method.gamma), np.ones(8))


def step(method, velocity, t, y, h, jacobian, by_time):
    """The end of one step, its error estimate, and the interpolant as a function of the share of the step."""
    k = np.zeros((8, y.size))
    system = np.eye(y.size) - h * method.gamma[0, 0] * jacobian
    for i in range(8):
        at, coupled = y.copy(), np.zeros(y.size)
        for j in range(i):
            at, coupled = at + method.alpha[i, j] * k[j], coupled + method.gamma[i, j] * k[j]
        right = h * velocity(t + method.times[i] * h, at) + h * jacobian @ coupled + method.by_time[i] * h * h * by_time
        k[i] = np.linalg.solve(system, right)
    inner = lambda share: y + sum((method.dense[i] @ share ** np.arange(5)) * k[i] for i in range(8))
    return y + method.b @ k, (method.b - method.embedded) @ k, inner
