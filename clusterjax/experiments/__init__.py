"""One file for each figure of the papers: simulate, measure, assert, draw; and the gallery of the figures."""

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from .framework.experiment import (
        Claim as Claim,
        Cost as Cost,
        Experiment as Experiment,
        Film as Film,
        Outcome as Outcome,
        Settings as Settings,
        parameter as parameter,
    )
    from .framework.listing import EXPERIMENTS as EXPERIMENTS, find_experiments as find_experiments
    from .framework.run import Files as Files, reproduce as reproduce
    from .framework.verdict import Measured as Measured, Source as Source, Subject as Subject
else:
    from .._base.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__, extra="plot", libraries=("matplotlib",), at_import=False)
