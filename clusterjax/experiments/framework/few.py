"""Numbers of a few trainings: mean, standard error, and a test that knows how few they are."""

from typing import NamedTuple

import numpy as np

from ...probe.measures.controls import Comparison, _comparison
from .experiment import plus_minus


class Few(NamedTuple):
    """The mean of one number per training.

    **Attributes:**

    - `each`: The number of each training, (trainings,).
    - `mean`, `error`: Over trainings.
    """

    each: np.ndarray
    mean: float
    error: float

    @classmethod
    def of(cls, each: np.ndarray) -> "Few":
        """Of one number per training, two at least."""
        values = np.asarray(each, float)
        return cls(values, float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))))

    def above(self, than: float, sigmas: float = 2.0) -> bool:
        """Whether the mean is surely above: a one-sided t-test as improbable as two standard errors of many."""
        return bool(self._against(than).exceeds(sigmas)[0])

    def below(self, than: float, sigmas: float = 2.0) -> bool:
        """Whether it is surely below."""
        found = self._against(than)
        return bool(found._replace(z=-found.z).exceeds(sigmas)[0])

    def words(self, digits: int = 3) -> str:
        """The mean and its error."""
        return plus_minus(self.mean, self.error, digits)

    def _against(self, than: float) -> Comparison:
        # No variance besides that between trainings; where that is zero, z is infinite and the sign decides.
        return _comparison(self.each[:, None] - than, np.zeros(1), 1.0)
