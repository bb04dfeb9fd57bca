"""Which words lead: the most frequent ones, how far from the hyperplane, and how many in a review."""

from .experiment import SENTIMENT_LEADERS as SENTIMENT_LEADERS
