"""Densities of one coordinate on the sphere of any dimension, by sums over pairs of points: no series."""

import numpy as np


def pair_mean(z, other, beta, d, count=400):
    """The mean of e^(beta <x, y>) over y at height `other`, for x at height z."""
    heights = np.sqrt(1 - z * z) * np.sqrt(1 - other * other)
    if d == 2:
        return np.mean([np.exp(beta * (z * other + sign * heights)) for sign in (1, -1)])
    # The angle between the parts of x and y across the axis has the density sin^(d - 3).
    angles = np.pi * (np.arange(count) + 0.5) / count
    shares = np.sin(angles) ** (d - 3)
    return np.sum(shares * np.exp(beta * (z * other + heights * np.cos(angles)))) / np.sum(shares)


def stationary_density(z, shares, density, beta, temperature, d, softmax):
    """Returns e^(potential / T) of a density at these heights, normalised; a stationary density equals this result."""
    potential = []
    for height in z:
        total = 0.0
        for other, share, value in zip(z, shares, density, strict=True):
            total += share * value * pair_mean(height, other, beta, d)
        potential.append(np.log(total) / beta if softmax else total / beta)
    found = np.exp((np.array(potential) - max(potential)) / temperature)
    return found / np.sum(shares * found)
