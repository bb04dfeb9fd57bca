"""One dimension: the attention matrix becomes Boolean."""

from .experiment import BOOLEAN_ATTENTION as BOOLEAN_ATTENTION
