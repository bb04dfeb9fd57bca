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
