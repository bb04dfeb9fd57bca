"""Runs of the rescaled dynamics from many starts, and the shape that each start comes to (2305.05465).

The time steps are fixed steps of Heun's method: near the edge between two cells attention is nearly discontinuous, and
an adaptive solver would shorten its steps there without end. A step is shorter than 1 / |V|, so that a token that moves
towards others never passes them, and the convex hulls stay nested.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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
from ...plot import OKABE_ITO, animate
from ..framework.experiment import Experiment
from ..framework.figure import ANY, Measured, Settings, Source, Subject, figure, parameter
from .layout import figure_of_rows


STEP = 0.05
TOLERANCE = 1e-3
# The theorems are of any tokens under softmax attention without layer normalisation.
RESCALED = Subject("rescaled", "softmax attention in R^d, rescaled by exp(-tV)")
BOX = Subject("box", "independent uniform tokens of a box")


def theorem(place: str) -> Source:
    """A theorem of 2305.05465, which holds for any tokens."""
    return Source(f"2305.05465, {place}, of any tokens", ANY, ANY)


@dataclass(frozen=True)
class RescaledParameters:
    """The parameters that the figures of rescaled tokens share; each figure sets its own end."""

    n: int = parameter(20, "the number of tokens", least=3, most=200)
    beta: float = parameter(1.0, "the inverse temperature", above=0, most=50)
    end: float = parameter(12.0, "the time at which the shapes are judged", least=4, most=40)

    @property
    def ts(self) -> np.ndarray:
        """The save times: from 0 to `end` in steps of a quarter."""
        return np.linspace(0.0, self.end, round(4 * self.end) + 1)


class Emergence(NamedTuple):
    ts: np.ndarray  # the save times, (times,)
    xs: np.ndarray  # the rescaled tokens, (starts, times, n, d)
    shapes: list[LimitShape]  # the shape that each start comes to

    @property
    def certified(self) -> np.ndarray:
        """True for the starts whose shape is certified, (starts,)."""
        return np.array([shape.certified for shape in self.shapes])

    @property
    def applies(self) -> int:
        """The number of starts that meet the hypotheses of a theorem."""
        return sum(shape.applies for shape in self.shapes)

    @property
    def residuals(self) -> np.ndarray:
        """The largest residual of a token at each time, (starts, times)."""
        return np.stack([shape.history for shape in self.shapes])

    @property
    def growth(self) -> float:
        """The largest growth of a hull over all starts: the residual of the first clause."""
        return max(shape.clauses[0].residual for shape in self.shapes)

    @property
    def counts(self) -> np.ndarray:
        """The number of points of each shape: the corners of its polytope, or its levels, (starts,)."""
        return np.array([len(shape.points) for shape in self.shapes])

    @property
    def at_points(self) -> np.ndarray:
        """The share of the tokens of each start that are at one of the points of its shape, (starts,)."""
        return np.array([np.mean(shape.labels >= 0) for shape in self.shapes])


def draw_box(seed: int, starts: int, n: int, d: int, half: float) -> np.ndarray:
    """Uniform tokens from -`half` to `half`, (starts, n, d); a start does not depend on the number of starts."""
    return np.stack([np.random.default_rng([seed, k]).uniform(-half, half, (n, d)) for k in range(starts)])


def draw_pairs(draw: Callable[[int, int], tuple[np.ndarray, np.ndarray]], settings: Settings) -> list[np.ndarray]:
    """V and Q^T K of all starts, (starts, d, d) each; `draw` takes the seed and the number of a start."""
    pairs = [draw(settings.seed, k) for k in range(settings.starts)]
    return [np.stack(matrices) for matrices in zip(*pairs, strict=True)]


def emerge(x0: np.ndarray, ts: np.ndarray, values: np.ndarray, forms: np.ndarray, beta: float) -> Emergence:
    """Run each start with its V and Q^T K, (starts, d, d) each, and judge its shape."""
    xs, speeds = map(np.asarray, _run_all(*map(jnp.asarray, (x0, ts, values, forms, float(beta)))))
    shapes = []
    for x, speed, value, form in zip(xs, speeds, values, forms, strict=True):
        field = RescaledField(SoftmaxAttention(beta, query_key=form), value)
        matrices = matrices_of(field, float(ts[-1]), jnp.asarray(x[-1]))
        shapes.append(shape_in_space(matrices, Run(ts, x, speed, float(ts[-1])), TOLERANCE))
    return Emergence(ts, xs, shapes)


@eqx.filter_jit
def _run_all(x0: Array, ts: Array, values: Array, forms: Array, beta: Array) -> tuple[Array, Array]:
    options: dict[str, Any] = dict(solver=dfx.Heun(), stepsize_controller=dfx.ConstantStepSize(), dt0=STEP)

    def run_start(x: Float[Array, "n d"], value: Array, form: Array) -> tuple[Array, Array]:
        field = RescaledField(SoftmaxAttention(beta, query_key=form), value)
        run = simulate(field, x, ts, adjoint=dfx.ForwardMode(), max_steps=100_000, **options).xs
        return run, field(ts[-1], run[-1])

    return jax.vmap(run_start)(x0, values, forms)


def rescaled_figure(module: str, *, d: int | tuple[int, ...], recorded: Mapping[str, Any], **more: Any) -> Experiment:
    """The experiment of a figure of rescaled tokens in d dimensions, whose measurement has `p` and `starts`; `recorded`
    are constants for the record, and all else goes to `framework.figure.figure`."""
    constants = {"d": d, "solver": f"Heun, steps of {STEP:g}", "tolerance": TOLERANCE, **recorded}
    return figure(
        module,
        on=lambda m: Measured(
            RESCALED, BOX, {"tokens": m.p.n, "d": d, "beta": m.p.beta, "t": m.p.end, "starts": m.starts}
        ),
        recorded=lambda m: constants | {"starts": m.starts}, **more,
    )  # fmt: skip


def figure_of_shapes(
    ts: np.ndarray,
    rows: Mapping[str, tuple[np.ndarray, LimitShape]],
    times: Sequence[float],
    below: Sequence[Callable[[Axes], Any]],
    view: tuple[float, float] = (22.0, -55.0),
) -> Figure:
    """Tokens of one start at `times` over their limit shape, a row for each start, and a panel for each of `below`."""
    options = lambda shape: dict(space=Euclidean(), limit=shape, labels=shape.labels, view=view, size=0.9)
    drawn = {label: (xs, options(shape)) for label, (xs, shape) in rows.items()}
    return figure_of_rows(ts, drawn, times, below, high=1.75, aside=-0.06)


def residuals_panel(runs: Mapping[str, Emergence]) -> Callable[[Axes], None]:
    """A panel of the largest residual of a token against time: the median and the middle 80 % of the starts."""

    def fill(ax: Axes) -> None:
        for (name, run), colour in zip(runs.items(), OKABE_ITO, strict=False):
            low, middle, high = np.quantile(np.maximum(run.residuals, 1e-16), (0.1, 0.5, 0.9), axis=0)
            ax.semilogy(run.ts, middle, color=colour, label=name)
            ax.fill_between(run.ts, low, high, color=colour, alpha=0.2, lw=0)
        ax.axhline(TOLERANCE, color="0.4", ls="--", lw=0.8)
        ax.set(xlabel="t", ylabel="farthest token from the shape", ylim=(1e-8, 2))
        ax.legend(loc="upper right")

    return fill


def film_of(run: Emergence) -> Callable[[Path], Any]:
    """A function that writes the film of the first start, over its shape."""
    xs, shape = run.xs[0], run.shapes[0]
    turn = 60.0 if xs.shape[2] == 3 else 0.0
    return lambda path: animate(
        xs, path, ts=run.ts, frames=min(41, len(run.ts)), fps=12, space=Euclidean(), limit=shape, labels=shape.labels,
        turn=turn,
    )  # fmt: skip
