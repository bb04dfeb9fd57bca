"""The Transformer block of Appendix A.1: loops over tokens, heads and entries, in double precision."""

import math

import numpy as np

from tests.reference.attention import dot


def times(matrix, vector):
    """W^T x for W of shape (len(x), k)."""
    return np.array([dot(matrix[:, c], vector) for c in range(matrix.shape[1])])


def layer_norm(x, gain, bias, epsilon):
    mean = math.fsum(x) / len(x)
    variance = math.fsum((v - mean) ** 2 for v in x) / len(x)
    return np.array([(v - mean) / math.sqrt(variance + epsilon) * g + b for v, g, b in zip(x, gain, bias, strict=True)])


def relu(v):
    return max(v, 0.0)


def gelu(v):
    """The approximation by the hyperbolic tangent."""
    return v / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))


def turned(vector, place, base):
    """A query or key at a place: entries a and a + k/2 turned by the angle place / base^(2 a / k)."""
    k, out = len(vector), np.zeros(len(vector))
    for a in range(k // 2):
        angle = place / base ** (2 * a / k)
        out[a] = math.cos(angle) * vector[a] - math.sin(angle) * vector[a + k // 2]
        out[a + k // 2] = math.sin(angle) * vector[a] + math.cos(angle) * vector[a + k // 2]
    return out


def heads(x, query, key, value, output, beta, allowed, relative=None, base=None):
    """The weights (h, n, n) and the update of each head (h, n, d); `relative` is m and two tables of vectors, `base`
    the base of rotary positions."""
    n, count = len(x), len(query)
    weights, updates = np.zeros((count, n, n)), np.zeros((count, n, x.shape[1]))
    for h in range(count):
        q, k, v = ([times(matrix[h], token) for token in x] for matrix in (query, key, value))
        if base is not None:
            q, k = ([turned(vector, place, base) for place, vector in enumerate(vectors)] for vectors in (q, k))
        for i in range(n):
            seen = [j for j in range(n) if allowed(i, j)]
            score = {}
            for j in seen:
                shift = 0.0 if relative is None else relative[1][_row(i, j, relative[0])]
                score[j] = beta[h] * dot(q[i], k[j] + shift)
            top = max(score.values())
            total = math.fsum(math.exp(score[j] - top) for j in seen)
            mixed = np.zeros(query.shape[2])
            for j in seen:
                weights[h, i, j] = math.exp(score[j] - top) / total
                shift = 0.0 if relative is None else relative[2][_row(i, j, relative[0])]
                mixed += weights[h, i, j] * (v[j] + shift)
            updates[h, i] = times(output[h], mixed)
    return weights, updates


def _row(i, j, farthest):
    return max(-farthest, min(farthest, j - i)) + farthest


def feed_forward(x, w_in, w_out, bias_in, bias_out, act):
    out = np.zeros(x.shape)
    for i, token in enumerate(x):
        fired = np.array([act(score + b) for score, b in zip(times(w_in, token), bias_in, strict=True)])
        out[i] = times(w_out, fired) + bias_out
    return out


def block(x, where, attention, forward, norms, epsilon):
    """One block with its norms `where`: post, pre or none. `attention` and `forward` are functions of tokens."""
    normed = lambda tokens, k: np.array([layer_norm(token, *norms[k], epsilon) for token in tokens])
    for k, layer in enumerate((attention, forward)):
        if where == "post":
            x = normed(x + layer(x), k)
        elif where == "pre":
            x = x + layer(normed(x, k))
        else:
            x = x + layer(x)
    return x


def sinusoid(position, d):
    """The sinusoidal encoding PE of one position."""
    out = []
    for index in range(d):
        angle = position / 10000 ** (2 * (index // 2) / d)
        out.append(math.sin(angle) if index % 2 == 0 else math.cos(angle))
    return np.array(out)


def mean_cosine_and_near(tokens, present):
    """The mean cosine of all ordered pairs of different tokens that are present, and the share above 0.9."""
    cosines = []
    for i, x in enumerate(tokens):
        for j, y in enumerate(tokens):
            if i != j and present[i] and present[j]:
                cosines.append(float(x @ y) / (float(x @ x) * float(y @ y)) ** 0.5)
    return sum(cosines) / len(cosines), sum(one > 0.9 for one in cosines) / len(cosines)


def sink_beyond_uniform(weights, present, allowed):
    """The mean weight of the other tokens on the first, less one over the number of tokens they may attend to."""
    beyond = []
    for i in range(1, len(weights)):
        if present[i]:
            choices = sum(1 for j in range(len(weights)) if allowed(i, j) and present[j])
            beyond.append(weights[i][0] - 1 / choices)
    return sum(beyond) / len(beyond)


def next_word_loss(logits, ids, present):
    """The mean loss in nats of the next words that are present, and the share of them that is the likeliest."""
    losses, right = [], []
    for place in range(len(ids) - 1):
        if present[place] and present[place + 1]:
            row = logits[place]
            top = max(row)
            losses.append(top + np.log(sum(np.exp(one - top) for one in row)) - row[ids[place + 1]])
            right.append(int(np.argmax(row)) == ids[place + 1])
    return sum(losses) / len(losses), sum(right) / len(right)


def lstm(words, weight_ih, weight_hh, bias, present):
    """Cell, hidden, input, forget, candidate and output of an LSTM at each place, (n, m) each; entry by entry."""
    n, m = len(words), weight_hh.shape[1]
    cell, hidden = np.zeros(m), np.zeros(m)
    out = np.zeros((6, n, m))
    sigmoid = lambda v: 1 / (1 + math.exp(-v))
    for t in range(n):
        score = [dot(weight_ih[g], words[t]) + dot(weight_hh[g], hidden) + bias[g] for g in range(4 * m)]
        after_cell, after_hidden = cell.copy(), hidden.copy()
        for u in range(m):
            write, keep, read = (sigmoid(score[g * m + u]) for g in (0, 1, 3))
            candidate = math.tanh(score[2 * m + u])
            if present[t]:
                after_cell[u] = keep * cell[u] + write * candidate
                after_hidden[u] = read * math.tanh(after_cell[u])
            out[2:, t, u] = write, keep, candidate, read
        cell, hidden = after_cell, after_hidden
        out[0, t], out[1, t] = cell, hidden
    return out
