"""The staircase of the energy: between mergers it rests, for times like e^(beta (1 - c))."""

from .experiment import STAIRCASE as STAIRCASE
