"""The unit of SmolLM2-135M-Instruct (Q4_1) that tells praise from blame, beside units of an LSTM and small models."""

from .experiment import SENTIMENT_NEURON as SENTIMENT_NEURON
