"""The faults, by what they would break; `tests/house/test_mutants.py` holds that each still has its line."""

from tests.mutants.accelerators import ACCELERATORS
from tests.mutants.batches import BATCHES
from tests.mutants.folders import FOLDERS
from tests.mutants.gradients import GRADIENTS
from tests.mutants.long_times import LONG_TIMES
from tests.mutants.noise import NOISE
from tests.mutants.padding import PADDING
from tests.mutants.parts import PARTS
from tests.mutants.steering import STEERING
from tests.mutants.sums import SUMS
from tests.mutants.words import WORDS


MUTANTS = (
    *PARTS,
    *SUMS,
    *FOLDERS,
    *BATCHES,
    *LONG_TIMES,
    *ACCELERATORS,
    *STEERING,
    *NOISE,
    *GRADIENTS,
    *PADDING,
    *WORDS,
)
