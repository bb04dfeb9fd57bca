"""Facts that a language model knows, and which of its parts they are lost with."""

from .experiment import FACTS as FACTS
