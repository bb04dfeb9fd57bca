"""Several heads as interacting systems: what each does alone, what they do together, and what their average does."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ._ensemble import mean_and_error
from ._experiment import Claim, Experiment, Outcome, Settings, plus_minus
from ._interacting_heads_measure import (
    BETA,
    COMPANY,
    ON_THE_WAY,
    RADIUS,
    TS,
    D,
    Heads,
    N,
    measure_heads,
)
from ._interacting_heads_panels import draw
from ._sources import particles


STARTS = 48
COUNTS, QUICK_COUNTS = (2, 4, 8, 16), (2, 4, 8)


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    starts = min(settings.starts, STARTS)
    heads = measure_heads(settings.seed, starts, QUICK_COUNTS if settings.quick else COUNTS, say)
    counted = {count: mean_and_error(found) for count, found in heads.clusters.items()}
    return Outcome(
        caption_of(heads),
        claims_of(heads),
        {"n": N, "d": D, "beta": BETA, "attention": "unnormalised",
         "heads": "V = B = B^T, Gaussian, scaled to an eigenvalue of largest modulus 1",
         "scaling": "the sum of H heads over the root of H", "counts": list(heads.counts), "starts": starts,
         "radius": RADIUS, "solver": "Tsit5, rtol 1e-6, atol 1e-8, float64"},
        {"t": TS}
        | {f"clusters, {count} heads": mean for count, (mean, _) in counted.items()}
        | {f"clusters error, {count} heads": error for count, (_, error) in counted.items()}
        | {"count_by_number": np.array(heads.counts), "relative error_by_number": relative(heads)[0],
           "error of it_by_number": relative(heads)[1],
           "aligned_by_number": np.array([found.mean() for found in heads.aligned.values()])},
        lambda: draw(heads, *relative(heads)),
        None,
        on=particles(tokens=N, d=D, beta=BETA, heads=heads.counts, t=TS[-1].item(), starts=starts),
    )  # fmt: skip


def relative(heads: Heads) -> tuple[np.ndarray, np.ndarray]:
    """The distance from the average head over that from the start, for each number of heads, with its error.

    Source: this library.
    """
    return jackknife(lambda rows: _ratio(heads, rows), len(heads.off))


def exponent(heads: Heads) -> tuple[float, float]:
    """a, where that distance goes as the number of heads to the power a, with its error.

    Source: this library.
    """
    logs = np.log(np.array(heads.counts, float))
    slope, error = jackknife(lambda rows: np.polyfit(logs, np.log(_ratio(heads, rows)), 1)[0], len(heads.off))
    return float(slope), float(error)


def _ratio(heads: Heads, rows: np.ndarray) -> np.ndarray:
    return np.sqrt(np.mean(heads.off[rows] ** 2, axis=0) / np.mean(heads.moved[rows] ** 2, axis=0))


def jackknife(statistic: Callable[[np.ndarray], Any], many: int) -> tuple[np.ndarray, np.ndarray]:
    """A statistic of all starts, and its standard error by leaving out one at a time.

    Source: this library.
    """
    rows = np.arange(many)
    left = np.stack([statistic(np.delete(rows, k)) for k in rows])
    return np.asarray(statistic(rows)), np.asarray(np.sqrt((many - 1) * left.var(axis=0)))


def correlation(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Pearson's correlation within a start, (starts, several) each: mean and error over starts that have one.

    Source: this library.
    """
    first, second = (part - part.mean(axis=1, keepdims=True) for part in (first, second))
    size = np.sqrt((first**2).sum(1) * (second**2).sum(1))
    there = size > 1e-12
    mean, error = mean_and_error((first * second).sum(1)[there] / size[there])
    return float(mean), float(error)


def caption_of(heads: Heads) -> str:
    """What is seen, and what it does not show.

    Source: this library.
    """
    last, starts, end = heads.counts[-1], len(heads.off), TS[-1]
    errors, _ = relative(heads)
    two = "However many heads there are, they end in two clusters, as each alone. " if _in_two(heads) else ""
    return (
        f"{N} tokens on the sphere under unnormalised attention at beta = {BETA:g}, by random heads: V = B = B^T of "
        "Gaussian entries, scaled until the largest modulus of an eigenvalue is 1. The sum of H heads is divided by "
        "the root of H, by which random velocities grow, so that any number of heads moves tokens at about the speed "
        f"of one. (a) One start, and at t = {end:g} under either of two heads alone and under both together; arrows: "
        "the axis of each head, which is the eigenvector of that eigenvalue. (b) Number of clusters (single linkage "
        f"at radius {RADIUS}) over {starts} starts, each with heads of its own; alone: the mean of {COMPANY} heads. "
        f"{two}(c) Circles: how far the tokens are, at t = {ON_THE_WAY:g}, from where the average head (mean V, mean "
        "B, the same scale) brings them, over how far "
        f"they have moved: 0 for one head, {errors[0]:.2f} for {heads.counts[0]}, {errors[-1]:.2f} for {last}. The "
        "mean of attentions is not the attention of the mean: each head has its own preferences, and the average head, "
        "whose B becomes small, has none. Squares: mean of |<x, v>| over the tokens "
        f"at t = {end:g}, v the axis of the average head; dotted: of a random direction. (d) Each point is a head, one "
        f"of {COMPANY} in company: how far the others agree with it when alone, and the company with it, by the "
        f"adjusted Rand index of the clusters at t = {end:g} (0 is chance, 1 the same clusters); diamonds: means of "
        "quarters of the heads. Bars and bands are standard errors over starts, in (d) over heads."
    )


