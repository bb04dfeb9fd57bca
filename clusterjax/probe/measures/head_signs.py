r"""The classification of heads by the leading eigenvalue of V, which decides how a head alone moves tokens.

$V_h = (W_V W_O)^\top$ of a head is (d, d) of rank at most k. Of its k eigenvalues that need not be zero, the leading
one has the largest real part, and the theorems depend on it. If it is real and positive, the head attracts: tokens
gather along its eigenvector (2305.05465, Theorem 4.2; on the sphere with V = I, at the first token, 2411.04990, Theorem
4.1). If it is negative, as for V = -I, the head repels: tokens on the sphere spread. For a complex pair there is no
theorem: the first token of causal attention, e^{tV} x / |e^{tV} x|, rotates in the plane of the pair for ever.

Invariants: V includes the scale of the norm through which the head reads, as in `particle_field`; the result is
invariant under rotations of the token space; a case is decided in double precision, beyond rounding error.
"""

from typing import NamedTuple

import numpy as np

from ..._check import check_choice
from ..._observables import product_spectrum
from ..._summary import short, summary
from ..networks.head_matrices import head_matrices
from ..networks.load import Model


CASES = ("attractive", "repulsive", "rotating", "neutral")

# Eigenvalues of products of float64 matrices have errors of about 1e-13 of the largest; weights are float32 or coarser.
_ROUNDING = 1e-9


class HeadSigns(NamedTuple):
    """The result of `head_signs`; a block is a layer with its own weights.

    **Attributes:**

    - `values`: The eigenvalues of V of each head that need not be zero, (blocks, heads, k), complex, in decreasing
        order of the real part; of a conjugate pair, the eigenvalue with positive imaginary part comes first.
    - `case`: "attractive", "repulsive", "rotating" or "neutral" for each head, (blocks, heads).
    - `order`: The index of the block of each layer of the network, (layers,).
    """

    values: np.ndarray
    case: np.ndarray
    order: np.ndarray

    def __repr__(self) -> str:
        return short(self)

    def summary(self) -> str:
        """A summary in a few lines, one for each array."""
        return summary(self)

    @property
    def leading(self) -> np.ndarray:
        """The eigenvalue with the largest real part of each head, (blocks, heads)."""
        return self.values[..., 0]

    def count(self, case: str) -> int:
        """The number of heads of the blocks with the given case.

        **Raises:**

        - `ValueError` if there is no such case.
        """
        return int(np.sum(self.case == check_choice(case, "case", CASES)))


def head_signs(model: Model) -> HeadSigns:
    r"""Classify each head as attracting, repelling or rotating tokens, by the leading eigenvalue of its V.

    A head is *repulsive* if all its eigenvalues have negative real parts. Otherwise it is *rotating* if the leading
    eigenvalues are a complex pair, and *attractive* if the leading eigenvalue is real and positive. It is *neutral* if
    the leading eigenvalue is zero up to rounding. The other d - k eigenvalues of V are zero: the head moves nothing
    along their directions. Where norms act on the input of attention (T5, GPT-2, Llama), V includes the scale s of the
    norm, $V_h = (\mathrm{diag}(s) W_V W_O)^\top$, unlike in `value_spectra`; both leave biases out.

    !!! example

        ```python
        >>> from clusterjax import probe
        >>> signs = probe.head_signs(probe.load())
        >>> [int(head) + 1 for head in (signs.case[0] == "repulsive").nonzero()[0]]
        [2, 4, 5, 7, 8]
        >>> signs.count("attractive"), signs.count("rotating")
        (2, 1)
        ```

    **Arguments:**

    - `model`: The model that `load` returned.

    **Returns:**

    A `HeadSigns`.

    **Raises:**

    - `ValueError` if `model` is not a `Model`.

    ??? cite "Source"

        Geshkovski et al., *The emergence of clusters in self-attention dynamics* (2305.05465), Theorems 3.1 to 5.1;
        Karagodin et al., *Clustering in causal attention masking* (2411.04990), Theorem 4.1 and the conjectures after
        it.
    """
    matrices, scales = head_matrices(model), model.network.norm_scales()
    blocks, heads = matrices.value.shape[:2]
    read = np.ones((blocks, 1)) if scales is None else np.stack(scales)
    spectrum = lambda b, h: product_spectrum(read[b][:, None] * matrices.value[b, h], matrices.output[b, h])
    values = np.stack([np.stack([spectrum(b, h) for h in range(heads)]) for b in range(blocks)])
    return HeadSigns(values, cases_of(values), np.asarray(model.network.order()))


def cases_of(values: np.ndarray) -> np.ndarray:
    """The case of each head from its eigenvalues, of which the leading one comes first."""
    leading, size = values[..., 0], _ROUNDING * np.abs(values).max(axis=-1)
    # Where all eigenvalues are zero, `size` is zero too, and the comparisons must still give "neutral".
    zero, real = np.abs(leading) <= size, np.abs(np.imag(leading)) <= size
    return np.select(
        [zero, np.real(leading) < -size, ~real], ["neutral", "repulsive", "rotating"], default="attractive"
    )  # fmt: skip
