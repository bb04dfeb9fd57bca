"""Neural collapse along depth and training, beside how far tokens cluster."""

from .experiment import NEURAL_COLLAPSE as NEURAL_COLLAPSE
