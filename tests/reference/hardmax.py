"""The discrete hardmax dynamics in fractions: nothing is rounded, and a tie is a tie."""

from fractions import Fraction

import numpy as np


def exact(rows):
    """Rows of numbers as tuples of fractions."""
    return [tuple(Fraction(float(entry)) for entry in row) for row in np.asarray(rows)]


def floats(z):
    """Rows of fractions as an array."""
    return np.array([[float(entry) for entry in row] for row in z])


def image(form, z):
    """A z."""
    if form is None:
        return z
    return tuple(sum(form[a][b] * z[b] for b in range(len(z))) for a in range(len(z)))


def inner(y, z):
    """<y, z>."""
    return sum(a * b for a, b in zip(y, z, strict=True))


def attended(z, form=None, masses=None, allowed=lambda i, j: True):
    """For each token i the set C_i of the tokens to which it attends."""
    out = []
    for i in range(len(z)):
        query = image(form, z[i])
        seen = [j for j in range(len(z)) if allowed(i, j) and (masses is None or masses[j] > 0)]
        top = max((inner(query, z[j]) for j in seen), default=None)
        out.append({j for j in seen if inner(query, z[j]) == top})
    return out


def layer(z, alpha, form=None, masses=None, allowed=lambda i, j: True):
    """Moves each token by the share alpha / (1 + alpha) of its way to the mean over C_i; padding does not move."""
    share = Fraction(alpha) / (1 + Fraction(alpha))
    mass = [Fraction(1)] * len(z) if masses is None else [Fraction(float(m)) for m in masses]
    out = []
    for i, chosen in enumerate(attended(z, form, mass, allowed)):
        if not chosen or mass[i] == 0:
            out.append(z[i])
            continue
        whole = sum(mass[j] for j in chosen)
        mean = [sum(mass[j] * z[j][a] for j in chosen) / whole for a in range(len(z[i]))]
        out.append(tuple(z[i][a] + share * (mean[a] - z[i][a]) for a in range(len(z[i]))))
    return out


def layers(z, alpha, depth, form=None, masses=None, allowed=lambda i, j: True):
    """The tokens after 0, 1, ..., `depth` layers."""
    out = [z]
    for k in range(depth):
        out.append(layer(out[-1], alpha(k) if callable(alpha) else alpha, form, masses, allowed))
    return out


def first_alone(z, alpha, depth, form=None, masses=None):
    """For each token the first layer, 0 to `depth`, with C_i = {i}; -1 if there is none."""
    first = [-1] * len(z)
    for k, tokens in enumerate(layers(z, alpha, depth, form, masses)):
        for i, chosen in enumerate(attended(tokens, form, masses)):
            if chosen == {i} and first[i] < 0 and (masses is None or masses[i] > 0):
                first[i] = k
    return first


def turn(a, b, c):
    """Twice the signed area of a triangle of the plane."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def corners(points):
    """The vertices of the convex hull of points of the plane, by the monotone chain."""
    points = sorted(set(points))
    if len(points) < 3:
        return set(points)
    chains = []
    for some in (points, points[::-1]):
        chain = []
        for point in some:
            while len(chain) > 1 and turn(chain[-2], chain[-1], point) <= 0:
                chain.pop()
            chain.append(point)
        chains += chain[:-1]
    return set(chains)


def inside(point, points):
    """True if a point is in the interior of the convex hull of points of the plane."""
    around = corners(points)
    if len(around) < 3:
        return False
    middle = tuple(sum(axis) / len(around) for axis in zip(*around, strict=True))
    # Every edge has the point strictly on the side of the middle.
    edges = [(a, b) for a in around for b in around if a < b and len({turn(a, b, c) > 0 for c in around - {a, b}}) == 1]
    return all(turn(a, b, point) * turn(a, b, middle) > 0 for a, b in edges)
