"""Attention: softmax, unnormalised, hardmax and user-defined kernels, as matrices of weights and as averages."""

from .base import (
    AbstractAttention as AbstractAttention,
    AbstractExponentialAttention as AbstractExponentialAttention,
    query_key_form as query_key_form,
)
from .hardmax import HardmaxAttention as HardmaxAttention
from .kernel import KernelAttention as KernelAttention
from .softmax import SoftmaxAttention as SoftmaxAttention
from .unnormalised import UnnormalisedAttention as UnnormalisedAttention
