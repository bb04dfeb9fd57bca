"""What is measured of training: free energy along the layers, with and without it; and tokens along training.

The models are in `py` (densities, a feed-forward layer) and `py` (tokens, V and B of all layers).
"""

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
from matplotlib.figure import Figure

from ..._dynamics.simulate import simulate
from ..._model.attention import SoftmaxAttention, UnnormalisedAttention
from ..._model.density import MeanField
from ..._model.field import AbstractField, AttentionField
from ..._model.schedule import PiecewiseConstant
from ..._model.space import Euclidean, Sphere
from ..._observables import num_clusters
from ...plot import OKABE_ITO, style, time_series
from ...probe.measures.survey import clustered_error
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, percent
from ..framework.figure import declared
from ..framework.verdict import Measured, Source, Subject
from ..shared.ensemble import mean_and_error
from ..shared.layout import WIDTH


# A density that noisy attention gathers, and a feed-forward layer that is trained to bring it elsewhere.
#
# **Model.** On the circle $\partial_t\mu + \nabla\cdot(\mu\,(v[\mu] + u_\theta)) = T\,\Delta\mu$, with unnormalised
# attention v, and a feed-forward layer that is linear in its parameters: $u_\theta = \sum_k \theta_k(t) Y_k$ of the
# harmonics to degree `FEATURES`, one set of $\theta$ for each of `LAYERS` layers. Only these are trained, on
# $\tfrac12|m(\mu_{end}) - m^*|^2 + \tfrac\lambda2\int|\theta|^2 dt$: the first moments of the density at the end are to
# be those of a target of two bumps.
#
# **Reference.** Isobe, Inoue, Imaizumi, *Training-induced escape from token clustering in a mean-field formulation of
# transformers* (2605.07772), as its abstract describes the setting: noise, attention that is given, a layer linear in
# its parameters, and their squares as the penalty. The task, the circle and all numbers are ours.
# **Invariants.** Without a feed-forward layer the free energy falls, for unnormalised attention follows its gradient.


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


# Tokens under deep attention of one V and one B for all layers, which are trained to tell what tokens were.
#
# A token's label is the side of a plane on which it begins, $y_i = \mathrm{sign}\langle x_i(0), w\rangle$; it is read
# off where the token ends, by the shared_loss $\log(1 + e^{-g\,y_i\langle x_i(end), w\rangle})$ averaged over the
# tokens of a batch of prompts. With V = B = I all tokens end as one, and nothing can be read. Each task has its own
# plane w. Only V and B are trained, by Adam from the identity, each step on new prompts.


N, D, SHARED_BETA, SHARED_END, STEP = 16, 3, 1.0, 6.0, 0.25
GAIN, SHARED_RATE, BATCH, HELD_OUT = 4.0, 0.05, 8, 16
RADIUS = 0.1


class Weights(NamedTuple):
    """V and B of all layers, (d, d) each."""

    value: Float[Array, "*tasks d d"]
    query_key: Float[Array, "*tasks d d"]


class Told(NamedTuple):
    """Along training, of each task, on prompts that it was not trained on.

    **Attributes:**

    - `loss`, `accuracy`: The loss, and the share of tokens that end on the side where they began, (times, tasks).
    - `clusters`: Of a prompt, how many there are in the end, the mean over prompts, (times, tasks).
    - `cosine`: The mean cosine of all pairs of tokens in the end, (times, tasks).
    """

    shared_loss: Float[Array, "times tasks"]
    accuracy: Float[Array, "times tasks"]
    clusters: Float[Array, "times tasks"]
    cosine: Float[Array, "times tasks"]


def ends(weights: Weights, prompts: Float[Array, "prompts n d"]) -> Float[Array, "prompts n d"]:
    """Where the tokens of prompts end."""
    field = AttentionField(SoftmaxAttention(SHARED_BETA, query_key=weights.query_key), weights.value)
    steps = {"solver": dfx.Bosh3(), "stepsize_controller": dfx.ConstantStepSize(), "dt0": STEP}
    run = lambda x: simulate(field, x, jnp.array([0.0, SHARED_END]), max_steps=round(SHARED_END / STEP) + 2, **steps).x1
    return jax.vmap(run)(prompts)


def margins(prompts: Array, final: Array, plane: Float[Array, " d"]) -> Float[Array, "prompts n"]:
    """How far on its own side each token ends; negative on the other."""
    return jnp.sign(prompts @ plane) * (final @ plane)


