"""Writing of pictures and films: atomically, and with reproducible bytes.

The constrained layout of matplotlib uses a solver (kiwisolver) that orders its variables by memory address. The
solutions differ in the last bits between processes, and between figures of one process. The SVG backend names each
clip path by a hash of all digits of its rectangle, so two files of one picture would differ. `save` therefore lays the
figure out once and rounds all positions to a grid of a millionth of the figure.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from matplotlib.animation import FFMpegWriter, PillowWriter
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from .._base.checks import check_choice, check_instance, check_integer, check_path, check_sequence, refusal, shown
from .._files.disk import draft_beside, target_of
from ._style import check_pixels, style, top_figure


# These entries omit the date and the versions that a format would write.
_UNDATED = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
# Formats of pictures that are not supported.
_FOREIGN = {"jpg", "jpeg", "webp", "gif", "mp4", "tif", "tiff", "bmp", "eps", "ps", "pgf", "svgz"}


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A draft beside `path`, which replaces `path` on success and is removed on failure."""
    try:
        path = target_of(path)
    except OSError as error:
        raise refusal(
            "path", "be a new or a regular file", f"at {str(path)!r} {error.strerror}", "name another"
        ) from error
    with draft_beside(path) as draft:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A folder that cannot be written is refused before the picture is drawn.
            draft.touch()
        except OSError as error:
            problem = f"{str(path)!r} cannot be written ({error.strerror})"
            raise refusal("path", "be in a folder that can be written", problem, "choose another") from error
        yield draft
        # `os.replace` is atomic on every system: a reader sees the old or the new file.
        os.replace(draft, path)


def _figure_of(drawn: Figure | Axes | np.ndarray) -> Figure:
    """The figure of a figure, an Axes or an array of Axes."""
    if isinstance(drawn, Figure):
        return drawn
    first = drawn.flat[0] if isinstance(drawn, np.ndarray) and drawn.size else drawn
    rule, remedy = "a figure, an Axes or an array of them", "pass what a picture returned"
    return top_figure(check_instance(first, "fig", Axes, rule, remedy))


def _targets(path: Path, formats: Sequence[str] | None) -> list[tuple[str, Path]]:
    """Each format with the path of its file."""
    chosen = None
    if formats is not None:
        names = check_sequence(formats, "formats", str, "names")
        chosen = [check_choice(name, "formats", _UNDATED) for name in names]
    suffix = path.suffix.lower().removeprefix(".")
    if suffix in _UNDATED:
        if chosen not in (None, [suffix]):
            rule = f"be None or [{suffix!r}] beside a path that ends in {path.suffix}"
            raise refusal("formats", rule, f"it is {shown(chosen)}", "leave the suffix or the formats away")
        return [(suffix, path)]
    # Suffixes of other formats are refused; any other suffix, as in "beta0.5", is part of the name.
    if suffix in _FOREIGN:
        rule = "end in .png, .svg, .pdf or in no suffix of a picture"
        raise refusal("path", rule, f"it is {shown(path)}", "choose one of these")
    return [(name, Path(f"{path}.{name}")) for name in chosen or ("png", "svg")]


def save(
    fig: Figure | Axes | np.ndarray,
    path: str | Path,
    formats: Sequence[str] | None = None,
    *,
    dpi: int = 300,
) -> list[Path]:
    """Write a figure to `path` in the format of the suffix, or in each of `formats`, without clipping.

    !!! example

        ```python
        >>> import os
        >>> import numpy as np
        >>> from clusterjax import plot
        >>> angles = np.linspace(0.0, 2.0, 5)
        >>> ax = plot.circle(np.stack([np.cos(angles), np.sin(angles)], axis=1))
        >>> [path.name for path in plot.save(ax, "five.pdf")]
        ['five.pdf']
        >>> [path.name for path in plot.save(ax, "five", ("png", "svg"))]
        ['five.png', 'five.svg']
        >>> for name in ("five.pdf", "five.png", "five.svg"):
        ...     os.remove(name)

        ```

    Each file is written atomically, as a draft that is renamed. Files contain no date and no version, so that their
    bytes are reproducible.

    **Arguments:**

    - `fig`: A figure, an Axes or an array of Axes, as returned by the functions of this package.
    - `path`: The file; missing folders are created. A suffix `.png`, `.svg` or `.pdf` determines the format; without
        such a suffix each format adds its suffix to `path`.
    - `formats`: Any of `"png"`, `"svg"` and `"pdf"`; None is PNG and SVG. If `path` has a suffix, `formats` must be
        None or only the format of the suffix.
    - `dpi`: The number of pixels per inch of PNGs and of rasterised parts of other formats.

    **Returns:**

    The paths of the files, in the order of `formats`.

    **Raises:**

    - `ValueError` if a format is unknown or differs from the suffix, or the folder cannot be written to.
    """
    dpi = check_integer(dpi, "dpi", most=5000)
    targets = _targets(check_path(path, "path"), formats)
    figure, paths = _figure_of(fig), []
    check_pixels(figure, dpi)
    for name, target in targets:
        # matplotlib reads some settings of the style (fonts, hashsalt) when a file is written.
        with style(), _on_grid(figure, dpi), whole_file(target) as draft:
            figure.savefig(draft, format=name, dpi=dpi, bbox_inches="tight", pad_inches=0.03, metadata=_UNDATED[name])
        paths.append(target)
    return paths


