"""A causal network measured: its first token, attention sinks and what they are worth, heads of a place."""

from .experiment import CAUSAL_NETWORK as CAUSAL_NETWORK
