"""All experiments, in the order of the figures; a new one is one folder and one line here."""

from collections.abc import Sequence
from difflib import get_close_matches
from importlib.util import find_spec

from ..._base.checks import check_sequence, shown
from ..figures.any_query_key import ANY_QUERY_KEY
from ..figures.boolean_attention import BOOLEAN_ATTENTION
from ..figures.causal_phase_diagram import CAUSAL_PHASE_DIAGRAM
from ..figures.cluster_lifetimes import CLUSTER_LIFETIMES
from ..figures.design_hold import DESIGN_HOLD
from ..figures.design_recover import DESIGN_RECOVER
from ..figures.design_steer import DESIGN_STEER
from ..figures.emergence_hyperplanes import EMERGENCE_HYPERPLANES
from ..figures.emergence_mixed import EMERGENCE_MIXED
from ..figures.emergence_polytope import EMERGENCE_POLYTOPE
from ..figures.figure3 import FIGURE3
from ..figures.figure4 import FIGURE4
from ..figures.figure5 import FIGURE5
from ..figures.figure6 import FIGURE6
from ..figures.gaussian_closure import GAUSSIAN_CLOSURE
from ..figures.gradient_flow import GRADIENT_FLOW
from ..figures.hardmax_open_problems import HARDMAX_OPEN_PROBLEMS
from ..figures.hardmax_polytope import HARDMAX_POLYTOPE
from ..figures.kramers_escape import KRAMERS_ESCAPE
from ..figures.linear_phase import LINEAR_PHASE
from ..figures.long_context import LONG_CONTEXT
from ..figures.moebius import MOEBIUS
from ..figures.noise_bifurcation import NOISE_BIFURCATION
from ..figures.norm_schemes import NORM_SCHEMES
from ..figures.phase_diagram import PHASE_DIAGRAM
from ..figures.rank_collapse import RANK_COLLAPSE
from ..figures.renyi_centres import RENYI_CENTRES
from ..figures.repulsion import REPULSION
from ..figures.sentiment_leaders import SENTIMENT_LEADERS
from ..figures.sentiment_training import SENTIMENT_TRAINING
from ..figures.sentiment_words import SENTIMENT_WORDS
from ..figures.staircase import STAIRCASE
from ..figures.training_escape import TRAINING_ESCAPE
from .experiment import Experiment
from .lacking import refuse_lacking, without_probe


# The figures of trained networks need the extra probe; without it they are there by name alone.
# find_spec imports nothing: flax and transformers take seconds.
if find_spec("flax") is not None and find_spec("transformers") is not None:
    from ..figures.albert_bridge import ALBERT_BRIDGE
    from ..figures.albert_spectra import ALBERT_SPECTRA
    from ..figures.albert_training import ALBERT_TRAINING
    from ..figures.atlas import ATLAS
    from ..figures.causal_bridge import CAUSAL_BRIDGE
    from ..figures.causal_network import CAUSAL_NETWORK
    from ..figures.facts import FACTS
    from ..figures.figure1 import FIGURE1
    from ..figures.figure2 import FIGURE2
    from ..figures.figure7 import FIGURE7
    from ..figures.figure8 import FIGURE8
    from ..figures.interacting_heads import INTERACTING_HEADS
    from ..figures.language_training import LANGUAGE_TRAINING
    from ..figures.lstm import LSTM
    from ..figures.neural_collapse import NEURAL_COLLAPSE
    from ..figures.perceptron_delay import PERCEPTRON_DELAY
    from ..figures.sentiment_neuron import SENTIMENT_NEURON
    from ..figures.sink_training import SINK_TRAINING
    from ..figures.word_senses import WORD_SENSES
else:
    FACTS = without_probe("facts", "facts", asks=True)
    FIGURE1 = without_probe("figure1", "similarity_histograms")
    FIGURE2 = without_probe("figure2", "attention_heads")
    FIGURE7 = without_probe("figure7", "albert_eigenvalues")
    FIGURE8 = without_probe("figure8", "first_token")
    ALBERT_BRIDGE = without_probe("albert-bridge", "albert_bridge", asks=True)
    ALBERT_SPECTRA = without_probe("albert-spectra", "albert_spectra")
    ALBERT_TRAINING = without_probe("albert-training", "albert_training", asks=True)
    ATLAS = without_probe("atlas", "atlas_of_limits", asks=True)
    CAUSAL_BRIDGE = without_probe("causal-bridge", "causal_bridge", asks=True)
    CAUSAL_NETWORK = without_probe("causal-network", "causal_network", asks=True)
    INTERACTING_HEADS = without_probe("interacting-heads", "interacting_heads", asks=True)
    LANGUAGE_TRAINING = without_probe("language-training", "language_model", asks=True)
    LSTM = without_probe("lstm", "lstm_states", asks=True)
    NEURAL_COLLAPSE = without_probe("neural-collapse", "neural_collapse")
    SENTIMENT_NEURON = without_probe("sentiment-neuron", "sentiment_neuron", asks=True)
    SINK_TRAINING = without_probe("sink-training", "sink_training", asks=True)
    PERCEPTRON_DELAY = without_probe("perceptron-delay", "perceptron_delay", asks=True)
    WORD_SENSES = without_probe("word-senses", "word_senses", asks=True)


