"""V = I in R^d: tokens come to the corners of a polytope."""

from .experiment import EMERGENCE_POLYTOPE as EMERGENCE_POLYTOPE
