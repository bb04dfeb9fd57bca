"""Rank collapse: attention alone makes all tokens one, doubly exponentially fast; what slows it."""

from .experiment import RANK_COLLAPSE as RANK_COLLAPSE
