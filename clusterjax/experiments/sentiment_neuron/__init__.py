"""The unit of SmolLM2 that tells praise from blame, beside those of an LSTM and of small models."""

from .experiment import SENTIMENT_NEURON as SENTIMENT_NEURON
