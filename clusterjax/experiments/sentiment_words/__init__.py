"""The words of a positive and a negative review on their way to their leaders."""

from .experiment import SENTIMENT_WORDS as SENTIMENT_WORDS
