"""Figure 2: what the heads of a trained network attend to, and which of them do it alike."""

from collections.abc import Callable

import numpy as np
from scipy.stats import t

from .. import probe
from ._controls import NAMES, NAMES_OF_CONTROLS, against, random_words, runs_of
from ._experiment import Claim, Experiment, Outcome, Settings, plus_minus
from ._figure2_measure import APART, CLUSTERS, REPLICATES, STABLE, Heads, largest_of, measure_heads
from ._figure2_panels import Panels, draw
from ._networks import Network, network_of
from ._sources import PEAT_FIGURE_2


FIRST, LAST = 20, 3  # tokens of the text that are shown
CHANCE = 0.0228  # how often nothing exceeds two standard errors


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    found = network_of(settings)
    say(
        f"measuring {found.model.num_heads} heads in {found.model.num_layers} layers on {len(found.texts.mask)} texts, "
        "with two controls"
    )
    heads = measure_heads(found, settings.seed, settings.store)
    layers = np.arange(1, found.model.num_layers + 1)
    groups = [heads.groups(layer) for layer in range(len(layers))]
    return Outcome(
        caption_of(found, heads),
        claims_of(heads),
        {"network": found.words, "texts": found.of_texts, "layers": len(layers), "heads": found.model.num_heads,
         "clusters of heads": CLUSTERS, "resamples": REPLICATES, "starts": len(found.texts.mask),
         "solver": "none: layers in float32", "clusters by layer": [each.numbers for each in groups]},
        {"layer": layers, "correlation": heads.between,
         "correlation_error": heads.between_resampled.std(axis=0, ddof=1), "stability": heads.alike.clusters.stability}
        | {f"correlation, {name}": mean for name, (mean, _) in zip(NAMES[1:], heads.lines[1:], strict=False)}
        | {"correlation_by_heads": heads.alike.correlation.mean}
        | {f"excess_by_head, {words}": heads.sinks.excess[name].mean for name, words in heads.targets.items()}
        | {f"error_by_head, {words}": np.nan_to_num(heads.sinks.excess[name].error)
           for name, words in heads.targets.items()},
        lambda: draw(_panels(found, heads)),
        None,
        on=found.measured(),
    )  # fmt: skip


def caption_of(found: Network, heads: Heads) -> str:
    """What is seen, and what the groups of heads are worth.

    Source: this library.
    """
    name, layer, head = heads.strongest
    groups, between = heads.groups(-1), heads.between
    listed = " and ".join(map(str, groups.numbers))
    verdict = {
        "clusters": f"At the last layer {listed} are two stable clusters",
        "outlier": f"At the last layer {listed} are not two clusters, but one and a head apart from it",
        "unsure": f"At the last layer {listed} are not borne out as two clusters",
    }[groups.word]
    tokens = len(heads.activation.token_ids)
    cut = f", the first {FIRST} and the last {LAST} of them" if tokens > FIRST + LAST + 1 else ""
    towards = " and ".join(f"to {'the ' * (key == 'first')}{words}" for key, words in heads.targets.items())
    return (
        f"The heads of {found.words}: {found.of_texts}. Heads and layers are counted from 1. (a) What each of {tokens} "
        f"tokens of one text receives{cut}: the mean over the attending tokens, 1 being the uniform 1/n, at layer "
        f"{layer + 1}, which has the strongest sink. (b) The weight that the other tokens give {towards}, beyond that "
        "of uniform attention; means over texts, with a dot where this is within two standard errors of none. It is "
        f"largest at layer {layer + 1}, head {head + 1}, {heads.targets[name]}. (c) This excess at the head that has "
        f"most of it at each layer, with that of shuffled tokens and of {random_words(found)}. (d) Correlations of the "
        "attention maps of heads, ordered by the "
        f"{CLUSTERS} clusters of average linkage, with lines between these, and their stability: the adjusted Rand "
        "index of the clusters when texts are resampled; a head alone is an outlier and no cluster. "
        f"{verdict}, stability {groups.stability:.2f}. (e) The mean correlation of two heads, from {between[0]:.2f} at "
        f"the first layer to {between[-1]:.2f} at the last, "
        f"{against(heads.of_heads, lambda found: found.between_heads, -1)}. Standard errors are over texts, of random "
        "weights over networks. Padding counts nowhere."
    )


