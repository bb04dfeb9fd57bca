"""Attention with perceptrons as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

from ..framework.ensemble import mean_and_error
from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.networks import model_of, subject_of
from ..framework.verdict import Measured, Subject
from .albert import RADIUS, RTOL, TS
from .claims import caption_of, claims_of_flows, claims_of_groups
from .measure import Parameters, Results, measure
from .panels import draw
from .trained import ANGLE, BATCH, BETA, END, FEATURES, NOISE, TS as TS_OF_GROUPS, D, N


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    flows, learnt, texts = m.flows, m.learnt, len(m.flows.cosine["both"])
    return Outcome(
        caption_of(flows, learnt),
        (*claims_of_flows(flows), *claims_of_groups(learnt)),
        {"network": "the ALBERT of this package", "texts": texts, "tokens": m.p.tokens,
         "random perceptrons": m.p.draws, "length read by attention": flows.radius,
         "length read by the perceptron": flows.fed, "radius": RADIUS,
         "n": N, "d": D, "beta": BETA, "value": "identity", "features": FEATURES, "angle": ANGLE, "noise": NOISE,
         "starts": m.starts, "trained until": END, "training steps": len(learnt.losses), "batch": BATCH,
         "solver": f"of ALBERT's tokens Bogacki-Shampine, rtol and atol {RTOL:g}, float32; of groups Tsit5, rtol 1e-6, "
         "atol 1e-8, float64, and to train Bogacki-Shampine in steps of 0.25"},
        _series(m),
        partial(draw, m),
        None,
        on=_measured(texts, m.p.tokens),
    )  # fmt: skip


def _measured(texts: int, tokens: int) -> Measured:
    """What the claims of ALBERT's tokens are of; those of groups are of particles alone."""
    # Of the package, whatever `Settings.albert` says: the experiment reads no other.
    network = subject_of(*model_of(Settings()))
    return Measured(network, Subject("texts", "passages of Wikipedia"), {"texts": texts, "tokens": tokens})


def _series(m: Results) -> dict:
    flows, learnt = m.flows, m.learnt
    series = {"t": TS, "t of groups": TS_OF_GROUPS, "loss_by_step": learnt.losses, "energy of one run": learnt.energies}
    for name in flows.cosine:
        for what, runs in (("cosine", flows.cosine[name]), ("clusters", flows.clusters[name])):
            series[f"{what}, {name}"], series[f"{what} error, {name}"] = flows.mean_of(name, runs)[:2]
    for name in learnt.labels:
        series[f"purity, {name}"], series[f"purity error, {name}"] = mean_and_error(learnt.purity(name))
    return series


PERCEPTRON_DELAY = Experiment(
    "perceptron-delay",
    "perceptron_delay",
    "Attention with a trained perceptron",
    "Trained perceptrons are to be added to the particle model (the paper's future work): does a trained perceptron "
    "delay the collapse?",
    _run,
    reads_package=True,
    asks=True,
    parameters=Parameters,
    cost=Cost(full=50, quick=50),
)
