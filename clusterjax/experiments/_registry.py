"""All experiments, in the order of the figures; a new one is one file and one line here."""

from ._albert_bridge import ALBERT_BRIDGE
from ._albert_spectra import ALBERT_SPECTRA
from ._albert_training import ALBERT_TRAINING
from ._experiment import Experiment
from ._figure1 import FIGURE1
from ._figure2 import FIGURE2
from ._figure3 import FIGURE3
from ._figure4 import FIGURE4
from ._figure5 import FIGURE5
from ._figure6 import FIGURE6
from ._figure7 import FIGURE7
from ._figure8 import FIGURE8
from ._interacting_heads import INTERACTING_HEADS
from ._language_training import LANGUAGE_TRAINING
from ._long_context import LONG_CONTEXT
from ._norm_schemes import NORM_SCHEMES
from ._perceptron_delay import PERCEPTRON_DELAY
from ._phase_diagram import PHASE_DIAGRAM
from ._polytope_figure import HARDMAX_POLYTOPE
from ._rank_collapse import RANK_COLLAPSE
from ._sentiment_leaders import SENTIMENT_LEADERS
from ._sentiment_training import SENTIMENT_TRAINING
from ._sentiment_words import SENTIMENT_WORDS


EXPERIMENTS: tuple[Experiment, ...] = (
    FIGURE1, FIGURE2, FIGURE3, FIGURE4, FIGURE5, FIGURE6, FIGURE7, FIGURE8, ALBERT_SPECTRA, ALBERT_BRIDGE,
    ALBERT_TRAINING, LANGUAGE_TRAINING, NORM_SCHEMES, RANK_COLLAPSE, LONG_CONTEXT, PERCEPTRON_DELAY, INTERACTING_HEADS,
    PHASE_DIAGRAM, HARDMAX_POLYTOPE, SENTIMENT_WORDS, SENTIMENT_LEADERS, SENTIMENT_TRAINING,
)  # fmt: skip


def find_experiments(names: list[str]) -> list[Experiment]:
    """The experiments of these names, each once, in the order of the figures; all if there are no names.

    **Arguments:**

    - `names`: Names or aliases, such as `["figure3"]`; an empty list means all.

    **Returns:**

    A list of experiments.

    **Raises:**

    - `ValueError` for a name that no experiment has.

    Source: this library.
    """
    known = {label: experiment for experiment in EXPERIMENTS for label in (experiment.name, experiment.alias)}
    for name in names:
        if name not in known:
            choices = ", ".join(f"{experiment.name} ({experiment.alias})" for experiment in EXPERIMENTS)
            raise ValueError(
                f"names must be figures that can be reproduced, but there is no {name!r}; choose of {choices}."
            )
    wanted = {known[name].name for name in names}
    return [experiment for experiment in EXPERIMENTS if not names or experiment.name in wanted]