def claims_of(heads: Heads) -> tuple[Claim, ...]:
    """What the paper says of heads, what is found, and what must hold.

    Source: this library.
    """
    return (
        _claim_of_rise(heads),
        _claim_of_groups(heads),
        _claim_of_first(heads),
        _claim_of_sinks(heads),
        _claim_beyond(
            "Trained heads are more alike at the last layer than those of the controls.",
            "mean correlation",
            heads.of_heads,
            (heads.of_heads.beyond_shuffled, heads.of_heads.beyond_random),
            -1,
        ),
        _claim_beyond(
            "The strongest sink is stronger than that of the controls.",
            "excess at the head that has most of it",
            heads.of_sinks,
            heads.beyond,
            heads.strongest[1],
        ),
        *_identities(heads),
    )


def _claim_of_rise(heads: Heads) -> Claim:
    between, resampled = heads.between, heads.between_resampled
    spread = resampled.std(axis=0, ddof=1)
    rise, error = float(between[-1] - between[0]), float((resampled[:, -1] - resampled[:, 0]).std(ddof=1))
    return Claim(
        "The correlations between heads increase with depth.",
        f"mean correlation of two heads {plus_minus(between[0], spread[0], 3)} at layer 1, "
        f"{plus_minus(between[-1], spread[-1], 3)} at layer {len(between)}",
        "the rise exceeds two standard errors",
        rise > 2 * error,
        "paper",
        rise,
        error,
        source=PEAT_FIGURE_2,
    )


def _claim_of_groups(heads: Heads) -> Claim:
    each = [heads.groups(layer) for layer in range(len(heads.between))]
    last = each[-1]
    listed = "; ".join(
        f"heads {numbers}, correlation {within:.2f} within" if len(numbers) > 1 else f"head {numbers[0]} alone"
        for numbers, within in zip(last.numbers, last.within, strict=True)
    )
    return Claim(
        "The heads form two clusters, each strongly correlated.",
        f"at layer {len(each)}: {listed}; {last.across:.2f} between the two; stability {last.stability:.2f}. By the "
        f"same criterion there are two clusters at {sum(one.real for one in each)} of {len(each)} layers",
        f"at the last layer: stability at least {STABLE:g}, no head alone, and within each the correlation exceeds "
        f"that between the two by {APART:g} and by two standard errors",
        last.real,
        "paper",
        last.stability,
        source=PEAT_FIGURE_2,
    )


def _claim_of_first(heads: Heads) -> Claim:
    by_layer = heads.over_twice("first").sum(axis=1)
    total = heads.alike.correlation.mean.shape[-1]
    return Claim(
        "Several heads give the first token a strong weight, at all layers.",
        f"over twice the uniform weight by two standard errors are {by_layer.min()} to {by_layer.max()} of {total} "
        f"heads at a layer, fewest at layer {int(by_layer.argmin()) + 1}; two or more at {int((by_layer >= 2).sum())} "
        f"of {len(by_layer)} layers",
        "two heads or more at every layer",
        bool((by_layer >= 2).all()),
        "paper",
        float(by_layer.min()),
        source=PEAT_FIGURE_2,
    )


def _claim_of_sinks(heads: Heads) -> Claim:
    sinks, targets = heads.sinks, heads.targets
    name, layer, head = heads.strongest
    excess = sinks.excess[name]
    size, error = float(excess.mean[layer, head]), float(excess.error[layer, head])
    uniform = float(sinks.mass[name].mean[layer, head]) - size
    beyond = {key: _beyond(sinks.excess[key]) for key in targets}
    least = float(t.isf(CHANCE / (excess.mean.size * len(targets)), excess.texts - 1))
    listed = ", ".join(
        f"{int(beyond[key].sum())} are beyond uniform and {int(heads.over_twice(key).sum())} beyond twice uniform for "
        f"{words}"
        for key, words in targets.items()
    )
    return Claim(
        "Some head has the first token or a special token as a sink.",
        f"strongest: {targets[name]} at layer {layer + 1}, head {head + 1}, with a weight of "
        f"{plus_minus(size + uniform, error, 4)} where uniform attention gives {uniform:.4f}; of {excess.mean.size} "
        f"heads and layers {listed}; the causal baseline H_n/n would leave "
        f"{int(_beyond(sinks.causal_excess['first']).sum())} for the first token",
        f"the strongest is so far beyond uniform that chance has it in {100 * CHANCE:.1f} % of the cases, over all "
        f"heads, layers and targets: {least:.2f} standard errors",
        bool(size > least * error),
        "finding",
        size,
        error,
    )


