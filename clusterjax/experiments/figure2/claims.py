"""Figure 2: what the heads of a trained network attend to, and which of them do it alike."""

import numpy as np
from scipy.stats import t

from ... import probe
from ..framework.controls import NAMES_OF_CONTROLS, against, random_words
from ..framework.experiment import Claim, over, plus_minus
from ..framework.networks import Network
from ..framework.passages import articles_words
from ..framework.sources import PEAT_FIGURE_2
from .measure import APART, CLUSTERS, STABLE, Results
from .panels import FIRST, LAST


CHANCE = 0.0228  # how often nothing exceeds two standard errors


def caption_of(network: Network, m: Results) -> str:
    """What is seen, and what the groups of heads are worth."""
    name, layer, head = m.strongest
    groups, between = m.groups(-1), m.between
    listed = " and ".join(map(str, groups.numbers))
    # The word of `Groups.word` decides the sentence.
    verdict = {
        "clusters": f"At the last layer {listed} are two stable clusters",
        "outlier": f"At the last layer {listed} are not two clusters, but one and a head apart from it",
        "unsure": f"At the last layer {listed} are not borne out as two clusters",
    }[groups.word]
    tokens = len(m.activation.token_ids)
    shortened = f", the first {FIRST} and the last {LAST} of them" if tokens > FIRST + LAST + 1 else ""
    towards = " and ".join(f"to {'the ' * (target == 'first')}{words}" for target, words in m.targets.items())
    return (
        f"The heads of {network.words}: {network.of_texts}. Heads and layers are counted from 1. (a) What each of "
        f"{tokens} tokens of one text receives{shortened}: the mean over the attending tokens, 1 being the uniform "
        f"1/n, at layer {m.shown + 1}, which {'has' if m.shown == layer else 'was asked for and has not'} the "
        f"strongest sink. (b) The weight that the other tokens give {towards}, beyond that of uniform attention; means "
        f"over texts, with a dot where this is within two standard errors of none. It is largest at layer "
        f"{layer + 1}, head {head + 1}, {m.targets[name]}. (c) This excess at the head that has most "
        "of it at each layer, with that of shuffled tokens and of "
        f"{random_words(network, m.p.draws)}. (d) Correlations of the attention maps of heads, ordered by the "
        f"{CLUSTERS} clusters of average linkage, with lines between these, and their stability: the adjusted Rand "
        f"index of the clusters when articles are resampled; a head alone is an outlier and no cluster. {verdict}, "
        f"stability {groups.stability:.2f}. (e) The mean correlation of two heads, from {between[0]:.2f} at the first "
        f"layer to {between[-1]:.2f} at the last, {against(m.of_heads, lambda alike: alike.between_heads, -1)}. "
        f"Standard errors are over {articles_words(m.articles)}, of random weights over networks. Padding counts "
        "nowhere."
    )


def claims_of(m: Results) -> tuple[Claim, ...]:
    """What the paper says of heads, what is found, and what must hold."""
    claims = (
        _claim_of_rise(m),
        _claim_of_groups(m),
        _claim_of_first(m),
        _claim_of_sinks(m),
        _claim_beyond(
            "Trained heads are more alike at the last layer than those of the controls.",
            "mean correlation",
            m.of_heads,
            (m.of_heads.beyond_shuffled, m.of_heads.beyond_random),
            -1,
        ),
        _claim_beyond(
            "The strongest sink is stronger than the strongest of the same layer in both controls.",
            "excess at the head that has most of it",
            m.of_sinks,
            m.beyond,
            m.strongest[1],
        ),
        *_identities(m),
    )
    return over(f"{articles_words(m.articles)}, of random weights over networks", claims)


def _claim_of_rise(m: Results) -> Claim:
    between, resampled = m.between, m.between_resampled
    # Over resamples of the articles: the standard error of the mean.
    spread = resampled.std(axis=0, ddof=1)
    # The rise of each resample, so that what both layers share does not count twice.
    rise, error = float(between[-1] - between[0]), float((resampled[:, -1] - resampled[:, 0]).std(ddof=1))
    return Claim(
        says="The correlations between heads increase with depth.",
        measured=f"mean correlation of two heads {plus_minus(between[0], spread[0], 3)} at layer 1, "
        f"{plus_minus(between[-1], spread[-1], 3)} at layer {len(between)}",
        criterion="the rise exceeds two standard errors",
        holds=rise > 2 * error,
        kind="paper",
        value=rise,
        error=error,
        source=PEAT_FIGURE_2,
    )


def _claim_of_groups(m: Results) -> Claim:
    each = [m.groups(layer) for layer in range(len(m.between))]
    last = each[-1]
    listed = "; ".join(
        f"heads {numbers}, correlation {within:.2f} within" if len(numbers) > 1 else f"head {numbers[0]} alone"
        for numbers, within in zip(last.numbers, last.within, strict=True)
    )
    return Claim(
        says="The heads form two clusters, each strongly correlated.",
        measured=f"at layer {len(each)}: {listed}; {last.across:.2f} between the two; stability {last.stability:.2f}. "
        f"By the same criterion there are two clusters at {sum(one.real for one in each)} of {len(each)} layers",
        criterion=f"at the last layer: stability at least {STABLE:g}, no head alone, and within each the correlation "
        f"exceeds that between the two by {APART:g} and by two standard errors",
        holds=last.real,
        kind="paper",
        value=last.stability,
        source=PEAT_FIGURE_2,
    )


