"""Solvers of this library: a wrapper around those of diffrax, and an implicit one for long times; steps at jumps."""

from .jumps import StepsByLayer as StepsByLayer, ending as ending
from .retract import Retract as Retract
from .rodas5p import Rodas5P as Rodas5P
from .stages import stored_stages as stored_stages
from .suits import check_suits as check_suits
