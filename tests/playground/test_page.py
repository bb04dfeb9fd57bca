"""The page of the playground: what a reader sees, presses and links to, and that it asks no other host for anything."""

import json
import os
import re
import shutil

import numpy as np
import pytest

import clusterjax as cjx
from tests.browser import browser as browser, contrast
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


def test_the_drawing_is_that_of_the_player():
    """One source: links in the folder of the page, and what they name is in the package."""
    for name in ("scene.js", "colours.css"):
        assert (PAGE.parent / name).is_symlink()
        assert (PAGE.parent / name).resolve() == ROOT / "clusterjax" / "plot" / "_page" / name
        assert not os.path.isabs(os.readlink(PAGE.parent / name))


def test_the_page_runs_where_it_is_copied_to_and_asks_nobody(browser, tmp_path):
    shutil.copytree(PAGE.parent, tmp_path / "playground")
    there = tmp_path / "playground" / "index.html"
    browser.open(there)
    browser.frames(20)
    asked = browser.requests()
    assert browser.errors() == [] and browser.run("return clusterjax.playground.time") > 0
    assert len(asked) >= 10 and all(url.startswith((tmp_path.as_uri(), "data:")) for url in asked)
    # Nor could it: neither its files nor its policy name a host.
    for file in (tmp_path / "playground").iterdir():
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", file.read_text("utf-8")), file.name
    policy = re.search('Content-Security-Policy" content="([^"]*)"', there.read_text("utf-8"))[1]
    assert "connect-src 'none'" in policy and "img-src data:" in policy


PLUS_MINUS = re.compile(r"([\d.]+) ± ([\d.]*\d)")


def found_in(words, record):
    """How many numbers with an error stand in `words`; each must be, rounded, one that the experiment measured."""
    measured = PLUS_MINUS.findall(
        " ".join(claim["measured"] for claim in json.loads(record.read_text("utf-8"))["claims"])
    )
    said = PLUS_MINUS.findall(words)
    for value, error in said:
        half = 0.5001 * 10.0 ** -len(value.partition(".")[2])
        near = lambda one, v=value, e=error, h=half: abs(float(one[0]) - float(v)) <= h >= abs(float(one[1]) - float(e))
        assert any(map(near, measured)), (record.stem, value, error)
    return len(said)


def test_every_example_says_what_was_measured(page):
    """Counts of this run as the page counts them, and the numbers of figures as their experiments have them."""
    presets = page.run("return clusterjax.PRESETS")
    assert {f"figure{k}" for k in range(3, 9)} <= {one["id"] for one in presets}
    counted = 0
    for one in presets:
        assert one["claim"].endswith((".", ")")) and one["found"].endswith(".")
        if match := re.match(r"figure\d", one["id"]):
            assert found_in(one["found"], ROOT / "docs" / "gallery" / f"{match[0]}.json") >= 1
        if "expected" in one:
            counted += 1
            page.run("clusterjax.playground.load(arguments[0]); clusterjax.playground.runTo(15)", one["id"])
            assert page.run("return clusterjax.playground.numbers.clusters") == one["expected"], one["id"]
            if found := re.search(r"(\d+) clusters?\b", one["found"]):
                assert int(found[1]) == one["expected"]
    assert counted >= 5


def test_a_heavier_leader_is_reached_sooner(page):
    """What the example of the leader says."""
    first = """const p = clusterjax.playground, x = p.runTo(15), n = p.state.n;
        let sum = 0;
        for (let i = 3; i < 3 * n; i++) sum += (x[i] * x[i % 3]) / (n - 1);
        return sum"""
    page.run("clusterjax.playground.load('leader')")
    heavy = page.run(first)
    page.run("clusterjax.playground.change({ mass: 1 })")
    said = page.run("return clusterjax.PRESETS.find((one) => one.id === 'leader').found")
    assert f"is {heavy:.2f} at t = 15" in said and f"and {page.run(first):.2f} for a mass of 1" in said


def test_noise_gathers_and_dissolves_as_the_example_says(page):
    mean = """const p = clusterjax.playground, x = p.runTo(15), n = p.state.n, sum = [0, 0, 0];
        for (let i = 0; i < 3 * n; i++) sum[i % 3] += x[i] / n;
        return Math.hypot(...sum)"""
    page.run("clusterjax.playground.load('noise')")
    assert page.run(STATE)["temperature"] == 0.05 and page.run(mean) > 0.9
    page.run("clusterjax.playground.change({ temperature: 0.5 })")
    assert page.run(mean) < 0.5


def test_the_energy_never_falls_along_the_gradient_flow(page):
    page.run("clusterjax.playground.load('gradient')")
    energies = [page.run("clusterjax.playground.runTo(arguments[0]); return clusterjax.playground.numbers.energy", t)
                for t in np.linspace(0.2, 15, 12)]  # fmt: skip
    assert (np.diff(energies) > 0).all()


