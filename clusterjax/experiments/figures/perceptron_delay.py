"""Do trained perceptrons delay the collapse of tokens? The feed-forward of ALBERT, and one trained through the flow.

Two measurements share nothing but the seed: the flow of ALBERT's tokens with and without its feed-forward layer, and a
small perceptron that is trained to keep two groups of tokens apart.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray
from matplotlib.figure import Figure, SubFigure

from ... import probe
from ..._base.random import generator
from ..._dynamics.simulate import simulate
from ..._model.attention import SoftmaxAttention, UnnormalisedAttention
from ..._model.field import AbstractField, AttentionField, PerceptronField
from ..._model.space import Sphere
from ..._observables import cluster_labels, energy_dissipation, interaction_energy, perceptron_energy
from ...plot import OKABE_ITO, sphere, style, time_series
from ...probe.measures.survey import Clustered, clustered_error, encoded, threshold
from ...probe.networks.block import Context, activation
from ..framework.figure import Claim, Found, Say, Settings, claim, figure, parameter, percent, plus_minus
from ..framework.verdict import Measured, Subject
from ..shared.ensemble import count_clusters, mean_and_error
from ..shared.layout import WIDTH, letter, one_legend
from ..shared.networks import articles_of, articles_words, model_of, spread, subject_of


# The flow of ALBERT's tokens.
TS = np.linspace(0.0, 24.0, 49)
RADIUS, GATHERED = 0.3, 0.9
EARLY = 3.0
RTOL = 1e-3

# The two groups of tokens.
N, D, BETA, FEATURES, RADIUS_OF_GROUPS = 32, 3, 4.0, 6, 0.1
GROUPS = np.arange(N) % 2
ANGLE, NOISE = np.pi / 3, 0.2  # the angle between the centres of the groups, and the spread of tokens about a centre
END, BATCH, RATE = 8.0, 4, 0.03
TS_OF_GROUPS = np.linspace(0.0, 4 * END, 49)  # four times as long as in training, in steps that meet END
STARTS = 48  # the largest number of starts: each is run under six flows
APART, MIXED = 0.9, 0.6  # the purity of groups that are held apart, and of groups that are not

BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION = OKABE_ITO[:6]
FLOWS = {
    "attention": ("attention alone", BLUE, "-"),
    "perceptron": ("perceptron alone", GREEN, ":"),
    "both": ("attention + trained perceptron", VERMILION, "-"),
    "both, shuffled": ("attention + trained, shuffled", ORANGE, "--"),
    "random": ("attention + random perceptron", PURPLE, "-."),
    "both, shorter": ("attention + trained, smaller r", SKY, ":"),
}
FLOWS_OF_GROUPS = {
    "attention": ("attention alone", BLUE, "-"),
    "random": ("random features", PURPLE, "-."),
    "trained": ("trained", VERMILION, "-"),
    "trained, softmax": ("trained, softmax", SKY, ":"),
    "trained, turned": ("trained, turned", GREEN, "--"),
}


@dataclass(frozen=True)
class Parameters:
    texts: int = parameter(10, "the number of texts, at most the number of starts", quick=4, least=2, most=48)
    tokens: int = parameter(32, "the number of tokens to which a text is cut", least=4, most=128)
    draws: int = parameter(6, "the number of random perceptrons", quick=3, least=2, most=64)
    steps: int = parameter(40, "the number of training steps of the perceptron", quick=20, least=1, most=2000)


# The flow of ALBERT's tokens, with its feed-forward layer as a velocity.
#
# The tokens of a text move on the unit sphere by dx/dt = P_x (attention(x) + perceptron(x)); a layer takes time 1, and
# the norms are left out. The feed-forward F is not homogeneous: in a network that reads tokens of norm r, F changes r x
# and turns x by P_x F(r x) / r. The model therefore contains r, the root mean square norm of the input of the
# feed-forward in the network. The controls are the trained matrices with rows, columns and signs in random order, which
# have the same singular values.


class Flows(NamedTuple):
    # `cosine`, `clusters`: the values by the name of the flow, (texts, times); for "random" means over texts, (draws,
    # times)
    cosine: dict[str, np.ndarray]
    clusters: dict[str, np.ndarray]
    # `radius`, `fed`: the root mean square norms of the inputs of attention and of the feed-forward in the network
    radius: float
    fed: float
    speed: float  # the root mean square speed that the perceptron gives an embedded token, in radians per layer
    one_way: float  # the norm of the mean over all tokens of all texts at the end of the flow of the perceptron alone
    articles: np.ndarray  # the article of each text, the independent unit of errors, (texts,)

    @property
    def units(self) -> str:
        return f"{articles_words(self.articles)}, of random perceptrons over {len(self.cosine['random'])} draws"

    def mean_of(self, name: str, values: np.ndarray) -> Clustered:
        """The mean over the texts of a flow, with its error over articles, or over draws of random perceptrons."""
        return clustered_error(values, None if name == "random" else self.articles)

    def early(self, name: str) -> np.ndarray:
        """The mean cosine of each text at the time `EARLY`."""
        return self.cosine[name][:, np.argmin(np.abs(TS - EARLY))]

    def left(self, name: str) -> Clustered:
        return self.mean_of(name, self.clusters[name][:, -1])

    def until_gathered(self, name: str) -> np.ndarray:
        """The time at which the mean cosine of each text first exceeds 0.9, or the end of the run."""
        over = self.cosine[name] > GATHERED
        return np.where(over.any(axis=1), TS[over.argmax(axis=1)], TS[-1])


def measure_flows(seed: int, texts: int, tokens: int, draws: int, say: Say) -> Flows:
    """Runs all flows from the embedded tokens of the package's texts, in float32."""
    model, _ = model_of(Settings())
    block = model.network.blocks()[0]
    passages = spread(probe.bundled_texts(), texts)
    data = encoded(model, passages, tokens)
    shuffled = probe.shuffle_tokens(data, jr.fold_in(jr.key(seed), 5), probe.special_ids(model))
    start, start_shuffled = (jnp.asarray(model.network.embed(jnp.asarray(text.token_ids))) for text in (data, shuffled))
    radius, fed = _norms(model, start)
    heads = probe.particle_field(model, radius)
    trained = perceptron_of(block, fed)
    cosine, clusters = {}, {}

    def run(name: str, perceptron: PerceptronField, x0: Array = start, share: float = 1.0) -> np.ndarray:
        say(f"simulating ALBERT's tokens under {name}")
        xs = _run(jnp.asarray(share, jnp.float32) * heads + perceptron, x0, jnp.asarray(TS, jnp.float32))
        clusters[name] = np.asarray(count_clusters(xs, jnp.asarray(RADIUS, jnp.float32)), float)
        cosine[name] = _mean_cosine(np.asarray(xs, float))
        return np.asarray(xs[:, -1], float)

    # Attention alone is the sum with a perceptron of output zero, so that one compiled program serves all flows.
    run("attention", _silent(trained))
    alone = run("perceptron", trained, share=0.0)
    run("both", trained)
    run("both, shuffled", trained, start_shuffled)
    run("both, shorter", _at_norm(trained, radius / fed))
    drawn = []
    for draw in range(draws):
        run("random", _scrambled(trained, generator(jr.fold_in(jr.key(seed), 100 + draw))))
        drawn.append((cosine["random"].mean(0), clusters["random"].mean(0)))
    cosine["random"], clusters["random"] = (np.stack(part) for part in zip(*drawn, strict=True))
    one_way = float(np.linalg.norm(alone.mean(axis=(0, 1))))
    return Flows(cosine, clusters, radius, fed, _speed(trained, start), one_way, articles_of(passages))


