"""Attention with weights that depend on the places of tokens, as plain loops over pairs, in double precision."""

import math

import numpy as np

from tests.reference import attention


def slope(value):
    """-slope |i - j|."""
    return lambda i, j: -value * abs(i - j)


def table(values):
    """The entry of i - j, clipped to the distances of the table."""
    clip = len(values) // 2
    return lambda i, j: float(values[min(max(i - j, -clip), clip) + clip])


def turn(frequencies):
    """A function that turns coordinates 2a and 2a + 1 of the token at place i by i theta_a."""

    def at(token, i):
        out = [float(c) for c in token]
        for a, theta in enumerate(frequencies):
            cosine, sine = math.cos(i * theta), math.sin(i * theta)
            first, second = out[2 * a], out[2 * a + 1]
            out[2 * a], out[2 * a + 1] = first * cosine - second * sine, first * sine + second * cosine
        return out

    return at


def scores(x, form=None, turned=None):
    """<R_i B^T x_i, R_j x_j> for each pair."""
    n, d = x.shape
    out = np.zeros((n, n))
    for i in range(n):
        entry = lambda b, a: float(a == b) if form is None else float(form[b, a])
        query = [math.fsum(float(x[i, b]) * entry(b, a) for b in range(d)) for a in range(d)]
        for j in range(n):
            q, k = (query, x[j]) if turned is None else (turned(query, i), turned(x[j], j))
            out[i, j] = math.fsum(float(a) * float(b) for a, b in zip(q, k, strict=True))
    return out


def weights(kind, x, allowed, masses=None, *, beta=1.0, form=None, log_weight=None, turned=None, kernel=None,
            offset=0.0, slack=1e-9):  # fmt: skip
    """The attention matrix of one kind; `log_weight(i, j)` is added to exponents, for hardmax to scores."""
    n, s = len(x), scores(x, form, turned)
    b = np.array([[0.0 if log_weight is None else log_weight(i, j) for j in range(n)] for i in range(n)])
    if kind == "softmax":
        return attention.weights(beta * s + b, allowed, masses, attention.softmax)
    if kind == "hardmax":
        return attention.weights(s + b, allowed, masses, lambda score, mass: attention.hardmax(score, mass, slack))
    terms = np.exp(beta * s + b - offset) if kind == "unnormalised" else np.vectorize(kernel)(s) * np.exp(b)
    return attention.weights(terms, allowed, masses, lambda row, mass: attention.linear(row, mass, kind == "kernel"))
