"""The look stays local, files are whole and reproducible, and bad input is met at the door."""

import re

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from clusterjax import plot

from .helpers import as_a_user
from .plotting import even_circle, run, sphere_tokens


def test_the_look_is_local():
    before = dict(mpl.rcParams)
    with plot.style(font_size=11):
        assert mpl.rcParams["font.size"] == 11 and mpl.rcParams["text.usetex"] is False
    plot.circle(even_circle(5))
    plot.snapshots(run(3))
    assert dict(mpl.rcParams) == before
    with mpl.rc_context({"text.usetex": True}):
        assert not any(text.get_usetex() for text in plot.circle(even_circle(5)).texts)
    with pytest.raises(ValueError, match="fontsize"), plot.style(fontsize=11):
        pass


@pytest.mark.parametrize("draw", ("sphere", "phase_diagram"))
def test_saved_pictures_are_whole_and_reproducible(tmp_path, draw):
    for name in ("one", "two"):
        if draw == "sphere":
            ax = plot.sphere(sphere_tokens(20), highlight=0)
        else:
            ax = plot.phase_diagram([0.0, 1.0], [0.0, 1.0], np.eye(2), label="value")
        paths = plot.save(ax, tmp_path / name / "picture", formats=("png", "svg", "pdf"))
        assert [path.name for path in paths] == ["picture.png", "picture.svg", "picture.pdf"]
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == sorted(path.name for path in paths)
    for suffix in ("png", "svg", "pdf"):
        one, two = ((tmp_path / name / f"picture.{suffix}").read_bytes() for name in ("one", "two"))
        assert one == two
        assert not re.search(rb"CreationDate|<dc:date>|Matplotlib v", one)
    with Image.open(tmp_path / "one" / "picture.png") as png:
        assert png.info["dpi"][0] == pytest.approx(300, abs=0.1)


def test_save_leaves_nothing_half_written(tmp_path):
    ax = plot.circle(even_circle(3))
    (tmp_path / "kept.png").write_bytes(b"old")
    ax.figure.draw = None  # a picture that cannot be drawn
    with pytest.raises(TypeError):
        plot.save(ax, tmp_path / "kept")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("kept.png", b"old")]


