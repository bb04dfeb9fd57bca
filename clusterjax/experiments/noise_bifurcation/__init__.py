"""Noise: how much tokens gather against the temperature, by the mean field and by tokens."""

from .experiment import NOISE_BIFURCATION as NOISE_BIFURCATION
