"""How long clusters live: merger times over many starts, beside the law of two clusters."""

from .experiment import CLUSTER_LIFETIMES as CLUSTER_LIFETIMES
