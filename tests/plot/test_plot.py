"""Tokens and runs as pictures: positions, numbers and words are looked up in the artists; nothing is judged by eye."""

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from PIL import Image

from clusterjax import plot
from tests.plotting import RED, as_set, counts, even_circle, positions, run, sphere_tokens, tokens_of, unit, words


def test_circle_says_how_many_tokens_lie_on_one_spot():
    """44 tokens at 0 and 20 at pi: two numbers, each outside the circle beside its tokens."""
    x = np.where(np.arange(64)[:, None] < 44, [1.0, 0.0], [-1.0, 0.0])
    ax = plot.circle(x)
    assert counts(ax) == {"×44", "×20"}
    place = {text.get_text(): text.get_position() for text in ax.texts}
    assert place["×44"][0] > 1.0 and abs(place["×44"][1]) < 1e-9
    assert place["×20"][0] < -1.0 and abs(place["×20"][1]) < 1e-9
    widths = 2 * tokens_of(ax)._widths
    assert widths.max() > 1.9 * 0.075  # 44 ** 0.2 = 2.13 times as wide as one token
    assert counts(plot.circle(x, counts_from=30)) == {"×44"}
    assert counts(plot.circle(x, counts_from=None)) == set()


def test_a_gathering_cluster_has_no_count_and_one_with_a_stray_has():
    """Ten tokens that touch, with 40 close by, have no number; with one stray token in place of the 40 they do."""
    spot, near, rest = np.linspace(-0.08, 0.0, 10), np.linspace(0.03, 0.9, 40), np.linspace(2.0, 5.0, 14)
    for theta, expected in (
        (np.concatenate([spot, near, rest]), set()),
        (np.concatenate([spot, [0.1], rest]), {"×10"}),
    ):
        assert counts(plot.circle(np.stack([np.cos(theta), np.sin(theta)], axis=1))) == expected


def test_highlight_is_red_and_named():
    x = even_circle(9)
    ax = plot.circle(x, highlight=0)
    red = np.flatnonzero((np.abs(tokens_of(ax).get_facecolor()[:, :3] - to_rgba(RED)[:3]) < 1e-6).all(axis=1))
    np.testing.assert_allclose(positions(ax)[red], x[:1])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["tokens", "first token"]
    assert [text.get_text() for text in plot.circle(x, highlight=3).get_legend().get_texts()][1] == "token 3"
    assert [text.get_text() for text in plot.circle(x, highlight=0, colours=x[:, 0]).get_legend().get_texts()] == [
        "first token"
    ]
    assert plot.circle(x).get_legend() is None


@pytest.mark.parametrize("d", (2, 3))
def test_tokens_of_a_run_that_are_not_finite_are_not_drawn(d):
    x = unit(np.random.default_rng(0).normal(size=(8, d)))
    gone = x.copy()
    gone[2], gone[5, 0] = np.inf, np.nan
    (ax,) = plot.snapshots(gone[None], highlight=2)
    (left,) = plot.snapshots(np.delete(x, (2, 5), axis=0)[None])
    assert len(positions(ax)) == 6 and as_set(positions(ax)) == as_set(positions(left))


def test_project_is_a_rotation_that_turns_the_eye_upwards():
    x = np.random.default_rng(1).normal(size=(20, 3))
    xy, height = plot.project(x, (35.0, -70.0))
    seen = np.concatenate([xy, height[:, None]], axis=1)
    np.testing.assert_allclose(seen @ seen.T, x @ x.T, atol=1e-12)
    e, a = np.radians(35.0), np.radians(-70.0)
    eye = [[np.cos(e) * np.cos(a), np.cos(e) * np.sin(a), np.sin(e)]]
    np.testing.assert_allclose(plot.project(eye, (35.0, -70.0))[1], [1.0])
    np.testing.assert_allclose(plot.project([[0, 0, 1]], (35.0, -70.0))[0], [[0.0, np.cos(e)]], atol=1e-12)
    right_handed = np.linalg.det(np.concatenate([*plot.project(np.eye(3))[:1], plot.project(np.eye(3))[1][:, None]], 1))
    assert right_handed == pytest.approx(1.0)


def test_sphere_draws_the_far_side_first_and_paler():
    x, view = sphere_tokens(40), (10.0, 30.0)
    ax = plot.sphere(x, view=view)
    xy, height = plot.project(x, view)
    order = np.argsort(height)
    np.testing.assert_allclose(positions(ax), xy[order])
    blue = tokens_of(ax).get_facecolor()
    brightness = blue[:, :3].mean(axis=1)
    assert brightness[height[order] < 0].min() > brightness[height[order] >= 0].max() + 0.2
    assert np.all(np.diff(tokens_of(ax)._widths) >= 0)
    assert ax.get_aspect() == 1.0 and not ax.axison


