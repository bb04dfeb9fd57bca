"""Named words: no two names overlap, no name leaves the picture, leaders keep their names; and films of words."""

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from PIL import Image

from clusterjax import plot
from clusterjax.plot import OKABE_ITO, WordRun


BLUE, VERMILION = to_rgba(OKABE_ITO[0]), to_rgba(OKABE_ITO[5])
LINE = (np.array([2.0, 0.0]), -1.0)  # x = 1/2
CROWD = np.random.default_rng(3).normal(size=(40, 2)) * [1.0, 0.3]
NAMES = [f"word{k}" + "abcdefgh"[: k % 8] for k in range(len(CROWD))]


def drawn(ax):
    """The boxes of all names in pixels, by name."""
    figure = ax.figure
    figure.draw_without_rendering()
    return {text.get_text(): text.get_window_extent() for text in ax.texts}


def overlap(a, b, slack):
    return min(a.x1, b.x1) - max(a.x0, b.x0) > slack and min(a.y1, b.y1) - max(a.y0, b.y0) > slack


@pytest.mark.exhaustive_cases("None")
@pytest.mark.parametrize("layout", (None, "constrained"))
def test_no_two_names_overlap_and_none_leaves_the_picture(layout):
    figure = Figure(figsize=(3.4, 2.4), layout=layout)
    ax = plot.words(CROWD, NAMES, figure.add_subplot(), leaders=[0, 5, 9], line=LINE)
    boxes = drawn(ax)
    assert len(boxes) >= 15 and {NAMES[0], NAMES[5], NAMES[9]} <= set(boxes)
    found = list(boxes.values())
    pixel = figure.dpi / 72  # points: a box of matplotlib is as high as a line, with its gap to the next
    assert not any(overlap(a, b, 1.6 * pixel) for k, a in enumerate(found) for b in found[:k])
    window = ax.get_window_extent()
    assert all(box.x0 >= window.x0 - 1 and box.x1 <= window.x1 + 1 for box in found)


def test_dividing_line_is_where_the_decoder_is_zero():
    normal, offset = np.array([1.0, 2.0]), 0.7
    ax = plot.words(CROWD, NAMES, line=(normal, offset))
    (line,) = [line for line in ax.lines if line.get_linestyle() == "--"]
    ends = np.array(line.get_data()).T
    assert np.allclose(ends @ normal + offset, 0.0, atol=1e-9) and np.linalg.norm(ends[0] - ends[1]) > 5


def test_words_on_a_leader_are_counted_and_have_no_name():
    x = np.array([[1.0, 0.0], [1.0, 0.0], [1.0001, 0.0], [-1.0, 0.5], [0.0, 0.0]])
    assert set(drawn(plot.words(x, list("abcde"), leaders=[0, 3]))) == {"a +2", "d", "e"}


def test_names_of_leaders_stay_when_words_move():
    """If the places of all frames are avoided, the name of a leader is at the same place in each frame."""
    later = 0.5 * CROWD + 0.5 * CROWD[0]
    later[0] = CROWD[0]
    both, limits = np.concatenate([CROWD, later]), ((-4.0, 4.0), (-2.0, 2.0))
    boxes = [drawn(plot.words(x, NAMES, leaders=[0], limits=limits, avoid=both))[NAMES[0]] for x in (CROWD, later)]
    assert np.allclose(boxes[0].get_points(), boxes[1].get_points())


def made_run():
    x = np.array([[1.0, 0.0], [0.2, 0.6], [-1.0, 0.1]])
    xs = np.stack([x * [1, 1], x * [[1], [0.5], [1]], x * [[1], [0.25], [1]]])
    return WordRun(xs, ["great", "plot", "awful"], np.array([0, -1, 1]), "a review")


def test_film_of_bad_positions_names_them_and_leaves_no_file(tmp_path):
    run = made_run()
    with pytest.raises(ValueError, match="x must be numbers"):
        plot.animate_words(
            [WordRun(run.xs * 1e200, run.names, run.first)], tmp_path / "film.gif", line=LINE, limits=((-1, 1), (-1, 1))
        )
    assert not list(tmp_path.iterdir())


def test_film_rests_at_each_layer_and_moves_between(tmp_path):
    path, seen = tmp_path / "film.gif", []
    limits = ((-1.5, 1.5), (-0.5, 1.0))
    plot.animate_words(
        [made_run(), made_run()], path, line=LINE, limits=limits, hold=1, move=2, dpi=60,
        progress=lambda *count: seen.append(count),
    )  # fmt: skip
    assert seen[-1] == (8, 8) and [one for one, _ in seen] == list(range(1, 9))
    with Image.open(path) as film:
        assert film.n_frames == 7, "the two frames of rest at the end are one that lasts twice as long"
        duration = 0
        for k in range(film.n_frames):
            film.seek(k)
            duration += film.info["duration"]
    assert duration == 800
    assert made_run().leading(0).tolist() == [0] and made_run().leading(1).tolist() == [0, 2]