def shared_loss(weights: Weights, prompts: Array, plane: Array) -> Array:
    """What training minimises."""
    return jnp.mean(jax.nn.softplus(-GAIN * margins(prompts, ends(weights, prompts), plane)))


def train_shared(
    key: PRNGKeyArray, tasks: int, steps: int, times: tuple[int, ...], say: Callable[[str], None] = lambda line: None
) -> tuple[Weights, Told]:
    """The weights of all tasks after training, and what is told at some of its steps."""
    keys = jr.split(key, 3)
    planes = Sphere().sample(keys[0], n=tasks, d=D)
    held_out = draw_shared(keys[1], tasks, HELD_OUT)
    identity = jnp.broadcast_to(jnp.eye(D), (tasks, D, D))
    weights = Weights(identity, identity)
    state, told = _shared_optimiser(steps).init(weights), []
    for step in range(steps + 1):
        if step % 50 == 0:
            say(f"training V and B of all layers: step {step} of {steps}")
        if step in times:
            told.append(_measure(weights, held_out, planes))
        if step < steps:
            prompts = draw_shared(jr.fold_in(keys[2], step), tasks, BATCH)
            weights, state = _shared_update(weights, state, prompts, planes, steps)
    return weights, jax.tree.map(lambda *found: jnp.stack(found), *told)


def draw_shared(key: PRNGKeyArray, tasks: int, prompts: int) -> Float[Array, "tasks prompts n d"]:
    """Prompts of uniform tokens."""
    return Sphere().sample(key, n=tasks * prompts * N, d=D).reshape(tasks, prompts, N, D)


def _shared_optimiser(steps: int) -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(SHARED_RATE, steps))


@eqx.filter_jit
def _shared_update(weights: Weights, state: Any, prompts: Array, planes: Array, steps: int) -> tuple[Weights, Any]:
    gradient = jax.vmap(jax.grad(shared_loss))(weights, prompts, planes)
    with jax.numpy_dtype_promotion("standard"):  # optax mixes its counters with floats
        updates, state = _shared_optimiser(steps).update(gradient, state)
    return optax.apply_updates(weights, updates), state  # pyright: ignore[reportReturnType]


@eqx.filter_jit
def _measure(weights: Weights, prompts: Array, planes: Array) -> Told:
    def one(weights: Weights, prompts: Array, plane: Array) -> Told:
        final = ends(weights, prompts)
        found = margins(prompts, final, plane)
        pairs = jnp.einsum("pid,pjd->pij", final, final)
        return Told(
            jnp.mean(jax.nn.softplus(-GAIN * found)),
            jnp.mean((found > 0).astype(final.dtype)),
            jnp.mean(jax.vmap(lambda x: num_clusters(x, RADIUS))(final).astype(final.dtype)),
            (jnp.sum(pairs) / len(pairs) - N) / (N * (N - 1)),
        )

    return jax.vmap(one)(weights, prompts, planes)


