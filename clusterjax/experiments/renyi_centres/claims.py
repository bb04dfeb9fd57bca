"""What is claimed of Renyi centres: their numbers, how these grow, and that strong ones stay."""

import numpy as np

from ..framework.ensemble import mean_and_error
from ..framework.experiment import Claim, over, percent, plus_minus
from ..framework.sources import PARTICLES, UNIFORM
from ..framework.verdict import ANY, Source
from .measure import CLOUDS, COUNTED, DIMENSIONS, READ, Followed, Results, mean_count, slope_of
from .theory import PARKING, mean_parked, mean_strong, printed_on_the_sphere


PAPER = "2411.04990"
COUNT = Source(f"{PAPER}, Lemma C.1", ANY, UNIFORM)
PARKED = Source(f"{PAPER}, Appendix C.4", ANY, UNIFORM, {"d": 2})
GROWTH = Source(f"{PAPER}, Section 5", ANY, UNIFORM)
LEMMA = Source(f"{PAPER}, Lemma 5.1", PARTICLES, ANY)
FIGURE = Source(f"{PAPER}, Figure 2", PARTICLES, UNIFORM, {"tokens": 200, "beta": 64})
SIGMAS = 4  # standard errors within which a mean is what it should be
SLOPE = 0.1  # by which an exponent may be off
STILL = 0.95  # the share of centres that counts as all that are seen


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return over(f"{m.starts} starts, of counts {CLOUDS * m.starts} clouds", (
        _circle(m), _printed(m), _corrected(m), _parked(m), _growth(m), _lemma(m), _margin(m), _still(m), _hold(m),
        _longer(m),
    ))  # fmt: skip


def _circle(m: Results) -> Claim:
    mean, error = mean_count(m.counts.strong[2])
    (expected,) = mean_strong(m.p.separation, m.p.n, 2)
    return Claim(
        says="On the circle pi / delta tokens are strong centres on average.",
        measured=f"{plus_minus(mean, error)} of {m.p.n} tokens, where theory gives {expected:.2f}, and "
        f"{np.pi / m.p.separation:.2f} of ever more",
        criterion=f"within {SIGMAS} standard errors of the number for {m.p.n} tokens",
        holds=bool(abs(mean - expected) < SIGMAS * error),
        kind="paper",
        value=mean,
        error=error,
        source=COUNT,
    )


def _printed(m: Results) -> Claim:
    mean, error = mean_count(m.counts.strong[3])
    printed = printed_on_the_sphere(m.p.separation)
    return Claim(
        says="On the sphere 1 / (3 sin^2(delta / 2)) tokens are strong centres on average.",
        measured=f"{plus_minus(mean, error)} of {m.p.n} tokens, where this gives {printed:.2f}",
        criterion=f"within {SIGMAS} standard errors",
        holds=bool(abs(mean - printed) < SIGMAS * error),
        kind="paper",
        value=mean,
        error=error,
        source=COUNT,
    )


def _corrected(m: Results) -> Claim:
    rows = {d: (*mean_count(m.counts.strong[d]), float(mean_strong(m.p.separation, m.p.n, d)[0])) for d in COUNTED}
    off = max(abs(mean - expected) / error for mean, error, expected in rows.values())
    listed = ", ".join(f"{plus_minus(mean, error)} for {expected:.2f} (d = {d})" for d, (mean, error, expected) in
                       rows.items())  # fmt: skip
    return Claim(
        says="The number of strong centres is (1 - (1 - p)^n) / p in every dimension, p the share of a cap: for d = 3 "
        "and ever more tokens 1 / sin^2(delta / 2), three times what is printed.",
        measured=f"{listed}; {1 / np.sin(m.p.separation / 2) ** 2:.2f} for d = 3 and ever more tokens",
        criterion=f"within {SIGMAS} standard errors in each dimension",
        holds=bool(off < SIGMAS),
        kind="finding",
        value=rows[3][0],
        error=rows[3][1],
    )


