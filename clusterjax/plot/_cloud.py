"""Pictures of tokens of R^2 and R^3."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes

from .._space import Euclidean
from ._colours import Colours, token_legend
from ._data import Limit, Numbers, real_array
from ._door import above_zero, door, finite, numbers
from ._scene import Scene
from ._space_views import outline_of, scaled, view_of
from ._style import new_axes


@door(x=finite, trail=numbers, reach=above_zero)
def cloud(
    x: Numbers,
    ax: Axes | None = None,
    *,
    limit: Limit | None = None,
    reach: float | int | None = None,
    labels: Numbers | None = None,
    colours: Colours | None = None,
    highlight: int | None = None,
    trail: Numbers | None = None,
    arrows: Mapping[str, Numbers] | None = None,
    view: Numbers = (22.0, -55.0),
    counts_from: int | None = 5,
    size: float | int = 1.0,
) -> Axes:
    """Draw tokens of R^2 in the plane, or tokens of R^3 in a box, with ticks, in front of their limit shape.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> z = jnp.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [1.0, 0.0]])
        >>> end = cjx.limit_shape(z, cjx.RescaledField(cjx.SoftmaxAttention(1.0)))
        >>> ax = cjx.plot.cloud(z, limit=end, labels=end.labels)
        >>> ax.figure.savefig("polytope.png")
        ```

    **Arguments:**

    - `x`: Tokens (n, d) with d = 2 or 3.
    - `ax`: The plain Axes to draw on; None makes a figure of width 6 cm.
    - `limit`: The shape behind the tokens: the result of `limit_shape`, or lines, each (points, d).
    - `reach`: The picture shows coordinates from -`reach` to `reach`; None leaves a margin around the tokens.
    - `labels`, `colours`, `highlight`, `arrows`, `counts_from`, `size`: As for `circle`; arrows start in the middle.
    - `trail`: The path (times, d) of one token.
    - `view`: The elevation and azimuth of the eye in degrees, for tokens of R^3.

    **Returns:**

    The Axes, whose coordinates differ from those of the tokens, which the ticks show.

    **Raises:**

    - `ValueError` if `x` is not (n, 2) or (n, 3), or another argument does not match `x`.
    """
    tokens = real_array(x, "x")
    if tokens.ndim != 2 or len(tokens) < 1:
        raise ValueError(f"x must have the shape (n, 2) or (n, 3), but its shape is {tokens.shape}; pass tokens.")
    path = np.empty((0, tokens.shape[1])) if trail is None else real_array(trail, "trail")
    if path.ndim != 2 or path.shape[1] != tokens.shape[1]:
        raise ValueError(
            f"trail must have the shape (times, {tokens.shape[1]}), but its shape is {path.shape}; "
            "pass the path of one token, such as trajectory.xs[:, 0]."
        )
    shown = np.concatenate([tokens, path])
    if reach is not None:
        shown = np.stack([np.full(tokens.shape[1], -reach), np.full(tokens.shape[1], reach)])
    eye = view_of(shown, view, "x", Euclidean())
    legend = token_legend(highlight, labels, colours)
    ax = new_axes(2.4, 2.7 if legend else 2.4) if ax is None else ax
    scene = Scene(
        ax, eye, len(tokens), labels=labels, colours=colours, highlight=highlight, arrows=arrows,
        counts_from=counts_from, size=size, outline=outline_of(limit, eye),
    )  # fmt: skip
    scene.update(scaled(tokens, eye, "x"), scaled(path, eye, "trail") if len(path) else None)
    if legend:
        ax.legend(handles=legend, loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=2, handletextpad=0.1)
    return ax
