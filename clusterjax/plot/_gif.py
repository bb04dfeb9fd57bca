"""GIFs that are small and quick to write: one palette for all frames, no dithering, one drawing per frame."""

from collections.abc import Iterable
from io import BytesIO
from typing import Any, final

import numpy as np
from matplotlib.animation import AbstractMovieWriter
from matplotlib.figure import Figure
from PIL import Image


COMMON = 8  # colours taken as they are, for their area
CUT = 20  # colours that stand for all others


@final
class GifWriter(AbstractMovieWriter):
    """Writes frames that share a palette."""

    def __init__(self, fps: int, dpi: int, colours: Image.Image):
        self.fps, self.dpi, self.metadata, self.codec, self.bitrate = fps, dpi, {}, "gif", -1
        self.colours = colours
        self.frames: list[Image.Image] = []

    def setup(self, fig: Any, outfile: Any, dpi: Any = None) -> None:
        self.fig, self.outfile, self.frames = fig, outfile, []

    def grab_frame(self, **savefig_kwargs: Any) -> None:
        frame = picture(self.fig, self.dpi)
        self.frames.append(frame.quantize(palette=self.colours, dither=Image.Dither.NONE))

    def finish(self) -> None:  # called after a failure too, perhaps before the first frame
        if not self.frames:
            return
        first, *rest = self.frames
        # Pillow writes only what changes between frames, which a shared palette without dithering makes little.
        first.save(
            self.outfile,
            format="GIF",
            save_all=True,
            append_images=rest,
            # A GIF counts in hundredths of a second.
            duration=round(1000 / self.fps),
            loop=0,
            # It would drop the colours that a frame does not use, and frames would have palettes of their own.
            optimize=False,
        )


def picture(figure: Figure, dpi: float | int) -> Image.Image:
    """The figure in pixels."""
    buffer = BytesIO()
    # Not `canvas.buffer_rgba`: savefig draws with the settings that the file will have.
    figure.savefig(buffer, format="rgba", dpi=dpi)
    # As matplotlib rounds the size of its canvas, with its slack for 2.5 * 160 = 399.99...
    width, height = (int(side * dpi + 1e-8) for side in figure.get_size_inches())
    return Image.frombuffer("RGBA", (width, height), buffer.getvalue(), "raw", "RGBA", 0, 1).convert("RGB")


def palette(pictures: Iterable[Image.Image], pinned: np.ndarray) -> Image.Image:
    """The pinned colours (k, 4), k <= 200, the commonest colours of the pictures, and the rest of theirs by median cut.

    By area alone the red of one token would not survive beside so much white and grey.
    """
    pixels = np.concatenate([np.asarray(one).reshape(-1, 3) for one in pictures]).astype(np.uint32)
    # Three bytes in one integer, so that unique counts colours and not channels.
    packed, area = np.unique(pixels[:, 0] << 16 | pixels[:, 1] << 8 | pixels[:, 2], return_counts=True)
    seen = np.stack([packed >> 16, packed >> 8 & 255, packed & 255], axis=1).astype(np.uint8)
    # Commonest first; a stable order gives the same bytes each time.
    seen = seen[np.argsort(-area, kind="stable")]
    # The pinned colours first, whatever their area.
    kept = np.unique(np.round(255 * pinned[:, :3]).astype(np.uint8), axis=0)
    # The largest difference of a channel from the nearest pinned colour, (colours,).
    far = np.abs(seen[:, None].astype(int) - kept[None]).max(axis=-1).min(axis=1) > 6
    seen = seen[far]  # what is almost a pinned colour becomes that colour, white above all
    kept = np.concatenate([kept, seen[:COMMON]])
    if len(seen) > COMMON:
        # Each distinct colour once and not by area: rims and trails are few pixels and matter.
        median_cut = Image.fromarray(seen[None, COMMON:]).quantize(colors=CUT, method=Image.Quantize.MEDIANCUT)
        kept = np.concatenate([kept, np.array(median_cut.getpalette(), dtype=np.uint8).reshape(-1, 3)[:CUT]])
    holder = Image.new("P", (1, 1))
    holder.putpalette(kept.ravel().tolist())
    return holder
