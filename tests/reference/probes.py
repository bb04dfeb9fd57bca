"""Statistics of the probes for one text, pair by pair; loops run over lists of words, which hold no padding."""

import math

import numpy as np

from tests.reference.observables import components


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
        "num_clusters": len(set(components(len(unit), lambda i, j: unit[i] @ unit[j] >= near))),
    }


def average(values):
    """Mean and standard deviation over the first axis."""
    n = len(values)
    mean = sum(values) / n
    return mean, np.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))


def correlation(maps, mask, allowed=None):
    """The correlation of each pair of maps, (heads, n, n), over the allowed pairs of words, each row less its mean;
    without `allowed` Pearson's correlation over all pairs of words."""
    seen = words(mask)
    if allowed is None:
        flat = [[m[i][j] for i in seen for j in seen] for m in maps]
        return np.array([[np.corrcoef(a, b)[0, 1] for b in flat] for a in flat])
    centred = []
    for m in maps:
        rows = [[m[i][j] for j in seen if allowed[i][j]] for i in seen]
        centred.append([weight - sum(row) / len(row) for row in rows for weight in row])
    length = lambda u: sum(a * a for a in u) ** 0.5
    product = lambda u, v: sum(a * b for a, b in zip(u, v, strict=True)) / (length(u) * length(v))
    return np.array([[product(u, v) for v in centred] for u in centred])


def mass(weights, mask, targets, include_self):
    """The mean weight that words give to the targets; a target's own row is left out unless `include_self`."""
    seen, total = words(mask), 0.0
    for j in seen:
        if targets[j]:
            total += sum(weights[i][j] for i in seen if include_self or i != j)
    return total / (len(seen) if include_self else len(seen) - 1)


def uniform(n, causal):
    """Attention without preference among n words."""
    return [[(1 / (i + 1) if j <= i else 0.0) if causal else 1 / n for j in range(n)] for i in range(n)]


def first_against_others(x, mask):
    """Compares the first word with the others, one pair after the other."""
    seen = words(mask)
    first, others = seen[0], seen[1:]
    cosine = lambda i, j: float(x[i] @ x[j]) / (np.linalg.norm(x[i]) * np.linalg.norm(x[j]))
    pairs = [(i, j) for i in others for j in others if i < j]
    lengths = sorted(float(np.linalg.norm(x[i])) for i in others)
    middle = (lengths[(len(lengths) - 1) // 2] + lengths[len(lengths) // 2]) / 2
    length = float(np.linalg.norm(x[first]))
    return {
        "cosine": sum(cosine(first, j) for j in others) / len(others),
        "cosine_of_others": sum(cosine(i, j) for i, j in pairs) / len(pairs),
        "length": length,
        "length_of_others": middle,
        "ratio": length / middle,
    }


def place_mass(weights, mask, target, separator):
    """The mean weight that words after the first give to a place, or to the other words that are separators."""
    seen, total = words(mask), 0.0
    for k, i in enumerate(seen[1:], 1):
        for m, j in enumerate(seen):
            wanted = {
                "previous": m == k - 1, "self": m == k, "next": m == k + 1, "first": m == 0,
            }.get(target, separator[j] and j != i)  # fmt: skip
            total += weights[i][j] if wanted else 0.0
    return total / (len(seen) - 1)


def uniform_over(mask, allowed):
    """Attention of each word without preference among the words that it may attend to."""
    n = len(mask)
    rows = [[float(mask[i] and mask[j] and allowed(i, j)) for j in range(n)] for i in range(n)]
    return [[w / max(sum(row), 1.0) for w in row] for row in rows]


def rand_index(first, second):
    """The adjusted Rand index, from all pairs: agreements beyond those expected."""
    pairs = [(i, j) for i in range(len(first)) for j in range(i)]
    a = sum(first[i] == first[j] for i, j in pairs)
    b = sum(second[i] == second[j] for i, j in pairs)
    both = sum(first[i] == first[j] and second[i] == second[j] for i, j in pairs)
    expected = a * b / len(pairs)
    return (both - expected) / ((a + b) / 2 - expected)