def _parked(m: Results) -> Claim:
    mean, error = mean_count(m.counts.ordinary[2])
    (expected,) = mean_parked(m.p.separation, m.p.n)
    return Claim(
        says="The mean number of ordinary centres on the circle is that of Renyi's parking problem, 0.75 times 2 pi / "
        "delta.",
        measured=f"{plus_minus(mean, error, 3)} of {m.p.n} tokens, where parking gives {expected:.3f}, and "
        f"{PARKING * 2 * np.pi / m.p.separation:.3f} of ever more",
        criterion=f"within {SIGMAS} standard errors of the number for {m.p.n} arrivals",
        holds=bool(abs(mean - expected) < SIGMAS * error),
        kind="paper",
        value=mean,
        error=error,
        source=PARKED,
    )


def _growth(m: Results) -> Claim:
    slopes = {key: slope_of(m.counts.betas, counts) for key, counts in m.counts.grown.items()}
    off = {key: abs(slope - (key[0] - 1) / 2) for key, slope in slopes.items()}
    return Claim(
        says="With a separation of c beta^(-1/2) the numbers of centres of both kinds grow like beta^((d - 1) / 2).",
        measured="exponents "
        + ", ".join(f"{slope:.3f} (d = {d}, {kind})" for (d, kind), slope in slopes.items())
        + f" from beta = {m.counts.betas[0]:g} to {m.counts.betas[-1]:g}",
        criterion=f"each within {SLOPE:g} of (d - 1) / 2",
        holds=max(off.values()) < SLOPE,
        kind="paper",
        value=slopes[max(off, key=lambda key: off[key])],
        source=GROWTH,
    )


def _early(m: Results, followed: Followed) -> tuple[int, int]:
    """How many centres have moved too far within their windows, of how many."""
    return int(followed.early(m.p.ts, m.p.share * m.p.separation).sum()), len(followed.tokens)


def _lemma(m: Results) -> Claim:
    found = {d: _early(m, m.followed[d, "strong"]) for d in DIMENSIONS}
    early, all_of_them = (sum(pair[k] for pair in found.values()) for k in (0, 1))
    return Claim(
        says="A strong centre moves by less than epsilon c beta^(-1/2) while T s h(c beta^(-1/2)) is below that, s its "
        "place in the sequence and h the pull.",
        measured=", ".join(f"{one} of {many} centres have moved by more (d = {d})" for d, (one, many) in found.items())
        + f", for epsilon = {m.p.share:g} and windows of {_span(m)}",
        criterion="none has",
        holds=early == 0,
        kind="paper",
        value=early / max(all_of_them, 1),
        source=LEMMA,
    )


def _span(m: Results) -> str:
    found = np.concatenate([m.followed[d, "strong"].windows for d in DIMENSIONS])
    return f"t = {found.min():.2g} to {found.max():.3g}" if len(found) else "no time"


def _margin(m: Results) -> Claim:
    early, many = _early(m, m.followed[2, "margin"])
    return Claim(
        says="On the circle this holds of strong centres at (1 + 2 epsilon) times that separation.",
        measured=f"{early} of {many} centres have moved by more",
        criterion="none has: it is proved",
        holds=early == 0,
        kind="identity",
        value=float(early),
    )


def _still(m: Results) -> Claim:
    at = int(np.flatnonzero(m.p.ts == READ)[0])
    shares = {}
    for d in DIMENSIONS:
        followed = m.followed[d, "strong"]
        near = followed.moved[:, at] < m.p.share * m.p.separation
        shares[d] = _share(near, followed.starts, m.starts)
    mean, error = shares[2]
    return Claim(
        says="Strong centres are visibly at rest: most have hardly moved.",
        measured=f"by t = {READ:g}, of the strong centres but the first token, "
        + ", ".join(f"{percent(s, e)} (d = {d})" for d, (s, e) in shares.items())
        + f" have moved by less than {m.p.share:g} of the separation",
        criterion=f"more than {100 * STILL:g} % on the circle",
        holds=bool(mean > STILL),
        kind="paper",
        value=mean,
        error=error,
        source=FIGURE,
    )


