"""The spectra of the V and the Q^T K of each head, and the eigenvectors of V.

Invariants: no (d, d) matrix is formed; everything is computed in double precision on the host; biases and the scales of
norms are left out.
"""

import contextlib
from typing import Any, NamedTuple

import numpy as np

from ..._base.checks import check_integer
from ..._base.summary import short, summary
from ..._observables import product_spectrum, symmetric_part_spectrum
from ..networks.directions import head_matrices
from ..networks.load import Model
from ..networks.network import HeadMatrices
from ..networks.recorded import Recorded
from .table import tabled


# Cholesky's factor, eight times faster than Householder's, squares the condition number: about ten digits are left.
_WELL_CONDITIONED = 1e-3


@tabled("block head", value="block head *", query_key="block head *", beta="block head", order="layer")
class ValueSpectra(NamedTuple):
    """The result of `value_spectra`; a block is a layer with its own weights.

    **Attributes:**

    - `value`: The eigenvalues of $V_h = (W_V W_O)^T$ of each head that need not be zero, (blocks, heads, k), complex,
        in decreasing order of the real part.
    - `query_key`: The eigenvalues of the symmetric part of $B_h$, (blocks, heads, 2k or d), real, in decreasing order.
    - `beta`: The effective inverse temperature of each head, (blocks, heads).
    - `order`: The index of the block of each layer of the network, (layers,).
    """

    value: np.ndarray
    query_key: np.ndarray
    beta: np.ndarray
    order: np.ndarray

    __repr__ = short

    def summary(self) -> str:
        """A summary in a few lines: the mean and the range of each array."""
        return summary(self)


@tabled("direction", eigenvalues="direction", vectors="direction dim")
class Directions(NamedTuple):
    """The result of `value_directions`.

    **Attributes:**

    - `eigenvalues`: The eigenvalues, (top,), complex.
    - `vectors`: The unit eigenvectors, (top, d), complex: `vector @ W_V @ W_O` is the eigenvalue times `vector`.
    """

    eigenvalues: np.ndarray
    vectors: np.ndarray


def value_spectra(model: Model | Recorded) -> ValueSpectra:
    """The spectra of $V_h = (W_V W_O)^T$ and of the symmetric part of the scaled $B_h = W_Q W_K^T$ of each head.

    $V_h$ is (d, d) of rank at most k, the size of a head, and its non-zero eigenvalues are those of the (k, k) product
    $W_O W_V$, because AB and BA share them. The symmetric part of $B_h$ has rank at most 2k: with $[W_Q, W_K] = U R$, U
    orthonormal, its non-zero eigenvalues are those of the symmetric part of $R_Q R_K^T$, which is (2k, 2k). The
    effective beta is $√d ‖½(B_h + B_h^T)‖_F$, as in `effective_beta`: the inverse temperature for tokens of norm √d, as
    a layer norm makes them. Biases and the learnt scales of norms are left out. The spectra are computed in double
    precision on the host.

    **Arguments:**

    - `model`: The model that `load` returned, or what `from_arrays` returned with `weights`.

    **Returns:**

    A `ValueSpectra`.

    **Raises:**

    - `ValueError` if `model` is neither, or its weights were not recorded.

    ??? cite "Source"

        Geshkovski et al., *The emergence of clusters in self-attention dynamics* (2305.05465), Section 6 and the code
        of its figures of ALBERT's heads, which uses the scale 1/√k also for T5, whose scores are unscaled.
    """
    return spectra_of(head_matrices(model))


