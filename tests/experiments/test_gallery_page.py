"""The page of the gallery in a browser: pictures and players that load late, the filter, and large pictures."""

import pytest

from clusterjax.experiments.framework.page import write_gallery
from tests.browser import browser as browser
from tests.experiments.test_gallery import RECORD, drawn


REPRODUCES = RECORD["claims"][1] | {"holds": True, "verdict": "reproduces", "says": "it agrees"}
ELSEWHERE = RECORD["claims"][1] | {"apart": ["network"], "verdict": "not the paper's network"}
PATIENCE = (
    "const until = async (done) => {"
    " for (let k = 0; k < 100 && !done(); k++) await new Promise((go) => setTimeout(go, 50)); };"
)
CARDS = "return Array.from(document.querySelectorAll('.card')).filter((c) => c.offsetParent !== null).map((c) => c.id);"


@pytest.fixture(scope="module")
def gallery(tmp_path_factory):
    """Eight figures with a picture each and a long caption; all but the first reproduce, and the last was quick."""
    folder = tmp_path_factory.mktemp("gallery")
    words = "Seen. " + "A long caption of many words. " * 60
    for k in range(1, 9):
        claims = [RECORD["claims"][0], ELSEWHERE if k == 1 else REPRODUCES]
        record = RECORD | {"name": f"figure{k}", "title": f"Figure {k}: it", "caption": words, "claims": claims}
        drawn(folder, record | {"fingerprint": {"quick": k == 8}, "heading": "not as the paper" if k == 1 else ""})
        (folder / f"figure{k}" / f"figure{k}-player.html").write_text("<p>played</p>", "utf-8")
    return write_gallery(folder)


@pytest.mark.exhaustive
def test_pictures_come_as_they_are_scrolled_to_and_nothing_from_elsewhere(browser, gallery):
    browser.open(gallery, width=400, height=600)
    browser.frames()
    before = browser.requests()
    assert all(url.startswith(gallery.parent.as_uri() + "/") for url in before)
    # Browsers load pictures a few screens ahead; the last card is dozens of screens below.
    assert not any("figure8" in url for url in before)
    browser.run("document.getElementById('figure8').scrollIntoView();")
    browser.wait(
        f"{PATIENCE} await until(() => document.querySelector('#figure8 img').naturalWidth"
        " && document.querySelector('#figure8 iframe').src);"
    )
    browser.frames()
    after = browser.requests()
    assert {url.rsplit("/", 1)[1] for url in after} >= {"figure8.png", "figure8-player.html"}
    assert browser.run("return document.querySelector('#figure8 img').naturalWidth;") == 30
    assert browser.errors() == []


def test_a_verdict_is_chosen_and_a_link_to_what_it_hides_shows_all(browser, gallery):
    browser.open(gallery)
    assert len(browser.run(CARDS)) == 8
    choose = "document.querySelector('input[value=\"reproduces\"]').click();"
    browser.run(choose)
    assert browser.run(CARDS) == [f"figure{k}" for k in range(2, 9)]
    assert browser.run("return document.getElementById('shown').textContent;").startswith("7 of 8 figures")
    rows = "return Array.from(document.querySelectorAll('#all tr[data-verdicts]:not([hidden])')).length;"
    assert browser.run(rows) == 7
    within = "return Array.from(document.querySelectorAll('#figure2 .claims tr[data-verdicts]:not([hidden])')).length;"
    assert browser.run(within) == 1
    browser.run("location.hash = '#figure1';")
    top = "document.getElementById('figure1').getBoundingClientRect().top"
    browser.wait(f"{PATIENCE} await until(() => Math.abs({top}) < 50);")
    assert len(browser.run(CARDS)) == 8 and abs(browser.run(f"return {top};")) < 50
    # The keyboard moves from the first choice to the next, which is thereby chosen.
    browser.run("document.querySelector('input[name=verdict]').focus();")
    browser.press("ArrowDown")
    assert browser.run("return new FormData(document.getElementById('filter')).get('verdict');") == "reproduces"


def test_a_picture_opens_large_and_closes_by_the_keyboard(browser, gallery):
    browser.open(gallery)
    is_open = "return document.getElementById('large').open;"
    browser.run("document.querySelector('#figure3 a.still').click();")
    assert browser.run(is_open)
    assert browser.run("return document.querySelector('#whole img').src;").endswith("figure3.png")
    # The key has its number: browsers close a dialog by the number, and not by the name.
    browser.command("Input.dispatchKeyEvent", type="keyDown", key="Escape", code="Escape", windowsVirtualKeyCode=27)
    browser.wait(f"{PATIENCE} await until(() => !document.getElementById('large').open);")
    assert not browser.run(is_open)
