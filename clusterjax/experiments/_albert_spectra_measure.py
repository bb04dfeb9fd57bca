"""The spectra of a network's heads, what random weights would have, and the words of the eigenvectors of V."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import probe
from ._networks import Network


TOP = 5  # words at each end of a direction
DRAWS = 99  # random directions for each head


@dataclass(frozen=True, eq=False)
class Reading:
    """The real eigenvector of a head's V with the largest real eigenvalue, as words.

    **Attributes:**

    - `head`: From 0.
    - `eigenvalue`: The real one.
    - `beaten`: Whether a pair of complex ones has a larger real part.
    - `ends`: The words nearest to the eigenvector, and to its opposite.
    - `cosine`: The largest cosine with a word, at either end.
    - `drawn`: The same for random directions that the head writes, (draws,).

    Source: this library.
    """

    head: int
    eigenvalue: float
    beaten: bool
    ends: tuple[list[str], list[str]]
    cosine: float
    drawn: np.ndarray


@dataclass(frozen=True, eq=False)
class Spectra:
    """What is read from the weights of one layer.

    **Attributes:**

    - `value`: The eigenvalues of V, (heads, k), the largest real part first.
    - `forms`: Those of the symmetric part of Q^T K, (heads, 2k or d), the largest first.
    - `beta`: The effective beta, (heads,).
    - `radius`: Of the disc that the eigenvalues of random factors of the same norms fill, (heads,).
    - `untrained`: The effective beta of a head of random weights, as before training.
    - `matrices`: The factors of all heads.
    - `readings`: By head; none where no eigenvalue is real, or symbols have no names.

    Source: this library.
    """

    value: np.ndarray
    forms: np.ndarray
    beta: np.ndarray
    radius: np.ndarray
    untrained: float
    matrices: probe.HeadMatrices
    readings: tuple[Reading, ...]

    @property
    def leading(self) -> np.ndarray:
        """The eigenvalue of largest modulus of each head, (heads,)."""
        return np.take_along_axis(self.value, np.abs(self.value).argmax(axis=1)[:, None], axis=1)[:, 0]

    @property
    def dominant(self) -> np.ndarray:
        """Whether it is real, positive, and of larger modulus than all others, (heads,)."""
        size = np.sort(np.abs(self.value), axis=1)
        apart = size[:, -1] > (1 + 1e-9) * size[:, -2] if size.shape[1] > 1 else np.ones(len(size), bool)
        return apart & real(self.leading, size[:, -1]) & (np.real(self.leading) > 0)

    @property
    def rightmost(self) -> np.ndarray:
        """Whether that of largest real part is real and positive, (heads,)."""
        return real(self.value[:, 0], np.abs(self.leading)) & (np.real(self.value[:, 0]) > 0)

    def form_along(self, head: int) -> float:
        """<Qv, Kv>, v the eigenvector of the leading eigenvalue."""
        query, key, value, output = (one[0, head] for one in self.matrices[:4])
        found: Any = np.linalg.eig((output @ value).T)
        v = (found.eigenvectors[:, np.abs(found.eigenvalues).argmax()].T @ output).real
        return float((v @ query) @ (v @ key))


def real(eigenvalues: np.ndarray, size: Any) -> np.ndarray:
    """Whether they are real, up to rounding relative to `size`."""
    return np.abs(np.imag(eigenvalues)) <= 1e-9 * size


def spectra_of(found: Network, seed: int) -> Spectra:
    """The spectra of the first layer that has weights of its own; of an ALBERT that is usually the only one.

    Source: this library. The disc: the largest modulus of the eigenvalues of a product of random (k, d) and (d, k)
    matrices with entries of variances a and b comes to the root of a b k d (Burda, Jarosz, Livan, Nowak and Swiech,
    2010).
    """
    spectra, matrices = probe.value_spectra(found.model), probe.head_matrices(found.model)
    norms = np.linalg.norm(matrices.value[0], axis=(1, 2)) * np.linalg.norm(matrices.output[0], axis=(1, 2))
    rng = np.random.default_rng(seed)
    readings = [_read(found, head, matrices.output[0, head], rng) for head in range(found.model.num_heads)]
    return Spectra(
        spectra.value[0],
        spectra.query_key[0],
        spectra.beta[0],
        norms / np.sqrt(np.prod(matrices.value.shape[2:])),
        untrained_beta(found.model),
        matrices,
        tuple(reading for reading in readings if reading is not None),
    )


def untrained_beta(model: probe.Model) -> float:
    r"""The root mean square of the effective beta of a head with random weights, as before training.

    With entries of Q and K of the standard deviations $q$ and $k$, and r of them to a token, $\sqrt d$ times the
    Frobenius norm of the symmetric part of $QK^\top$ has the mean square $q^2 k^2 r d^2 (d + 1) / 2$.

    Source: this library; the deviations are those of `transformers`.
    """
    matrices, sizes = probe.head_matrices(model), model.network.sizes
    d, r = matrices.query.shape[2:]
    both = sizes.spread**2 if isinstance(sizes, probe.AlbertSizes) else 1 / (d * np.sqrt(r))
    return float(matrices.scale * both * d * np.sqrt(r * (d + 1) / 2))


def _read(found: Network, head: int, output: np.ndarray, rng: np.random.Generator) -> Reading | None:
    if found.names is None and found.model.tokenizer is None:
        return None
    directions = probe.value_directions(found.model, head, top=len(output))
    those = np.flatnonzero(real(directions.eigenvalues, np.abs(directions.eigenvalues).max()))
    if not len(those):
        return None
    vector = np.real(directions.vectors[those[0]])
    ends, cosines = _nearest(found, np.stack([vector, -vector]))
    drawn = rng.normal(size=(DRAWS, len(output))) @ output
    return Reading(
        head,
        float(np.real(directions.eigenvalues[those[0]])),
        bool(those[0] > 0),
        (ends[0], ends[1]),
        float(cosines.max()),
        _nearest(found, np.concatenate([drawn, -drawn]))[1].reshape(2, DRAWS).max(axis=0),
    )


def _nearest(found: Network, vectors: np.ndarray) -> tuple[list[list[str]], np.ndarray]:
    """The words nearest to each vector, and the cosine of the nearest; ids without a name are passed over."""
    names = found.names
    if names is None:
        near = probe.nearest_words(found.model, vectors, top=TOP)
        assert near.words is not None
        return near.words, near.cosines[:, 0]
    near = probe.nearest_words(found.model, vectors, top=found.model.network.sizes.vocab_size)
    named = np.isin(near.token_ids, list(names))
    rows = [ids[known][:TOP] for ids, known in zip(near.token_ids, named, strict=True)]
    return [[names[int(i)] for i in row] for row in rows], np.where(named, near.cosines, -np.inf).max(axis=1)
