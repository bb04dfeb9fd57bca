"""The page of the playground: its picture, keys, controls and links; the page asks no other host for anything."""

import json
import re
import shutil

import equinox as eqx
import numpy as np
import pytest

import clusterjax as cjx
from tests.browser import browser as browser
from tests.playground import PAGE


ROOT = PAGE.parents[2]
STATE = "return clusterjax.playground.state"
TEXT = "return document.getElementById(arguments[0]).textContent"


@pytest.fixture
def page(browser):
    browser.open(PAGE)
    browser.run("clusterjax.playground.pause()")
    return browser


def choose(page, selector, value, event="change"):
    page.run(
        "const [s, v, e] = arguments, one = document.querySelector(s); one.value = v;"
        "one.dispatchEvent(new Event(e, { bubbles: true }))",
        selector, value, event,
    )  # fmt: skip


def test_the_page_runs_where_it_is_copied_to_and_asks_nobody(browser, tmp_path):
    shutil.copytree(PAGE.parent, tmp_path / "playground")
    there = tmp_path / "playground" / "index.html"
    browser.open(there)
    browser.frames(20)
    asked = browser.requests()
    assert browser.errors() == [] and browser.run("return clusterjax.playground.time") > 0
    assert len(asked) >= 10 and all(url.startswith((tmp_path.as_uri(), "data:")) for url in asked)
    # The page cannot ask a host: neither its files nor its policy name any.
    for file in (tmp_path / "playground").iterdir():
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", file.read_text("utf-8")), file.name
    policy = re.search('Content-Security-Policy" content="([^"]*)"', there.read_text("utf-8"))[1]
    assert "connect-src 'none'" in policy and "img-src data:" in policy


def test_every_example_has_the_clusters_that_it_names(page):
    counted = 0
    for example in page.run("return clusterjax.PRESETS"):
        if "expected" in example:
            counted += 1
            page.run("clusterjax.playground.load(arguments[0]); clusterjax.playground.runTo(15)", example["id"])
            assert page.run("return clusterjax.playground.numbers.clusters") == example["expected"], example["id"]
    assert counted >= 5
    # The example of a negative beta also states the number of clusters for a positive beta.
    page.run("clusterjax.playground.load('negative')")
    page.run("clusterjax.playground.change({ beta: 9 }); clusterjax.playground.runTo(15)")
    assert page.run("return clusterjax.playground.numbers.clusters") == 64
    # The examples of positions also state the clusters of their tokens without a position, at a smaller beta, and
    # later.
    others = [("alibi", dict(position="none"), 15, 6), ("rotary", dict(beta=1), 15, 1), ("rotary", {}, 1000, 18)]
    for example, change, t, expected in others:
        page.run(
            "clusterjax.playground.load(arguments[0]); clusterjax.playground.change(arguments[1])", example, change
        )
        page.run("clusterjax.playground.runTo(arguments[0])", t)
        assert page.run("return clusterjax.playground.numbers.clusters") == expected, example


def test_a_link_carries_the_whole_state(page, browser):
    wanted = dict(
        n=17, d=2, attention="unnormalised", causal=False, beta=2.5, value=[0.5, -1, 1, 0.5], form=[1, 2, 3, 4.25],
        mass=3, position="rotary", slope=0.25, frequency=-0.5, temperature=0.25, seed=4294967295, radius=0.2, until=40,
        speed=3, logarithmic=True, trails=False, colour="order",
    )  # fmt: skip
    page.run("clusterjax.playground.change(arguments[0])", wanted)
    state, link = page.run(STATE), page.run("return document.getElementById('link').value")
    assert all(state[name] == value for name, value in wanted.items())
    assert page.run("return location.href") == link
    browser.open(PAGE, link[link.index("#") :])
    assert browser.run(STATE) == state and browser.run(TEXT, "said") == ""
    # The link of an example holds the name of the example.
    page.run("clusterjax.playground.load('figure5-gap')")
    link = page.run("return document.getElementById('link').value")
    browser.open(PAGE, link[link.index("#") :])
    assert browser.run(STATE)["preset"] == "figure5-gap" and "diag(-1, -10)" in browser.run(TEXT, "claim")
    # The name alone is enough; a run that differs is no example.
    browser.open(PAGE, "#preset=figure5-gap")
    assert browser.run(STATE)["value"] == [-1, 0, 0, -10] and browser.run(STATE)["preset"] == "figure5-gap"
    browser.open(PAGE, "#preset=figure5-gap&beta=2")
    assert (browser.run(STATE)["preset"], browser.run(STATE)["beta"], browser.run(STATE)["d"]) == ("", 2, 2)


