"""Phase diagrams: the clustering of many systems over time and beta; `simulate` integrates every system."""

import lazy_loader

from .._base.extras import require


require(__name__, "sweep", "xarray", "zarr")
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
