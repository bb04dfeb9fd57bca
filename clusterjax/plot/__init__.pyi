from ._clustering import clustering_diagram as clustering_diagram, dendrogram as dendrogram, place as place
from ._histograms import histograms as histograms
from ._maps import attention_maps as attention_maps, heatmap as heatmap, phase_diagram as phase_diagram
from ._neurons import neuron_memory as neuron_memory
from ._player import Player as Player, player as player
from ._polytope import attraction as attraction, polytope as polytope
from ._positions import (
    position_cosines as position_cosines,
    position_offsets as position_offsets,
    position_table as position_table,
    relative_positions as relative_positions,
)
from ._save import save as save
from ._series import time_series as time_series
from ._spectrum import spectrum as spectrum
from ._stream import causal_trace as causal_trace, logit_lens as logit_lens, residual_flow as residual_flow
from ._style import OKABE_ITO as OKABE_ITO, style as style
from ._tokens import (
    animate as animate,
    circle as circle,
    cloud as cloud,
    project as project,
    snapshots as snapshots,
    sphere as sphere,
)
from ._words import WordRun as WordRun, animate_words as animate_words, words as words
