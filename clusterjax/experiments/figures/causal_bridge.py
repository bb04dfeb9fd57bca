"""How well do particles with the heads of a trained causal network predict the network, and x' = P(Vx) its first token?

Time per layer and beta are fitted to every fifth text, and the curves are measured on the other texts. The network is
SmolLM2-135M-Instruct (Q4_1) if it is installed, and otherwise the language model of the package.

Under a causal mask the first token attends to itself alone, whatever the scores are. As a particle it follows x' =
P_x(V x), where V is the sum over heads (Karagodin et al., *Clustering in causal attention masking*, 2411.04990, Section
3). In the network without feed-forward, a layer maps the first token x to x + A(N(x)) with a linear A. The path of the
network and the paths of models are compared by the cosine of their directions at each level before the last norm. No
path depends on later tokens, which is checked for the network, and all paths begin at the embedded token.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ... import probe
from ...plot import OKABE_ITO
from ...probe.measures.survey import Clustered, clustered_error, dtype_of
from ..framework.figure import Claim, Found, Measured, Say, Settings, Subject, claim, figure, parameter, plus_minus
from ..shared.causal import (
    ABSENT,
    CURVES,
    NAME,
    OWN,
    QUICK_TEXTS,
    SMOLLM2,
    TEXTS,
    BridgeControls,
    Effort,
    controls_of,
    missed_panel,
    name_of,
    reading_or_own,
    same_start,
    share_missed,
    spread_words,
    untrained,
)
from ..shared.ensemble import MOST_TOKENS, count_clusters, draw_starts, run_ensemble
from ..shared.layout import layer_lines, panels
from ..shared.networks import articles_words, by_articles, each_text
from ..shared.trained_values import leading_block


SUBSTEPS = 16  # the number of steps of the classical Runge-Kutta method in a layer
D, TIME, RADIUS = 3, 15.0, 0.1
STARTS = 4  # the number of starts for each head
SYSTEMS = 96  # the number of systems in a program
LONGEST = 64
OWN_NAME, ALBERT_NAME = name_of(True), "the ALBERT of the package"
SHORT = {NAME: "SmolLM2", OWN_NAME: "language model", ALBERT_NAME: "ALBERT"}
EVERY = 5  # one of so many texts serves for the fit
ALONE = 1e-4  # the relative change of a norm that float32 may cause where sums are taken in another order
HALF = 0.5

STYLES = {
    "network": ("network", "#000000", "-"),
    "particles": ("not fitted", OKABE_ITO[4], "--"),
    "fitted": ("fitted", OKABE_ITO[5], "-"),
    "uniform": ("beta 0", OKABE_ITO[2], "-."),
}
PATHS = {
    "particle": ("particle, time 1", OKABE_ITO[4], "--"),
    "fitted": ("particle, fitted time", OKABE_ITO[5], "-"),
    "own length": ("particle, own norm", OKABE_ITO[2], "-."),
    "attention alone": ("without feed-forward", OKABE_ITO[1], ":"),
    "embedding": ("embedding", "0.55", "-"),
}
CASES = {"attractive": (OKABE_ITO[0], ""), "rotating": (OKABE_ITO[1], "//"), "repulsive": (OKABE_ITO[5], "..")}


@dataclass(frozen=True)
class Parameters:
    tokens: int = parameter(32, "the number of tokens of a text", quick=16, least=8, most=LONGEST)
    steps_per_layer: int = parameter(2, "the number of steps of the solver in a layer", quick=1, least=1, most=16)
    fit_steps: int = parameter(8, "the largest number of steps of the fit", quick=4, least=1, most=64)
    controls: int = parameter(4, "the largest number of texts of each control", quick=2, least=2, most=64)
    draws: int = parameter(3, "the number of networks of random weights", quick=2, least=2, most=32)
    n: int = parameter(64, "the number of particles that a head moves", quick=32, least=4, most=MOST_TOKENS)
    beta: float = parameter(1.0, "the inverse temperature of the particles that a head moves", above=0, most=50)


class FirstPath(NamedTuple):
    # The cosine of a path with the network's path, (texts, levels), by name: "particle" (time 1), "fitted" (the time of
    # the bridge), "own length" (time 1, divided by the norm of the token itself in place of the norm of the others),
    # "attention alone" (the network without its feed-forward), "embedding" (no motion)
    cosines: dict[str, np.ndarray]
    turned: np.ndarray  # the cosine of the directions before and after each layer of the network, (texts, levels - 1)
    alone: float  # the largest relative change of the stream of the first token when all later tokens are removed
    linear: float  # the largest relative difference of the network without feed-forward from x + A(N(x))

    def over_levels(self, name: str) -> np.ndarray:
        """The mean cosine over all levels after the first, at which all paths begin, (texts,)."""
        return self.cosines[name][:, 1:].mean(axis=1)


class HeadRuns(NamedTuple):
    name: str  # the network
    signs: probe.HeadSigns  # the cases of the heads
    clusters: np.ndarray  # the mean number of clusters at the end over the starts, (blocks, heads)
    n: int  # the number of particles

    def share(self, case: str) -> float:
        return self.signs.count(case) / self.signs.case.size


class Results(NamedTuple):
    p: Parameters
    # `network`, `data`: the network and its texts, for the verdict
    network: Subject
    data: Subject
    name: str  # the network in a sentence
    layers: int  # the number of its layers
    own: bool  # True if the network is the model of the package, because SmolLM2 is not installed
    articles: np.ndarray  # the article of each of `texts`, the independent unit of errors
    spread: str  # how the random weights were drawn, in words
    # `texts`, `others`: the texts that were measured, and the texts to which time and beta were fitted
    texts: probe.Encoded
    others: probe.Encoded
    bridge: probe.Bridge  # the network and its particles on `texts`
    beside: BridgeControls  # the controls
    path: FirstPath  # the first token
    heads: tuple[HeadRuns, ...]  # the heads of the network, of the language model and of the ALBERT of the package

    def mean_of(self, values: np.ndarray) -> Clustered:
        """The mean of numbers of the texts, and its error over articles."""
        return clustered_error(values, self.articles)

    def words(self, values: np.ndarray, digits: int = 2) -> str:
        return plus_minus(*self.mean_of(values)[:2], digits)

    def squares(self, name: str) -> np.ndarray:
        """The mean squared difference of a curve over the levels, (texts,)."""
        return np.mean(each_text(self.bridge.difference(name)) ** 2, axis=1)


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    num_texts = settings.most_texts or (QUICK_TEXTS if settings.quick else TEXTS)
    # The texts of the fit come on top of `num_texts`.
    most = max(4, -(-num_texts * EVERY // (EVERY - 1)))
    reading, own = reading_or_own(dataclasses.replace(settings, most_texts=most, length=None), say, p.tokens)
    model, name = reading.model, name_of(own)
    texts, others = parts_of(reading.texts, p.tokens)
    articles = reading.articles[~fitted_of(len(reading.articles))]
    how = Effort(len(texts.mask), p.tokens, p.fit_steps, p.steps_per_layer)
    say(f"running {len(texts.mask)} texts as a network and as particles, fitted to {len(others.mask)} others")
    bridge = probe.bridge(
        model, texts, fit_on=others, fit_steps=p.fit_steps, steps_per_layer=p.steps_per_layer, uniform=True,
        # The batches of the controls have this size too, so that one program serves all.
        batch_size=p.controls, store=settings.store, say=say,
    )  # fmt: skip
    beside = controls_of(
        model, bridge, texts, others, how, settings.seed, settings.store, say, units=articles, draw=untrained,
        many=p.controls, draws=p.draws,
    )  # fmt: skip
    say("following the first token")
    path = first_path(model, texts, bridge.radius, bridge.time_per_layer)
    networks = {name: model, OWN_NAME: model if own else probe.load("language-model"), ALBERT_NAME: probe.load()}
    if settings.quick:  # the heads of SmolLM2 are many
        networks.pop(NAME, None)
    heads = tuple(head_runs(name, network, settings.seed, p.n, p.beta, say) for name, network in networks.items())
    return Results(
        p, OWN if own else SMOLLM2, reading.data, name, model.num_layers, own, articles, spread_words(model), texts,
        others, by_articles(bridge, articles), beside, path, heads,
    )  # fmt: skip


def fitted_of(texts: int) -> np.ndarray:
    """True for the texts to which time and beta are fitted: every fifth, or the last of a few texts."""
    fitted = np.arange(texts) % EVERY == EVERY - 1
    fitted[-1] |= not fitted.any()
    return fitted


def parts_of(texts: probe.Encoded, tokens: int) -> tuple[probe.Encoded, probe.Encoded]:
    """The texts to measure and the texts to fit to, cut to their first tokens."""
    fitted = fitted_of(len(texts.mask))
    part = lambda rows: probe.Encoded(texts.token_ids[rows, :tokens], texts.mask[rows, :tokens])
    return part(~fitted), part(fitted)


def first_path(model: probe.Model, texts: probe.Encoded, radius: np.ndarray | float, time: float) -> FirstPath:
    """All paths of the first tokens; `radius` and `time` come from the bridge."""
    assert texts.mask[:, 0].all()
    first = lambda model, n: stream_of_first(model, probe.Encoded(texts.token_ids[:, :n], texts.mask[:, :n]))
    real, alone = first(model, texts.mask.shape[1]), first(model, 1)
    without = first(probe.without_feed_forward(model), 1)
    norms = np.linalg.norm(real, axis=-1)
    # The last level follows the last norm and is no state of the stream.
    states, size = real[:, :-1], norms[:, :-1]
    values, order, layers = values_of(model), model.network.order(), model.num_layers
    start = states[:, 0] / size[:, :1]
    shared = np.broadcast_to(np.asarray(radius, float), (len(values),))[np.asarray(order)[:layers]]
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
        float(np.max(np.linalg.norm(real - alone, axis=-1) / norms)),
        _off_linear(model, without[:, :-1]),
    )


class _First:
    """The state of the first token at a level, a row for each text."""

    def __call__(self, hidden: Float[Array, "batch n d"], mask: Bool[Array, "batch n"]) -> dict[str, Array]:
        return {"first": hidden[:, 0]}


# A single instance, so that each call finds the program that the first call compiled.
_MEASURE = probe.Measure(level=_First())


def stream_of_first(model: probe.Model, texts: probe.Encoded) -> np.ndarray:
    streamed = probe.stream(model, *texts, _MEASURE)
    assert streamed.levels is not None
    return np.moveaxis(np.asarray(streamed.levels["first"], np.float64), 0, 1)


def values_of(model: probe.Model) -> np.ndarray:
    """The matrix V of the attention of each block before the division by a norm, without biases, (blocks, d, d)."""
    matrices, scales = probe.head_matrices(model), model.network.norm_scales()
    values = np.einsum("bhdk,bhke->bde", matrices.value, matrices.output, optimize=True)
    if scales is None:  # norms act on the stream and already divide by a norm
        return values
    return np.sqrt(values.shape[1]) * np.stack(scales)[:, :, None] * values


def particle_path(start: np.ndarray, values: np.ndarray, order: list[int], factor: np.ndarray) -> np.ndarray:
    """The path of x' = factor P_x(x V) from `start`, (texts, d), one layer per unit of time: (texts, layers + 1, d);
    `factor` is (1 or texts, layers or more)."""
    path = [start]
    for layer, block in enumerate(order):
        x, value, scale = path[-1], values[block], factor[:, layer, None] / SUBSTEPS

        def velocity(x: np.ndarray, value: np.ndarray = value, scale: np.ndarray = scale) -> np.ndarray:
            y = x / np.linalg.norm(x, axis=1, keepdims=True)
            moved = y @ value
            return scale * (moved - np.sum(moved * y, axis=1, keepdims=True) * y)

        for _ in range(SUBSTEPS):
            first_slope = velocity(x)
            second_slope = velocity(x + first_slope / 2)
            third_slope = velocity(x + second_slope / 2)
            x = x + (first_slope + 2 * second_slope + 2 * third_slope + velocity(x + third_slope)) / 6
            x = x / np.linalg.norm(x, axis=1, keepdims=True)
        path.append(x)
    return np.stack(path, axis=1)


def _off_linear(model: probe.Model, stream: np.ndarray) -> float:
    """The largest relative difference of a layer without feed-forward from x + A(N(x)), with the linear map A and its
    bias; `stream` is the stream of the first token, (texts, layers, d)."""
    network, worst = model.network, 0.0
    blocks = network.blocks()
    for layer, index in enumerate(network.order()[: stream.shape[1] - 1]):
        block = blocks[index]
        x = jnp.asarray(stream[:, layer, None], dtype_of(model))
        # All attention of a single token is on itself, so that each head returns the token's own value.
        value = block.project(block.read(0, x)).value
        value = jnp.repeat(value, network.num_heads // value.shape[2], axis=2)
        kernel, bias = block.head_outputs()
        output = jnp.einsum("bnhk,hkd->bnd", value, kernel)
        update = block.update(0, output if bias is None else output + bias[None, None])
        after = block.write(0, x + update)
        # A feed-forward of zero still has its norm, where norms act on the stream.
        after = np.asarray(block.write(1, after) if block.post_norm else after)[:, 0]
        off = np.linalg.norm(after - stream[:, layer + 1], axis=1) / np.linalg.norm(stream[:, layer + 1], axis=1)
        worst = max(worst, float(off.max()))
    return worst


def head_runs(name: str, model: probe.Model, seed: int, n: int, beta: float, say: Say) -> HeadRuns:
    """The clusters of particles that one head moves, by causal attention with Q = K = I from the same few starts.

    As in figure 7, the three eigenvalues of largest real part of its V stand for a head. They are divided by the
    modulus of the first of them, which is the unit of 1 / time.
    """
    signs = probe.head_signs(model)
    say(f"simulating the {signs.case.size} heads of {name}")
    spectra = signs.values.reshape(-1, signs.values.shape[-1])
    # A head whose leading eigenvalue is 0 moves nothing.
    sizes = np.where(np.abs(spectra[:, 0]) > 0, np.abs(spectra[:, 0]), 1.0)
    forms = np.stack([leading_block(spectrum / size, D) for spectrum, size in zip(spectra, sizes, strict=True)])
    x0 = np.asarray(draw_starts(seed, STARTS, n, D))
    head, start = (part.ravel() for part in np.indices((len(forms), STARTS)))
    counts = np.empty(len(head))
    for first in range(0, len(head), SYSTEMS):
        # Copies of its first system fill up the last batch: another shape would compile again.
        rows = np.arange(first, first + SYSTEMS)
        rows = np.where(rows < len(head), rows, first)
        run = run_ensemble(jnp.asarray(x0[start[rows]]), np.array([0.0, TIME]), beta=beta, value=forms[head[rows]])
        clusters = np.asarray(count_clusters(jnp.asarray(run.xs[:, -1:]), jnp.asarray(RADIUS)))[:, 0]
        counts[first : first + SYSTEMS] = clusters[: len(head) - first]
    return HeadRuns(name, signs, counts.reshape(*signs.case.shape, STARTS).mean(axis=-1), n)


@claim(f"less than {ALONE:g} at every level", kind="identity")
def alone(m: Results) -> Found:
    """The first token moves independently: the tokens after it do not change its stream."""
    off, texts = m.path.alone, len(m.texts.mask)
    measured = f"the largest difference from its stream without them, relative to its norm, over {texts} texts is "
    return Found(f"{measured}{off:.1e}", off < ALONE, off)


@claim(f"less than {ALONE:g} at every level", kind="identity")
def linear(m: Results) -> Found:
    """Without feed-forward a layer maps the first token x to x + A(N(x)), A linear, the discrete form of x' = P(Vx)."""
    off = m.path.linear
    return Found(f"the largest difference after a layer, relative to the norm, is {off:.1e}", off < ALONE, off)


