"""What the figure on perceptrons measures: the flow of ALBERT's tokens, and a perceptron trained for two groups."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from ... import probe
from ..._base.random import generator
from ..._dynamics.simulate import simulate
from ..._model.attention import SoftmaxAttention, UnnormalisedAttention
from ..._model.field import AbstractField, AttentionField, PerceptronField
from ..._model.space import Sphere
from ..._observables import cluster_labels, energy_dissipation, interaction_energy, perceptron_energy
from ...plot import OKABE_ITO, sphere, style, time_series
from ...probe.measures.controls import _special
from ...probe.measures.survey import Clustered, clustered_error, encoded, threshold
from ...probe.networks.block import Context, activation
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, percent, plus_minus
from ..framework.figure import declared
from ..framework.verdict import Measured, Subject
from ..shared.ensemble import count_clusters, mean_and_error
from ..shared.layout import WIDTH
from ..shared.networks import articles_of, articles_words, model_of, spread, subject_of


# The feed-forward layer of the package's own ALBERT as a velocity, beside attention and random perceptrons.
#
# The tokens of a text move on the unit sphere by dx/dt = P_x (attention(x) + perceptron(x)), one layer in time 1, the
# norms left out. A network reads tokens of some length r, and its feed-forward is not homogeneous: what it adds to r x
# turns x by P_x F(r x) / r, so that r is part of the model; it is the root mean square length of what enters the
# feed-forward in the network. Controls are the trained matrices with rows, columns and signs at random, which keeps
# their singular values.


OF_GROUPS, GATHERED = 0.3, 0.9
TS_OF_GROUPS = np.linspace(0.0, 24.0, 49)
RTOL = 1e-3


@dataclass(frozen=True, eq=False)
class Flows:
    """Mean cosine and number of clusters of each text along each flow.

    **Attributes:**

    - `cosine`, `clusters`: By the name of the flow, (texts, times); of "random" (draws, times), means over texts.
    - `radius`, `fed`: The lengths of what attention and what the feed-forward reads in the network.
    - `speed`: At which the perceptron turns an embedded token, in radians per layer, root mean square.
    - `one_way`: The length of the mean direction that all tokens of all texts end in under the perceptron alone.
    - `articles`: The article of each text, the independent unit of errors, (texts,).
    """

    cosine: dict[str, np.ndarray]
    clusters: dict[str, np.ndarray]
    radius: float
    fed: float
    speed: float
    one_way: float
    articles: np.ndarray

    def mean_of(self, name: str, values: np.ndarray) -> Clustered:
        """The mean over the texts of a flow, with its error over articles, or over draws of random perceptrons."""
        return clustered_error(values, None if name == "random" else self.articles)

    def until_gathered(self, name: str) -> np.ndarray:
        """The time at which the mean cosine of each text first exceeds 0.9, the end of the run if it never does."""
        # argmax of booleans is the first that holds, and 0 if none does.
        over = self.cosine[name] > GATHERED
        return np.where(over.any(axis=1), TS_OF_GROUPS[over.argmax(axis=1)], TS_OF_GROUPS[-1])


def measure_flows(seed: int, texts: int, tokens: int, draws: int, say: Callable[[str], None]) -> Flows:
    """All flows from the embedded tokens of the package's texts, in float32.

    **Arguments:**

    - `seed`: Of the order of shuffled tokens, and of the random perceptrons.
    - `texts`, `tokens`: How many texts, and to how many tokens they are cut.
    - `draws`: How many random perceptrons.
    - `say`: Is given each line of progress.
    """
    model, _ = model_of(Settings())
    block = model.network.blocks()[0]
    passages = spread(probe.bundled_texts(), texts)
    data = encoded(model, passages, tokens)
    shuffled = probe.shuffle_tokens(data, jr.fold_in(jr.key(seed), 5), _special(model))
    starts = {name: jnp.asarray(model.network.embed(jnp.asarray(one.token_ids)))
              for name, one in (("texts", data), ("shuffled", shuffled))}  # fmt: skip
    radius, fed = _lengths(model, starts["texts"])
    heads = probe.particle_field(model, radius)
    trained = perceptron_of(block, fed)
    cosine, clusters = {}, {}

    def run(name: str, perceptron: PerceptronField, of: str = "texts", share: float = 1.0) -> np.ndarray:
        say(f"ALBERT's tokens under {name}")
        xs = _run(
            jnp.asarray(share, jnp.float32) * heads + perceptron, starts[of], jnp.asarray(TS_OF_GROUPS, jnp.float32)
        )
        clusters[name] = np.asarray(count_clusters(xs, jnp.asarray(OF_GROUPS, jnp.float32)), float)
        cosine[name] = _mean_cosine(np.asarray(xs, float))
        return np.asarray(xs[:, -1], float)

    # The same field with a perceptron that adds nothing: one compiled program serves all flows.
    run("attention", _silent(trained))
    alone = run("perceptron", trained, share=0.0)
    run("both", trained)
    run("both, shuffled", trained, "shuffled")
    run("both, shorter", _at_length(trained, radius / fed))
    drawn = []
    for draw in range(draws):
        # NumPy generators made from keys of jax: one seed decides all.
        rng = generator(jr.fold_in(jr.key(seed), 100 + draw))
        run("random", _scrambled(trained, rng))
        # Means over texts: the error of random perceptrons is over draws.
        drawn.append((cosine["random"].mean(0), clusters["random"].mean(0)))
    cosine["random"], clusters["random"] = (np.stack(part) for part in zip(*drawn, strict=True))
    # All tokens of all texts in one point have a mean of length 1.
    one_way = float(np.linalg.norm(alone.mean(axis=(0, 1))))
    return Flows(cosine, clusters, radius, fed, _speed(trained, starts["texts"]), one_way, articles_of(passages))


def perceptron_of(block: Any, radius: float) -> PerceptronField:
    r"""The feed-forward of a layer of ALBERT as a velocity on the unit sphere, for tokens of length `radius`.

    What is added to $r x$ turns x by $P_x F(r x) / r$. The norms are left out.
    """
    into, out = block.ffn, block.ffn_output
    return PerceptronField(
        # The layer reads r x and writes F(r x); on the unit sphere that is F(r x) / r.
        radius * into.kernel[...].T,
        out.kernel[...].T / radius,
        activation(block.activation),
        bias_in=into.bias[...],
        bias_out=out.bias[...] / radius,
    )


def _at_length(perceptron: PerceptronField, factor: float) -> PerceptronField:
    """The same perceptron for tokens of another length."""
    where = lambda field: (field.w_in, field.w_out, field.bias_out)
    # What is read is longer by the factor, what is written shorter by it.
    w_in, w_out, bias_out = where(perceptron)
    return eqx.tree_at(where, perceptron, (factor * w_in, w_out / factor, bias_out / factor))


def _silent(perceptron: PerceptronField) -> PerceptronField:
    """The same perceptron with nothing that it writes."""
    where = lambda field: (field.w_out, field.bias_out)
    return eqx.tree_at(where, perceptron, tuple(jnp.zeros_like(part) for part in where(perceptron)))


def _scrambled(perceptron: PerceptronField, rng: np.random.Generator) -> PerceptronField:
    """Another perceptron with the same singular values: rows and columns of its matrices in random order and with
    random signs, and its biases likewise, but for the signs of the thresholds."""

    def scramble(array: Any) -> Array:
        mixed = np.asarray(array)
        for axis in range(mixed.ndim):
            size = mixed.shape[axis]
            # Permuting and changing signs along an axis is an orthogonal map: singular values stay.
            last = np.moveaxis(mixed, axis, -1)[..., rng.permutation(size)] * rng.choice([-1.0, 1.0], size)
            mixed = np.moveaxis(last, -1, axis)
        return jnp.asarray(mixed, jnp.float32)

    where = lambda field: (field.w_in, field.w_out, field.bias_out)
    changed = eqx.tree_at(where, perceptron, tuple(scramble(part) for part in where(perceptron)))
    # Thresholds keep their signs: with others a neuron would be active where the trained one is silent.
    thresholds = rng.permutation(np.asarray(perceptron.bias_in))
    return eqx.tree_at(lambda field: field.bias_in, changed, jnp.asarray(thresholds, jnp.float32))


def _lengths(model: probe.Model, hidden: Float[Array, "texts n d"]) -> tuple[float, float]:
    """The root mean square length of what enters the layers, and of what enters their feed-forward."""
    block, mask = model.network.blocks()[0], jnp.ones(hidden.shape[:2], bool)
    square = lambda x: jnp.mean(jnp.sum(x * x, axis=-1))

    # Follows the network through its layers, to see how long tokens are where they are read.
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
    """The root mean square of the velocities."""
    velocity = jax.jit(lambda x: perceptron(0.0, x))(x0.reshape(-1, x0.shape[-1]))
    return float(np.sqrt(np.mean(np.sum(np.asarray(velocity) ** 2, axis=-1))))


def _mean_cosine(xs: Float[np.ndarray, "texts times n d"]) -> Float[np.ndarray, "texts times"]:
    """Of the pairs of tokens of a text, from the length of their sum."""
    n = xs.shape[2]
    # |sum x|^2 = n + sum over pairs of cosines, twice each.
    return (np.sum(xs.sum(axis=2) ** 2, axis=-1) - n) / (n * (n - 1))


# A small perceptron trained by gradient through the flow, to keep two groups of tokens apart.
#
# Its weights are the gradient of an energy (2601.21366, Section 2), so that attention and perceptron together are a
# gradient flow, whose energy rises at the mean squared speed of the tokens: the identity that ties the runs to theory.
# The loss is the mean cosine of tokens of different groups less that of tokens of the same group, at the end of a short
# run. It is tested on fresh starts and four times as long; turned starts tell places that were learnt from groups that
# were.


N, D, BETA, FEATURES, RADIUS = 32, 3, 4.0, 6, 0.1
ANGLE, NOISE = np.pi / 3, 0.2  # between the middles of the groups, and of their tokens about them
END, BATCH, RATE = 8.0, 4, 0.03
TS = np.linspace(0.0, 4 * END, 49)  # four times as long as it was trained for, in steps that meet END
GROUPS = np.arange(N) % 2


class Gradient(NamedTuple):
    """The weights of a perceptron that is the gradient of an energy: $\\sum_j\\omega_j\\,\\mathrm{relu}(a_j \\cdot x)\\,a_j$.

    **Attributes:**

    - `features`: $a_j$, (m, d).
    - `amplitudes`: $\\omega_j$, (m,).

    ??? cite "Source"

        2601.21366, Section 2.
    """  # noqa: E501

    features: Float[Array, "m d"]
    amplitudes: Float[Array, " m"]

    def field(self) -> PerceptronField:
        """As a velocity."""
        return PerceptronField(self.features, self.features.T * self.amplitudes[None, :], jax.nn.relu)


@dataclass(frozen=True, eq=False)
class Trained:
    """What a perceptron learnt, and the runs with it.

    **Attributes:**

    - `losses`: (steps,), before each step.
    - `xs`: By the name of the flow, (starts, times, n, d).
    - `labels`: Its clusters, (starts, times, n).
    - `energies`: Of one run, (times,): of attention and perceptron together.
    - `defect`: The largest relative difference along that run of the energy's rate from the mean squared speed.
    """

    losses: np.ndarray
    xs: dict[str, np.ndarray]
    labels: dict[str, np.ndarray]
    energies: np.ndarray
    defect: float

    def purity(self, name: str) -> np.ndarray:
        """The share of tokens that are of the group that has most of their cluster, (starts, times): 1 if no cluster
        mixes groups, and 1/2 in a single cluster of both."""
        labels = self.labels[name]
        same = labels[..., :, None] == labels[..., None, :]
        own = GROUPS[:, None] == GROUPS[None, :]
        # Of each token: how many of its cluster are of its own group, and how many there are in all.
        of_group, size = (same & own).sum(-1), same.sum(-1)
        return (np.maximum(of_group, size - of_group) / size).mean(-1)

    def clusters(self, name: str) -> np.ndarray:
        """How many, (starts, times)."""
        return (self.labels[name] == np.arange(N)).sum(-1)


def train_and_test(seed: int, starts: int, steps: int, say: Callable[[str], None]) -> Trained:
    """Train on fresh starts, then run starts that were not among them."""
    key = jr.fold_in(jr.key(seed), 2_601)
    # Amplitudes of zero: training starts from attention alone.
    first = Gradient(jr.normal(jr.fold_in(key, 0), (FEATURES, D)), jnp.zeros(FEATURES))
    say(f"training a perceptron of {FEATURES} features in {steps} steps")
    weights, losses = _train(first, jr.fold_in(key, 1), steps)
    x0 = jax.vmap(draw_groups)(jr.split(jr.fold_in(key, 2), starts))
    # Each start turned by a rotation of its own.
    turned = jnp.einsum("sij,snj->sni", _rotations(jr.fold_in(key, 3), starts), x0)
    blank = first.field()
    other = Gradient(first.features, jnp.asarray(_shuffled(weights.amplitudes, seed))).field()
    # By name: the perceptron, whether attention is softmax (0 or 1, traced), and the starts.
    asked = {"attention": (blank, 0.0, x0), "random": (other, 0.0, x0), "trained": (weights.field(), 0.0, x0),
             "trained, softmax": (weights.field(), 1.0, x0), "trained, turned": (weights.field(), 0.0, turned),
             "softmax": (blank, 1.0, x0)}  # fmt: skip
    xs, labels = {}, {}
    for name, (perceptron, softmax, start) in asked.items():
        say(f"test: {name}")
        xs[name], labels[name] = (np.asarray(part) for part in _run_all(perceptron, jnp.asarray(softmax), start))
    energies, defect = _along(weights, jnp.asarray(xs["trained"][0]))
    return Trained(losses, xs, labels, energies, defect)


def draw_groups(key: PRNGKeyArray) -> Float[Array, "n d"]:
    """Tokens of two groups, in turn, about two fixed directions."""
    # Two directions in one plane, at equal angles from the third axis.
    half = ANGLE / 2
    middles = jnp.asarray([[np.sin(half), 0.0, np.cos(half)], [-np.sin(half), 0.0, np.cos(half)]])
    return Sphere().retract(middles[GROUPS] + NOISE * jr.normal(key, (N, D)))


def _attention() -> AttentionField:
    """Unnormalised, in a unit of time in which it does not overflow; its energy is taken in that unit too."""
    return AttentionField(UnnormalisedAttention(BETA, offset=BETA))


def _train(first: Gradient, key: PRNGKeyArray, steps: int) -> tuple[Gradient, np.ndarray]:
    # (n, n): pairs of one group.
    own = jnp.asarray(GROUPS[:, None] == GROUPS[None, :])

    def loss(weights: Gradient, x0: Array) -> tuple[Array, Array]:
        def loss_of_start(x: Array) -> Array:
            run = simulate(
                # Constant steps: the loss is then a smooth function of the weights.
                _attention() + weights.field(), x, jnp.asarray([0.0, END]), solver=dfx.Bosh3(), dt0=0.25,
                stepsize_controller=dfx.ConstantStepSize(), adjoint=dfx.ForwardMode(), max_steps=40,
            )  # fmt: skip
            cosine = run.xs[-1] @ run.xs[-1].T
            # Tokens of a group together, those of different groups apart.
            return jnp.mean(jnp.where(own, -cosine, cosine))

        value = jnp.mean(jax.vmap(loss_of_start)(x0))
        return value, value

    optimiser = optax.adam(RATE)

    @eqx.filter_jit
    def step(weights: Gradient, state: Any, key: PRNGKeyArray) -> tuple[Gradient, Any, Array]:
        x0 = jax.vmap(draw_groups)(jr.split(key, BATCH))
        # Forward mode: 24 weights and amplitudes in, and no memory of the solver's steps.
        gradient, value = jax.jacfwd(loss, has_aux=True)(weights, x0)
        with jax.numpy_dtype_promotion("standard"):  # optax counts steps in integers
            change, state = optimiser.update(gradient, state)
        return optax.apply_updates(weights, change), state, value  # pyright: ignore[reportReturnType]

    weights, state, losses = first, optimiser.init(first), []
    # Fresh starts in each step: nothing can be learnt by heart.
    for k in range(steps):
        weights, state, value = step(weights, state, jr.fold_in(key, k))
        losses.append(float(value))
    return weights, np.array(losses)


def _shuffled(amplitudes: Array, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.asarray(amplitudes))


def _rotations(key: PRNGKeyArray, many: int) -> Float[Array, "many d d"]:
    """Random rotations, uniform up to a reflection."""
    # The Q of a Gaussian matrix.
    return jnp.linalg.qr(jr.normal(key, (many, D, D)))[0]


@eqx.filter_jit
def _run_all(perceptron: PerceptronField, softmax: Array, x0: Array) -> tuple[Array, Array]:
    # Both attentions are computed and one has weight 0, so that one program serves.
    field = (1 - softmax) * _attention() + softmax * AttentionField(SoftmaxAttention(BETA)) + perceptron

    def run(x: Array) -> tuple[Array, Array]:
        xs = simulate(field, x, jnp.asarray(TS), adjoint=dfx.ForwardMode()).xs
        return xs, jax.vmap(lambda x: cluster_labels(x, jnp.asarray(RADIUS)))(xs)

    return jax.vmap(run)(x0)


def _along(weights: Gradient, xs: Float[Array, "times n d"]) -> tuple[np.ndarray, float]:
    """The energy along a run, and how far its rate is from the mean squared speed, relative to the fastest."""
    field: AbstractField = _attention() + weights.field()
    primitive = lambda s: jax.nn.relu(s) ** 2 / 2

    def energy(x: Array) -> Array:
        # The unit of the energy is that of the field: both carry e^(-beta).
        pairs = jnp.exp(-jnp.asarray(BETA)) * interaction_energy(x, BETA)
        return pairs + perceptron_energy(x, weights.features, weights.amplitudes, primitive)

    def rates(x: Array) -> tuple[Array, Array, Array]:
        velocity = field(0.0, x)
        # The derivative of the energy along the velocity.
        value, rise = jax.jvp(energy, (x,), (velocity,))
        return value, rise, energy_dissipation(x, velocity)

    values, rises, speeds = (np.asarray(part) for part in jax.jit(jax.vmap(rates))(xs))
    return values, float(np.abs(rises - speeds).max() / speeds.max())


STARTS = 48  # of the groups, at most: each is run under six flows


@dataclass(frozen=True)
class Parameters:
    """What of the figure can be set."""

    texts: int = parameter(
        10, "the number of texts of ALBERT's tokens, at most that of starts", quick=4, least=2, most=48
    )
    tokens: int = parameter(32, "the number of tokens that a text is cut to", least=4, most=128)
    draws: int = parameter(6, "the number of random perceptrons", quick=3, least=2, most=64)
    steps: int = parameter(40, "the number of steps in which the perceptron is trained", quick=20, least=1, most=2000)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the figure shows.

    **Attributes:**

    - `starts`: How many starts of the two groups were tested.
    - `flows`: ALBERT's tokens under its attention, with and without its perceptron.
    - `learnt`: The perceptron that was trained to hold two groups apart.
    """

    p: Parameters
    starts: int
    flows: Flows
    learnt: Trained


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Both measurements, one after the other; they share nothing but the seed."""
    # More starts would take minutes and tell no more.
    starts = min(settings.starts, STARTS)
    flows = measure_flows(settings.seed, min(settings.starts, p.texts), p.tokens, p.draws, say)
    return Results(p, starts, flows, train_and_test(settings.seed, starts, p.steps, say))


# What is claimed of perceptrons that delay the collapse: that of a trained ALBERT, and one trained through the flow.
#
# Claims on ALBERT's tokens are of the flow and not of the network, whose layers are no small steps of it.


EARLY = 3.0
APART, MIXED = 0.9, 0.6  # purity of groups that are held apart, and of those that are not


def caption_of(flows: Flows, learnt: Trained) -> str:
    """What is seen, and what it does not show."""
    return f"{_of_flows(flows)} {_of_groups(learnt)}"


def _of_flows(flows: Flows) -> str:
    left = {name: float(clusters[:, -1].mean()) for name, clusters in flows.clusters.items()}
    learnt, chance = (_last(flows, name) for name in ("both", "random"))
    sign = "fewer, so that the delay is learnt" if _beyond(learnt, chance) else "no sign that the delay is learnt"
    sooner = {name: cosine[:, np.argmin(np.abs(TS_OF_GROUPS - EARLY))].mean() for name, cosine in flows.cosine.items()}
    both = left["both"] > left["attention"] and sooner["both"] > sooner["attention"]
    order = "the first gathering comes sooner, and the last collapse later." if both else "see the claims."
    fed, end = flows.cosine["both, shorter"][:, -1].mean(), TS_OF_GROUPS[-1]
    return (
        f"(a, b) Tokens of {len(flows.cosine['both'])} texts as particles on the sphere, under the attention of the "
        "ALBERT of this package and its trained feed-forward, in continuous time, a layer in time 1, the norms left "
        f"out: mean cosine of the pairs, and number of clusters (single linkage at radius {OF_GROUPS}), with standard "
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
    early = int(np.argmin(np.abs(TS_OF_GROUPS - EARLY)))
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
            measured=f"clusters at t = {TS_OF_GROUPS[-1]:g}: {told(left['both'])} with it, {told(left['attention'])} "
            f"by attention alone, {told(left['both, shuffled'])} with it on shuffled tokens; mean cosine stays below "
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
            f"({TS_OF_GROUPS[-1]:g} where never)",
            criterion="with it the mean cosine is lower, by more than two standard errors",
            holds=sooner.below(),
            kind="finding",
            value=float(sooner.mean),
            error=float(sooner.error),
        ),
        Claim(
            says="Random perceptrons of the same singular values leave fewer clusters than the trained one.",
            measured=f"clusters at t = {TS_OF_GROUPS[-1]:g}: trained {told(left['both'])}, "
            f"random {told(left['random'])}",
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


# The panels of the perceptron: ALBERT's tokens with and without it, and two groups that one was trained to hold.


BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION = OKABE_ITO[:6]
FLOWS = {
    "attention": ("attention alone", BLUE, "-"),
    "perceptron": ("perceptron alone", GREEN, ":"),
    "both": ("attention + trained perceptron", VERMILION, "-"),
    "both, shuffled": ("the same, tokens shuffled", ORANGE, "--"),
    "random": ("attention + random perceptron", PURPLE, "-."),
    "both, shorter": ("attention + trained, smaller r", SKY, ":"),
}
GROUPS_OF = {
    "attention": ("attention alone", BLUE, "-"),
    "random": ("random features", PURPLE, "-."),
    "trained": ("trained", VERMILION, "-"),
    "trained, softmax": ("trained, softmax", SKY, ":"),
    "trained, turned": ("trained, turned", GREEN, "--"),
}


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    flows, learnt = m.flows, m.learnt
    figure = Figure(figsize=(WIDTH, 5.6), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(3.0, 2.6))  # pyright: ignore
    cosine, clusters = top.subplots(1, 2)
    for name, (label, colour, line) in FLOWS.items():
        # The same flows and colours in both panels.
        for ax, runs in ((cosine, flows.cosine), (clusters, flows.clusters)):
            time_series(
                TS_OF_GROUPS, *flows.mean_of(name, runs[name])[:2], ax, label=label, colour=colour, linestyle=line,
                xlabel="t (layers)", ylabel="mean cosine" if ax is cosine else "number of clusters",
            )  # fmt: skip
    # Halving is a step of one.
    clusters.set_yscale("log", base=2)
    clusters.yaxis.set_major_formatter("{x:g}")
    clusters.axhline(1.0, color="0.6", lw=0.6, zorder=0)
    _one_legend(top, (cosine, clusters), 3)
    spheres, right = bottom.subfigures(1, 2, width_ratios=(1.75, 1.25))
    _draw_groups(spheres, learnt)
    purity = right.subplots()
    for name, (label, colour, line) in GROUPS_OF.items():
        time_series(
            TS_OF_GROUPS, *mean_and_error(learnt.purity(name)), purity, label=label, colour=colour, linestyle=line,
            ylabel="purity of the clusters",
        )  # fmt: skip
    purity.axvline(END, color="0.4", ls=":", lw=0.9, zorder=0)
    # From one cluster of both groups, 1/2, to groups that are held apart, 1.
    purity.set_ylim(0.45, 1.03)
    _one_legend(right, (purity,), 2)
    for letter, ax in (("a", cosine), ("b", clusters), ("d", purity)):
        ax.text(-0.03, 1.03, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _draw_groups(figure: SubFigure, learnt: Trained) -> None:
    shown = (("attention", 0, "start"), ("attention", -1, "attention alone"), ("trained", -1, "with perceptron"))
    axes = figure.subplots(1, len(shown))
    for ax, (name, at, words) in zip(axes, shown, strict=True):
        # One start, coloured by group, under two of the flows.
        sphere(learnt.xs[name][0, at], ax, labels=GROUPS)
        ax.set_title(f"{words}\nt = {TS_OF_GROUPS[at]:g}")
    axes[0].text(0.0, 1.05, "(c)", ha="right", va="bottom", transform=axes[0].transAxes, weight="bold")


def _one_legend(figure: SubFigure, axes: tuple[Axes, ...], columns: int) -> None:
    handles, names = axes[0].get_legend_handles_labels()
    for ax in axes:
        legend = ax.get_legend()
        if legend is not None:
            legend.remove()
    figure.legend(handles, names, loc="outside upper center", ncols=columns, handlelength=2.4, columnspacing=1.2)


# Attention with perceptrons as an experiment: what is measured, claimed, recorded and drawn.


def _experiment_run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    flows, learnt, texts = m.flows, m.learnt, len(m.flows.cosine["both"])
    return Outcome(
        caption_of(flows, learnt),
        (*claims_of_flows(flows), *claims_of_groups(learnt)),
        {"network": "the ALBERT of this package", "texts": texts, "tokens": m.p.tokens,
         "random perceptrons": m.p.draws, "length read by attention": flows.radius,
         "length read by the perceptron": flows.fed, "radius": OF_GROUPS,
         "n": N, "d": D, "beta": BETA, "value": "identity", "features": FEATURES, "angle": ANGLE, "noise": NOISE,
         "starts": m.starts, "trained until": END, "training steps": len(learnt.losses), "batch": BATCH,
         "solver": f"of ALBERT's tokens Bogacki-Shampine, rtol and atol {RTOL:g}, float32; of groups Tsit5, rtol 1e-6, "
         "atol 1e-8, float64, and to train Bogacki-Shampine in steps of 0.25"},
        _series(m),
        partial(draw, m),
        None,
        on=_measured(texts, m.p.tokens),
    )  # fmt: skip


def _measured(texts: int, tokens: int) -> Measured:
    """What the claims of ALBERT's tokens are of; those of groups are of particles alone."""
    # Of the package, whatever `Settings.albert` says: the experiment reads no other.
    network = subject_of(*model_of(Settings()))
    return Measured(network, Subject("texts", "passages of Wikipedia"), {"texts": texts, "tokens": tokens})


def _series(m: Results) -> dict:
    flows, learnt = m.flows, m.learnt
    series = {
        "t": TS_OF_GROUPS,
        "t of groups": TS_OF_GROUPS,
        "loss_by_step": learnt.losses,
        "energy of one run": learnt.energies,
    }
    for name in flows.cosine:
        for what, runs in (("cosine", flows.cosine[name]), ("clusters", flows.clusters[name])):
            series[f"{what}, {name}"], series[f"{what} error, {name}"] = flows.mean_of(name, runs)[:2]
    for name in learnt.labels:
        series[f"purity, {name}"], series[f"purity error, {name}"] = mean_and_error(learnt.purity(name))
    return series


FIGURE = declared("perceptron-delay", _experiment_run, parameters=Parameters)
