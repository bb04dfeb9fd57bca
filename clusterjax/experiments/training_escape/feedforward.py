r"""A density that noisy attention gathers, and a feed-forward layer that is trained to bring it elsewhere.

**Model.** On the circle $\partial_t\mu + \nabla\cdot(\mu\,(v[\mu] + u_\theta)) = T\,\Delta\mu$, with unnormalised
attention v, and a feed-forward layer that is linear in its parameters: $u_\theta = \sum_k \theta_k(t) Y_k$ of the
harmonics to degree `FEATURES`, one set of $\theta$ for each of `LAYERS` layers. Only these are trained, on
$\tfrac12|m(\mu_{end}) - m^*|^2 + \tfrac\lambda2\int|\theta|^2 dt$: the first moments of the density at the end are to
be those of a target of two bumps.

**Reference.** Isobe, Inoue, Imaizumi, *Training-induced escape from token clustering in a mean-field formulation of
transformers* (2605.07772), as its abstract describes the setting: noise, attention that is given, a layer linear in its
parameters, and their squares as the penalty. The task, the circle and all numbers are ours.
**Invariants.** Without a feed-forward layer the free energy falls, for unnormalised attention follows its gradient.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from ..._attention import UnnormalisedAttention
from ..._field import AbstractField, MeanField
from ..._schedule import PiecewiseConstant
from ..._simulate import simulate
from ..._space import Euclidean


BETA, TEMPERATURE, DEGREE = 1.0, 0.2, 14
END, LAYERS, FEATURES, MOMENTS = 12.0, 16, 3, 3
# Adaptive, since only such steps end where a layer does. While it is trained a layer may steepen densities more than
# their degree resolves; whether those in the end are resolved is looked at.
CONTROLLER, MOST_STEPS, TOLERANCE = dfx.PIDController(rtol=1e-4, atol=1e-6), 1024, 0.9
PENALTY, RATE = 0.01, 0.03
# A target: concentration of its bumps, their least distance in radians, and the least share of one.
CONCENTRATION, APART, SHARE = 4.0, 2 * np.pi / 3, 0.35
TS = np.linspace(0.0, END, 49)


class FeedForward(AbstractField):
    """What a drift along the circle, a sum of harmonics, does to the coefficients of a density.

    **Arguments:**

    - `parameters`: (FEATURES + 1, 2), by degree, or a schedule of them.
    - `mean`: The field of attention, whose harmonics are used.
    """

    parameters: PiecewiseConstant
    mean: MeanField

    @property
    def space(self) -> Euclidean:
        return Euclidean()

    def check(self, n: int, d: int) -> None:
        self.mean.check(n, d)

    def __call__(self, t: Any, x: Array, args: Any = None) -> Array:
        basis, degree = self.mean.basis, self.mean.degree
        points = jnp.asarray(basis.grid(degree).points, x.dtype)
        drift = jnp.einsum("mkc,kc->m", basis.harmonics(FEATURES, points), self.parameters(t))
        return basis.divergence(degree, (basis.values(degree, x) * drift)[None])


class Tasks(NamedTuple):
    """Densities at the start, and the moments at the end, (tasks, MOMENTS, 2)."""

    starts: Float[Array, "tasks rows 2"]
    wanted: Float[Array, "tasks moments 2"]


def attention() -> MeanField:
    """Noisy attention, without a feed-forward layer."""
    return MeanField(UnnormalisedAttention(BETA), d=2, degree=DEGREE, temperature=TEMPERATURE, tolerance=TOLERANCE)


def draw_tasks(key: PRNGKeyArray, count: int) -> Tasks:
    """Starts that are uniform but for waves of some tenths, and targets of two bumps."""
    field = attention()

    def one(key: PRNGKeyArray) -> tuple[Array, Array]:
        of_start, of_first, of_second, of_share = jr.split(key, 4)
        waves = 0.15 * jr.normal(of_start, (2, 2))
        start = jnp.zeros((DEGREE + 1, 2)).at[0, 0].set(1.0).at[1:3].set(waves)
        first = jr.uniform(of_first, maxval=2 * np.pi)
        second = first + jr.uniform(of_second, minval=APART, maxval=2 * np.pi - APART)
        share = jr.uniform(of_share, minval=SHARE, maxval=1 - SHARE)
        bump = lambda x, at: jnp.exp(CONCENTRATION * (x[:, 0] * jnp.cos(at) + x[:, 1] * jnp.sin(at)))
        target = field.from_density(lambda x: share * bump(x, first) + (1 - share) * bump(x, second))
        return start, target[1 : MOMENTS + 1]

    return Tasks(*jax.vmap(one)(jr.split(key, count)))


def run(
    parameters: Float[Array, "layers features 2"], start: Array, ts: Any = (0.0, END)
) -> Float[Array, "times rows 2"]:
    """The density along the layers, NaN from where it is lost."""
    field = attention()
    edges = jnp.asarray(np.arange(LAYERS) * (END / LAYERS))
    flow = field + FeedForward(PiecewiseConstant(edges, parameters), field)
    steps = {"stepsize_controller": CONTROLLER, "max_steps": MOST_STEPS}
    return simulate(flow, start, jnp.asarray(ts), throw=False, **steps).xs


def task_loss(density: Array, wanted: Array) -> Array:
    """Half the square of the distance of the moments."""
    return jnp.sum((density[1 : MOMENTS + 1] - wanted) ** 2) / 2


def loss(parameters: Array, start: Array, wanted: Array, penalty: float) -> Array:
    """What training minimises."""
    return task_loss(run(parameters, start)[-1], wanted) + penalty / 2 * jnp.sum(parameters**2) * (END / LAYERS)


def train(
    tasks: Tasks, steps: int, penalty: float, say: Callable[[str], None] = lambda line: None
) -> tuple[Float[Array, "tasks layers features 2"], Float[Array, "steps tasks"]]:
    """The parameters of each task by Adam from zero, and the losses along training."""
    parameters = jnp.zeros((len(tasks.starts), LAYERS, FEATURES + 1, 2))
    state, losses = _optimiser(steps).init(parameters), []
    for step in range(steps):
        if step % 50 == 0:
            say(f"training the feed-forward layer: step {step} of {steps}")
        parameters, state, before = _update(parameters, state, tasks, penalty, steps)
        losses.append(before)
    return parameters, jnp.stack(losses)


def _optimiser(steps: int) -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(RATE, steps))


@eqx.filter_jit
def _update(parameters: Array, state: Any, tasks: Tasks, penalty: float, steps: int) -> tuple[Array, Any, Array]:
    losses, gradient = jax.vmap(jax.value_and_grad(loss), (0, 0, 0, None))(parameters, *tasks, penalty)
    # Where a density is lost the step before goes on by its momentum.
    gradient = jnp.where(jnp.isfinite(gradient), gradient, 0.0)
    with jax.numpy_dtype_promotion("standard"):  # optax mixes its counters with floats
        updates, state = _optimiser(steps).update(gradient, state)
    return optax.apply_updates(parameters, updates), state, losses  # pyright: ignore[reportReturnType]
