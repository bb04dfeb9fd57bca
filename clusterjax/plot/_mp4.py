"""MP4 films by ffmpeg, where it is installed: H.264 that every browser plays, and the same bytes for the same film."""

import shutil
import subprocess
import tempfile
from typing import Any, final

import matplotlib as mpl
from matplotlib.animation import AbstractMovieWriter

from .._check import refusal
from ._gif import picture


def ffmpeg_path() -> str | None:
    """The program that matplotlib is told to call, where there is one."""
    return shutil.which(mpl.rcParams["animation.ffmpeg_path"])


def check_ffmpeg(name: str, found: str) -> None:
    """Raise a ValueError that says what to install, if there is no ffmpeg."""
    if ffmpeg_path() is None:
        remedy = "install it (apt install ffmpeg, or conda install ffmpeg), or choose a name that ends in .gif"
        raise refusal(name, "end in .gif where there is no ffmpeg, which writes .mp4", f"it is {found}", remedy)


@final
class Mp4Writer(AbstractMovieWriter):
    """Hands the pixels of each frame to ffmpeg."""

    def __init__(self, fps: int, dpi: int):
        self.fps, self.dpi, self.metadata, self.codec, self.bitrate = fps, dpi, {}, "h264", -1
        self.running: subprocess.Popen[bytes] | None = None

    def setup(self, fig: Any, outfile: Any, dpi: Any = None) -> None:
        # A file and not a pipe: nobody reads it while frames are written, and a full pipe would stop both.
        self.fig, self.outfile, self.complaints = fig, outfile, tempfile.TemporaryFile()  # noqa: SIM115

    def grab_frame(self, **savefig_kwargs: Any) -> None:
        frame = picture(self.fig, self.dpi)
        if self.running is None:
            # With the first frame, whose size is that of all.
            self.running = self._started(*frame.size)
        assert self.running.stdin is not None
        try:
            self.running.stdin.write(frame.tobytes())
        except BrokenPipeError:  # ffmpeg has ended, and says why
            self.finish()

    def finish(self) -> None:  # called after a failure too, perhaps before the first frame
        running, self.running = self.running, None
        if running is not None:
            running.communicate()
        if self.complaints.closed:  # called again, as what it raised goes up
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
        # H.264 halves the resolution of colours, so that sides are even; browsers play nothing but yuv420p.
        even = ("-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2:color=white", "-pix_fmt", "yuv420p")
        # One thread and no dates or versions: the same bytes on every machine with this ffmpeg.
        same = ("-threads", "1", "-fflags", "+bitexact", "-flags:v", "+bitexact", "-map_metadata", "-1")
        # +faststart puts the index first, so that a browser plays before all is loaded.
        coded = ("-c:v", "libx264", "-crf", "18", *even, *same, "-movflags", "+faststart")
        command = (str(ffmpeg_path()), "-y", "-loglevel", "error", *pixels, *coded, "-f", "mp4", str(self.outfile))
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self.complaints
        )  # fmt: skip
