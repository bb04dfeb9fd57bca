"""What the heads do along their eigenvectors: spectra of V and of Q^T K, and their directions."""

import contextlib
from typing import Any, NamedTuple

import numpy as np

from .._check import check_integer
from .._observables import product_spectrum, symmetric_part_spectrum
from ._load import Model
from ._matrices import head_matrices


# Cholesky's factor, eight times faster than Householder's, squares the condition: some ten digits are left.
_WELL_CONDITIONED = 1e-3


class ValueSpectra(NamedTuple):
    """What `value_spectra` returns; a block is a layer that has weights of its own.

    **Attributes:**

    - `value`: The eigenvalues of each head's $V_h = (W_V W_O)^T$ that need not be zero, (blocks, heads, k), complex,
        the largest real part first.
    - `query_key`: Those of the symmetric part of $B_h$, (blocks, heads, 2k or d), real, the largest first.
    - `beta`: The effective inverse temperature of each head, (blocks, heads).
    - `order`: Which block each layer of the network is, (layers,).

    Source: this library.
    """

    value: np.ndarray
    query_key: np.ndarray
    beta: np.ndarray
    order: np.ndarray


class Directions(NamedTuple):
    """What `value_directions` returns.

    **Attributes:**

    - `eigenvalues`: (top,), complex.
    - `vectors`: Of unit length, (top, d), complex: `vector @ W_V @ W_O` is the eigenvalue times `vector`.

    Source: this library.
    """

    eigenvalues: np.ndarray
    vectors: np.ndarray


def value_spectra(model: Model) -> ValueSpectra:
    r"""The spectra of $V_h = (W_V W_O)^\top$ and of the symmetric part of $B_h = W_Q W_K^\top$ scaled, for each head.

    $V_h$ is (d, d) of rank at most k, the size of a head, and its non-zero eigenvalues are those of the (k, k) product
    $W_O W_V$. The symmetric part of $B_h$ is of rank at most 2k: with $[W_Q, W_K] = U R$, U orthonormal, its non-zero
    eigenvalues are those of the symmetric part of $R_Q R_K^\top$, which is (2k, 2k). The effective beta is
    $\sqrt d\,\|\tfrac12(B_h + B_h^\top)\|_F$, as in `effective_beta`: the inverse temperature for tokens of the
    length $\sqrt d$ that a layer norm gives them. Biases, and what a norm has learnt, are left out. In double
    precision, on the host.

    **Arguments:**

    - `model`: What `load` returned.

    **Returns:**

    A `ValueSpectra`.

    ??? cite "Source"

        Geshkovski et al., *The emergence of clusters in self-attention dynamics* (2305.05465), Section 6 and the code
        of its figures of ALBERT's heads, which has the scale $1/\sqrt k$ also for T5, whose scores have none. The small
        products: this library.
    """
    query, key, value, output, scale = head_matrices(model)
    d = query.shape[2]
    each = [(b, h) for b in range(query.shape[0]) for h in range(query.shape[1])]
    values = [product_spectrum(value[at], output[at]) for at in each]
    forms = [_form_spectrum(query[at], key[at], scale) for at in each]
    shaped = lambda rows: np.stack(rows).reshape(*query.shape[:2], -1)
    forms = shaped(forms)
    beta = np.sqrt(d) * np.linalg.norm(forms, axis=-1)
    return ValueSpectra(shaped(values), forms, beta, np.asarray(model.network.order()))


def value_directions(model: Model, head: int, *, block: int = 0, top: int = 5) -> Directions:
    r"""The eigenvectors of $V_h$ with the eigenvalues of largest real part, from the (k, k) product.

    Along them the head moves tokens furthest apart from all others if nothing else acts; the theory of $e^{tV}$ sorts
    its limits by them. With $W_V^\top W_O^\top y = \lambda y$ they are $W_O^\top y$. A complex pair spans a plane: take
    the real and the imaginary part.

    **Arguments:**

    - `model`: What `load` returned.
    - `head`: Which head, from 0.

    **Other arguments:**

    - `block`: Which of the layers that have weights of their own.
    - `top`: How many.

    **Returns:**

    A `Directions`. The sign of a vector, and the phase of a complex one, mean nothing.

    **Raises:**

    - `ValueError` if there is no such head or block, or `top` is not from 1 to the size of a head.

    ??? cite "Source"

        Geshkovski et al., *The emergence of clusters in self-attention dynamics* (2305.05465), Theorems 3.1 to 5.1;
        that they can be read as words is asked in Peat, *Clustering in Transformers*, Section 5.
    """
    matrices = head_matrices(model)
    blocks, heads, _, k = matrices.value.shape
    for name, number, low, high in (("head", head, 0, heads - 1), ("block", block, 0, blocks - 1), ("top", top, 1, k)):
        check_integer(number, name, least=low, most=high, remedy="choose one of them")
    value, output = matrices.value[block, head], matrices.output[block, head]
    found: Any = np.linalg.eig((output @ value).T)
    eigenvalues, small = found.eigenvalues.astype(np.complex128), found.eigenvectors.astype(np.complex128)
    chosen = np.lexsort((-eigenvalues.imag, -eigenvalues.real))[:top]
    vectors = small[:, chosen].T @ output
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return Directions(eigenvalues[chosen], vectors / np.where(lengths > 0, lengths, 1.0))


def _form_spectrum(query: np.ndarray, key: np.ndarray, scale: float) -> Any:
    k = query.shape[1]
    factor = _triangle(np.concatenate([query, key], axis=1))
    return symmetric_part_spectrum(scale * factor[:, :k] @ factor[:, k:].T)


def _triangle(columns: np.ndarray) -> np.ndarray:
    """R with columns = U R, U orthonormal; from the products of the columns where that loses few digits."""
    d, count = columns.shape
    if count <= d:
        with contextlib.suppress(np.linalg.LinAlgError):
            factor = np.linalg.cholesky(columns.T @ columns).T
            diagonal = np.diag(factor)
            if diagonal.min() > _WELL_CONDITIONED * diagonal.max():
                return factor
    return np.asarray(np.linalg.qr(columns, mode="r"))
