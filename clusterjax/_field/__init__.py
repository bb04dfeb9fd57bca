"""Fields, which give the velocity of tokens: dx/dt = field(t, x, args)."""

from .attention import AttentionField as AttentionField
from .base import AbstractField as AbstractField, ScaledField as ScaledField, SumField as SumField
from .function import FunctionField as FunctionField
from .heads import MultiHeadField as MultiHeadField
from .mean import MeanField as MeanField
from .perceptron import PerceptronField as PerceptronField
from .rescaled import RescaledField as RescaledField
