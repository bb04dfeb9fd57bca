from ._attention import Heads as Heads, MultiHeadAttention as MultiHeadAttention
from ._block import Block as Block, Transformer as Transformer
from ._depth_profile import DepthProfile as DepthProfile, depth_profile as depth_profile
from ._feed_forward import FeedForward as FeedForward
from ._flows import (
    AbstractNormalisation as AbstractNormalisation,
    NormalisationField as NormalisationField,
    NormalisedGPT as NormalisedGPT,
    PeriLN as PeriLN,
    PostLN as PostLN,
    PreLN as PreLN,
    RootScaled as RootScaled,
)
from ._head import LanguageModelHead as LanguageModelHead, cross_entropy as cross_entropy
from ._join import (
    NormedField as NormedField,
    Standardised as Standardised,
    as_field as as_field,
    as_layer as as_layer,
    query_key_forms as query_key_forms,
    value_matrices as value_matrices,
)
from ._language_model import LanguageModel as LanguageModel
from ._lstm import LSTMLanguageModel as LSTMLanguageModel, LSTMStates as LSTMStates
from ._memory import (
    Detector as Detector,
    KeyValueMemory as KeyValueMemory,
    best_detector as best_detector,
    key_value_memory as key_value_memory,
    mean_activations as mean_activations,
)
from ._norm import (
    AbstractResidual as AbstractResidual,
    LayerNorm as LayerNorm,
    NoNorm as NoNorm,
    PostNorm as PostNorm,
    PreNorm as PreNorm,
)
from ._positions import (
    AbstractPositions as AbstractPositions,
    LearnedPositions as LearnedPositions,
    RelativePositions as RelativePositions,
    RotaryPositions as RotaryPositions,
    SinusoidalPositions as SinusoidalPositions,
    sinusoidal_positions as sinusoidal_positions,
)
from ._residual_stream import (
    ResidualStream as ResidualStream,
    logit_lens as logit_lens,
    residual_stream as residual_stream,
)
from ._store import (
    bundled_training as bundled_training,
    load as load,
    load_further as load_further,
    load_tokenizer as load_tokenizer,
    save as save,
)
from ._train import (
    LanguageRecipe as LanguageRecipe,
    language_loss as language_loss,
    train_language_model as train_language_model,
)
