"""The heads of trained networks in the atlas: by the leading eigenvalue of V, and by their effective beta.

A head of width d is not a cell: its V has many more eigenvalues, and its Q^T K is no multiple of the identity. What is
placed is which eigenvalue leads, in the row of that case, and the effective beta, in the nearest column.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..._observables import effective_beta
from ..framework.experiment import Settings
from .spectra import BETAS, CAUSAL, FULL, NEGATIVE, PAIR, SIMPLE


# The row of each case of `probe.head_signs`; a head whose V is zero is in none.
ROW_OF_CASE = {"attractive": SIMPLE, "rotating": PAIR, "repulsive": NEGATIVE}
# Of the networks, in their order, and how a caption calls them.
MARKS = {"o": "circles", "s": "squares", "D": "diamonds"}
QUICK = "A quick run leaves out the heads of SmolLM2-135M-Instruct (Q4_1), whose spectra take some twenty seconds."
ABSENT = (
    "SmolLM2-135M-Instruct (Q4_1) is not installed (pip install 'clusterjax[smollm2]'), so that its heads are not "
    "among these."
)


class Heads(NamedTuple):
    """The heads of one network.

    **Attributes:**

    - `name`: Of the network, in a legend.
    - `network`: What it is, in a sentence.
    - `mask`: "full" or "causal", as it attends.
    - `leading`: The eigenvalue of V of largest real part, of each head, (heads,), complex.
    - `cases`: "attractive", "rotating", "repulsive" or "neutral", (heads,).
    - `beta`: The effective inverse temperature, (heads,).
    """

    name: str
    network: str
    mask: str
    leading: np.ndarray
    cases: np.ndarray
    beta: np.ndarray

    def counts(self) -> dict[tuple[str, float, str], int]:
        """How many heads are in each cell that has any."""
        found: dict[tuple[str, float, str], int] = {}
        for case, beta in zip(self.cases, self.beta, strict=True):
            if (row := ROW_OF_CASE.get(str(case))) is not None:
                key = (row, nearest(float(beta)), self.mask)
                found[key] = found.get(key, 0) + 1
        return found


def nearest(beta: float) -> float:
    """The beta of the atlas that is nearest, as a ratio."""
    return BETAS[int(np.argmin(np.abs(np.log(max(beta, 1e-300)) - np.log(BETAS))))]


def heads_of(settings: Settings, say: Callable[[str], None]) -> tuple[tuple[Heads, ...], str]:
    """The heads of the package's ALBERT, SmolLM2-135M-Instruct (Q4_1) and the settings' ALBERT; why some are not."""
    # These need the extra probe, without which the registry has no atlas.
    from ..framework.causal import NAME, SMOLLM2, smollm2
    from ..framework.networks import model_of

    say("taking the spectra of the heads of networks")
    own = settings.albert is None
    model, about = model_of(settings if own else dataclasses.replace(settings, albert=None, heads=None))
    heads, absent = [read_heads("ALBERT of the package", about, FULL, model)], QUICK
    if not settings.quick:
        further = smollm2()
        absent = ABSENT if further is None else ""
        if further is not None:
            heads.append(read_heads(NAME, SMOLLM2.words, CAUSAL, further))
    if not own:
        model, about = model_of(settings)
        name = "PL-BERT (of phonemes)" if about.startswith("PL-BERT") else str(model.name)
        heads.append(read_heads(name, about, FULL, model))
    return tuple(heads), absent


def read_heads(name: str, network: str, mask: str, model: Any) -> Heads:
    """The heads of each block that has weights of its own."""
    from ... import probe

    signs, matrices = probe.head_signs(model), probe.head_matrices(model)
    blocks, heads = signs.case.shape
    beta = [
        effective_beta(matrices.scale * matrices.query[b, h] @ matrices.key[b, h].T)
        for b in range(blocks) for h in range(heads)
    ]  # fmt: skip
    return Heads(name, network, mask, signs.leading.ravel(), signs.case.ravel(), np.array(beta))
