"""A simple leading eigenvalue of V in R^d: tokens come to at most three parallel hyperplanes."""

from .experiment import EMERGENCE_HYPERPLANES as EMERGENCE_HYPERPLANES
