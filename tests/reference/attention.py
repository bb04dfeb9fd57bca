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


def softmax_weights(x, beta, form=None, allowed=full, masses=None):
    """m_j e^{beta s_ij} / sum_k m_k e^{beta s_ik} over the tokens that i may attend to; a row of zeros if none."""
    n, score = x.shape[0], scores(x, form)
    mass = [1.0] * n if masses is None else [float(m) for m in masses]
    out = np.zeros((n, n))
    for i in range(n):
        seen = [j for j in range(n) if allowed(i, j) and mass[j] > 0]
        top = max((beta * score[i][j] for j in seen), default=0.0)
        terms = {j: mass[j] * math.exp(beta * score[i][j] - top) for j in seen}
        partition = math.fsum(terms.values())
        for j in seen:
            out[i, j] = terms[j] / partition
    return out


def unnormalised_weights(x, beta, form=None, allowed=full, masses=None, offset=0.0):
    """m_j e^{beta s_ij - offset} / (mass of the tokens that i may attend to)."""
    n, score = x.shape[0], scores(x, form)
    mass = [1.0] * n if masses is None else [float(m) for m in masses]
    out = np.zeros((n, n))
    for i in range(n):
        attended = math.fsum(mass[j] for j in range(n) if allowed(i, j))
        for j in range(n):
            if allowed(i, j) and mass[j] > 0:
                out[i, j] = mass[j] * math.exp(beta * score[i][j] - offset) / attended
    return out


def hardmax_weights(x, form=None, allowed=full, masses=None, slack=1e-9):
    """m_j over the mass of the maximisers of s_ik, for the j among them; a score within `slack` is a maximiser."""
    n, score = x.shape[0], scores(x, form)
    mass = [1.0] * n if masses is None else [float(m) for m in masses]
    out = np.zeros((n, n))
    for i in range(n):
        seen = [j for j in range(n) if allowed(i, j) and mass[j] > 0]
        if seen:
            top = max(score[i][j] for j in seen)
            chosen = [j for j in seen if score[i][j] >= top - slack]
            for j in chosen:
                out[i, j] = mass[j] / math.fsum(mass[k] for k in chosen)
    return out


def average(weights, values):
    """sum_j w_ij v_j."""
    n, k = values.shape
    out = np.zeros((n, k))
    for i in range(n):
        for a in range(k):
            out[i, a] = math.fsum(float(weights[i, j]) * float(values[j, a]) for j in range(n))
    return out


def log_partition(x, beta, form=None, allowed=full, masses=None):
    """log sum_j m_j e^{beta s_ij}."""
    n, score = x.shape[0], scores(x, form)
    mass = [1.0] * n if masses is None else [float(m) for m in masses]
    out = np.zeros(n)
    for i in range(n):
        seen = [j for j in range(n) if allowed(i, j) and mass[j] > 0]
        top = max(beta * score[i][j] for j in seen)
        out[i] = top + math.log(math.fsum(mass[j] * math.exp(beta * score[i][j] - top) for j in seen))
    return out
