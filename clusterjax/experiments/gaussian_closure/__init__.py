"""Gaussian tokens of R^d: two equations for mean and covariance, and when they blow up."""

from .experiment import GAUSSIAN_CLOSURE as GAUSSIAN_CLOSURE
