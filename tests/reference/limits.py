"""Limits of tokens, by plain loops: the set S of 2305.05465, hulls, Boolean rows, shapes on the sphere."""

import math

import numpy as np

from tests.reference.attention import dot
from tests.reference.observables import labels


def residuals(z, dual, form, present=None):
    """For each token the distance of c = dual z from the origin, or from its face if less, over the largest |c|.

    `form` acts on the coordinates c; the distance from the face is max_j <B^T c_i, c_j - c_i> / |B^T c_i|.
    """
    n = len(z)
    present = range(n) if present is None else present
    c = [[dot(row, token) for row in dual] for token in z]
    lengths = [math.sqrt(dot(row, row)) for row in c]
    longest = max(lengths)
    if longest == 0:
        return np.zeros(n)
    found = []
    for i in range(n):
        query = [math.fsum(c[i][a] * float(form[a][b]) for a in range(len(c[i]))) for b in range(len(c[i]))]
        size = math.sqrt(dot(query, query))
        if size == 0:
            found.append(lengths[i] / longest)
            continue
        below = max(dot(query, [c[j][a] - c[i][a] for a in range(len(query))]) for j in present) / size
        found.append(min(lengths[i], max(below, 0.0)) / longest)
    return np.array(found)


def boolean_rows(z, t):
    """The weight that each row of the attention of x = e^t z does not give to one end, and the attention.

    Tokens that differ by rounding alone are at one place.
    """
    same = 2e-15 * max(abs(place) for place in z)
    n = len(z)
    ends = min(z), max(z)
    far, weights = [], np.zeros((n, n))
    for i in range(n):
        scores = [math.exp(2 * t) * z[i] * z[j] for j in range(n)]
        terms = [math.exp(max(s - max(scores), -745.0)) for s in scores]
        for j in range(n):
            weights[i, j] = terms[j] / math.fsum(terms)
        far.append(1 - max(math.fsum(weights[i, j] for j in range(n) if abs(z[j] - end) <= same) for end in ends))
    return np.array(far), weights


def components(x, radius):
    """The number of each token's connected component at a radius; components are numbered by first members."""
    return np.unique(labels(x, radius), return_inverse=True)[1]
