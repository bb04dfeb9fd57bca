"""What is claimed of the lifetimes of clusters; criteria were set before the first run."""

import numpy as np

from ..framework.arrivals import LEAST_WAIT, MOST, OFF
from ..framework.ensemble import LEAST_WAITS, line_of, mean_and_error
from ..framework.experiment import Claim, over, percent, plus_minus
from ..framework.verdict import ANY, Source
from .measure import FORMED, LEAST_EXPONENT, Lives, Results


METASTABILITY = Source("2410.06833, the times that clusters stay", ANY, ANY)
# Of the line through the logarithms of waits over laws, and of the median ratio of the two.
SLOPE, FACTOR = 0.1, 2.0
# Figure 4 ends at t = 15: clusters outlive it by this factor in more than half of the starts.
LATER = 10.0


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return over(
        f"{m.starts} starts",
        (_first(m), _ends(m), _outlive(m), *(_law(name, one) for name, one in m.lives.items()), _integral(m)),
    )


def _first(m: Results) -> Claim:
    causal = m.lives["causal"]
    return Claim(
        says="With a causal mask the first token of a start does not move, and all others come to it (2411.04990).",
        measured=f"it moved by {causal.moved:.1e} at most, and the others end within {causal.astray:.1e} of it",
        criterion="less than 1e-9, and less than 1e-3",
        holds=causal.moved < 1e-9 and causal.astray < 1e-3,
        kind="identity",
        value=causal.moved,
    )


def _ends(m: Results) -> Claim:
    done = {name: float(np.mean(np.isfinite(one.times[:, -1]))) for name, one in m.lives.items()}
    last = ", ".join(
        f"median 1e{np.median(np.log10(one.times[:, -1])):.1f} and latest 1e{np.log10(one.times[:, -1].max()):.1f} "
        f"({name})"
        for name, one in m.lives.items()
    )
    return Claim(
        says="All starts come to one cluster in the end.",
        measured=f"{100 * min(done.values()):.1f} % of the starts or more; times of the last merger: {last}",
        criterion="all starts",
        holds=min(done.values()) == 1.0,
        kind="finding",
        value=min(done.values()),
    )


def _outlive(m: Results) -> Claim:
    shares = {name: mean_and_error(one.times[:, -1] > LATER * FORMED) for name, one in m.lives.items()}
    listed = ", ".join(f"{percent(s, e)} ({name})" for name, (s, e) in shares.items())
    least, error = min(shares.values(), key=lambda pair: float(pair[0]))
    return Claim(
        says=f"The clusters that figure 4 shows at t = {FORMED:g} outlive it tenfold.",
        measured=f"starts with several clusters at t = {LATER * FORMED:g}: {listed}",
        criterion="more than half of the starts under either mask",
        holds=bool(least > 0.5),
        kind="finding",
        value=float(least),
        error=float(error),
    )


def _law(name: str, lives: Lives) -> Claim:
    slope, error, factor = line_of(lives.waits, lives.laws, lives.of_start)
    law = "M), M the mass before it that it sees" if name == "causal" else "(m1/m2 + m2/m1))"
    says = (
        f"With a {name} mask clusters wait as long as the law of the pair that merges next says, "
        f"e^(beta (1 - c)) / (beta (1 - c^2) {law}."
    )
    measured = (
        f"logarithms of waits over those of the law: slope {plus_minus(slope, error, 3)}, median factor {factor:.2f} "
        f"over {len(lives.waits)} waits"
    )
    criterion = (
        f"a slope within {SLOPE:g} of 1 and a median factor below {FACTOR:g}, of laws whose exponent is above "
        f"{LEAST_EXPONENT:g}"
    )
    holds = bool(abs(slope - 1) < SLOPE and factor < FACTOR)
    # The paper is about attention to all tokens.
    if name == "full":
        return Claim(
            says=says, measured=measured, criterion=criterion, holds=holds, kind="paper", value=slope,
            error=error, source=METASTABILITY,
        )  # fmt: skip
    return Claim(
        says=says, measured=measured, criterion=criterion, holds=holds, kind="finding", value=slope, error=error
    )


def _integral(m: Results) -> Claim:
    alone = m.lives["causal"].alone
    off = np.abs([one.waited - one.law for one in alone])
    near = float(np.mean(off < OFF)) if len(off) >= LEAST_WAITS else np.nan
    return Claim(
        says="With a causal mask a token that comes to the first after all before it takes the time of an integral "
        "along the arc between them.",
        measured=f"log10 of the time within {OFF:g} of the integral's in {100 * near:.1f} % of {len(off)} waits longer "
        f"than {LEAST_WAIT:g}; largest difference {off.max(initial=0.0):.2g}",
        criterion=f"more than {100 * MOST:g} % of the waits",
        holds=near > MOST,
        kind="finding",
        value=near,
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    verdicts = [f"the law {'holds' if claim.holds else 'does not hold'} with a {name} mask"
                for name, claim in zip(m.lives, claims[-len(m.lives) - 1 : -1], strict=True)]  # fmt: skip
    exact = "holds" if claims[-1].holds else "does not hold"
    return (
        f"{m.p.n} uniform tokens in R^{m.p.d}, V = Q = K = I and beta = {m.p.beta:g}, followed to their last merger "
        f"(at a distance of {m.p.radius:g}), {m.starts} starts. (a) The share of the starts that have more than 1, 2 "
        "and 4 clusters, over time. (b) The time from each merger to the next beside the law of the pair that merges: "
        f"{', and '.join(verdicts)}; crosses: tokens that come to the first after all before them, beside the integral "
        f"along the arc, which {exact}. (c) The last merger of each start."
    )
