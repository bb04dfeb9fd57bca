"""What is claimed of several heads: what each does alone, what they do together, and what their average does."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..framework.ensemble import mean_and_error
from ..framework.experiment import Claim, over, plus_minus
from .measure import COMPANY, ON_THE_WAY, TS, Results


def relative(m: Results) -> tuple[np.ndarray, np.ndarray]:
    """The distance from the average head over that from the start, for each number of heads, with its error."""
    return jackknife(lambda rows: _ratio(m, rows), len(m.off))


def exponent(m: Results) -> tuple[float, float]:
    """a, where that distance goes as the number of heads to the power a, with its error."""
    logs = np.log(np.array(m.counts, float))
    power, error = jackknife(lambda rows: np.polyfit(logs, np.log(_ratio(m, rows)), 1)[0], len(m.off))
    return float(power), float(error)


def _ratio(m: Results, rows: np.ndarray) -> np.ndarray:
    return np.sqrt(np.mean(m.off[rows] ** 2, axis=0) / np.mean(m.moved[rows] ** 2, axis=0))


def jackknife(statistic: Callable[[np.ndarray], Any], many: int) -> tuple[np.ndarray, np.ndarray]:
    """A statistic of all starts, and its standard error by leaving out one at a time."""
    # The ratio of two means has no plain standard error; leaving out one start at a time gives one.
    rows = np.arange(many)
    left = np.stack([statistic(np.delete(rows, k)) for k in rows])
    return np.asarray(statistic(rows)), np.asarray(np.sqrt((many - 1) * left.var(axis=0)))


def correlation(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Pearson's correlation within a start, (starts, several) each: mean and error over starts that have one."""
    first, second = (part - part.mean(axis=1, keepdims=True) for part in (first, second))
    size = np.sqrt((first**2).sum(1) * (second**2).sum(1))
    there = size > 1e-12  # a start all of whose pairs agree alike has no correlation
    mean, error = mean_and_error((first * second).sum(1)[there] / size[there])
    return float(mean), float(error)


def caption_of(m: Results) -> str:
    """What is seen, and what it does not show."""
    last, starts, end = m.counts[-1], len(m.off), TS[-1]
    errors, _ = relative(m)
    two = "However many heads there are, they end in two clusters, as each alone. " if _in_two(m) else ""
    return (
        f"{m.p.n} tokens on the sphere under unnormalised attention at beta = {m.p.beta:g}, by random heads: V = B = "
        "B^T of Gaussian entries, scaled until the largest modulus of an eigenvalue is 1. The sum of H heads is "
        "divided by the root of H, by which random velocities grow, so that any number of heads moves tokens at about "
        f"the speed of one. (a) One start, and at t = {end:g} under either of two heads alone and under both together; "
        "arrows: the axis of each head, which is the eigenvector of that eigenvalue. (b) Number of clusters (single "
        f"linkage at radius {m.p.radius:g}) over {starts} starts, each with heads of its own; alone: the mean of "
        f"{COMPANY} heads. {two}(c) Circles: how far the tokens are, at t = {ON_THE_WAY:g}, from where the average "
        "head (mean V, mean B, the same scale) brings them, over how far they have moved: 0 for one head, "
        f"{errors[0]:.2f} for {m.counts[0]}, {errors[-1]:.2f} for {last}. The mean of attentions is not the attention "
        "of the mean: each head has its own preferences, and the average head, whose B becomes small, has none. "
        f"Squares: mean of |<x, v>| over the tokens at t = {end:g}, v the axis of the average head; dotted: of a "
        f"random direction. (d) Each point is a head, one of {COMPANY} in company: how far the others agree with it "
        f"when alone, and the company with it, by the adjusted Rand index of the clusters at t = {end:g} (0 is chance, "
        "1 the same clusters); diamonds: means of quarters of the heads. Bars and bands are standard errors over "
        "starts, in (d) over heads."
    )


