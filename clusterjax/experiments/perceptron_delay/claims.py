"""What is claimed of perceptrons that delay the collapse: that of a trained ALBERT, and one trained through the flow.

Claims on ALBERT's tokens are of the flow and not of the network, whose layers are no small steps of it.
"""

import numpy as np

from ...probe.measures.tally import Clustered, clustered_error, threshold
from ..framework.experiment import Claim, over, percent, plus_minus
from ..framework.passages import articles_words
from .albert import GATHERED, RADIUS, TS, Flows
from .trained import ANGLE, BETA, END, FEATURES, RADIUS as OF_GROUPS, TS as TS_OF_GROUPS, N, Trained


EARLY = 3.0
APART, MIXED = 0.9, 0.6  # purity of groups that are held apart, and of those that are not


def caption_of(flows: Flows, learnt: Trained) -> str:
    """What is seen, and what it does not show."""
    return f"{_of_flows(flows)} {_of_groups(learnt)}"


def _of_flows(flows: Flows) -> str:
    left = {name: float(clusters[:, -1].mean()) for name, clusters in flows.clusters.items()}
    learnt, chance = (_last(flows, name) for name in ("both", "random"))
    sign = "fewer, so that the delay is learnt" if _beyond(learnt, chance) else "no sign that the delay is learnt"
    sooner = {name: cosine[:, np.argmin(np.abs(TS - EARLY))].mean() for name, cosine in flows.cosine.items()}
    both = left["both"] > left["attention"] and sooner["both"] > sooner["attention"]
    order = "the first gathering comes sooner, and the last collapse later." if both else "see the claims."
    fed, end = flows.cosine["both, shorter"][:, -1].mean(), TS[-1]
    return (
        f"(a, b) Tokens of {len(flows.cosine['both'])} texts as particles on the sphere, under the attention of the "
        "ALBERT of this package and its trained feed-forward, in continuous time, a layer in time 1, the norms left "
        f"out: mean cosine of the pairs, and number of clusters (single linkage at radius {RADIUS}), with standard "
        f"errors over {articles_words(flows.articles)}, and over draws for the {len(flows.cosine['random'])} random "
        "perceptrons, which are the trained one with the rows and columns of its matrices in random order and with "
        "random signs, so that their singular values are the same. Alone, the trained perceptron sends all tokens of "
        f"all texts one way (mean direction at the end: length {flows.one_way:.2f}). With attention it leaves "
        f"{left['both']:.1f} clusters at t = {end:g}, and attention alone {left['attention']:.1f}; but at "
        f"t = {EARLY:g} the mean cosine is {sooner['both']:.2f} with it, and {sooner['attention']:.2f} without: "
        f"{order} Random perceptrons leave {plus_minus(chance.mean, chance.error, 1)}: {sign}. It depends on the "
        "length r of the tokens that the "
        f"perceptron reads: here {flows.fed:.1f}, as in the network; at the {flows.radius:.1f} that attention reads, "
        "tokens end in "
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


def _last(flows: Flows, name: str) -> Clustered:
    """The number of clusters at the end."""
    return flows.mean_of(name, flows.clusters[name][:, -1])


def _beyond(one: Clustered, other: Clustered) -> bool:
    """Whether a mean is surely above another of other units, by the degrees of freedom of Welch and Satterthwaite."""
    error = np.hypot(one.error, other.error)
    parts = [found.error**4 / (found.units - 1) for found in (one, other)]
    return bool(one.mean - other.mean > threshold(error**4 / sum(parts) if error else np.inf) * error)


def claims_of_flows(flows: Flows) -> tuple[Claim, ...]:
    """What the perceptron of ALBERT does to collapse."""
    early = int(np.argmin(np.abs(TS - EARLY)))
    left = {name: _last(flows, name) for name in flows.clusters}
    # Paired by text.
    more = flows.mean_of("both", flows.clusters["both"][:, -1] - flows.clusters["attention"][:, -1])
    sooner = flows.mean_of("both", flows.cosine["both"][:, early] - flows.cosine["attention"][:, early])
    cosine = {name: flows.mean_of(name, each[:, early]) for name, each in flows.cosine.items()}
    until = {name: flows.mean_of(name, flows.until_gathered(name)) for name in ("attention", "both")}
    never = int((flows.cosine["both"].max(axis=1) <= GATHERED).sum())
    told = lambda one, digits=2: plus_minus(one.mean, one.error, digits)
    claims = (
        Claim(
            says="The trained perceptron delays the last of the collapse: where attention alone has come to one "
            "cluster, more are left with it.",
            measured=f"clusters at t = {TS[-1]:g}: {told(left['both'])} with it, {told(left['attention'])} by "
            f"attention alone, {told(left['both, shuffled'])} with it on shuffled tokens; mean cosine stays below "
            f"{GATHERED} in {never} of {len(flows.cosine['both'])} texts",
            criterion="attention alone ends below 1.5 clusters, and the difference exceeds two standard errors",
            holds=bool(left["attention"].mean < 1.5 and more.above()),
            kind="finding",
            value=float(more.mean),
            error=float(more.error),
        ),
        Claim(
            says="The trained perceptron delays the gathering of tokens from the start.",
            measured=f"mean cosine at t = {EARLY:g}: {told(cosine['both'])} with it, {told(cosine['attention'])} by "
            f"attention alone, {told(cosine['random'])} with random ones; above {GATHERED} at t = "
            f"{told(until['both'], 1)} and {told(until['attention'], 1)} "
            f"({TS[-1]:g} where never)",
            criterion="with it the mean cosine is lower, by more than two standard errors",
            holds=sooner.below(),
            kind="finding",
            value=float(sooner.mean),
            error=float(sooner.error),
        ),
        Claim(
            says="Random perceptrons of the same singular values leave fewer clusters than the trained one.",
            measured=f"clusters at t = {TS[-1]:g}: trained {told(left['both'])}, random {told(left['random'])}",
            criterion="the difference exceeds two standard errors, or as many as are as improbable with so few",
            # Not paired: texts on one side, draws on the other.
            holds=_beyond(left["both"], left["random"]),
            kind="finding",
            value=float(left["both"].mean - left["random"].mean),
            error=float(np.hypot(left["both"].error, left["random"].error)),
        ),
    )
    draws = f"random ones over {len(flows.cosine['random'])} draws"
    return over(f"{articles_words(flows.articles)}, of {draws}", claims)


def claims_of_groups(learnt: Trained) -> tuple[Claim, ...]:
    """What a perceptron that was trained for it holds apart."""
    pure = {name: clustered_error(learnt.purity(name)[:, -1]) for name in learnt.labels}
    lower = clustered_error(learnt.purity("trained")[:, -1] - learnt.purity("random")[:, -1])
    told = {name: plus_minus(one.mean, one.error, 3) for name, one in pure.items()}
    single, held = learnt.clusters("attention")[:, -1] == 1, learnt.clusters("trained")[:, -1] > 1
    # The least step of the energy, relative to its whole rise.
    rise = float(np.diff(learnt.energies).min() / np.ptp(learnt.energies))
    claims = (
        Claim(
            says="A perceptron trained for it holds two groups apart, on starts that it was not trained on and four "
            "times as long, where attention alone mixes them.",
            measured=f"purity at t = {TS_OF_GROUPS[-1]:g}: {told['trained']} trained, {told['attention']} by attention "
            f"alone, {told['random']} with random features; the same under softmax attention "
            f"{told['trained, softmax']}; two clusters or more in {percent(*clustered_error(held)[:2])} of {len(held)} "
            f"starts; by attention alone one in {percent(*clustered_error(single)[:2])}",
            criterion=f"purity above {APART} trained, below {MIXED} by attention alone, and with random features "
            "lower than trained, each by two standard errors",
            holds=pure["trained"].above(APART) and pure["attention"].below(MIXED) and lower.above(),
            kind="finding",
            value=float(pure["trained"].mean),
            error=float(pure["trained"].error),
        ),
        Claim(
            says="It holds groups apart that are turned at random.",
            measured=f"purity at t = {TS_OF_GROUPS[-1]:g} {told['trained, turned']}",
            criterion=f"above {APART} by two standard errors",
            holds=pure["trained, turned"].above(APART),
            kind="finding",
            value=float(pure["trained, turned"].mean),
            error=float(pure["trained, turned"].error),
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
    return over(f"{len(held)} starts", claims)
