"""Films of words that move through the layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from .._check import check_host_array, check_integer, check_sequence, check_text
from ._data import Numbers
from ._door import door, film, one_each, ranges
from ._films import film_writer
from ._gif import picture
from ._save import whole_file
from ._style import BLACK, BLUE, VERMILION, check_pixels
from ._words import words


@dataclass(frozen=True)
class WordRun:
    """The words of one text at each layer.

    **Attributes:**

    - `xs`: (layers, n, 2), the positions of the words before the first layer and after each layer.
    - `names`: The names of the words.
    - `first`: (n,), the first layer at which a word leads; -1 if the word never leads.
    - `title`: The title of the panel.
    """

    xs: np.ndarray
    names: Sequence[str]
    first: np.ndarray
    title: str = ""

    def __post_init__(self):
        object.__setattr__(self, "xs", check_host_array(self.xs, "xs", shape=("layers", "n", 2)))
        object.__setattr__(self, "names", check_sequence(self.names, "names", str, "strings"))
        check_host_array(self.first, "first", shape=self.xs.shape[1:2], integers=True, least=-1)
        check_text(self.title, "title", empty=True)
        one_each(self.names, "names", self.xs.shape[1], "strings, one for each word")

    def leading(self, k: int) -> np.ndarray:
        """The indices of the words that lead at layer `k`."""
        k = check_integer(k, "k", least=0)
        return np.flatnonzero((self.first >= 0) & (self.first <= k))


def check_runs(runs: Any, name: str) -> list[WordRun]:
    """Check for a sequence of runs, and return a list."""
    return check_sequence(runs, name, WordRun, "WordRuns")


@door(runs=check_runs, path=film, limits=ranges)
def animate_words(
    runs: Sequence[WordRun],
    path: str | Path,
    *,
    line: tuple[Numbers, float | int],
    limits: tuple[Numbers, Numbers],
    hold: int = 8,
    move: int = 6,
    fps: int = 10,
    dpi: int = 130,
    progress: Callable[[int, int], Any] | None = None,
) -> Path:
    """Write a GIF or MP4 of words that move in straight lines from layer to layer and rest at each, with all names.

    While words move, only leaders have names, at fixed positions, since leaders do not move.

    **Arguments:**

    - `runs`: A `WordRun` for each panel; panels are below each other.
    - `path`: The file, ending in `.gif` or, if ffmpeg is installed, in `.mp4`.
    - `line`, `limits`: As for `words`.
    - `hold`, `move`: The number of frames of the rest at a layer, and of the motion to the next layer.
    - `fps`, `dpi`: The number of frames per second, and of pixels per inch.
    - `progress`: A function that is called with the number of written frames and of all frames.

    **Returns:**

    The path of the file.

    **Raises:**

    - `ValueError` if `path` does not end in .gif or .mp4 or cannot be written, or the runs have different depths.
    """
    depths = sorted({len(run.xs) - 1 for run in runs})
    if len(depths) != 1:
        raise ValueError(f"runs must be of one depth, but theirs are {depths}; cut them to the same.")
    figure, times = Figure(figsize=(4.4, 0.35 + 1.75 * len(runs)), dpi=dpi), _times(depths[0], hold, move)
    check_pixels(figure, dpi)
    # The room of the heading is fixed in inches, so that it does not depend on the number of runs.
    height = 1 - 0.19 / figure.get_figheight()
    panels = [
        figure.add_axes((0.01, height * (1 - (k + 1) / len(runs)) + 0.01, 0.98, height / len(runs) - 0.055))
        for k in range(len(runs))
    ]
    heading = figure.text(0.5, 0.995, "", ha="center", va="top")

    def show(time: float) -> Figure:
        layer = int(time)
        for run, ax in zip(runs, panels, strict=True):
            # The placement of names changes in each frame, so all artists are drawn again.
            ax.clear()
            after = run.xs[min(layer + 1, depths[0])]
            places = run.xs[layer] + (time - layer) * (after - run.xs[layer])
            led = run.leading(layer)
            # The names of moving words would jump, so only leaders have names.
            names = [name if time == layer or k in led else "" for k, name in enumerate(run.names)]
            words(places, names, ax, leaders=led, line=line, limits=limits, equal=False, avoid=_everywhere(run))
            ax.set_title(run.title, pad=3)
        heading.set_text(f"layer {layer}" if time == layer else f"layer {layer} to {layer + 1}")
        return figure

    with whole_file(Path(path)) as draft:
        # The palette must contain the colours of the sides, the stars and the background.
        pinned = np.array([[*_rgb(colour), 1.0] for colour in (BLUE, VERMILION, BLACK, "#FFFFFF")])
        pilots = (picture(show(float(k)), dpi) for k in sorted({0, depths[0] // 2, depths[0]}))
        writer = film_writer(Path(path), fps, dpi, pilots, pinned)
        with writer.saving(figure, str(draft), dpi):
            for number, time in enumerate(times, 1):
                show(time)
                writer.grab_frame()
                if progress is not None:
                    progress(number, len(times))
    return Path(path)


def _times(depth: int, hold: int, move: int) -> list[float]:
    """The times of the frames: each layer `hold` times, the last twice as often, and `move` times between layers."""
    # The squared sine has zero velocity at the end, so words come to rest smoothly.
    between = np.sin(np.linspace(0, np.pi / 2, move + 2)[1:-1]) ** 2
    times = [time for k in range(depth) for time in (*[float(k)] * hold, *(k + between).tolist())]
    # The film rests twice as long at its end, before it repeats.
    return times + [float(depth)] * (2 * hold)


def _everywhere(run: WordRun) -> np.ndarray:
    return run.xs.reshape(-1, 2)


def _rgb(colour: str) -> tuple[float, ...]:
    return tuple(int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
