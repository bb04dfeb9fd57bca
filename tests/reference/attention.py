"""Attention as the papers write it: plain loops over pairs of tokens, in double precision."""

import math

import numpy as np


def full(i, j):
    """Everyone may attend to everyone."""
    return True


def causal(i, j):
    """To oneself and to one's predecessors."""
    return j <= i


def window(width):
    """To those fewer than `width` places away."""
    return lambda i, j: abs(i - j) < width


def causal_window(width):
    """To oneself and to the `width` - 1 predecessors."""
    return lambda i, j: 0 <= i - j < width


def sink(width, kept):
    """To oneself, the `width` - 1 predecessors, and those of the first `kept` that are predecessors too."""
    return lambda i, j: j <= i and (i - j < width or j < kept)


def permitted(matrix):
    """To those that a matrix names."""
    return lambda i, j: bool(matrix[i][j])


def scores(x, form=None):
    """<x_i, B x_j> for each pair."""
    n, d = x.shape
    out = [[0.0] * n for _ in range(n)]
    for i in range(n):
        for j in range(n):
            total = 0.0
            for a in range(d):
                image = x[j, a] if form is None else sum(float(form[a, b]) * float(x[j, b]) for b in range(d))
                total += float(x[i, a]) * float(image)
            out[i][j] = total
    return out


def weights(x, form, allowed, masses, row):
    """`row(scores, masses)` of the tokens with mass that each token may attend to, and zeros for all other tokens."""
    n, score = x.shape[0], scores(x, form)
    mass = [1.0] * n if masses is None else [float(m) for m in masses]
    out = np.zeros((n, n))
    for i in range(n):
        seen = [j for j in range(n) if allowed(i, j) and mass[j] > 0]
        if seen:
            out[i, seen] = row([score[i][j] for j in seen], [mass[j] for j in seen])
    return out


def shares(terms):
    return [term / math.fsum(terms) for term in terms]


def softmax_weights(x, beta, form=None, allowed=full, masses=None):
    """m_j e^{beta s_ij} / sum_k m_k e^{beta s_ik} over the tokens that i may attend to; a row of zeros if none."""

    def row(score, mass):
        top = max(beta * s for s in score)
        return shares([m * math.exp(beta * s - top) for s, m in zip(score, mass, strict=True)])

    return weights(x, form, allowed, masses, row)


def unnormalised_weights(x, beta, form=None, allowed=full, masses=None, offset=0.0):
    """m_j e^{beta s_ij - offset} / (mass of the tokens that i may attend to)."""
    return kernel_weights(x, lambda s: math.exp(beta * s - offset), False, form, allowed, masses)


def kernel_weights(x, kernel, normalise, form=None, allowed=full, masses=None):
    """m_j f(s_ij) over their sum, or over the mass of the tokens that i may attend to."""

    def row(score, mass):
        terms = [m * float(kernel(s)) for s, m in zip(score, mass, strict=True)]
        return shares(terms) if normalise else [term / math.fsum(mass) for term in terms]

    return weights(x, form, allowed, masses, row)


def hardmax_weights(x, form=None, allowed=full, masses=None, slack=1e-9):
    """m_j over the mass of the maximisers of s_ik, for the j among them; a score within `slack` is a maximiser."""
    row = lambda score, mass: shares([m * (s >= max(score) - slack) for s, m in zip(score, mass, strict=True)])
    return weights(x, form, allowed, masses, row)


def average(weights, values):
    """sum_j w_ij v_j."""
    n, k = values.shape
    out = np.zeros((n, k))
    for i in range(n):
        for a in range(k):
            out[i, a] = math.fsum(float(weights[i, j]) * float(values[j, a]) for j in range(n))
    return out


def log_partition(x, beta, form=None, allowed=full, masses=None):
    """log sum_j m_j e^{beta s_ij}; minus infinity where i may attend to no mass."""
    return exponential_sums(beta * x, x if form is None else x @ np.asarray(form).T, x, masses, allowed)[0]


def dot(a, b):
    """The inner product."""
    return math.fsum(float(p) * float(q) for p, q in zip(a, b, strict=True))


def exponential_sums(queries, tokens, values, masses=None, allowed=full):
    """log sum_j m_j e^{<q_i, y_j>} and the average of the values; minus infinity and 0 where i sees no mass."""
    n, k = values.shape
    mass = [1.0] * n if masses is None else [float(m) for m in masses]
    log_sum, mean = np.full(n, -math.inf), np.zeros((n, k))
    for i in range(n):
        score = {j: dot(queries[i], tokens[j]) for j in range(n) if allowed(i, j) and mass[j] > 0}
        if score:
            top = max(score.values())
            terms = {j: mass[j] * math.exp(s - top) for j, s in score.items()}
            log_sum[i] = top + math.log(math.fsum(terms.values()))
            for a in range(k):
                mean[i, a] = math.fsum(w * float(values[j, a]) for j, w in terms.items()) / math.fsum(terms.values())
    return log_sum, mean


def hardmax_sums(queries, tokens, values, masses=None, allowed=full):
    """The mass of the tokens that attain max_j <q_i, y_j>, and the sum of mass times value over them."""
    n, k = values.shape
    mass = [1.0] * n if masses is None else [float(m) for m in masses]
    attained, total = np.zeros(n), np.zeros((n, k))
    for i in range(n):
        score = {j: dot(queries[i], tokens[j]) for j in range(n) if allowed(i, j) and mass[j] > 0}
        for j, s in score.items():
            if s == max(score.values()):
                attained[i] += mass[j]
                total[i] += mass[j] * values[j]
    return attained, total
