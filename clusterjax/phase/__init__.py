"""Phase diagrams: the clustering of many systems over time and beta; `simulate` integrates every system."""

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from ._branch import Branch as Branch, branch as branch
    from ._diagram import PhaseDiagram as PhaseDiagram
    from ._integrators import (
        AbstractIntegrator as AbstractIntegrator,
        Adaptive as Adaptive,
        NormalisedEuler as NormalisedEuler,
    )
    from ._laws import (
        AbstractLaw as AbstractLaw,
        Fixed as Fixed,
        Gaussian as Gaussian,
        Identity as Identity,
        LikeQueryKey as LikeQueryKey,
        Once as Once,
        Orthogonal as Orthogonal,
        PerBeta as PerBeta,
        PerSystem as PerSystem,
        Product as Product,
        Spectrum as Spectrum,
        Square as Square,
        Wigner as Wigner,
    )
    from ._run import phase_diagram as phase_diagram
    from ._starts import (
        AbstractStarts as AbstractStarts,
        Given as Given,
        Uniform as Uniform,
        read_starts as read_starts,
    )
    from ._stationary import Stationary as Stationary, stationary as stationary
    from ._statistics import (
        AbstractStatistic as AbstractStatistic,
        ClosePairs as ClosePairs,
        ClusterRank as ClusterRank,
        GramRank as GramRank,
    )
else:
    from .._lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__, extra="sweep", libraries=("xarray", "zarr"))
