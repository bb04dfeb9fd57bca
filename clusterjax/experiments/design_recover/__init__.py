"""Which parameters made a run: errors of `design.recover` beside the Cramer-Rao bound."""

from .experiment import DESIGN_RECOVER as DESIGN_RECOVER