def claims_of(m: Results) -> tuple[Claim, ...]:
    """What is proved of heads together, and what is found."""
    # The least step over all runs, relative to the largest rise of a run.
    rise = float(np.diff(m.energies, axis=1).min() / np.ptp(m.energies, axis=1).max())
    # fmt: off
    return over(f"{len(m.energies)} starts", (
        Claim(
            says="Heads with V = B = B^T climb the sum of their energies together, at the mean squared speed of the "
            "tokens.",
            measured=f"over {m.energies.size} states of {len(m.energies)} runs of {COMPANY} heads the rate is "
            f"off by at most {m.defect:.1e} of the largest; the least step of the energy is {rise:.1e} of its rise",
            criterion="off by less than 1e-10, and no step below -1e-6",
            holds=m.defect < 1e-10 and rise > -1e-6,
            kind="identity",
            value=m.defect,
        ),
        _claim_of_clusters(m),
        _claim_of_axes(m),
        _claim_of_average(m),
        _claim_of_agreement(m),
    ))
    # fmt: on


def _in_two(m: Results) -> bool:
    return all(abs(clusters[:, -1].mean() - 2) < 0.5 for clusters in m.clusters.values())


def _claim_of_clusters(m: Results) -> Claim:
    end = {count: mean_and_error(clusters[:, -1]) for count, clusters in m.clusters.items()}
    mean, error = end[m.counts[-1]]
    return Claim(
        says="From 1 to 16 heads end in two clusters on average, as each does alone, and not in two for each head.",
        measured=f"clusters at t = {TS[-1]:g}, by the number of heads: "
        + ", ".join(f"{count}: {plus_minus(*pair)}" for count, pair in end.items()),
        criterion="for every number of heads between 1.5 and 2.5",
        holds=_in_two(m),
        kind="finding",
        value=float(mean),
        error=float(error),
    )


def _claim_of_axes(m: Results) -> Claim:
    last = m.counts[-1]
    on = {count: mean_and_error(aligned) for count, aligned in m.aligned.items()}
    gap, error = mean_and_error(m.aligned[1] - m.aligned[last])
    return Claim(
        says="A head alone brings the tokens to its own axis; 16 heads together bring them less near to the axis of "
        "their average.",
        measured="mean of |<x, v>|, by the number of heads: "
        + ", ".join(f"{count}: {plus_minus(*pair)}" for count, pair in on.items())
        + "; 0.5 for random directions",
        criterion=f"above 0.8 alone, and lower for {last} heads by more than two standard errors",
        holds=bool(on[1][0] > 0.8 and gap > 2 * error),
        kind="finding",
        value=float(gap),
        error=float(error),
    )


def _claim_of_average(m: Results) -> Claim:
    power, error = exponent(m)
    of = ", ".join(f"{count}: {plus_minus(*pair)}" for count, *pair in zip(m.counts, *relative(m), strict=True))
    return Claim(
        says="The more heads there are, the better does their average predict them.",
        measured=f"relative error at t = {ON_THE_WAY:g}, by the number of heads: {of}; it goes as their number to the "
        f"power {plus_minus(power, error, 3)}",
        criterion="the power is below 0 by more than two standard errors",
        holds=power < -2 * error,
        kind="finding",
        value=power,
        error=error,
    )


def _claim_of_agreement(m: Results) -> Claim:
    value, error = correlation(m.shared, m.kept)
    forces = correlation(m.agreement, m.force_cosine)
    return Claim(
        says="The more the other heads, when alone, share the clusters of a head, the more of these clusters are "
        "those of all heads together.",
        measured=f"correlation within a start {plus_minus(value, error)}; mean agreement of two heads alone "
        f"{m.agreement.mean():.2f}, of a head alone with the company {m.kept.mean():.2f}; heads that agree "
        f"alone need not pull the same way there: correlation with the cosine of their forces {plus_minus(*forces)}",
        criterion="the correlation exceeds two standard errors",
        holds=value > 2 * error,
        kind="finding",
        value=value,
        error=error,
    )
