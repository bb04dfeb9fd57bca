"""A small perceptron trained by gradient through the flow, to keep two groups of tokens apart.

Its weights are the gradient of an energy (2601.21366, Section 2), so that attention and perceptron together are a
gradient flow, whose energy rises at the mean squared speed of the tokens: the identity that ties the runs to theory.
The loss is the mean cosine of tokens of different groups less that of tokens of the same group, at the end of a short
run. It is tested on fresh starts and four times as long; turned starts tell places that were learnt from groups that
were.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from ..._attention import SoftmaxAttention, UnnormalisedAttention
from ..._field import AbstractField, AttentionField, PerceptronField
from ..._observables import cluster_labels, energy_dissipation, interaction_energy, perceptron_energy
from ..._simulate import simulate
from ..._space import Sphere


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