@claim("the share of the fitted ones is below 1 by two standard errors")
def better_than_constant(m: Results) -> Found:
    """Fitted particles predict the similarity of the tokens of {m.name} better than the best constant."""
    bridge = m.bridge
    shares = {name: share_missed(bridge, name) for name in ("particles", "fitted", "uniform")}
    fitted = m.mean_of(shares["fitted"])
    ends = ", ".join(f"{name} {bridge.curves[name].mean[-2]:.3f}" for name in shares)
    return Found(
        f"error as a share of the error of the best constant: not fitted {m.words(shares['particles'])}; with time "
        f"{bridge.time_per_layer:.3g} per layer and beta {bridge.beta:.3g} times the network's, fitted to other texts, "
        f"{m.words(shares['fitted'])}; with beta 0 and time {bridge.time_uniform:.3g} {m.words(shares['uniform'])}; "
        f"mean cosine before the last layer {bridge.network.mean[-2]:.3f} in the network, {ends}",
        fitted.below(1.0), fitted.mean, fitted.error,
    )  # fmt: skip


@claim("the gain exceeds two standard errors")
def beta_matters(m: Results) -> Found:
    """With beta 0 particles predict the similarity of the tokens of {m.name} worse than with a fitted beta."""
    uniform, fitted = m.squares("uniform"), m.squares("fitted")
    gain = m.mean_of(uniform - fitted)
    return Found(
        f"mean squared difference {fitted.mean():.2e} with beta {m.bridge.beta:.3g}, {uniform.mean():.2e} with beta 0, "
        f"each with its own fitted time; the gain of a text is {gain.mean:.1e} ± {gain.error:.0e}",
        gain.above(), gain.mean, gain.error,
    )  # fmt: skip


