"""The discrete hardmax dynamics: its layer, its leaders, its limit set, and its theorem checked on data."""

import lazy_loader


__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
