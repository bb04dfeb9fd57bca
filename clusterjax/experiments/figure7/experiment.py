"""Figure 7 as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

from ..framework.ensemble import mean_and_error
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
        {"n": p.n, "d": D, "beta": p.beta, "value": source.value.tolist(),
         "value as it comes": source.raw[source.head].tolist(), "head": source.head, "layer": p.layer,
         "scale": source.scale, "source": source.provenance, "query_key": "identity", "mask": "causal",
         "radius": p.radius, "starts": m.starts, "times": list(TIMES)},
        _series(m),
        partial(draw, m),
        Film(TS, m.run.xs[0]),
        on=source.measured(tokens=p.n, d=D, beta=p.beta, t=TS[-1].item(), starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    of_runs = {
        f"{what}{which}{error}": values
        for which, one in (("", m.run), (", as it comes", m.raw))
        for what, samples in (("clusters", one.clusters), ("distance_to_first", one.distances))
        for error, values in zip(("", "_error"), mean_and_error(samples), strict=True)
    }
    # One number for each head: clusters at t = 15 with its error, and the distance to the first token.
    of_heads = {
        f"{what}_by_head{which}": numbers
        for which, one in (("", m.heads), (", as it comes", m.raw_heads))
        for what, numbers in (
            ("clusters_at_15", one.mean[:, 1]),
            ("clusters_at_15_error", one.error[:, 1]),
            ("distance_at_15", one.mean[:, 2]),
        )
    }
    return {"t": TS} | of_runs | {"largest_real_part_by_head": m.source.top} | of_heads


def _check(settings: Settings) -> None:
    p = settings.read(Parameters)
    check_head(settings, p.layer, p.head)


FIGURE7 = Experiment(
    "figure7",
    "albert_eigenvalues",
    "Figure 7: the top three eigenvalues of an ALBERT head",
    "With ALBERT's top-3 eigenvalues the system is metastable from t = 6 to 15, the first token apart from the others.",
    _run,
    reads_network=True,
    parameters=Parameters,
    check=_check,
    cost=Cost(full=100, quick=10),
)
