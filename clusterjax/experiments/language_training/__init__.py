"""A small causal language model along its training: do its tokens gather, do sinks arise, what does it learn first."""

from .experiment import LANGUAGE_TRAINING as LANGUAGE_TRAINING
