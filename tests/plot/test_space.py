"""Pictures of tokens in R^2 and R^3: the places of tokens, ticks and limit shapes."""

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

import clusterjax as cjx
from clusterjax import plot
from clusterjax.plot._views import CUBE, BoxView, SphereView, box_of, clipped


FIELD = cjx.RescaledField(cjx.SoftmaxAttention(1.0))
SQUARE = np.array([[3.0, 3.0], [-1.0, 3.0], [-1.0, -1.0], [3.0, -1.0], [1.0, 1.0]])
RUN = np.stack([SQUARE, 0.5 * SQUARE, 0.25 * SQUARE])


def offsets(ax):
    (tokens,) = [part for part in ax.collections if part.get_label() == "tokens"]
    return np.asarray(tokens.get_offsets())


def lines(ax):
    """The lines of the limit shape."""
    pink = [part for part in ax.collections if isinstance(part, LineCollection) and part.get_zorder() == 2]
    return [np.asarray(line) for part in pink for line in part.get_segments()]


def test_tokens_are_in_the_box_and_ticks_say_where():
    ax = plot.cloud(SQUARE)
    box = box_of(SQUARE)
    np.testing.assert_allclose(box.middle, [1.0, 1.0])
    expected = (SQUARE - 1.0) / (1.12 * 2.0)
    found = offsets(ax)
    assert np.abs(found[:, None] - expected).sum(axis=2).min(axis=1).max() < 1e-12 and len(found) == 5
    at = {text.get_text(): text.get_position() for text in ax.texts if text.get_position()[1] < -1}
    for number, place in at.items():
        assert place[0] == pytest.approx((float(number) - 1.0) / 2.24)
    assert {"0", "3"} <= set(at)


def test_the_limit_is_drawn_where_the_tokens_are():
    z = SQUARE - 1.0
    end = cjx.limit_shape(jnp.asarray(z), FIELD)
    ax = plot.cloud(z, limit=end)
    found = lines(ax)
    corners = np.unique(np.round(np.concatenate(found), 9), axis=0)
    np.testing.assert_allclose(corners, np.unique(np.round(z[:4] / (1.12 * 2.0), 9), axis=0), atol=1e-9)
    planes = cjx.limit_shape(
        jnp.asarray(z), cjx.RescaledField(cjx.SoftmaxAttention(1.0), jnp.diag(jnp.array([1.0, 0.5])))
    )
    sheets = lines(plot.cloud(z, limit=planes))
    assert sorted(line[0, 0] for line in sheets) == pytest.approx([-2 / 2.24, 0.0, 2 / 2.24])
    assert all(sorted(line[:, 1]) == pytest.approx([-1.0, 1.0]) for line in sheets)  # sheets reach the edges


def test_a_box_is_seen_as_the_sphere_is():
    x = np.random.default_rng(0).normal(size=(9, 3))
    view, sphere = BoxView(box_of(x), 22.0, -55.0), SphereView(22.0, -55.0)
    ax = plot.cloud(x)
    scaled = view.box.scale(x)
    expected = CUBE * sphere.project(scaled)[0]
    assert np.abs(offsets(ax)[:, None] - expected).sum(axis=2).min(axis=1).max() < 1e-12
    np.testing.assert_allclose(view.turned(30.0).axes, SphereView(22.0, -25.0).axes)
    np.testing.assert_allclose(view.aim(np.array([0.0, 0.0, 1.0]))[0], sphere.aim(np.array([0.0, 0.0, 1.0]))[0])


def test_lines_and_faces_are_cut_at_the_box():
    (line,) = clipped(np.array([[-3.0, 0.5], [3.0, 0.5]]))
    np.testing.assert_allclose(line, [[-1.0, 0.5], [1.0, 0.5]])
    assert clipped(np.array([[-3.0, 2.0], [3.0, 2.0]])) == []
    two = clipped(np.array([[-3.0, 0.0], [0.0, 0.0], [0.0, 3.0]]))
    np.testing.assert_allclose(two, [[[-1, 0], [0, 0]], [[0, 0], [0, 1]]])
    face = np.array([[0.5, -3, -3], [0.5, 3, -3], [0.5, 3, 3], [0.5, -3, 3], [0.5, -3, -3]])
    (cut,) = clipped(face)
    assert np.abs(cut).max() == 1.0 and np.all(cut[:, 0] == 0.5) and len(cut) == 5
    tilted = np.array([[-1.0, -3, -3], [-1.0, 3, -3], [1.0, 3, 3], [1.0, -3, 3], [-1.0, -3, -3]])
    (cut,) = clipped(tilted)
    assert np.all(np.abs(cut) <= 1 + 1e-12)
    np.testing.assert_allclose(cut[:, 0], cut[:, 2] / 3, atol=1e-12)  # the face stays in its plane


def test_snapshots_and_films_have_one_box_for_all_frames(tmp_path):
    axes = plot.snapshots(RUN, times=[0.0, 2.0], space=cjx.Euclidean(), highlight=0, trail=True, limit=[SQUARE])
    first, last = (offsets(ax) for ax in axes)
    box = box_of(RUN)
    assert np.abs(last[:, None] - box.scale(RUN[2])).sum(axis=2).min(axis=1).max() < 1e-12
    assert np.abs(first[:, None] - box.scale(RUN[0])).sum(axis=2).min(axis=1).max() < 1e-12
    assert all(lines(ax) for ax in axes)
    path = tmp_path / "run.gif"
    plot.animate(RUN, path, space=cjx.Euclidean(), limit=[SQUARE], dpi=40)
    assert path.read_bytes()[:6] == b"GIF89a"
    space = np.pad(RUN, ((0, 0), (0, 0), (0, 1)))
    plot.animate(space, path, space=cjx.Euclidean(), turn=90, highlight=1, trail=True, dpi=40, frames=2)
    assert path.read_bytes()[:6] == b"GIF89a"


def test_attention_maps_have_the_same_colours_at_each_time():
    weights = np.stack([np.full((4, 4), 0.25), np.eye(4)])
    axes = plot.attention_maps(weights, [0.0, 3.0], [0.0, 3.0])
    assert [ax.get_title() for ax in axes] == ["t = 0", "t = 3"]
    for ax, matrix in zip(axes, weights, strict=True):
        (image,) = ax.images
        np.testing.assert_array_equal(np.asarray(image.get_array()), matrix)
        assert image.get_clim() == (0.0, 1.0)
    own = Figure().subplots(1, 2)
    assert list(plot.attention_maps(weights, axes=own, times=[0, 1])) == list(own)