def perceptron_of(block: Any, radius: float) -> PerceptronField:
    """The feed-forward F of a layer of ALBERT as a velocity on the unit sphere: F(r x) / r, with r = `radius`."""
    into, out = block.feed_forward.into, block.feed_forward.out
    return PerceptronField(
        radius * into.kernel[...].T,
        out.kernel[...].T / radius,
        activation(block.activation),
        bias_in=into.bias[...],
        bias_out=out.bias[...] / radius,
    )


def _parts(perceptron: PerceptronField) -> tuple[Any, Any, Any]:
    return perceptron.w_in, perceptron.w_out, perceptron.bias_out


def _at_norm(perceptron: PerceptronField, factor: float) -> PerceptronField:
    """The perceptron for tokens whose norm is larger by `factor`."""
    w_in, w_out, bias_out = _parts(perceptron)
    return eqx.tree_at(_parts, perceptron, (factor * w_in, w_out / factor, bias_out / factor))


def _silent(perceptron: PerceptronField) -> PerceptronField:
    w_in, w_out, bias_out = _parts(perceptron)
    return eqx.tree_at(_parts, perceptron, (w_in, jnp.zeros_like(w_out), jnp.zeros_like(bias_out)))


def _scrambled(perceptron: PerceptronField, rng: np.random.Generator) -> PerceptronField:
    """A perceptron with the same singular values: the rows and columns of its matrices, and its biases, are in random
    order and have random signs, except for the signs of the thresholds."""

    def scramble(array: Any) -> Array:
        mixed = np.asarray(array)
        for axis in range(mixed.ndim):
            size = mixed.shape[axis]
            # A permutation with changes of sign is orthogonal and keeps the singular values.
            last = np.moveaxis(mixed, axis, -1)[..., rng.permutation(size)] * rng.choice([-1.0, 1.0], size)
            mixed = np.moveaxis(last, -1, axis)
        return jnp.asarray(mixed, jnp.float32)

    changed = eqx.tree_at(_parts, perceptron, tuple(scramble(part) for part in _parts(perceptron)))
    # With another sign of its threshold a neuron would be active where the trained one is silent.
    thresholds = rng.permutation(np.asarray(perceptron.bias_in))
    return eqx.tree_at(lambda field: field.bias_in, changed, jnp.asarray(thresholds, jnp.float32))


