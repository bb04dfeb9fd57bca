"""Words on their way through the layers, as a moving picture."""

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

    - `xs`: (layers, n, 2), where the words are before the first layer and after each.
    - `names`: What they are called.
    - `first`: (n,), the layer at which a word leads first; -1 if it never does.
    - `title`: What the picture is called.
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
        """Who leads at layer `k`."""
        k = check_integer(k, "k", least=0)
        return np.flatnonzero((self.first >= 0) & (self.first <= k))


def check_runs(runs: Any, name: str) -> list[WordRun]:
    """The runs as a list."""
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
    """A GIF or MP4 of words that move from layer to layer in straight lines and rest at each; all names show at rest.

    While words move only leaders have their names, which stay where they are, as leaders do.

    **Arguments:**

    - `runs`: A `WordRun` for each panel, one below the other.
    - `path`: Where to write, ending in `.gif` or, where ffmpeg is installed, in `.mp4`.
    - `line`, `limits`: As for `words`.
    - `hold`, `move`: How many frames words rest at a layer and move to the next.
    - `fps`, `dpi`: Frames a second, and pixels an inch.
    - `progress`: Called with the number of frames done and of all frames.

    **Returns:**

    The path.

    **Raises:**

    - `ValueError` if `path` does not end in .gif or .mp4 or cannot be written, or the runs have different depths.
    """
    depths = sorted({len(run.xs) - 1 for run in runs})
    if len(depths) != 1:
        raise ValueError(f"runs must be of one depth, but theirs are {depths}; cut them to the same.")
    figure, times = Figure(figsize=(4.4, 0.35 + 1.75 * len(runs)), dpi=dpi), _times(depths[0], hold, move)
    check_pixels(figure, dpi)
    # In inches and not in shares, so that the heading has the same room above one run and above four.
    height = 1 - 0.19 / figure.get_figheight()
    panels = [
        figure.add_axes((0.01, height * (1 - (k + 1) / len(runs)) + 0.01, 0.98, height / len(runs) - 0.055))
        for k in range(len(runs))
    ]
    heading = figure.text(0.5, 0.995, "", ha="center", va="top")

    def show(time: float) -> Figure:
        layer = int(time)
        for run, ax in zip(runs, panels, strict=True):
            # Names are placed anew in each frame, so that no artist can be kept.
            ax.clear()
            after = run.xs[min(layer + 1, depths[0])]
            places = run.xs[layer] + (time - layer) * (after - run.xs[layer])
            led = run.leading(layer)
            # Names of moving words would jump from place to place.
            names = [name if time == layer or k in led else "" for k, name in enumerate(run.names)]
            words(places, names, ax, leaders=led, line=line, limits=limits, equal=False, avoid=_everywhere(run))
            ax.set_title(run.title, pad=3)
        heading.set_text(f"layer {layer}" if time == layer else f"layer {layer} to {layer + 1}")
        return figure

    with whole_file(Path(path)) as draft:
        # Blue and vermilion of the sides, black of the stars, and the paper.
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
    """The layers, whole ones `hold` times, with `move` times between; the last a little longer."""
    # Words start fast and come to rest softly: the sine squared has no velocity at its end.
    between = np.sin(np.linspace(0, np.pi / 2, move + 2)[1:-1]) ** 2
    times = [time for k in range(depth) for time in (*[float(k)] * hold, *(k + between).tolist())]
    # The film rests twice as long at its end, before it begins again.
    return times + [float(depth)] * (2 * hold)


def _everywhere(run: WordRun) -> np.ndarray:
    return run.xs.reshape(-1, 2)


def _rgb(colour: str) -> tuple[float, ...]:
    return tuple(int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
