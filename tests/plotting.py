"""Tokens to draw, and functions that read the contents of a picture from its artists."""

from types import SimpleNamespace

import numpy as np
from matplotlib.collections import EllipseCollection


RED = "#D40A1E"


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def even_circle(n):
    theta = 2 * np.pi * np.arange(n) / n
    return np.stack([np.cos(theta), np.sin(theta)], axis=1)


def sphere_tokens(n, seed=0):
    return unit(np.random.default_rng(seed).normal(size=(n, 3)))


def run(d=3, n=12, times=7, seed=0):
    """A run whose tokens move straight towards the first token and are normalised; ts = 0, 0.5, 1, ..."""
    x0 = unit(np.random.default_rng(seed).normal(size=(n, d)))
    pull = np.linspace(0, 0.9, times)[:, None, None]
    return SimpleNamespace(ts=0.5 * np.arange(times), xs=unit((1 - pull) * x0 + pull * x0[0]))


def tokens_of(ax):
    (found,) = [artist for artist in ax.collections if isinstance(artist, EllipseCollection)]
    return found


def positions(ax):
    return np.asarray(tokens_of(ax).get_offsets())


def words(ax):
    return {text.get_text() for text in ax.texts if text.get_visible() and text.get_text()}


def counts(ax):
    return {word for word in words(ax) if word.startswith("×")}


def as_set(points):
    return {tuple(np.round(point, 9)) for point in np.asarray(points, dtype=np.float64)}
