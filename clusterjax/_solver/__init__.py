"""Solvers of this library: wrappers around those of diffrax."""

from .retract import Retract as Retract
