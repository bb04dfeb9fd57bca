"""What is claimed of clusters that are kept and of tokens that are kept apart."""

import numpy as np

from ..framework.experiment import Claim, over
from .collapse import AIM, BY_HAND, GATHERED, LAST, METHODS, NORM
from .holding import CASES, GRID, PIECES, RADIUS, UNTIL, N
from .measure import Results


MOST, FEW = 0.9, 0.5  # of the problems


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    found = _norm(m), _often(m), _where(m), _pieces(m), _search(m), _gradient(m), _hand(m), _longer(m)
    return over(f"{len(m.cases)} problems", found)


def percent(share: float) -> str:
    """Of a share."""
    return f"{100 * share:.0f}"


def difference(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """By how much one method succeeds more often than another, and the standard error, of the same problems."""
    apart = one.astype(float) - other
    return float(apart.mean()), float(apart.std(ddof=1) / np.sqrt(len(apart)))


def of_case(m: Results, values: np.ndarray, d: int, k: int) -> float:
    """The mean over the problems of a dimension and a number of clusters; NaN if there are none."""
    those = (m.cases == (d, k)).all(axis=1)
    return float(values[those].mean()) if those.any() else float("nan")


def _norm(m: Results) -> Claim:
    lengths = np.linalg.norm(m.apart.change[:, :-1], axis=(2, 3))
    worst = float(np.abs(lengths / NORM - 1).max())
    return Claim(
        says="All changes of V have the same Frobenius norm.",
        measured=f"to {worst:.1e} of {NORM:g}",
        criterion="to 1e-5",
        holds=worst <= 1e-5,
        kind="identity",
        value=worst,
    )


def _often(m: Results) -> Claim:
    share = float(m.hold.mean())
    each = ", ".join(f"{percent(of_case(m, m.hold, d, k))} (d = {d}, k = {k})" for d, k in CASES)
    return Claim(
        says=f"A beta in {PIECES} pieces, by gradient, keeps k clusters of {N} uniform tokens.",
        measured=f"from t = {UNTIL / 2:g} to {UNTIL:g} in {percent(share)} % of {m.starts} problems; by case in % "
        f"{each}",
        criterion=f"in at least {percent(MOST)} %",
        holds=share >= MOST,
        kind="finding",
        value=share,
    )


def _where(m: Results) -> Claim:
    share = float(m.hold[m.grid].mean()) if m.grid.any() else float("nan")
    return Claim(
        says="Where one constant beta keeps the clusters, a beta in pieces does so in at least 90 % of the problems.",
        measured=f"in {percent(share)} % of the {m.grid.sum()} problems in which one of {GRID} constant betas does",
        criterion=f"in at least {percent(MOST)} % of them",
        holds=share >= MOST,
        kind="finding",
        value=share,
    )


def _pieces(m: Results) -> Claim:
    more, error = difference(m.hold, m.grid)
    return Claim(
        says="A beta that changes in time keeps the clusters more often than the best constant one.",
        measured=f"in {percent(m.hold.mean())} % of the problems, the best of {GRID} constant betas in "
        f"{percent(m.grid.mean())} %: {100 * more:.0f} ± {100 * error:.0f} % more; of those that no constant one "
        f"solves {(m.hold & ~m.grid).sum()} of {(~m.grid).sum()}",
        criterion="more, by two errors",
        holds=more > 2 * error,
        kind="finding",
        value=more,
    )


def _search(m: Results) -> Claim:
    more, error = difference(m.hold, m.search)
    return Claim(
        says="A beta that changes in time keeps the clusters more often than random constant betas of as many runs.",
        measured=f"these in {percent(m.search.mean())} %: {100 * more:.0f} ± {100 * error:.0f} % more; "
        f"{np.median(m.runs):.0f} runs in the median",
        criterion="more, by two errors",
        holds=more > 2 * error,
        kind="finding",
        value=more,
    )


def _gradient(m: Results) -> Claim:
    least = m.apart.cosine[:, 0] < m.apart.cosine[:, 1]
    return Claim(
        says="Against collapse the change of V along the gradient leaves tokens farther apart than the best of random "
        "changes, of as many runs.",
        measured=f"in {percent(least.mean())} % of {m.starts} problems; the median mean cosine at t = {AIM:g} is "
        f"{np.median(m.apart.cosine[:, 0]):.3f}, of as many random changes as runs "
        f"({np.median(m.apart.runs):.0f} in the median) {np.median(m.apart.cosine[:, 1]):.3f}, with "
        f"V = I {np.median(m.apart.cosine[:, -1]):.3f}",
        criterion=f"in at least {percent(MOST)} %",
        holds=bool(least.mean() >= MOST),
        kind="finding",
        value=float(least.mean()),
    )


def _hand(m: Results) -> Claim:
    least = (m.apart.cosine[:, :1] < m.apart.cosine[:, 2:-1]).all(axis=1)
    each = ", ".join(f"{name} {np.median(m.apart.cosine[:, 2 + k]):.3f}" for k, name in enumerate(BY_HAND))
    return Claim(
        says="Against collapse the change of V along the gradient leaves tokens farther apart than changes of the "
        "same norm that are made by hand.",
        measured=f"than all three in {percent(least.mean())} % of the problems; their medians: {each}",
        criterion=f"in at least {percent(MOST)} %",
        holds=bool(least.mean() >= MOST),
        kind="finding",
        value=float(least.mean()),
    )


def _longer(m: Results) -> Claim:
    longer = m.apart.time[:, 0] > m.apart.time[:, 1:-1].max(axis=1)
    each = ", ".join(f"{name} {np.median(m.apart.time[:, k]):.1f}" for k, name in enumerate(METHODS))
    return Claim(
        says="With the change of V along the gradient tokens take longer to collapse than with any other, in more "
        "than half of the problems.",
        measured=f"longer than with any other change in {percent(longer.mean())} % of the problems; the median time at "
        f"which the mean cosine passes {GATHERED:g}: {each}, with V = I {np.median(m.apart.time[:, -1]):.1f}; runs end "
        f"at {LAST:g}",
        criterion=f"in more than {percent(FEW)} %",
        holds=bool(longer.mean() > FEW),
        kind="finding",
        value=float(longer.mean()),
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    _, often, _, pieces, search, gradient, hand, longer = claims
    found = [
        "Clusters are kept" if often.holds else "Not all clusters can be kept",
        ", more often than by one constant beta" if pieces.holds else ", no more often than by one constant beta",
        ". " if search.holds else ", though random betas of as many runs do as well. ",
        "The gradient finds the best change of V"
        if gradient.holds and hand.holds
        else "The gradient does not always find the best change of V",
        ", with which tokens also collapse last." if longer.holds else "; tokens need not collapse last with it.",
    ]
    return (
        f"(a) Share of {m.starts} problems in which {N} uniform tokens form exactly k clusters of radius {RADIUS:g} "
        f"from t = {UNTIL / 2:g} to {UNTIL:g}, by dimension and k, for beta in {PIECES} pieces by gradient, the best "
        f"of as many random constant betas and the best of {GRID} on a grid; (b) the two pieces where clusters are "
        f"kept. (c) Changes of V of Frobenius norm {NORM:g} against collapse: the mean cosine of two tokens at t = "
        f"{AIM:g}, quartiles and middle 80 % of the problems. " + "".join(found)
    )