@claim("both differences exceed two standard errors, or with few texts and networks as many as are as improbable")
def better_than_controls(m: Results) -> Found:
    """Fitted particles predict {m.name} better than random weights, and better than {m.name} on shuffled tokens."""
    over = f" (± over {articles_words(m.articles)}, of random weights over {len(m.beside.random['fitted'])} networks)"
    return m.beside.beyond_both(f" {m.spread}", over)


@claim("the mean cosine is larger by two standard errors")
def first_particle(m: Results) -> Found:
    """A particle with the fitted time is nearer to the first token of {m.name} than a particle that does not move."""
    cosines = {name: m.words(m.path.over_levels(name), 3) for name in m.path.cosines}
    gain = m.mean_of(m.path.over_levels("fitted") - m.path.over_levels("embedding"))
    turned = m.path.turned.mean(axis=0)
    least = int(np.argmin(turned))
    return Found(
        f"cosine to the network's, mean over layers 1 to {m.layers - 1}: fitted {cosines['fitted']}, with time 1 "
        f"{cosines['particle']}, with time 1 and the norm of the token itself {cosines['own length']}, staying at the "
        f"embedding {cosines['embedding']}; the network turns the token most in layer {least + 1}, to a cosine of "
        f"{turned[least]:.2f} with its former direction",
        gain.above(), gain.mean, gain.error,
    )  # fmt: skip


