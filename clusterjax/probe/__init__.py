"""Real networks under the glass: ALBERT and the encoder of T5, loaded, run and traced layer by layer."""

try:
    import flax as _flax  # noqa: F401
except ImportError as error:
    raise ImportError("clusterjax.probe needs flax and transformers; pip install 'clusterjax[probe]'") from error

from .._corpus import read_texts as read_texts
from ._albert import Albert as Albert
from ._batch import Encoded as Encoded, encode as encode
from ._bridge import Bridge as Bridge, bridge as bridge
from ._bundled import (
    bundled_start as bundled_start,
    bundled_texts as bundled_texts,
    bundled_training as bundled_training,
)
from ._controls import (
    Comparison as Comparison,
    Controls as Controls,
    controls as controls,
    randomise as randomise,
    shuffle_tokens as shuffle_tokens,
)
from ._head_clusters import (
    HeadClusters as HeadClusters,
    adjusted_rand as adjusted_rand,
    head_clusters as head_clusters,
)
from ._heads import HeadCorrelations as HeadCorrelations, head_correlations as head_correlations
from ._load import Model as Model, load as load
from ._matrices import HeadMatrices as HeadMatrices, head_matrices as head_matrices
from ._names import tensors as tensors
from ._particles import FactoredHeadsField as FactoredHeadsField, particle_field as particle_field
from ._parts import (
    deeper as deeper,
    on_sphere as on_sphere,
    without_feed_forward as without_feed_forward,
    without_norms as without_norms,
)
from ._similarity import (
    Similarity as Similarity,
    similarity_histograms as similarity_histograms,
    similarity_of_hidden as similarity_of_hidden,
)
from ._sinks import (
    Activation as Activation,
    AttentionSinks as AttentionSinks,
    attention_sinks as attention_sinks,
    token_activation as token_activation,
)
from ._sizes import AlbertSizes as AlbertSizes, T5Sizes as T5Sizes
from ._spectra import (
    Directions as Directions,
    ValueSpectra as ValueSpectra,
    value_directions as value_directions,
    value_spectra as value_spectra,
)
from ._stream import (
    Measure as Measure,
    Streamed as Streamed,
    Trace as Trace,
    stream as stream,
    trace as trace,
)
from ._survey import Survey as Survey, bootstrap_counts as bootstrap_counts, survey as survey
from ._t5 import T5Encoder as T5Encoder
from ._tally import Average as Average
from ._train import AlbertRecipe as AlbertRecipe, train_albert as train_albert
from ._vocabulary import NearestWords as NearestWords, nearest_words as nearest_words
