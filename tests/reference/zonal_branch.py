"""Stationary densities of one coordinate under a kernel, by Newton's method for their values on a grid: no series.

A point of the sphere is (z, sqrt(1 - z^2) w). The kernel between two heights is its mean over the angle between the
parts w, and the potential of a normalised kernel is the integral of its force over z, by a polynomial through the grid.
"""

import numpy as np
from numpy.polynomial import legendre


def grid(d, count):
    """Heights, and the shares of the uniform density: midpoints of the angle in the plane, Gauss's nodes beyond it."""
    if d == 2:
        return np.cos(np.pi * (np.arange(count) + 0.5) / count), np.full(count, 1 / count)
    z, shares = legendre.leggauss(count)
    shares = shares * (1 - z * z) ** ((d - 3) / 2)
    return z, shares / shares.sum()


def mean_over_angle(fn, z, d, count=96):
    """The matrix of the means of fn(<x, y>) over y of each height, x at each height."""
    angles = np.pi * (np.arange(count) + 0.5) / count if d > 2 else np.array([0.0, np.pi])
    shares = np.sin(angles) ** (d - 3) if d > 2 else np.ones(2)
    matrix = np.zeros((len(z), len(z)))
    for i in range(len(z)):
        for j in range(len(z)):
            across = np.sqrt(1 - z[i] ** 2) * np.sqrt(1 - z[j] ** 2)
            matrix[i, j] = np.sum(shares * fn(z[i] * z[j] + across * np.cos(angles))) / np.sum(shares)
    return matrix


def state(kernel, antiderivative, d, r, temperature, *, normalise, count=48):
    """The temperature and the density at heights of the grid with mean height r, from a guess of the temperature."""
    z, shares = grid(d, count)
    pull, sums = mean_over_angle(antiderivative, z, d), mean_over_angle(kernel, z, d)

    def potential(density):
        mass = shares * density
        if not normalise:
            return pull @ mass
        slope = legendre.legval(z, legendre.legder(legendre.legfit(z, pull @ mass, count - 1)))
        return legendre.legval(z, legendre.legint(legendre.legfit(z, slope / (sums @ mass), count - 1)))

    def error(unknowns):
        density, inverse = unknowns[:-1], np.exp(-unknowns[-1])
        exponents = potential(density) * inverse
        wanted = np.exp(exponents - exponents.max())
        return np.append(density - wanted / np.sum(shares * wanted), np.sum(shares * z * density) - r)

    low, high = 0.0, 200.0
    for _ in range(60):
        sharpness = (low + high) / 2
        density = np.exp(sharpness * (z - 1))
        density = density / np.sum(shares * density)
        low, high = (sharpness, high) if np.sum(shares * z * density) < r else (low, sharpness)
    unknowns = np.append(density, np.log(temperature))
    for _ in range(60):
        value, steps = error(unknowns), 1e-7 * np.eye(count + 1)
        jacobian = np.stack([(error(unknowns + h) - error(unknowns - h)) / 2e-7 for h in steps], axis=1)
        change = np.linalg.solve(jacobian, value)
        unknowns = unknowns - change
        if np.abs(change).max() < 1e-13 * np.abs(unknowns).max():
            break
    assert np.abs(error(unknowns)).max() < 1e-10
    return float(np.exp(unknowns[-1])), z, shares, unknowns[:-1]
