"""What is claimed of perceptrons that delay the collapse: that of a trained ALBERT, and one trained through the flow.

Claims on ALBERT's tokens are of the flow and not of the network, whose layers are no small steps of it.
"""

import numpy as np

from ..framework.ensemble import mean_and_error
from ..framework.experiment import Claim, plus_minus
from .albert import GATHERED, RADIUS, TS, Flows
from .trained import ANGLE, BETA, END, FEATURES, RADIUS as OF_GROUPS, TS as TS_OF_GROUPS, N, Trained


EARLY = 3.0
APART, MIXED = 0.9, 0.6  # purity of groups that are held apart, and of those that are not


def caption_of(flows: Flows, learnt: Trained) -> str:
    """What is seen, and what it does not show."""
    return f"{_of_flows(flows)} {_of_groups(learnt)}"


def _of_flows(flows: Flows) -> str:
    left = {name: float(clusters[:, -1].mean()) for name, clusters in flows.clusters.items()}
    learnt, chance = (mean_and_error(flows.clusters[name][:, -1]) for name in ("both", "random"))
    beyond = learnt[0] - chance[0] > 2 * np.hypot(learnt[1], chance[1])
    sign = "fewer, so that the delay is learnt" if beyond else "no sign that the delay is learnt"
    sooner = {name: cosine[:, np.argmin(np.abs(TS - EARLY))].mean() for name, cosine in flows.cosine.items()}
    both = left["both"] > left["attention"] and sooner["both"] > sooner["attention"]
    order = "the first gathering comes sooner, and the last collapse later." if both else "see the claims."
    fed, end = flows.cosine["both, shorter"][:, -1].mean(), TS[-1]
    return (
        f"(a, b) Tokens of {len(flows.cosine['both'])} texts as particles on the sphere, under the attention of the "
        "ALBERT of this package and its trained feed-forward, in continuous time, a layer in time 1, the norms left "
        f"out: mean cosine of the pairs, and number of clusters (single linkage at radius {RADIUS}), with standard "
        f"errors over texts, and over draws for the {len(flows.cosine['random'])} random perceptrons, which are the "
        "trained one with the rows and columns of its matrices in random order and with random signs, so that their "
        "singular values are the same. Alone, the trained perceptron sends all tokens of all texts one way (mean "
        f"direction at the end: length {flows.one_way:.2f}). With attention it leaves {left['both']:.1f} clusters at t "
        f"= {end:g}, and attention alone {left['attention']:.1f}; but at t = {EARLY:g} the mean cosine is "
        f"{sooner['both']:.2f} with it, and {sooner['attention']:.2f} without: {order} Random perceptrons leave "
        f"{plus_minus(*chance, 1)}: {sign}. It depends on the length r of the tokens that the perceptron reads: here "
        f"{flows.fed:.1f}, as in the network; at the {flows.radius:.1f} that attention reads, tokens end in "
        f"{left['both, shorter']:.1f} clusters at mean cosine {fed:.2f}. And a layer is no small step of this flow: at "
        f"the start the perceptron turns a token at {flows.speed:.1f} radians per layer; so (a, b) are of the flow, "
        "and not of the network."
    )


def _of_groups(learnt: Trained) -> str:
    end, turned = TS_OF_GROUPS[-1], learnt.purity("trained, turned")[:, -1].mean()
    return (
        f"(c) {N} tokens in two groups (colours; {np.degrees(ANGLE):.0f} degrees between their middles), under "
        f"unnormalised attention with V = I at beta = {BETA:g}: one start, and at t = {end:g} under attention alone, "
        f"and with a perceptron of {FEATURES} features, trained by gradient through the flow to keep the groups apart "
        f"at t = {END:g} (dotted in d), on other starts. (d) Purity, the share of tokens of the group that has most of "
        f"their cluster (radius {OF_GROUPS}; 1/2: one cluster of both), over {len(learnt.labels['trained'])} starts it "
        "was not trained on, with standard errors. Random features: others with the same amplitudes, in random order. "
        f"What is learnt is a place for each group: on starts that are turned at random purity ends at {turned:.2f}."
    )


