"""The atlas of limits: where tokens end, by the spectrum of V, beta and the mask, certified in each cell."""

from .experiment import ATLAS as ATLAS
