"""How sum_j w_ij v_j is computed, behind one interface."""

from .auto import Auto as Auto
from .base import (
    AbstractSummation as AbstractSummation,
    ExponentialSums as ExponentialSums,
    HardmaxSums as HardmaxSums,
    check_summation as check_summation,
    ratio as ratio,
)
from .blocked import Blocked as Blocked
from .dense import Dense as Dense
from .harmonic import Harmonic as Harmonic
from .hull import Hull as Hull
from .sharded import Sharded as Sharded
from .witness import summation_names as summation_names
