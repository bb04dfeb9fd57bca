"""Design by gradient: parameters that made a run, that lead tokens to given points, or that keep tokens apart."""

import lazy_loader


__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
