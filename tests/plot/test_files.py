"""The style stays local, files are never half written, and bad input is refused with an instruction."""

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

from clusterjax import plot
from tests.plotting import even_circle, run, sphere_tokens


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


def test_a_suffix_decides_the_format(tmp_path):
    ax, begins = plot.circle(even_circle(3)), {"pdf": b"%PDF", "png": b"\x89PNG", "svg": b"<?xml"}
    for name, formats, files in (
        ("x.PDF", None, ["x.PDF"]), ("x.svg", ["svg"], ["x.svg"]), ("x", None, ["x.png", "x.svg"]),
        ("beta0.5", ["pdf"], ["beta0.5.pdf"]),
    ):  # fmt: skip
        paths = plot.save(ax, tmp_path / name, formats, dpi=50)
        assert [path.name for path in paths] == files
        assert all(path.read_bytes().startswith(begins[path.suffix[1:].lower()]) for path in paths)
    assert len(list(tmp_path.iterdir())) == 4  # x.svg was written twice


def test_save_leaves_nothing_half_written(tmp_path):
    ax = plot.circle(even_circle(3))
    (tmp_path / "kept.png").write_bytes(b"old")
    ax.figure.draw = None  # a picture that cannot be drawn
    with pytest.raises(TypeError):
        plot.save(ax, tmp_path / "kept")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("kept.png", b"old")]


X2, X3 = even_circle(4), sphere_tokens(4)


def removed():
    ax = Figure().add_subplot()
    ax.remove()
    return ax


BAD = {
    "circle in three dimensions": (lambda: plot.circle(X3), r"x must have the shape \(n, 2\).*\(4, 3\).*plot.sphere"),
    "not unit": (lambda: plot.circle(2 * X2), r"row 0 has norm 2;.*retract"),
    "zero arrow": (lambda: plot.circle(X2, arrows={"v": [0.0, 0.0]}), r"arrows\['v'\].*not zero"),
    "times outside": (lambda: plot.snapshots(run(2), times=(0, 9)), "times must be of the run, but it holds 9.*0 to 3"),
    "too few axes": (lambda: plot.snapshots(run(2), times=(0, 1), axes=Figure().add_subplot()), "axes must be 2 Axes"),
    "trail of nobody": (lambda: plot.snapshots(run(2), trail=True), "highlight=0"),
    "film of another kind": (lambda: plot.animate(run(2), "film.avi"), "path must end in .gif or .mp4, .*'film.avi'"),
    "formats beside a suffix": (lambda: plot.save(plot.circle(X2), "x.pdf", ("png", "pdf")), "formats must be None or"),
    "grid transposed": (lambda: plot.phase_diagram([1, 2], [1, 2, 3], np.zeros((2, 3))), r"\(3, 2\).*\(2, 3\)"),
    "log of zero": (lambda: plot.phase_diagram([0, 1], [1], np.zeros((1, 2)), log_x=True), "x_values must be positive"),
    "one Axes twice": (lambda: plot.snapshots(run(2), times=(0, 1), axes=[Figure().add_subplot()] * 2), "axes must be"),
    "band upside down": (lambda: plot.time_series([0], [1.0], [[2.0], [0.0]]), "error must be lower in its first row"),
    "numbers without end": (
        lambda: plot.position_offsets(1e200 * np.eye(3)),
        "table must be numbers of at most 1e.100",
    ),
    "an Axes of no figure": (lambda: plot.circle(X2, removed()), "ax must be in a figure, but it was removed"),
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
