"""The choice of the writer of a film by the suffix of its name."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any, final

import matplotlib as mpl
import numpy as np
from matplotlib.animation import AbstractMovieWriter
from matplotlib.figure import Figure
from PIL import Image

from .._base.checks import refusal


# Writing of small GIFs: one palette for all frames, no dithering, and one drawing for each frame.


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


# Writing of MP4 films by ffmpeg, if it is installed: reproducible H.264 files that every browser plays.


def ffmpeg_path() -> str | None:
    """The path of the ffmpeg in the settings of matplotlib, or None if it is not installed."""
    return shutil.which(mpl.rcParams["animation.ffmpeg_path"])


def check_ffmpeg(name: str, found: str) -> None:
    """Raise a `ValueError` if ffmpeg is not installed."""
    if ffmpeg_path() is None:
        remedy = "install it (apt install ffmpeg, or conda install ffmpeg), or choose a name that ends in .gif"
        raise refusal(name, "end in .gif where there is no ffmpeg, which writes .mp4", f"it is {found}", remedy)


@final
class Mp4Writer(AbstractMovieWriter):
    """A writer of films that pipes the pixels of each frame to ffmpeg."""

    def __init__(self, fps: int, dpi: int):
        self.fps, self.dpi, self.metadata, self.codec, self.bitrate = fps, dpi, {}, "h264", -1
        self.running: subprocess.Popen[bytes] | None = None

    def setup(self, fig: Any, outfile: Any, dpi: Any = None) -> None:
        # The errors go to a file: a full pipe, which nothing reads while frames are written, would block both programs.
        self.fig, self.outfile, self.complaints = fig, outfile, tempfile.TemporaryFile()  # noqa: SIM115

    def grab_frame(self, **savefig_kwargs: Any) -> None:
        frame = picture(self.fig, self.dpi)
        if self.running is None:
            # ffmpeg starts with the first frame, whose size is that of all frames.
            self.running = self._started(*frame.size)
        assert self.running.stdin is not None
        try:
            self.running.stdin.write(frame.tobytes())
        except BrokenPipeError:  # ffmpeg has ended with an error
            self.finish()

    def finish(self) -> None:  # also called after a failure, possibly before the first frame
        running, self.running = self.running, None
        if running is not None:
            running.communicate()
        if self.complaints.closed:  # called again while its own error propagates
            return
        with self.complaints:
            if running is None or running.returncode == 0:
                return
            self.complaints.seek(0)
            said = self.complaints.read().decode("utf-8", "replace").strip().splitlines()
        raise refusal(
            "path", "end in .gif where ffmpeg cannot write H.264", f"ffmpeg said {(said or ['nothing'])[-1][:200]!r}",
            "install an ffmpeg with libx264, or choose a name that ends in .gif",
        )  # fmt: skip

    def _started(self, width: int, height: int) -> "subprocess.Popen[bytes]":
        pixels = ("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(self.fps), "-i", "-")
        # Browsers play yuv420p only, which halves the resolution of colours, so the sides must be even.
        even = ("-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2:color=white", "-pix_fmt", "yuv420p")
        # One thread, and no dates or versions, make the bytes equal on every machine with this ffmpeg.
        same = ("-threads", "1", "-fflags", "+bitexact", "-flags:v", "+bitexact", "-map_metadata", "-1")
        # +faststart puts the index first, so that a browser starts to play before the whole file is loaded.
        coded = ("-c:v", "libx264", "-crf", "18", *even, *same, "-movflags", "+faststart")
        command = (str(ffmpeg_path()), "-y", "-loglevel", "error", *pixels, *coded, "-f", "mp4", str(self.outfile))
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self.complaints
        )  # fmt: skip


FILMS = (".gif", ".mp4")


def film_writer(
    path: Path, fps: int, dpi: int, pilots: Iterable[Image.Image], pinned: np.ndarray
) -> AbstractMovieWriter:
    """The writer for the suffix of `path`; a GIF has the palette of `pilots` and of the pinned colours (k, 4)."""
    # An MP4 needs no palette, so the generator of pilots is never run.
    return Mp4Writer(fps, dpi) if path.suffix.lower() == ".mp4" else GifWriter(fps, dpi, palette(pilots, pinned))
