"""Pictures written to disk: whole or not at all, and the same bytes for the same picture."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .._check import check_choice, check_instance, check_integer, check_path, check_sequence, refusal, shown
from .._disk import target_of
from .._drafts import clear_drafts_of, draft_beside
from ._layout_grid import on_grid
from ._style import check_pixels, figure_of, style


# What a format would write of the day and of the version that made it, and does not.
_UNDATED = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
# Pictures that are not written here.
_FOREIGN = {"jpg", "jpeg", "webp", "gif", "mp4", "tif", "tiff", "bmp", "eps", "ps", "pgf", "svgz"}


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to, which becomes `path` if all goes well and is removed if not.

    **Raises:**

    - `ValueError` if the folder cannot be made or written to, or what is at `path` is no regular file.
    """
    try:
        path = target_of(path)
    except OSError as error:
        raise refusal(
            "path", "be a new or a regular file", f"at {str(path)!r} {error.strerror}", "name another"
        ) from error
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


def _targets(path: Path, formats: Sequence[str] | None) -> list[tuple[str, Path]]:
    """Each format with its file."""
    wanted = None
    if formats is not None:
        names = check_sequence(formats, "formats", str, "names")
        wanted = [check_choice(name, "formats", _UNDATED) for name in names]
    suffix = path.suffix.lower().removeprefix(".")
    if suffix in _UNDATED:
        if wanted not in (None, [suffix]):
            rule = f"be None or [{suffix!r}] beside a path that ends in {path.suffix}"
            raise refusal("formats", rule, f"it is {shown(wanted)}", "leave the suffix or the formats away")
        return [(suffix, path)]
    # What other programs call a picture; any other suffix, as in "beta0.5", is part of the name.
    if suffix in _FOREIGN:
        rule = "end in .png, .svg, .pdf or in no suffix of a picture"
        raise refusal("path", rule, f"it is {shown(path)}", "choose one of these")
    return [(name, Path(f"{path}.{name}")) for name in wanted or ("png", "svg")]


def save(
    fig: Figure | Axes | np.ndarray,
    path: str | Path,
    formats: Sequence[str] | None = None,
    *,
    dpi: int = 300,
) -> list[Path]:
    """Writes a figure to `path` in the format of its suffix, or without one once for each format; nothing is clipped.

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

    Each file is written under another name first and renamed when it is whole. No date and no version goes into it, so
    that the same picture gives the same bytes.

    **Arguments:**

    - `fig`: A figure, or the Axes (or the array of them) that a function of this package returned.
    - `path`: Where to; missing folders are made. A suffix `.png`, `.svg` or `.pdf` decides the format, and the file has
        this name; without one of them each format adds its own.
    - `formats`: Any of `"png"`, `"svg"` and `"pdf"`; None is PNG and SVG. Beside a suffix of `path` it is None, or that
        one format.
    - `dpi`: Pixels an inch, of PNGs and of what is rasterised within the others.

    **Returns:**

    The paths of the files, in the order of `formats`.

    **Raises:**

    - `ValueError` if a format is not one of the three or not that of the suffix, or if the folder cannot be written
        to.
    """
    dpi = check_integer(dpi, "dpi", most=5000)
    targets = _targets(check_path(path, "path"), formats)
    figure, paths = _top_figure(fig), []
    check_pixels(figure, dpi)
    for name, target in targets:
        # The style again, as some settings (fonts, hashsalt) are read when a file is written.
        with style(), on_grid(figure), whole_file(target) as draft:
            figure.savefig(draft, format=name, dpi=dpi, bbox_inches="tight", pad_inches=0.03, metadata=_UNDATED[name])
        paths.append(target)
    return paths
