"""Inverse problems in plain loops: runs by Heun's method, Fisher's information by central differences."""

import numpy as np

from tests.reference import attention, fields


def heun(x0, ts, steps, beta, form, value):
    """The tokens at each of `ts`, (T, n, d), on the sphere, with `steps` steps between two times."""
    weigh = lambda points: attention.softmax_weights(points, beta, form)
    speed = lambda points: fields.velocity(points, weigh, value)
    x, saved = np.array(x0), [np.array(x0)]
    for start, end in zip(ts[:-1], ts[1:], strict=True):
        for _ in range(steps):
            h = (end - start) / steps
            first = speed(x)
            x = x + h / 2 * (first + speed(x + h * first))
        saved.append(np.array([fields.unit(row) for row in x]))
    return np.array(saved)


def fisher(observe, point, noise, step=1e-5):
    """sum_a (d o_a / d theta_i) (d o_a / d theta_j) / noise^2, entry by entry."""
    p = len(point)
    slopes = []
    for i in range(p):
        shift = np.zeros(p)
        shift[i] = step
        slopes.append((np.ravel(observe(point + shift)) - np.ravel(observe(point - shift))) / (2 * step))
    out = np.zeros((p, p))
    for i in range(p):
        for j in range(p):
            for a in range(len(slopes[0])):
                out[i, j] += slopes[i][a] * slopes[j][a] / noise**2
    return out
