"""Players of runs: one HTML file that plays a run without a network.

The page holds at most 10^5 points of a run, in at most three dimensions, as 16-bit numbers. Times are thinned first,
evenly and with both ends, and then tokens. Tokens of more than three dimensions are projected onto three principal
axes. Coordinates are divided by the half-width of the picture and rounded to multiples of 1 / 32767. Invariant:
`Shown.notes` has a sentence on each change except rounding.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.colors import to_hex

from .._base.checks import check_path, refusal, shown as as_shown
from .._observables import cluster_labels
from ._door import above_zero, door, integer_from
from ._save import whole_file
from ._scene import unit_direction
from ._style import (
    Colours,
    Frames,
    Numbers,
    TrajectoryLike,
    check_token_index,
    digits_between,
    frames_of,
    token_colours,
)
from ._views import box_of


MOST_POINTS = 10**5
FEWEST_TIMES = 100  # times are not thinned below this number; tokens are thinned instead
STEPS = 32767  # of a coordinate, from the middle of the picture to its edge
NOTHING = -32768  # the code of a token that is not finite


class Shown(NamedTuple):
    """The part of a run that is shown: the tokens `xs` (T, n, 2 or 3) within [-1, 1] at the times `ts` (T,).

    `times` and `tokens` are the indices of the shown part in the run. The kind is `"sphere"` for unit tokens, `"ball"`
    for projected unit tokens, and `"box"` for other tokens, with the smallest and the largest coordinate of each axis
    as `ranges`. `axes` (3, d) are those of a projection. `notes` has a sentence on each omission and change.
    """

    ts: np.ndarray
    xs: np.ndarray
    times: np.ndarray
    tokens: np.ndarray
    kind: str
    ranges: list[list[float]] | None
    axes: np.ndarray | None
    notes: tuple[str, ...]


def shown(run: Frames, highlight: int | None) -> Shown:
    """Thin, project and scale the frames of a run."""
    d = run.xs.shape[2]
    if d < 2:
        raise refusal(
            "trajectory", "hold tokens of dimension 2 or more", "theirs is 1", "draw them with plot.time_series"
        )
    times, tokens = _thinned(len(run.ts), run.xs.shape[1], highlight)
    parts = [
        f"{len(chosen):,} of {count:,} {noun}"
        for chosen, count, noun in zip((times, tokens), run.xs.shape, ("saved times", "tokens"), strict=False)
        if len(chosen) < count
    ]
    notes = [f"Thinned to at most {MOST_POINTS:,} points: {' and '.join(parts)}, evenly chosen."] if parts else []
    # The norms of all tokens are checked, before tokens are thinned, within a visible tolerance.
    norms = np.linalg.norm(run.xs, axis=2)
    unit = bool((np.abs(norms[np.isfinite(norms)] - 1.0) < 1e-2).all())
    xs, axes, ranges = run.xs[np.ix_(times, tokens)], None, None
    if not np.isfinite(xs).all(axis=2).any():
        raise refusal("trajectory", "have a finite token among those that are shown", "it has none", "pass fewer")
    if d > 3:
        xs, axes, note = _projected(xs, unit)
        notes.append(note)
    if not unit:
        box = box_of(xs, margin=1.0)
        xs, ranges = box.scale(xs), [[float(middle - box.half), float(middle + box.half)] for middle in box.middle]
    kind = "box" if not unit else "sphere" if axes is None else "ball"
    return Shown(run.ts[times], xs, times, tokens, kind, ranges, axes, tuple(notes))


def _thinned(times: int, n: int, highlight: int | None) -> tuple[np.ndarray, np.ndarray]:
    """The indices of the shown times and tokens, evenly spaced and with both ends."""
    evenly = lambda count, fewer: np.round(np.linspace(0, count - 1, fewer)).astype(int)
    fewer = min(times, max(FEWEST_TIMES, MOST_POINTS // n))
    if times * n <= MOST_POINTS:
        fewer = times
    tokens = evenly(n, min(n, max(1, MOST_POINTS // fewer)))
    # The highlighted token replaces its nearest chosen token, unless it is chosen already.
    if highlight is not None and highlight not in tokens:
        tokens[np.argmin(np.abs(tokens - highlight))] = highlight
    return evenly(times, fewer), tokens


def _projected(xs: np.ndarray, unit: bool) -> tuple[np.ndarray, np.ndarray, str]:
    """The coordinates along three principal axes, the axes, and the sentence on the projection."""
    d = xs.shape[2]
    points = xs[np.isfinite(xs).all(axis=2)]
    # Unit tokens are projected about the centre of the sphere, other clouds about their mean.
    centre = np.zeros(d) if unit else points.mean(axis=0)
    # Squares of large coordinates would overflow, so coordinates are scaled first.
    size = max(float(np.abs(points - centre).max()), np.finfo(float).tiny)
    moments = ((points - centre) / size).T @ ((points - centre) / size)
    strengths, vectors = np.linalg.eigh(moments)
    axes = vectors[:, ::-1][:, :3].T
    # The sign of an axis is arbitrary; here its largest component is positive.
    axes = axes * np.sign(axes[np.arange(3), np.abs(axes).argmax(axis=1)])[:, None]
    share = strengths[-3:].sum() / strengths.sum() if strengths.sum() > 0 else 1.0
    about = "about the centre of the sphere" if unit else "about their mean"
    note = (
        f"Tokens of dimension {d}, projected onto their first three principal axes {about}, over all times that are "
        f"shown: {100 * share:.1f} % of {'the mean square length' if unit else 'the variance'}."
    )
    return (xs - centre) @ axes.T, axes, note


def coded(xs: np.ndarray) -> str:
    """Encode coordinates of [-1, 1] as little-endian 16-bit integers in base64; NaN tokens become `NOTHING`."""
    finite = np.isfinite(xs).all(axis=2, keepdims=True)
    # The norm of a unit vector may exceed 1 by a rounding error.
    scaled = np.rint(np.clip(np.where(finite, xs, 0.0), -1.0, 1.0) * STEPS)
    return base64.b64encode(np.where(finite, scaled, NOTHING).astype("<i2").tobytes()).decode("ascii")


@final
@dataclass(frozen=True)
class Player:
    """A page that plays a run; a notebook displays the page in a frame.

    **Attributes:**

    - `html`: The whole page, which needs no other file and no network.
    - `height`: The height of the frame in a notebook, in pixels.
    - `notes`: The notes of the page on omissions and changes: thinned times or tokens, and projections.
    """

    html: str
    height: int = 480
    notes: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        # The frame runs the scripts of the page without access to the notebook.
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" sandbox="allow-scripts" title="a run of tokens" '
            f'style="width: 100%; max-width: 760px; height: {self.height}px; border: 0"></iframe>'
        )

    def __repr__(self) -> str:
        return f"Player(a page of {len(self.html) / 1000:.0f} kB; show it in a notebook, or write it with path=)"


def _page_file(value: Any, name: str) -> Path:
    path = check_path(value, name)
    if path.suffix.lower() != ".html":
        raise refusal(name, "end in .html", f"it is {as_shown(path)}", "choose such a name")
    return path


@door(path=_page_file, height=integer_from(160, 10_000), radius=above_zero)
def player(
    trajectory: TrajectoryLike | Numbers,
    path: str | Path | None = None,
    *,
    ts: Numbers | None = None,
    labels: Numbers | None = None,
    colours: Colours | None = None,
    highlight: int | None = None,
    trail: bool = True,
    arrows: Mapping[str, Numbers] | None = None,
    view: Numbers | None = None,
    counts_from: int | None = 5,
    size: float | int = 1.0,
    symbol: str = "t",
    title: str = "",
    radius: float | int | None = None,
    fps: int | None = None,
    height: int = 480,
) -> Player:
    """Make one self-contained HTML file that plays a run, which the reader can turn and zoom, with a slider of times.

    Unit tokens of dimension 2 and 3 are shown on the circle and the sphere, other tokens in a box of the plane or of
    space. Tokens of more dimensions are projected onto their first three principal axes, and runs of more than 10^5
    points (times multiplied by tokens) are thinned evenly; the page notes both. Between saved times tokens move in
    straight lines, or on the sphere along great circles. The page makes no network requests, works from a disk, and
    respects the preference for a dark page. The bytes of the page are reproducible.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax, jax.numpy as jnp
        >>> x0 = cjx.Sphere().sample(jax.random.key(0), n=32, d=3)
        >>> traj = cjx.simulate(cjx.AttentionField(cjx.SoftmaxAttention(9.0)), x0, jnp.linspace(0.0, 15.0, 61))
        >>> page = cjx.plot.player(traj, "run.html", highlight=0, radius=0.1)  # in a notebook the page shows itself
        >>> page.notes
        ()
        ```

    **Arguments:**

    - `trajectory`: Anything with `.ts` (times,) and `.xs` (times, n, d), or tokens (times, n, d), where d is 2 or more.
        Tokens that are not finite, such as those after an event, are not drawn.
    - `path`: The file, ending in `.html`; None writes no file.
    - `ts`: The save times (times,) if `trajectory` is an array; None counts the frames from 0.
    - `labels`, `colours`, `highlight`, `counts_from`, `size`: As for `circle` and `sphere`.
    - `trail`: True draws trails of tokens, and the whole path of the highlighted token; the page has a switch.
    - `arrows`: Directions by name, as for `sphere`, which are drawn for unit tokens only.
    - `view`: The elevation and azimuth of the eye in degrees; None views the plane from above, and otherwise is as for
        `sphere`.
    - `symbol`: The name of the time on the page, for example "layer".
    - `title`: The title above the picture.
    - `radius`: The radius of `num_clusters`, which counts the clusters of all tokens at each time; None counts no
        clusters.
    - `fps`: The number of saved times per second at speed 1; None plays a run in four to fifteen seconds.
    - `height`: The height of the frame in a notebook, in pixels.

    **Returns:**

    A `Player`, which contains the page as `html` and is displayed by a notebook.

    **Raises:**

    - `ValueError` if an argument does not match the tokens, or the file cannot be written.
    """
    run = frames_of(trajectory, ts)
    check_token_index(highlight, run.xs.shape[1])
    part = shown(run, highlight)
    steps, digits = max(len(part.ts) - 1, 1), digits_between(part.ts)
    palette, indices = None, None
    if labels is not None or colours is not None:
        names = [to_hex(colour) for colour in token_colours(run.xs.shape[1], labels, colours)[part.tokens]]
        palette = sorted(set(names))
        indices = [palette.index(name) for name in names]
    vectors = {name: unit_direction(np.asarray(v), run.xs.shape[2], name) for name, v in (arrows or {}).items()}
    look: dict[str, Any] = {"d": part.xs.shape[2], "kind": part.kind, "size": float(size), "range": part.ranges}
    if view is not None:
        look["elev"], look["azim"] = np.asarray(view, float).tolist()
    data: dict[str, Any] = {
        "n": part.xs.shape[1], "d": part.xs.shape[2], "kind": part.kind, "times": [float(t) for t in part.ts],
        "codes": coded(part.xs), "symbol": symbol,
        # Times in a geometric series would need four digits, so their labels are short instead.
        "digits": None if digits == 4 else digits,
        "clusters": None if radius is None else _counted(run.xs[part.times], radius),
        "highlight": -1 if highlight is None else int(np.flatnonzero(part.tokens == highlight)[0]),
        "trail": trail, "path": trail and highlight is not None, "counts": counts_from or 0,
        # Twenty saved times per second, or as many as keep the run between 4 and 15 seconds.
        "fps": fps or steps / min(15.0, max(4.0, steps / 20)),
        "arrows": [
            {"name": name, "v": (v if part.axes is None else part.axes @ v).tolist()}
            for name, v in vectors.items() if part.kind != "box"
        ],
        "view": look, "palette": palette, "colour": indices,
    }  # fmt: skip
    page = Player(_page(title, data, highlight, part), height, part.notes)
    if path is not None:
        with whole_file(Path(path)) as draft:
            draft.write_bytes(page.html.encode("utf-8"))
    return page


@jax.jit
def _clusters(x: jax.Array, radius: jax.Array) -> jax.Array:
    # A traced token that is not finite has a negative label, which is not counted.
    return jnp.sum(cluster_labels(x, radius) == jnp.arange(x.shape[0]))


def _counted(xs: np.ndarray, radius: float) -> list[int]:
    """The number of clusters at each time, of all tokens and not only of the shown tokens."""
    return [int(_clusters(jnp.asarray(x), jnp.asarray(float(radius)))) for x in xs]


def _page(title: str, data: dict[str, Any], highlight: int | None, part: Shown) -> str:
    """The page from its template; its security policy allows only the scripts and the style of the page."""
    source = files("clusterjax.plot").joinpath("_page")
    read = lambda name: source.joinpath(name).read_text("utf-8")
    style, scene, script = read("colours.css") + read("player.css"), read("scene.js"), read("player.js")
    place = {"sphere": "on the sphere" if data["d"] == 3 else "on the circle", "ball": "in a ball", "box": "in a box"}
    described = f"{data['n']} tokens {place[part.kind]} over time; turn it with the arrow keys."
    key = ""
    if highlight is not None:
        name = "first token" if highlight == 0 else f"token {highlight}"
        key = f'<p class="key"><span></span>{name}</p>\n'
    hashed = lambda text: "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
    parts = {
        "policy": f"default-src 'none'; style-src {hashed(style)}; script-src {hashed(scene)} {hashed(script)}; "
        "base-uri 'none'; form-action 'none'",
        "page_title": html.escape(title or "a run of tokens"), "title": html.escape(title), "style": style,
        "described": html.escape(described), "key": key, "last": str(len(part.ts) - 1),
        "notes": "".join(f"<li>{html.escape(note)}</li>" for note in part.notes),
        # A "<" inside a script could start the tag that ends the script.
        "run": json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        "scene": scene, "script": script,
    }  # fmt: skip
    # One pass ensures that inserted text is not searched for further parts.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], read("player.html"))
