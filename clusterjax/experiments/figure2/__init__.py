"""Figure 2: what the heads of a trained network attend to, and which of them do it alike."""

from .experiment import FIGURE2 as FIGURE2
