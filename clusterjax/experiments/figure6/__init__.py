"""Figure 6: repulsion on the sphere at beta = 9."""

from .experiment import FIGURE6 as FIGURE6
