"""Several heads as interacting systems: what each does alone, what they do together, and what their average does."""

from .experiment import INTERACTING_HEADS as INTERACTING_HEADS
