r"""The growth rates of small perturbations of a stationary density, by the order of their rotation about its axis.

**Algorithm.** A perturbation $\eta$ of a stationary $\mu$ obeys $\dot\eta = T\Delta\eta - \nabla\cdot(\eta\,v[\mu]) -
\nabla\cdot(\mu\,v'\eta)$, where $v'\eta$ is the gradient of $Z[\eta]/\beta$ for unnormalised attention, and of
$Z[\eta]/(\beta Z[\mu])$ for softmax. A Galerkin projection on the harmonics of one order gives a matrix, whose entries
are integrals over z. Its eigenvalues are real for a gradient flow; otherwise the real part counts.

**Invariants.** Degree zero is left out, because mass is conserved. A rotated density is stationary too, so that order 1
has the eigenvalue zero; the eigenvalue nearest to zero is removed.
"""

import numpy as np
from jaxtyping import Float

from ._zonal import nodes, table


def growth(
    moments: np.ndarray,
    temperature: float,
    strengths: np.ndarray,
    numbers: np.ndarray,
    beta: float | None,
    d: int,
    count: int,
    order: int,
    density: np.ndarray,
) -> Float[np.ndarray, "degrees degrees"]:
    """The matrix of the perturbations of order `order`, from degree max(order, 1) to the highest.

    **Arguments:**

    - `moments`, `density`: The moments of the stationary state from degree 1, and its density at the nodes.
    - `strengths`, `numbers`, `beta`: As in `Equations`, as NumPy arrays.
    """
    degree = len(strengths)
    _, weights = nodes(count, d)
    zonal, own = table(count, degree, d, 0), table(count, degree, d, order)
    keep = slice(1, None) if order == 0 else slice(None)
    values, along, across = (part[:, keep] for part in own)
    l = np.arange(max(order, 1), degree + 1)
    scaled = np.sqrt(numbers) * strengths * moments
    force = zonal.along[:, 1:] @ scaled
    pull = strengths[l - 1]
    if beta is None:
        slope, turn = along * pull, across * pull
    else:
        # This is the gradient of the quotient of Z of the perturbation and Z of the density.
        mass = 1 + beta * (zonal.values[:, 1:] @ scaled)
        slope = (along / mass[:, None] - beta * values * (force / mass**2)[:, None]) * pull
        turn = across / mass[:, None] * pull
        force = force / mass
    # `moved` is the drift of the perturbation, `driven` that of the density in the field of the perturbation.
    moved = along.T @ ((weights * force)[:, None] * values)
    driven = along.T @ ((weights * density)[:, None] * slope) + across.T @ ((weights * density)[:, None] * turn)
    return moved + driven - temperature * np.diag(l * (l + d - 2.0))


def leading(matrix: np.ndarray, rotation: bool) -> float:
    """The largest real part of an eigenvalue, without the eigenvalue of the rotation if `rotation`."""
    found = np.linalg.eigvals(matrix)
    if rotation:
        found = np.delete(found, np.argmin(np.abs(found)))
    return float(np.max(found.real))
