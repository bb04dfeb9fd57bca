"""What is measured of training: free energy along the layers, with and without it; and tokens along training.

The models are in `feedforward.py` (densities, a feed-forward layer) and `shared.py` (tokens, V and B of all layers).
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from ..framework.experiment import Settings
from ..framework.parameters import parameter
from . import feedforward, shared
from .feedforward import DEGREE, LAYERS, PENALTY, TS, Tasks, attention, draw_tasks


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
    told: shared.Told
    when: np.ndarray


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Train both, each task for itself, and run what came out."""
    of_tasks, of_shared = jr.split(jr.key(settings.seed))
    starts = min(settings.starts, MOST_TASKS)
    tasks = draw_tasks(of_tasks, starts)
    trained, losses = feedforward.train(tasks, p.steps, PENALTY, say)
    parameters = {"untrained": 0 * trained, "trained": trained, "layers reversed": trained[:, ::-1]}
    runs = {name: _run(parameters[name], tasks) for name in FLOWS}
    when = np.unique(np.round(np.linspace(0, 1, 11) ** 2 * p.shared_steps).astype(int))
    _, told = shared.train(of_shared, starts, p.shared_steps, tuple(when.tolist()), say)
    field, every = attention(), lambda function: jax.vmap(jax.vmap(function))
    values = lambda xs: field.basis.values(DEGREE, xs)
    points = field.basis.grid(DEGREE).points
    order = np.argsort(np.arctan2(points[:, 1], points[:, 0]))
    return Results(
        p,
        starts,
        {name: np.asarray(every(field.free_energy)(xs)) for name, xs in runs.items()},
        {name: np.asarray(jax.vmap(feedforward.task_loss)(xs[:, -1], tasks.wanted)) for name, xs in runs.items()},
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
    return jax.jit(jax.vmap(lambda one, start: feedforward.run(one, start, TS)))(parameters, tasks.starts)


def least_inside(energies: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Which rows have their least value inside, below both ends by a tenth of `unit`, (tasks,)."""
    inside = energies[:, 1:-1].min(axis=1)
    return np.maximum(inside - energies[:, 0], inside - energies[:, -1]) <= -0.1 * unit


def late_share(efforts: np.ndarray) -> np.ndarray:
    """The share of the squares of the parameters in the last quarter of the layers, (tasks,)."""
    return efforts[:, -(LAYERS // 4) :].sum(axis=1) / efforts.sum(axis=1)
