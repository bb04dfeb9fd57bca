"""The sentiment classifier in plain loops over reviews, heads, layers, words and the words that a word may follow."""

import numpy as np


def followed(z, form, present):
    """For each word the word that it follows: the first with the largest score."""
    out = []
    for i in range(len(z)):
        query = z[i] if form is None else form @ z[i]
        scores = {j: float(np.dot(query, z[j])) for j in range(len(z)) if present[j]}
        out.append(max(scores, key=lambda j: (scores[j], -j)))
    return out


def walk(z, alpha, form, present, depth):
    """The words before the first layer and after each layer, and the word that each word follows in each layer."""
    layers, choices = [np.array(z)], []
    for _ in range(depth):
        z, chosen = layers[-1], followed(layers[-1], form, present)
        layers.append(np.array([(z[i] + alpha * z[chosen[i]]) / (1 + alpha) for i in range(len(z))]))
        choices.append(chosen)
    return layers, choices


def logit(embedding, w, v, alpha, forms, depth, ids, counts):
    """The logit of one review, and the share of each of its words in it, (n, heads)."""
    words, heads = len(ids), embedding.shape[1]
    shares = np.zeros((words, heads))
    total, length = v, sum(counts)
    if not length:
        return total, shares
    for h in range(heads):
        z = [embedding[i, h] for i in ids]
        layers, choices = walk(z, alpha[h], None if forms is None else forms[h], [c > 0 for c in counts], depth)
        for i in range(words):
            total = total + counts[i] / length * float(np.dot(w[h], layers[-1][i]))
        carried = [count / length for count in counts]
        for chosen in reversed(choices):
            before = [share / (1 + alpha[h]) for share in carried]
            for i in range(words):
                before[chosen[i]] += alpha[h] / (1 + alpha[h]) * carried[i]
            carried = before
        shares[:, h] = carried
    return total, shares


def released_logits(weights, ids):
    """The published forward pass of 2407.01602 in float64, one review at a time: softmax attention at the model's
    temperature over all positions, padding included, and the mean over all positions."""
    E, w = weights["E"].astype(np.float64), weights["w"].astype(np.float64).reshape(-1)
    v, alpha, tau = (float(np.squeeze(weights[name])) for name in ("v", "alpha", "temperature"))
    out = []
    for row in ids:
        x = E[row]
        for _ in range(int(weights["depth"])):
            scores = x @ x.T / tau
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            x = (x + alpha * (scores / scores.sum(axis=1, keepdims=True)) @ x) / (1 + alpha)
        out.append(float(x.mean(axis=0) @ w) + v)
    return np.array(out)


def leading(z, alpha, present, depth):
    """The first layer at which a word's score of itself exceeds all others by more than rounding; -1 if none.

    A word within a millionth of a leader, relative to the leader's norm, has merged with it and is no leader.
    """
    layers, _ = walk(z, alpha, None, present, depth)
    first = [-1] * len(z)
    for k, x in enumerate(layers):
        for i in range(len(z)):
            own = float(np.dot(x[i], x[i]))
            rest = [float(np.dot(x[i], x[j])) for j in range(len(z)) if j != i and present[j]]
            merged = any(
                first[j] >= 0 and np.linalg.norm(x[i] - x[j]) < 1e-6 * np.linalg.norm(x[j])
                for j in range(len(z))
                if j != i
            )
            if present[i] and first[i] < 0 and not merged and all(score < own - 1e-12 for score in rest):
                first[i] = k
    return first
