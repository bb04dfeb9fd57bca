"""Figure 3: with V = I and beta = 1 the tokens gather in a single cluster."""

from .experiment import FIGURE3 as FIGURE3
