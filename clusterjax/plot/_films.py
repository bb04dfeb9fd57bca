"""Which writer makes a moving picture, by the suffix of its name."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from matplotlib.animation import AbstractMovieWriter
from PIL import Image

from ._gif import GifWriter, palette
from ._mp4 import Mp4Writer


FILMS = (".gif", ".mp4")


def film_writer(
    path: Path, fps: int, dpi: int, pilots: Iterable[Image.Image], pinned: np.ndarray
) -> AbstractMovieWriter:
    """The writer of what `path` ends in; a GIF has the palette of these pictures and of the pinned colours (k, 4)."""
    # An MP4 has all colours: its pilots, which are generated, are never drawn.
    return Mp4Writer(fps, dpi) if path.suffix.lower() == ".mp4" else GifWriter(fps, dpi, palette(pilots, pinned))
