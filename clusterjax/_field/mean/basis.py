r"""The common interface of the circle and the sphere: harmonics, a grid, transforms between coefficients and values.

**Definition.** Harmonics $Y$ are real and orthonormal with respect to the uniform probability measure $\sigma$. The
coefficients of a measure $\mu$ are $c = \int Y\,d\mu$, so that $d\mu = \sum_k c_k Y_k\,d\sigma$, and those of n
tokens are means of harmonics. The coefficients form a matrix: row l has degree l, in pairs (cosine, sine) by order.

**Invariants.** The first coefficient is the mass. Grids integrate products of four functions of the degree exactly.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float

from ..._custom_types import Tokens


Coefficients = Float[Array, "rows columns"]
"""Those of a density, a row for each degree."""


class Grid(NamedTuple):
    """Points, (M, d); their weights, (M,), with sum one; and unit tangent vectors at each point, (d - 1, M, d)."""

    points: np.ndarray
    weights: np.ndarray
    frame: np.ndarray


class Basis(NamedTuple):
    """The functions for one dimension; each takes the degree first.

    **Arguments:**

    - `area`: The area of the sphere, or the length of the circle.
    - `columns`: The number of coefficients in a row.
    - `grid`: The grid of a degree.
    - `values`: Coefficients to values of the density with respect to the uniform measure, on the grid, (M,).
    - `gradients`: Coefficients to components of the gradient of the density along the frame, (d - 1, M).
    - `divergence`: Components of a flux f to coefficients of minus its divergence, the integrals of
        $\\langle f, \\nabla Y\\rangle$.
    - `integrals`: Values on the grid to coefficients, the integrals of the values times Y.
    - `harmonics`: All harmonics at points, (n, rows, columns).
    """

    area: float
    columns: Callable[[int], int]
    grid: Callable[[int], Grid]
    values: Callable[[int, Array], Float[Array, " M"]]
    gradients: Callable[[int, Array], Float[Array, "frame M"]]
    divergence: Callable[[int, Float[Array, "frame M"]], Array]
    integrals: Callable[[int, Float[Array, " M"]], Array]
    harmonics: Callable[[int, Tokens], Float[Array, "n rows columns"]]