@claim(f"the mean over layers is below {HALF} by two standard errors")
def goes_elsewhere(m: Results) -> Found:
    """Without feed-forward the first token of {m.name} goes elsewhere than with it."""
    cosine = m.path.cosines["attention alone"]
    mean = m.mean_of(m.path.over_levels("attention alone"))
    return Found(
        "cosine of the first token without feed-forward to the first token of the network, after layer 1 "
        f"{m.words(cosine[:, 1], 3)}, before the last layer {m.words(cosine[:, -1], 3)}; mean over layers "
        f"{plus_minus(mean.mean, mean.error, 3)}",
        mean.below(HALF), mean.mean, mean.error,
    )  # fmt: skip


@claim(
    "by the eigenvalue of largest real part of V: more than half repel in ALBERT, less than a tenth in each causal "
    "network"
)
def cases(m: Results) -> Found:
    """More than half of the heads of the ALBERT of the package repel, and less than a tenth of the heads of each causal
    network."""
    share = {heads.name: heads.share("repulsive") for heads in m.heads}
    albert = share.pop(ALBERT_NAME)
    counts = "; ".join(
        f"{heads.name}: {heads.signs.count('attractive')} attract, {heads.signs.count('repulsive')} repel, "
        f"{heads.signs.count('rotating')} turn, of {heads.signs.case.size}"
        for heads in m.heads
    )
    return Found(counts, albert > 0.5 and all(value < 0.1 for value in share.values()), albert)


