"""What is measured of a causal network as particles: the bridge with its controls, the first token, and the heads.

Texts are used in two parts: time per layer and beta are fitted to every fifth text and the curves are measured on the
others. SmolLM2-135M-Instruct (Q4_1) is the network where it is installed, else the language model of the package.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ... import probe
from ...plot import OKABE_ITO, style, time_series
from ...probe.measures.survey import clustered_error, dtype_of
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, plus_minus
from ..framework.figure import declared
from ..framework.verdict import Measured, Subject
from ..shared.causal import (
    ABSENT,
    CURVES,
    NAME,
    OWN,
    PASSAGES,
    QUICK_TEXTS,
    SMOLLM2,
    TEXTS,
    BridgeControls,
    Effort,
    controls_of,
    reading_of,
    share_missed,
    spread_words,
    untrained,
)
from ..shared.controls import NAMES_OF_CONTROLS
from ..shared.ensemble import MOST_TOKENS, count_clusters, draw_starts, run_ensemble
from ..shared.layout import WIDTH
from ..shared.networks import articles_of, articles_words, by_articles, passages
from ..shared.trained_values import leading_block


# The path of the first token: in a causal network it moves by itself, and the particles say x' = P(Vx).
#
# Under a causal mask the first token attends to itself alone, whatever the scores are. As a particle it follows x' =
# P_x(V x), V the sum over heads (Karagodin et al., *Clustering in causal attention masking*, 2411.04990, Section 3); in
# the network without its feed-forward it is x + A(N(x)) with A linear. Real and modelled paths are compared by the
# cosine of their directions at each level before the last norm.
#
# Invariants: no path depends on the tokens behind the first, and that of the network is checked not to; all paths begin
# at the embedded token.


SUBSTEPS = 16  # of Runge and Kutta's fourth order in a layer
FIRST_PATHS = ("particle", "fitted", "own length", "attention alone", "embedding")


@dataclass(frozen=True, eq=False)
class FirstPath:
    """The first token of each text.

    **Attributes:**

    - `cosines`: By name of a path the cosine to the network's, (texts, levels): "particle" (time 1), "fitted" (the time
        of the bridge), "own length" (time 1, divided by the length that the token has in place of that of the others),
        "attention alone" (the network without its feed-forward), "embedding" (it stays where it began).
    - `turned`: The cosine of the directions before and after each layer in the network, (texts, levels - 1).
    - `alone`: By how much its stream differs from that of the same token with none behind it, of its length, at most.
    - `linear`: By how much the network without feed-forward differs from x + A(N(x)), of the length, at most.
    """

    cosines: dict[str, np.ndarray]
    turned: np.ndarray
    alone: float
    linear: float


def first_path(model: probe.Model, texts: probe.Encoded, radius: np.ndarray | float, time: float) -> FirstPath:
    """All paths of the first tokens; `radius` and `time` are those of the bridge."""
    assert texts.mask[:, 0].all()
    first = lambda model, n: stream_of_first(model, probe.Encoded(texts.token_ids[:, :n], texts.mask[:, :n]))
    real, alone = first(model, texts.mask.shape[1]), first(model, 1)
    without = first(probe.without_feed_forward(model), 1)
    lengths = np.linalg.norm(real, axis=-1)
    # What the last norm makes of the last level is no state of the stream.
    states, size = real[:, :-1], lengths[:, :-1]
    values, layers = values_of(model), model.num_layers
    start, order = states[:, 0] / size[:, :1], model.network.order()
    of_block = np.broadcast_to(np.asarray(radius, float), (len(values),))
    shared = np.array([of_block[order[layer]] for layer in range(layers)])
    run = lambda factor: particle_path(start, values, order[: layers - 1], factor)
    paths = {
        "particle": run(1 / shared[None, :]), "fitted": run(time / shared[None, :]), "own length": run(1 / size),
        "attention alone": without[:, :-1], "embedding": np.repeat(start[:, None], layers, axis=1),
    }  # fmt: skip
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)
    along = lambda a, b: np.sum(unit(a) * unit(b), axis=-1)
    return FirstPath(
        {name: along(path, states) for name, path in paths.items()},
        along(states[:, 1:], states[:, :-1]),
        float(np.max(np.linalg.norm(real - alone, axis=-1) / lengths)),
        _off_linear(model, without[:, :-1]),
    )


class _First:
    """The first token's state at a level, a row for each text."""

    def __call__(self, hidden: Float[Array, "batch n d"], mask: Bool[Array, "batch n"]) -> dict[str, Array]:
        return {"first": hidden[:, 0]}


