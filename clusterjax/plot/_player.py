"""Players of runs: one HTML file that plays a run without a network."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.colors import to_hex

from .._check import check_number, check_path, refusal, shown as as_shown
from .._observables import cluster_labels
from ._colours import Colours, token_colours
from ._data import Numbers, TrajectoryLike, check_token_index, digits_between, frames_of, real_array
from ._door import door, integer_from
from ._player_data import Shown, coded, shown
from ._save import whole_file


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


def _radius(value: Any, name: str) -> float:
    return check_number(value, name, above=0)


@door(path=_page_file, height=integer_from(160, 10_000), radius=_radius)
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
    seen = shown(run, highlight)
    rgba = None if labels is None and colours is None else token_colours(run.xs.shape[1], labels, colours)
    counted = None if radius is None else _counted(run.xs[seen.times], radius)
    followed = -1 if highlight is None else int(np.flatnonzero(seen.tokens == highlight)[0])
    digits = digits_between(seen.ts)
    # Times in a geometric series would need four digits, so their labels are short instead.
    digits = None if digits == 4 else digits
    data: dict[str, Any] = {
        "n": seen.xs.shape[1], "d": seen.xs.shape[2], "kind": seen.kind, "times": [float(t) for t in seen.ts],
        "codes": coded(seen.xs), "symbol": symbol, "digits": digits, "clusters": counted, "highlight": followed,
        "trail": trail, "path": trail and highlight is not None, "counts": counts_from or 0,
        "fps": fps or _pace(len(seen.ts)), "arrows": _arrows(arrows, seen, run.xs.shape[2]),
        "view": _view(view, seen, size),
    }  # fmt: skip
    page = Player(_page(title, data | _coloured(rgba, seen), highlight, seen), height, seen.notes)
    if path is not None:
        with whole_file(Path(path)) as draft:
            draft.write_bytes(page.html.encode("utf-8"))
    return page


def _pace(times: int) -> float:
    """The number of saved times per second: twenty, or as many as keep the run between 4 and 15 seconds."""
    steps = max(times - 1, 1)
    return steps / min(15.0, max(4.0, steps / 20))


@jax.jit
def _clusters(x: jax.Array, radius: jax.Array) -> jax.Array:
    # A traced token that is not finite has a negative label, which is not counted.
    return jnp.sum(cluster_labels(x, radius) == jnp.arange(x.shape[0]))


def _counted(xs: np.ndarray, radius: float) -> list[int]:
    """The number of clusters at each time, of all tokens and not only of the shown tokens."""
    return [int(_clusters(jnp.asarray(x), jnp.asarray(float(radius)))) for x in xs]


def _coloured(rgba: np.ndarray | None, seen: Shown) -> dict[str, Any]:
    """The colours of the shown tokens as a palette and indices; None for the default colour of the page."""
    if rgba is None:
        return {"palette": None, "colour": None}
    names = [to_hex(one) for one in rgba[seen.tokens]]
    palette = sorted(set(names))
    return {"palette": palette, "colour": [palette.index(name) for name in names]}


def _arrows(arrows: Mapping[str, Numbers] | None, seen: Shown, d: int) -> list[dict[str, Any]]:
    """The unit vectors of the arrows by name, projected if the tokens are projected."""
    if not arrows or seen.kind == "box":
        return []
    found = []
    for name, vector in arrows.items():
        direction = real_array(vector, f"arrows[{name!r}]")
        if direction.shape != (d,) or not np.linalg.norm(direction) > 0:
            rule = f"be a vector of shape ({d},) that is not zero"
            raise refusal(f"arrows[{name!r}]", rule, f"its shape is {direction.shape}", "pass a direction")
        unit = direction / np.linalg.norm(direction)
        found.append({"name": name, "v": [float(v) for v in (unit if seen.axes is None else seen.axes @ unit)]})
    return found


def _view(view: Numbers | None, seen: Shown, size: float | int) -> dict[str, Any]:
    options: dict[str, Any] = {"d": seen.xs.shape[2], "kind": seen.kind, "size": float(size), "range": seen.ranges}
    if view is not None:
        options |= {"elev": float(np.asarray(view)[0]), "azim": float(np.asarray(view)[1])}
    return options


def _page(title: str, data: dict[str, Any], highlight: int | None, seen: Shown) -> str:
    """The page from its template; its security policy allows only the scripts and the style of the page."""
    source = files("clusterjax.plot").joinpath("_page")
    read = lambda name: source.joinpath(name).read_text("utf-8")
    style, scene, script = read("colours.css") + read("player.css"), read("scene.js"), read("player.js")
    place = {"sphere": "on the sphere" if data["d"] == 3 else "on the circle", "ball": "in a ball", "box": "in a box"}
    described = f"{data['n']} tokens {place[seen.kind]} over time; turn it with the arrow keys."
    key = ""
    if highlight is not None:
        name = "first token" if highlight == 0 else f"token {highlight}"
        key = f'<p class="key"><span></span>{name}</p>\n'
    hashed = lambda text: "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
    parts = {
        "policy": f"default-src 'none'; style-src {hashed(style)}; script-src {hashed(scene)} {hashed(script)}; "
        "base-uri 'none'; form-action 'none'",
        "page_title": html.escape(title or "a run of tokens"), "title": html.escape(title), "style": style,
        "described": html.escape(described), "key": key, "last": str(len(seen.ts) - 1),
        "notes": "".join(f"<li>{html.escape(note)}</li>" for note in seen.notes),
        # A "<" inside a script could start the tag that ends the script.
        "run": json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        "scene": scene, "script": script,
    }  # fmt: skip
    # One pass ensures that inserted text is not searched for further parts.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], read("player.html"))
