"""Sweeps: evaluate a function at every point of named axes, in batches, on many devices; a killed sweep can resume."""

from importlib import import_module
from typing import Any

import lazy_loader

from .._base.extras import require


require(__name__, "sweep", "xarray", "zarr")
_attached, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    # `phase_diagram` is a sweep too, but is not listed, because the package of phase diagrams imports this one.
    return import_module("clusterjax.phase").phase_diagram if name == "phase_diagram" else _attached(name)
