"""What the figure of a causal network as particles claims."""

import numpy as np

from ...probe.measures.tally import clustered_error
from ..framework.bridge_controls import share_missed
from ..framework.causal import ABSENT
from ..framework.controls import NAMES_OF_CONTROLS
from ..framework.experiment import Claim, over, plus_minus
from ..framework.passages import articles_words
from .head_runs import RADIUS, TIME, HeadRuns
from .measure import ALBERT_NAME, Results


ALONE = 1e-4  # of a length: what float32 may move where sums are taken in another order
HALF = 0.5


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure."""
    claims = (
        *_identities(m), _claim_of_constant(m), _claim_of_uniform(m), _claim_of_controls(m), _claim_of_particle(m),
        _claim_of_attention(m), _claim_of_cases(m), _claim_of_clusters(m),
    )  # fmt: skip
    return over(articles_words(m.articles), claims)


def _told(m: Results, values: np.ndarray, digits: int = 2) -> str:
    mean, error, _ = clustered_error(values, m.articles)
    return plus_minus(mean, error, digits)


def _identities(m: Results) -> tuple[Claim, ...]:
    curves, network = m.bridge.curves.values(), m.bridge.network.values
    assert network is not None
    start = max(float(np.abs(curve.values[:, 0] - network[:, 0]).max()) for curve in curves if curve.values is not None)
    path = m.path
    return (
        Claim(
            says="The first token moves by itself: the tokens behind it change nothing of its stream.",
            measured=f"largest difference from its stream without them, of its length, over {len(m.texts.mask)} texts: "
            f"{path.alone:.1e}",
            criterion=f"less than {ALONE:g} at every level",
            holds=path.alone < ALONE,
            kind="identity",
            value=path.alone,
        ),
        Claim(
            says="Without the feed-forward the first token moves by x + A(N(x)), A linear: the discrete form of x' = "
            "P(Vx).",
            measured=f"largest difference from it after a layer, of the length: {path.linear:.1e}",
            criterion=f"less than {ALONE:g} at every level",
            holds=path.linear < ALONE,
            kind="identity",
            value=path.linear,
        ),
        Claim(
            says="All curves start from the same embedded tokens.",
            measured=f"largest difference before the first layer, over texts: {start:.1e}",
            criterion="less than 1e-5",
            holds=start < 1e-5,
            kind="identity",
            value=start,
        ),
    )


def _claim_of_constant(m: Results) -> Claim:
    bridge = m.bridge
    # Of each text, below 1 is better than its own best constant.
    shares = {name: share_missed(bridge, name) for name in ("particles", "fitted", "uniform")}
    fitted = clustered_error(shares["fitted"], m.articles)
    ends = ", ".join(f"{name} {bridge.curves[name].mean[-2]:.3f}" for name in shares)
    return Claim(
        says=f"Fitted particles predict the similarity of the tokens of {m.name} better than the best constant.",
        measured="error as a share of that of the best constant: as they come "
        f"{_told(m, shares['particles'])}; with time {bridge.time_per_layer:.3g} per layer and beta "
        f"{bridge.beta:.3g} times the network's, fitted to other texts, {_told(m, shares['fitted'])}; with beta 0 and "
        f"time {bridge.time_uniform:.3g} {_told(m, shares['uniform'])}; mean cosine before the last layer "
        f"{bridge.network.mean[-2]:.3f} in the network, {ends}",
        criterion="the share of the fitted ones is below 1 by two standard errors",
        holds=fitted.below(1.0),
        kind="finding",
        value=float(fitted.mean),
        error=float(fitted.error),
    )


def _squares(m: Results, name: str) -> np.ndarray:
    apart = m.bridge.difference(name).values
    assert apart is not None
    return np.mean(apart**2, axis=1)


def _claim_of_uniform(m: Results) -> Claim:
    gain = clustered_error(_squares(m, "uniform") - _squares(m, "fitted"), m.articles)
    return Claim(
        says=f"With beta 0 particles predict the similarity of the tokens of {m.name} worse than with a fitted beta.",
        measured=f"mean squared difference {_squares(m, 'fitted').mean():.2e} with beta {m.bridge.beta:.3g}, "
        f"{_squares(m, 'uniform').mean():.2e} with beta 0, each with a time of its own; the gain of a text is "
        f"{gain.mean:.1e} ± {gain.error:.0e}",
        criterion="the gain exceeds two standard errors",
        holds=gain.above(),
        kind="finding",
        value=float(gain.mean),
        error=float(gain.error),
    )


def _claim_of_controls(m: Results) -> Claim:
    beside = m.beside
    runs, shuffled, random = beside.runs("fitted"), beside.beyond_shuffled, beside.beyond_random.beyond
    names = ("trained", NAMES_OF_CONTROLS[0], f"{NAMES_OF_CONTROLS[1]} {m.spread}")
    nearer = min((shuffled, random), key=lambda one: float(one.z[0]))
    return Claim(
        says=f"Fitted particles predict {m.name} and its texts better than both controls.",
        measured="error as a share of that of the best constant: "
        + "; ".join(f"{name} {plus_minus(*run)}" for name, run in zip(names, runs, strict=True))
        + f"; of the same texts shuffled tokens are missed by {plus_minus(shuffled.difference[0], shuffled.error[0])} "
        f"more, random weights by {plus_minus(random.difference[0], random.error[0])} more (± over "
        f"{articles_words(m.articles)}, of random weights over {len(beside.random['fitted'])} networks)",
        criterion="both differences exceed two standard errors, or with few texts and networks as many as are as "
        "improbable",
        holds=bool(shuffled.exceeds()[0]) and beside.beyond_random.exceeds(),
        kind="finding",
        value=float(nearer.difference[0]),
        error=float(nearer.error[0]),
    )


def _over_levels(m: Results, name: str) -> np.ndarray:
    """The mean cosine to the network's over all levels but the first, where all begin, (texts,)."""
    return m.path.cosines[name][:, 1:].mean(axis=1)