def test_a_link_carries_the_whole_state(page, browser):
    wanted = dict(
        n=17, d=2, attention="unnormalised", causal=False, beta=2.5, value=[0.5, -1, 1, 0.5], form=[1, 2, 3, 4.25],
        mass=3, temperature=0.25, seed=4294967295, radius=0.2, until=40, speed=3, logarithmic=True, trails=False,
        colour="order",
    )  # fmt: skip
    page.run("clusterjax.playground.change(arguments[0])", wanted)
    state, link = page.run(STATE), page.run("return document.getElementById('link').value")
    assert all(state[name] == value for name, value in wanted.items())
    assert page.run("return location.href") == link
    browser.open(PAGE, link[link.index("#") :])
    assert browser.run(STATE) == state and browser.run(TEXT, "said") == ""
    # That of an example names it.
    page.run("clusterjax.playground.load('figure5-gap')")
    link = page.run("return document.getElementById('link').value")
    browser.open(PAGE, link[link.index("#") :])
    assert browser.run(STATE)["preset"] == "figure5-gap" and "diag(-1, -10)" in browser.run(TEXT, "claim")
    # Its name is enough; with another run it is no example.
    browser.open(PAGE, "#preset=figure5-gap")
    assert browser.run(STATE)["value"] == [-1, 0, 0, -10] and browser.run(STATE)["preset"] == "figure5-gap"
    browser.open(PAGE, "#preset=figure5-gap&beta=2")
    assert (browser.run(STATE)["preset"], browser.run(STATE)["beta"], browser.run(STATE)["d"]) == ("", 2, 2)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("link", "name", "value", "says"),
    (
        ("n=1e9", "n", 512, "n must be from 2 to 512, whole; 512 is taken."),
        ("n=3.4", "n", 3, "n must be from 2 to 512, whole"),
        ("beta=-1", "beta", 0, "beta must be from 0 to 100"),
        ("beta=NaN", "beta", 9, "beta must be a number, but it is “NaN”; it stays 9."),
        ("radius=", "radius", 0.1, "radius must be a number"),
        ("attention=%3Cb%3Emax", "attention", "softmax", "attention must be one of softmax"),
        ("value=1+2+3", "value", [1, 0, 0, 0, 1, 0, 0, 0, 1], "V must be 9 numbers"),
        ("form=1+0+0+0+1+0+0+0+1e999", "form", [1, 0, 0, 0, 1, 0, 0, 0, 1], "B must be 9 numbers of at most 50"),
    ),
)
def test_a_bad_link_is_met_with_a_sentence(browser, link, name, value, says):
    browser.open(PAGE, "#" + link)
    assert browser.run(STATE)[name] == value and says in browser.run(TEXT, "said")
    assert browser.errors() == []


class Spy:
    """The package with another `simulate`."""

    def __init__(self, simulate):
        self.simulate = simulate

    def __getattr__(self, name):
        return getattr(cjx, name)


def test_the_program_makes_the_same_run(page):
    """The field, the tokens and the times of the snippet of every kind of run; all that it calls is there."""
    calls = {}

    def simulate(field, x0, ts, **options):
        calls["run"] = field, x0, ts, options
        return type("Run", (), {"xs": x0[None]})

    changes = [
        {},
        dict(attention="unnormalised", causal=False, mass=0.5),
        dict(attention="hardmax", d=2),
        dict(temperature=0.1, beta=99),
        dict(value=[1, -2, 0, 2, 1, 0, 0, 0, -0.5], form=[1, 2, 0, 0, 1, 0, 0, 0, 3]),
        dict(logarithmic=True, until=1000, seed=5),
    ]
    shown = []
    velocity = """const s = clusterjax.playground.state, x = clusterjax.sample(s.seed, s.n, s.d);
        return [Array.from(x), Array.from(new clusterjax.Field(s).velocity(x, new Float64Array(x.length)))]"""
    for change in changes:
        page.run("clusterjax.playground.load('figure4'); clusterjax.playground.change(arguments[0])", change)
        state, (x, v) = page.run(STATE), page.run(velocity)
        code = page.run(TEXT, "snippet")
        # All but the run, the picture and what is printed is that of the package.
        lines = (
            code.replace("import clusterjax as cjx\n", "").replace("cjx.plot.player(", "show(").replace("print(", "(")
        )
        names = {"cjx": Spy(simulate), "show": lambda *args, **more: shown.append(more)}
        exec(compile(lines, "snippet", "exec"), names)
        field, x0, ts, options = calls.pop("run")
        np.testing.assert_allclose(x0.ravel(), x, rtol=0, atol=1e-14)
        np.testing.assert_allclose(np.ravel(field(0.0, x0)), v, rtol=0, atol=1e-13)
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
    # What is typed is no command.
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
    choose(page, "#n-number", "12")
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