class Spy:
    """The package with another `simulate`."""

    def __init__(self, simulate):
        self.simulate = simulate

    def __getattr__(self, name):
        return getattr(cjx, name)


def test_the_program_makes_the_same_run(page):
    """For every kind of run the snippet makes the field, tokens and times of the page, by functions that exist."""
    calls = {}

    def simulate(field, x0, ts, **options):
        calls["run"] = field, x0, ts, options
        return type("Run", (), {"xs": x0[None]})

    changes = [
        {},
        dict(attention="unnormalised", causal=False, mass=0.5, temperature=0.1, beta=9),
        dict(attention="hardmax", d=2, logarithmic=True, until=1000, seed=5),
        dict(value=[1, -2, 0, 2, 1, 0, 0, 0, -0.5], form=[1, 2, 0, 0, 1, 0, 0, 0, 3], beta=99),
        dict(attention="unnormalised", form=[1, 2, 0, 0, 1, 0, 0, 0, 3], beta=-9),
        dict(causal=False, beta=-4.5),
        dict(position="alibi", slope=0.75),
        dict(position="rotary", frequency=-1.25, form=[1, 2, 0, 0, 1, 0, 0, 0, 3], attention="unnormalised"),
    ]
    shown = []
    velocity = """const s = clusterjax.playground.state, x = clusterjax.sample(s.seed, s.n, s.d);
        return [Array.from(x), Array.from(new clusterjax.Field(s).velocity(x, new Float64Array(x.length)))]"""
    for change in changes:
        page.run("clusterjax.playground.load('figure4'); clusterjax.playground.change(arguments[0])", change)
        state, (x, v) = page.run(STATE), page.run(velocity)
        code = page.run(TEXT, "snippet")
        # Only the run, the picture and the print are replaced; all else is the package's.
        lines = (
            code.replace("import clusterjax as cjx\n", "").replace("cjx.plot.player(", "show(").replace("print(", "(")
        )
        names = {"cjx": Spy(simulate), "show": lambda *args, **more: shown.append(more)}
        exec(compile(lines, "snippet", "exec"), names)
        field, x0, ts, options = calls.pop("run")
        np.testing.assert_allclose(x0.ravel(), x, rtol=0, atol=1e-14)
        np.testing.assert_allclose(np.ravel(eqx.filter_jit(field)(0.0, x0)), v, rtol=0, atol=1e-13)
        assert float(ts[0]) == 0 and float(ts[-1]) == pytest.approx(state["until"]) and len(ts) == 151
        assert ("noise" in options) == (state["temperature"] > 0) and shown.pop() == dict(highlight=0, radius=0.1)
        if "noise" in options:
            step = page.run("return clusterjax.noiseStep(arguments[0])", state)
            assert options["noise"] == 0.1 and options["dt0"] == step


def test_keys_play_and_choose(page):
    playing = "return clusterjax.playground.playing"
    page.press(" ", "Space")
    assert page.run(playing)
    page.frames(12)
    page.press(" ", "Space")
    assert not page.run(playing) and page.run("return clusterjax.playground.time") > 0
    page.press("n")
    assert page.run(STATE)["preset"] == "figure5" and page.run("return clusterjax.playground.scene.elev") == 90
    page.press("p"), page.press("]"), page.press("]"), page.press("["), page.press("t"), page.press(" ", "Space")
    state = page.run(STATE)
    assert (state["preset"], state["speed"], state["trails"]) == ("figure4", 2, False)
    # A key that is typed into a field is no command.
    page.run("document.getElementById('seed').focus()")
    page.press("n")
    assert page.run(STATE)["preset"] == "figure4"
    page.run("document.getElementById('scene').focus()")
    azim = page.run("return clusterjax.playground.scene.azim")
    page.press("ArrowLeft")
    assert page.run("return clusterjax.playground.scene.azim") == pytest.approx(azim + 5)
    assert not page.run(playing)


