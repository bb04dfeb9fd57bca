"""All experiments, in the order of the figures; a new one is one file and one line here."""

from collections.abc import Sequence
from importlib.util import find_spec

from .._check import check_sequence
from ._experiment import Experiment
from ._figure3 import FIGURE3
from ._figure4 import FIGURE4
from ._figure5 import FIGURE5
from ._figure6 import FIGURE6
from ._lacking import refuse_lacking, without_probe
from ._linear_phase import LINEAR_PHASE
from ._long_context import LONG_CONTEXT
from ._norm_schemes import NORM_SCHEMES
from ._phase_diagram import PHASE_DIAGRAM
from ._polytope_figure import HARDMAX_POLYTOPE
from ._rank_collapse import RANK_COLLAPSE
from ._sentiment_leaders import SENTIMENT_LEADERS
from ._sentiment_training import SENTIMENT_TRAINING
from ._sentiment_words import SENTIMENT_WORDS


# The figures of trained networks need the extra probe; without it they are there by name alone.
if find_spec("flax") is not None and find_spec("transformers") is not None:
    from ._albert_bridge import ALBERT_BRIDGE
    from ._albert_spectra import ALBERT_SPECTRA
    from ._albert_training import ALBERT_TRAINING
    from ._figure1 import FIGURE1
    from ._figure2 import FIGURE2
    from ._figure7 import FIGURE7
    from ._figure8 import FIGURE8
    from ._interacting_heads import INTERACTING_HEADS
    from ._language_training import LANGUAGE_TRAINING
    from ._perceptron_delay import PERCEPTRON_DELAY
else:
    FIGURE1 = without_probe("figure1", "similarity_histograms")
    FIGURE2 = without_probe("figure2", "attention_heads")
    FIGURE7 = without_probe("figure7", "albert_eigenvalues")
    FIGURE8 = without_probe("figure8", "first_token")
    ALBERT_BRIDGE = without_probe("albert-bridge", "albert_bridge", asks=True)
    ALBERT_SPECTRA = without_probe("albert-spectra", "albert_spectra")
    ALBERT_TRAINING = without_probe("albert-training", "albert_training", asks=True)
    INTERACTING_HEADS = without_probe("interacting-heads", "interacting_heads", asks=True)
    LANGUAGE_TRAINING = without_probe("language-training", "language_model", asks=True)
    PERCEPTRON_DELAY = without_probe("perceptron-delay", "perceptron_delay", asks=True)


EXPERIMENTS: tuple[Experiment, ...] = (
    FIGURE1, FIGURE2, FIGURE3, FIGURE4, FIGURE5, FIGURE6, FIGURE7, FIGURE8, ALBERT_SPECTRA, ALBERT_BRIDGE,
    ALBERT_TRAINING, LANGUAGE_TRAINING, NORM_SCHEMES, RANK_COLLAPSE, LONG_CONTEXT, PERCEPTRON_DELAY, INTERACTING_HEADS,
    PHASE_DIAGRAM, LINEAR_PHASE, HARDMAX_POLYTOPE, SENTIMENT_WORDS, SENTIMENT_LEADERS, SENTIMENT_TRAINING,
)  # fmt: skip


def find_experiments(names: Sequence[str]) -> list[Experiment]:
    """The experiments of these names, each once, in the order of the figures; all if there are no names.

    **Arguments:**

    - `names`: Names or aliases, such as `["figure3"]`; an empty list means all.

    **Returns:**

    A list of experiments.

    **Raises:**

    - `ValueError` for a name that no experiment has.
    - `ImportError` if some of them need an extra that is not installed.

    Source: this library.
    """
    names = check_sequence(names, "names", str, "names of figures", least=0)
    known = {label: experiment for experiment in EXPERIMENTS for label in (experiment.name, experiment.alias)}
    for name in names:
        if name not in known:
            choices = ", ".join(f"{experiment.name} ({experiment.alias})" for experiment in EXPERIMENTS)
            raise ValueError(
                f"names must be figures that can be reproduced, but there is no {name!r}; choose of {choices}."
            )
    wanted = {known[name].name for name in names}
    found = [experiment for experiment in EXPERIMENTS if not names or experiment.name in wanted]
    refuse_lacking(found, EXPERIMENTS)
    return found