@claim("more than half of the particles at just these heads")
def stay_apart(m: Results) -> Found:
    """Particles stay apart at exactly those heads that repel."""
    words, right = [], []
    for heads in m.heads:
        right.extend(((heads.clusters > heads.n / 2) == (heads.signs.case == "repulsive")).ravel())
        for case in ("attractive", "repulsive", "rotating"):
            if (counts := heads.clusters[heads.signs.case == case]).size:
                least, most = counts.min(), counts.max()
                words.append(f"{heads.name}, {case}: {counts.mean():.1f} (from {least:.1f} to {most:.1f})")
    n = m.heads[0].n
    return Found(
        f"clusters (radius {RADIUS:g}) of {n} particles at t = {TIME:g}, in units of the leading eigenvalue: "
        f"{'; '.join(words)}; the statement is true of {sum(right)} of {len(right)} heads",
        all(right), sum(right) / len(right), criterion=f"more than {n // 2} clusters at just these heads",
    )  # fmt: skip


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    bridge, value = m.bridge, share_missed(m.bridge, "fitted").mean()
    verdict = "better than the best constant does" if value < 1 else "worse than a constant does"
    return (
        f"{ABSENT + ' ' if m.own else ''}A causal network as particles with its own heads: {m.network.words}, on "
        f"{m.data.words}; {len(m.texts.mask)} texts are measured and {len(m.others.mask)} others serve for the fit, "
        f"cut to {m.texts.mask.shape[1]} tokens. Particles have the mask and the rotations of the network, and each "
        "block divides its output by the median norm of the tokens. (a) Mean cosine of the tokens at each level: the "
        "network, its particles without a fit (a layer takes time 1, and beta is 1), with both fitted (time "
        f"{bridge.time_per_layer:.3g}, beta {bridge.beta:.3g}), and with beta 0 and its own fitted time. (b) The error "
        "of the particles against the curve of a text, as a share of the error of the best constant (line), beside "
        f"tokens in random order and {m.p.draws} networks of random weights {m.spread} (crosses). (c) The cosine of "
        "the first token to the particle with the fitted time, with time 1, and with time 1 and its own norm, to the "
        "network without feed-forward, and to its embedding. (d) The eigenvalue of largest real part of V of each "
        "head over its modulus: a head right of zero attracts, or turns if the eigenvalue is not real, and a head "
        f"left of zero repels. (e) The clusters of {m.heads[0].n} particles that one head moves at t = {TIME:g}. (f) "
        "The share of the heads of each network by case. Means over texts with standard errors over "
        f"{articles_words(m.articles)}; of random weights, over networks. The fitted particles predict the similarity "
        f"{verdict}, {value:.2f} of its error."
    )