def test_controls_change_the_run_and_the_words(page):
    page.run("clusterjax.playground.runTo(3)")
    choose(page, "#beta", 1.0, "input")
    assert page.run(STATE)["beta"] == 30 and page.run("return clusterjax.playground.time") == 0
    assert page.run(STATE)["preset"] == "" and "of your own" in page.run(TEXT, "claim")
    choose(page, "#beta", 0.0, "input")
    assert page.run(STATE)["beta"] == -30
    choose(page, "#beta-number", "-2.5")
    assert page.run(STATE)["beta"] == -2.5
    page.frames()
    assert page.run("return Number(document.getElementById('beta').value)") == pytest.approx(
        0.5 - 0.5 * (2.5 / 30) ** 0.5
    )
    # The energy has the sign of beta.
    energy = page.run("return clusterjax.playground.numbers.energy")
    assert page.run(TEXT, "energy") == f"−exp({energy:.3f})" and page.run(TEXT, "energy-says") == ""
    choose(page, "#beta-number", "30")
    choose(page, "#n-number", "12")
    shown = "return ['slope', 'frequency'].map((id) => document.getElementById(id).offsetParent !== null)"
    assert page.run(shown) == [False, False]
    choose(page, "#position", "alibi")
    choose(page, "#slope-number", "0.25")
    assert page.run(shown) == [True, False] and page.run(STATE)["slope"] == 0.25
    choose(page, "#position", "rotary")
    choose(page, "#frequency", 0.0, "input")
    assert page.run(shown) == [False, True] and page.run(STATE)["frequency"] == -3
    choose(page, "#position", "none")
    choose(page, "#attention", "hardmax")
    assert page.run("return document.getElementById('beta').disabled")
    choose(page, "#attention", "softmax")
    choose(page, "#value", "pair")
    assert page.run(STATE)["value"] == [1, -1, 0, 1, 1, 0, 0, 0, 1]
    choose(page, "#value-matrix label:nth-child(2) input", 2)
    assert page.run(STATE)["value"] == [1, -2, 0, 2, 1, 0, 0, 0, 1]
    choose(page, "#value", "repulsive")
    assert page.run(STATE)["value"] == [-1, 0, 0, 0, -1, 0, 0, 0, -1]
    choose(page, "#form", "matrix")
    assert len(page.run("return Array.from(document.querySelectorAll('#form-matrix input'), (e) => e.value)")) == 9
    page.run("document.querySelector('input[name=d][value=\"2\"]').click()")
    state = page.run(STATE)
    assert (state["d"], state["n"], state["value"]) == (2, 12, [-1, 0, 0, -1])
    choose(page, "#value", "pair")
    choose(page, "#value-matrix label:nth-child(2) input", 3)
    assert page.run(STATE)["value"] == [-1, -3, 3, -1]
    page.run("clusterjax.playground.runTo(0.5)")
    page.frames()
    x = np.reshape(page.run("return Array.from(clusterjax.playground.tokens)"), (12, 2))
    clusters = page.run("return clusterjax.countClusters(clusterjax.playground.tokens, 12, 2, 0.1)")
    assert page.run(TEXT, "clusters") == str(clusters) and page.run(TEXT, "time") == "t = 0.50"
    largest = np.mean(np.exp(30 * (x @ x.T - 1)))
    assert float(page.run(TEXT, "energy")) == pytest.approx(largest, abs=1e-4)


def test_keys_take_beta_through_zero(page):
    """The arrow keys take beta exactly to zero at the middle of the slider, and beyond."""
    choose(page, "#beta-number", "-0.012")
    page.run("document.getElementById('beta').focus()")
    values = []
    for _ in range(2):
        page.press("ArrowRight")
        values.append(page.run(STATE)["beta"])
    assert values == [0, 0.012]


