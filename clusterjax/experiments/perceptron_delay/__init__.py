"""Whether the perceptron delays the collapse: that of a trained ALBERT, and one that is trained through the flow."""

from .experiment import PERCEPTRON_DELAY as PERCEPTRON_DELAY
