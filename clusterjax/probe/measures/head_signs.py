r"""Which case of the theory each head is: what the leading eigenvalue of its V says of tokens that it moves alone.

$V_h = (W_V W_O)^\top$ of a head is (d, d) of rank at most k, and the leading one of its k eigenvalues that need not be
zero is that of largest real part. The theorems are sorted by it. Real and positive, it attracts: tokens gather along
its eigenvector (2305.05465, Theorem 4.2; on the sphere with V = I, at the first token, 2411.04990, Theorem 4.1).
Negative, as V = -I, it repels: tokens of the sphere spread. For a complex pair there is no theorem: the first token of
causal attention, which is e^{tV} x / |e^{tV} x|, turns in the plane of the pair for ever.

Invariants: the scale of the norm through which the head reads is part of V, as in `particle_field`; a rotation of the
tokens' space changes nothing; a case is decided in double precision, and by more than rounding.
"""

from typing import NamedTuple

import numpy as np

from ..._check import check_choice
from ..._observables import product_spectrum
from ..._summary import short, summary
from ..networks.head_matrices import head_matrices
from ..networks.load import Model


CASES = ("attractive", "repulsive", "rotating", "neutral")

# Eigenvalues of products of float64 matrices are known to some 1e-13 of the largest; weights are float32 or coarser.
_ROUNDING = 1e-9


class HeadSigns(NamedTuple):
    """The result of `head_signs`; a block is a layer that has weights of its own.

    **Attributes:**

    - `values`: The eigenvalues of each head's V that need not be zero, (blocks, heads, k), complex, the largest real
        part first; of a pair the one of positive imaginary part.
    - `case`: "attractive", "repulsive", "rotating" or "neutral" for each head, (blocks, heads).
    - `order`: Which block each layer of the network is, (layers,).
    """

    values: np.ndarray
    case: np.ndarray
    order: np.ndarray

    def __repr__(self) -> str:
        return short(self)

    def summary(self) -> str:
        """A summary in a few lines: each statistic over texts as mean ± standard error."""
        return summary(self)

    @property
    def leading(self) -> np.ndarray:
        """The eigenvalue of largest real part of each head, (blocks, heads)."""
        return self.values[..., 0]

    def count(self, case: str) -> int:
        """How many heads of the blocks are of this case.

        **Raises:**

        - `ValueError` if there is no such case.
        """
        return int(np.sum(self.case == check_choice(case, "case", CASES)))


def head_signs(model: Model) -> HeadSigns:
    r"""Whether each head attracts, repels or turns tokens, by the leading eigenvalue of its V.

    A head is *repulsive* if all its eigenvalues have negative real parts; else *rotating* if those of largest real part
    are a complex pair, and *attractive* if it is real and positive. It is *neutral* if the leading one is zero but for
    rounding. The d - k further eigenvalues of V are zero: along their directions a head moves nothing. Where norms act
    on what is read (T5, GPT-2, Llama) V holds the scale s of the norm, $V_h = (\mathrm{diag}(s) W_V W_O)^\top$, which
    `value_spectra` leaves out; biases are left out in both.

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
    """The case of each head from its eigenvalues, the leading one first."""
    leading, size = values[..., 0], _ROUNDING * np.abs(values).max(axis=-1)
    # Where everything is zero, `size` is too, and the comparisons with it must still say zero.
    zero, real = np.abs(leading) <= size, np.abs(np.imag(leading)) <= size
    return np.select(
        [zero, np.real(leading) < -size, ~real], ["neutral", "repulsive", "rotating"], default="attractive"
    )  # fmt: skip
