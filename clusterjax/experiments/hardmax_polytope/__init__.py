"""The hardmax figure: tokens come to a polytope of leaders; and what draws a token."""

from .experiment import HARDMAX_POLYTOPE as HARDMAX_POLYTOPE
