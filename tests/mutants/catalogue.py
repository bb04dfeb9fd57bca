"""The faults, by what they would break; `tests/test_mutants.py` holds that each still has its line."""

from .accelerators import ACCELERATORS
from .batches import BATCHES
from .folders import FOLDERS
from .gradients import GRADIENTS
from .long_times import LONG_TIMES
from .noise import NOISE
from .padding import PADDING
from .parts import PARTS
from .steering import STEERING
from .sums import SUMS
from .words import WORDS


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
