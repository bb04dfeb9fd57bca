"""One word in two senses, level by level of a causal network."""

from .experiment import WORD_SENSES as WORD_SENSES