def series(m: Results) -> dict:
    values: dict[str, np.ndarray] = {"layer": np.arange(m.layers + 1), "loss_by_step": m.bridge.losses}
    for name, curve in ({"network": m.bridge.network} | m.bridge.curves).items():
        # A curve that overflows has no numbers from there on, and JSON has no number for them.
        if np.isfinite(curve.mean).all() and np.isfinite(curve.error).all():
            values |= {f"cosine {name}": curve.mean, f"error {name}": curve.error}
    for name, cosines in m.path.cosines.items():
        average = m.mean_of(cosines)
        values |= {f"first token, {name}_by_level": average.mean, f"first token, {name}, error_by_level": average.error}
    values |= m.beside.series()
    for heads in m.heads:
        values |= {
            f"leading_real_part_by_head, {heads.name}": np.real(heads.signs.leading),
            f"leading_imaginary_part_by_head, {heads.name}": np.imag(heads.signs.leading),
            f"clusters_by_head, {heads.name}": heads.clusters,
        }
    return values


def draw(m: Results) -> Figure:
    fills = (_draw_curves, _draw_missed, _draw_path, _draw_eigenvalues, _draw_clusters, _draw_cases)
    return panels(m, fills, columns=2, height=6.6)


def _draw_curves(ax: Axes, m: Results) -> None:
    curves = {"network": m.bridge.network} | m.bridge.curves
    layer_lines(ax, "mean cosine", [(label, curves[name], *look) for name, (label, *look) in STYLES.items()])


