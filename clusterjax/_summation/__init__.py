"""Summations: the algorithms for the sums over tokens in attention, with one interface."""

from .._model.summation import (
    AbstractExponentialSum as AbstractExponentialSum,
    AbstractNearestSearch as AbstractNearestSearch,
    AbstractSummation as AbstractSummation,
    ExponentialSums as ExponentialSums,
    HardmaxSums as HardmaxSums,
    Support as Support,
    check_summation as check_summation,
    check_supported as check_supported,
    ratio as ratio,
)
from .auto import Auto as Auto
from .blocked import Blocked as Blocked
from .dense import Dense as Dense
from .devices import Sharded as Sharded
from .fused import Fused as Fused
from .harmonic.summation import Harmonic as Harmonic
from .hull import Hull as Hull
from .recorder import Names as Names, recorded as recorded
