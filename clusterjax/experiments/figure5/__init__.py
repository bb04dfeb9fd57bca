"""Figure 5: repulsion on the circle, V with top eigenvalue -1."""

from .experiment import FIGURE5 as FIGURE5
