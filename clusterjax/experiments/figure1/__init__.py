"""Figure 1: how alike the tokens of a trained network are, layer by layer, beside what needs no training."""

from .experiment import FIGURE1 as FIGURE1
