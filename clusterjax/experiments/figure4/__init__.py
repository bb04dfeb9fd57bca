"""Figure 4: at beta = 9 several clusters last."""

from .experiment import FIGURE4 as FIGURE4
