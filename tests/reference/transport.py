"""Wasserstein distances of few tokens, by all permutations."""

from itertools import permutations

import numpy as np


def distance(x, y, sphere):
    if not sphere:
        return np.sqrt(sum((a - b) ** 2 for a, b in zip(x, y, strict=True)))
    return np.arctan2(np.linalg.norm(x - (x @ y) * y), x @ y)


def wasserstein(x, y, p, sphere):
    """The least mean cost over all ways to pair tokens of equal mass."""
    n = len(x)
    costs = [[distance(x[i], y[j], sphere) ** p for j in range(n)] for i in range(n)]
    return min(np.mean([costs[i][order[i]] for i in range(n)]) for order in permutations(range(n))) ** (1 / p)
