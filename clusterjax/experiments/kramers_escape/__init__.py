"""How long tokens stay in a cluster under noise, against Kramers' law."""

from .experiment import KRAMERS_ESCAPE as KRAMERS_ESCAPE
