"""Writing of MP4 films by ffmpeg, if it is installed: reproducible H.264 files that every browser plays."""

import shutil
import subprocess
import tempfile
from typing import Any, final

import matplotlib as mpl
from matplotlib.animation import AbstractMovieWriter

from .._check import refusal
from ._gif import picture


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