def test_a_change_after_the_end_runs_again(page):
    page.run("clusterjax.playground.change({ until: 1, n: 8 })")
    page.run("const p = clusterjax.playground; for (let k = 0; k < 500 && p.time < 1; k++) p.frame(9)")
    assert page.run(TEXT, "play") == "Again" and not page.run("return clusterjax.playground.playing")
    choose(page, "#beta-number", "2")
    page.frames(10)
    assert page.run("return clusterjax.playground.playing") and page.run("return clusterjax.playground.time") > 0


# The middle of an element, and true if a finger touches the element there.
PLACE = """const one = document.querySelector(arguments[0]), box = one.getBoundingClientRect();
    const x = box.x + box.width / 2, y = box.y + box.height / 2;
    return [x, y, one.contains(document.elementFromPoint(x, y))]"""


def test_on_a_phone_the_tokens_stay_in_sight(browser):
    """Each control in turn is in the free part of the screen, from which a finger scrolls the page."""
    browser.open(PAGE, width=390, height=844)
    browser.run("clusterjax.playground.pause()")
    for control in ("#n", "#seed", "#attention", "#beta", "#value", "#colour", "#radius", "#link"):
        browser.run("document.querySelector(arguments[0]).scrollIntoView({ block: 'start' })", control)
        canvas = browser.run(
            "const b = document.getElementById('scene').getBoundingClientRect(); return [b.top, b.bottom]"
        )
        *place, reached = browser.run(PLACE, control)
        assert -1 <= canvas[0] and canvas[1] <= 0.5 * 844, (control, canvas)
        assert reached and browser.run(PLACE, "#play")[2] and canvas[1] < place[1] < 844, (control, place)
    shown = "return [window.scrollY, clusterjax.playground.scene.azim]"
    before, azim = browser.run(shown)
    browser.touch([(40.0, 600.0 + 14 * k) for k in range(11)])
    browser.frames(20)
    after = browser.run(shown)
    assert after[0] < before - 60 and after[1] == azim
    # On the sphere the finger turns the sphere, and the page stays.
    browser.touch([(150.0 + 6 * k, 100.0 + 14 * k) for k in range(11)])
    browser.frames(20)
    assert browser.run(shown)[0] == after[0] and browser.run(shown)[1] != azim


def test_time_runs_to_its_end_and_logarithmic_time_faster(page):
    page.run("clusterjax.playground.change({ until: 2, n: 8 })")
    moved = "clusterjax.playground.frame(arguments[0]); return clusterjax.playground.time"
    # A frame integrates for some milliseconds at most: on a slow machine time goes less far.
    assert 0 < page.run(moved, 0.5) <= 0.5
    ends = "const p = clusterjax.playground; for (let k = 0; k < 500 && p.time < 2; k++) p.frame(9); return p.time"
    assert page.run(ends) == 2 and page.run(TEXT, "play") == "Again"
    page.run("clusterjax.playground.change({ until: 1000, logarithmic: true })")
    before = page.run("clusterjax.playground.runTo(100); return clusterjax.playground.time")
    assert before < page.run(moved, 0.1) <= 1.1 * before + 1e-9
    assert page.run("for (let k = 0; k < 500 && p.time < 110; k++) p.frame(0.1); return p.time".replace(
        "p.", "clusterjax.playground.")) >= 110  # fmt: skip


def test_everything_has_a_name_and_a_place_in_the_order_of_keys(page):
    """Each control has a label, and none is reached out of turn."""
    unnamed = page.run(
        "const named = (e) => e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.labels?.length;"
        "return [...document.querySelectorAll('input, select, button, canvas')]"
        ".filter((e) => !(named(e) || e.textContent.trim())).map((e) => e.outerHTML)"
    )
    assert (
        unnamed == [] and page.run("return document.querySelectorAll('[tabindex]:not([tabindex=\"0\"])').length") == 0
    )
    assert page.run("return document.getElementById('live').getAttribute('aria-live')") == "polite"
    assert re.fullmatch(r"t = .*: \d+ clusters?", page.run(TEXT, "live"))


def test_words_of_a_link_are_no_part_of_the_page(browser):
    browser.open(PAGE, "#preset=%3Cimg+src=x%3E&colour=%3Cimg%3E")
    assert browser.run("return document.querySelectorAll('img').length") == 0
    assert json.dumps(browser.run(STATE)["preset"]) == '""'
