"""Films as MP4: whole, of every frame, the same bytes; and one sentence where ffmpeg is not there or cannot."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from clusterjax import plot
from tests.plotting import run


needs_ffmpeg = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")


def stream_of(path):
    """What ffprobe says of the film, its frames counted."""
    asked = ("-count_frames", "-show_entries", "stream=codec_name,pix_fmt,width,height,nb_read_frames,r_frame_rate")
    said = subprocess.run(["ffprobe", "-v", "error", *asked, "-of", "json", str(path)], check=True, capture_output=True)
    (stream,) = json.loads(said.stdout)["streams"]
    return stream


@needs_ffmpeg
def test_mp4_has_every_frame_and_plays_in_a_browser(tmp_path):
    # Odd sides: 2.01 inches of 50 pixels are 100, and 101 with 2.03.
    path = tmp_path / "deep" / "run.mp4"
    plot.animate(run(3), path, fps=5, dpi=50, inches=2.03, highlight=0)
    stream = stream_of(path)
    assert (stream["codec_name"], stream["pix_fmt"], stream["r_frame_rate"]) == ("h264", "yuv420p", "5/1")
    assert (stream["width"], stream["height"], int(stream["nb_read_frames"])) == (102, 102, 7)
    assert [file.name for file in path.parent.iterdir()] == ["run.mp4"]
    # The index stands before the pictures.
    film = path.read_bytes()
    assert film.index(b"moov") < film.index(b"mdat")
    plot.animate(run(3), tmp_path / "again.MP4", fps=5, dpi=50, inches=2.03, highlight=0)
    assert (tmp_path / "again.MP4").read_bytes() == film and b"Lavf" not in film


@needs_ffmpeg
def test_mp4_shows_the_red_token_and_white_paper(tmp_path):
    plot.animate(run(3, n=64, times=3), tmp_path / "run.mp4", highlight=0, dpi=100)
    to_pixels = ("-f", "rawvideo", "-pix_fmt", "rgb24", "-")
    command = ["ffmpeg", "-loglevel", "error", "-i", str(tmp_path / "run.mp4"), *to_pixels]
    pixels = np.frombuffer(subprocess.run(command, check=True, capture_output=True).stdout, np.uint8)
    pixels = pixels.reshape(3, 250, 250, 3).astype(int)
    red = (pixels[..., 0] > 180) & (pixels[..., 1] < 60)
    assert np.all(pixels[:, 0, 0] > 250) and np.all(red.sum(axis=(1, 2)) > 20)


@needs_ffmpeg
def test_nothing_is_left_of_an_mp4_that_fails(tmp_path):
    def stop(done, of):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plot.animate(run(2), tmp_path / "run.mp4", progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_without_ffmpeg_a_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"^path must end in .gif where there is no ffmpeg.* install it .*\.$"):
        plot.animate(run(2), tmp_path / "run.mp4")
    assert plot.animate(run(2), tmp_path / "run.gif", frames=2, dpi=40) is not None
    assert [file.name for file in tmp_path.iterdir()] == ["run.gif"]


@pytest.mark.parametrize(
    "script",
    (
        "import sys; sys.stderr.write('Unknown encoder libx264\\n'); sys.exit(1)",
        # Reads all, and fails at the end.
        "import sys; sys.stdin.buffer.read(); sys.stderr.write('Unknown encoder libx264\\n'); sys.exit(1)",
    ),
    ids=("at once", "at the end"),
)
def test_an_ffmpeg_without_h264_is_met_with_its_own_words(tmp_path, monkeypatch, script):
    fake = tmp_path / "bin" / "ffmpeg"
    fake.parent.mkdir()
    fake.write_text(f"#!{sys.executable}\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(ValueError, match="^path must end in .gif where ffmpeg cannot write H.264.*Unknown encoder"):
        plot.animate(run(2, times=30), tmp_path / "out" / "run.mp4")
    assert list((tmp_path / "out").iterdir()) == []
