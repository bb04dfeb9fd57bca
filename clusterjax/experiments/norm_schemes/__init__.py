"""Where the layer norm stands: how fast tokens gather under five schemes, early and late."""

from .experiment import NORM_SCHEMES as NORM_SCHEMES
