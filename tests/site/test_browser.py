"""In a browser every page is whole on a screen and on a phone, and legible in the light and in the dark.

A whole page is not wider than the window, cuts no line of code, and leaves the console empty. Text is legible if it has
the contrast that WCAG 2.2 asks for at level AA, 4.5 and for large letters 3, on the nearest opaque background.
"""

from pathlib import Path

import pytest

from tests.browser import browser  # noqa: F401
from tests.site.test_site import site  # noqa: F401


WIDTHS = {"a screen": 1280, "a phone": 390}
SCHEMES = ("light", "dark")

# Opens the folded parts, and lets colours change at once. The policy of a page may forbid an element with a style.
PREPARE = """
const style = new CSSStyleSheet();
style.replaceSync("*, *::before, *::after { transition: none !important; animation: none !important; }");
document.adoptedStyleSheets = [style];
for (const one of document.querySelectorAll("details")) one.open = true;
"""

# Finds elements that reach beyond the window and do not scroll, and code that needs scrolling.
CUT = """
const faults = [], width = document.documentElement.clientWidth;
const told = (one) => one.tagName.toLowerCase() + " " + one.className + " " + one.textContent.trim().slice(0, 60);
const scrolls = (one) => one && (/auto|scroll|hidden|clip/.test(getComputedStyle(one).overflowX)
  && one !== document.body && one !== document.documentElement || scrolls(one.parentElement));
if (document.scrollingElement.scrollWidth > width) {
  const wide = [...document.body.querySelectorAll("*")].filter((one) => one.checkVisibility()
    && one.getBoundingClientRect().right > width + 1 && !scrolls(one.parentElement));
  faults.push("wider than the window: " + wide.slice(-3).map(told).join(" | "));
}
for (const one of document.querySelectorAll("pre, pre > code"))
  if (one.checkVisibility() && one.scrollWidth > one.clientWidth + 1 && one.clientWidth > 0)
    faults.push("cut code: " + told(one));
return faults;
"""

CONTRAST = """
const sheet = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true }), known = new Map();
const colour = (text) => {
  if (!known.has(text)) {
    sheet.clearRect(0, 0, 1, 1);
    sheet.fillStyle = text;
    sheet.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = sheet.getImageData(0, 0, 1, 1).data;
    known.set(text, [r, g, b, a / 255]);
  }
  return known.get(text);
};
const over = ([r, g, b, a], below) => [r, g, b].map((v, k) => a * v + (1 - a) * below[k]);
const luminance = (rgb) => {
  const [r, g, b] = rgb.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
// The background of an element, of all that is painted below it; null where a picture is.
const backgrounds = new Map([[null, colour(getComputedStyle(document.documentElement).colorScheme.includes("dark")
  && matchMedia("(prefers-color-scheme: dark)").matches ? "#121212" : "#ffffff").slice(0, 3)]]);
const background = (one) => {
  if (!backgrounds.has(one)) {
    const style = getComputedStyle(one), own = colour(style.backgroundColor);
    const below = own[3] < 1 ? background(one.parentElement) : [0, 0, 0];
    backgrounds.set(one, style.backgroundImage !== "none" || !below ? null : over(own, below));
  }
  return backgrounds.get(one);
};
const opacities = new Map([[null, 1]]);
const opacity = (one) => {
  if (!opacities.has(one)) opacities.set(one, Number(getComputedStyle(one).opacity) * opacity(one.parentElement));
  return opacities.get(one);
};

const shown = new Set(), walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) if (walker.currentNode.data.trim()) shown.add(walker.currentNode.parentElement);
const typed = "input:not([type=checkbox], [type=radio], [type=range]), select";
for (const one of document.querySelectorAll(typed)) shown.add(one);
const found = new Map();
for (const one of shown) {
  if (one.closest("script, style, noscript, template, option, annotation, svg, :disabled")) continue;
  if (!one.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
  const box = one.getBoundingClientRect(), below = background(one), style = getComputedStyle(one);
  if (box.width < 2 || box.height < 2 || box.right <= 0 || !below) continue;
  const [r, g, b, a] = colour(style.color), text = over([r, g, b, a * opacity(one)], below);
  const [low, high] = [luminance(text), luminance(below)].sort((p, q) => p - q), ratio = (high + 0.05) / (low + 0.05);
  const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  if (ratio >= (large ? 3 : 4.5)) continue;
  const pair = [text, below].map((rgb) => rgb.map(Math.round)).join(" on ");
  if (!found.has(pair)) found.set(pair, `contrast ${ratio.toFixed(2)}: ${pair}, ${one.tagName.toLowerCase()} `
    + `${one.className} "${(one.value || one.textContent).trim().slice(0, 40)}"`);
}
return [...found.values()];
"""


def faults(shown, page: Path) -> list[str]:
    """The faults of a page at both widths and in both schemes; the page is loaded once."""
    shown.open(page, width=WIDTHS["a screen"])
    shown.run(PREPARE)
    found = []
    for kind, width in WIDTHS.items():
        shown.command("Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=False)
        for scheme in SCHEMES:
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            shown.command("Emulation.setEmulatedMedia", features=features)
            shown.frames(2)
            found += [f"{kind}, {scheme}: {fault}" for fault in shown.run(CONTRAST)]
        found += [f"{kind}: {fault}" for fault in shown.run(CUT)]
    return found + [f"console: {line}" for line in shown.errors()]


@pytest.mark.exhaustive
def test_every_page_is_whole_and_can_be_read(browser, site):  # noqa: F811
    pages = sorted(site.rglob("*.html"))
    found = {page.relative_to(site).as_posix(): wrong for page in pages if (wrong := faults(browser, page))}
    assert len(pages) > 50
    assert not found, "\n".join(f"{page}: {fault}" for page, wrong in found.items() for fault in wrong)


GOOD = """<!DOCTYPE html><html><head><meta name="viewport" content="width=device-width"><style>
:root { color-scheme: light dark; --ink: #333; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #ddd; --paper: #222; } }
body { color: var(--ink); background: var(--paper); }
</style></head><body><p>Text</p><div style="overflow-x: auto"><table style="width: 2000px"><tr><td>wide</table></div>
<pre><code>short</code></pre><details><summary>more</summary><p>Text</p>%s</details></body></html>"""
BAD = {
    "": (),
    '<div style="width: 900px">wide</div>': ("a phone: wider than the window: div  wide",),
    "<pre style='overflow: auto'><code>" + 60 * "long " + "</code></pre>": ("a screen: cut code", "a phone: cut code"),
    "<p style='color: #999'>pale</p>": tuple(f"{kind}, light: contrast 2.85: 153" for kind in WIDTHS),
    "<p style='opacity: 0.5'>pale</p>": tuple(f"{kind}, {s}: contrast" for kind in WIDTHS for s in SCHEMES),
    "<p style='color: #222; background: rgb(255 255 255 / 20%)'>pale</p>": tuple(
        f"{kind}, dark: contrast" for kind in WIDTHS
    ),
    "<h1 style='color: #888'>large and grey</h1>": (),
    "<script>console.error('a complaint')</script>": ("console: ",),
}


@pytest.mark.parametrize(("part", "told"), BAD.items(), ids=map(str, range(len(BAD))))
def test_each_fault_is_found(browser, tmp_path, part, told):  # noqa: F811
    page = tmp_path / "page.html"
    page.write_text(GOOD % part, "utf-8")
    found = faults(browser, page)
    assert len(found) >= len(told) and bool(found) == bool(told), found
    for fault in told:
        assert any(line.startswith(fault) for line in found), found
