"""How much CPU time does a frame of the playground and of the player take, and do both show 60 frames per second?

n tokens are shown in a window of 1600 x 900, in headless Chromium without a GPU, so that the CPU also draws. For each
frame the table has the CPU time of the thread of the page (integration, measurement and drawing, without other
processes), the median wall times of integration and of drawing, and the fraction of frames that came later than 1.5
frame times.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _harness import HERE, options, report, say

import clusterjax as cjx


sys.path.insert(0, str(HERE.parent))
from tests.browser import Browser, skipped


PAGE = HERE.parent / "docs" / "playground" / "index.html"
FRAME_MS = 1000 / 60
COLUMNS = ["case", "n", "ms of a core per frame", "integrating ms", "drawing ms", "frames a second", "late frames %"]
CASES: dict[str, dict[str, Any]] = {
    "full, beta = 9": dict(beta=9, causal=False),
    "causal, beta = 9": dict(beta=9),
    "circle, full": dict(beta=9, causal=False, d=2),
    "full, B a matrix": dict(beta=9, causal=False, form=[1, 0.2, 0, 0, 1, 0, 0, 0.1, 1]),
    "unnormalised, full": dict(beta=4, causal=False, attention="unnormalised"),
    "noise, full": dict(beta=1, causal=False, temperature=0.05),
    "full, speed 10": dict(beta=9, causal=False, speed=10, until=1000),
    "colours by cluster": dict(beta=9, causal=False, colour="clusters"),
}
WATCH = """const [count, page] = given, p = clusterjax[page], stamps = [];
    for (let k = 0; k <= count; k++) stamps.push(await new Promise((go) => requestAnimationFrame(go)));
    return stamps"""


def busy(browser: Browser) -> float:
    """The CPU time of the thread of the page, in seconds, since its metrics were switched on."""
    metrics = browser.command("Performance.getMetrics")["metrics"]
    return next(one["value"] for one in metrics if one["name"] == "TaskDuration")


def watched(browser: Browser, page: str, frames: int) -> dict[str, float]:
    """The times of frames while the page plays."""
    browser.command("Performance.disable")
    browser.command("Performance.enable", timeDomain="threadTicks")
    # The compilation of JavaScript during the first frames is not part of the time of a frame.
    browser.wait(WATCH, 20, page)
    before = busy(browser)
    stamps = np.array(browser.wait(WATCH, frames, page))
    used = busy(browser) - before
    gaps = np.diff(stamps)
    return {
        "ms of a core per frame": 1000 * used / frames,
        "frames a second": 1000 * frames / float(stamps[-1] - stamps[0]),
        "late frames %": 100 * float((gaps > 1.5 * FRAME_MS).mean()),
    }


def of_playground(browser: Browser, change: dict[str, Any], n: int, frames: int) -> dict[str, float]:
    browser.open(PAGE, width=1600, height=900)
    browser.run("clusterjax.playground.load('figure4'); clusterjax.playground.change(arguments[0])", change | {"n": n})
    browser.run("clusterjax.playground.play()")
    found = watched(browser, "playground", frames)
    browser.run("clusterjax.playground.pause(); clusterjax.playground.restart()")
    script = "return Array.from({ length: arguments[0] }, () => clusterjax.playground.frame(1 / 60))"
    parts = np.array(browser.run(script, frames))
    return found | {"integrating ms": float(np.median(parts[:, 0])), "drawing ms": float(np.median(parts[:, 1]))}


def of_player(browser: Browser, n: int, frames: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    xs = np.cumsum(0.05 * rng.normal(size=(300, n, 3)), axis=0) + rng.normal(size=(n, 3))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.html"
        cjx.plot.player(xs / np.linalg.norm(xs, axis=2, keepdims=True), path, highlight=0)
        browser.open(path, width=1600, height=900)
        browser.run("document.getElementById('again').checked = true; clusterjax.player.play()")
        return watched(browser, "player", frames)


def main() -> None:
    chosen = options(__doc__, "playground.json")
    if (reason := skipped()) is not None:
        raise SystemExit(f"This benchmark {reason}.")
    sizes, frames = ((64,), 30) if chosen.quick else ((256, 64), 40)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        browser = Browser(Path(folder))
        try:
            version = browser.driver.capabilities["browserVersion"]
            for n in sizes:
                for name, change in CASES.items():
                    rows.append({"case": name, "n": n} | of_playground(browser, change, n, frames))
                    say(json.dumps(rows[-1]))
                rows.append({"case": "player", "n": n} | of_player(browser, n, frames))
                say(json.dumps(rows[-1]))
        finally:
            browser.close()
    worst = max(row["ms of a core per frame"] for row in rows)
    findings = (
        f"Goal: 60 frames a second for n = 256 on a core of a laptop: {FRAME_MS:.1f} ms a frame. The dearest case "
        f"takes {worst:.1f} ms of a core, in Chromium {version} without a GPU.",
        "Frames a second and late frames are by the clock: other work on the machine makes them worse.",
    )
    report(rows, chosen.out, title="A frame of the playground and of the player", columns=COLUMNS, findings=findings,
           quick=chosen.quick)  # fmt: skip


if __name__ == "__main__":
    main()
