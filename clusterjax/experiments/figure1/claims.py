"""What figure 1 claims of a trained network: similarities that are normal at first, then a spike, then one cluster."""

import numpy as np

from ...probe.measures.tally import Clustered, clustered_error
from ..framework.controls import against, random_words
from ..framework.experiment import Claim, over, percent, plus_minus
from ..framework.networks import Network
from ..framework.passages import articles_words
from ..framework.sources import PEAT_FIGURE_1
from .measure import Alike, Both, Results


NORMAL = 0.025  # D of what is called nearly normal: a logistic distribution has 0.023, a uniform one 0.057
SINGLE = 0.95  # of the texts


def caption_of(network: Network, m: Results) -> str:
    """What is seen, and whether the controls show it as well."""
    near = f"{m.p.near:g}"
    return (
        f"Cosine similarity of the tokens in {network.words}: {network.of_texts}. Top: its distribution before the "
        f"first layer, in the middle and at the end of the {m.trained} layers of training, and after {m.late}, where "
        "the same layers are applied further; filled: trained; thin: the normal distribution of the same mean and "
        f"spread; lines: the same tokens in random order, and {random_words(network, m.p.draws)}"
        f"{'' if m.usual is None else ', and of the usual scale'}. Peaks beyond the axis are cut off. A token is never "
        "compared with itself, and padding with nothing. Below: (a) mean cosine, and in black that of the words of the "
        "trained network, without the special tokens at both ends of a text; (b) the largest difference D from "
        f"that normal distribution, as of Kolmogorov; (c) the height of the spike: the largest density above {near}; "
        "(d) its width, between the quartiles of the cosines; and without the special tokens at both ends of a text: "
        f"(e) pairs above {near}; (f) clusters, joined by chains of cosines of {near} or more; in both also the "
        "trained network with these tokens. Means over texts with their standard errors, over "
        f"{articles_words(m.articles)}; of random weights, over networks. Vertical line: the depth of training. "
        f"{_verdict(m)}{_scale(m.usual, m.trained)}"
    )


def _scale(usual: Both | None, trained: int) -> str:
    if usual is None:
        return ""
    return (
        " It began with weights that write little to the tokens; random weights of the usual scale, the standard "
        f"deviation of transformers for all of them, bring the mean cosine to {usual.every.cosine.mean[trained]:.2f}."
    )


def _verdict(m: Results) -> str:
    """What is seen, and whether the controls show it as well."""
    seen, late = m.seen, m.late
    cosine = seen.trained.every.cosine.mean
    learnt = ": what it shows is learnt, and about language" if seen.clusters_beyond_controls else ""
    spikes = [_spike(m, run.every) for run in (seen.shuffled, *seen.random)]
    same = [name for name, has in (("shuffled words", spikes[0]), ("random weights", all(spikes[1:]))) if has]
    spike = "there is a spike near 1" if _spike(m, seen.trained.every) else "there is no spike near 1"
    also = f"; {' and '.join(same)} show one as well" if same else ""
    words = seen.trained.words.cosine.mean
    apart = f" (without special tokens from {words[0]:.2f} to {words[m.trained]:.2f})" if m.special else ""
    return (
        f"At the depth of training the mean cosine has gone from {cosine[0]:.2f} to {cosine[m.trained]:.2f}{apart}, "
        f"{against(seen, lambda run: run.every.cosine, m.trained)}{learnt}. At layer {late} {spike}{also}."
    )


def _spike(m: Results, alike: Alike) -> bool:
    """Whether the mean histogram is highest near 1, and surely higher than before the first layer."""
    return bool(alike.mode[m.late] > m.p.near and _rise(m, alike).above())