_MEASURE = probe.Measure(level=_First())


def stream_of_first(model: probe.Model, texts: probe.Encoded) -> np.ndarray:
    """The first token at each level, (texts, levels, d), in double precision."""
    streamed = probe.stream(model, *texts, _MEASURE)
    assert streamed.levels is not None
    return np.moveaxis(np.asarray(streamed.levels["first"], np.float64), 0, 1)


def values_of(model: probe.Model) -> np.ndarray:
    """What each block makes of a direction in its attention alone, before it is divided by a length: x @ V, (blocks, d,
    d), without biases."""
    matrices, scales = probe.head_matrices(model), model.network.norm_scales()
    values = np.einsum("bhdk,bhke->bde", matrices.value, matrices.output, optimize=True)
    if scales is None:  # norms act on the stream, and hold the length that is divided by
        return values
    return np.sqrt(values.shape[1]) * np.stack(scales)[:, :, None] * values


def particle_path(start: np.ndarray, values: np.ndarray, order: list[int], factor: np.ndarray) -> np.ndarray:
    """x' = factor P_x(x V) from `start`, (texts, d), one layer in a unit of time: (texts, layers + 1, d); `factor` is
    (1 or texts, layers or more)."""
    path = [start]
    for layer, block in enumerate(order):
        x, scale = path[-1], factor[:, layer, None] / SUBSTEPS

        def velocity(x: np.ndarray, value: np.ndarray = values[block], scale: np.ndarray = scale) -> np.ndarray:
            y = x / np.linalg.norm(x, axis=1, keepdims=True)
            moved = y @ value
            return scale * (moved - np.sum(moved * y, axis=1, keepdims=True) * y)

        for _ in range(SUBSTEPS):
            one = velocity(x)
            two = velocity(x + one / 2)
            three = velocity(x + two / 2)
            x = x + (one + 2 * two + 2 * three + velocity(x + three)) / 6
            x = x / np.linalg.norm(x, axis=1, keepdims=True)
        path.append(x)
    return np.stack(path, axis=1)


