"""What is claimed of gradient flow: steepest ascent of the energy, in which metric, and what has none."""

import numpy as np

from ..framework.experiment import Claim
from ..framework.sources import PARTICLES
from ..framework.verdict import ANY, Source
from .measure import MOVING, H, Results


GEOMETRY = "2312.10794, Sections 3.3 and 3.4"
STEEPEST = Source(GEOMETRY, (PARTICLES, ANY), ANY)
BALANCE, CLOSED, OPEN, NEARLY = 1e-9, 1e-10, 0.01, 0.9
RATIO = 1e-3


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return _balance(m), _steepest(m), _density(m), _conservative(m), _plain(m), _causal(m), _falls(m), _nearly(m)


def _balance(m: Results) -> Claim:
    plain, soft = m.flows["unnormalised"], m.flows["softmax"]
    off = [
        float(np.abs(power / speed - 1)[flow.moving].max())
        for flow, power, speed in (
            (plain, plain.rates.power, plain.rates.speed),
            (soft, soft.rates.power, soft.rates.weighted),
        )
    ]
    return Claim(
        says="The energy rises by the squared speed per time: of unnormalised attention in Wasserstein space, of "
        "softmax attention in the weighted metric.",
        measured=f"at all times of {m.starts} starts up to {off[0]:.1e} and {off[1]:.1e}, relative",
        criterion=f"less than {BALANCE:g}",
        holds=max(off) < BALANCE,
        kind="identity",
        value=max(off),
    )


def _steepest(m: Results) -> Claim:
    ratios = m.flows["unnormalised"].ratios
    off = float(np.nanmax(np.abs(ratios - 1)))
    others = ", ".join(
        f"{name} {np.nanmin(m.flows[name].ratios):.3f} to {np.nanmax(m.flows[name].ratios):.3f}"
        for name in ("softmax", "causal")
    )
    return Claim(
        says="Unnormalised attention is the gradient flow of its energy in Wasserstein space.",
        measured=f"(E(t + h) - E(t)) h / W^2 with h = {H:g}, where tokens move faster than {MOVING:g}: 1 up to "
        f"{off:.1e} ({np.isfinite(ratios).sum()} pairs; of the other flows: {others})",
        criterion=f"less than {RATIO:g}",
        holds=off < RATIO,
        kind="paper",
        value=off,
        source=STEEPEST,
    )


def _density(m: Results) -> Claim:
    off = float(np.abs(m.density - 1).max())
    return Claim(
        says="Unnormalised attention among infinitely many tokens is this gradient flow too, from a density with one"
        " bump.",
        measured=f"the same ratio of a density with one bump: 1 up to {off:.1e}",
        criterion=f"less than {RATIO:g}",
        holds=off < RATIO,
        kind="finding",
        value=off,
    )


def _largest(m: Results, name: str, weighted: bool) -> float:
    return float(np.abs(m.works[name, weighted]).max())


def _median(m: Results, name: str, weighted: bool) -> float:
    return float(np.median(np.abs(m.works[name, weighted])))


def _conservative(m: Results) -> Claim:
    found = _largest(m, "unnormalised", False), _largest(m, "softmax", True)
    return Claim(
        says="Neither unnormalised attention nor, in the weighted metric, softmax attention does work around a closed "
        "path.",
        measured=f"{len(m.works['unnormalised', False])} paths: at most {found[0]:.1e} and {found[1]:.1e} of the work "
        "of the absolute value",
        criterion=f"less than {CLOSED:g}",
        holds=max(found) < CLOSED,
        kind="paper",
        value=max(found),
        source=STEEPEST,
    )


def _plain(m: Results) -> Claim:
    found = _median(m, "softmax", False)
    return Claim(
        says="In Wasserstein space itself softmax attention is no gradient flow.",
        measured=f"work around a closed path, median: {found:.3f} of that of the absolute value",
        criterion=f"more than {OPEN:g}",
        holds=found > OPEN,
        kind="finding",
        value=found,
    )


def _causal(m: Results) -> Claim:
    found = _median(m, "causal", False), _median(m, "causal", True)
    return Claim(
        says="With a causal mask attention is no gradient flow in Wasserstein space, nor with the weights of its own "
        "normalisers.",
        measured=f"work around a closed path, median: {found[0]:.3f} and {found[1]:.3f} of that of the absolute value",
        criterion=f"both more than {OPEN:g}",
        holds=min(found) > OPEN,
        kind="finding",
        value=min(found),
    )


def _falls(m: Results) -> Claim:
    share = {name: float(np.mean((flow.rates.power < -1e-12).any(axis=1))) for name, flow in m.flows.items()}
    return Claim(
        says="With a causal mask the energy falls at times; it never does without one.",
        measured="share of starts in which it falls at some time: "
        + ", ".join(f"{name} {value:.2f}" for name, value in share.items()),
        criterion="more than 0 with the mask, and 0 without",
        holds=share["causal"] > 0 and share["softmax"] == share["unnormalised"] == 0,
        kind="finding",
        value=share["causal"],
    )


def _nearly(m: Results) -> Claim:
    cosines = m.flows["softmax"].cosines
    least, middle = float(np.nanmin(cosines)), float(np.nanmedian(cosines))
    return Claim(
        says="Softmax attention is nearly steepest in Wasserstein space too.",
        measured=f"cosine between its velocity and the gradient of the energy: median {middle:.3f}, least {least:.2f}",
        criterion=f"at least {NEARLY:g} at all times of all starts",
        holds=least >= NEARLY,
        kind="finding",
        value=least,
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    balance, steepest, density, conservative, plain, causal, falls, nearly = claims
    told = (
        "unnormalised attention climbs the energy along the curve of steepest ascent"
        if steepest.holds and density.holds
        else "unnormalised attention does not climb as steeply as it should",
        "softmax attention does so in the weighted metric"
        if balance.holds and conservative.holds
        else "softmax attention does not do so in the weighted metric",
        "and in Wasserstein space itself it is no gradient flow" if plain.holds else "its work in plain W2 is small",
        "causal attention is one in neither metric" if causal.holds else "the work of causal attention is small",
        "under it the energy falls at times" if falls.holds else "the energy falls where it should not, or nowhere",
        "the velocity of softmax attention is along the gradient throughout"
        if nearly.holds
        else "the velocity of softmax attention is not along the gradient throughout",
    )
    return (
        f"{m.p.n} tokens on the circle with V = B = I and beta = {m.p.beta:g}. (a) One start: the energy over its "
        "largest value against the way in Wasserstein space; lines: the slope that steepest ascent has at points of "
        "the unnormalised run. (b) The rise of the energy over a short time over that of steepest ascent at the same "
        f"speed, {m.starts} starts: median, and between which values four of five lie. (c) The cosine between "
        "velocity and gradient, all starts and times. (d) Work around closed paths of configurations over that of its "
        f"absolute value. What holds: {'; '.join(told)}."
    )
