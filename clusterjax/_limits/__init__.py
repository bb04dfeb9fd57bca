"""The limit shape of tokens, which the spectrum of V determines, certified clause by clause."""

from .result import LimitClause as LimitClause, LimitHypothesis as LimitHypothesis, LimitShape as LimitShape
from .shape import limit_shape as limit_shape