# A density is resolved if the highest coefficients are below this, relative to those of a single token.
RESOLVED = 1e-2
# Each is trained for itself, a hundred of them in some eight minutes.
MOST_TASKS = 100
FLOWS = ("untrained", "trained", "layers reversed")


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    steps: int = parameter(300, "the steps of Adam that train the feed-forward layer", least=2, most=10_000)
    shared_steps: int = parameter(200, "the steps of Adam that train V and B of all layers", least=2, most=10_000)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `energies`: By flow, the free energy at `TS`, (tasks, times).
    - `misses`: By flow, the loss of the task at the end, (tasks,).
    - `efforts`: The squares of the parameters by layer, (tasks, layers).
    - `tails`: The largest of the highest coefficients along the trained flow, (tasks,).
    - `losses`: Along training, (steps, tasks).
    - `shown`: By flow, the density on the grid of one task, (times, points), and its angles.
    - `told`: Along the training of V and B.
    - `when`: At which of its steps, (times,).
    """

    p: Parameters
    starts: int
    energies: dict[str, np.ndarray]
    misses: dict[str, np.ndarray]
    efforts: np.ndarray
    tails: np.ndarray
    losses: np.ndarray
    shown: dict[str, np.ndarray]
    angles: np.ndarray
    told: Told
    when: np.ndarray


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Train both, each task for itself, and run what came out."""
    of_tasks, of_shared = jr.split(jr.key(settings.seed))
    starts = min(settings.starts, MOST_TASKS)
    tasks = draw_tasks(of_tasks, starts)
    trained, losses = train(tasks, p.steps, PENALTY, say)
    parameters = {"untrained": 0 * trained, "trained": trained, "layers reversed": trained[:, ::-1]}
    runs = {name: _run(parameters[name], tasks) for name in FLOWS}
    when = np.unique(np.round(np.linspace(0, 1, 11) ** 2 * p.shared_steps).astype(int))
    _, told = train_shared(of_shared, starts, p.shared_steps, tuple(when.tolist()), say)
    field, every = attention(), lambda function: jax.vmap(jax.vmap(function))
    values = lambda xs: field.basis.values(DEGREE, xs)
    points = field.basis.grid(DEGREE).points
    order = np.argsort(np.arctan2(points[:, 1], points[:, 0]))
    return Results(
        p,
        starts,
        {name: np.asarray(every(field.free_energy)(xs)) for name, xs in runs.items()},
        {name: np.asarray(jax.vmap(task_loss)(xs[:, -1], tasks.wanted)) for name, xs in runs.items()},
        np.asarray(jnp.sum(trained**2, axis=(2, 3))),
        np.asarray(jnp.max(every(field.tail)(runs["trained"]), axis=1)),
        np.asarray(losses),
        {name: np.asarray(jax.vmap(values)(xs[0]))[:, order] for name, xs in runs.items()},
        np.arctan2(points[:, 1], points[:, 0])[order],
        jax.tree.map(np.asarray, told),
        when,
    )


def _run(parameters: jax.Array, tasks: Tasks) -> jax.Array:
    """(tasks, times, rows, 2)."""
    return jax.jit(jax.vmap(lambda one, start: run(one, start, TS)))(parameters, tasks.starts)


