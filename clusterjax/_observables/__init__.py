"""Observables: functions of tokens that measure clusters, energy, rank, angles and attention."""

from .angular_power import angular_power as angular_power
from .clusters import (
    cluster_labels as cluster_labels,
    cluster_sizes as cluster_sizes,
    num_clusters as num_clusters,
)
from .energy import (
    energy_dissipation as energy_dissipation,
    interaction_energy as interaction_energy,
    log_interaction_energy as log_interaction_energy,
    perceptron_energy as perceptron_energy,
)
from .equiangular import equiangular_beta as equiangular_beta, equiangular_time as equiangular_time
from .hemisphere import Hemisphere as Hemisphere, hemisphere as hemisphere
from .lifetimes import Lifetimes as Lifetimes, Survival as Survival, lifetimes as lifetimes
from .linear_phase import uniform_growth_rates as uniform_growth_rates
from .metastability import Plateaus as Plateaus, plateaus as plateaus
from .neural_collapse import NeuralCollapse as NeuralCollapse, neural_collapse as neural_collapse
from .orthogonal import orthogonal_cosines as orthogonal_cosines, orthogonal_time as orthogonal_time
from .rank import effective_rank as effective_rank, rank as rank
from .renyi import (
    expected_strong_centres as expected_strong_centres,
    renyi_centres as renyi_centres,
)
from .similarity import (
    close_pairs_fraction as close_pairs_fraction,
    cosine_histogram as cosine_histogram,
    pairwise_cosine as pairwise_cosine,
)
from .sinks import sink_mass as sink_mass, uniform_causal_sink as uniform_causal_sink
from .spectra import (
    effective_beta as effective_beta,
    product_spectrum as product_spectrum,
    spectrum as spectrum,
    symmetric_part_spectrum as symmetric_part_spectrum,
)
from .transport import wasserstein as wasserstein
from .uniform_energy import uniform_energy as uniform_energy
