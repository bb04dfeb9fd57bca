"""What figure 7 claims: whether the state lasts, whether the first token stays apart, and at which heads."""

import numpy as np

from ..framework.ensemble import mean_and_error
from ..framework.experiment import Claim, over, percent, plus_minus
from ..framework.particles import first_token_claim
from ..framework.sources import PEAT_FIGURE_7
from ..framework.trained_values import TrainedValues
from .measure import I6, Results


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure."""
    return over(f"{m.starts} starts", _claims(m))


def _claims(m: Results) -> tuple[Claim, ...]:
    """What becomes of the tokens, of one head and of all, with time rescaled, and beside it with V as it comes."""
    source, run, raw, heads, raw_heads, n = m.source, m.run, m.raw, m.heads, m.raw_heads, m.p.n
    counts, slow = mean_and_error(run.clusters), mean_and_error(raw.clusters)
    change, change_error = mean_and_error(run.clusters[:, I6] - run.clusters[:, -1])
    distance, distance_error = mean_and_error(run.distances[:, -1])
    alone, alone_error = mean_and_error(run.distances[:, -1] > 0.5)
    of_raw = mean_and_error(raw.distances[:, -1])
    return (
        Claim(
            says="The system converges to a metastable state by t = 6 and keeps it through t = 15.",
            measured=f"clusters: {_at(counts, I6)} at t = 6, {_at(counts, -1)} at t = 15; the count falls by "
            f"{plus_minus(change, change_error)} in between; with V as it comes {_at(slow, I6)} and {_at(slow, -1)}. "
            f"So it does at {_listed(heads.metastable(n))} of the {len(source.matrices)} heads, as they come at "
            f"{_listed(raw_heads.metastable(n))}",
            criterion=f"the count changes by less than 0.5 from t = 6 to 15, and is above 1.5 and at most {n // 2} at "
            "t = 15, with time rescaled",
            holds=bool(abs(change) < 0.5 and 1.5 < counts[0][-1] <= n // 2),
            kind="paper",
            value=float(counts[0][-1]),
            error=float(counts[1][-1]),
            source=PEAT_FIGURE_7,
        ),
        Claim(
            says="The initial token is segregated from the subsequent ones at t = 15.",
            measured=f"mean distance to the first token {plus_minus(distance, distance_error, 3)} at t = 15; above "
            f"0.5 in {percent(alone, alone_error)} of the starts; with V as it comes, before the "
            f"tokens have gathered at all, {plus_minus(*of_raw, 3)}",
            criterion="the mean distance exceeds 0.5 in more than half of the starts, with time rescaled",
            holds=bool(alone > 0.5),
            kind="paper",
            value=float(distance),
            error=float(distance_error),
            source=PEAT_FIGURE_7,
        ),
        *_limits(run.xs[:, -1], source),
        _claim_of_repelling(m),
        Claim(
            says="The mean number of clusters at t = 15 differs by more than one between heads.",
            measured=f"clusters at t = 15 over the {len(heads.mean)} heads: {_range(heads.mean[:, 1], 1)}; mean "
            f"distance to the first token: {_range(heads.mean[:, 2], 2)} ({heads.starts} starts each); as they come "
            f"{_range(raw_heads.mean[:, 1], 1)} and {_range(raw_heads.mean[:, 2], 2)}",
            criterion="the heads differ by more than one cluster, with time rescaled",
            holds=bool(np.ptp(heads.mean[:, 1]) > 1.0),
            kind="finding",
            value=float(np.ptp(heads.mean[:, 1])),
        ),
        first_token_claim(max(run.off, raw.off), "of both runs "),
    )


def _at(series: tuple[np.ndarray, np.ndarray], time: int) -> str:
    return plus_minus(series[0][time], series[1][time])


def _range(values: np.ndarray, digits: int) -> str:
    return f"from {values.min():.{digits}f} to {values.max():.{digits}f}"


def _listed(which: np.ndarray) -> str:
    heads = [int(head) + 1 for head in np.flatnonzero(which)]
    return f"{len(heads)} {heads}" if heads else "none"


def _repelling_words(source: TrainedValues) -> str:
    """How many heads repel, for a caption."""
    many, of = int(source.repelling.sum()), len(source.repelling)
    if many == 0:
        return f"None of the {of} heads repels."
    return (
        f"{many} of the {of} heads repel (vermilion): the eigenvalue of largest real part lies left of zero, "
        f"{_range(source.top[source.repelling], 3)} as they come."
    )


def _cases_words(source: TrainedValues) -> str:
    """Which of the heads that do not repel attract, and which turn tokens, by their leading eigenvalue."""
    listed = lambda case: [int(head) + 1 for head in np.flatnonzero(source.cases == case)]
    return f"heads {listed('attractive')} attract (real), heads {listed('rotating')} turn (a complex pair)"


def _claim_of_repelling(m: Results) -> Claim:
    """Whether tokens stay apart at just the heads whose V repels."""
    source, heads, raw, n = m.source, m.heads, m.raw_heads, m.p.n
    # Apart: more clusters than half of the tokens.
    repels, apart = source.repelling, heads.mean[:, 1] > n / 2
    words = []
    for which, name in ((repels, "repel"), (~repels, "do not")):
        if which.any():
            words.append(
                f"heads {[int(h) + 1 for h in np.flatnonzero(which)]} {name}: largest real part "
                f"{_range(source.top[which], 3)}, clusters at t = 15 {_range(heads.mean[which, 1], 1)}, as they come "
                f"{_range(raw.mean[which, 1], 1)}"
            )
    return Claim(
        says="Heads whose V has its top eigenvalue left of zero repel: tokens stay apart at just these.",
        measured=f"{int(repels.sum())} of {len(repels)} heads; "
        + "; ".join(words)
        + f"; of the others {_cases_words(source)}",
        criterion=f"more than {n // 2} clusters of {n} tokens at t = 15 at just these heads, with time rescaled",
        holds=bool((repels == apart).all()),
        kind="finding",
        value=float(repels.sum()),
    )


def _limits(x: np.ndarray, source: TrainedValues) -> tuple[Claim, ...]:
    """Where tokens (starts, n, d) are at the end, if the top eigenvalue is real and simple."""
    # A pair has no eigenvector to end at.
    if source.leading != 1:
        return ()
    # The block of the top eigenvalue stands first in V.
    along = x[..., 0]
    at_ends, error = mean_and_error((np.abs(along) > 0.99).mean(-1))
    both, both_error = mean_and_error((along.max(-1) > 0.99) & (along.min(-1) < -0.99))
    return (
        Claim(
            says="The run ends at the top eigenvector v, at v or at -v (conjectured in 2411.04990), and is not "
            "metastable.",
            measured=f"{percent(at_ends, error)} of the tokens have |<x, v>| > 0.99 at t = 15; "
            f"{percent(both, both_error)} of the starts have tokens at both ends",
            criterion="more than 95 % of the tokens",
            holds=bool(at_ends > 0.95),
            kind="finding",
            value=float(at_ends),
            error=float(error),
        ),
    )


def _end(claim: Claim) -> str:
    """Whether the run has come to its end."""
    if claim.holds:
        return "; the run has reached its end, the top eigenvector and its opposite, and stays there for ever"
    return f"; only {100 * (claim.value or 0.0):.0f} % of the tokens have come to the top eigenvector or its opposite"


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds of it by the claims of the figure."""
    source, raw, count = m.source, m.raw, m.run.clusters.mean(axis=0)
    return (
        f"Tokens of one start (seed {m.seed}), Q = K = I, beta = {m.p.beta:g}, V with the eigenvalues of largest real "
        f"part of head {source.head + 1} of {source.provenance}. First row: V as it comes. Second row: the same V "
        f"times {source.scale:.3g}, so that the largest real part is {source.value[0, 0]:.0f} ({source.words}), which "
        f"changes nothing but the unit of time: 1 stands for {source.scale:.3g} layers; a conjugate pair stands as a "
        "2 x 2 block, and the "
        f"basis, which eigenvalues leave open, is orthonormal. (a) Clusters (radius {m.p.radius:g}) and (b) mean "
        f"distance to the first token, over {m.starts} starts with standard errors. (c) All eigenvalues of that head "
        "as they come, and the three. (d) Clusters at t = 15 for each head, as it comes and with the same factor, "
        f"{m.heads.starts} starts each. {_repelling_words(source)} The paper sees a metastable state from t = 6 on, "
        f"with the first token apart. With head {source.head + 1} there are {raw.clusters[:, I6].mean():.1f} clusters "
        f"at t = 6 and {raw.clusters[:, -1].mean():.1f} at t = 15 as it comes, {count[I6]:.1f} and {count[-1]:.1f} "
        f"with its time rescaled, and the first token is {'apart from' if claims[1].holds else 'among'} the others"
        + _end(claims[2]) * (source.leading == 1)
        + ". The causal mask is the paper's: ALBERT itself attends in both directions."
    )