def least_inside(energies: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Which rows have their least value inside, below both ends by a tenth of `unit`, (tasks,)."""
    inside = energies[:, 1:-1].min(axis=1)
    return np.maximum(inside - energies[:, 0], inside - energies[:, -1]) <= -0.1 * unit


def late_share(efforts: np.ndarray) -> np.ndarray:
    """The share of the squares of the parameters in the last quarter of the layers, (tasks,)."""
    return efforts[:, -(LAYERS // 4) :].sum(axis=1) / efforts.sum(axis=1)


# What is claimed of training: densities that leave the clustered state in the end, and tokens that no longer collapse.
#
# Criteria were set before the first run of all tasks: the paper's abstract says that densities follow the clustering of
# attention at first and can leave it near the last layers.


DENSITIES = Subject("densities", "densities on the circle, by coefficients")
# Its abstract does not say what is learnt.
THEIR_TASK = Subject("task-2605.07772", "the task of the paper")
ESCAPE = Source("2605.07772, abstract: leaving the clustered regime near the final layers", DENSITIES, THEIR_TASK)


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    claims = _falls(m), _escape(m), _late(m), _task(m), _order(m), _effort(m), _collapse(m), _read(m)
    return over(f"{m.starts} tasks", claims)


def escapes(m: Results, flow: str = "trained") -> np.ndarray:
    """Which tasks have a density that is gathered more inside than at both ends, (tasks,)."""
    fall = m.energies["untrained"][:, 0] - m.energies["untrained"][:, -1]
    return least_inside(m.energies[flow], fall)


def _falls(m: Results) -> Claim:
    largest = float(np.diff(m.energies["untrained"], axis=1).max())
    return Claim(
        says="Without the feed-forward layer the free energy falls all the time.",
        measured=f"largest rise from one time to the next: {largest:.1e}",
        criterion="none above 1e-6",
        holds=largest < 1e-6,
        kind="identity",
        value=largest,
    )


def _escape(m: Results) -> Claim:
    share = clustered_error(escapes(m))
    return Claim(
        says="After training densities follow the clustering of attention at first, and leave it before the end.",
        measured=f"the free energy is lower within than at both ends in {percent(share.mean, share.error, 0)} of the "
        "tasks",
        criterion="lower by a tenth of its fall without training, in more than half of the tasks, by two errors",
        holds=share.above(0.5),
        kind="paper",
        value=float(share.mean),
        error=float(share.error),
        source=ESCAPE,
    )


def _late(m: Results) -> Claim:
    at = TS[m.energies["trained"].argmin(axis=1)][escapes(m)]
    middle = float(np.median(at)) if len(at) else float("nan")
    return Claim(
        says="They leave it near the last layers.",
        measured=f"the free energy is least at t = {middle:.1f} of {END:g}, the median of {len(at)} tasks that do",
        criterion="in the second half",
        holds=middle > END / 2,
        kind="paper",
        value=middle,
        source=ESCAPE,
    )


def _task(m: Results) -> Claim:
    solved = clustered_error(m.misses["trained"] < 0.1 * m.misses["untrained"])
    return Claim(
        says="A feed-forward layer that is linear in its parameters learns 95 % of the tasks or more.",
        measured=f"by {m.p.steps} steps of Adam the loss of the task falls below a tenth of that without it in "
        f"{percent(solved.mean, solved.error, 0)} of the tasks; median "
        f"{np.median(m.misses['trained']):.2g}, without it {np.median(m.misses['untrained']):.2g}; "
        f"{100 * np.mean(m.tails < RESOLVED):.0f} % of the densities are resolved all along",
        criterion="at least 95 %",
        holds=bool(solved.mean >= 0.95),
        kind="finding",
        value=float(solved.mean),
        error=float(solved.error),
    )


def _order(m: Results) -> Claim:
    shares = {flow: float(escapes(m, flow).mean()) for flow in ("trained", "layers reversed")}
    less = clustered_error(escapes(m).astype(float) - escapes(m, "layers reversed"))
    return Claim(
        says="With its layers in reverse order the trained feed-forward does so for fewer tasks.",
        measured=f"{100 * shares['trained']:.0f} % of the tasks, and {100 * shares['layers reversed']:.0f} % with the "
        f"layers reversed: {percent(less.mean, less.error, 0)} more",
        criterion="more, by two errors",
        holds=less.above(),
        kind="finding",
        value=float(less.mean),
        error=float(less.error),
    )


def _effort(m: Results) -> Claim:
    share = clustered_error(late_share(m.efforts))
    return Claim(
        says="The trained feed-forward acts more in the last quarter of the layers than in the others.",
        measured=f"{percent(share.mean, share.error, 0)} of the squares of the parameters are in the last quarter of "
        "the layers",
        criterion="more than a quarter, by two errors",
        holds=share.above(0.25),
        kind="finding",
        value=float(share.mean),
        error=float(share.error),
    )


def _collapse(m: Results) -> Claim:
    before, after = m.told.cosine[0], m.told.cosine[-1]
    share = clustered_error(before - after >= 0.3)
    return Claim(
        says="Training V and B, the same in all layers, drives tokens apart that attention gathers.",
        measured=f"the mean cosine of two tokens in the end falls from {before.mean():.2f} to {after.mean():.2f} by "
        f"{m.p.shared_steps} steps, by 0.3 and more in {percent(share.mean, share.error, 0)} of the tasks; clusters "
        f"{m.told.clusters[0].mean():.2f} and {m.told.clusters[-1].mean():.2f}",
        criterion="in at least 90 % of the tasks",
        holds=bool(share.mean >= 0.9),
        kind="finding",
        value=float(share.mean),
        error=float(share.error),
    )


def _read(m: Results) -> Claim:
    accuracy = clustered_error(m.told.accuracy[-1])
    return Claim(
        says="From where a token ends its label can then be read, of nine tokens in ten.",
        measured=f"{percent(accuracy.mean, accuracy.error)} of the tokens of new prompts end on their side, before "
        f"training {100 * m.told.accuracy[0].mean():.1f} %",
        criterion="at least 90 %",
        holds=bool(accuracy.mean >= 0.9),
        kind="finding",
        value=float(accuracy.mean),
        error=float(accuracy.error),
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    _, escape, late, task, *_, collapse, read = claims
    found = [
        "Trained densities gather first and leave"
        if escape.holds
        else "Most trained densities do not first gather and then leave",
        ", late. " if escape.holds and late.holds else ". ",
        "" if task.holds else "Not all tasks are learnt. ",
        "V and B learn to drive tokens apart" if collapse.holds else "Not all V and B learn to drive tokens apart",
        ", and labels are read." if read.holds else "; labels are not read to 90 %.",
    ]
    return (
        "Above: noisy unnormalised attention on the circle, and a feed-forward layer that is trained to bring "
        f"densities to moments of two bumps; one of {m.starts} tasks, without and with it. Below: (a) free energy "
        "along the layers, median and middle 80 % of the tasks: attention lowers it; (b) the squares of the "
        "parameters by layer; (c) tokens under one V and B for all layers, along training: the mean cosine in the "
        "end, and the share of tokens whose label can be read. " + "".join(found)
    )


# The picture of training: one density without and with its feed-forward layer, free energies, efforts, and tokens.


BLUE, ORANGE, GREEN = OKABE_ITO[:3]
COLOURS = {"untrained": BLUE, "trained": ORANGE, "layers reversed": GREEN}


@style()
def draw(m: Results) -> Figure:
    """Densities above, numbers below."""
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(2.0, 2.4))  # pyright: ignore
    highest = max(values.max() for values in m.shown.values())
    axes = top.subplots(1, 2, sharey=True)
    for ax, name in zip(axes, ("untrained", "trained"), strict=True):
        image = ax.pcolormesh(
            TS, m.angles, m.shown[name].T, vmin=0, vmax=highest, cmap="viridis", shading="nearest", rasterized=True
        )
        ax.set(xlabel="t (layers)", title="attention alone" if name == "untrained" else "with the trained layer")
    axes[0].set(ylabel="angle")
    axes[0].set_yticks([-np.pi, 0, np.pi], [r"$-\pi$", "0", r"$\pi$"])
    top.colorbar(image, ax=axes, label="density, uniform = 1", shrink=0.9)
    for letter, ax, fill in zip("abc", bottom.subplots(1, 3), (_energies, _efforts, _tokens), strict=True):
        fill(ax, m)
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _energies(ax: Axes, m: Results) -> None:
    for name, energies in m.energies.items():
        low, middle, high = np.quantile(energies, (0.1, 0.5, 0.9), axis=0)
        time_series(TS, middle, np.stack([low, high]), ax, label=name, colour=COLOURS[name], ylabel="free energy")
    ax.set(xlabel="t (layers)")


def _efforts(ax: Axes, m: Results) -> None:
    middles = (np.arange(LAYERS) + 0.5) * END / LAYERS
    low, middle, high = np.quantile(m.efforts, (0.1, 0.5, 0.9), axis=0)
    time_series(
        middles, middle, np.stack([low, high]), ax, colour=ORANGE, xlabel="t (layers)", ylabel="parameters squared"
    )
    ax.set_ylim(bottom=0)


def _tokens(ax: Axes, m: Results) -> None:
    time_series(m.when, *mean_and_error(m.told.cosine.T), ax, colour=BLUE, label="mean cosine")
    time_series(m.when, *mean_and_error(m.told.accuracy.T), ax, colour=ORANGE, label="labels read")
    ax.set(xlabel="training step", ylabel="cosine, share of labels", ylim=(-0.35, 1.05))


# Training against clustering as an experiment: what is measured, claimed, recorded and drawn.


def _experiment_run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"starts": m.starts, "beta": BETA, "temperature": TEMPERATURE, "degree": DEGREE, "end": END,
         "layers": LAYERS, "features": 2 * FEATURES + 1, "moments": 2 * MOMENTS, "penalty": PENALTY,
         "training steps": m.p.steps, "rate": RATE, "concentration of bumps": CONCENTRATION,
         "tokens": N, "d": D, "beta of tokens": SHARED_BETA, "end of tokens": SHARED_END, "gain": GAIN,
         "rate of tokens": SHARED_RATE, "training steps of tokens": m.p.shared_steps, "batch": BATCH,
         "prompts held out": HELD_OUT, "radius": RADIUS},
        _series(m),
        partial(draw, m),
        None,
        on=Measured(DENSITIES, Subject("waves", "starts of random waves, targets of two bumps"), {"starts": m.starts}),
    )  # fmt: skip


def _series(m: Results) -> dict:
    return {
        "t": TS,
        "training step of tokens": m.when,
        "parameters squared by layer": np.median(m.efforts, axis=0),
        "loss by step": m.losses.mean(axis=1),
        "clusters": m.told.clusters.mean(axis=1),
        "accuracy": m.told.accuracy.mean(axis=1),
        "mean cosine": m.told.cosine.mean(axis=1),
        "loss of tokens": m.told.loss.mean(axis=1),
    } | {f"free energy, {name}": np.median(energies, axis=0) for name, energies in m.energies.items()}


FIGURE = declared("training-escape", _experiment_run, parameters=Parameters)
