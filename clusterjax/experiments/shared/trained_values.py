"""The V of figures 7 and 8, which has the leading eigenvalues of a trained head."""

from dataclasses import dataclass

import numpy as np

from ... import probe
from ..._base.checks import check_integer, refusal
from ...probe.measures.heads import cases_of
from ..framework.figure import Measured, Settings, Subject
from ..framework.verdict import Number
from .networks import model_of, subject_of
from .sources import UNIFORM


@dataclass(frozen=True)
class TrainedValues:
    """A real V, (3, 3), for each head of a trained network.

    All V are multiplied by one number, `scale`, for which the largest real part of the eigenvalues of the head `head`
    is 1, or -1 if that head repels. A unit of time of the scaled V corresponds to `scale` layers."""

    matrices: np.ndarray  # the scaled V, (heads, 3, 3)
    spectra: list[np.ndarray]  # all eigenvalues of each head, scaled
    head: int  # the head of the pictures, from 0: the head with the largest real part, or the head that was asked for
    provenance: str  # the network and the layer, in words
    scale: float  # the factor
    network: Subject  # the network as the subject of a verdict

    def measured(self, **size: Number | tuple[Number, ...]) -> Measured:
        """The measurement of a run with this V: the eigenvalues of the network, uniform tokens, and the size."""
        words = f"particles with eigenvalues of {self.network.words}"
        return Measured(Subject(self.network.key, words), UNIFORM, size)

    @property
    def value(self) -> np.ndarray:
        """The scaled V of the head of the pictures."""
        return self.matrices[self.head]

    @property
    def raw(self) -> np.ndarray:
        """The unscaled V of all heads, (heads, 3, 3)."""
        return self.matrices / self.scale

    @property
    def top(self) -> np.ndarray:
        """The largest real part of the unscaled eigenvalues of each head, (heads,)."""
        return np.array([float(np.real(spectrum).max()) for spectrum in self.spectra]) / self.scale

    @property
    def repelling(self) -> np.ndarray:
        """True for each head that repels: all eigenvalues of its V have negative real parts, (heads,)."""
        return self.top < 0

    @property
    def cases(self) -> np.ndarray:
        """The case of the theory to which each head belongs, as in `probe.head_signs`, (heads,)."""
        # `cases_of` takes decreasing real parts, and the positive imaginary part of a pair first.
        return cases_of(np.stack([values[np.lexsort((-np.imag(values), -np.real(values)))] for values in self.spectra]))

    @property
    def leading(self) -> int:
        """1 if the eigenvalue of largest real part is real, 2 if it belongs to a conjugate pair."""
        # The blocks of V stand in decreasing order, and a pair is the block [[a, -b], [b, a]].
        return 1 if self.value[0, 1] == 0 else 2

    @property
    def words(self) -> str:
        """The eigenvalues of `value`, as text."""
        eigenvalues = np.linalg.eigvals(self.value)
        ordered = sorted((e for e in eigenvalues if e.imag >= 0), key=lambda e: -e.real)
        return ", ".join(f"{e.real:.3f}" if e.imag == 0 else f"{e.real:.3f} ± {e.imag:.3f}i" for e in ordered)

    @property
    def origin(self) -> str:
        """The origin of these eigenvalues, as a sentence of a caption."""
        return (
            f"These are the three eigenvalues of largest real part of head {self.head + 1} of {self.provenance}, "
            f"divided by the {'modulus of the ' if self.repelling[self.head] else ''}largest real part, which changes "
            f"only the unit of time: a unit of time corresponds to {self.scale:.3g} layers."
        )


def check_head(settings: Settings, layer: int, head: int) -> None:
    """Raise a ValueError unless the checkpoint can be read and has this layer, from 1, and this head, from 1 or 0."""
    model, words = model_of(settings)
    check_integer(layer, "layer", least=1, most=model.num_layers, remedy=f"name one of the layers of {words}")
    check_integer(head, "head", least=0, most=model.num_heads, remedy=f"name one of the heads of {words}")


def trained_values(settings: Settings, layer: int = 1, head: int = 0) -> TrainedValues:
    """The leading eigenvalues of each head of one layer, from 1, of `settings.albert` or the network of the package.
    The head of the pictures is counted from 1; 0 chooses the head with the largest real part."""
    check_head(settings, layer, head)
    model, words = model_of(settings)
    # An ALBERT has one block for all layers.
    order = model.network.order()
    spectra = list(probe.value_spectra(model).value[order[layer - 1]])
    if len(set(order)) > 1:
        words = f"layer {layer} of {words}"
    head = head - 1 if head else int(np.argmax([np.real(e).max() for e in spectra]))
    # The modulus keeps the sign of V where all heads repel.
    largest = abs(float(np.real(spectra[head]).max()))
    scale = 1 / largest if largest > 0 else 1.0
    spectra = [scale * e for e in spectra]
    matrices = np.stack([leading_block(e) for e in spectra])
    return TrainedValues(matrices, spectra, head, words, scale, subject_of(model, words))


def leading_block(eigenvalues: np.ndarray, size: int = 3) -> np.ndarray:
    """A real (size, size) matrix with the eigenvalues of largest real part: real ones on the diagonal, a conjugate pair
    a ± ib as the block [[a, -b], [b, a]]. If only one row is left, pairs are skipped and the next real eigenvalue is
    taken."""
    matrix, filled = np.zeros((size, size)), 0
    # The second key keeps the two eigenvalues of a pair together, as their real parts may differ by rounding errors.
    ordered = sorted(eigenvalues, key=lambda e: (-e.real, -abs(e.imag)))
    # An eigenvalue with an imaginary part below this rounding error counts as real.
    tolerance = 1e-9 * max(abs(e) for e in ordered)
    for e in ordered:
        if abs(e.imag) <= tolerance and filled < size:
            matrix[filled, filled] = e.real
            filled += 1
        # The eigenvalue with a negative imaginary part is skipped: the block holds both eigenvalues of the pair.
        elif e.imag > tolerance and filled + 2 <= size:
            matrix[filled : filled + 2, filled : filled + 2] = [[e.real, -e.imag], [e.imag, e.real]]
            filled += 2
    if filled < size:
        problem = f"they fill {filled} rows"
        raise refusal("eigenvalues", f"fill {size} rows of a real matrix", problem, "pass a whole spectrum")
    return matrix