X2, X3 = even_circle(4), sphere_tokens(4)
BAD = {
    "circle in three dimensions": (lambda: plot.circle(X3), r"x must have the shape \(n, 2\).*\(4, 3\).*plot.sphere"),
    "sphere in two dimensions": (lambda: plot.sphere(X2), r"x must have the shape \(n, 3\).*\(4, 2\).*plot.circle"),
    "one token without its axis": (lambda: plot.circle(X2[0]), r"x must .*\(2,\)"),
    "no token": (lambda: plot.circle(np.zeros((0, 2))), r"n >= 1.*\(0, 2\)"),
    "not unit": (lambda: plot.circle(2 * X2), r"row 0 has norm 2;.*retract"),
    "complex": (lambda: plot.circle(X2 + 0j), "complex128"),
    "highlight": (lambda: plot.circle(X2, highlight=4), "highlight must be an integer from 0 to 3, but it is 4"),
    "labels and colours": (
        lambda: plot.circle(X2, labels=[0] * 4, colours="k"),
        "colours must be None",
    ),
    "labels of floats": (lambda: plot.circle(X2, labels=[0.5] * 4), "labels must be an array of integers"),
    "too few colours": (
        lambda: plot.circle(X2, colours=["r", "g"]),
        "one for each of the 4 tokens",
    ),
    "counts_from": (lambda: plot.circle(X2, counts_from=1), "counts_from must be an integer from 2"),
    "size": (lambda: plot.circle(X2, size=0.0), "size must be a finite number above 0"),
    "trail": (lambda: plot.sphere(X3, trail=X2), r"trail must .*\(4, 2\)"),
    "arrow of another dimension": (lambda: plot.sphere(X3, arrows={"v": [1.0, 0.0]}), r"arrows\['v'\]"),
    "zero arrow": (lambda: plot.circle(X2, arrows={"v": [0.0, 0.0]}), r"arrows\['v'\].*not zero"),
    "view": (lambda: plot.sphere(X3, view=(1.0, 2.0, 3.0)), "view must be an array of real numbers of shape \\(2,\\)"),
    "three-dimensional Axes": (lambda: plot.sphere(X3, Figure().add_subplot(projection="polar")), "polar.*plain"),
    "project": (lambda: plot.project(X2), r"x must .*\(4, 2\)"),
    "dimension 4": (lambda: plot.snapshots(run(4)), "dimension 2 or 3, but theirs is 4"),
    "a batch of runs": (lambda: plot.snapshots(np.zeros((2, 3, 4, 2))), r"\(times, n, d\).*one run"),
    "times outside": (lambda: plot.snapshots(run(2), times=(0, 9)), "times holds 9.*0 to 3"),
    "no times": (lambda: plot.snapshots(run(2), times=()), "times is"),
    "too few axes": (lambda: plot.snapshots(run(2), times=(0, 1), axes=Figure().add_subplot()), "1 Axes for 2 times"),
    "trail of nobody": (lambda: plot.snapshots(run(2), trail=True), "highlight=0"),
    "ts of another length": (lambda: plot.snapshots(run(2).xs, [0.0, 1.0]), "each of the 7 frames"),
    "ts not increasing": (lambda: plot.snapshots(run(2).xs, np.zeros(7)), "ts must increase"),
    "nothing finite": (lambda: plot.snapshots(np.full((2, 3, 2), np.nan)), "must have a frame with a finite token"),
    "film of another kind": (lambda: plot.animate(run(2), "film.mp4"), "film.mp4.*gif"),
    "no frames": (lambda: plot.animate(run(2), frames=0), "frames must be an integer from 1"),
    "fps": (lambda: plot.animate(run(2), fps=100), "fps must be an integer from 1 to 50"),
    "angles of three dimensions": (lambda: plot.angles(run(3)), "theirs is 3"),
    "no histogram": (lambda: plot.histograms([]), "values is empty"),
    "bins": (lambda: plot.histograms([[0.0]], bins=0), "bins is 0"),
    "edges": (lambda: plot.histograms([[0.0]], bins=[0.0, 0.0, 1.0]), "increasing edges"),
    "counts of other bins": (lambda: plot.histograms([[1, 2]], bins=3, counted=True), r"values\[0\].*\(3,\)"),
    "histogram labels": (lambda: plot.histograms([[0.0]], labels=["a", "b"]), "2 words for 1"),
    "columns": (lambda: plot.histograms([[0.0]], columns=0), "columns must be an integer from 1"),
    "heatmap of a stack": (lambda: plot.heatmap(np.zeros((2, 2, 2))), r"matrix .*\(2, 2, 2\)"),
    "heatmap names": (lambda: plot.heatmap(np.zeros((2, 2)), xnames=["a"]), "xnames holds 1 names for 2"),
    "limits": (lambda: plot.heatmap(np.zeros((2, 2)), limits=(1.0, 1.0)), "limits is"),
    "no eigenvalues": (lambda: plot.spectrum(np.eye(2)), r"eigenvalues .*\(2, 2\).*eigvals"),
    "grid transposed": (lambda: plot.phase_diagram([1, 2], [1, 2, 3], np.zeros((2, 3))), r"\(3, 2\).*\(2, 3\)"),
    "centres": (lambda: plot.phase_diagram([2, 1], [1], np.zeros((1, 2))), "x_values must be finite and increase"),
    "log of zero": (lambda: plot.phase_diagram([0, 1], [1], np.zeros((1, 2)), log_x=True), "x_values holds 0"),
    "curve": (lambda: plot.phase_diagram([1], [1], np.zeros((1, 1)), curves={"c": ([1.0], [1.0, 2.0])}), "curves"),
    "mean": (lambda: plot.time_series([0, 1], [1.0]), r"mean has the shape \(1,\)"),
    "error": (lambda: plot.time_series([0, 1], [1.0, 2.0], [1.0]), r"error has the shape \(1,\)"),
    "negative error": (lambda: plot.time_series([0, 1], [1.0, 2.0], [0.1, -0.1]), "error holds -0.1"),
    "format": (lambda: plot.save(plot.circle(X2), "picture", formats=("jpg",)), "formats must be one of"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_met_with_an_instruction(case):
    call, message = BAD[case]
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ValueError, match="cannot be written"):
        plot.save(plot.circle(X2), tmp_path / "file" / "picture")
    with pytest.raises(ValueError, match="cannot be written"):
        plot.animate(run(2), tmp_path / "file" / "run.gif")


def test_every_public_function_names_its_source_and_its_shapes():
    public = [value for name, value in vars(plot).items() if callable(value) and not name.startswith("_")]
    assert len(public) >= 14
    for function in public:
        assert function.__module__.startswith("clusterjax.plot")
        assert "Source" in function.__doc__
        assert "**Arguments:**" in function.__doc__ or "**Attributes:**" in function.__doc__


def test_a_legend_outside_keeps_clear_of_a_text_above_the_figure(tmp_path):
    figure = Figure(figsize=(4, 3), layout="constrained")
    ax = figure.subplots()
    ax.plot([0, 1], color="blue", label="line")
    figure.legend(loc="outside upper center", labelcolor="blue", frameon=False)
    figure.text(0.5, 1.01, "HEADING", color="red", ha="center", va="bottom")
    ax.set_axis_off()
    ax.text(0.5, 1.02, "LETTER", color="lime", transform=ax.transAxes)
    (path,) = plot.save(figure, tmp_path / "x", ("png",), dpi=100)
    red, green, blue = (np.asarray(Image.open(path).convert("RGB"))[..., k].astype(int) for k in range(3))
    heading, legend = np.nonzero(red - blue > 100)[0], np.nonzero(blue - red > 100)[0]
    letter = np.nonzero((green - red > 100) & (green - blue > 100))[0]
    assert heading.max() < legend.min()
    assert np.sum(legend < letter.min()) > 50  # the legend; below the letter is the line
    assert not np.any((legend >= letter.min()) & (legend <= letter.max()))


@pytest.mark.parametrize(
    ("arguments", "found"),
    (({"colours": [1, "zz"]}, "a list of 2"), ({"colours": "zz"}, "'zz'"), ({"colours": object()}, "an object")),
)
def test_a_colour_that_is_none_is_shown_as_it_is(arguments, found):
    """And not as None."""
    with as_a_user(), pytest.raises(ValueError, match=f"^colours must be .* but it is {found}; pass "):
        plot.circle(even_circle(2), **arguments)
