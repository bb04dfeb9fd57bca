"""The polytope and the geometric picture of attraction: positions are read from the artists."""

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Polygon

from clusterjax import plot
from tests.plotting import as_set


X = np.array([[2.0, 0.0], [-1.0, 1.5], [-1.0, -1.5], [0.25, 0.5], [0.5, -0.25]])


def clouds(ax):
    return [artist for artist in ax.collections if isinstance(artist, PathCollection)]


def patches(ax, kind):
    return [patch for patch in ax.patches if isinstance(patch, kind)]


def test_polytope_draws_tokens_leaders_and_corners():
    ax = plot.polytope(X, corners=X[[2, 0, 1]], leaders=[0, 1, 2], labels=[0, 1, 2, 0, 0])
    rest, stars = clouds(ax)
    assert as_set(rest.get_offsets()) == as_set(X[3:]) and as_set(stars.get_offsets()) == as_set(X[:3])
    (outline,) = patches(ax, Polygon)
    assert as_set(outline.get_xy()) == as_set(X[:3])
    assert len({tuple(colour) for colour in stars.get_facecolor()}) == 3
    assert np.all(rest.get_facecolor() == stars.get_facecolor()[:1])
    assert ax.get_aspect() == 1.0


def test_corners_go_round_whatever_their_order():
    square = np.array([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]])
    (outline,) = patches(plot.polytope(square, corners=square), Polygon)
    assert np.allclose(np.linalg.norm(np.diff(outline.get_xy(), axis=0), axis=1), 2.0)


def test_polytope_takes_masks_segments_points_and_an_axes():
    own = Figure().add_subplot()
    assert plot.polytope(X, own, leaders=X[:, 0] > 1, corners=X[:2], reach=3.0) is own
    assert own.get_xlim() == (-3.0, 3.0) and as_set(clouds(own)[1].get_offsets()) == as_set(X[:1])
    single = plot.polytope(X[:1], corners=X[:1])
    assert single.get_xlim()[0] < 2.0 < single.get_xlim()[1]


@pytest.mark.parametrize(("form", "goal"), ((None, 0), (np.diag([0.1, 2.0]), 1)), ids=("identity", "stretched"))
def test_attraction_points_to_the_token_farthest_along(form, goal):
    """With A = I the arrow from (1/2, 1/4) goes to (2, 0); with a stretched A from (1/2, 1/2) to (-1, 3/2)."""
    x = np.concatenate([X[:3], [[0.5, 0.25 if form is None else 0.5]]])
    ax = plot.attraction(x, 3, form=form)
    others, drawn_to, token = clouds(ax)
    assert as_set(drawn_to.get_offsets()) == as_set(x[[goal]]) and as_set(token.get_offsets()) == as_set(x[[3]])
    assert len(others.get_offsets()) == 2
    ends = [np.asarray(arrow._posA_posB) for arrow in patches(ax, FancyArrowPatch)]
    along = x[3] if form is None else form @ x[3]
    direction = ends[0][1] - ends[0][0]
    assert abs(np.cross(np.append(direction, 0), np.append(along, 0))[2]) < 1e-12 and direction @ along > 0
    np.testing.assert_allclose(ends[1], [x[3], x[goal]])
    dashed = next(line for line in ax.lines if line.get_linestyle() == "--")
    np.testing.assert_allclose(np.stack(dashed.get_data(), axis=1) @ along, x[goal] @ along, rtol=1e-12)


def test_attraction_of_a_tie_and_of_a_leader():
    square = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 0.0], [0.5, 0.0]])
    ax = plot.attraction(square, 3)
    assert as_set(clouds(ax)[1].get_offsets()) == as_set(square[:2])
    np.testing.assert_allclose(np.asarray(patches(ax, FancyArrowPatch)[1]._posA_posB)[1], [1.0, 0.0])
    assert len(patches(plot.attraction(square, 0), FancyArrowPatch)) == 1, "a leader is drawn nowhere"
