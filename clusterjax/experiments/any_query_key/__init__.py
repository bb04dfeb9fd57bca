"""Causal attention with random Q and K: all tokens come to the first, after a time that is known exactly."""

from .experiment import ANY_QUERY_KEY as ANY_QUERY_KEY
