"""How tokens cluster as they pass through attention: a differentiable laboratory."""

from importlib.metadata import version as _version

from ._attention import (
    AbstractAttention as AbstractAttention,
    HardmaxAttention as HardmaxAttention,
    SoftmaxAttention as SoftmaxAttention,
    UnnormalisedAttention as UnnormalisedAttention,
    query_key_form as query_key_form,
)
from ._field import (
    AbstractField as AbstractField,
    AttentionField as AttentionField,
    MultiHeadField as MultiHeadField,
    PerceptronField as PerceptronField,
    RescaledField as RescaledField,
    ScaledField as ScaledField,
    SumField as SumField,
)
from ._iterate import iterate as iterate
from ._layer import AbstractLayer as AbstractLayer, ResidualLayer as ResidualLayer
from ._mask import (
    AbstractMask as AbstractMask,
    CausalMask as CausalMask,
    FullMask as FullMask,
    MatrixMask as MatrixMask,
    WindowMask as WindowMask,
)
from ._schedule import (
    AbstractSchedule as AbstractSchedule,
    Combined as Combined,
    Interpolated as Interpolated,
    PiecewiseConstant as PiecewiseConstant,
)
from ._simulate import simulate as simulate
from ._solver import Retract as Retract
from ._space import AbstractSpace as AbstractSpace, Euclidean as Euclidean, Sphere as Sphere
from ._summation import (
    AbstractSummation as AbstractSummation,
    Auto as Auto,
    Blocked as Blocked,
    Dense as Dense,
)
from ._trajectory import Trajectory as Trajectory


__version__ = _version("clusterjax")
