"""Sweeps: evaluate a function at every point of named axes, in batches, on many devices; a killed sweep can resume."""

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from ._axis import Axis as Axis
    from ._outputs import Variable as Variable
    from ._run import run as run
    from ._store import open as open
else:
    from .._base.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(
        __name__, extra="sweep", libraries=("xarray", "zarr"), moved="clusterjax.phase"
    )
