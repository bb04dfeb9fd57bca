"""Clouds of tokens that expose errors of sums which generic clouds hide: heaps, ties, lines, antipodes, a far token.

The clouds are built without the package, in float64, for any positive number of tokens and any dimension. Most
coordinates have few bits, so that scores are exact in float32 too and ties are exact. `cloud` returns the cloud of a
given name and seed; another seed draws other places and other sizes of heaps.
"""

from collections.abc import Callable

import numpy as np


Rng = np.random.Generator


def _some(rng: Rng, n: int) -> np.ndarray:
    """Random indices of tokens, at least one."""
    return rng.permutation(n)[: rng.integers(1, n + 1)]


def _ring(rng: Rng, n: int, d: int) -> np.ndarray:
    """`n` points on the unit circle of the first two axes; in one dimension, the points -1 and 1."""
    angle = rng.uniform(0, 2 * np.pi, n)
    x = np.zeros((n, d))
    x[:, 0], x[:, 1:2] = np.cos(angle), np.sin(angle)[:, None]
    return x if d > 1 else np.where(x < 0, -1.0, 1.0)


def _in_a_box(rng: Rng, n: int, d: int) -> np.ndarray:
    return rng.integers(-8, 9, (n, d)) / 16


def generic(rng: Rng, n: int, d: int) -> np.ndarray:
    return rng.normal(size=(n, d))


def repeats(rng: Rng, n: int, d: int) -> np.ndarray:
    """A cloud of few places, with about six tokens at each place."""
    places = rng.normal(size=(max(1, n // 6), d))
    return places[rng.integers(0, len(places), n)]


def heaps(rng: Rng, n: int, d: int) -> np.ndarray:
    """Heaps at corners of a cube and single tokens inside the cube: a state in which hardmax ends."""
    x, at = _in_a_box(rng, n, d), _some(rng, n)
    x[at] = rng.choice([-1.0, 1.0], (len(at), d))
    return x


def heaps_on_a_ring(rng: Rng, n: int, d: int) -> np.ndarray:
    """Heaps at a few places of a circle, some with tokens inside the circle."""
    places = _ring(rng, rng.integers(1, 13), d)
    x = places[rng.integers(0, len(places), n)]
    x[rng.permutation(n)[: rng.integers(0, n)]] *= rng.choice([0.25, 0.75])
    return x


def nearly_heaps(rng: Rng, n: int, d: int) -> np.ndarray:
    """Heaps whose tokens differ in the last bits."""
    places = _ring(rng, rng.integers(1, 5), d)
    return places[rng.integers(0, len(places), n)] * (1 + rng.integers(-2, 3, (n, d)) * 2.0 ** -rng.integers(22, 53))


def line(rng: Rng, n: int, d: int) -> np.ndarray:
    """Places on a line that does not meet the origin; some places are drawn several times."""
    start, step = np.full(d, 0.5), np.zeros(d)
    start[0], step[-1] = 1.5, rng.choice([0.25, 0.5])
    return start + np.outer(rng.integers(-8, 9, n), step)


def line_through_zero(rng: Rng, n: int, d: int) -> np.ndarray:
    return np.outer(rng.integers(-8, 9, n) / 8, rng.choice([0.0, 0.5, 1.0], d) + np.eye(d)[0])


def lattice(rng: Rng, n: int, d: int) -> np.ndarray:
    return rng.integers(-3, 4, (n, d)) / 4


def ring(rng: Rng, n: int, d: int) -> np.ndarray:
    return _ring(rng, n, d)


def ring_with_a_heap(rng: Rng, n: int, d: int) -> np.ndarray:
    x = _ring(rng, n, d)
    x[_some(rng, n)] = x[0]
    return x


def one_point(rng: Rng, n: int, d: int) -> np.ndarray:
    return np.repeat(rng.integers(1, 8, (1, d)) / 4, n, axis=0)


def antipodes(rng: Rng, n: int, d: int) -> np.ndarray:
    return rng.integers(1, 8, (1, d)) / 4 * rng.choice([-1.0, 1.0], (n, 1))


def outlier(rng: Rng, n: int, d: int) -> np.ndarray:
    """A heap and one token far from it."""
    x = np.repeat(_ring(rng, 1, d), n, axis=0) + rng.choice([0.0, 2.0**-10]) * rng.integers(-3, 4, (n, d))
    x[rng.integers(n)] = -(2.0 ** rng.integers(0, 9)) * _ring(rng, 1, d)[0]
    return x


CLOUDS: dict[str, Callable[[Rng, int, int], np.ndarray]] = {
    f.__name__.replace("_", " "): f
    for f in (
        generic,
        repeats,
        heaps,
        heaps_on_a_ring,
        nearly_heaps,
        line,
        line_through_zero,
        lattice,
        ring,
        ring_with_a_heap,
        one_point,
        antipodes,
        outlier,
    )
}


def cloud(name: str, n: int, d: int = 2, *, seed: int = 0, sphere: bool = False) -> np.ndarray:
    """The cloud of the given name and seed, (n, d); on the `sphere`, normalised, with zero moved to the first axis."""
    x = CLOUDS[name](np.random.default_rng([seed, *name.encode()]), n, d)
    if not sphere:
        return x
    x = np.where(np.all(x == 0, axis=1)[:, None], np.eye(d)[0], x)
    return x / np.sqrt((x * x).sum(axis=1, keepdims=True))


# --- masses


def masses(name: str, n: int, *, seed: int = 0) -> np.ndarray:
    """Masses of the given name, (n,), of few bits; zeros are padding, and leading zeros empty the first causal rows."""
    rng, index = np.random.default_rng(seed), np.arange(n)
    return {
        "ones": np.ones(n),
        "unequal": 0.25 * (1 + index % 5),
        "some zero": np.where(rng.random(n) < 0.4, 0, 0.5) + np.where(index == n - 1, 1.0, 0),
        "first zero": np.where(index < n // 2, 0, 1.0),
        "one": np.where(index == n // 3, 2.0, 0),
        "two": np.where((index == n // 3) | (index == n - 1), 1.0, 0),
        "three": np.where(index < 3, 1.0, 0),
    }[name]


MASSES = ("ones", "unequal", "some zero", "first zero", "one", "two", "three")
