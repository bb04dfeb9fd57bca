"""How tokens cluster as they pass through attention: a differentiable laboratory."""

import os

import lazy_loader


__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
# `from clusterjax import *` imports no part of clusterjax, whose libraries may be missing.
_PARTS = os.listdir(os.path.dirname(__file__))
__all__ = [name for name in __all__ if name not in _PARTS and not name.startswith("_")]  # pyright: ignore[reportUnsupportedDunderAll]
