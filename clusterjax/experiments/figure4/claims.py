"""What figure 4 claims: several clusters last, for a while; the more, the larger beta is."""

import numpy as np

from ..framework.ensemble import mean_and_error
from ..framework.experiment import Claim, over, percent, plus_minus
from ..framework.particles import second_token_claim
from ..framework.sources import particles, peat
from .measure import EARLY, TIMES, Results


SIZE = {"tokens": 64, "d": 3}  # of the paper


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure."""
    return over(
        f"{m.starts} starts", (_several(m), _metastable(m), _granularity(m), second_token_claim(m.defect), _first(m))
    )


def _several(m: Results) -> Claim:
    (count, error), early = m.count, m.p.place(EARLY)
    # A share of starts is a mean of zeros and ones.
    several, of_several = mean_and_error(m.clusters[:, early] > 1)
    at = {t: m.p.place(t) for t in (*TIMES, m.p.end)}
    counted = ", ".join(f"{plus_minus(count[i], error[i])} at t = {t:g}" for t, i in at.items())
    return Claim(
        says=f"At beta = {m.p.beta:g} distinct clusters persist and do not collapse to a single point.",
        measured=f"{percent(several, of_several)} of the starts have several clusters at t = 15; clusters: {counted}",
        criterion="more than 95 % of the starts have several clusters at t = 15",
        holds=bool(several > 0.95),
        kind="paper",
        value=float(count[early]),
        error=float(error[early]),
        source=peat("Figure 4", size=SIZE | {"beta": 9}, least={"t": 15}),
    )


def _metastable(m: Results) -> Claim:
    (count, error), early = m.count, m.p.place(EARLY)
    still = float((m.clusters[:, -1] > 1).mean())
    return Claim(
        says="The state at t = 15 is not final: the mean number of clusters goes on falling.",
        measured=f"from t = 15 to {m.p.end:g} the count falls from {plus_minus(count[early], error[early])} to "
        f"{plus_minus(count[-1], error[-1])}; {100 * still:.0f} % of the starts still have several",
        criterion="the mean count falls after t = 15 by more than four standard errors",
        # The same starts at both times: taken as independent the error is too large rather than too small.
        holds=bool(count[early] - count[-1] > 4 * np.hypot(error[-1], error[early])),
        kind="finding",
        value=float(count[-1]),
        error=float(error[-1]),
    )


def _granularity(m: Results) -> Claim:
    levels = [float(mean) for mean, _ in m.by_beta.values()]
    listed = ", ".join(f"{plus_minus(*pair)} at beta = {beta:g}" for beta, pair in m.by_beta.items())
    return Claim(
        says="beta controls the granularity: the larger, the more clusters at t = 15.",
        measured=f"clusters at t = 15: {listed}",
        criterion="increases from each beta to the next",
        holds=bool(np.all(np.diff(levels) > 0)),
        kind="paper",
        value=levels[-1],
        error=float(list(m.by_beta.values())[-1][1]),
        source=peat("Section 4.2.2", size=SIZE),
        on=particles(tokens=m.p.n, d=m.p.d, beta=tuple(m.by_beta), t=EARLY, starts=m.starts),
    )


def _first(m: Results) -> Claim:
    return Claim(
        says="With V = I the first token does not move (2411.04990).",
        measured=f"moved by {m.moved:.1e} at most",
        criterion="less than 1e-9",
        holds=m.moved < 1e-9,
        kind="identity",
        value=m.moved,
    )


def caption_of(m: Results, several: Claim) -> str:
    """What is seen, and what holds; `several` is the claim that clusters persist."""
    persist = "Several clusters persist at t = 15, as the paper says, but not for ever: the count falls to"
    gather = "Few starts have several clusters at t = 15; the count comes to"
    return (
        f"Tokens of one start (seed {m.seed}) under Q = K = V = I and inverse temperature beta = {m.p.beta:g}, and the "
        f"number of clusters (single linkage at radius {m.p.radius:g}) over {m.starts} starts with standard errors. "
        f"{persist if several.holds else gather} {m.count[0][-1]:.1f} by t = {m.p.end:g}, and theory sends almost "
        "every start to one cluster, at the first token, in a time exponential in beta. A large beta is a LOW "
        "temperature; the paper calls it high, and its threshold beta >= sqrt(d) = sqrt(64) takes the number of tokens "
        f"for the dimension, which is {m.p.d} here."
    )
