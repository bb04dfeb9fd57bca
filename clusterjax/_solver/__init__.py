"""The solvers of clusterjax: a wrapper of diffrax solvers, an implicit solver for long times, and steps at jumps."""

from .jumps import StepsByLayer as StepsByLayer, ending as ending
from .retract import Retract as Retract
from .rodas5p import Rodas5P as Rodas5P
from .stages import stored_stages as stored_stages
from .suits import check_suits as check_suits
