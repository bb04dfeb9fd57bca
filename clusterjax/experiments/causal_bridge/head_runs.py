"""What particles do that one head moves: how many clusters are left, by the case that the head is.

As in figure 7 a head stands for the three eigenvalues of largest real part of its V; here they are divided by the size
of the leading one, so that time is counted in its units, and Q = K = I. A run is causal attention on the sphere from
uniform tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from ... import probe
from ..framework.ensemble import count_clusters, draw_starts, run_ensemble
from ..framework.trained_values import leading_block


D, TIME, RADIUS = 3, 15.0, 0.1
STARTS = 4  # for each head
SYSTEMS = 96  # in a program


@dataclass(frozen=True, eq=False)
class HeadRuns:
    """The heads of one network.

    **Attributes:**

    - `name`: Of the network.
    - `signs`: Their cases.
    - `clusters`: The mean over starts of the clusters that are left, (blocks, heads).
    - `n`: Of so many tokens.
    """

    name: str
    signs: probe.HeadSigns
    clusters: np.ndarray
    n: int

    def of(self, case: str) -> np.ndarray:
        """The clusters of the heads of a case."""
        return self.clusters[self.signs.case == case]


def head_runs(
    name: str, model: probe.Model, seed: int, n: int, beta: float, say: Callable[[str], None], starts: int = STARTS
) -> HeadRuns:
    """Each head of each block with weights of its own, from the same few starts."""
    signs = probe.head_signs(model)
    say(f"simulating the {signs.case.size} heads of {name}")
    spectra = signs.values.reshape(-1, signs.values.shape[-1])
    # A head without a leading eigenvalue moves nothing.
    sizes = np.where(np.abs(spectra[:, 0]) > 0, np.abs(spectra[:, 0]), 1.0)
    forms = np.stack([leading_block(one / size, D) for one, size in zip(spectra, sizes, strict=True)])
    x0 = np.asarray(draw_starts(seed, starts, n, D))
    head, start = (part.ravel() for part in np.indices((len(forms), starts)))
    counts = np.empty(len(head))
    for first in range(0, len(head), SYSTEMS):
        # The last batch is filled up with copies of its first system: another shape would compile anew.
        rows = np.arange(first, first + SYSTEMS)
        rows = np.where(rows < len(head), rows, first)
        run = run_ensemble(jnp.asarray(x0[start[rows]]), np.array([0.0, TIME]), beta=beta, value=forms[head[rows]])
        found = np.asarray(count_clusters(run.xs[:, -1:], jnp.asarray(RADIUS)))[:, 0]
        counts[first : first + SYSTEMS] = found[: len(head) - first]
    clusters = counts.reshape(len(forms), starts).mean(axis=1)
    return HeadRuns(name, signs, clusters.reshape(signs.case.shape), n)