@pytest.mark.exhaustive
def test_frames_that_come_late_shorten_the_trails_until_the_run_starts_again(page):
    page.run("clusterjax.playground.change({ n: 256 })")
    frames = "for (let k = 0; k < 80; k++) clusterjax.playground.frame(1 / 60); return clusterjax.playground.trail"
    late = "return Array.from({ length: 60 }, (_, k) => clusterjax.playground.relieve(arguments[0]))"
    assert page.run(frames) == 12
    assert page.run(late, 0.016) == [1] * 60
    detail = page.run(late, 0.03)
    assert detail[:2] == [1, 0.5] and sorted(set(detail)) == [1 / 8, 1 / 4, 1 / 2, 1]
    assert page.run(frames) == 2
    page.run("clusterjax.playground.restart()")
    assert page.run(late, 0.016) == [1] * 60


@pytest.mark.exhaustive
def test_tokens_that_slide_get_on_and_the_page_says_so(page):
    """Two leaders that outrun each other at every step: a run that would stop."""
    change = dict(attention="hardmax", causal=False, form=[1, 0, 0, 0, 0, 0, 0, 0, 0], n=8)
    page.run("clusterjax.playground.change(arguments[0])", change)
    page.run("clusterjax.playground.runTo(1); clusterjax.playground.frame(0.001)")
    assert "switch between leaders" in page.run(TEXT, "said")


def test_fingers_turn_and_zoom(page):
    view = "const s = clusterjax.playground.scene; return [s.elev, s.azim, s.zoom]"
    elev, azim, zoom = page.run(view)
    box = "const b = clusterjax.playground.scene.canvas.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]"
    left, top, width, height = page.run(box)
    # Whole pixels: touches are rounded to them.
    x, y, side = round(left + width / 2), round(top + height / 2), min(width, height)
    page.command("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
    page.touch([(x, y), (x + 10, y), (x + 30, y + 20)])
    assert page.run(view) == pytest.approx([elev + 180 * 20 / side, azim - 180 * 30 / side, zoom], rel=1e-3)
    page.touch([(x - 20, y), (x - 30, y), (x - 40, y)], [(x + 20, y), (x + 30, y), (x + 40, y)])
    page.command("Emulation.setTouchEmulationEnabled", enabled=False)
    assert page.run(view)[2] == pytest.approx(2 * zoom)


WORDS = """const tags = "h1, h2, p, b, button, label, select, summary, legend, dt, dd, code, figcaption, output, " +
        "input[type=number], input[type=text]";
    return [...document.querySelectorAll(tags)].filter((e) => e.getClientRects().length).map((e) => {
        let at = e;
        const clear = (one) => getComputedStyle(one).backgroundColor === "rgba(0, 0, 0, 0)";
        while (at.parentElement && clear(at)) at = at.parentElement;
        return [getComputedStyle(e).color, getComputedStyle(at).backgroundColor, e.outerHTML.slice(0, 80)];
    })"""
DRAWN = """const s = getComputedStyle(document.documentElement), of = (name) => s.getPropertyValue("--" + name).trim();
    return [["first", "ball"], ["token", "ball"], ["token", "paper"], ["second", "paper"], ["control", "paper"],
        ["focus", "paper"], ["on-accent", "accent"]].map((pair) => pair.map(of))"""


@pytest.mark.parametrize(("width", "scheme"), ((400, "light"), (1600, "dark")))
def test_it_fits_and_its_words_stand_out(browser, width, scheme):
    browser.open(PAGE, width=width, height=900, scheme=scheme)
    browser.run("clusterjax.playground.pause(); document.querySelectorAll('details').forEach((e) => (e.open = true))")
    browser.run("clusterjax.playground.change({ value: [1, 2, 0, 0, 1, 0, 0, 0, 1] })")
    assert browser.run("return document.documentElement.scrollWidth") <= width
    picture = "const b = document.querySelector('.picture').getBoundingClientRect(); return [b.width, b.height]"
    wide, tall = browser.run(picture)
    assert wide >= (360 if width == 400 else 700) and tall >= 300
    numbers = lambda text: tuple(float(v) for v in re.findall(r"[\d.]+", text))
    words = browser.run(WORDS)
    poor = [one for one in words if contrast(numbers(one[0]), numbers(one[1])) < 4.5]
    assert len(words) >= 60 and poor == []
    # What is drawn, and the rims of controls: 3 to 1.
    for one, other in browser.run(DRAWN):
        assert contrast(*(tuple(bytes.fromhex(name[1:])) for name in (one, other))) >= 3


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


def test_those_who_prefer_less_motion_get_a_still(browser):
    browser.open(PAGE)
    features = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    browser.command("Emulation.setEmulatedMedia", features=features)
    browser.driver.refresh()
    browser.frames(8)
    assert browser.run("return [clusterjax.playground.playing, clusterjax.playground.state.trails]") == [False, False]


def test_words_of_a_link_are_no_part_of_the_page(browser):
    browser.open(PAGE, "#preset=%3Cimg+src=x%3E&colour=%3Cimg%3E")
    assert browser.run("return document.querySelectorAll('img').length") == 0
    assert json.dumps(browser.run(STATE)["preset"]) == '""'
