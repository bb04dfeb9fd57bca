"""A causal network as particles: its similarity, the path of its first token, and the case of each of its heads."""

from .experiment import CAUSAL_BRIDGE as CAUSAL_BRIDGE
