"""Whether the perceptron delays the collapse: that of a trained ALBERT, and one that is trained through the flow."""

from collections.abc import Callable

import numpy as np

from ._ensemble import mean_and_error
from ._experiment import Claim, Experiment, Outcome, Settings, plus_minus
from ._networks import model_of, subject_of
from ._perceptron_delay_albert import GATHERED, RADIUS, RTOL, TS, Flows, effort, measure_flows
from ._perceptron_delay_panels import draw
from ._perceptron_delay_trained import (
    ANGLE,
    BATCH,
    BETA,
    END,
    FEATURES,
    NOISE,
    RADIUS as OF_GROUPS,
    TS as TS_OF_GROUPS,
    D,
    N,
    Trained,
    train_and_test,
)
from ._verdict import Measured, Subject


STARTS, STEPS, QUICK_STEPS = 48, 40, 20
EARLY = 3.0
APART, TOGETHER = 0.9, 0.6  # purity


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    how, starts = effort(settings.quick, settings.starts), min(settings.starts, STARTS)
    flows = measure_flows(settings.seed, how, say)
    learnt = train_and_test(settings.seed, starts, QUICK_STEPS if settings.quick else STEPS, say)
    return Outcome(
        caption_of(flows, learnt),
        (*claims_of_flows(flows), *claims_of_groups(learnt)),
        {"network": "the ALBERT of this package", "texts": len(flows.cosine["both"]), "tokens": how.length,
         "random perceptrons": how.draws, "length read by attention": flows.radius,
         "length read by the perceptron": flows.fed, "radius": RADIUS,
         "n": N, "d": D, "beta": BETA, "value": "identity", "features": FEATURES, "angle": ANGLE, "noise": NOISE,
         "starts": starts, "trained until": END, "training steps": len(learnt.losses), "batch": BATCH,
         "solver": f"of ALBERT's tokens Bogacki-Shampine, rtol and atol {RTOL:g}, float32; of groups Tsit5, rtol 1e-6, "
         "atol 1e-8, float64, and to train Bogacki-Shampine in steps of 0.25"},
        _series(flows, learnt),
        lambda: draw(flows, learnt),
        None,
        on=_measured(len(flows.cosine["both"]), how.length),
    )  # fmt: skip


def _measured(texts: int, length: int) -> Measured:
    """What the claims of ALBERT's tokens are of; those of groups are of particles alone."""
    network = subject_of(*model_of(Settings()))
    return Measured(network, Subject("texts", "passages of Wikipedia"), {"texts": texts, "tokens": length})


def _series(flows: Flows, learnt: Trained) -> dict[str, np.ndarray]:
    series = {"t": TS, "t of groups": TS_OF_GROUPS, "loss_by_step": learnt.losses, "energy of one run": learnt.energies}
    for name in flows.cosine:
        for what, found in (("cosine", flows.cosine[name]), ("clusters", flows.clusters[name])):
            series[f"{what}, {name}"], series[f"{what} error, {name}"] = mean_and_error(found)
    for name in learnt.labels:
        series[f"purity, {name}"], series[f"purity error, {name}"] = mean_and_error(learnt.purity(name))
    return series


def caption_of(flows: Flows, learnt: Trained) -> str:
    """What is seen, and what it does not show.

    Source: this library.
    """
    return f"{_of_flows(flows)} {_of_groups(learnt)}"