def _claim_of_first(m: Results) -> Claim:
    # How many heads do so at each layer.
    by_layer = m.over_twice("first").sum(axis=1)
    total = m.alike.correlation.mean.shape[-1]
    return Claim(
        says="Several heads give the first token a strong weight, at all layers.",
        measured=f"over twice the uniform weight by two standard errors are {by_layer.min()} to {by_layer.max()} of "
        f"{total} heads at a layer, fewest at layer {int(by_layer.argmin()) + 1}; two or more at "
        f"{int((by_layer >= 2).sum())} of {len(by_layer)} layers",
        criterion="two heads or more at every layer",
        holds=bool((by_layer >= 2).all()),
        kind="paper",
        value=float(by_layer.min()),
        source=PEAT_FIGURE_2,
    )


def _claim_of_sinks(m: Results) -> Claim:
    sinks, targets = m.sinks, m.targets
    name, layer, head = m.strongest
    excess = sinks.excess[name]
    size, error = float(excess.mean[layer, head]), float(excess.error[layer, head])
    uniform = float(sinks.mass[name].mean[layer, head]) - size
    beyond = {target: _beyond(sinks.excess[target]) for target in targets}
    # Bonferroni: the strongest of so many heads, layers and targets is large by chance alone.
    least = float(t.isf(CHANCE / (excess.mean.size * len(targets)), len(np.unique(m.articles)) - 1))
    listed = ", ".join(
        f"{int(beyond[target].sum())} are beyond uniform and {int(m.over_twice(target).sum())} beyond twice uniform "
        f"for {words}"
        for target, words in targets.items()
    )
    return Claim(
        says="Some head gives the first token or a special token more than uniform attention does.",
        measured=f"strongest: {targets[name]} at layer {layer + 1}, head {head + 1}, with a weight of "
        f"{plus_minus(size + uniform, error, 4)} where uniform attention gives {uniform:.4f}; of {excess.mean.size} "
        f"heads and layers {listed}; the causal baseline H_n/n would leave "
        f"{int(_beyond(sinks.causal_excess['first']).sum())} for the first token",
        criterion=f"the strongest is so far beyond uniform that chance has it in {100 * CHANCE:.1f} % of the cases, "
        f"over all heads, layers and targets: {least:.2f} standard errors",
        holds=bool(size > least * error),
        kind="finding",
        value=size,
        error=error,
    )


def _claim_beyond(
    says: str, what: str, seen: probe.Controls, beyond: tuple[probe.Comparison, probe.Comparison], level: int
) -> Claim:
    # The control that is closer decides: both must be exceeded.
    nearer = min(beyond, key=lambda control: control.z[level])
    listed = "; ".join(
        f"{plus_minus(control.difference[level], control.error[level], 3)} above {name}"
        for name, control in zip(NAMES_OF_CONTROLS, beyond, strict=True)
    )
    return Claim(
        says=says,
        measured=f"{what} at layer {level % len(nearer.z) + 1}: {listed}",
        criterion=f"both differences exceed {seen.sigmas:g} standard errors, or with few networks as many as are as "
        "improbable",
        holds=all(bool(control.exceeds(seen.sigmas)[level]) for control in beyond),
        kind="finding",
        value=float(nearer.difference[level]),
        error=float(nearer.error[level]),
    )


def _beyond(average: probe.Average) -> np.ndarray:
    return average.mean > 2 * average.error


def _identities(m: Results) -> tuple[Claim, ...]:
    off = float(np.abs(m.activation.received.sum(axis=-1) - 1).max())
    matrices = m.alike.correlation.mean
    ones = float(np.abs(np.diagonal(matrices, axis1=1, axis2=2) - 1).max())
    # A correlation matrix is positive semidefinite.
    least = float(np.linalg.eigvalsh(matrices).min())
    # The two baselines are functions of the lengths of texts and of nothing else.
    gaps = np.stack([m.sinks.excess[name].mean - m.sinks.causal_excess[name].mean for name in m.targets])
    uneven = float(np.ptp(gaps, axis=(1, 2)).max())
    return (
        Claim(
            says="What the tokens receive adds up to 1.",
            measured=f"largest difference over layers and heads: {off:.1e}",
            criterion="less than 1e-5",
            holds=off < 1e-5,
            kind="identity",
            value=off,
        ),
        Claim(
            says="The correlations of heads are a correlation matrix at every layer.",
            measured=f"diagonal 1 up to {ones:.1e}; smallest eigenvalue {least:.2g}",
            criterion="diagonal up to 1e-6, no eigenvalue below -1e-6",
            holds=ones < 1e-6 and least > -1e-6,
            kind="identity",
            value=least,
        ),
        Claim(
            says="The two baselines of a sink depend on the text alone, not on layer or head.",
            measured=f"largest spread of their difference over layers and heads: {uneven:.1e}",
            criterion="less than 1e-6",
            holds=uneven < 1e-6,
            kind="identity",
            value=uneven,
        ),
    )
