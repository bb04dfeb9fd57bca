"""Phase diagrams: the clustering of many systems over time and beta; `simulate` integrates every system."""

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from ._branch import Branch as Branch, Stationary as Stationary, branch as branch, stationary as stationary
    from ._diagram import (
        AbstractIntegrator as AbstractIntegrator,
        AbstractStarts as AbstractStarts,
        AbstractStatistic as AbstractStatistic,
        Adaptive as Adaptive,
        ClosePairs as ClosePairs,
        ClusterRank as ClusterRank,
        Given as Given,
        GramRank as GramRank,
        NormalisedEuler as NormalisedEuler,
        PhaseDiagram as PhaseDiagram,
        Uniform as Uniform,
        phase_diagram as phase_diagram,
        read_starts as read_starts,
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
else:
    from .._base.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__, extra="sweep", libraries=("xarray", "zarr"))
