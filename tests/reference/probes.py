"""What the probes measure of one text, pair by pair; padding is looked up in a list of words, never multiplied away."""

import math

import numpy as np


def words(mask):
    return [i for i, word in enumerate(mask) if word]


def cosines(x, mask):
    """The cosines of the pairs i < j of words."""
    seen, out = words(mask), []
    for a, i in enumerate(seen):
        for j in seen[a + 1 :]:
            dot = math.fsum(p * q for p, q in zip(x[i], x[j], strict=True))
            lengths = [math.sqrt(math.fsum(p * p for p in row)) for row in (x[i], x[j])]
            out.append(min(max(dot / (lengths[0] * lengths[1]), -1.0), 1.0))
    return out


def similarity(x, mask, edges, near, probabilities):
    """The statistics of one text at one level."""
    values, seen = cosines(x, mask), words(mask)
    density, _ = np.histogram(values, edges, density=True)
    inside = sorted(v for v in values if edges[0] <= v <= edges[-1])
    unit = np.array([x[i] / np.linalg.norm(x[i]) for i in seen])
    shares = np.linalg.svd(unit)[1]
    shares = shares / shares.sum()
    return {
        "density": density,
        "quantiles": [inside[max(math.ceil(p * len(inside)) - 1, 0)] for p in probabilities],
        "cosine": sum(values) / len(values),
        "near_mass": sum(v > near for v in values) / len(values),
        "effective_rank": math.exp(-sum(p * math.log(p) for p in shares if p > 1e-300)),
        "num_clusters": components(unit, near),
    }


def components(unit, near):
    """How many there are if words with a cosine of at least `near` are joined; by flooding."""
    left, found = set(range(len(unit))), 0
    while left:
        found, queue = found + 1, [left.pop()]
        while queue:
            i = queue.pop()
            joined = {j for j in left if unit[i] @ unit[j] >= near}
            left -= joined
            queue += joined
    return found


def average(values):
    """Mean and standard deviation over the first axis."""
    n = len(values)
    mean = sum(values) / n
    return mean, np.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
