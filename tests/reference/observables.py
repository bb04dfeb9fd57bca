"""Observables as their papers write them: plain loops over tokens, in double precision."""

import math

import numpy as np


def energy(x, beta, query_key=None, masses=None):
    """(1 / (2 beta)) sum_ij m_i m_j e^{beta <x_i, B x_j>}, masses summing to one."""
    n, d = x.shape
    form = np.eye(d) if query_key is None else query_key
    mass = [1 / n] * n if masses is None else [m / sum(masses) for m in masses]
    total = 0.0
    for i in range(n):
        for j in range(n):
            total += mass[i] * mass[j] * math.exp(beta * float(x[i] @ form @ x[j]))
    return total / (2 * beta)


def perceptron_energy(x, features, amplitudes, primitive):
    """(1/n) sum_i sum_j w_j Phi(<a_j, x_i>)."""
    total = 0.0
    for i in range(x.shape[0]):
        for j in range(features.shape[0]):
            total += amplitudes[j] * primitive(float(features[j] @ x[i]))
    return total / x.shape[0]


def dissipation(velocities, log_partitions=None, masses=None):
    """sum_i (m_i / M) (Z_i / M) |v_i|^2."""
    n = velocities.shape[0]
    mass = [1.0] * n if masses is None else list(masses)
    total = 0.0
    for i in range(n):
        weight = 1.0 if log_partitions is None else math.exp(log_partitions[i]) / sum(mass)
        total += mass[i] / sum(mass) * weight * float(velocities[i] @ velocities[i])
    return total


def cosines(x):
    """<x_i, x_j> / (|x_i| |x_j|)."""
    n = x.shape[0]
    out = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            out[i, j] = float(x[i] @ x[j]) / (math.sqrt(x[i] @ x[i]) * math.sqrt(x[j] @ x[j]))
    return out


def histogram(x, edges):
    """The density of the cosines of pairs i < j, the last bin closed."""
    table, counts = cosines(x), [0] * (len(edges) - 1)
    for i in range(x.shape[0]):
        for j in range(i + 1, x.shape[0]):
            for b in range(len(counts)):
                last = b == len(counts) - 1
                if edges[b] <= table[i, j] < edges[b + 1] or (last and table[i, j] == edges[-1]):
                    counts[b] += 1
    return np.array([c / sum(counts) / (edges[b + 1] - edges[b]) for b, c in enumerate(counts)])


def close_pairs_fraction(x, cosine):
    """The share of ordered pairs i != j above the threshold."""
    table, count, n = cosines(x), 0, x.shape[0]
    for i in range(n):
        for j in range(n):
            count += i != j and table[i, j] > cosine
    return count / (n * (n - 1))


def labels(x, radius):
    """The components of tokens; two tokens are neighbours if their distance is at most `radius`."""
    return np.array(components(len(x), lambda i, j: math.dist(x[i], x[j]) <= radius))


def components(n, joined):
    """Connected components of n members by a walk over the graph, named by the first member."""
    out = [-1] * n
    for first in range(n):
        if out[first] >= 0:
            continue
        out[first], queue = first, [first]
        while queue:
            i = queue.pop()
            for j in range(n):
                if out[j] < 0 and joined(i, j):
                    out[j] = first
                    queue.append(j)
    return out


def sink_mass(weights, include_self=False):
    """The mean of each column, without the diagonal unless asked."""
    n, out = weights.shape[0], []
    for j in range(n):
        column = [weights[i, j] for i in range(n) if include_self or i != j]
        out.append(sum(column) / len(column))
    return np.array(out)


def renyi_centres(x, separation, strong):
    """A token is a centre if its angle to each earlier centre (strong: token) exceeds the separation."""
    centres = []
    for i in range(x.shape[0]):
        rivals = range(i) if strong else [j for j in range(i) if centres[j]]
        centres.append(all(_angle(x[i], x[j]) > separation for j in rivals))
    return np.array(centres)


def _angle(a, b):
    return math.acos(max(-1.0, min(1.0, float(a @ b) / math.sqrt(float(a @ a) * float(b @ b)))))


def wendel(n, d):
    """The probability that n independent uniform tokens lie in an open hemisphere."""
    return sum(math.comb(n - 1, k) for k in range(min(d, n))) / 2 ** (n - 1)


def effective_rank(x):
    """exp of the entropy of the singular values, taken from the Gram matrix."""
    values = [math.sqrt(max(0.0, v)) for v in np.linalg.eigvalsh(x.T @ x)]
    total, entropy = sum(values), 0.0
    for v in values:
        if v > 0:
            entropy -= v / total * math.log(v / total)
    return math.exp(entropy)


def neural_collapse(features, labels, weights, bias):
    """NC1 to NC4 by loops over features, classes and pairs; covariances as matrices, and their pseudo-inverse."""
    classes, d = weights.shape
    means = [np.mean([h for h, c in zip(features, labels, strict=True) if c == k], axis=0) for k in range(classes)]
    middle = sum(means) / classes
    within, between = np.zeros((d, d)), np.zeros((d, d))
    for k in range(classes):
        own = [h - means[k] for h, c in zip(features, labels, strict=True) if c == k]
        within += sum(np.outer(h, h) for h in own) / len(own) / classes
        between += np.outer(means[k] - middle, means[k] - middle) / classes
    # The rank is at most C - 1; singular values that rounding leaves are cut.
    variability = np.trace(within @ np.linalg.pinv(between, rcond=1e-12)) / classes
    spread = lambda rows: np.std([np.linalg.norm(row) for row in rows]) / np.mean([np.linalg.norm(row) for row in rows])
    centred = np.array([mean - middle for mean in means])

    def angles(rows):
        pairs = [(a, b) for a in range(classes) for b in range(classes) if a != b]
        cosines = [rows[a] @ rows[b] / np.linalg.norm(rows[a]) / np.linalg.norm(rows[b]) for a, b in pairs]
        return np.mean([abs(cosine + 1 / (classes - 1)) for cosine in cosines])

    duality = sum(
        (weights[k, a] / np.sqrt((weights**2).sum()) - centred[k, a] / np.sqrt((centred**2).sum())) ** 2
        for k in range(classes)
        for a in range(d)
    )
    wrong = 0
    for h in features:
        nearest = min(range(classes), key=lambda k: np.linalg.norm(h - means[k]))
        wrong += nearest != max(range(classes), key=lambda k: weights[k] @ h + bias[k])
    return np.array([variability, spread(centred), spread(weights), angles(centred), angles(weights), duality,
                     wrong / len(features)])  # fmt: skip
