"""The picture of two reviews: words at five layers, and the same as a moving picture."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ...plot import animate_words, style, words
from ..framework.layout import WIDTH
from .measure import LAYERS, Chosen, Results


LINE = (np.array([1.0, 0.0]), 0.0)  # the hyperplane, in the coordinates of the picture


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    pair, limits = m.pair, limits_of(m.pair)
    row, foot, head, left = 1.42, 0.36, 0.24, 0.22
    high = row * len(LAYERS) + foot + head
    figure = Figure(figsize=(WIDTH, high))
    wide = (WIDTH - left) / 2
    # Axes are placed by hand: names of words stand outside them, for which a layout engine would make room.
    for column, review in enumerate(pair):
        for number, layer in enumerate(LAYERS):
            bottom = foot + row * (len(LAYERS) - 1 - number)
            # In inches, divided by the size of the figure below.
            place = (left + column * wide + 0.02, bottom + 0.04, wide - 0.04, row - 0.08)
            ax = figure.add_axes((place[0] / WIDTH, place[1] / high, place[2] / WIDTH, place[3] / high))
            words(
                review.run.xs[layer], list(review.run.names), ax, leaders=review.run.leading(layer), line=LINE,
                limits=limits, equal=False,
            )  # fmt: skip
            if number == 0:
                ax.set_title(review.run.title, pad=3)
            if column == 0:
                ax.text(-0.015, 0.5, f"layer {layer}", rotation=90, ha="right", va="center", transform=ax.transAxes)
            if number == len(LAYERS) - 1:
                ax.set_xticks(_ticks(limits[0]))
                ax.set_xlabel("distance from the decision line", labelpad=2)
    return figure


def write_film(m: Results, quick: bool, path: Path) -> Any:
    """Write the moving picture as a GIF."""
    hold, move = (2, 2) if quick else (8, 6)
    return animate_words(
        [review.run for review in m.pair], path, line=LINE, limits=limits_of(m.pair), hold=hold, move=move
    )


def limits_of(pair: tuple[Chosen, Chosen]) -> tuple[np.ndarray, np.ndarray]:
    """Room for both reviews and for names beyond their outermost words."""
    everywhere = np.concatenate([review.run.xs.reshape(-1, 2) for review in pair])
    low, high = everywhere.min(axis=0), everywhere.max(axis=0)
    # Names stand beside their words, and need more room across the line.
    room = np.array([0.13, 0.2]) * (high - low)
    ranges = np.stack([low - room, high + room], axis=1)
    return ranges[0], ranges[1]


def _ticks(limits: np.ndarray) -> np.ndarray:
    return np.arange(np.ceil(limits[0]), np.floor(limits[1]) + 1)
