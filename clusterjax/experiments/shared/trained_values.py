"""The V of figures 7 and 8: the leading eigenvalues of a trained head."""

from dataclasses import dataclass

import numpy as np

from ... import probe
from ..._base.checks import check_integer
from ...probe.measures.heads import cases_of
from ..framework.experiment import Settings
from ..framework.verdict import Measured, Number, Subject
from .networks import model_of, subject_of
from .sources import UNIFORM


@dataclass(frozen=True)
class TrainedValues:
    """A real (3, 3) V for each head of a trained model, and where it comes from.

    **Attributes:**

    - `matrices`: (heads, 3, 3), times `scale`.
    - `spectra`: For each head its eigenvalues, times `scale`.
    - `head`: The head that the pictures show: that with the largest real part, or the one that was asked for.
    - `provenance`: What to say of the source.
    - `scale`: What they are multiplied by, the same for all heads, so that that real part is 1, or -1 if V repels: a
        time of 1 stands for so many layers.
    - `network`: The trained model.
    """

    matrices: np.ndarray
    spectra: list[np.ndarray]
    head: int
    provenance: str
    scale: float
    network: Subject

    def measured(self, **size: Number | tuple[Number, ...]) -> Measured:
        """What an experiment with this V states: whose eigenvalues, uniform tokens, and the numbers that were run."""
        words = f"particles with eigenvalues of {self.network.words}"
        return Measured(Subject(self.network.key, words), UNIFORM, size)

    @property
    def value(self) -> np.ndarray:
        """V of the head that is shown."""
        return self.matrices[self.head]

    @property
    def raw(self) -> np.ndarray:
        """The V of all heads as they come, (heads, 3, 3)."""
        return self.matrices / self.scale

    @property
    def top(self) -> np.ndarray:
        """The largest real part of the eigenvalues of each head, as they come, (heads,)."""
        return np.array([float(np.real(one).max()) for one in self.spectra]) / self.scale

    @property
    def repelling(self) -> np.ndarray:
        """Whether V repels: all its eigenvalues have negative real parts, (heads,)."""
        return self.top < 0

    @property
    def cases(self) -> np.ndarray:
        """Which case of the theory each head is, as in `probe.head_signs`, (heads,)."""
        # Of the eigenvalues in decreasing order of their real parts, of a pair the positive imaginary part first.
        return cases_of(np.stack([one[np.lexsort((-np.imag(one), -np.real(one)))] for one in self.spectra]))

    @property
    def leading(self) -> int:
        """1 if the eigenvalue of largest real part is real, 2 if it is a pair: V has its blocks in decreasing order."""
        # `leading_block` writes a pair as [[a, -b], [b, a]], so that a real one has a zero beside it.
        return 1 if self.value[0, 1] == 0 else 2

    @property
    def words(self) -> str:
        """The eigenvalues of that V."""
        eigenvalues = np.linalg.eigvals(self.value)
        ordered = sorted((e for e in eigenvalues if e.imag >= 0), key=lambda e: -e.real)
        return ", ".join(f"{e.real:.3f}" if e.imag == 0 else f"{e.real:.3f} ± {e.imag:.3f}i" for e in ordered)

    @property
    def origin(self) -> str:
        """What these eigenvalues are, for a caption."""
        return (
            f"the three of largest real part of head {self.head + 1} of {self.provenance}, all divided by the "
            f"{'modulus of the ' if self.repelling[self.head] else ''}largest real part, which changes nothing but the "
            f"unit of time: 1 stands for {self.scale:.3g} layers"
        )


def check_head(settings: Settings, layer: int, head: int) -> None:
    """Raise a ValueError unless the network has this layer, from 1, and this head, from 1 or 0 for none in particular.

    **Raises:**

    - `ValueError` also if the checkpoint cannot be read.
    """
    model, words = model_of(settings)
    check_integer(layer, "layer", least=1, most=model.num_layers, remedy=f"name one of the layers of {words}")
    check_integer(head, "head", least=0, most=model.num_heads, remedy=f"name one of the heads of {words}")


def trained_values(settings: Settings, layer: int = 1, head: int = 0) -> TrainedValues:
    """The leading eigenvalues of each head of one layer of `settings.albert`, or of the network of the package.

    **Arguments:**

    - `settings`: As `Experiment.run` gets them.
    - `layer`: The number of the layer, from 1.
    - `head`: The number of the head that is shown, from 1; 0 is the one with the largest real part.

    **Raises:**

    - `ValueError` if the checkpoint cannot be read, or has no such layer or head.
    """
    check_head(settings, layer, head)
    model, words = model_of(settings)
    # The block of that layer; an ALBERT has one for all layers.
    order = model.network.order()
    spectra = list(probe.value_spectra(model).value[order[layer - 1]])
    if len(set(order)) > 1:
        words = f"layer {layer} of {words}"
    # The head whose V acts fastest, so that the picture shows the most.
    head = head - 1 if head else int(np.argmax([np.real(e).max() for e in spectra]))
    # Of the shown head, so that one unit of time serves all heads; abs, as all may repel.
    largest = abs(float(np.real(spectra[head]).max()))
    scale = 1 / largest if largest > 0 else 1.0
    spectra = [scale * e for e in spectra]
    matrices = np.stack([leading_block(e) for e in spectra])
    return TrainedValues(matrices, spectra, head, words, scale, subject_of(model, words))


def leading_block(eigenvalues: np.ndarray, size: int = 3) -> np.ndarray:
    """A real (size, size) matrix with the eigenvalues of largest real part.

    Real eigenvalues stand on the diagonal, a conjugate pair a ± ib as the block [[a, -b], [b, a]]. A pair for which
    only one place is left is passed over for the next real eigenvalue.

    **Raises:**

    - `ValueError` if the spectrum has too few eigenvalues.
    """
    matrix, filled = np.zeros((size, size)), 0
    # By real part; of a conjugate pair, whose real parts agree up to rounding, both stand side by side.
    ordered = sorted(eigenvalues, key=lambda e: (-e.real, -abs(e.imag)))
    # Real up to rounding relative to the largest.
    tolerance = 1e-9 * max(abs(e) for e in ordered)
    for e in ordered:
        if abs(e.imag) <= tolerance and filled < size:
            matrix[filled, filled] = e.real
            filled += 1
        # One of each pair: its conjugate has a negative imaginary part and is passed over.
        elif e.imag > tolerance and filled + 2 <= size:
            matrix[filled : filled + 2, filled : filled + 2] = [[e.real, -e.imag], [e.imag, e.real]]
            filled += 2
    if filled < size:
        raise ValueError(f"eigenvalues must fill {size} places, but they fill {filled}; pass a whole spectrum.")
    return matrix
