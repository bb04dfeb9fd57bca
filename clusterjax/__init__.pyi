from . import (
    design as design,
    hardmax as hardmax,
    phase as phase,
    plot as plot,
    probe as probe,
    sentiment as sentiment,
    sweep as sweep,
    transformer as transformer,
)
from ._base.compilation_cache import enable_compilation_cache as enable_compilation_cache
from ._base.version import __version__ as __version__
from ._coarsen import MergeTree as MergeTree, coarsen as coarsen
from ._dynamics.events import clustered_event as clustered_event, stationary_event as stationary_event
from ._dynamics.integrate import TokensAnd as TokensAnd
from ._dynamics.iterate import iterate as iterate
from ._dynamics.modes import Modes as Modes, lipschitz as lipschitz, modes as modes
from ._dynamics.noise import CommonNoise as CommonNoise, NoisyLayer as NoisyLayer, RandomHeads as RandomHeads
from ._dynamics.propagator import propagator as propagator
from ._dynamics.retract import Retract as Retract
from ._dynamics.rodas5p import Rodas5P as Rodas5P
from ._dynamics.simulate import simulate as simulate
from ._dynamics.time_to_cluster import TimeToCluster as TimeToCluster, time_to_cluster as time_to_cluster
from ._limits import (
    LimitClause as LimitClause,
    LimitHypothesis as LimitHypothesis,
    LimitShape as LimitShape,
    limit_shape as limit_shape,
)
from ._model.attention import (
    AbstractAttention as AbstractAttention,
    HardmaxAttention as HardmaxAttention,
    KernelAttention as KernelAttention,
    SoftmaxAttention as SoftmaxAttention,
    UnnormalisedAttention as UnnormalisedAttention,
    query_key_form as query_key_form,
)
from ._model.causal_density import CausalMeanField as CausalMeanField
from ._model.density import MeanField as MeanField
from ._model.field import (
    AbstractField as AbstractField,
    AttentionField as AttentionField,
    FunctionField as FunctionField,
    PerceptronField as PerceptronField,
    RescaledField as RescaledField,
    ScaledField as ScaledField,
    SumField as SumField,
)
from ._model.further_attention import (
    CosineAttention as CosineAttention,
    DistanceAttention as DistanceAttention,
    SigmoidAttention as SigmoidAttention,
    SinkhornAttention as SinkhornAttention,
)
from ._model.heads import MultiHeadField as MultiHeadField
from ._model.layer import AbstractLayer as AbstractLayer, ResidualLayer as ResidualLayer
from ._model.mask import (
    AbstractMask as AbstractMask,
    CausalMask as CausalMask,
    FullMask as FullMask,
    FunctionMask as FunctionMask,
    MatrixMask as MatrixMask,
    SinkMask as SinkMask,
    WindowMask as WindowMask,
)
from ._model.position import (
    AbstractPosition as AbstractPosition,
    ALiBi as ALiBi,
    Decay as Decay,
    RelativeBias as RelativeBias,
    Rotary as Rotary,
)
from ._model.schedule import (
    AbstractSchedule as AbstractSchedule,
    Combined as Combined,
    FunctionSchedule as FunctionSchedule,
    Interpolated as Interpolated,
    PiecewiseConstant as PiecewiseConstant,
)
from ._model.space import AbstractSpace as AbstractSpace, Euclidean as Euclidean, Sphere as Sphere
from ._observables import (
    Hemisphere as Hemisphere,
    Lifetimes as Lifetimes,
    NeuralCollapse as NeuralCollapse,
    Plateaus as Plateaus,
    Survival as Survival,
    angular_power as angular_power,
    cluster_labels as cluster_labels,
    cosine_histogram as cosine_histogram,
    effective_beta as effective_beta,
    effective_rank as effective_rank,
    energy_dissipation as energy_dissipation,
    equiangular_beta as equiangular_beta,
    equiangular_time as equiangular_time,
    expected_strong_centres as expected_strong_centres,
    hemisphere as hemisphere,
    interaction_energy as interaction_energy,
    kreiss_constant as kreiss_constant,
    lifetimes as lifetimes,
    log_interaction_energy as log_interaction_energy,
    neural_collapse as neural_collapse,
    non_normality as non_normality,
    num_clusters as num_clusters,
    orthogonal_cosines as orthogonal_cosines,
    orthogonal_time as orthogonal_time,
    pairwise_cosine as pairwise_cosine,
    perceptron_energy as perceptron_energy,
    plateaus as plateaus,
    product_spectrum as product_spectrum,
    rank as rank,
    renyi_centres as renyi_centres,
    sink_mass as sink_mass,
    spectrum as spectrum,
    survival as survival,
    symmetric_part_spectrum as symmetric_part_spectrum,
    uniform_causal_sink as uniform_causal_sink,
    uniform_energy as uniform_energy,
    uniform_growth_rates as uniform_growth_rates,
    wasserstein as wasserstein,
)
from ._summation import (
    AbstractExponentialSum as AbstractExponentialSum,
    AbstractNearestSearch as AbstractNearestSearch,
    AbstractSummation as AbstractSummation,
    Auto as Auto,
    Blocked as Blocked,
    Dense as Dense,
    Fused as Fused,
    Harmonic as Harmonic,
    Hull as Hull,
    Sharded as Sharded,
    Support as Support,
)
from ._trajectory.trajectory import Trajectory as Trajectory
