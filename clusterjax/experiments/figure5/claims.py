"""What figure 5 claims: whether clusters sit at opposite sides, and what tokens do in their place."""

import numpy as np

from ..framework.ensemble import mean_and_error
from ..framework.experiment import Claim, over, percent, plus_minus
from ..framework.particles import first_token_claim, second_token_claim
from ..framework.sources import peat
from .measure import GAPPED, GAPPED_END, PLAIN, Results, uniform_clusters, uniform_opposition


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure."""
    return over(
        f"{m.starts} starts",
        (
            _opposite(m),
            _no_clusters(m),
            _gapped(m),
            _halving(m),
            second_token_claim(m.defect, "With V = -I", "its angle"),
            first_token_claim(m.off),
        ),
    )


def _opposite(m: Results) -> Claim:
    run = m.runs[PLAIN]
    opposition, error = run.opposition[run.early], run.error[run.early]
    return Claim(
        says="At t = 5 the clusters sit at opposite sides of the circle (V = -I).",
        measured=f"|mean e^(2i theta)| = {plus_minus(opposition, error, 3)} at t = 5; it is 1 for two opposite "
        f"clusters and {uniform_opposition(m.p.n):.3f} for independent uniform tokens",
        criterion="above 0.5",
        holds=bool(opposition > 0.5),
        kind="paper",
        value=float(opposition),
        error=float(error),
        source=peat("Figure 5", size={"tokens": 64, "d": 2, "beta": 1, "t": 5}),
    )


def _no_clusters(m: Results) -> Claim:
    # Clusters under V = -I alone.
    (count, error), early = m.count, m.runs[PLAIN].early
    return Claim(
        says="Repulsion by V = -I forms no clusters: their number does not fall from t = 0 to 5.",
        measured=f"clusters at radius {m.p.radius:g}: {plus_minus(count[0], error[0])} at t = 0, "
        f"{plus_minus(count[early], error[early])} at t = 5, {plus_minus(count[-1], error[-1])} at "
        f"t = {m.p.end:g}; independent uniform tokens have {uniform_clusters(m.p.n, m.p.radius):.2f}",
        criterion="not fewer at t = 5 than at t = 0, by four standard errors",
        holds=bool(count[0] - count[early] < 4 * np.hypot(error[0], error[early])),
        kind="finding",
        value=float(count[early]),
        error=float(error[early]),
    )


def _gapped(m: Results) -> Claim:
    run = m.runs[GAPPED]
    at = [plus_minus(run.opposition[i], run.error[i], 3) for i in (run.early, -1)]
    return Claim(
        says="With V = diag(-1, -10), whose second eigenvalue is far below the top one, tokens form two opposite "
        "groups.",
        measured=f"|mean e^(2i theta)| = {at[0]} at t = 5, {at[1]} at t = {GAPPED_END:g}",
        criterion="above 0.5 at both times",
        holds=bool(run.opposition[run.early] > 0.5 and run.opposition[-1] > 0.5),
        kind="finding",
        value=float(run.opposition[run.early]),
        error=float(run.error[run.early]),
    )


def _halving(m: Results) -> Claim:
    """Tokens 2 to 8 halve the gaps."""
    # (starts, 7) each, in degrees.
    early, late = m.dyadic[:, m.runs[PLAIN].early], m.dyadic[:, -1]
    # All seven tokens of a start must have arrived.
    arrived, error = mean_and_error(late.max(-1) < 1.0)
    return Claim(
        says="With V = -I the first tokens halve the circle: token 2 goes opposite to token 1, tokens 3 and 4 to the "
        "right angles between, tokens 5 to 8 to the odd multiples of 45 degrees.",
        measured="all of tokens 2 to 8 are within 1 degree of such places in "
        f"{percent(arrived, error)} of the starts at t = {m.p.end:g}; their median distance is "
        f"{np.median(early):.1f} degrees at t = 5 and {np.median(late):.1e} at t = {m.p.end:g}",
        criterion="in more than 95 % of the starts",
        holds=bool(arrived > 0.95),
        kind="finding",
        value=float(arrived),
        error=float(error),
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds of it by the claims of the figure."""
    opposite, _, gapped, halving = claims[:4]
    spread = (
        "With V = -I they are not there: repulsion spreads the tokens evenly, each as far as it can get from its "
        "predecessors."
    )
    halved = (
        "token 2 ends opposite to token 1, tokens 3 and 4 half-way between, tokens 5 to 8 half-way between those, and "
        "so on; two opposite clusters are only what the first two tokens do."
    )
    drawn = (
        "Two opposite groups do appear, and stay, when V's second eigenvalue is far below its top one of -1: every "
        "token is then drawn towards the top eigenvector, on either side."
    )
    return (
        f"Tokens of one start (seed {m.seed}) on the circle, Q = K = I and beta = {m.p.beta:g}, under V = -I (above) "
        f"and V = diag(-1, -10) (below), and two numbers over {m.starts} starts with standard errors. The paper sees "
        f"clusters at opposite sides at t = 5. {'They are there with V = -I.' if opposite.holds else spread} (b): "
        + (halved if halving.holds else "how far tokens 2 to 8 are from where each of them would halve a gap.")
        + (f" {drawn}" if gapped.holds else " With V = diag(-1, -10) there are no two opposite groups either.")
    )
