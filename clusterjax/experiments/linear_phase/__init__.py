"""The first phase: which clusters very many uniform tokens choose, and when."""

from .experiment import LINEAR_PHASE as LINEAR_PHASE
