"""Renyi centres: how many tokens are far from all before them, and how long they stay."""

from .experiment import RENYI_CENTRES as RENYI_CENTRES
