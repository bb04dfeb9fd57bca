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
from ._phase_diagram import PhaseDiagram as PhaseDiagram
from ._phase_laws import (
    AbstractLaw as AbstractLaw,
    Fixed as Fixed,
    Identity as Identity,
    LikeQueryKey as LikeQueryKey,
    Once as Once,
    PerBeta as PerBeta,
    PerSystem as PerSystem,
    Product as Product,
    Square as Square,
    Wigner as Wigner,
)
from ._phase_run import phase_diagram as phase_diagram
from ._phase_starts import (
    AbstractStarts as AbstractStarts,
    Given as Given,
    Uniform as Uniform,
    read_starts as read_starts,
)
from ._phase_statistics import (
    AbstractStatistic as AbstractStatistic,
    ClosePairs as ClosePairs,
    ClusterRank as ClusterRank,
    GramRank as GramRank,
)
from ._phase_steps import (
    AbstractIntegrator as AbstractIntegrator,
    Adaptive as Adaptive,
    NormalisedEuler as NormalisedEuler,
)
from ._run import run as run
