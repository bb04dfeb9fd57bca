"""The run of the start page plays, shows the numbers that the code of the page prints, and is paused for less
motion."""

import re
import shutil

import pytest

from tests.browser import browser  # noqa: F401
from tests.helpers import ROOT


SAYS = "return document.getElementById('start-says').textContent"
PRESS = "document.getElementById('start-play').click(); return document.getElementById('start-play').textContent"
TEXT = (ROOT / "docs" / "index.md").read_text("utf-8")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The picture and the scripts of the start page, without the theme."""
    folder = tmp_path_factory.mktemp("site")
    for name in ("playground", "assets"):
        shutil.copytree(ROOT / "docs" / name, folder / name)
    parts = [re.search(r"<figure>.*</figure>", TEXT, re.DOTALL)[0], *re.findall(r"<script.*</script>", TEXT)]
    style = '<link rel="stylesheet" href="assets/site.css">'
    body = '<body data-md-color-scheme="default"><div class="start">{}</div>{}</body>'.format(
        parts[0], "".join(parts[1:])
    )
    (folder / "index.html").write_text(f"<!DOCTYPE html>{style}{body}", "utf-8")
    return folder / "index.html"


def test_the_run_plays_and_can_be_paused(browser, page):  # noqa: F811
    browser.open(page)
    browser.frames(30)
    said = browser.run(SAYS)
    assert re.fullmatch(r"t = \d+\.\d: \d+ clusters of 64 tokens", said)
    browser.frames(30)
    assert browser.run(SAYS) != said and browser.run(PRESS) == "Play"
    browser.frames()
    said = browser.run(SAYS)
    browser.frames(20)
    assert browser.run(SAYS) == said and browser.errors() == []


def test_the_run_is_paused_where_less_motion_is_preferred(browser, page):  # noqa: F811
    """The run pauses at a time at which the code of the page counts the clusters, too."""
    browser.open(page)
    browser.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
    browser.driver.refresh()
    browser.frames(20)
    times, counts = (
        [float(number) for number in re.search(form, TEXT)[1].split(", ")]
        for form in (r"jnp\.array\(\[(.*)\]\)", r"```text\n\[(.*)\]\n```")
    )
    assert browser.run(SAYS) == f"t = 6.0: {counts[times.index(6.0)]:.0f} clusters of 64 tokens"
    assert browser.run(PRESS) == "Pause"
    browser.frames(30)
    assert not browser.run(SAYS).startswith("t = 6.0:")


def test_the_picture_follows_the_switch_of_the_site(browser, page):  # noqa: F811
    browser.open(page)
    browser.run(PRESS)
    pixel = """
    const canvas = document.getElementById("start-scene"), g = canvas.getContext("2d");
    return Array.from(g.getImageData(canvas.width / 2, canvas.height / 2, 1, 1).data).slice(0, 3);
    """
    browser.frames()
    light = browser.run(pixel)
    browser.run("document.body.dataset.mdColorScheme = 'slate'")
    browser.frames()
    dark = browser.run(pixel)
    assert min(light) > 128 > max(dark)