def _draw_missed(ax: Axes, m: Results) -> None:
    missed_panel(ax, m.beside, {curve: STYLES[curve][:2] for curve in CURVES}, 0.26)
    # The controls have no curve with beta 0.
    average, (label, colour, _) = m.mean_of(share_missed(m.bridge, "uniform")), STYLES["uniform"]
    ax.bar(0.52, average.mean, 0.25, yerr=average.error, color=colour, label=label, error_kw={"elinewidth": 0.8}, lw=0)
    ax.legend(fontsize=6, handlelength=2.2)


def _draw_path(ax: Axes, m: Results) -> None:
    lines = [(label, m.mean_of(m.path.cosines[name]), *look) for name, (label, *look) in PATHS.items()]
    layer_lines(ax, "cosine to the network's\nfirst token", lines)
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)


def _draw_heads(ax: Axes, m: Results, height: Callable[[HeadRuns, np.ndarray], np.ndarray]) -> None:
    """A point for each head: its shape shows the network, its colour the case, its height a function of the heads and
    of their leading eigenvalues over the modulus."""
    for heads, marker in zip(m.heads, "os^", strict=False):
        leading = heads.signs.leading / np.maximum(np.abs(heads.signs.leading), np.finfo(float).tiny)
        for case, (colour, _) in CASES.items():
            at = heads.signs.case == case
            ax.scatter(leading.real[at], height(heads, leading)[at], s=11, marker=marker, facecolors="none",
                       edgecolors=colour, lw=0.8)  # fmt: skip
        ax.plot([], [], marker, color="0.3", mfc="none", ms=4, label=SHORT[heads.name])
    ax.axvline(0, color="0.6", lw=0.7, zorder=0)
    ax.set(xlim=(-1.1, 1.1), xticks=(-1, -0.5, 0, 0.5, 1))


def _draw_eigenvalues(ax: Axes, m: Results) -> None:
    _draw_heads(ax, m, lambda heads, leading: np.imag(leading))
    ax.set(xlabel="real part / modulus", ylabel="imaginary part / modulus")
    ax.legend(fontsize=6, handlelength=2.2)


def _draw_clusters(ax: Axes, m: Results) -> None:
    _draw_heads(ax, m, lambda heads, leading: heads.clusters)
    n = m.heads[0].n
    ax.set(xlabel="real part / modulus of the leading eigenvalue", ylabel=f"clusters of {n}", ylim=(0, n + 2))


def _draw_cases(ax: Axes, m: Results) -> None:
    places, bottom = np.arange(len(m.heads)), np.zeros(len(m.heads))
    for case, (colour, hatch) in CASES.items():
        share = np.array([heads.share(case) for heads in m.heads])
        ax.bar(places, share, 0.6, bottom=bottom, color=colour, hatch=hatch, edgecolor="white", lw=0, label=case)
        bottom += share
    ax.set_xticks(places, [f"{SHORT[heads.name]}\n{heads.signs.case.size} heads" for heads in m.heads])
    ax.set(ylabel="share of the heads", ylim=(0, 1.28), yticks=[0, 0.5, 1])
    ax.legend(fontsize=6, ncols=3, loc="upper center", handlelength=1.4)


FIGURE = figure(
    __name__,
    claims=(
        alone, linear, same_start, better_than_constant, beta_matters, better_than_controls, first_particle,
        goes_elsewhere, cases, stay_apart,
    ),
    over=lambda m: articles_words(m.articles),
    on=lambda m: Measured(m.network, m.data, {
        "texts": len(m.texts.mask), "tokens": m.texts.mask.shape[1], "layers": m.layers, "seeds": m.p.draws,
    }),
    recorded=lambda m: {
        "network": m.network.words, "texts": m.data.words, "starts": len(m.texts.mask),
        "texts that are fitted to": len(m.others.mask), "radius": np.asarray(m.bridge.radius).tolist(),
        "time_per_layer": m.bridge.time_per_layer, "fitted beta": m.bridge.beta,
        "time with beta 0": m.bridge.time_uniform, "converged": m.bridge.converged, "random weights": m.spread,
        "texts of the controls": len(m.beside.rows),
        "solver": f"Bogacki-Shampine, {m.p.steps_per_layer} steps a layer, float32",
    },
)  # fmt: skip