def _off_linear(model: probe.Model, stream: np.ndarray) -> float:
    """The largest difference of a layer without feed-forward from x + A(N(x)), A a linear map with its bias, of the
    length; `stream` is that of the first token, (texts, layers, d)."""
    network, worst = model.network, 0.0
    blocks = network.blocks()
    for layer, block in enumerate(network.order()[: stream.shape[1] - 1]):
        of = blocks[block]
        x = jnp.asarray(stream[:, layer, None], dtype_of(model))
        # One token: all its weight is on itself, so that each head hands on its own value.
        value = of.project(of.read(0, x)).value
        value = jnp.repeat(value, network.num_heads // value.shape[2], axis=2)
        kernel, bias = of.head_outputs()
        update = jnp.einsum("bnhk,hkd->bnd", value, kernel)
        after = of.write(0, x + (update if bias is None else update + bias[None, None]))
        # A feed-forward of zero still has its norm, where norms act on the stream.
        after = np.asarray(of.write(1, after) if of.post_norm else after)[:, 0]
        off = np.linalg.norm(after - stream[:, layer + 1], axis=1) / np.linalg.norm(stream[:, layer + 1], axis=1)
        worst = max(worst, float(off.max()))
    return worst


# What particles do that one head moves: how many clusters are left, by the case that the head is.
#
# As in figure 7 a head stands for the three eigenvalues of largest real part of its V; here they are divided by the
# size of the leading one, so that time is counted in its units, and Q = K = I. A run is causal attention on the sphere
# from uniform tokens.


D, TIME, RADIUS = 3, 15.0, 0.1
STARTS = 4  # for each head
SYSTEMS = 96  # in a program


@dataclass(frozen=True, eq=False)
class HeadRuns:
    """The heads of one network.

    **Attributes:**

    - `name`: Of the network.
    - `signs`: Their cases.
    - `clusters`: The mean over starts of the clusters that are left, (blocks, heads).
    - `n`: Of so many tokens.
    """

    name: str
    signs: probe.HeadSigns
    clusters: np.ndarray
    n: int

    def of(self, case: str) -> np.ndarray:
        """The clusters of the heads of a case."""
        return self.clusters[self.signs.case == case]


def head_runs(
    name: str, model: probe.Model, seed: int, n: int, beta: float, say: Callable[[str], None], starts: int = STARTS
) -> HeadRuns:
    """Each head of each block with weights of its own, from the same few starts."""
    signs = probe.head_signs(model)
    say(f"simulating the {signs.case.size} heads of {name}")
    spectra = signs.values.reshape(-1, signs.values.shape[-1])
    # A head without a leading eigenvalue moves nothing.
    sizes = np.where(np.abs(spectra[:, 0]) > 0, np.abs(spectra[:, 0]), 1.0)
    forms = np.stack([leading_block(one / size, D) for one, size in zip(spectra, sizes, strict=True)])
    x0 = np.asarray(draw_starts(seed, starts, n, D))
    head, start = (part.ravel() for part in np.indices((len(forms), starts)))
    counts = np.empty(len(head))
    for first in range(0, len(head), SYSTEMS):
        # The last batch is filled up with copies of its first system: another shape would compile anew.
        rows = np.arange(first, first + SYSTEMS)
        rows = np.where(rows < len(head), rows, first)
        run = run_ensemble(jnp.asarray(x0[start[rows]]), np.array([0.0, TIME]), beta=beta, value=forms[head[rows]])
        found = np.asarray(count_clusters(jnp.asarray(run.xs[:, -1:]), jnp.asarray(RADIUS)))[:, 0]
        counts[first : first + SYSTEMS] = found[: len(head) - first]
    clusters = counts.reshape(len(forms), starts).mean(axis=1)
    return HeadRuns(name, signs, clusters.reshape(signs.case.shape), n)


LONGEST = 64
OWN_NAME, ALBERT_NAME = "the language model of the package", "the ALBERT of the package"
EVERY = 5  # of so many texts one is fitted to


@dataclass(frozen=True)
class Parameters:
    """What of the figure can be set."""

    tokens: int = parameter(32, "the number of tokens of a text", quick=16, least=8, most=LONGEST)
    steps_per_layer: int = parameter(2, "the number of steps of the solver in a layer", quick=1, least=1, most=16)
    fit_steps: int = parameter(8, "the number of steps of the fit, at most", quick=4, least=1, most=64)
    controls: int = parameter(4, "the number of texts of each control, at most", quick=2, least=2, most=64)
    draws: int = parameter(3, "the number of networks of random weights", quick=2, least=2, most=32)
    n: int = parameter(64, "the number of particles that a head moves", quick=32, least=4, most=MOST_TOKENS)
    beta: float = parameter(1.0, "the inverse temperature of these", above=0, most=50)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the figure shows.

    **Attributes:**

    - `network`, `data`: What was measured, and on what.
    - `name`: What the network is called in a sentence.
    - `layers`: How many it has.
    - `installed`: Whether it is SmolLM2.
    - `articles`: The article of each of `texts`, over which errors are.
    - `spread`: How the random weights were drawn, in words.
    - `texts`, `others`: The texts that were measured, and those that time and beta were fitted to.
    - `bridge`: The network and its particles on `texts`.
    - `beside`: The controls.
    - `path`: The first token.
    - `heads`: The heads of the network, of the language model and of the ALBERT of the package.
    """

    p: Parameters
    network: Subject
    data: Subject
    name: str
    layers: int
    installed: bool
    articles: np.ndarray
    spread: str
    texts: probe.Encoded
    others: probe.Encoded
    bridge: probe.Bridge
    beside: BridgeControls
    path: FirstPath
    heads: tuple[HeadRuns, ...]


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Run the network, its particles, the controls, and the particles of each head."""
    many = settings.most_texts or (QUICK_TEXTS if settings.quick else TEXTS)
    # `many` are measured; those that are fitted to come on top.
    asked = dataclasses.replace(settings, most_texts=max(4, -(-many * EVERY // (EVERY - 1))), length=None)
    reading, own = reading_of(asked, LONGEST), probe.load("language-model")
    if reading is None:
        model, network, data, name = own, OWN, PASSAGES, OWN_NAME
        ids, mask = passages(p.tokens)
        # Evenly spread over all, and all of one length.
        rows = np.flatnonzero(mask.all(axis=1))
        chosen = rows[np.linspace(0, len(rows) - 1, min(len(rows), asked.most_texts or len(rows))).astype(int)]
        every, articles = probe.Encoded(ids[chosen], mask[chosen]), articles_of(probe.bundled_texts())[chosen]
    else:
        model, network, data, name, every = reading.model, SMOLLM2, reading.data, NAME, reading.texts
        articles = reading.articles
    texts, others = parts_of(every, p.tokens)
    articles = articles[~fitted_of(len(every.mask))]
    how = Effort(len(texts.mask), p.tokens, p.fit_steps, p.steps_per_layer)
    say(f"running {len(texts.mask)} texts as a network and as particles, fitted to {len(others.mask)} others")
    bridge = probe.bridge(
        model, texts, fit_on=others, fit_steps=p.fit_steps, steps_per_layer=p.steps_per_layer, uniform=True,
        # As many as the controls have, so that one program serves all.
        batch_size=p.controls, store=settings.store, say=say,
    )  # fmt: skip
    beside = controls_of(
        model,
        bridge,
        texts,
        others,
        how,
        settings.seed,
        settings.store,
        say,
        units=articles,
        draw=untrained,
        many=p.controls,
        draws=p.draws,
    )
    say("following the first token")
    path = first_path(model, texts, bridge.radius, bridge.time_per_layer)
    networks = {name: model, OWN_NAME: own, ALBERT_NAME: probe.load()}
    # A quick run has the heads of the package's networks alone.
    heads = tuple(
        head_runs(name, network, settings.seed, p.n, p.beta, say)
        for name, network in networks.items()
        if not settings.quick or name != NAME
    )
    return Results(
        p,
        network,
        data,
        name,
        model.num_layers,
        reading is not None,
        articles,
        spread_words(model),
        texts,
        others,
        by_articles(bridge, articles),
        beside,
        path,
        heads,
    )


def fitted_of(texts: int) -> np.ndarray:
    """Which of so many texts time and beta are fitted to: every fifth, and of few texts the last."""
    fitted = np.arange(texts) % EVERY == EVERY - 1
    fitted[-1] |= not fitted.any()
    return fitted


def parts_of(texts: probe.Encoded, tokens: int) -> tuple[probe.Encoded, probe.Encoded]:
    """The texts to measure and every fifth, to fit to; both cut to their first tokens."""
    fitted = fitted_of(len(texts.mask))
    part = lambda rows: probe.Encoded(texts.token_ids[rows, :tokens], texts.mask[rows, :tokens])
    return part(~fitted), part(fitted)


# What the figure of a causal network as particles claims.


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


# The panels: curves, what they miss, the first token, and the heads by the leading eigenvalue of their V.


DRAWN_CURVES = {
    "particles": ("as they come", OKABE_ITO[4], "--"),
    "fitted": ("fitted", OKABE_ITO[5], "-"),
    "uniform": ("beta 0", OKABE_ITO[2], "-."),
}
PATHS = {
    "particle": ("particle, time 1", OKABE_ITO[4], "--"),
    "fitted": ("particle, fitted time", OKABE_ITO[5], "-"),
    "own length": ("particle, own length", OKABE_ITO[2], "-."),
    "attention alone": ("without feed-forward", OKABE_ITO[1], ":"),
    "embedding": ("embedding", "0.55", "-"),
}
CASES = {"attractive": (OKABE_ITO[0], ""), "rotating": (OKABE_ITO[1], "//"), "repulsive": (OKABE_ITO[5], "..")}
MARKERS = "os^"


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 6.6), layout="constrained")
    axes = figure.subplots(3, 2)
    _curves(axes[0, 0], m)
    _missed(axes[0, 1], m)
    _path(axes[1, 0], m)
    _eigenvalues(axes[1, 1], m)
    _clusters(axes[2, 0], m)
    _counts(axes[2, 1], m)
    for letter, ax in zip("abcdef", axes.flat, strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _curves(ax: Axes, m: Results) -> None:
    levels = np.arange(len(m.bridge.network.mean))
    names = {"network": ("network", "#000000", "-")} | DRAWN_CURVES
    for name, (label, colour, line) in names.items():
        curve = m.bridge.network if name == "network" else m.bridge.curves[name]
        time_series(levels, curve.mean, curve.error, ax, colour=colour, linestyle=line, label=label, xlabel="layer",
                    ylabel="mean cosine")  # fmt: skip
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(ax)


def _missed(ax: Axes, m: Results) -> None:
    places = np.arange(3)
    for curve, shift in (("particles", -0.26), ("fitted", 0.0)):
        mean, error = np.array(m.beside.runs(curve)).T
        label, colour, _ = DRAWN_CURVES[curve]
        ax.bar(places + shift, mean, 0.25, yerr=error, color=colour, error_kw={"elinewidth": 0.8}, lw=0, label=label)
        # A cross for each network of random weights.
        each = m.beside.random[curve].mean(axis=1)
        ax.plot(np.full(len(each), places[2] + shift), each, "x", color="0.1", ms=3.5, mew=0.8)
    # Of the trained network alone.
    one, (label, colour, _) = clustered_error(share_missed(m.bridge, "uniform"), m.articles), DRAWN_CURVES["uniform"]
    ax.bar([0.26], [one.mean], 0.25, yerr=[one.error], color=colour, error_kw={"elinewidth": 0.8}, lw=0, label=label)
    ax.axhline(1.0, color="0.1", lw=0.8, ls="--")
    ax.set_xticks(places, ["trained", "tokens shuffled", "random weights"])
    ax.set(ylabel="error / that of the\nbest constant", ylim=(0, None))
    _legend(ax)


def _path(ax: Axes, m: Results) -> None:
    for name, (label, colour, line) in PATHS.items():
        one = clustered_error(m.path.cosines[name], m.articles)
        time_series(np.arange(len(one.mean)), one.mean, one.error, ax, colour=colour, linestyle=line, label=label,
                    xlabel="layer", ylabel="cosine to the network's\nfirst token")  # fmt: skip
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(ax)


def _short(heads: HeadRuns) -> str:
    return {ALBERT_NAME: "ALBERT"}.get(heads.name, "SmolLM2" if heads.name == NAME else "language model")


def _of_case(m: Results, ax: Axes, values: str, xlabel: str, ylabel: str) -> None:
    """One point for each head: its shape is the network, its colour the case."""
    for heads, marker in zip(m.heads, MARKERS, strict=False):
        leading = heads.signs.leading / np.maximum(np.abs(heads.signs.leading), np.finfo(float).tiny)
        up = leading.imag if values == "imaginary" else heads.clusters
        for case, (colour, _) in CASES.items():
            at = heads.signs.case == case
            ax.scatter(leading.real[at], up[at], s=11, marker=marker, facecolors="none", edgecolors=colour, lw=0.8)
    ax.axvline(0, color="0.6", lw=0.7, zorder=0)
    ax.set(xlabel=xlabel, ylabel=ylabel, xlim=(-1.1, 1.1), xticks=(-1, -0.5, 0, 0.5, 1))


def _eigenvalues(ax: Axes, m: Results) -> None:
    _of_case(m, ax, "imaginary", "real part / size", "imaginary part / size")
    for heads, marker in zip(m.heads, MARKERS, strict=False):
        ax.plot([], [], marker, color="0.3", mfc="none", ms=4, label=_short(heads))
    _legend(ax)


def _clusters(ax: Axes, m: Results) -> None:
    _of_case(m, ax, "clusters", "real part / size of the leading eigenvalue", f"clusters of {m.heads[0].n}")
    ax.set_ylim(0, m.heads[0].n + 2)


def _counts(ax: Axes, m: Results) -> None:
    places, bottom = np.arange(len(m.heads)), np.zeros(len(m.heads))
    for case, (colour, hatch) in CASES.items():
        share = np.array([heads.signs.count(case) / heads.signs.case.size for heads in m.heads])
        ax.bar(places, share, 0.6, bottom=bottom, color=colour, hatch=hatch, edgecolor="white", lw=0, label=case)
        bottom += share
    ax.set_xticks(places, [f"{_short(heads)}\n{heads.signs.case.size} heads" for heads in m.heads])
    ax.set(ylabel="share of the heads", ylim=(0, 1.28))
    ax.set_yticks([0, 0.5, 1])
    ax.legend(fontsize=6, ncols=3, loc="upper center", handlelength=1.4)


def _legend(ax: Axes) -> None:
    if (legend := ax.get_legend()) is not None:
        legend.remove()
    ax.legend(fontsize=6, handlelength=2.2)


# A causal network as particles, as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    if not m.installed:
        say(ABSENT)
    size = {
        "texts": len(m.texts.mask), "tokens": m.texts.mask.shape[1], "layers": m.layers, "seeds": m.p.draws,
    }  # fmt: skip
    return Outcome(
        caption_of(m), claims_of(m), _record(m), _series(m), partial(draw, m), None,
        on=Measured(m.network, m.data, size),
    )  # fmt: skip


def _record(m: Results) -> dict:
    bridge = m.bridge
    return {
        "network": m.network.words, "texts": m.data.words, "starts": len(m.texts.mask),
        "tokens": m.texts.mask.shape[1], "texts that are fitted to": len(m.others.mask),
        "radius": np.asarray(bridge.radius).tolist(), "time_per_layer": bridge.time_per_layer, "beta": bridge.beta,
        "time with beta 0": bridge.time_uniform, "converged": bridge.converged,
        "random weights": m.p.draws, "weights are": m.spread, "texts of the controls": len(m.beside.rows),
        "solver": f"Bogacki-Shampine, {m.p.steps_per_layer} steps a layer, float32",
    }  # fmt: skip


def _series(m: Results) -> dict:
    series: dict[str, np.ndarray] = {"layer": np.arange(m.layers + 1), "loss_by_step": m.bridge.losses}
    for name, curve in ({"network": m.bridge.network} | m.bridge.curves).items():
        # A curve that overflows has no numbers from there on, and JSON has none to stand for them.
        if np.isfinite(curve.mean).all() and np.isfinite(curve.error).all():
            series |= {f"cosine {name}": curve.mean, f"error {name}": curve.error}
    for name, cosines in m.path.cosines.items():
        one = clustered_error(cosines, m.articles)
        series |= {f"first token, {name}_by_level": one.mean, f"first token, {name}, error_by_level": one.error}
    for curve in CURVES:
        beside = m.beside
        series |= {
            f"share_missed_by_text, {curve}": beside.trained[curve],
            f"share_missed_by_shuffled_text, {curve}": beside.shuffled[curve],
            f"share_missed_by_random_network, {curve}": beside.random[curve],
        }
    for heads in m.heads:
        leading = heads.signs.leading
        series |= {
            f"leading_real_part_by_head, {heads.name}": np.real(leading),
            f"leading_imaginary_part_by_head, {heads.name}": np.imag(leading),
            f"clusters_by_head, {heads.name}": heads.clusters,
        }
    return series


FIGURE = declared("causal-bridge", _run, parameters=Parameters)
