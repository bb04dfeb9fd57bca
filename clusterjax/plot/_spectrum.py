"""Pictures of eigenvalues in the complex plane."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from .._base.checks import as_numbers, check_concrete, refusal, shown
from ._door import door
from ._style import BLUE, GREY, Colour, Numbers, check_size, legend_above, new_axes


@door()
def spectrum(
    eigenvalues: Numbers,
    ax: Axes | None = None,
    *,
    label: str | None = None,
    colour: Colour = BLUE,
    size: float | int = 12.0,
    title: str | None = None,
) -> Axes:
    """Draw eigenvalues as points of the complex plane, with equal units on both axes and lines through 0.

    Further calls on the returned Axes compare spectra.

    **Arguments:**

    - `eigenvalues`: Real or complex numbers (k,); numbers that are not finite are not drawn.
    - `ax`: The Axes to draw on; None makes a square figure.
    - `label`: The name of the eigenvalues in the legend; None adds no entry.
    - `colour`, `size`: The colour of the markers, and their area in square points.
    - `title`: The title above the picture and its legend.

    **Returns:**

    The Axes, whose limits include every spectrum that was drawn.

    **Raises:**

    - `ValueError` if `eigenvalues` does not have one axis, is empty, or has no finite number.
    """
    check_concrete(eigenvalues, "eigenvalues")
    values = as_numbers(eigenvalues, "eigenvalues")
    if values is None:
        problem = f"they are {shown(eigenvalues)}"
        raise refusal("eigenvalues", "be real or complex numbers of shape (k,)", problem, "pass such an array")
    values = np.asarray(values)
    if values.ndim != 1 or values.size == 0 or values.dtype.kind not in "iufc":
        raise ValueError(
            f"eigenvalues must be numbers of shape (k,) with k >= 1, but are of shape {values.shape} and dtype "
            f"{values.dtype}; pass numpy.linalg.eigvals(value) for a matrix."
        )
    values = values.astype(np.complex128)
    values = values[np.isfinite(values)]
    check_size(np.abs(values), "eigenvalues")
    if values.size == 0:
        problem = "none is"
        raise refusal("eigenvalues", "hold a finite number", problem, "look at the matrix that they come from")
    ax = new_axes(2.75, 2.75) if ax is None else ax
    # Further spectra on an Axes keep the lines through 0, and only enlarge the limits.
    first = not ax.collections
    if first:
        ax.axhline(0, color=GREY, linewidth=0.5, zorder=0)
        ax.axvline(0, color=GREY, linewidth=0.5, zorder=0)
        ax.xaxis.set_major_locator(MaxNLocator(5))
        ax.yaxis.set_major_locator(MaxNLocator(5))
        ax.set(xlabel="Re λ", ylabel="Im λ", aspect="equal")
    ax.scatter(values.real, values.imag, s=size, color=colour, alpha=0.75, linewidths=0, label=label, zorder=3)
    # The last term covers a spectrum of zeros.
    reach = 1.08 * max(float(np.abs(values.real).max()), float(np.abs(values.imag).max()), 1e-12)
    if not first:
        reach = max(reach, ax.get_xlim()[1])
    ax.set(xlim=(-reach, reach), ylim=(-reach, reach))
    legend_above(ax, title)
    return ax