def _claim_of_particle(m: Results) -> Claim:
    cosines = {name: _told(m, _over_levels(m, name), 3) for name in m.path.cosines}
    gain = clustered_error(_over_levels(m, "fitted") - _over_levels(m, "embedding"), m.articles)
    turned = m.path.turned.mean(axis=0)
    least = int(np.argmin(turned))
    return Claim(
        says=f"The fitted particle is nearer to the first token of {m.name} than one that stays where it began.",
        measured=f"cosine to the network's, mean over layers 1 to {m.layers - 1}: fitted "
        f"{cosines['fitted']}, with time 1 {cosines['particle']}, with time 1 and the "
        f"length that the token has {cosines['own length']}, staying at the embedding "
        f"{cosines['embedding']}; the network turns it most in layer {least + 1}, to a cosine of "
        f"{turned[least]:.2f} with what it was",
        criterion="the mean cosine is larger by two standard errors",
        holds=gain.above(),
        kind="finding",
        value=float(gain.mean),
        error=float(gain.error),
    )


def _claim_of_attention(m: Results) -> Claim:
    cosine = m.path.cosines["attention alone"]
    alone = clustered_error(_over_levels(m, "attention alone"), m.articles)
    return Claim(
        says=f"Without the feed-forward, by x' = P(Vx), the first token of {m.name} goes elsewhere than with it.",
        measured="cosine of the first token without feed-forward to that of the network, after layer 1 "
        f"{_told(m, cosine[:, 1], 3)}, before the last layer {_told(m, cosine[:, -1], 3)}; mean over layers "
        f"{_told(m, _over_levels(m, 'attention alone'), 3)}",
        criterion=f"the mean over layers is below {HALF:g} by two standard errors",
        holds=alone.below(HALF),
        kind="finding",
        value=float(alone.mean),
        error=float(alone.error),
    )


