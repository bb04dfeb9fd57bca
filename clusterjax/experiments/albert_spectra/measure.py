"""The spectra of a network's heads, what random weights would have, and the words of the eigenvectors of V.

V = value output is d x d of rank k, the size of a head: its k eigenvalues that need not be zero are those of the small
product, k x k. A product of random (k, d) and (d, k) matrices whose entries have variances a and b fills a disc of
radius (a b k d)^(1/2) (Burda, Jarosz, Livan, Nowak, Swiech, 2010); eigenvalues beyond it were made by training. The
symmetric part of Q^T K has rank 2k at most, and by Sylvester's law as many negative eigenvalues as positive ones where
2k <= d.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import probe
from ..framework.experiment import MOST_OF_NETWORK, Settings
from ..framework.networks import Network
from ..framework.parameters import parameter


@dataclass(frozen=True)
class Parameters:
    """What of the figure can be set."""

    draws: int = parameter(99, "the number of random directions for each head", least=19, most=9999)
    layer: int = parameter(1, "the layer whose heads are looked at", least=1, most=MOST_OF_NETWORK)
    top: int = parameter(5, "the number of words at each end of a direction", least=1, most=20)
    outside: float = parameter(
        1.25, "how many times the radius of the disc an eigenvalue counts as outside from", least=1, most=100
    )


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
    """

    head: int
    eigenvalue: float
    beaten: bool
    ends: tuple[list[str], list[str]]
    cosine: float
    drawn: np.ndarray


@dataclass(frozen=True, eq=False)
class Results:
    """All that the figure shows: what is read from the weights of one layer.

    **Attributes:**

    - `value`: The eigenvalues of V, (heads, k), the largest real part first.
    - `forms`: Those of the symmetric part of Q^T K, (heads, 2k or d), the largest first.
    - `beta`: The effective beta, (heads,).
    - `radius`: Of the disc that the eigenvalues of random factors of the same norms fill, (heads,).
    - `untrained`: The effective beta of a head of random weights, as before training.
    - `matrices`: The factors of all heads.
    - `readings`: By head; none where no eigenvalue is real, or symbols have no names.
    - `block`: Which of these factors are those of the layer.
    """

    p: Parameters
    value: np.ndarray
    forms: np.ndarray
    beta: np.ndarray
    radius: np.ndarray
    untrained: float
    matrices: probe.HeadMatrices
    readings: tuple[Reading, ...]
    block: int = 0

    @property
    def leading(self) -> np.ndarray:
        """The eigenvalue of largest modulus of each head, (heads,)."""
        return np.take_along_axis(self.value, np.abs(self.value).argmax(axis=1)[:, None], axis=1)[:, 0]

    @property
    def dominant(self) -> np.ndarray:
        """Whether it is real, positive, and of larger modulus than all others, (heads,)."""
        # Simple: the largest modulus surely exceeds the second.
        size = np.sort(np.abs(self.value), axis=1)
        apart = size[:, -1] > (1 + 1e-9) * size[:, -2] if size.shape[1] > 1 else np.ones(len(size), bool)
        return apart & real(self.leading, size[:, -1]) & (np.real(self.leading) > 0)

    @property
    def rightmost(self) -> np.ndarray:
        """Whether that of largest real part is real and positive, (heads,)."""
        return real(self.value[:, 0], np.abs(self.leading)) & (np.real(self.value[:, 0]) > 0)

    def form_along(self, head: int) -> float:
        """<Qv, Kv>, v the eigenvector of the leading eigenvalue."""
        query, to, value, output = (one[self.block, head] for one in self.matrices[:4])
        # V = (value output)^T in rows has rank k; its eigenvectors are those of the small product, taken to d
        # dimensions.
        small: Any = np.linalg.eig((output @ value).T)
        # The eigenvector of the small product, taken through `output` to d dimensions.
        v = (small.eigenvectors[:, np.abs(small.eigenvalues).argmax()].T @ output).real
        return float((v @ query) @ (v @ to))


def real(eigenvalues: np.ndarray, size: Any) -> np.ndarray:
    """Whether they are real, up to rounding relative to `size`."""
    return np.abs(np.imag(eigenvalues)) <= 1e-9 * size


