"""Phase diagrams: how many pairs of tokens are close, over time and beta, and the exact curve in high dimension."""

from .experiment import PHASE_DIAGRAM as PHASE_DIAGRAM
