"""The phase diagram under a causal mask: where the transition is, and whether it is sharp."""

from .experiment import CAUSAL_PHASE_DIAGRAM as CAUSAL_PHASE_DIAGRAM
