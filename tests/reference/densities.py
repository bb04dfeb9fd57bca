"""The mean-field equation by quadrature: sums over pairs of points of a grid, each point with the mass of its cell."""

import numpy as np
from scipy.special import sph_harm_y


def circle_points(count):
    """Midpoints of equal cells, (count, 2), and the share of each cell."""
    angles = 2 * np.pi * (np.arange(count) + 0.5) / count
    return np.stack([np.cos(angles), np.sin(angles)], 1), np.full(count, 1 / count)


def sphere_points(count):
    """Gauss-Legendre nodes in z times equal angles, and the share of each."""
    z, weights = np.polynomial.legendre.leggauss(count)
    angles = 2 * np.pi * (np.arange(2 * count) + 0.5) / (2 * count)
    points, shares = [], []
    for height, weight in zip(z, weights, strict=True):
        for angle in angles:
            radius = np.sqrt(1 - height**2)
            points.append([radius * np.cos(angle), radius * np.sin(angle), height])
            shares.append(weight / 2 / len(angles))
    return np.array(points), np.array(shares)


def harmonic(x, l, column):
    """The harmonic of degree l in this column of the coefficients, at one unit vector: by SciPy."""
    m, sine = column // 2, column % 2
    if len(x) == 2:
        angle, scale = np.arctan2(x[1], x[0]), 1 if l == 0 else np.sqrt(2)
        return scale * (np.sin(l * angle) if sine else np.cos(l * angle))
    if m > l:
        return 0.0
    value = sph_harm_y(l, m, np.arccos(np.clip(x[2], -1, 1)), np.arctan2(x[1], x[0]))
    part = value.imag if sine else value.real
    # SciPy's harmonics have Condon and Shortley's phase, and are normalised by the area.
    return float((-1) ** m * np.sqrt(4 * np.pi) * (1 if m == 0 else np.sqrt(2)) * part)


def velocity(x, masses, beta, value=None, form=None, softmax=True, offset=0.0):
    """The velocity of each point among points with these masses, whose sum is one."""
    n, d = x.shape
    value, form = (np.eye(d) if matrix is None else matrix for matrix in (value, form))
    out = np.zeros((n, d))
    for i in range(n):
        total, mass = np.zeros(d), 0.0
        for j in range(n):
            weight = masses[j] * np.exp(beta * x[i] @ form @ x[j] - (0 if softmax else offset))
            total, mass = total + weight * x[j], mass + weight
        pulled = value @ (total / mass if softmax else total)
        out[i] = pulled - (pulled @ x[i]) * x[i]
    return out


def change(x, masses, v, temperature, l, column, step=3e-6):
    """d/dt of a coefficient: the mean of <grad Y, v> by differences along v, and the damping of noise."""
    total = 0.0
    for point, mass, speed in zip(x, masses, v, strict=True):
        ends = [point + sign * step * speed for sign in (1, -1)]
        ahead, behind = (harmonic(end / np.linalg.norm(end), l, column) for end in ends)
        total += mass * (ahead - behind) / (2 * step)
    now = sum(mass * harmonic(point, l, column) for point, mass in zip(x, masses, strict=True))
    return total - temperature * l * (l + x.shape[1] - 2) * now
