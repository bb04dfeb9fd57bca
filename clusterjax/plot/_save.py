"""Pictures written to disk: whole or not at all, and the same bytes for the same picture."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .._check import check_choice, check_instance, check_integer, check_path, check_sequence, refusal
from .._drafts import clear_drafts_of, draft_beside
from ._layout_grid import on_grid
from ._style import check_pixels, figure_of, style


# What a format would write of the day and of the version that made it, and does not.
_UNDATED = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to, which becomes `path` if all goes well and is removed if not.

    **Raises:**

    - `ValueError` if the folder cannot be made or written to.
    """
    with draft_beside(path) as draft:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            clear_drafts_of(path)
            # So that a folder that cannot be written is refused before the picture is drawn.
            draft.touch()
        except OSError as error:
            problem = f"{str(path)!r} cannot be written ({error.strerror})"
            raise refusal("path", "be in a folder that can be written", problem, "choose another") from error
        yield draft
        # In one step, on every system: a reader sees the old file or the new one.
        os.replace(draft, path)


def _top_figure(drawn: Figure | Axes | np.ndarray) -> Figure:
    """The figure of what the functions of this package return."""
    if isinstance(drawn, Figure):
        return drawn
    first = drawn.flat[0] if isinstance(drawn, np.ndarray) and drawn.size else drawn
    ax = check_instance(first, "fig", Axes, "a figure, an Axes or an array of them", "pass what a picture returned")
    figure = figure_of(ax)
    # An Axes of a subfigure: what is saved is the figure at the top.
    return figure if isinstance(figure, Figure) else figure.figure


def save(
    fig: Figure | Axes | np.ndarray,
    path: str | Path,
    formats: Sequence[str] = ("png", "svg"),
    *,
    dpi: int = 300,
) -> list[Path]:
    """Writes a figure once for each format, to `path` plus the format's suffix; nothing is clipped.

    Each file is written under another name first and renamed when it is whole. No date and no version goes into it, so
    that the same picture gives the same bytes.

    **Arguments:**

    - `fig`: A figure, or the Axes (or the array of them) that a function of this package returned.
    - `path`: Where to, without a suffix; missing folders are made.
    - `formats`: Any of `"png"`, `"svg"` and `"pdf"`.
    - `dpi`: Pixels an inch, of PNGs and of what is rasterised within the others.

    **Returns:**

    The paths of the files, in the order of `formats`.

    **Raises:**

    - `ValueError` if a format is not one of the three, or if the folder cannot be written to.
    """
    formats = [check_choice(name, "formats", _UNDATED) for name in check_sequence(formats, "formats", str, "names")]
    path, dpi = check_path(path, "path"), check_integer(dpi, "dpi", most=5000)
    figure, paths = _top_figure(fig), []
    check_pixels(figure, dpi)
    for name in formats:
        target = Path(f"{path}.{name}")
        # The style again, as some settings (fonts, hashsalt) are read when a file is written.
        with style(), on_grid(figure), whole_file(target) as draft:
            figure.savefig(draft, format=name, dpi=dpi, bbox_inches="tight", pad_inches=0.03, metadata=_UNDATED[name])
        paths.append(target)
    return paths