def _cases_words(heads: HeadRuns) -> str:
    of = heads.signs
    return (
        f"{heads.name}: {of.count('attractive')} attract, {of.count('repulsive')} repel, {of.count('rotating')} turn, "
        f"of {of.case.size}"
    )


def _claim_of_cases(m: Results) -> Claim:
    share = {heads.name: heads.signs.count("repulsive") / heads.signs.case.size for heads in m.heads}
    causal = [value for name, value in share.items() if name != ALBERT_NAME]
    return Claim(
        says="More than half of the heads of the package's ALBERT repel, and less than a tenth of those of each causal "
        "network.",
        measured="; ".join(map(_cases_words, m.heads)),
        criterion="by the eigenvalue of largest real part of V: more than half repel in ALBERT, less than a tenth in "
        "each causal network",
        holds=share[ALBERT_NAME] > 0.5 and all(value < 0.1 for value in causal),
        kind="finding",
        value=share[ALBERT_NAME],
    )


def _claim_of_clusters(m: Results) -> Claim:
    words, right, many = [], 0, 0
    for heads in m.heads:
        apart, repel = heads.clusters > heads.n / 2, heads.signs.case == "repulsive"
        right, many = right + int((apart == repel).sum()), many + apart.size
        words += [
            f"{heads.name}, {case}: {heads.of(case).mean():.1f} (from {heads.of(case).min():.1f} to "
            f"{heads.of(case).max():.1f})"
            for case in ("attractive", "repulsive", "rotating")
            if heads.of(case).size
        ]
    return Claim(
        says="Particles stay apart at just the heads that repel.",
        measured=f"clusters (radius {RADIUS:g}) of {m.heads[0].n} particles at t = {TIME:g}, in units of the leading "
        f"eigenvalue: {'; '.join(words)}; so it is at {right} of {many} heads",
        criterion=f"more than {m.heads[0].n // 2} clusters at just these heads",
        holds=right == many,
        kind="finding",
        value=right / many,
    )


def caption_of(m: Results) -> str:
    """What is seen, and what holds."""
    bridge = m.bridge
    value = share_missed(bridge, "fitted").mean()
    verdict = "better than the best constant does" if value < 1 else "worse than a constant does"
    return (
        f"{'' if m.installed else ABSENT + ' '}A causal network as particles with its own heads: {m.network.words}, on "
        f"{m.data.words}; {len(m.texts.mask)} texts are measured and {len(m.others.mask)} others fitted to, cut to "
        f"{m.texts.mask.shape[1]} tokens. Particles are masked as the network and rotated at their places, and each "
        "block divides what it writes by the median length of the tokens. (a) Mean cosine of the tokens at each level: "
        "the network, its particles as they come (a layer in time 1, beta 1), with both fitted (time "
        f"{bridge.time_per_layer:.3g}, beta {bridge.beta:.3g}), and with beta 0 and a time of its own. (b) What they "
        "miss the curve of a text by, as a share of what the best constant does (line), beside both controls: tokens "
        f"in random order, and {len(m.beside.random['fitted'])} networks of random weights {m.spread} (crosses). (c) "
        "The cosine "
        "of the first token, which moves by itself, to that of the particle, with the fitted time, with time 1 and its "
        "own length, to the network without feed-forward, and to its embedding. (d) The eigenvalue of largest real "
        "part of V of each head, divided by its size: right of zero it attracts, or turns if it is not real, left of "
        f"zero it repels. (e) Clusters of {m.heads[0].n} particles that one head moves at t = {TIME:g}, by that "
        "eigenvalue's real part. (f) How many heads of each network are of which case. Means over texts with their "
        f"standard errors, over {articles_words(m.articles)}; of random weights, over networks. The fitted particles "
        "predict the similarity "
        f"{verdict}, {value:.2f} of its error."
    )
