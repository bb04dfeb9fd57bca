"""Attention as the papers write it: plain loops over pairs of tokens, in double precision."""

import math

import numpy as np


def full(i, j):
    """Every token may attend to every token."""
    return True


def causal(i, j):
    """Each token may attend to itself and to earlier tokens."""
    return j <= i


def window(width):
    """Each token may attend to the tokens fewer than `width` places away."""
    return lambda i, j: abs(i - j) < width


def causal_window(width):
    """Each token may attend to itself and to the `width` - 1 tokens before it."""
    return lambda i, j: 0 <= i - j < width


def sink(width, kept):
    """Each token may attend to itself, the `width` - 1 tokens before it, and earlier tokens among the first `kept`."""
    return lambda i, j: j <= i and (i - j < width or j < kept)


def permitted(matrix):
    """Each token may attend to the tokens that a matrix permits."""
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


def dot(a, b):
    """The inner product of two vectors."""
    return math.fsum(float(p) * float(q) for p, q in zip(a, b, strict=True))


def weights(score, allowed, masses, row):
    """The weights `row(scores, masses)` of the tokens with mass to which a token may attend; other weights are zero."""
    n = len(score)
    mass = [1.0] * n if masses is None else [float(m) for m in masses]
    out = np.zeros((n, n))
    for i in range(n):
        seen = [j for j in range(n) if allowed(i, j) and mass[j] > 0]
        if seen:
            out[i, seen] = row([score[i][j] for j in seen], [mass[j] for j in seen])
    return out


def shares(terms):
    return [term / math.fsum(terms) for term in terms]


def linear(terms, mass, normalise):
    """m_j t_j over their sum, or over the sum of the masses."""
    terms = [m * float(term) for term, m in zip(terms, mass, strict=True)]
    return shares(terms) if normalise else [term / math.fsum(mass) for term in terms]


def hardmax(score, mass, slack):
    return shares([m * (s >= max(score) - slack) for s, m in zip(score, mass, strict=True)])


def softmax(score, mass):
    top = max(score)
    return shares([m * math.exp(s - top) for s, m in zip(score, mass, strict=True)])


def softmax_weights(x, beta, form=None, allowed=full, masses=None):
    """m_j e^{beta s_ij} / sum_k m_k e^{beta s_ik} over the tokens that i may attend to; a row of zeros if none."""
    row = lambda score, mass: softmax([beta * s for s in score], mass)
    return weights(scores(x, form), allowed, masses, row)


def sigmoid_weights(x, beta, form=None, allowed=full, masses=None, offset=None):
    """m_j / (1 + e^{-beta s_ij - b}), where b is minus the logarithm of the mass that i may attend to, or a number."""

    def row(score, mass):
        b = -math.log(math.fsum(mass)) if offset is None else offset
        return [m / (1 + math.exp(-(beta * s + b))) for s, m in zip(score, mass, strict=True)]

    return weights(scores(x, form), allowed, masses, row)


def queries(x, form=None):
    """B^T x_i for each token."""
    d = x.shape[1]
    return np.array(
        [
            [float(y[a]) if form is None else sum(float(form[b, a]) * float(y[b]) for b in range(d)) for a in range(d)]
            for y in x
        ]
    )


def of_pairs(x, form, score):
    """The score of each query with each token."""
    return [[score(query, token) for token in x] for query in queries(x, form)]


def distance_weights(x, beta, form=None, allowed=full, masses=None):
    """Softmax of -beta |B^T x_i - x_j|^2 / 2."""
    return weights(of_pairs(x, form, lambda q, y: -beta * dot(q - y, q - y) / 2), allowed, masses, softmax)


def cosine_weights(x, beta, form=None, allowed=full, masses=None):
    """Softmax of beta times the cosine of B^T x_i and x_j; zero where one of the two is zero."""

    def score(q, y):
        size = math.sqrt(dot(q, q)) * math.sqrt(dot(y, y))
        return beta * dot(q, y) / size if size > 0 else 0.0

    return weights(of_pairs(x, form, score), allowed, masses, softmax)


def sinkhorn_weights(x, beta, form=None, allowed=full, masses=None):
    """Sinkhorn's iteration: rows and columns are scaled in turn, in logarithms, until they no longer change."""
    n, score = x.shape[0], scores(x, form)
    mass = [1.0 / n] * n if masses is None else [float(m) / math.fsum(map(float, masses)) for m in masses]
    seen = [[j for j in range(n) if allowed(i, j) and mass[j] > 0] for i in range(n)]
    heavy = [i for i in range(n) if mass[i] > 0]
    f, g = [0.0] * n, [0.0] * n

    def log_sum(terms):
        top = max(terms)
        return top + math.log(math.fsum(math.exp(term - top) for term in terms))

    for _ in range(4000):
        for i in heavy:
            f[i] = -log_sum([math.log(mass[j]) + beta * score[i][j] + g[j] for j in seen[i]])
        last = list(g)
        for j in heavy:
            g[j] = -log_sum([math.log(mass[i]) + beta * score[i][j] + f[i] for i in heavy if allowed(i, j)])
        if max(abs(a - b) for a, b in zip(g, last, strict=True)) < 1e-14:
            break
    return weights([[beta * s + g[j] for j, s in enumerate(row)] for row in score], allowed, mass, softmax)


def unnormalised_weights(x, beta, form=None, allowed=full, masses=None, offset=0.0):
    """m_j e^{beta s_ij - offset} / (mass of the tokens that i may attend to)."""
    return kernel_weights(x, lambda s: math.exp(beta * s - offset), False, form, allowed, masses)


def kernel_weights(x, kernel, normalise, form=None, allowed=full, masses=None):
    """m_j f(s_ij) over their sum, or over the mass of the tokens that i may attend to."""
    row = lambda score, mass: linear([kernel(s) for s in score], mass, normalise)
    return weights(scores(x, form), allowed, masses, row)


def hardmax_weights(x, form=None, allowed=full, masses=None, slack=1e-9):
    """m_j over the mass of the maximisers of s_ik if j is one; scores within `slack` of the largest are maximisers."""
    return weights(scores(x, form), allowed, masses, lambda score, mass: hardmax(score, mass, slack))


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
