"""Training in 2, 4, 8 and 16 dimensions: loss, accuracy, how settled the words are, and how few lead."""

from .experiment import SENTIMENT_TRAINING as SENTIMENT_TRAINING
