"""Solvers of this library: a wrapper around those of diffrax, and an implicit one for long times."""

from .retract import Retract as Retract
from .rodas5p import Rodas5P as Rodas5P
from .suits import check_suits as check_suits
