"""`plot.player`: the content of its page, the notes about parts left out, and the page in a browser."""

import base64
import html
import json
import re

import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax import plot
from clusterjax.plot._player import MOST_POINTS, NOTHING, STEPS
from tests.browser import browser as browser
from tests.plotting import run, unit


def page_data(page):
    """The run inside a page, as the page reads it."""
    (text,) = re.findall(r'<script type="application/json" id="run">(.*?)</script>', page.html, re.S)
    return json.loads(text)


def tokens_in(page):
    """The coordinates of the tokens, decoded as the page does."""
    data = page_data(page)
    numbers = np.frombuffer(base64.b64decode(data["codes"]), dtype="<i2")
    numbers = numbers.reshape(len(data["times"]), data["n"], data["d"])
    return np.where(numbers == NOTHING, np.nan, numbers / STEPS)


@pytest.mark.parametrize("d", (2, 3))
def test_the_page_holds_the_tokens_and_the_times(d):
    one = run(d, n=5, times=4)
    page = plot.player(one, highlight=2)
    data = page_data(page)
    assert data["times"] == list(one.ts) and data["kind"] == "sphere" and data["highlight"] == 2
    # Coordinates are rounded to steps of 1 / 32767.
    np.testing.assert_allclose(tokens_in(page), one.xs, atol=0.5001 / 32767, rtol=0)
    assert page.notes == () and '<ul class="notes"></ul>' in page.html


def test_tokens_in_the_plane_and_in_space_are_scaled_to_their_box():
    xs = np.array([[[1.0, 10.0], [3.0, 14.0]], [[1.0, 12.0], [2.0, 11.0]]])
    page = plot.player(xs)
    data = page_data(page)
    assert data["kind"] == "box" and data["view"]["range"] == [[0.0, 4.0], [10.0, 14.0]]
    np.testing.assert_allclose(tokens_in(page) * 2 + [2.0, 12.0], xs, atol=1e-4)
    # All tokens are at one point.
    same = plot.player(np.full((2, 3, 3), 7.0))
    np.testing.assert_array_equal(tokens_in(same), 0.0)
    assert page_data(same)["view"]["range"] == [[0.0, 14.0]] * 3


def test_tokens_of_many_dimensions_are_projected_and_the_page_says_so():
    rng = np.random.default_rng(0)
    # The tokens are almost within three of eight dimensions.
    frame = np.linalg.qr(rng.normal(size=(8, 3)))[0]
    inside = unit(rng.normal(size=(4, 10, 3)))
    page = plot.player(unit(inside @ frame.T + 1e-4 * rng.normal(size=(4, 10, 8))))
    (note,) = page.notes
    assert "dimension 8, projected onto their first three principal axes about the centre of the sphere" in note
    assert "100.0 % of the mean square length" in note and html.escape(note) in page.html
    assert page_data(page)["kind"] == "ball"
    # The projection rotates the three dimensions, so that inner products stay.
    found = tokens_in(page)
    np.testing.assert_allclose(found @ found.swapaxes(1, 2), inside @ inside.swapaxes(1, 2), atol=2e-3)


def test_a_cloud_of_many_dimensions_is_projected_about_its_mean():
    rng = np.random.default_rng(1)
    # The cloud is far from the origin, about which the first axis would be the direction of the mean alone.
    xs = 100.0 + rng.normal(size=(2, 200, 5)) * [5.0, 4.0, 3.0, 1.0, 1.0]
    (note,) = plot.player(xs).notes
    share = float(re.search(r"([\d.]+) % of the variance", note)[1])
    values = np.linalg.eigvalsh(np.cov(xs.reshape(-1, 5).T))
    assert abs(share - 100 * values[-3:].sum() / values.sum()) < 0.06 and "about their mean" in note


@pytest.mark.parametrize(
    ("times", "n", "said"),
    (
        (1001, 200, "500 of 1,001 saved times"),
        (150, 2000, "100 of 150 saved times and 1,000 of 2,000 tokens"),
        (2, 60_000, "50,000 of 60,000 tokens"),
    ),
)
def test_too_many_points_are_thinned_and_the_page_says_so(times, n, said):
    xs = np.zeros((times, n, 2))
    xs[..., 0], xs[..., 1] = np.arange(n), np.linspace(0, 1, times)[:, None]
    page = plot.player(xs, highlight=n - 2)
    data = page_data(page)
    assert page.notes == (f"Thinned to at most 100,000 points: {said}, evenly chosen.",) and page.notes[0] in page.html
    assert len(data["times"]) * data["n"] <= MOST_POINTS
    # Both ends of the run and the highlighted token are kept.
    assert data["times"][0] == 0 and data["times"][-1] == times - 1
    half = (n - 1) / 2
    assert abs(tokens_in(page)[0, data["highlight"], 0] * half + half - (n - 2)) < n / 60_000


def test_times_that_were_not_reached_and_tokens_that_are_not_there_are_left_out():
    one = run(3, n=4, times=6)
    one.xs[4:] = np.nan
    one.xs[1, 2] = np.nan
    page = plot.player(one, radius=0.01)
    assert page_data(page)["times"] == list(one.ts[:4])
    assert np.isnan(tokens_in(page)[1, 2]).all() and np.isnan(tokens_in(page)).sum() == 3
    assert page_data(page)["clusters"][:2] == [4, 3]


def test_clusters_are_counted_among_all_tokens():
    rng = np.random.default_rng(2)
    xs = unit(rng.normal(size=(3, 9, 6)))
    xs[1, 1:4], xs[2] = xs[1, 0], xs[2, 0]
    expected = [int(cjx.num_clusters(jnp.asarray(x), 0.9)) for x in xs]
    assert page_data(plot.player(xs, radius=0.9))["clusters"] == expected and expected[2] == 1 < expected[1]


