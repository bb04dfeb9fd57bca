"""Long context: at which beta one layer of attention stops averaging everything, as the number of tokens grows."""

from .experiment import LONG_CONTEXT as LONG_CONTEXT
