"""Films as MP4 have every frame, and one sentence says that ffmpeg is missing or cannot write them."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from clusterjax import plot
from tests.plotting import run


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")
def test_mp4_has_every_frame_and_plays_in_a_browser(tmp_path):
    """The film is H.264 in yuv420p with even sides, index first, a red token in each frame, and bytes that repeat."""
    path = tmp_path / "deep" / "run.mp4"
    # 2.03 inches of 100 pixels are 203.
    plot.animate(run(3, times=5), path, fps=5, dpi=100, inches=2.03, highlight=0)
    told = subprocess.run(["ffmpeg", "-i", str(path)], capture_output=True, text=True).stderr
    assert "h264" in told and "yuv420p" in told and "5 fps" in told
    command = ["ffmpeg", "-loglevel", "error", "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    pixels = np.frombuffer(subprocess.run(command, check=True, capture_output=True).stdout, np.uint8)
    side = round((len(pixels) / 15) ** 0.5)
    pixels = pixels.reshape(5, side, side, 3).astype(int)
    assert side % 2 == 0 and abs(side - 203) <= 1
    red = (pixels[..., 0] > 180) & (pixels[..., 1] < 60)
    assert np.all(pixels[:, 0, 0] > 250) and np.all(red.sum(axis=(1, 2)) > 20)
    assert [file.name for file in path.parent.iterdir()] == ["run.mp4"]
    film = path.read_bytes()
    assert film.index(b"moov") < film.index(b"mdat")
    plot.animate(run(3, times=5), tmp_path / "again.MP4", fps=5, dpi=100, inches=2.03, highlight=0)
    assert (tmp_path / "again.MP4").read_bytes() == film


@pytest.mark.parametrize("suffix", (".gif", ".mp4"))
def test_nothing_is_left_of_a_film_that_fails(tmp_path, suffix):
    def stop(done, of):
        raise KeyboardInterrupt

    if suffix == ".mp4" and shutil.which("ffmpeg") is None:
        pytest.skip("ffmpeg is not installed")
    with pytest.raises(KeyboardInterrupt):
        plot.animate(run(2), tmp_path / f"run{suffix}", progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_without_ffmpeg_a_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"^path must end in .gif where there is no ffmpeg.* install it .*\.$"):
        plot.animate(run(2), tmp_path / "run.mp4")


@pytest.mark.parametrize("first", ("pass", "sys.stdin.buffer.read()"), ids=("at once", "at the end"))
def test_an_ffmpeg_without_h264_is_met_with_its_own_words(tmp_path, monkeypatch, first):
    fake = tmp_path / "bin" / "ffmpeg"
    fake.parent.mkdir()
    fake.write_text(f"#!{sys.executable}\nimport sys; {first}; sys.exit('Unknown encoder libx264')\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(ValueError, match="^path must end in .gif where ffmpeg cannot write H.264.*Unknown encoder"):
        plot.animate(run(2, times=30), tmp_path / "out" / "run.mp4")
    assert list((tmp_path / "out").iterdir()) == []
