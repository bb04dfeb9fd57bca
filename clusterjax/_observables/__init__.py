"""Observables: functions of tokens that measure clusters, energy, rank, angles and attention."""

from .centres import (
    expected_strong_centres as expected_strong_centres,
    renyi_centres as renyi_centres,
    sink_mass as sink_mass,
    uniform_causal_sink as uniform_causal_sink,
)
from .clusters import (
    Hemisphere as Hemisphere,
    cluster_labels as cluster_labels,
    hemisphere as hemisphere,
    num_clusters as num_clusters,
)
from .energy import (
    energy_dissipation as energy_dissipation,
    interaction_energy as interaction_energy,
    log_interaction_energy as log_interaction_energy,
    perceptron_energy as perceptron_energy,
    uniform_energy as uniform_energy,
)
from .equiangular import (
    equiangular_beta as equiangular_beta,
    equiangular_time as equiangular_time,
    orthogonal_cosines as orthogonal_cosines,
    orthogonal_time as orthogonal_time,
)
from .harmonics import angular_power as angular_power, uniform_growth_rates as uniform_growth_rates
from .lifetimes import (
    Lifetimes as Lifetimes,
    Plateaus as Plateaus,
    Survival as Survival,
    lifetimes as lifetimes,
    plateaus as plateaus,
    survival as survival,
)
from .neural_collapse import NeuralCollapse as NeuralCollapse, neural_collapse as neural_collapse
from .similarity import cosine_histogram as cosine_histogram, pairwise_cosine as pairwise_cosine
from .spectra import (
    effective_beta as effective_beta,
    effective_rank as effective_rank,
    kreiss_constant as kreiss_constant,
    non_normality as non_normality,
    product_spectrum as product_spectrum,
    rank as rank,
    spectrum as spectrum,
    symmetric_part_spectrum as symmetric_part_spectrum,
)
from .transport import wasserstein as wasserstein