EXPERIMENTS: tuple[Experiment, ...] = (
    FIGURE1, FIGURE2, FIGURE3, FIGURE4, FIGURE5, FIGURE6, FIGURE7, FIGURE8, ALBERT_SPECTRA, ALBERT_BRIDGE,
    ALBERT_TRAINING, LANGUAGE_TRAINING, CAUSAL_NETWORK, CAUSAL_BRIDGE, SINK_TRAINING, LSTM, FACTS, WORD_SENSES,
    SENTIMENT_NEURON, NEURAL_COLLAPSE, NORM_SCHEMES, RANK_COLLAPSE, LONG_CONTEXT, PERCEPTRON_DELAY, INTERACTING_HEADS,
    PHASE_DIAGRAM, CAUSAL_PHASE_DIAGRAM, LINEAR_PHASE, EMERGENCE_POLYTOPE, EMERGENCE_HYPERPLANES, EMERGENCE_MIXED,
    BOOLEAN_ATTENTION, GAUSSIAN_CLOSURE, MOEBIUS, STAIRCASE, CLUSTER_LIFETIMES, RENYI_CENTRES, REPULSION,
    ANY_QUERY_KEY, ATLAS, NOISE_BIFURCATION, KRAMERS_ESCAPE, GRADIENT_FLOW, TRAINING_ESCAPE, DESIGN_RECOVER,
    DESIGN_HOLD, DESIGN_STEER,
    HARDMAX_POLYTOPE, HARDMAX_OPEN_PROBLEMS, SENTIMENT_WORDS, SENTIMENT_LEADERS, SENTIMENT_TRAINING,
)  # fmt: skip
"""All figures of the package, in the order of the gallery."""


def find_experiments(names: Sequence[str | Experiment]) -> list[Experiment]:
    """The experiments of these names, each once, in the order of the figures, and behind them those of a user's own.

    !!! example

        ```python
        >>> from clusterjax import experiments
        >>> (figure,) = experiments.find_experiments(["figure4"])
        >>> print(figure.claim)
        At beta = 9 distinct clusters persist in a metastable state and do not collapse to a single point.
        ```

    **Arguments:**

    - `names`: Names or aliases of figures, such as `"figure3"`, and experiments; an empty list means all figures of the
        package.

    **Returns:**

    A list of experiments.

    **Raises:**

    - `ValueError` for a name that no experiment has, or an experiment whose name or alias another has.
    - `ImportError` if some of them need an extra that is not installed.
    """
    # An empty list is all figures of the package; a string alone is no list of names.
    asked = check_sequence(names, "names", (str, Experiment), "names of figures", least=0)
    # Names and aliases alike.
    known = {label: experiment for experiment in EXPERIMENTS for label in (experiment.name, experiment.alias)}
    own = [entry for entry in asked if isinstance(entry, Experiment) and not is_known(entry)]
    names = [entry for entry in asked if isinstance(entry, str)]
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.7)
            remedy = f"did you mean {near[0]!r}? All of them are shown" if near else "all of them are shown"
            raise ValueError(
                f"names must be figures that can be reproduced, but there is no {shown(name)}; {remedy} by "
                "clusterjax reproduce --list."
            )
    # Before anything runs: two figures of one name would write to one folder.
    _refuse_clashes(own)
    wanted = {known[name].name for name in names} | {entry.name for entry in asked if isinstance(entry, Experiment)}
    known_ones = [experiment for experiment in EXPERIMENTS if not asked or experiment.name in wanted]
    refuse_lacking(known_ones, EXPERIMENTS)
    return known_ones + own


def is_known(experiment: Experiment) -> bool:
    """Whether an experiment is one of the package, and not one of a user's own."""
    return any(known is experiment for known in EXPERIMENTS)


def _refuse_clashes(own: Sequence[Experiment]) -> None:
    """Raise a ValueError if a user's experiment shares a label with another: each has a folder of its own, also where
    a file system does not tell small letters from large ones."""
    taken = {
        label.casefold(): "a figure of the package"
        for experiment in EXPERIMENTS
        for label in (experiment.name, experiment.alias)
    }
    for place, experiment in enumerate(own):
        for label in {experiment.name, experiment.alias}:
            if whose := taken.get(label.casefold()):
                raise ValueError(
                    f"names must hold experiments of different names and aliases, but {label!r} is also {whose}; give "
                    "it another."
                )
        # An experiment may have its name for its alias, but not that of another.
        taken |= {label.casefold(): f"experiment {place} of your own" for label in (experiment.name, experiment.alias)}
