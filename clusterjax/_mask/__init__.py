"""Masks: the tokens that each token may attend to."""

from .base import AbstractMask as AbstractMask, check_mask as check_mask
from .full_causal import CausalMask as CausalMask, FullMask as FullMask
from .given import FunctionMask as FunctionMask, MatrixMask as MatrixMask
from .window import SinkMask as SinkMask, WindowMask as WindowMask
