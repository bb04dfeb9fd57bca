"""Runs of the rescaled dynamics from many starts, and the shape that each comes to (2305.05465).

Fixed steps of Heun's method: near the edge between two cells attention is nearly discontinuous, and an adaptive solver
would take steps without end there. A step is shorter than 1 / |V|, so that a token that moves towards others never
passes them, and hulls stay nested.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..._dynamics.simulate import simulate
from ..._limits import LimitShape
from ..._limits.flat import Run, shape_in_space
from ..._limits.hypotheses import matrices_of
from ..._model.attention import SoftmaxAttention
from ..._model.field import RescaledField
from ..._model.space import Euclidean
from ...plot import OKABE_ITO, animate, snapshots, style
from ..framework.verdict import Subject
from .layout import WIDTH


STEP = 0.05
TOLERANCE = 1e-3
# What the theorems are of, and what is run: any tokens, softmax attention without layer normalisation.
RESCALED = Subject("rescaled", "softmax attention in R^d, rescaled by exp(-tV)")
BOX = Subject("box", "independent uniform tokens of a box")


@dataclass(frozen=True, eq=False)
class Emergence:
    """Many starts and their shapes.

    **Attributes:**

    - `ts`: (times,), the save times.
    - `xs`: (starts, times, n, d), the rescaled tokens.
    - `shapes`: What each start comes to.
    """

    ts: np.ndarray
    xs: np.ndarray
    shapes: list[LimitShape]

    @property
    def certified(self) -> np.ndarray:
        """Which starts are certified, (starts,)."""
        return np.array([shape.certified for shape in self.shapes])

    @property
    def residuals(self) -> np.ndarray:
        """The largest residual of a token at each time, (starts, times)."""
        return np.stack([shape.history for shape in self.shapes])

    @property
    def growth(self) -> float:
        """By how much a hull grows, at most, over all starts: the residual of the first clause."""
        return max(shape.clauses[0].residual for shape in self.shapes)

    @property
    def counts(self) -> np.ndarray:
        """How many points each shape has: corners of its polytope, or levels, (starts,)."""
        return np.array([len(shape.points) for shape in self.shapes])

    @property
    def at_points(self) -> np.ndarray:
        """Which share of the tokens are at one of them, (starts,)."""
        return np.array([np.mean(shape.labels >= 0) for shape in self.shapes])


def save_times(end: float) -> np.ndarray:
    """From 0 to `end`, a quarter apart."""
    return np.linspace(0.0, end, round(4 * end) + 1)


def draw_box(seed: int, starts: int, n: int, d: int, half: float) -> np.ndarray:
    """Tokens, (starts, n, d), uniform from -`half` to `half`; the first starts of many are the same as few."""
    return np.stack([np.random.default_rng([seed, k]).uniform(-half, half, (n, d)) for k in range(starts)])


def emerge(
    x0: np.ndarray, ts: np.ndarray, values: np.ndarray, forms: np.ndarray, beta: float, tolerance: float = TOLERANCE
) -> Emergence:
    """Run each start with its V and Q^T K, (starts, d, d) each, and judge its shape."""
    xs, speeds = _run_all(*map(jnp.asarray, (x0, ts, values, forms, float(beta))))
    xs, speeds = np.asarray(xs), np.asarray(speeds)
    shapes = []
    for x, speed, value, form in zip(xs, speeds, values, forms, strict=True):
        field = RescaledField(SoftmaxAttention(beta, query_key=form), value)
        matrices = matrices_of(field, float(ts[-1]), jnp.asarray(x[-1]))
        shapes.append(shape_in_space(field, matrices, Run(ts, x, speed, float(ts[-1])), tolerance))
    return Emergence(ts, xs, shapes)


@eqx.filter_jit
def _run_all(x0: Array, ts: Array, values: Array, forms: Array, beta: Array) -> tuple[Array, Array]:
    def run_start(x: Float[Array, "n d"], value: Array, form: Array) -> tuple[Array, Array]:
        field = RescaledField(SoftmaxAttention(beta, query_key=form), value)
        run = run_rescaled(field, x, ts)
        return run, field(ts[-1], run[-1])

    return jax.vmap(run_start)(x0, values, forms)


def run_rescaled(field: RescaledField, x: Float[Array, "n d"], ts: Float[Array, " times"]) -> Array:
    """The tokens of one start, (times, n, d), by fixed steps."""
    options: dict[str, Any] = dict(solver=dfx.Heun(), stepsize_controller=dfx.ConstantStepSize(), dt0=STEP)
    return simulate(field, x, ts, adjoint=dfx.ForwardMode(), max_steps=100_000, **options).xs


@style()
def figure_of_shapes(
    ts: np.ndarray,
    rows: Mapping[str, tuple[np.ndarray, LimitShape]],
    times: Sequence[float],
    below: Sequence[Callable[[Axes], Any]],
    view: tuple[float, float] = (22.0, -55.0),
) -> Figure:
    """Tokens of one start at `times` over their limit shape, a row for each, and a panel for each of `below`."""
    high, low = 1.75, 2.35
    figure = Figure(figsize=(WIDTH, high * len(rows) + low), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(high * len(rows), low))  # pyright: ignore
    grid = top.subplots(len(rows), len(times), squeeze=False)
    for row, (axes, (name, (xs, shape))) in enumerate(zip(grid, rows.items(), strict=True)):
        snapshots(xs, ts, times, axes, space=Euclidean(), limit=shape, labels=shape.labels, view=view, size=0.9)
        axes[0].text(-0.06, 0.5, name, rotation=90, ha="right", va="center", transform=axes[0].transAxes)
        # The times stand above the first row alone.
        for ax in axes if row else ():
            ax.set_title("")
    for letter, ax, fill in zip("abcd", bottom.subplots(1, len(below), squeeze=False)[0], below, strict=False):
        fill(ax)
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def residuals_panel(runs: Mapping[str, Emergence]) -> Callable[[Axes], None]:
    """The largest residual of a token against time: median over the starts, and the middle 80 % of them."""

    def fill(ax: Axes) -> None:
        for (name, run), colour in zip(runs.items(), OKABE_ITO, strict=False):
            low, middle, high = np.quantile(np.maximum(run.residuals, 1e-16), (0.1, 0.5, 0.9), axis=0)
            ax.semilogy(run.ts, middle, color=colour, label=name)
            ax.fill_between(run.ts, low, high, color=colour, alpha=0.2, lw=0)
        ax.axhline(TOLERANCE, color="0.4", ls="--", lw=0.8)
        ax.set(xlabel="t", ylabel="farthest token from the shape", ylim=(1e-8, 2))
        ax.legend(loc="upper right")

    return fill


def film_of(run: Emergence, start: int) -> Callable[[Path], Any]:
    """What writes the film of one start, over its shape."""
    shape = run.shapes[start]
    return partial(_film, run.xs[start], run.ts, shape)


def _film(xs: np.ndarray, ts: np.ndarray, shape: LimitShape, path: Path) -> None:
    turn = 60.0 if xs.shape[2] == 3 else 0.0
    animate(xs, path, ts=ts, frames=min(41, len(ts)), fps=12, space=Euclidean(), limit=shape, labels=shape.labels,
            turn=turn)  # fmt: skip