def _norms(model: probe.Model, hidden: Float[Array, "texts n d"]) -> tuple[float, float]:
    """The root mean square norms of the inputs of the layers, and of the inputs of their feed-forward."""
    block, mask = model.network.blocks()[0], jnp.ones(hidden.shape[:2], bool)
    square = lambda x: jnp.mean(jnp.sum(x * x, axis=-1))

    def layer(x: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
        return block(x, mask, Context())[0], (square(x), square(block.after_attention(x, mask, Context())[0]))

    _, squares = jax.jit(lambda x: jax.lax.scan(layer, x, None, length=model.num_layers))(hidden)
    radius, fed = (float(np.sqrt(np.mean(part))) for part in squares)
    return radius, fed


@eqx.filter_jit
def _run(field: AbstractField, x0: Array, ts: Array) -> Float[Array, "texts times n d"]:
    controller = dfx.PIDController(rtol=RTOL, atol=RTOL)

    def run_text(x: Array) -> Array:
        return simulate(field, x, ts, solver=dfx.Bosh3(), stepsize_controller=controller, adjoint=dfx.ForwardMode()).xs

    return jax.vmap(run_text)(x0)


def _speed(perceptron: PerceptronField, x0: Float[Array, "texts n d"]) -> float:
    velocity = jax.jit(lambda x: perceptron(0.0, x))(x0.reshape(-1, x0.shape[-1]))
    return float(np.sqrt(np.mean(np.sum(np.asarray(velocity) ** 2, axis=-1))))


def _mean_cosine(xs: Float[np.ndarray, "texts times n d"]) -> Float[np.ndarray, "texts times"]:
    """The mean cosine of the pairs of tokens, from |sum x|^2, which is n plus twice the sum of the cosines."""
    n = xs.shape[2]
    return (np.sum(xs.sum(axis=2) ** 2, axis=-1) - n) / (n * (n - 1))


# A perceptron that is trained by gradient through the flow to keep two groups of tokens apart.
#
# The perceptron is the gradient of an energy (2601.21366, Section 2), so that attention and perceptron together are a
# gradient flow: its energy rises at the mean squared speed of the tokens. This identity checks the runs. The loss is
# the mean cosine of tokens of different groups minus the mean cosine within a group at the end of a short run. The
# test has fresh starts and runs four times as long; starts that are rotated at random show whether the perceptron has
# learnt a position for each group or the groups themselves.


class Gradient(NamedTuple):
    """The weights of a perceptron, the gradient of an energy: $∑_j ω_j relu(a_j·x) a_j$."""

    features: Float[Array, "m d"]  # $a_j$, (m, d)
    amplitudes: Float[Array, " m"]  # $ω_j$, (m,)

    def field(self) -> PerceptronField:
        return PerceptronField(self.features, self.features.T * self.amplitudes[None, :], jax.nn.relu)


@dataclass(frozen=True, eq=False)
class Trained:
    losses: np.ndarray  # the loss before each step, (steps,)
    xs: dict[str, np.ndarray]  # the tokens by the name of the flow, (starts, times, n, d)
    labels: dict[str, np.ndarray]  # the clusters of the tokens, (starts, times, n)
    energies: np.ndarray  # the energy of attention and perceptron along one run, (times,)
    # The largest difference along that run of the rate of the energy from the mean squared speed, relative to the
    # largest mean squared speed
    defect: float

    def purity(self, name: str) -> np.ndarray:
        """The share of tokens that belong to the majority group of their cluster, (starts, times): 1 if no cluster
        mixes groups, and 1/2 in a single cluster of both."""
        labels = self.labels[name]
        same = labels[..., :, None] == labels[..., None, :]
        # For each token, the number of tokens of its own group in its cluster, and the number of all.
        own_group, size = (same & (GROUPS[:, None] == GROUPS)).sum(-1), same.sum(-1)
        return (np.maximum(own_group, size - own_group) / size).mean(-1)

    def clusters(self, name: str) -> np.ndarray:
        return (self.labels[name] == np.arange(N)).sum(-1)

    @cached_property
    def pure(self) -> dict[str, Clustered]:
        return {name: clustered_error(self.purity(name)[:, -1]) for name in self.labels}


def train_and_test(seed: int, starts: int, steps: int, say: Say) -> Trained:
    key = jr.fold_in(jr.key(seed), 2_601)
    # With amplitudes of zero training starts from attention alone.
    first = Gradient(jr.normal(jr.fold_in(key, 0), (FEATURES, D)), jnp.zeros(FEATURES))
    say(f"training a perceptron of {FEATURES} features in {steps} steps")
    weights, losses = _train(first, jr.fold_in(key, 1), steps)
    x0 = jax.vmap(draw_groups)(jr.split(jr.fold_in(key, 2), starts))
    # The orthogonal factors of Gaussian matrices: random rotations, uniform up to a reflection.
    rotations = jnp.linalg.qr(jr.normal(jr.fold_in(key, 3), (starts, D, D)))[0]
    turned = jnp.einsum("sij,snj->sni", rotations, x0)
    shuffled = jnp.asarray(np.random.default_rng(seed).permutation(np.asarray(weights.amplitudes)))
    blank, other, trained = first.field(), Gradient(first.features, shuffled).field(), weights.field()
    # The perceptron, the share of softmax in the attention (traced), and the starts.
    flows = {"attention": (blank, 0.0, x0), "random": (other, 0.0, x0), "trained": (trained, 0.0, x0),
             "trained, softmax": (trained, 1.0, x0), "trained, turned": (trained, 0.0, turned),
             "softmax": (blank, 1.0, x0)}  # fmt: skip
    xs, labels = {}, {}
    for name, (perceptron, softmax, start) in flows.items():
        say(f"testing: {name}")
        xs[name], labels[name] = (np.asarray(part) for part in _run_all(perceptron, jnp.asarray(softmax), start))
    energies, defect = _along(weights, jnp.asarray(xs["trained"][0]))
    return Trained(losses, xs, labels, energies, defect)


def draw_groups(key: PRNGKeyArray) -> Float[Array, "n d"]:
    """Tokens that belong in turn to two groups, about two fixed directions."""
    half = ANGLE / 2
    centres = jnp.asarray([[np.sin(half), 0.0, np.cos(half)], [-np.sin(half), 0.0, np.cos(half)]])
    return Sphere().retract(centres[GROUPS] + NOISE * jr.normal(key, (N, D)))


def _attention() -> AttentionField:
    """Unnormalised attention in a unit of time in which it does not overflow; its energy has the same unit."""
    return AttentionField(UnnormalisedAttention(BETA, offset=BETA))


def _train(first: Gradient, key: PRNGKeyArray, steps: int) -> tuple[Gradient, np.ndarray]:
    own = jnp.asarray(GROUPS[:, None] == GROUPS)

    def loss(weights: Gradient, x0: Array) -> tuple[Array, Array]:
        def loss_of_start(x: Array) -> Array:
            run = simulate(
                # With constant steps the loss is a smooth function of the weights.
                _attention() + weights.field(), x, jnp.asarray([0.0, END]), solver=dfx.Bosh3(), dt0=0.25,
                stepsize_controller=dfx.ConstantStepSize(), adjoint=dfx.ForwardMode(), max_steps=40,
            )  # fmt: skip
            cosine = run.xs[-1] @ run.xs[-1].T
            return jnp.mean(jnp.where(own, -cosine, cosine))

        value = jnp.mean(jax.vmap(loss_of_start)(x0))
        return value, value

    optimiser = optax.adam(RATE)

    @eqx.filter_jit
    def step(weights: Gradient, state: Any, key: PRNGKeyArray) -> tuple[Gradient, Any, Array]:
        x0 = jax.vmap(draw_groups)(jr.split(key, BATCH))
        # Forward mode has 24 inputs here, and needs no memory of the solver's steps.
        gradient, value = jax.jacfwd(loss, has_aux=True)(weights, x0)
        with jax.numpy_dtype_promotion("standard"):  # optax counts steps in integers
            change, state = optimiser.update(gradient, state)
        return optax.apply_updates(weights, change), state, value  # pyright: ignore[reportReturnType]

    weights, state, losses = first, optimiser.init(first), []
    for k in range(steps):
        weights, state, value = step(weights, state, jr.fold_in(key, k))
        losses.append(float(value))
    return weights, np.array(losses)


@eqx.filter_jit
def _run_all(perceptron: PerceptronField, softmax: Array, x0: Array) -> tuple[Array, Array]:
    # Both attentions are computed, and one has weight 0, so that one program serves.
    field = (1 - softmax) * _attention() + softmax * AttentionField(SoftmaxAttention(BETA)) + perceptron

    def run(x: Array) -> tuple[Array, Array]:
        xs = simulate(field, x, jnp.asarray(TS_OF_GROUPS), adjoint=dfx.ForwardMode()).xs
        return xs, jax.vmap(lambda x: cluster_labels(x, jnp.asarray(RADIUS_OF_GROUPS)))(xs)

    return jax.vmap(run)(x0)


def _along(weights: Gradient, xs: Float[Array, "times n d"]) -> tuple[np.ndarray, float]:
    """The energy along a run, and the largest difference of its rate from the mean squared speed, relative to the
    largest mean squared speed."""
    field: AbstractField = _attention() + weights.field()

    def energy(x: Array) -> Array:
        # The energy of attention has the unit of the field: both carry e^(-beta).
        pairs = jnp.exp(-jnp.asarray(BETA)) * interaction_energy(x, BETA)
        return pairs + perceptron_energy(x, weights.features, weights.amplitudes, lambda s: jax.nn.relu(s) ** 2 / 2)

    def rates(x: Array) -> tuple[Array, Array, Array]:
        velocity = field(0.0, x)
        value, rise = jax.jvp(energy, (x,), (velocity,))
        return value, rise, energy_dissipation(x, velocity)

    values, rises, speeds = (np.asarray(part) for part in jax.jit(jax.vmap(rates))(xs))
    return values, float(np.abs(rises - speeds).max() / speeds.max())


class Results(NamedTuple):
    p: Parameters
    starts: int  # the number of starts of the two groups
    flows: Flows  # ALBERT's tokens under its attention, with and without its perceptron
    learnt: Trained  # the perceptron that was trained to hold two groups apart


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    # More starts would take minutes and would not change a verdict.
    starts = min(settings.starts, STARTS)
    flows = measure_flows(settings.seed, min(settings.starts, p.texts), p.tokens, p.draws, say)
    return Results(p, starts, flows, train_and_test(settings.seed, starts, p.steps, say))


def _beyond(first: Clustered, second: Clustered) -> bool:
    """True if one mean is significantly above the mean of other units, with the degrees of freedom of Welch and
    Satterthwaite."""
    error = np.hypot(first.error, second.error)
    parts = [average.error**4 / (average.units - 1) for average in (first, second)]
    return bool(first.mean - second.mean > threshold(error**4 / sum(parts) if error else np.inf) * error)


def _words(average: Clustered, digits: int = 2) -> str:
    return plus_minus(average.mean, average.error, digits)


# The claims on ALBERT's tokens concern the flow and not the network, whose layers are no small steps of the flow.


@claim("attention alone ends below 1.5 clusters, and the difference exceeds two standard errors")
def more_clusters(m: Results) -> Found:
    """The trained perceptron delays the end of the collapse: it leaves more clusters when attention alone has come to
    one cluster."""
    flows, clusters = m.flows, {name: m.flows.left(name) for name in ("both", "attention", "both, shuffled")}
    more = flows.mean_of("both", flows.clusters["both"][:, -1] - flows.clusters["attention"][:, -1])
    never = int((flows.cosine["both"].max(axis=1) <= GATHERED).sum())
    return Found(
        f"clusters at t = {TS[-1]:g}: {_words(clusters['both'])} with the perceptron, {_words(clusters['attention'])} "
        f"by attention alone, {_words(clusters['both, shuffled'])} with the perceptron on shuffled tokens; the mean "
        f"cosine stays below {GATHERED} in {never} of {len(flows.cosine['both'])} texts (± over {flows.units})",
        bool(clusters["attention"].mean < 1.5) and more.above(), more.mean, more.error,
    )  # fmt: skip


@claim("with the perceptron the mean cosine is lower, by more than two standard errors")
def later(m: Results) -> Found:
    """The trained perceptron delays the gathering of tokens: the tokens are less alike at t = {EARLY:g}."""
    flows = m.flows
    sooner = flows.mean_of("both", flows.early("both") - flows.early("attention"))
    cosine = {name: _words(flows.mean_of(name, flows.early(name))) for name in flows.cosine}
    until = {name: _words(flows.mean_of(name, flows.until_gathered(name)), 1) for name in ("attention", "both")}
    return Found(
        f"mean cosine at t = {EARLY:g}: {cosine['both']} with the perceptron, {cosine['attention']} by attention "
        f"alone, {cosine['random']} with random perceptrons; it exceeds {GATHERED} at t = {until['both']} with the "
        f"perceptron and {until['attention']} without ({TS[-1]:g} if it never does) (± over {flows.units})",
        sooner.below(), sooner.mean, sooner.error,
    )  # fmt: skip


@claim("the difference exceeds two standard errors, or with so few units as many as are as improbable")
def fewer_at_random(m: Results) -> Found:
    """Random perceptrons of the same singular values leave fewer clusters than the trained perceptron."""
    # Texts on one side and draws on the other are not paired.
    trained, random = m.flows.left("both"), m.flows.left("random")
    measured = (
        f"clusters at t = {TS[-1]:g}: trained {_words(trained)}, random {_words(random)} (± over {m.flows.units})"
    )
    return Found(measured, _beyond(trained, random), trained.mean - random.mean, np.hypot(trained.error, random.error))


@claim(
    f"purity above {APART} trained, below {MIXED} by attention alone, and with random features lower than trained, "
    "each by two standard errors"
)
def held_apart(m: Results) -> Found:
    """A perceptron that was trained to hold two groups apart does so on new starts and four times as long, where
    attention alone mixes the groups."""
    learnt, pure = m.learnt, m.learnt.pure
    lower = clustered_error(learnt.purity("trained")[:, -1] - learnt.purity("random")[:, -1])
    purities = {name: _words(purity, 3) for name, purity in pure.items()}
    single, several = learnt.clusters("attention")[:, -1] == 1, learnt.clusters("trained")[:, -1] > 1
    return Found(
        f"purity at t = {TS_OF_GROUPS[-1]:g}: {purities['trained']} trained, {purities['attention']} by attention "
        f"alone, {purities['random']} with random features, {purities['trained, softmax']} trained under softmax "
        f"attention; with the trained perceptron {percent(*clustered_error(several)[:2])} of {len(several)} starts "
        f"have two clusters or more; by attention alone {percent(*clustered_error(single)[:2])} have one",
        pure["trained"].above(APART) and pure["attention"].below(MIXED) and lower.above(), *pure["trained"][:2],
    )  # fmt: skip


@claim(f"purity above {APART} by two standard errors")
def turned_apart(m: Results) -> Found:
    """The trained perceptron also holds groups apart that are turned at random."""
    pure = m.learnt.pure["trained, turned"]
    return Found(f"purity at t = {TS_OF_GROUPS[-1]:g}: {_words(pure, 3)}", pure.above(APART), *pure[:2])


@claim("off by less than 1e-10, and no step below -1e-6", kind="identity")
def climbs(m: Results) -> Found:
    """Under unnormalised attention with a perceptron that is a gradient, the sum of both energies rises at the mean
    squared speed of the tokens (2601.21366, Section 2)."""
    energies, defect = m.learnt.energies, m.learnt.defect
    least = float(np.diff(energies).min() / np.ptp(energies))
    return Found(
        f"along one run the rate is off by at most {defect:.1e} of the largest rate; the energy rises by "
        f"{np.ptp(energies):.3f}, and its least step is {least:.1e} of that",
        defect < 1e-10 and least > -1e-6, defect,
    )  # fmt: skip


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    flows, learnt = m.flows, m.learnt
    clusters = {name: flows.left(name).mean for name in flows.clusters}
    early = {name: flows.early(name).mean() for name in flows.cosine}
    sign = "fewer, so that the delay is learnt" if claims[2].holds else "no sign that the delay is learnt"
    return (
        f"(a, b) Tokens of {len(flows.cosine['both'])} texts as particles on the sphere, under the attention and the "
        "trained feed-forward of the ALBERT of this package; a layer takes time 1, and the norms are left out. The "
        f"mean cosine of the pairs and the number of clusters (single linkage at radius {RADIUS}), with standard "
        f"errors over {articles_words(flows.articles)}. Random perceptrons, {len(flows.cosine['random'])} draws, are "
        "the trained one with the rows and columns of its matrices in random order and with random signs. Alone, the "
        "trained perceptron sends all tokens in one direction (the mean direction at the end has norm "
        f"{flows.one_way:.2f}). With attention it leaves {clusters['both']:.1f} clusters at t = {TS[-1]:g}, attention "
        f"alone {clusters['attention']:.1f}; at t = {EARLY:g} the mean cosine is {early['both']:.2f} with it and "
        f"{early['attention']:.2f} without. Random perceptrons leave {clusters['random']:.1f}: {sign}. The perceptron "
        f"reads tokens of norm {flows.fed:.1f} as in the network; at {flows.radius:.1f}, which attention reads, "
        f"{clusters['both, shorter']:.1f} clusters are left. A layer is no small step of this flow: at the start the "
        f"perceptron turns a token at {flows.speed:.1f} radians per layer. (c) {N} tokens in two groups (colours; "
        f"{np.degrees(ANGLE):.0f} degrees between their centres) under unnormalised attention with V = I at beta = "
        f"{BETA:g}: one start, its end under attention alone, and its end with a perceptron of {FEATURES} features "
        f"that was trained on other starts to keep the groups apart at t = {END:g} (dotted in d). (d) Purity, the "
        f"share of tokens that belong to the majority group of their cluster (radius {RADIUS_OF_GROUPS}), over "
        f"{m.starts} test starts, with standard errors; random features have the same amplitudes in random order. On "
        f"starts that are turned at random purity ends at {learnt.pure['trained, turned'].mean:.2f}: the perceptron "
        "learns a position for each group."
    )


def series(m: Results) -> dict:
    flows, learnt = m.flows, m.learnt
    values = {"t": TS, "t of groups": TS_OF_GROUPS, "loss_by_step": learnt.losses, "energy of one run": learnt.energies}
    for name in flows.cosine:
        for quantity, runs in (("cosine", flows.cosine[name]), ("clusters", flows.clusters[name])):
            values[f"{quantity}, {name}"], values[f"{quantity} error, {name}"] = flows.mean_of(name, runs)[:2]
    for name in learnt.labels:
        values[f"purity, {name}"], values[f"purity error, {name}"] = mean_and_error(learnt.purity(name))
    return values


@style()
def draw(m: Results) -> Figure:
    flows, learnt = m.flows, m.learnt
    picture = Figure(figsize=(WIDTH, 5.6), layout="constrained")
    top, bottom = picture.subfigures(2, 1, height_ratios=(3.0, 2.6))  # pyright: ignore
    cosine, clusters = top.subplots(1, 2)
    for ax, runs, label in ((cosine, flows.cosine, "mean cosine"), (clusters, flows.clusters, "number of clusters")):
        for name, (words, colour, line) in FLOWS.items():
            time_series(TS, *flows.mean_of(name, runs[name])[:2], ax, label=words, colour=colour, linestyle=line,
                        xlabel="t (layers)", ylabel=label)  # fmt: skip
    clusters.set_yscale("log", base=2)
    clusters.yaxis.set_major_formatter("{x:g}")
    clusters.axhline(1.0, color="0.6", lw=0.6, zorder=0)
    one_legend(top, (cosine, clusters), loc="outside upper center", ncols=3, handlelength=2.4, columnspacing=1.2)
    spheres, right = bottom.subfigures(1, 2, width_ratios=(1.75, 1.25))
    _draw_groups(spheres, learnt)
    purity = right.subplots()
    for name, (words, colour, line) in FLOWS_OF_GROUPS.items():
        time_series(TS_OF_GROUPS, *mean_and_error(learnt.purity(name)), purity, label=words, colour=colour,
                    linestyle=line, ylabel="purity of the clusters")  # fmt: skip
    purity.axvline(END, color="0.4", ls=":", lw=0.9, zorder=0)
    purity.set_ylim(0.45, 1.03)
    one_legend(right, (purity,), loc="outside upper center", ncols=2, handlelength=2.4, columnspacing=1.2)
    letter((cosine, clusters, purity), "abd")
    return picture


def _draw_groups(part: SubFigure, learnt: Trained) -> None:
    shown = (("attention", 0, "start"), ("attention", -1, "attention alone"), ("trained", -1, "with perceptron"))
    axes = part.subplots(1, len(shown))
    for ax, (name, at, words) in zip(axes, shown, strict=True):
        sphere(learnt.xs[name][0, at], ax, labels=GROUPS)
        ax.set_title(f"{words}\nt = {TS_OF_GROUPS[at]:g}")
    axes[0].text(0.0, 1.05, "(c)", ha="right", va="bottom", transform=axes[0].transAxes, weight="bold")


def measured_on(m: Results) -> Measured:
    # The network of the package, whatever `Settings.albert` is: the experiment reads no other.
    network = subject_of(*model_of(Settings()))
    size = {"texts": len(m.flows.cosine["both"]), "tokens": m.p.tokens}
    return Measured(network, Subject("texts", "passages of Wikipedia"), size)


FIGURE = figure(
    __name__,
    on=measured_on,
    recorded=lambda m: {
        "network": "the ALBERT of this package", "texts": len(m.flows.cosine["both"]),
        "norm read by attention": m.flows.radius, "norm read by the perceptron": m.flows.fed, "radius": RADIUS,
        "radius of groups": RADIUS_OF_GROUPS, "n": N, "d": D, "beta": BETA, "value": "identity", "features": FEATURES,
        "angle": ANGLE, "noise": NOISE, "starts": m.starts, "trained until": END, "batch": BATCH,
        "solver": f"of ALBERT's tokens Bogacki-Shampine, rtol and atol {RTOL:g}, float32; of groups Tsit5, rtol 1e-6, "
        "atol 1e-8, float64, and to train Bogacki-Shampine in steps of 0.25",
    },
)  # fmt: skip
