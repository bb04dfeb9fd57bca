"""Pictures of tokens on the circle and on the sphere."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ._colours import Colours, token_legend
from ._data import Numbers, real_array
from ._door import door, finite, numbers
from ._scene import Scene
from ._style import new_axes
from ._views import AbstractView, CircleView, checked_frame, sphere_view


def _draw(ax: Axes | None, view: AbstractView, x: Numbers, trail: Numbers | None, options: dict[str, Any]) -> Axes:
    tokens = checked_frame(x, view)
    followed = None if trail is None else _check_trail(trail, view.d)
    legend = token_legend(options["highlight"], options["labels"], options["colours"])
    if ax is None:
        # The legend is below the circle and needs additional height.
        ax = new_axes(2.4, 2.7 if legend else 2.4)
    Scene(ax, view, len(tokens), **options).update(tokens, followed)
    if legend:
        ax.legend(handles=legend, loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=2, handletextpad=0.1)
    return ax


def _check_trail(trail: Numbers, d: int) -> np.ndarray:
    path = real_array(trail, "trail")
    if path.ndim != 2 or path.shape[1] != d:
        raise ValueError(
            f"trail must have the shape (times, {d}), but its shape is {path.shape}; "
            "pass the path of one token, such as trajectory.xs[:, 0]."
        )
    return path


@door(x=finite, trail=numbers)
def circle(
    x: Numbers,
    ax: Axes | None = None,
    *,
    labels: Numbers | None = None,
    colours: Colours | None = None,
    highlight: int | None = None,
    trail: Numbers | None = None,
    arrows: Mapping[str, Numbers] | None = None,
    counts_from: int | None = 5,
    size: float | int = 1.0,
) -> Axes:
    """Draw tokens of dimension 2 on the unit circle.

    Markers are translucent, and a number beside a spot with many tokens counts them: 64 tokens on one spot are one
    marker with "×64".

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> angles = jnp.array([0.0, 0.1, 3.0])
        >>> x = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
        >>> ax = cjx.plot.circle(x, labels=cjx.cluster_labels(x, radius=0.2))
        >>> ax.figure.savefig("circle.png")
        ```

    **Arguments:**

    - `x`: Tokens (n, 2), one unit vector per row.
    - `ax`: The Axes to draw on; None makes a figure of width 6 cm.
    - `labels`: Integers (n,), such as from `cluster_labels`: one colour for each cluster, and grey for negative labels.
    - `colours`: Instead of `labels`, one colour, n colours, or n numbers, which are mapped to viridis.
    - `highlight`: The index of a token to draw larger, in red, and with an entry in the legend.
    - `trail`: The path (times, 2) of one token, drawn as a spiral outwards to the circle from the oldest point.
    - `arrows`: Directions (2,) by name, such as the eigenvectors of the value matrix.
    - `counts_from`: The smallest number of tokens on one spot that is written beside the spot; None writes no numbers.
    - `size`: The factor on the diameter of the markers.

    **Returns:**

    The Axes, in units of the radius of the circle.

    **Raises:**

    - `ValueError` if `x` is not (n, 2) or not unit vectors, or another argument does not match `x`.
    """
    options = dict(
        labels=labels, colours=colours, highlight=highlight, arrows=arrows, counts_from=counts_from, size=size
    )
    return _draw(ax, CircleView(), x, trail, options)


@door(x=finite, trail=numbers)
def sphere(
    x: Numbers,
    ax: Axes | None = None,
    *,
    labels: Numbers | None = None,
    colours: Colours | None = None,
    highlight: int | None = None,
    trail: Numbers | None = None,
    arrows: Mapping[str, Numbers] | None = None,
    view: Numbers = (22.0, -55.0),
    counts_from: int | None = 5,
    size: float | int = 1.0,
) -> Axes:
    """Draw tokens of dimension 3 on the unit sphere, with fainter and smaller tokens on the far side.

    The projection is orthographic and computed without 3D axes of matplotlib, so that the outline is a circle, hidden
    parts are known exactly, and vector files are small. `project` returns the coordinates of further points.

    **Arguments:**

    - `x`: Tokens (n, 3), one unit vector per row.
    - `ax`: The plain Axes to draw on; None makes a figure of width 6 cm.
    - `labels`, `colours`, `highlight`, `counts_from`, `size`: As for `circle`.
    - `trail`: The path (times, 3) of one token, drawn along great circles, with older parts paler.
    - `arrows`: Directions (3,) by name, such as the eigenvectors of the value matrix.
    - `view`: The elevation and azimuth of the eye in degrees.

    **Returns:**

    The Axes, in units of the radius of the sphere.

    **Raises:**

    - `ValueError` if `x` is not (n, 3) or not unit vectors, or another argument does not match `x`.
    """
    options = dict(
        labels=labels, colours=colours, highlight=highlight, arrows=arrows, counts_from=counts_from, size=size
    )
    return _draw(ax, sphere_view(view), x, trail, options)
