"""Chromium of Debian without a screen, for the tests of pages: it starts once and records requests and errors."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest


def skipped() -> str | None:
    """Returns the reason why no browser can be used, or None if a browser can be used."""
    if shutil.which("chromium") is None:
        return "needs Chromium: apt install chromium"
    if shutil.which("chromedriver") is None:
        return "needs the driver of Chromium: apt install chromium-driver"
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "needs selenium: pip install selenium"
    return None


class Browser:
    """A browser window, which opens pages from files and records their requests and errors."""

    def __init__(self, folder: Path):
        # Selenium is imported only here, because the tests are skipped without it.
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = str(shutil.which("chromium"))
        for option in (
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
            "--disable-dev-shm-usage", "--hide-scrollbars", f"--user-data-dir={folder}", "--window-size=1000,800",
        ):  # fmt: skip
            options.add_argument(option)
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        # The path is given, because selenium would otherwise search for a driver itself, also on the network.
        self.driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
        self.driver.set_script_timeout(60)

    def open(self, path: Path, fragment: str = "", *, width: int = 1000, height: int = 800, scheme: str = "light"):
        """Opens a file in a window of the given size, with the given colour scheme as the preference of the reader."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", features=features)
        # An empty page is opened first, because a change of the fragment alone would not reload the file.
        self.driver.get("about:blank")
        self.driver.get_log("performance"), self.driver.get_log("browser")
        self.driver.get(path.as_uri() + fragment)
        # On a busy machine the driver may return before the page is loaded.
        for _ in range(300):
            if self.run("return location.href !== 'about:blank' && document.readyState === 'complete'"):
                break
            time.sleep(0.1)
        return self

    def command(self, name: str, **values: Any) -> Any:
        return self.driver.execute_cdp_cmd(name, values)

    def run(self, script: str, *args: Any) -> Any:
        """Runs a script in the page and returns its result."""
        return self.driver.execute_script(script, *args)

    def wait(self, script: str, *args: Any) -> Any:
        """Runs an asynchronous script in the page and returns its result once its promise is resolved."""
        body = "const done = arguments[arguments.length - 1], given = Array.from(arguments).slice(0, -1);"
        body += f"(async (...given) => {{ {script} }})(...given).then(done, (e) => done('failed: ' + e));"
        return self.driver.execute_async_script(body, *args)

    def frames(self, count: int = 3) -> None:
        """Wait until the page has drawn `count` frames."""
        self.wait(f"for (let k = 0; k < {count}; k++) await new Promise((go) => requestAnimationFrame(go));")

    def press(self, key: str, code: str | None = None) -> None:
        """Press a key and release it, as a keyboard does."""
        text = key if len(key) == 1 else ""
        more = {"text": text} if text else {}
        self.command("Input.dispatchKeyEvent", type="keyDown", key=key, code=code or key, **more)
        self.command("Input.dispatchKeyEvent", type="keyUp", key=key, code=code or key)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press the mouse button, move the mouse and release the button."""
        both = dict(button="left", clickCount=1)
        self.command("Input.dispatchMouseEvent", type="mousePressed", x=start[0], y=start[1], **both)
        for share in (0.5, 1.0):
            x, y = (a + share * (b - a) for a, b in zip(start, end, strict=True))
            self.command("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, buttons=1, **both)
        self.command("Input.dispatchMouseEvent", type="mouseReleased", x=end[0], y=end[1], **both)

    def touch(self, *places: list[tuple[float, float]]) -> None:
        """Put one finger down at the first place of each list, move the fingers along the lists, and lift them."""
        points = lambda k: [{"x": path[k][0], "y": path[k][1], "id": i} for i, path in enumerate(places)]
        self.command("Input.dispatchTouchEvent", type="touchStart", touchPoints=points(0))
        for k in range(1, len(places[0])):
            self.command("Input.dispatchTouchEvent", type="touchMove", touchPoints=points(k))
        self.command("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def requests(self) -> list[str]:
        """Returns the addresses that the page requested since it was opened."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        asked = [
            event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in asked if url != "about:blank"]

    def errors(self) -> list[str]:
        """Returns the messages that the browser logged since the page was opened."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def picture(self, path: Path) -> None:
        self.driver.save_screenshot(str(path))

    def close(self) -> None:
        self.driver.quit()


_STARTED: list[Browser] = []


@pytest.fixture(scope="session")
def browser(request, tmp_path_factory):
    """The browser that all tests of one process share."""
    reason = skipped()
    if reason is not None:
        pytest.skip(reason)
    # Each module that imports the fixture has its own, and a browser takes seconds to start.
    if not _STARTED:
        _STARTED.append(Browser(tmp_path_factory.mktemp("browser")))
        request.config.add_cleanup(_STARTED[0].close)
    return _STARTED[0]
