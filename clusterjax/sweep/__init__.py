"""Sweeps: a function at every point of named axes, in batches, on many devices; killed at any moment, it goes on."""

try:
    import xarray as _xarray  # noqa: F401
    import zarr as _zarr  # noqa: F401
except ImportError as error:
    raise ImportError(
        "clusterjax.sweep needs xarray and zarr; install them with: pip install 'clusterjax[sweep]'"
    ) from error

from ._axis import Axis as Axis
from ._open import open as open
from ._outputs import Variable as Variable
from ._run import run as run
