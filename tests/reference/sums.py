"""Averages of attention and their derivatives, row by row, in double precision.

`seen(i)` marks the tokens to which row i may attend, as a boolean vector. A token without mass adds nothing and has
one-sided derivatives by its mass alone; a row that sees no mass has no derivatives. Each function returns its result
and the derivatives of sum_i <c_i, average_i> (and of c'_i log Z_i) by queries, tokens, values and masses.
"""

import numpy as np


def softmax(queries, tokens, values, masses, seen, by_mean, by_log):
    """sum_j m_j e^{<q_i, y_j>} v_j / Z_i and log Z_i; 0 and minus infinity where nothing is seen."""
    n, k = values.shape
    mean, log_sum = np.zeros((n, k)), np.full(n, -np.inf)
    owed = nothing(queries, tokens, values, masses)
    for i in range(n):
        j = np.flatnonzero(seen(i))
        if not masses[j].any():
            continue
        scores = tokens[j] @ queries[i]
        top = scores[masses[j] > 0].max()
        terms = np.exp(scores - top)
        partition = np.sum(masses[j] * terms)
        share = masses[j] * terms / partition
        mean[i], log_sum[i] = share @ values[j], top + np.log(partition)
        paid = (values[j] - mean[i]) @ by_mean[i] + by_log[i]
        add(owed, i, j, queries, tokens, share * paid, share, by_mean[i], terms / partition * paid)
    return mean, log_sum, owed


def unnormalised(queries, tokens, values, masses, seen, by_mean, offset=0.0):
    """sum_j m_j e^{<q_i, y_j> - offset} v_j over the mass that row i may attend to."""
    n, k = values.shape
    total = np.zeros((n, k))
    owed = nothing(queries, tokens, values, masses)
    for i in range(n):
        j = np.flatnonzero(seen(i))
        if not masses[j].any():
            continue
        kernel = np.exp(tokens[j] @ queries[i] - offset) / np.sum(masses[j])
        weight = masses[j] * kernel
        total[i] = weight @ values[j]
        paid = values[j] @ by_mean[i]
        by_mass = kernel * paid - total[i] @ by_mean[i] / np.sum(masses[j])
        add(owed, i, j, queries, tokens, weight * paid, weight, by_mean[i], by_mass)
    return total, owed


def hardmax(queries, tokens, values, masses, seen, by_mean, tolerance, rounding):
    """The mean over the tokens whose score is within tolerance |q_i| max_j |y_j| of the largest; flat in the scores.

    Also returns the rows that are `unsure`: rounding by `rounding` |q_i| max_j |y_j| decides about a score.
    """
    n, k = values.shape
    mean, unsure = np.zeros((n, k)), np.zeros(n, bool)
    owed = nothing(queries, tokens, values, masses)
    for i in range(n):
        j = np.flatnonzero(seen(i) & (masses > 0))
        if not len(j):
            continue
        scores = tokens[j] @ queries[i]
        size = np.sqrt(queries[i] @ queries[i]) * np.sqrt(np.max(np.sum(tokens[j] ** 2, axis=1)))
        least = scores.max() - tolerance * size
        unsure[i] = size > 0 and np.any(np.abs(scores - least) <= rounding * size)
        j = j[scores >= least]
        share = masses[j] / np.sum(masses[j])
        mean[i] = share @ values[j]
        by_mass = (values[j] - mean[i]) @ by_mean[i] / np.sum(masses[j])
        add(owed, i, j, queries, tokens, np.zeros(len(j)), share, by_mean[i], by_mass)
    return mean, unsure, owed


def nothing(*arrays):
    """Zeros of the shape of each array."""
    return [np.zeros(np.shape(a)) for a in arrays]


def add(owed, i, j, queries, tokens, by_score, share, by_mean, by_mass):
    """Adds the part of row i, with the tokens numbered j, to the derivatives."""
    to_queries, to_tokens, to_values, to_masses = owed
    to_queries[i] += by_score @ tokens[j]
    to_tokens[j] += np.outer(by_score, queries[i])
    to_values[j] += np.outer(share, by_mean)
    to_masses[j] += by_mass
