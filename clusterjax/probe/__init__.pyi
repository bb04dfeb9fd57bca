from .measures.controls import (
    Comparison as Comparison,
    Controls as Controls,
    controls as controls,
    randomise as randomise,
    shuffle_tokens as shuffle_tokens,
)
from .measures.energies import EnergyBudget as EnergyBudget, energy_budget as energy_budget
from .measures.generation import (
    Generated as Generated,
    NextWords as NextWords,
    continuation_log_prob as continuation_log_prob,
    generate as generate,
    next_words as next_words,
)
from .measures.heads import (
    HeadClusters as HeadClusters,
    HeadCorrelations as HeadCorrelations,
    HeadSigns as HeadSigns,
    adjusted_rand as adjusted_rand,
    head_clusters as head_clusters,
    head_correlations as head_correlations,
    head_signs as head_signs,
)
from .measures.losses import token_losses as token_losses
from .measures.neurons import ParameterCounts as ParameterCounts, parameter_counts as parameter_counts
from .measures.patching import (
    CausalTrace as CausalTrace,
    CopyOf as CopyOf,
    Edit as Edit,
    MeanOver as MeanOver,
    activations as activations,
    causal_trace as causal_trace,
    patch as patch,
)
from .measures.position_heads import PositionHeads as PositionHeads, position_heads as position_heads
from .measures.similarity import (
    Similarity as Similarity,
    similarity_histograms as similarity_histograms,
    similarity_of_hidden as similarity_of_hidden,
)
from .measures.sinks import (
    Activation as Activation,
    AttentionSinks as AttentionSinks,
    FirstToken as FirstToken,
    attention_sinks as attention_sinks,
    first_token as first_token,
    special_ids as special_ids,
    token_activation as token_activation,
)
from .measures.spectra import (
    Directions as Directions,
    ValueSpectra as ValueSpectra,
    value_directions as value_directions,
    value_spectra as value_spectra,
)
from .measures.streams import (
    key_value_memory as key_value_memory,
    logit_lens as logit_lens,
    residual_stream as residual_stream,
)
from .measures.survey import (
    Average as Average,
    Measure as Measure,
    Streamed as Streamed,
    Survey as Survey,
    Trace as Trace,
    bootstrap_counts as bootstrap_counts,
    stream as stream,
    survey as survey,
    trace as trace,
)
from .networks.batch import Encoded as Encoded, encode as encode
from .networks.bundled import (
    bundled_start as bundled_start,
    bundled_texts as bundled_texts,
    bundled_training as bundled_training,
    read_texts as read_texts,
)
from .networks.directions import (
    NearestWords as NearestWords,
    head_matrices as head_matrices,
    nearest_words as nearest_words,
)
from .networks.load import (
    Model as Model,
    from_config as from_config,
    from_language_model as from_language_model,
    load as load,
)
from .networks.network import HeadMatrices as HeadMatrices, Network as Network
from .networks.recorded import Recorded as Recorded, from_arrays as from_arrays
from .networks.sizes import NetworkSizes as NetworkSizes, Patches as Patches, Rotary as Rotary
from .networks.train import AlbertRecipe as AlbertRecipe, train_albert as train_albert
from .networks.weights import tensors as tensors
from .particle_bridge.ablations import (
    deeper as deeper,
    on_sphere as on_sphere,
    with_mask as with_mask,
    without as without,
    without_feed_forward as without_feed_forward,
    without_norms as without_norms,
)
from .particle_bridge.bridge import Bridge as Bridge, bridge as bridge
from .particle_bridge.field import particle_field as particle_field
from .particle_bridge.place import Place as Place, place as place, place_checkpoints as place_checkpoints
