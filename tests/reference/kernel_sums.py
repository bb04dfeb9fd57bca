"""Sums of e^{<q, y> - |q|} over pairs, one pair at a time, and their derivatives with the scale held fixed."""

import numpy as np


def kernel_sums(queries, tokens, masses):
    """The sums of mass and of mass times token, (n,) and (n, d)."""
    normaliser, total = np.zeros(len(queries)), np.zeros(queries.shape)
    for i, query in enumerate(queries):
        for token, mass in zip(tokens, masses, strict=True):
            weight = mass * np.exp(query @ token - np.linalg.norm(query))
            normaliser[i] += weight
            total[i] += weight * token
    return normaliser, total


def kernel_sums_gradient(queries, tokens, masses, by_normaliser, by_total):
    """Derivatives by queries, tokens and masses of a loss with these derivatives by the two sums."""
    to_queries, to_tokens, to_masses = np.zeros(queries.shape), np.zeros(tokens.shape), np.zeros(len(tokens))
    for i, query in enumerate(queries):
        for j, (token, mass) in enumerate(zip(tokens, masses, strict=True)):
            weight = np.exp(query @ token - np.linalg.norm(query))
            paid = by_normaliser[i] + by_total[i] @ token
            to_queries[i] += mass * weight * paid * token
            to_tokens[j] += mass * weight * (paid * query + by_total[i])
            to_masses[j] += weight * paid
    return to_queries, to_tokens, to_masses
