"""Writing of pictures: atomically, and with reproducible bytes."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .._base.checks import check_choice, check_instance, check_integer, check_path, check_sequence, refusal, shown
from .._files.disk import draft_beside, target_of
from ._door import on_grid
from ._style import check_pixels, figure_of, style


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
    """A draft beside `path`, which replaces `path` on success and is removed on failure.

    **Raises:**

    - `ValueError` if the folder cannot be created or written to, or `path` exists and is not a regular file.
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
            # A folder that cannot be written is refused before the picture is drawn.
            draft.touch()
        except OSError as error:
            problem = f"{str(path)!r} cannot be written ({error.strerror})"
            raise refusal("path", "be in a folder that can be written", problem, "choose another") from error
        yield draft
        # `os.replace` is atomic on every system: a reader sees the old or the new file.
        os.replace(draft, path)


def _top_figure(drawn: Figure | Axes | np.ndarray) -> Figure:
    """The figure of a figure, an Axes or an array of Axes."""
    if isinstance(drawn, Figure):
        return drawn
    first = drawn.flat[0] if isinstance(drawn, np.ndarray) and drawn.size else drawn
    ax = check_instance(first, "fig", Axes, "a figure, an Axes or an array of them", "pass what a picture returned")
    figure = figure_of(ax)
    # The figure at the top is saved if the Axes is in a subfigure.
    return figure if isinstance(figure, Figure) else figure.figure


def _targets(path: Path, formats: Sequence[str] | None) -> list[tuple[str, Path]]:
    """Each format with the path of its file."""
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
    # Suffixes of other formats are refused; any other suffix, as in "beta0.5", is part of the name.
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
    figure, paths = _top_figure(fig), []
    check_pixels(figure, dpi)
    for name, target in targets:
        # matplotlib reads some settings of the style (fonts, hashsalt) when a file is written.
        with style(), on_grid(figure), whole_file(target) as draft:
            figure.savefig(draft, format=name, dpi=dpi, bbox_inches="tight", pad_inches=0.03, metadata=_UNDATED[name])
        paths.append(target)
    return paths
