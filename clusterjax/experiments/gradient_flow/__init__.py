"""Gradient flow in Wasserstein space: which attention climbs its energy steepest, and in which metric."""

from .experiment import GRADIENT_FLOW as GRADIENT_FLOW