def _claim_beyond(
    says: str, what: str, seen: probe.Controls, beyond: tuple[probe.Comparison, probe.Comparison], level: int
) -> Claim:
    nearer = min(beyond, key=lambda one: one.z[level])
    listed = "; ".join(
        f"{plus_minus(one.difference[level], one.error[level], 3)} above {name}"
        for name, one in zip(NAMES_OF_CONTROLS, beyond, strict=True)
    )
    return Claim(
        says,
        f"{what} at layer {level % len(nearer.z) + 1}: {listed}",
        f"both differences exceed {seen.sigmas:g} standard errors, or with few networks as many as are as improbable",
        all(bool(one.exceeds(seen.sigmas)[level]) for one in beyond),
        "finding",
        float(nearer.difference[level]),
        float(nearer.error[level]),
    )


def _beyond(average: probe.Average) -> np.ndarray:
    return average.mean > 2 * average.error


def _identities(heads: Heads) -> tuple[Claim, ...]:
    off = float(np.abs(heads.activation.received.sum(axis=-1) - 1).max())
    matrices = heads.alike.correlation.mean
    ones = float(np.abs(np.diagonal(matrices, axis1=1, axis2=2) - 1).max())
    least = float(np.linalg.eigvalsh(matrices).min())
    gaps = np.stack([heads.sinks.excess[name].mean - heads.sinks.causal_excess[name].mean for name in heads.targets])
    uneven = float(np.ptp(gaps, axis=(1, 2)).max())
    return (
        Claim(
            "What the tokens receive adds up to 1.",
            f"largest difference over layers and heads: {off:.1e}",
            "less than 1e-5",
            off < 1e-5,
            "identity",
            off,
        ),
        Claim(
            "The correlations of heads are a correlation matrix at every layer.",
            f"diagonal 1 up to {ones:.1e}; smallest eigenvalue {least:.2g}",
            "diagonal up to 1e-6, no eigenvalue below -1e-6",
            ones < 1e-6 and least > -1e-6,
            "identity",
            least,
        ),
        Claim(
            "The two baselines of a sink depend on the text alone, not on layer or head.",
            f"largest spread of their difference over layers and heads: {uneven:.1e}",
            "less than 1e-6",
            uneven < 1e-6,
            "identity",
            uneven,
        ),
    )


def _panels(found: Network, heads: Heads) -> Panels:
    one, names, layer = heads.activation, found.names or {}, heads.strongest[1]
    layers = len(heads.between)
    shown = sorted({0, (layers - 1) // 2, layers - 1})
    groups = {k: heads.groups(k) for k in shown}
    return Panels(
        received=one.received[layer] * len(one.token_ids),
        tokens=one.words or [names.get(int(token), str(token)) for token in one.token_ids],
        ends=(FIRST, LAST),
        layer=layer + 1,
        excess={words: heads.sinks.excess[name] for name, words in heads.targets.items()},
        target=heads.targets[heads.strongest[0]],
        largest=runs_of(heads.of_sinks, largest_of(heads.strongest[0])),
        correlation={k + 1: heads.alike.correlation.mean[k] for k in shown},
        groups={k + 1: groups[k].heads for k in shown},
        verdicts={k + 1: f"{groups[k].word}, {groups[k].stability:.2f}" for k in shown},
        between=heads.lines,
    )


FIGURE2 = Experiment(
    "figure2",
    "attention_heads",
    "Figure 2: the heads of a trained network",
    "Several heads give the first token a strong weight, at all layers; the correlations between heads increase with "
    "depth, and two clusters of heads emerge.",
    _run,
    reads_texts=True,
)
