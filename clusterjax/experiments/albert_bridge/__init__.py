"""From a trained network to the particle model with its own heads: how far the particles predict its similarity."""

from .experiment import ALBERT_BRIDGE as ALBERT_BRIDGE
