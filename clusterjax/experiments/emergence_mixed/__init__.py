"""A paranormal V in R^3: tokens come to a polytope in a plane, and go their own ways across it."""

from .experiment import EMERGENCE_MIXED as EMERGENCE_MIXED