def test_words_of_the_caller_are_no_part_of_the_page():
    evil = "</script><img src=x onerror=alert(1)> {{run}} & \"'"
    page = plot.player(run(3), title=evil, symbol=evil, arrows={evil: [1.0, 0.0, 0.0]})
    assert "<img" not in page.html and page.html.count("</script>") == 3
    assert page_data(page)["symbol"] == evil and html.escape(evil) in page.html
    shown = page._repr_html_()
    assert shown.count("<iframe") == 1 and html.unescape(re.search('srcdoc="([^"]*)"', shown)[1]) == page.html
    assert "height: 480px" in shown and 'sandbox="allow-scripts"' in shown


DRAWN = "const p = clusterjax.player; return Array.from(p.tokens)"
PLACED = (
    "const s = clusterjax.player.scene; return [Array.from(s.placed), s.canvas.width, s.canvas.height, s.elev, s.azim]"
)


@pytest.fixture(scope="module")
def film(browser, tmp_path_factory):
    """A run, a browser that shows its page, and the path of the page."""
    one = run(3, n=12, times=7)
    path = tmp_path_factory.mktemp("player") / "run.html"
    plot.player(one, path, highlight=0, radius=0.3, title="</script> & so on")
    browser.open(path)
    return one, browser, path


def test_a_browser_shows_the_tokens_where_plot_sphere_has_them(film):
    one, browser, path = film
    browser.open(path)
    placed, width, height, elev, azim = browser.run(PLACED)
    xy, depth = plot.project(one.xs[0], (elev, azim))
    found = np.array(placed).reshape(-1, 3)
    scale = min(width, height) / 2.4
    np.testing.assert_allclose(found[:, :2], [width / 2, height / 2] + scale * xy * [1, -1], atol=0.05)
    np.testing.assert_allclose(found[:, 2], depth, atol=1e-4)
    # The red token is drawn in its place, and the corner is empty.
    pixels = (
        "const g = clusterjax.player.scene.context, image = g.getImageData(0, 0, g.canvas.width, g.canvas.height);"
        "return arguments[0].map(([x, y]) => Array.from(image.data.slice(4 * (y * image.width + x)).slice(0, 3)))"
    )
    red, corner = browser.run(pixels, [[int(found[0, 0]), int(found[0, 1])], [2, 2]])
    assert depth[0] > 0 and red == [0xD4, 0x0A, 0x1E] and corner == [255, 255, 255]
    assert browser.requests() == [path.as_uri()] and browser.errors() == []


def test_the_slider_and_the_keys_move_in_time(film):
    one, browser, path = film
    browser.open(path)
    browser.run("const s = document.getElementById('slider'); s.value = 2.5; s.dispatchEvent(new Event('input'))")
    browser.frames()
    middle = unit((one.xs[2] + one.xs[3]) / 2)  # the middle of the great circle
    np.testing.assert_allclose(np.reshape(browser.run(DRAWN), (12, 3)), middle, atol=1e-4)
    says = "return [document.getElementById('time').textContent, document.getElementById('clusters').textContent]"
    assert browser.run(says) == ["t = 1.3", f"{int(cjx.num_clusters(jnp.asarray(one.xs[3]), 0.3))} clusters"]
    for key, position in (("ArrowRight", 3), ("ArrowRight", 4), ("ArrowLeft", 3), ("End", 6), ("Home", 0)):
        browser.press(key)
        browser.frames()
        assert browser.run("return clusterjax.player.position") == position
        np.testing.assert_allclose(np.reshape(browser.run(DRAWN), (12, 3)), one.xs[position], atol=1e-4)
    browser.press(" ", "Space")
    browser.frames(10)
    assert browser.run("return clusterjax.player.playing && clusterjax.player.position > 0")
    browser.press(" ", "Space")
    assert not browser.run("return clusterjax.player.playing")


def test_a_mouse_a_finger_and_the_arrows_turn_the_sphere(film):
    one, browser, path = film
    browser.open(path)
    view = "const s = clusterjax.player.scene; return [s.elev, s.azim, s.zoom]"
    elev, azim, zoom = browser.run(view)
    side = browser.run("const c = clusterjax.player.scene.canvas; return Math.min(c.clientWidth, c.clientHeight)")
    browser.drag((400, 300), (460, 330))
    assert browser.run(view) == pytest.approx([elev + 180 * 30 / side, azim - 180 * 60 / side, zoom])
    browser.command("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
    browser.touch([(400, 300), (380, 300), (340, 270)])
    assert browser.run(view) == pytest.approx([elev, azim, zoom])
    browser.touch([(400, 300), (390, 300), (380, 300)], [(500, 300), (510, 300), (520, 300)])
    assert browser.run(view) == pytest.approx([elev, azim, 1.4 * zoom])
    browser.command("Emulation.setTouchEmulationEnabled", enabled=False)
    browser.run("clusterjax.player.scene.canvas.focus()")
    browser.press("ArrowLeft"), browser.press("ArrowUp"), browser.press("0")
    assert browser.run(view) == [elev, azim, zoom] and browser.run("return clusterjax.player.position") == 0
    browser.press("ArrowLeft"), browser.press("ArrowDown")
    assert browser.run(view) == pytest.approx([elev + 5, azim + 5, zoom])


def test_a_run_of_one_time_is_a_still(browser, tmp_path):
    plot.player(run(2, times=1), tmp_path / "one.html")
    browser.open(tmp_path / "one.html")
    assert browser.run("return getComputedStyle(document.querySelector('.bar')).display") == "none"
    assert browser.errors() == [] and len(browser.run(DRAWN)) == 24
