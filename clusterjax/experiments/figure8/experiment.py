"""Figure 8 as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

from ..framework.experiment import Cost, Experiment, Film, Outcome, Settings
from ..framework.trained_values import check_head
from .claims import caption_of, claims_of
from .measure import TIMES, TS, D, Parameters, Results, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims, source = claims_of(m), m.source
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": D, "beta": p.beta, "value": source.value.tolist(), "head": source.head, "layer": p.layer,
         "scale": source.scale, "source": source.provenance, "query_key": "identity", "mask": "causal",
         "starts": m.starts, "times": list(TIMES)},
        _series(m),
        partial(draw, m),
        Film(TS, m.xs[m.shown], trail=True),
        on=source.measured(tokens=p.n, d=D, beta=p.beta, t=TS[-1].item(), starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    return {
        "t": TS, "alignment": m.alignment[0], "alignment_error": m.alignment[1],
        "distance_to_first": m.distance[0], "distance_to_first_error": m.distance[1],
        "alignment, as it comes": m.slow[0], "distance_to_first, as it comes": m.far[0],
    }  # fmt: skip


def _check(settings: Settings) -> None:
    p = settings.read(Parameters)
    check_head(settings, p.layer, p.head)


FIGURE8 = Experiment(
    "figure8",
    "first_token",
    "Figure 8: the path of the first token",
    "The first token (red, t = 0.6 to 9) aligns with the eigenvectors of V and attracts the subsequent tokens.",
    _run,
    reads_network=True,
    parameters=Parameters,
    check=_check,
    cost=Cost(full=80, quick=10),
)