def spectra_of(matrices: HeadMatrices) -> ValueSpectra:
    """The spectra of these heads."""
    query, key_maps, value, output, scale = matrices[:5]
    d = query.shape[2]
    # One head at a time: a stack would require equal shapes, and the loop is not the bottleneck.
    indices = [(b, h) for b in range(query.shape[0]) for h in range(query.shape[1])]
    values = [product_spectrum(value[at], output[at]) for at in indices]
    forms = [_form_spectrum(query[at], key_maps[at], scale) for at in indices]
    shaped = lambda rows: np.stack(rows).reshape(*query.shape[:2], -1)
    forms = shaped(forms)
    # The Frobenius norm of a symmetric matrix is the root of the sum of its squared eigenvalues.
    beta = np.sqrt(d) * np.linalg.norm(forms, axis=-1)
    return ValueSpectra(shaped(values), forms, beta, matrices.order)


def value_directions(model: Model | Recorded, head: int, *, block: int = 0, top: int = 5) -> Directions:
    """The eigenvectors of $V_h$ with the eigenvalues of largest real part, from the (k, k) product.

    If nothing else acts, the head separates tokens fastest along these eigenvectors, and their eigenvalues determine
    the limits of the flow $e^{tV}$. With $W_V^T W_O^T y = λy$ the eigenvectors are $W_O^T y$. A complex pair belongs to
    the plane that the real and the imaginary part of its eigenvectors span.

    **Arguments:**

    - `model`: The model that `load` returned, or what `from_arrays` returned with `weights`.
    - `head`: The index of the head, from 0.

    **Other arguments:**

    - `block`: The index of the layer, among those with their own weights.
    - `top`: The number of eigenvectors.

    **Returns:**

    A `Directions`. The sign of a real vector and the phase of a complex one are arbitrary.

    **Raises:**

    - `ValueError` if there is no such head or block, or `top` is not from 1 to the size of a head.

    ??? cite "Source"

        Geshkovski et al., *The emergence of clusters in self-attention dynamics* (2305.05465), Theorems 3.1 to 5.1;
        Peat, *Clustering in Transformers*, Section 5, asks if the eigenvectors can be read as words.
    """
    matrices = head_matrices(model)
    blocks, heads, _, k = matrices.value.shape
    for name, number, low, high in (("head", head, 0, heads - 1), ("block", block, 0, blocks - 1), ("top", top, 1, k)):
        check_integer(number, name, least=low, most=high, remedy="choose one of them")
    value, output = matrices.value[block, head], matrices.output[block, head]
    # The transpose is decomposed, since its right eigenvectors y satisfy W_V^T W_O^T y = lambda y.
    decomposition: Any = np.linalg.eig((output @ value).T)
    eigenvalues = decomposition.eigenvalues.astype(np.complex128)
    small = decomposition.eigenvectors.astype(np.complex128)  # (k, k), columns
    # `lexsort` sorts by its last key first: by the real part, then, within a conjugate pair, the positive imaginary
    # part comes first.
    chosen = np.lexsort((-eigenvalues.imag, -eigenvalues.real))[:top]
    vectors = small[:, chosen].T @ output
    # W_O^T may map an eigenvector with eigenvalue 0 to zero, which stays zero.
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return Directions(eigenvalues[chosen], vectors / np.where(lengths > 0, lengths, 1.0))


def _form_spectrum(query: np.ndarray, key_maps: np.ndarray, scale: float) -> Any:
    k = query.shape[1]
    factor = _triangle(np.concatenate([query, key_maps], axis=1))
    return symmetric_part_spectrum(scale * factor[:, :k] @ factor[:, k:].T)


def _triangle(columns: np.ndarray) -> np.ndarray:
    """R with columns = U R, U orthonormal, by Cholesky's factor of the Gram matrix if few digits are lost, or by QR."""
    d, count = columns.shape
    # More columns than rows have no Cholesky factor: their Gram matrix is singular.
    if count <= d:
        with contextlib.suppress(np.linalg.LinAlgError):
            factor = np.linalg.cholesky(columns.T @ columns).T
            # The ratio of the diagonal estimates the conditioning of the columns; if it is small, QR is used below.
            diagonal = np.diag(factor)
            if diagonal.min() > _WELL_CONDITIONED * diagonal.max():
                return factor
    return np.asarray(np.linalg.qr(columns, mode="r"))