def claims_of(heads: Heads) -> tuple[Claim, ...]:
    """What is proved of heads together, and what is found.

    Source: this library.
    """
    rise = float(np.diff(heads.energies, axis=1).min() / np.ptp(heads.energies, axis=1).max())
    return (
        Claim(
            "Heads with V = B = B^T climb the sum of their energies together, at the mean squared speed of the tokens.",
            f"over {heads.energies.size} states of {len(heads.energies)} runs of {COMPANY} heads the rate is off by at "
            f"most {heads.defect:.1e} of the largest; the least step of the energy is {rise:.1e} of its rise",
            "off by less than 1e-10, and no step below -1e-6",
            heads.defect < 1e-10 and rise > -1e-6,
            "identity",
            heads.defect,
        ),
        _claim_of_clusters(heads),
        _claim_of_axes(heads),
        _claim_of_average(heads),
        _claim_of_agreement(heads),
    )


def _in_two(heads: Heads) -> bool:
    return all(abs(found[:, -1].mean() - 2) < 0.5 for found in heads.clusters.values())


def _claim_of_clusters(heads: Heads) -> Claim:
    end = {count: mean_and_error(found[:, -1]) for count, found in heads.clusters.items()}
    mean, error = end[heads.counts[-1]]
    return Claim(
        "However many heads there are, they end in two clusters, as each does alone, and not in two for each head.",
        f"clusters at t = {TS[-1]:g}, by the number of heads: "
        + ", ".join(f"{count}: {plus_minus(*found)}" for count, found in end.items()),
        "for every number of heads between 1.5 and 2.5",
        _in_two(heads),
        "finding",
        float(mean),
        float(error),
    )


def _claim_of_axes(heads: Heads) -> Claim:
    last = heads.counts[-1]
    on = {count: mean_and_error(found) for count, found in heads.aligned.items()}
    gap, error = mean_and_error(heads.aligned[1] - heads.aligned[last])
    return Claim(
        "A head alone brings the tokens to its own axis; together, heads do not bring them to that of their average.",
        "mean of |<x, v>|, by the number of heads: "
        + ", ".join(f"{count}: {plus_minus(*found)}" for count, found in on.items())
        + "; 0.5 for random directions",
        f"above 0.8 alone, and lower for {last} heads by more than two standard errors",
        bool(on[1][0] > 0.8 and gap > 2 * error),
        "finding",
        float(gap),
        float(error),
    )


def _claim_of_average(heads: Heads) -> Claim:
    slope, error = exponent(heads)
    of = ", ".join(
        f"{count}: {plus_minus(*found)}" for count, *found in zip(heads.counts, *relative(heads), strict=True)
    )
    return Claim(
        "The more heads there are, the better does their average predict them.",
        f"relative error at t = {ON_THE_WAY:g}, by the number of heads: {of}; it goes as their number to the power "
        f"{plus_minus(slope, error, 3)}",
        "the power is below 0 by more than two standard errors",
        slope < -2 * error,
        "finding",
        slope,
        error,
    )


def _claim_of_agreement(heads: Heads) -> Claim:
    value, error = correlation(heads.shared, heads.kept)
    forces = correlation(heads.agreement, heads.together)
    return Claim(
        "Heads that agree alone have their way in company: the more others share its clusters when alone, the more of "
        "them a head finds in the company's.",
        f"correlation within a start {plus_minus(value, error)}; mean agreement of two heads alone "
        f"{heads.agreement.mean():.2f}, of a head alone with the company {heads.kept.mean():.2f}; heads that agree "
        f"alone need not pull the same way there: correlation with the cosine of their forces {plus_minus(*forces)}",
        "the correlation exceeds two standard errors",
        value > 2 * error,
        "finding",
        value,
        error,
    )


INTERACTING_HEADS = Experiment(
    "interacting-heads",
    "interacting_heads",
    "Several heads as interacting systems",
    "Multi-head attention is to be seen as several interacting particle systems (the paper's future work): what do "
    "heads do together that they do not do alone?",
    _run,
    asks=True,
)
