"""Where tokens end: the limit that the spectrum of V decides, certified clause by clause."""

from .result import LimitClause as LimitClause, LimitHypothesis as LimitHypothesis, LimitShape as LimitShape
from .shape import limit_shape as limit_shape
