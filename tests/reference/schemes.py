"""The papers' explicit schemes as plain double loops over tokens."""

import numpy as np
from scipy.linalg import expm


def attention_row(i, x, beta, causal):
    """The softmax weights of token `i`, by the definition; zero where it may not attend."""
    n = len(x)
    weights = np.zeros(n)
    for j in range(i + 1 if causal else n):
        weights[j] = np.exp(beta * (x[i] @ x[j] - x[i] @ x[i]))
    return weights / weights.sum()


def normalised_euler(x0, *, beta, value, causal, step, steps, tangent):
    """x <- normalise(x + step * sum_j w_ij V x_j), with the sum projected to the tangent space if `tangent`."""
    x = np.array(x0)
    saved = [x]
    for _ in range(steps):
        moved = np.empty_like(x)
        for i in range(len(x)):
            weights = attention_row(i, x, beta, causal)
            velocity = np.zeros(x.shape[1])
            for j in range(len(x)):
                velocity += weights[j] * (value @ x[j])
            if tangent:
                velocity -= (velocity @ x[i]) / (x[i] @ x[i]) * x[i]
            moved[i] = x[i] + step * velocity
            moved[i] /= np.sqrt(moved[i] @ moved[i])
        x = moved
        saved.append(x)
    return np.array(saved)


def rescaled_euler(z0, *, beta, value, step, steps):
    """z <- z + step * sum_j P_ij V (z_j - z_i), P the softmax of <e^{tV} z_i, e^{tV} z_j>, at t = 0, step, ..."""
    z = np.array(z0)
    saved = [z]
    for k in range(steps):
        flow = expm(k * step * value)
        x = np.array([flow @ token for token in z])
        moved = np.empty_like(z)
        for i in range(len(z)):
            scores = np.array([beta * (x[i] @ x[j]) for j in range(len(z))])
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            velocity = np.zeros(z.shape[1])
            for j in range(len(z)):
                velocity += weights[j] * (value @ (z[j] - z[i]))
            moved[i] = z[i] + step * velocity
        z = moved
        saved.append(z)
    return np.array(saved)
