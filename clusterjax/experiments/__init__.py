"""One file for each figure of the papers: simulate, measure, assert, draw; and the gallery of them."""

try:
    import matplotlib as _matplotlib  # noqa: F401
except ImportError as error:
    raise ImportError(
        "clusterjax.experiments needs matplotlib; install it with: pip install 'clusterjax[plot]'"
    ) from error

from ._experiment import (
    Claim as Claim,
    Experiment as Experiment,
    Film as Film,
    Outcome as Outcome,
    Settings as Settings,
)
from ._registry import EXPERIMENTS as EXPERIMENTS, find_experiments as find_experiments
from ._reproduce import Files as Files, reproduce as reproduce
