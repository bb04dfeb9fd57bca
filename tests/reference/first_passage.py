"""The first time at which tokens are within a radius of their mean, by loops: Runge-Kutta steps, and bisection."""

import math

import numpy as np

from tests.reference.fields import unit, velocity


def step(x, weights, h):
    """One classical Runge-Kutta step of attention on the sphere."""
    a = velocity(x, weights)
    b = velocity(x + h / 2 * a, weights)
    c = velocity(x + h / 2 * b, weights)
    d = velocity(x + h * c, weights)
    return np.array([unit(row) for row in x + h / 6 * (a + 2 * b + 2 * c + d)])


def spread(x):
    """The largest distance of a token from the mean."""
    mean = [math.fsum(column) / len(x) for column in x.T]
    return max(math.dist(row, mean) for row in x)


def first_passage(x, weights, radius, until, h):
    """The time, and True if the tokens come within the radius by `until`, a multiple of h."""
    t, x = 0.0, np.array([unit(row) for row in x])
    if spread(x) <= radius:
        return 0.0, True
    while t < until - h / 2:
        later = step(x, weights, h)
        if spread(later) <= radius:
            low, high = 0.0, h
            while high - low > 1e-10:
                middle = (low + high) / 2
                low, high = (low, middle) if spread(step(x, weights, middle)) <= radius else (middle, high)
            return t + high, True
        t, x = t + h, later
    return until, False
