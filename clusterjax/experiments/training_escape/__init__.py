"""What training does to clustering: a feed-forward layer that leads densities out of it, and V and B of all layers."""

from .experiment import TRAINING_ESCAPE as TRAINING_ESCAPE