def _of_flows(flows: Flows) -> str:
    left = {name: float(found[:, -1].mean()) for name, found in flows.clusters.items()}
    learnt, chance = (mean_and_error(flows.clusters[name][:, -1]) for name in ("both", "random"))
    beyond = learnt[0] - chance[0] > 2 * np.hypot(learnt[1], chance[1])
    sign = "fewer, so that the delay is learnt" if beyond else "no sign that the delay is learnt"
    sooner = {name: found[:, np.argmin(np.abs(TS - EARLY))].mean() for name, found in flows.cosine.items()}
    both = left["both"] > left["attention"] and sooner["both"] > sooner["attention"]
    order = "the first gathering comes sooner, and the last collapse later." if both else "see the claims."
    fed, end = flows.cosine["both, shorter"][:, -1].mean(), TS[-1]
    return (
        f"(a, b) Tokens of {len(flows.cosine['both'])} texts as particles on the sphere, under the attention of the "
        "ALBERT of this package and its trained feed-forward, in continuous time, a layer in time 1, the norms left "
        f"out: mean cosine of the pairs, and number of clusters (single linkage at radius {RADIUS}), with standard "
        f"errors over texts, and over draws for the {len(flows.cosine['random'])} random perceptrons, which are the "
        "trained one with the rows and columns of its matrices in random order and with random signs, so that their "
        "singular values are the same. Alone, the trained perceptron sends all tokens of all texts one way "
        f"(mean direction at the end: length {flows.one_way:.2f}). With attention it leaves "
        f"{left['both']:.1f} clusters at t = {end:g}, and attention alone {left['attention']:.1f}; but at "
        f"t = {EARLY:g} the mean cosine is {sooner['both']:.2f} with it, and {sooner['attention']:.2f} without: "
        f"{order} Random perceptrons leave {plus_minus(*chance, 1)}: "
        f"{sign}. It depends on the length r of the tokens that the "
        f"perceptron reads: here {flows.fed:.1f}, as in the network; at the {flows.radius:.1f} that attention reads, "
        f"tokens end in {left['both, shorter']:.1f} clusters at mean cosine {fed:.2f}. And a layer is no small step of "
        f"this flow: at the start the perceptron turns a token at {flows.speed:.1f} radians per layer; so "
        "(a, b) are of the flow, and not of the network."
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
    """What the perceptron of ALBERT does to collapse.

    Source: this library.
    """
    early = int(np.argmin(np.abs(TS - EARLY)))
    left = {name: mean_and_error(found[:, -1]) for name, found in flows.clusters.items()}
    more, of_more = mean_and_error(flows.clusters["both"][:, -1] - flows.clusters["attention"][:, -1])
    sooner, of_sooner = mean_and_error(flows.cosine["both"][:, early] - flows.cosine["attention"][:, early])
    cosine = {name: mean_and_error(found[:, early]) for name, found in flows.cosine.items()}
    until = {name: mean_and_error(flows.until_gathered(name)) for name in ("attention", "both")}
    never = int((flows.cosine["both"].max(axis=1) <= GATHERED).sum())
    beyond = float(left["both"][0] - left["random"][0])
    of_beyond = float(np.hypot(left["both"][1], left["random"][1]))
    return (
        Claim(
            "The trained perceptron delays the last of the collapse: where attention alone has come to one cluster, "
            "more are left with it.",
            f"clusters at t = {TS[-1]:g}: {plus_minus(*left['both'])} with it, {plus_minus(*left['attention'])} by "
            f"attention alone, {plus_minus(*left['both, shuffled'])} with it on shuffled tokens; mean cosine stays "
            f"below {GATHERED} in {never} of {len(flows.cosine['both'])} texts",
            "attention alone ends below 1.5 clusters, and the difference exceeds two standard errors",
            bool(left["attention"][0] < 1.5 and more > 2 * of_more),
            "finding",
            float(more),
            float(of_more),
        ),
        Claim(
            "The trained perceptron delays the gathering of tokens from the start.",
            f"mean cosine at t = {EARLY:g}: {plus_minus(*cosine['both'])} with it, "
            f"{plus_minus(*cosine['attention'])} by attention alone, {plus_minus(*cosine['random'])} with random ones; "
            f"above {GATHERED} at t = {plus_minus(*until['both'], 1)} and {plus_minus(*until['attention'], 1)} "
            f"({TS[-1]:g} where never)",
            "with it the mean cosine is lower, by more than two standard errors",
            bool(sooner < -2 * of_sooner),
            "finding",
            float(sooner),
            float(of_sooner),
        ),
        Claim(
            "Training makes the perceptron delay the collapse: random ones of the same singular values leave fewer "
            "clusters.",
            f"clusters at t = {TS[-1]:g}: trained {plus_minus(*left['both'])}, random {plus_minus(*left['random'])}",
            "the difference exceeds two standard errors",
            beyond > 2 * of_beyond,
            "finding",
            beyond,
            of_beyond,
        ),
    )


def claims_of_groups(learnt: Trained) -> tuple[Claim, ...]:
    """What a perceptron that was trained for it holds apart.

    Source: this library.
    """
    pure = {name: mean_and_error(learnt.purity(name)[:, -1]) for name in learnt.labels}
    single, held = learnt.clusters("attention")[:, -1] == 1, learnt.clusters("trained")[:, -1] > 1
    rise = float(np.diff(learnt.energies).min() / np.ptp(learnt.energies))
    return (
        Claim(
            "A perceptron trained for it holds two groups apart, on starts that it was not trained on and four times "
            "as long, where attention alone has one cluster.",
            f"purity at t = {TS_OF_GROUPS[-1]:g}: {plus_minus(*pure['trained'], 3)} trained, "
            f"{plus_minus(*pure['attention'], 3)} by attention alone, {plus_minus(*pure['random'], 3)} with random "
            f"features; the same under softmax attention {plus_minus(*pure['trained, softmax'], 3)}; two clusters or "
            f"more in {100 * held.mean():.0f} % of {len(held)} starts; by attention alone one in "
            f"{100 * single.mean():.0f} %",
            f"purity above {APART} trained, below {TOGETHER} by attention alone, and with random features lower than "
            "trained by more than two standard errors",
            bool(
                pure["trained"][0] > APART
                and pure["attention"][0] < TOGETHER
                and pure["trained"][0] - pure["random"][0] > 2 * np.hypot(pure["trained"][1], pure["random"][1])
            ),
            "finding",
            float(pure["trained"][0]),
            float(pure["trained"][1]),
        ),
        Claim(
            "It holds the groups apart wherever they are.",
            f"purity at t = {TS_OF_GROUPS[-1]:g} on starts that are turned at random "
            f"{plus_minus(*pure['trained, turned'], 3)}",
            f"above {APART}",
            bool(pure["trained, turned"][0] > APART),
            "finding",
            float(pure["trained, turned"][0]),
            float(pure["trained, turned"][1]),
        ),
        Claim(
            "Unnormalised attention with the perceptron, a gradient itself, climbs the sum of their energies, at the "
            "mean squared speed of the tokens (2601.21366, Section 2).",
            f"along one run the rate is off by at most {learnt.defect:.1e} of the largest rate; the energy rises by "
            f"{np.ptp(learnt.energies):.3f}, its least step is {rise:.1e} of that",
            "off by less than 1e-10, and no step below -1e-6",
            learnt.defect < 1e-10 and rise > -1e-6,
            "identity",
            learnt.defect,
        ),
    )


PERCEPTRON_DELAY = Experiment(
    "perceptron-delay",
    "perceptron_delay",
    "Attention with a trained perceptron",
    "Trained perceptrons are to be added to the particle model (the paper's future work): does a trained perceptron "
    "delay the collapse?",
    _run,
    reads_package=True,
    asks=True,
)
