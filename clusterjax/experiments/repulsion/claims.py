"""What is claimed of V = -I: polygons, simplices, neither in time at a large beta, and the law of the time."""

import numpy as np

from ..framework.ensemble import mean_and_error
from ..framework.experiment import Claim, over, percent
from .measure import BETAS, FEW, LARGE, MASKS, Results, exact_rate


ARRIVED, SHARE = 0.01, 0.95  # degrees, and the share of the starts that must have
COSINE = 1e-4
LATE, LATE_SHARE = 1.0, 0.05  # degrees within which hardly any start is at the large beta
RATE, SLOPE, FROM = 0.01, 0.1, 2.0  # relative, of the exponent, and the beta from which it is fitted


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return over(f"{m.starts} starts", (_polygons(m), _simplices(m), _late(m), _rates(m), _law(m)))


def _polygons(m: Results) -> Claim:
    found = {n: mean_and_error(m.polygons[n, m.p.beta][:, -1] < ARRIVED) for n in range(2, m.p.n + 1)}
    listed = ", ".join(f"{percent(s, e)} (n = {n})" for n, (s, e) in found.items())
    least, error = min(found.values(), key=lambda pair: float(pair[0]))
    return Claim(
        says="Under full attention with V = -I n tokens of the circle come to a regular n-gon.",
        measured=f"all gaps within {ARRIVED:g} degrees of 360 / n at t = {m.p.end:g}, beta = {m.p.beta:g}: {listed} of "
        "the starts",
        criterion=f"more than {100 * SHARE:g} % for each n",
        holds=bool(least > SHARE),
        kind="finding",
        value=float(least),
        error=float(error),
    )


def _simplices(m: Results) -> Claim:
    found = {key: mean_and_error(errors[:, -1] < COSINE) for key, errors in m.simplices.items()}
    listed = ", ".join(f"{percent(s, e)} (n = {n}, d = {d})" for (n, d), (s, e) in found.items())
    least, error = min(found.values(), key=lambda pair: float(pair[0]))
    return Claim(
        says="Where d is at least n - 1 they come to a regular simplex.",
        measured=f"all cosines within {COSINE:g} of -1 / (n - 1) at t = {m.p.end:g}: {listed} of the starts",
        criterion=f"more than {100 * SHARE:g} % of each",
        holds=bool(least > SHARE),
        kind="finding",
        value=float(least),
        error=float(error),
    )


def _late(m: Results) -> Claim:
    found = {n: mean_and_error(m.polygons[n, LARGE][:, -1] < LATE) for n in FEW}
    listed = ", ".join(f"{percent(s, e)} (n = {n}; 1 / rate = {1 / m.slowest[n, LARGE]:.2g})"
                       for n, (s, e) in found.items())  # fmt: skip
    most, error = max(found.values(), key=lambda pair: float(pair[0]))
    return Claim(
        says=f"At beta = {LARGE:g} fewer than {100 * LATE_SHARE:g} % of the starts have come to a polygon by "
        f"t = {m.p.end:g}.",
        measured=f"all gaps within {LATE:g} degree at t = {m.p.end:g}: {listed} of the starts",
        criterion=f"fewer than {100 * LATE_SHARE:g} % for each n",
        holds=bool(most < LATE_SHARE),
        kind="finding",
        value=float(most),
        error=float(error),
    )


def _rates(m: Results) -> Claim:
    off = {
        # A pair that does not arrive has no rate.
        key: float(np.max(np.abs(rates[np.isfinite(rates)] / exact_rate(*key) - 1), initial=0.0))
        for key, rates in m.rates.items()
    }
    seen = int(sum(np.isfinite(rates).sum() for rates in m.rates.values()))
    return Claim(
        says="Two tokens come to opposite points at the rate 1 / (1 + e^(2 beta)) under causal and twice that under "
        "full attention.",
        measured=f"largest relative error {max(off.values()):.1e} over {seen} runs, beta = {BETAS[0]:g} to "
        f"{BETAS[-1]:g}",
        criterion=f"less than {RATE:g}",
        holds=seen > 0 and max(off.values()) < RATE,
        kind="identity",
        value=max(off.values()),
    )


def slopes(m: Results) -> dict[str, float]:
    """By mask: of the line of the logarithm of the median time over beta."""
    betas = np.array([beta for beta in BETAS if beta >= FROM])
    return {
        mask: float(np.polyfit(betas, [np.log(np.median(m.times[mask, beta])) for beta in betas], 1)[0])
        for mask in MASKS
    }


def _law(m: Results) -> Claim:
    found = slopes(m)
    return Claim(
        says="The time to opposite points grows like e^(2 beta).",
        measured="exponents of the median time to within a degree over beta: "
        + ", ".join(f"{slope:.3f} ({mask})" for mask, slope in found.items())
        + f", from beta = {FROM:g} to {BETAS[-1]:g}; median {np.median(m.times['causal', BETAS[-1]]):.3g} at "
        f"beta = {BETAS[-1]:g} under causal attention",
        criterion=f"within {SLOPE:g} of 2",
        holds=all(abs(slope - 2) < SLOPE for slope in found.values()),
        kind="finding",
        value=found["causal"],
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    polygons, simplices, late, _, law = claims
    return (
        f"Uniform tokens with V = -I and Q = K = I. Above one start each of n = 3, 4, ... tokens of the circle under "
        f"full attention at t = {m.p.end:g}, beta = {m.p.beta:g}. Over {m.starts} starts: (a) how far gaps are from "
        f"those of the n-gon, median; dashed at beta = {LARGE:g}; (b) the time of two tokens to within a degree of "
        "opposite points, median and middle 80 %, beside four times 1 / rate (dashed). "
        + ("Tokens come to polygons" if polygons.holds else "Not all starts come to polygons")
        + (" and simplices" if simplices.holds else ", and not all to simplices")
        + (f", but not by t = {m.p.end:g} at beta = {LARGE:g}" if late.holds else "")
        + (": the time grows like e^(2 beta)." if law.holds else ".")
    )