def claims_of_flows(flows: Flows) -> tuple[Claim, ...]:
    """What the perceptron of ALBERT does to collapse."""
    early = int(np.argmin(np.abs(TS - EARLY)))
    left = {name: mean_and_error(clusters[:, -1]) for name, clusters in flows.clusters.items()}
    # Paired by text.
    more, of_more = mean_and_error(flows.clusters["both"][:, -1] - flows.clusters["attention"][:, -1])
    sooner, of_sooner = mean_and_error(flows.cosine["both"][:, early] - flows.cosine["attention"][:, early])
    cosine = {name: mean_and_error(each[:, early]) for name, each in flows.cosine.items()}
    until = {name: mean_and_error(flows.until_gathered(name)) for name in ("attention", "both")}
    never = int((flows.cosine["both"].max(axis=1) <= GATHERED).sum())
    # Not paired: texts on one side, draws on the other.
    beyond = float(left["both"][0] - left["random"][0])
    of_beyond = float(np.hypot(left["both"][1], left["random"][1]))
    return (
        Claim(
            says="The trained perceptron delays the last of the collapse: where attention alone has come to one "
            "cluster, more are left with it.",
            measured=f"clusters at t = {TS[-1]:g}: {plus_minus(*left['both'])} with it, "
            f"{plus_minus(*left['attention'])} by attention alone, {plus_minus(*left['both, shuffled'])} with it on "
            f"shuffled tokens; mean cosine stays below {GATHERED} in {never} of {len(flows.cosine['both'])} texts",
            criterion="attention alone ends below 1.5 clusters, and the difference exceeds two standard errors",
            holds=bool(left["attention"][0] < 1.5 and more > 2 * of_more),
            kind="finding",
            value=float(more),
            error=float(of_more),
        ),
        Claim(
            says="The trained perceptron delays the gathering of tokens from the start.",
            measured=f"mean cosine at t = {EARLY:g}: {plus_minus(*cosine['both'])} with it, "
            f"{plus_minus(*cosine['attention'])} by attention alone, {plus_minus(*cosine['random'])} with random ones; "
            f"above {GATHERED} at t = {plus_minus(*until['both'], 1)} and {plus_minus(*until['attention'], 1)} "
            f"({TS[-1]:g} where never)",
            criterion="with it the mean cosine is lower, by more than two standard errors",
            holds=bool(sooner < -2 * of_sooner),
            kind="finding",
            value=float(sooner),
            error=float(of_sooner),
        ),
        Claim(
            says="Training makes the perceptron delay the collapse: random ones of the same singular values leave "
            "fewer clusters.",
            measured=f"clusters at t = {TS[-1]:g}: trained {plus_minus(*left['both'])}, random "
            f"{plus_minus(*left['random'])}",
            criterion="the difference exceeds two standard errors",
            holds=beyond > 2 * of_beyond,
            kind="finding",
            value=beyond,
            error=of_beyond,
        ),
    )


def claims_of_groups(learnt: Trained) -> tuple[Claim, ...]:
    """What a perceptron that was trained for it holds apart."""
    pure = {name: mean_and_error(learnt.purity(name)[:, -1]) for name in learnt.labels}
    single, held = learnt.clusters("attention")[:, -1] == 1, learnt.clusters("trained")[:, -1] > 1
    # The least step of the energy, relative to its whole rise.
    rise = float(np.diff(learnt.energies).min() / np.ptp(learnt.energies))
    return (
        Claim(
            says="A perceptron trained for it holds two groups apart, on starts that it was not trained on and four "
            "times as long, where attention alone has one cluster.",
            measured=f"purity at t = {TS_OF_GROUPS[-1]:g}: {plus_minus(*pure['trained'], 3)} trained, "
            f"{plus_minus(*pure['attention'], 3)} by attention alone, {plus_minus(*pure['random'], 3)} with random "
            f"features; the same under softmax attention {plus_minus(*pure['trained, softmax'], 3)}; two clusters or "
            f"more in {100 * held.mean():.0f} % of {len(held)} starts; by attention alone one in "
            f"{100 * single.mean():.0f} %",
            criterion=f"purity above {APART} trained, below {MIXED} by attention alone, and with random features "
            "lower than trained by more than two standard errors",
            holds=bool(
                pure["trained"][0] > APART
                and pure["attention"][0] < MIXED
                and pure["trained"][0] - pure["random"][0] > 2 * np.hypot(pure["trained"][1], pure["random"][1])
            ),
            kind="finding",
            value=float(pure["trained"][0]),
            error=float(pure["trained"][1]),
        ),
        Claim(
            says="It holds the groups apart wherever they are.",
            measured=f"purity at t = {TS_OF_GROUPS[-1]:g} on starts that are turned at random "
            f"{plus_minus(*pure['trained, turned'], 3)}",
            criterion=f"above {APART}",
            holds=bool(pure["trained, turned"][0] > APART),
            kind="finding",
            value=float(pure["trained, turned"][0]),
            error=float(pure["trained, turned"][1]),
        ),
        Claim(
            says="Unnormalised attention with the perceptron, a gradient itself, climbs the sum of their energies, at "
            "the mean squared speed of the tokens (2601.21366, Section 2).",
            measured=f"along one run the rate is off by at most {learnt.defect:.1e} of the largest rate; the energy "
            f"rises by {np.ptp(learnt.energies):.3f}, its least step is {rise:.1e} of that",
            criterion="off by less than 1e-10, and no step below -1e-6",
            holds=learnt.defect < 1e-10 and rise > -1e-6,
            kind="identity",
            value=learnt.defect,
        ),
    )
