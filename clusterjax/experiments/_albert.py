"""The V of figures 7 and 8: the leading eigenvalues of a trained head."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ._checkpoint import bundled_spectra, leading_block, value_spectra
from ._experiment import Settings


@dataclass(frozen=True)
class TrainedValues:
    """A real (3, 3) V for each head of a trained model, and where it comes from.

    **Attributes:**

    - `matrices`: (heads, 3, 3).
    - `spectra`: For each head its eigenvalues.
    - `head`: The head with the largest real part, which the pictures show.
    - `provenance`: What to say of the source.
    - `sha256`: Of the file of weights.
    """

    matrices: np.ndarray
    spectra: list[np.ndarray]
    head: int
    provenance: str
    sha256: str

    @property
    def value(self) -> np.ndarray:
        """V of the head that is shown."""
        return self.matrices[self.head]

    @property
    def leading(self) -> int:
        """1 if the eigenvalue of largest real part is real, 2 if it is a pair: V has its blocks in decreasing order."""
        return 1 if self.value[0, 1] == 0 else 2

    @property
    def words(self) -> str:
        """The eigenvalues of that V."""
        eigenvalues = np.linalg.eigvals(self.value)
        ordered = sorted((e for e in eigenvalues if e.imag >= 0), key=lambda e: -e.real)
        return ", ".join(f"{e.real:.3f}" if e.imag == 0 else f"{e.real:.3f} ± {e.imag:.3f}i" for e in ordered)


def trained_values(settings: Settings) -> TrainedValues:
    """The leading eigenvalues of each head of `settings.albert`, or of the spectra that come with the package.

    **Raises:**

    - `ValueError` if the checkpoint cannot be read.

    Source: this library.
    """
    if settings.albert is None:
        found: dict[str, Any] = bundled_spectra()
        provenance = (
            "PL-BERT, an ALBERT trained on phonemes (not word pieces), taken from the Kokoro-82M speech model "
            "(Apache-2.0), its weights de-quantised from about 7 bits"
        )
    else:
        found, provenance = value_spectra(settings.albert), f"the checkpoint {settings.albert.name}"
    spectra = [np.array([complex(*pair) for pair in head]) for head in found["eigenvalues"]]
    matrices = np.stack([leading_block(head) for head in spectra])
    head = int(np.argmax([np.real(e).max() for e in spectra]))
    return TrainedValues(matrices, spectra, head, provenance, found["sha256"])
