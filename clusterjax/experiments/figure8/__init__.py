"""Figure 8: the path of the first token."""

from .experiment import FIGURE8 as FIGURE8
