"""The open problems of hardmax as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.verdict import Measured
from .claims import CLOUDS, LAYERS_ALONE, caption_of, claims_of
from .kinds import KINDS
from .learnt import FORMS
from .measure import DIMENSIONS, Parameters, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    held = m.verdicts[:, :, 0] / p.clouds
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": p.d, "alpha": 1, "A": ", ".join(KINDS), "starts": p.clouds,
         "counterexamples": [
             {"A is": one.kind, "fails": one.found.clauses[one.clause].says, "A": one.form.astype(int).tolist(),
              "tokens": one.tokens.astype(int).tolist()} for one in m.small
         ]},
        {"clause": np.arange(1, 6)} | {f"held, {kind}": shares for kind, shares in zip(KINDS, held, strict=True)}
        | {f"{name}_by_training, {kind}": values[k] for k, kind in enumerate(FORMS) for name, values in (
            ("accuracy", m.learnt.accuracy), ("leaders", m.learnt.leaders), ("least eigenvalue", m.learnt.least),
            ("skewness", m.learnt.skewness))}
        | {"dimension_by_dimension": np.array(DIMENSIONS), "no_leader_by_dimension": m.without[:, 0]},
        partial(draw, m),
        None,
        on=Measured(LAYERS_ALONE, CLOUDS, {"tokens": p.n, "d": p.d, "starts": p.clouds}),
    )  # fmt: skip


HARDMAX_OPEN_PROBLEMS = Experiment(
    "hardmax-open-problems",
    "hardmax_open_problems",
    "Hardmax: what is left of the theorem for other matrices",
    "For an A that is of low rank, indefinite or not symmetric, leaders and vertices may fail; whatever A is, a leader "
    "stays and limits are stationary.",
    _run,
    reads_reviews=True,
    parameters=Parameters,
    cost=Cost(full=260, quick=40),
)
