"""All canonical runs: the import of this module registers the runs of the four modules."""

from . import dynamics as dynamics, limits as limits, networks as networks, observables as observables
from .register import RUNS as RUNS
