"""Pictures with matplotlib; every function draws on a given Axes, or on a new one, and returns the Axes."""

import lazy_loader

from .._base.extras import require


require(__name__, "plot", "matplotlib")
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