def _share(each: np.ndarray, starts: np.ndarray, many: int) -> tuple[float, float]:
    """The share of the centres for which something is so, and its standard error, by starts: those of one are not
    independent."""
    total, yes = (np.bincount(starts, weights=weight, minlength=many) for weight in (None, each.astype(float)))
    share = yes.sum() / max(total.sum(), 1)
    # Of a ratio of sums: the spread of the residuals over starts.
    return float(share), float(np.std(yes - share * total, ddof=1) * np.sqrt(many) / max(total.sum(), 1))


def _hold(m: Results) -> Claim:
    means = {kind: mean_and_error(shares) for kind, shares in m.held.items()}
    more, error = mean_and_error(m.held["ordinary"] - m.held["strong"])
    listed = " and ".join(f"{percent(s, e)} hold one of the {kind}" for kind, (s, e) in
                          means.items())  # fmt: skip
    return Claim(
        says="Strong centres do not account for all clusters, and ordinary ones account for more of them.",
        measured=f"of the clusters on the circle at t = {READ:g}, {listed} centres",
        criterion=f"fewer than all hold a strong one, and more an ordinary one, by {SIGMAS} standard errors",
        holds=bool(means["strong"][0] < 1 and more > SIGMAS * error),
        kind="paper",
        value=float(means["strong"][0]),
        error=float(means["strong"][1]),
        source=FIGURE,
    )


def _longer(m: Results) -> Claim:
    words, holds = [], []
    for d in DIMENSIONS:
        stay = {kind: _stay(m, d, kind) for kind in ("strong", "ordinary")}
        (one, a), (other, b) = stay["strong"], stay["ordinary"]
        words.append(f"{plus_minus(one, a, 3)} and {plus_minus(other, b, 3)} (d = {d})")
        holds.append(one - other > SIGMAS * np.hypot(a, b))
    return Claim(
        says="Strong centres stay longer than the other centres.",
        measured=f"the share that has not left by t = {m.p.end:g}, of the strong and of the other centres: "
        f"{', '.join(words)}",
        criterion=f"the first is larger by {SIGMAS} standard errors in each dimension",
        holds=all(holds),
        kind="finding",
        value=_stay(m, 2, "strong")[0],
    )


def _stay(m: Results, d: int, kind: str) -> tuple[float, float]:
    """The share of centres of a kind that stay to the end, and its standard error."""
    followed = m.followed[d, kind]
    return _share(followed.moved.max(axis=1) < m.p.share * m.p.separation, followed.starts, m.starts)


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    _, printed, corrected, parked, _, lemma, _, still, _, longer = claims
    return (
        f"{m.p.n} uniform tokens under causal attention with V = Q = K = I and beta = {m.p.beta:g}; centres are "
        f"{m.p.c:g} beta^(-1/2) = {m.p.separation:.3g} apart. (a) One start on the circle: strong centres in orange, "
        f"other centres in blue. Over {m.starts} starts: (b) when strong centres have moved by {m.p.share:g} of the "
        "separation, beside the time up to which Lemma 5.1 excludes it; (c) the mean number of centres among the first "
        f"k tokens, and theory (dashed); (d) the same of {m.counts.betas.size} beta; (e) the share of centres that "
        "have not left. "
        + ("The numbers are those of theory" if corrected.holds and parked.holds else "The numbers are not of theory")
        + ("" if printed.holds else ", but not that which the paper prints for d = 3, a third of the right one")
        + ". "
        + ("No strong centre leaves within its window" if lemma.holds else "Some strong centres leave too early")
        + ("; by t = " if still.holds else ", and by t = ")
        + f"{READ:g} {100 * (still.value or 0):.0f} % of them have hardly moved on the circle"
        + (", and they stay longer than the others." if longer.holds else ".")
    )