def test_sphere_trail_lies_on_the_sphere_and_passes_the_saved_points():
    s = np.linspace(0, 2, 5)
    trail = np.stack([np.cos(s), np.sin(s), np.zeros(5)], axis=1)
    ax = plot.sphere(
        sphere_tokens(4), trail=trail, view=(90.0, -90.0)
    )  # from above: the trail is an arc of the outline
    lines = [artist for artist in ax.collections if isinstance(artist, LineCollection)]
    path = max((np.concatenate(line.get_segments()) for line in lines if line.get_zorder() == 3), key=len)
    np.testing.assert_allclose(np.linalg.norm(path, axis=1), 1.0, atol=1e-12)
    expected, _ = plot.project(trail, (90.0, -90.0))
    assert as_set(expected) <= as_set(path)


@pytest.mark.parametrize("draw, vector", ((plot.circle, [3.0, 4.0]), (plot.sphere, [0.0, 0.0, 2.0])))
def test_arrows_point_where_their_vectors_do(draw, vector):
    d = len(vector)
    ax = draw(unit(np.random.default_rng(0).normal(size=(5, d))), arrows={"v₁": vector})
    assert "v₁" in words(ax)
    (arrow,) = [text for text in ax.texts if hasattr(text, "arrow_patch")]
    tip = np.asarray(arrow.xy)
    direction = vector if d == 2 else plot.project([vector])[0][0]
    np.testing.assert_allclose(tip / np.linalg.norm(tip), unit(np.array(direction)), atol=1e-12)


@pytest.mark.parametrize("d", (2, 3))
def test_snapshots_show_the_nearest_frames(d):
    traj = run(d)
    axes = plot.snapshots(traj, times=(0, 0.9, 3), highlight=0, trail=True)
    assert [ax.get_title() for ax in axes] == ["t = 0", "t = 1", "t = 3"]
    for ax, frame in zip(axes, (0, 2, 6), strict=True):
        expected = traj.xs[frame] if d == 2 else plot.project(traj.xs[frame])[0]
        assert as_set(positions(ax)) == as_set(expected)
    (legend,) = axes[0].figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["tokens", "first token"]


def test_snapshots_take_arrays_axes_and_labels_by_panel():
    traj = run(2)
    given = Figure().subplots(1, 2)
    labels = np.stack([np.zeros(12, int), np.arange(12) % 2])
    axes = plot.snapshots(traj.xs, times=(0, 6), axes=given, labels=labels, symbol="layer")
    assert list(axes) == list(given)
    assert [ax.get_title() for ax in axes] == ["layer = 0", "layer = 6"]
    assert [len(np.unique(tokens_of(ax).get_facecolor(), axis=0)) for ax in axes] == [1, 2]
    assert [ax.get_title() for ax in plot.snapshots(traj)] == ["t = 0", "t = 1", "t = 2", "t = 3"]


def test_what_came_after_an_event_is_not_shown():
    traj = run(2)
    traj.ts[4:], traj.xs[4:] = np.inf, np.nan
    axes = plot.snapshots(traj, times=(1, 3))
    assert [ax.get_title() for ax in axes] == ["t = 1", "t = 1.5 (stopped)"]
    assert as_set(positions(axes[1])) == as_set(traj.xs[3])


def frames_of_gif(path):
    with Image.open(path) as gif:
        size, durations = gif.size, []
        for k in range(gif.n_frames):
            gif.seek(k)
            durations.append(gif.info["duration"])
        return size, gif.n_frames, durations


@pytest.mark.exhaustive_cases("2")
@pytest.mark.parametrize("d", (2, 3))
def test_gif_has_every_frame_and_is_small(tmp_path, d):
    traj, seen = run(d, times=6), []
    options = dict(highlight=0, trail=True, fps=10, progress=lambda done, of: seen.append((done, of)))
    animation = plot.animate(traj, tmp_path / "deep" / "run.gif", turn=20.0, **options)
    size, count, durations = frames_of_gif(tmp_path / "deep" / "run.gif")
    assert size == (400, 400) and count == 6 and set(durations) == {100}
    assert seen == [(k + 1, 6) for k in range(6)]
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["run.gif"]
    assert (tmp_path / "deep" / "run.gif").stat().st_size < 6 * 40_000
    plot.animate(traj, tmp_path / "again.gif", turn=20.0, **options)
    assert (tmp_path / "again.gif").read_bytes() == (tmp_path / "deep" / "run.gif").read_bytes()
    del animation


def test_animation_moves_the_artists_and_chooses_frames(tmp_path):
    traj = run(2)
    animation = plot.animate(traj, tmp_path / "run.gif", frames=3)
    assert frames_of_gif(tmp_path / "run.gif")[1] == 3
    (ax,) = animation._fig.axes
    before = len(ax.get_children())
    for frame, (k, title) in enumerate(((0, "t = 0.0"), (3, "t = 1.5"), (6, "t = 3.0"))):
        animation._func(frame)
        assert as_set(positions(ax)) == as_set(traj.xs[k])
        assert animation._fig.texts[0].get_text() == title
    assert len(ax.get_children()) == before
