"""Transformer networks: blocks, the residual stream, key-value memories, positions and the language-modelling head."""

import lazy_loader


__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
