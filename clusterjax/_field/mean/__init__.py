"""Infinitely many tokens: a density on the circle or the sphere, and the field that moves its coefficients."""

from .field import MeanField as MeanField
from .watch import unresolved as unresolved
