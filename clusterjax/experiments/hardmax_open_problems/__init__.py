"""Which clauses of the hardmax theorem survive for a matrix A that is not positive definite."""

from .experiment import HARDMAX_OPEN_PROBLEMS as HARDMAX_OPEN_PROBLEMS
