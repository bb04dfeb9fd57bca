"""Writing of small GIFs: one palette for all frames, no dithering, and one drawing for each frame."""

from collections.abc import Iterable
from io import BytesIO
from typing import Any, final

import numpy as np
from matplotlib.animation import AbstractMovieWriter
from matplotlib.figure import Figure
from PIL import Image


COMMON = 8  # the number of colours that are kept for their large area
CUT = 20  # the number of colours for all others


@final
class GifWriter(AbstractMovieWriter):
    """A writer of GIFs whose frames share a palette."""

    def __init__(self, fps: int, dpi: int, colours: Image.Image):
        self.fps, self.dpi, self.metadata, self.codec, self.bitrate = fps, dpi, {}, "gif", -1
        self.colours = colours
        self.frames: list[Image.Image] = []

    def setup(self, fig: Any, outfile: Any, dpi: Any = None) -> None:
        self.fig, self.outfile, self.frames = fig, outfile, []

    def grab_frame(self, **savefig_kwargs: Any) -> None:
        frame = picture(self.fig, self.dpi)
        self.frames.append(frame.quantize(palette=self.colours, dither=Image.Dither.NONE))

    def finish(self) -> None:  # also called after a failure, possibly before the first frame
        if not self.frames:
            return
        first, *rest = self.frames
        # Pillow writes only changed pixels, which are few with a shared palette without dithering.
        first.save(
            self.outfile,
            format="GIF",
            save_all=True,
            append_images=rest,
            # A GIF stores hundredths of a second.
            duration=round(1000 / self.fps),
            loop=0,
            # `optimize` would drop unused colours of a frame, so that frames would have different palettes.
            optimize=False,
        )


def picture(figure: Figure, dpi: float | int) -> Image.Image:
    """Render the figure as pixels."""
    buffer = BytesIO()
    # Unlike `canvas.buffer_rgba`, `savefig` draws with the settings of the file.
    figure.savefig(buffer, format="rgba", dpi=dpi)
    # matplotlib rounds the size of its canvas in this way, with a tolerance for 2.5 * 160 = 399.99...
    width, height = (int(side * dpi + 1e-8) for side in figure.get_size_inches())
    return Image.frombuffer("RGBA", (width, height), buffer.getvalue(), "raw", "RGBA", 0, 1).convert("RGB")


def palette(pictures: Iterable[Image.Image], pinned: np.ndarray) -> Image.Image:
    """The palette: the pinned colours (k, 4), k <= 200, the most common other colours, and a median cut of the rest.

    A palette by area alone would lose the red of one token among white and grey.
    """
    pixels = np.concatenate([np.asarray(one).reshape(-1, 3) for one in pictures]).astype(np.uint32)
    # Three bytes are packed into one integer, so that `unique` counts colours and not channels.
    packed, area = np.unique(pixels[:, 0] << 16 | pixels[:, 1] << 8 | pixels[:, 2], return_counts=True)
    seen = np.stack([packed >> 16, packed >> 8 & 255, packed & 255], axis=1).astype(np.uint8)
    # The most common colours come first; a stable sort makes the bytes reproducible.
    seen = seen[np.argsort(-area, kind="stable")]
    kept = np.unique(np.round(255 * pinned[:, :3]).astype(np.uint8), axis=0)
    # (colours,): True if a channel differs by more than 6 from each pinned colour.
    far = np.abs(seen[:, None].astype(int) - kept[None]).max(axis=-1).min(axis=1) > 6
    seen = seen[far]  # colours close to a pinned colour are replaced by it
    kept = np.concatenate([kept, seen[:COMMON]])
    if len(seen) > COMMON:
        # Colours count once and not by area, since rims and trails have few pixels but matter.
        median_cut = Image.fromarray(seen[None, COMMON:]).quantize(colors=CUT, method=Image.Quantize.MEDIANCUT)
        kept = np.concatenate([kept, np.array(median_cut.getpalette(), dtype=np.uint8).reshape(-1, 3)[:CUT]])
    holder = Image.new("P", (1, 1))
    holder.putpalette(kept.ravel().tolist())
    return holder
