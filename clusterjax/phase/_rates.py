r"""How fast small perturbations of a stationary density grow, by the order in which they turn about its axis.

**Algorithm.** A perturbation $\eta$ of a stationary $\mu$ obeys $\dot\eta = T\Delta\eta - \nabla\cdot(\eta\,v[\mu]) -
\nabla\cdot(\mu\,v'\eta)$, $v'\eta$ the gradient of $Z[\eta]/\beta$ for unnormalised attention, and of
$Z[\eta]/(\beta Z[\mu])$ for softmax. Tested with the harmonics of one order it is a matrix (Galerkin), whose entries
are integrals over z. Eigenvalues are real where the flow is one of a gradient; of others the real part counts.

**Invariants.** Mass is no perturbation: degree zero is left out. A rotation of the density is stationary too, so that
order 1 has the eigenvalue zero, which is taken out: it is the one nearest to zero.
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
    """The matrix of perturbations of this order, from degree max(order, 1) to the highest.

    **Arguments:**

    - `moments`, `density`: Of the stationary state: from degree 1 on, and at the nodes.
    - `strengths`, `numbers`, `beta`: As in `Equations`, on the host.
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
        # The gradient of a quotient: Z of the perturbation over that of the density.
        mass = 1 + beta * (zonal.values[:, 1:] @ scaled)
        slope = (along / mass[:, None] - beta * values * (force / mass**2)[:, None]) * pull
        turn = across / mass[:, None] * pull
        force = force / mass
    # Drift of the perturbation, and of the density in the field of the perturbation.
    moved = along.T @ ((weights * force)[:, None] * values)
    driven = along.T @ ((weights * density)[:, None] * slope) + across.T @ ((weights * density)[:, None] * turn)
    return moved + driven - temperature * np.diag(l * (l + d - 2.0))


def leading(matrix: np.ndarray, rotation: bool) -> float:
    """The largest real part of its eigenvalues, that of the rotation taken out."""
    found = np.linalg.eigvals(matrix)
    if rotation:
        found = np.delete(found, np.argmin(np.abs(found)))
    return float(np.max(found.real))