@contextmanager
def _on_grid(figure: Figure, dpi: int) -> Iterator[None]:
    """A context in which a figure with a layout engine stays as laid out, on the grid."""
    engine = figure.get_layout_engine()
    if engine is None:
        yield
        return
    # The layout depends on the resolution, and its second run on the sizes of ticks after the first.
    resolution, figure.dpi = figure.dpi, dpi
    for _ in range(2):
        figure.draw_without_rendering()
    figure.dpi = resolution
    figure.set_layout_engine("none")
    _round(figure)
    # A legend without an anchor would follow the box of the saved area, and cover a text above the figure.
    loose = [legend for legend in figure.legends if legend.get_bbox_to_anchor() is figure.bbox]
    for legend in loose:
        legend.set_bbox_to_anchor((0, 0, 1, 1), transform=figure.transFigure)
    try:
        yield
    finally:
        for legend in loose:
            legend.set_bbox_to_anchor(None)
        figure.set_layout_engine(engine)


def _round(figure: Any) -> None:
    """Round the positions of the axes and subfigures of a figure to the grid."""
    for inner in figure.subfigs:
        # The boxes of the inner axes follow from the box relative to the parent.
        inner.bbox_relative.set_points(np.round(inner.bbox_relative.get_points(), 6))
        _round(inner)
    for ax in figure.get_axes():
        # The engine sets the "original" position; the "active" position follows from it and the aspect.
        ax._set_position(Bbox(np.round(ax.get_position(original=True).get_points(), 6)), which="original")


# One thread, and no dates or versions, make the bytes of a film equal on every machine with this ffmpeg. With
# +faststart the index is first, so that a browser starts to play before the whole file is loaded.
_H264 = "-crf 18 -threads 1 -fflags +bitexact -flags:v +bitexact -map_metadata -1 -movflags +faststart"


def write_film(
    path: Path,
    figure: Figure,
    show: Callable[[int], Any],
    count: int,
    fps: int,
    dpi: int,
    progress: Callable[[int, int], Any] | None,
) -> None:
    """Write the pictures that `show` draws for the numbers below `count` as a GIF or MP4."""
    gif = path.suffix.lower() == ".gif"
    writer = PillowWriter(fps) if gif else FFMpegWriter(fps, codec="h264", extra_args=[*_H264.split()])
    # A writer without a frame fails when it is closed: the error of the writer would replace that of `show`.
    show(0)
    # The writers read the format from the suffix, which a draft does not have.
    with whole_file(path) as draft, TemporaryDirectory() as folder:
        film = Path(folder) / f"film{path.suffix.lower()}"
        try:
            with writer.saving(figure, str(film), dpi):
                for k in range(count):
                    show(k)
                    writer.grab_frame()
                    if progress is not None:
                        progress(k + 1, count)
        except subprocess.CalledProcessError as error:
            last = (error.stderr.strip() or "nothing").splitlines()[-1][:200]
            remedy = "install an ffmpeg with libx264, or choose a name that ends in .gif"
            raise refusal(
                "path", "end in .gif where ffmpeg cannot write H.264", f"ffmpeg said {last!r}", remedy
            ) from error
        shutil.copyfile(film, draft)
