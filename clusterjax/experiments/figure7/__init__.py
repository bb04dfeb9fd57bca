"""Figure 7: V with the top three eigenvalues of a trained ALBERT head."""

from .experiment import FIGURE7 as FIGURE7