def _rise(m: Results, alike: Alike) -> Clustered:
    """By how much the spike exceeds the largest density before the first layer, of a text."""
    assert alike.height.values is not None and alike.top.values is not None
    # Of each text: its own largest density before the first layer.
    return clustered_error(alike.height.values[:, m.late] - alike.top.values[:, 0], m.articles)


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure."""
    seen, trained = m.seen, m.trained
    cosine = seen.trained.every.cosine
    assert cosine.values is not None
    # Paired by text: the rise of each.
    rise = clustered_error(cosine.values[:, trained] - cosine.values[:, 0], m.articles)
    # The control that is closer decides: both must be exceeded.
    nearer = min((seen.beyond_shuffled, seen.beyond_random), key=lambda control: control.z[trained])
    # A density times the width of its bins adds up to one.
    mass = [
        (control.density.mean * np.diff(control.edges)).sum(axis=1)
        for control in (seen.trained.every, seen.trained.words)
    ]
    off = float(np.abs(np.stack(mass) - 1).max())
    claims = (
        _claim_of_normality(m),
        Claim(
            says="Tokens become more alike with depth.",
            measured=f"mean cosine {plus_minus(cosine.mean[0], cosine.error[0], 3)} before the first layer, "
            f"{plus_minus(cosine.mean[trained], cosine.error[trained], 3)} after layer {trained}; "
            f"{m.beside('cosine', trained)} there; without special tokens {_words_alone(m, 0)} and "
            f"{_words_alone(m, trained)} ({m.beside('cosine', trained, 'words')})",
            criterion="the rise exceeds two standard errors",
            holds=rise.above(),
            kind="paper",
            value=float(rise.mean),
            error=float(rise.error),
            source=PEAT_FIGURE_1,
        ),
        *_claims_of_special(m),
        _claim_of_spike(m),
        _claim_of_one_cluster(m, "every"),
        _claim_of_one_cluster(m, "words"),
        Claim(
            says="The tokens of the trained network are more alike than those of both controls.",
            measured="mean cosine after the last layer of training: "
            + "; ".join(
                f"{plus_minus(control.difference[trained], control.error[trained], 3)} above {name}"
                for name, control in (("shuffled tokens", seen.beyond_shuffled), ("random weights", seen.beyond_random))
            ),
            criterion="both differences exceed two standard errors, or with few networks as many as are as improbable",
            holds=seen.clusters_beyond_controls,
            kind="finding",
            value=float(nearer.difference[trained]),
            error=float(nearer.error[trained]),
        ),
        Claim(
            says="Each histogram is of all pairs, and none but these.",
            measured=f"largest difference of its mass from 1, with and without special tokens: {off:.1e}",
            criterion="less than 1e-5",
            holds=off < 1e-5,
            kind="identity",
            value=off,
        ),
    )
    return over(f"{articles_words(m.articles)}, of random weights over networks", claims)


def _words_alone(m: Results, level: int) -> str:
    cosine = m.seen.trained.words.cosine
    return plus_minus(cosine.mean[level], cosine.error[level], 3)


def _claims_of_special(m: Results) -> tuple[Claim, ...]:
    """That the special tokens stand apart, of a network that has some."""
    level, (trained, shuffled, random) = m.trained, (m.seen.trained, m.seen.shuffled, m.seen.random)
    if not m.special or np.isnan(trained.apart.mean).any():
        return ()
    of_trained, of_shuffled, *of_random = (_below(m, one) for one in (trained, shuffled, *random))
    return (
        Claim(
            says="The special tokens at the ends of a text stay apart from its words, which they mix into the mean "
            "cosine; those of random weights do not, and those of shuffled words do.",
            measured=f"mean cosine of a special token to a word {m.apart(level)} after layer {level}, of words among "
            "each "
            f"other {_words_alone(m, level)}: less by {plus_minus(of_trained.mean, of_trained.error, 3)}, shuffled "
            f"by {plus_minus(of_shuffled.mean, of_shuffled.error, 3)}, random weights by "
            f"{', '.join(f'{one.mean:.3f}' for one in of_random)}; after layer {m.deepest} {m.apart(m.deepest)}, of "
            f"words {_words_alone(m, m.deepest)}",
            criterion="less than words among each other by 0.2 and two standard errors, in shuffled words too, and "
            "with "
            "no network of random weights",
            holds=all(one.above(0.2) for one in (of_trained, of_shuffled))
            and not any(one.above(0.2) for one in of_random),
            kind="finding",
            value=float(of_trained.mean),
            error=float(of_trained.error),
        ),
    )


def _below(m: Results, both: Both) -> Clustered:
    """By how much the mean cosine of special tokens to words is below that of words after training, of a text."""
    assert both.words.cosine.values is not None and both.apart.values is not None
    return clustered_error(both.words.cosine.values[:, m.trained] - both.apart.values[:, m.trained], m.articles)


def _claim_of_normality(m: Results) -> Claim:
    every, words = m.normal
    # Of the trained network, D at the end of training.
    after = m.distances()[0][0][m.trained]
    return Claim(
        says="Before the first layer the similarities are normally distributed, nearly.",
        measured=f"largest difference D from the normal distribution of the same mean and spread {every.distance:.4f}, "
        f"below {every.upper:.4f} with 95 % confidence; without special tokens {words.distance:.4f} and "
        f"{words.upper:.4f}. Exactly normal by chance: p = {every.p:.3f} and {words.p:.3f}, articles "
        f"resampled. {_capital(m)}; after layer {m.trained} {after:.3f}; a uniform distribution has 0.057, a Laplace "
        "0.062",
        criterion=f"D below {NORMAL:g} with 95 % confidence, with and without special tokens, against any distribution "
        "that is farther from normal",
        holds=max(every.upper, words.upper) < NORMAL,
        kind="paper",
        value=every.distance,
        source=PEAT_FIGURE_1,
    )


def _capital(m: Results) -> str:
    text = m.beside("distance", 0, digits=3)
    return text[0].upper() + text[1:]


def _claim_of_spike(m: Results) -> Claim:
    late, words = m.late, []
    rise = _rise(m, m.seen.trained.every)
    # The same sentence with and without special tokens.
    for which, word in (("every", ""), ("words", "without special tokens ")):
        alike = getattr(m.seen.trained, which)
        words.append(
            f"{word}most pairs at {alike.mode[late]:.2f}, density above {m.p.near:g} "
            f"{plus_minus(alike.height.mean[late], alike.height.error[late], 1)} ({m.beside('height', late, which)}), "
            f"before the first layer {alike.top.mean[0]:.1f} at most; half of the pairs within "
            f"{plus_minus(alike.width.mean[late], alike.width.error[late], 3)} ({m.beside('width', late, which)})"
        )
    return Claim(
        says=f"By layer {late} there is a spike near 1.",
        measured="; ".join(words),
        criterion=f"the histogram is highest above {m.p.near:g}, and there surely higher than anywhere before the "
        "first layer",
        holds=_spike(m, m.seen.trained.every),
        kind="paper",
        value=float(rise.mean),
        error=float(rise.error),
        source=PEAT_FIGURE_1,
    )


def _claim_of_one_cluster(m: Results, which: str) -> Claim:
    late, alike = m.late, getattr(m.seen.trained, which)
    share, error = alike.single.mean[late], alike.single.error[late]
    tokens = "all tokens" if which == "every" else "all but the special tokens"
    return Claim(
        says=f"As the layers are applied further, {tokens} come to one cluster.",
        measured=f"after {late} layers in {percent(share, error)} of the texts "
        f"({m.beside('single', late, which, 100, 0)} %); {alike.num_clusters.mean[late]:.2f} clusters, "
        f"{percent(alike.near_mass.mean[late], alike.near_mass.error[late])} of the pairs above "
        f"{m.p.near:g}",
        criterion=f"in at least {100 * SINGLE:g} % of the texts chains of cosines of {m.p.near:g} or more join them "
        "all, however many",
        holds=bool(share >= SINGLE),
        kind="paper",
        value=float(share),
        error=float(error),
        source=PEAT_FIGURE_1,
    )
