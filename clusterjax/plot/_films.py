"""The choice of the writer of a film by the suffix of its name."""

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
    """The writer for the suffix of `path`; a GIF has the palette of `pilots` and of the pinned colours (k, 4)."""
    # An MP4 needs no palette, so the generator of pilots is never run.
    return Mp4Writer(fps, dpi) if path.suffix.lower() == ".mp4" else GifWriter(fps, dpi, palette(pilots, pinned))
