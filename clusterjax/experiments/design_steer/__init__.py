"""Tokens that end at given points, by parameters that are piecewise constant in time: `design.steer`."""

from .experiment import DESIGN_STEER as DESIGN_STEER