def measure(p: Parameters, network: Network, settings: Settings, say: Callable[[str], None]) -> Results:
    """The spectra of a network."""
    say(f"taking the spectra of {network.model.num_heads} heads")
    return spectra_of(network, settings.seed, p)


def spectra_of(network: Network, seed: int, p: Parameters = Parameters()) -> Results:
    """The spectra of one layer, the first if `p` does not say; the layers of an ALBERT usually share their weights.

    The disc: the largest modulus of the eigenvalues of a product of random (k, d) and (d, k)
    matrices with entries of variances a and b comes to the root of a b k d (Burda, Jarosz, Livan, Nowak and Swiech,
    2010).
    """
    spectra, matrices = probe.value_spectra(network.model), probe.head_matrices(network.model)
    block = network.model.network.order()[p.layer - 1]
    # Frobenius norms: k d a and k d b are their squares.
    norms = np.linalg.norm(matrices.value[block], axis=(1, 2)) * np.linalg.norm(matrices.output[block], axis=(1, 2))
    # One generator for all heads, in their order.
    rng = np.random.default_rng(seed)
    heads = range(network.model.num_heads)
    readings = [_read(p, network, head, block, matrices.output[block, head], rng) for head in heads]
    return Results(
        p,
        spectra.value[block],
        spectra.query_key[block],
        spectra.beta[block],
        norms / np.sqrt(np.prod(matrices.value.shape[2:])),
        untrained_beta(network.model),
        matrices,
        tuple(reading for reading in readings if reading is not None),
        block,
    )


def untrained_beta(model: probe.Model) -> float:
    r"""The root mean square of the effective beta of a head with random weights, as before training.

    With entries of Q and K of the standard deviations $q$ and $k$, and r of them to a token, $\sqrt d$ times the
    Frobenius norm of the symmetric part of $QK^\top$ has the mean square $q^2 k^2 r d^2 (d + 1) / 2$.

    The deviations are those of `transformers`.
    """
    matrices, sizes = probe.head_matrices(model), model.network.sizes
    d, r = matrices.query.shape[2:]
    # T5 draws the weights of Q with (d r)^(-1/2) and those of K with d^(-1/2), others both with one standard deviation.
    both = 1 / (d * np.sqrt(r)) if isinstance(sizes, probe.T5Sizes) else sizes.spread**2
    return float(matrices.scale * both * d * np.sqrt(r * (d + 1) / 2))


def _read(
    p: Parameters, network: Network, head: int, block: int, output: np.ndarray, rng: np.random.Generator
) -> Reading | None:
    if network.names is None and network.model.tokenizer is None:
        return None
    # All of them, the largest real part first.
    directions = probe.value_directions(network.model, head, block=block, top=len(output))
    real_ones = np.flatnonzero(real(directions.eigenvalues, np.abs(directions.eigenvalues).max()))
    if not len(real_ones):
        return None
    vector = np.real(directions.vectors[real_ones[0]])
    # An eigenvector and its opposite are the same eigenvector.
    ends, cosines = _nearest(network, p.top, np.stack([vector, -vector]))
    # Random combinations of the rows of `output`: directions that the head can write.
    drawn = rng.normal(size=(p.draws, len(output))) @ output
    return Reading(
        head,
        float(np.real(directions.eigenvalues[real_ones[0]])),
        bool(real_ones[0] > 0),
        (ends[0], ends[1]),
        float(cosines.max()),
        # Both ends here too, and the larger cosine of the two.
        _nearest(network, p.top, np.concatenate([drawn, -drawn]))[1].reshape(2, p.draws).max(axis=0),
    )


def _nearest(network: Network, top: int, vectors: np.ndarray) -> tuple[list[list[str]], np.ndarray]:
    """The words nearest to each vector, and the cosine of the nearest; ids without a name are passed over."""
    names = network.names
    if names is None:
        near = probe.nearest_words(network.model, vectors, top=top)
        assert near.words is not None
        return near.words, near.cosines[:, 0]
    # All words, as ids without a name are passed over below.
    near = probe.nearest_words(network.model, vectors, top=network.model.network.sizes.vocab_size)
    named = np.isin(near.token_ids, list(names))
    rows = [ids[known][:top] for ids, known in zip(near.token_ids, named, strict=True)]
    return [[names[int(i)] for i in row] for row in rows], np.where(named, near.cosines, -np.inf).max(axis=1)
