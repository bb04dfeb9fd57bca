"""Whether the tokens of the package's own ALBERT cluster more as it is trained."""

from .experiment import ALBERT_TRAINING as ALBERT_TRAINING
