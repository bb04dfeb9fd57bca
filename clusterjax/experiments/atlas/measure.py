r"""What is measured of the atlas: where tokens of each cell end, what certifies it, and when they are there.

A cell is a kind of V, a beta and a mask. All starts of a cell run as one batch, by the implicit solver, to
$1000(1 + e^{2\beta})$, a thousand times of two tokens of V = -I; those of V = I to t = 100 alone, from where `coarsen`
follows what is not one point yet, however long that takes. `limit_shape` says which shape the tokens have. What
certifies it is a theorem, where one applies, a rest that attracts, see `rest`, or a closed curve that attracts, see
`curve`; else the cell says that nothing does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._coarsen import coarsen
from ..._field.base import AbstractField
from ..._limits import LimitShape, limit_shape
from ..._limits.result import ONE, SEVERAL
from ..._limits.sphere import components
from ..._mask import MatrixMask
from ..._simulate import simulate
from ..._solver import Rodas5P
from ..._trajectory import Trajectory
from ..framework.ensemble import Ensemble, draw_starts, exact_first_token
from ..framework.experiment import Settings
from ..framework.parameters import parameter
from .curve import on_attracting_curve
from .heads import Heads, heads_of
from .rest import rest_of
from .spectra import (
    BETAS,
    CAUSAL,
    IDENTITY,
    MASKS,
    ROWS,
    D,
    judged_field,
    permitted,
    symmetries,
    turning_field,
    values_of,
)


TOLERANCE = 1e-3  # of a shape, and of the distance from a rest
SEEN, END = 100.0, 1e300  # of V = I: the end of the run, and of `coarsen`
RELAXED = 1000  # the end of other runs, in times of two tokens of V = -I
EARLY, RADIUS = 15.0, 0.1  # when metastable clusters are counted, and their radius
NEAR = 0.05  # tokens that stay so near to their last places have come to them
BEFORE, AFTER = 12, 48  # save times up to `EARLY` and from there
RTOL, ATOL = 1e-5, 1e-7
MOST_STEPS, MOST_MERGING = 3000, 3000
QUICK_STARTS = 16
CLUSTERS, APART = "clusters", "all apart"
# What certifies a limit.
THEOREM, REST, CURVE, NOTHING = "theorem", "stable rest", "attracting curve", "nothing"


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(8, "the number of tokens", quick=6, least=4, most=16)
    second: float = parameter(0.5, "the second eigenvalue of V where the leading one, 1, is simple", least=-1, most=0.9)
    turn: float = parameter(
        1.0, "the imaginary part of the complex pair of V, its real part being 1", least=0.1, most=9
    )

    def ts(self, row: str, beta: float) -> np.ndarray:
        """The save times of a cell; number `BEFORE` is `EARLY`."""
        end = SEEN if row == IDENTITY else RELAXED * (1 + np.exp(2 * beta))
        return np.concatenate([[0.0], np.geomspace(0.5, EARLY, BEFORE), np.geomspace(EARLY, end, AFTER)[1:]])


@dataclass(frozen=True, eq=False)
class Cell:
    """The starts of a kind of V, a beta and a mask.

    **Attributes:**

    - `kinds`: What shape each start ends in, (starts,).
    - `by`: What certifies it: "theorem", "stable rest", "attracting curve" or "nothing", (starts,).
    - `points`: At how many points its tokens are, (starts,).
    - `log_times`: log10 of the time at which they have come to their last places, (starts,).
    - `early`: How many clusters there are at t = 15, (starts,).
    - `rates`: The slowest rate at which they come back, along no symmetry, (starts,).
    - `ends`: The tokens in the end, in the frame that turns with V, (starts, n, d).
    - `off`: Under a causal mask how far a first token is from e^(tV) x_1, at most; 0 under a full one.
    - `theorems`: Which theorems apply to a start or more.
    - `followed`: How many starts `coarsen` followed, and how many it could not.
    - `reached`: The time at which each start is judged, (starts,).
    """

    kinds: np.ndarray
    by: np.ndarray
    points: np.ndarray
    log_times: np.ndarray
    early: np.ndarray
    rates: np.ndarray
    ends: np.ndarray
    off: float
    theorems: tuple[str, ...]
    followed: tuple[int, int]
    reached: np.ndarray

    @property
    def certified(self) -> np.ndarray:
        """Which starts are, (starts,)."""
        return self.by != NOTHING

    def share(self, kind: str, *, certified: bool = True) -> float:
        """Of the starts that end in a kind; certified or not."""
        return float(np.mean((self.kinds == kind) & (self.certified == certified)))


Key = tuple[str, float, str]


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows: cells by V, beta and mask; tokens at the start, and the heads of networks."""

    p: Parameters
    starts: int
    x0: np.ndarray
    cells: dict[Key, Cell]
    heads: tuple[Heads, ...]
    absent: str

    def of(self, row: str, mask: str) -> dict[float, Cell]:
        """The cells of a V and a mask, by beta."""
        return {beta: self.cells[row, beta, mask] for beta in BETAS}


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Run and judge the starts of all cells, and place the heads of networks."""
    starts = min(settings.starts, QUICK_STARTS) if settings.quick else settings.starts
    x0 = draw_starts(settings.seed, starts, p.n, D)
    cells = {}
    for row in ROWS:
        say(f"simulating V = {row}, {len(BETAS) * len(MASKS)} cells")
        for mask in MASKS:
            for beta in BETAS:
                cells[row, beta, mask] = cell_of(x0, values_of(p.second, p.turn)[row], row, beta, mask, p.ts(row, beta))
    heads, absent = heads_of(settings, say)
    return Results(p, starts, np.asarray(x0), cells, heads, absent)


def cell_of(x0: Array, value: np.ndarray, row: str, beta: float, mask: str, ts: np.ndarray) -> Cell:
    """Run and judge all starts of one cell."""
    given = (jnp.asarray(beta), jnp.asarray(value), jnp.asarray(permitted(mask, x0.shape[1])))
    runs = run_all(x0, jnp.asarray(ts), *given)
    field = judged_field(row, value, beta, mask)
    # One start after the other on the host: what is judged is NumPy.
    host = jax.tree.map(np.asarray, runs)
    each = [_judged(jax.tree.map(lambda leaf, i=i: leaf[i], host), field) for i in range(len(x0))]
    waiting = [i for i, one in enumerate(each) if row == IDENTITY and not one.shape.certified]
    longer = {i: _follow(each[i].run, field) for i in waiting}
    each = [longer.get(i) or one for i, one in enumerate(each)]
    ends = np.stack([one.run.x1 for one in each])
    velocities, jacobians = (np.asarray(one) for one in derivatives(jnp.asarray(ends), *given))
    rests = [rest_of(*one, symmetries(value)) for one in zip(ends, velocities, jacobians, strict=True)]
    reached = np.array([float(one.run.t1) for one in each])
    stable = [rest.stable(TOLERANCE, float(t)) for rest, t in zip(rests, reached, strict=True)]
    counts = [int(components(x, TOLERANCE).max()) + 1 for x in ends]
    by = [certificate(one.shape, yes) for one, yes in zip(each, stable, strict=True)]
    for i, one in enumerate(each):
        if by[i] == NOTHING and one.shape.fits and one.shape.kind == SEVERAL:
            by[i] = CURVE if _on_curve(ends[i], field, value, given, float(reached[i])) else NOTHING
    return Cell(
        kinds=np.array([kind_of(one.shape, count) for one, count in zip(each, counts, strict=True)]),
        by=np.array(by),
        points=np.array(counts),
        log_times=np.log10([one.time for one in each]),
        early=np.array([components(one.run.xs[BEFORE], RADIUS).max() + 1 for one in each]),
        rates=np.array([rest.rate for rest in rests]),
        ends=ends,
        off=_first_off(runs, value) if mask == CAUSAL else 0.0,
        theorems=tuple(sorted({one.shape.theorem for one in each} - {""})),
        followed=(len(waiting), sum(one is None for one in longer.values())),
        reached=reached,
    )


def _on_curve(x: np.ndarray, field: AbstractField, value: np.ndarray, given: tuple[Array, ...], t: float) -> bool:
    """Whether tokens of `field` are on a closed curve that attracts, of one kind of shape."""

    def derive(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        velocity, jacobian = derivatives(jnp.asarray(x[None]), *given)
        return np.asarray(velocity[0]), np.asarray(jacobian[0])

    def kind_at(x: np.ndarray) -> str:
        shape = limit_shape(jnp.asarray(x), field, tolerance=TOLERANCE, follow=False)
        return kind_of(shape, int(components(x, TOLERANCE).max()) + 1)

    return on_attracting_curve(x, derive, value, kind_at, t, TOLERANCE)


class _Start(NamedTuple):
    """The run of a start, the shape of its end, and when its tokens have come there."""

    run: Any
    shape: LimitShape
    time: float


def _judged(run: Any, field: AbstractField) -> _Start:
    # What is not one point yet is followed below, to the last merger.
    return _Start(run, limit_shape(run, field, tolerance=TOLERANCE, follow=False), settled(*_reached(run)))


@eqx.filter_jit
def run_all(x0: Array, ts: Array, beta: Array, value: Array, allowed: Array) -> Trajectory:
    """The runs of all starts, in the frame that turns with V; one program for all cells."""

    def run(x: Array) -> Trajectory:
        # Without a bound of growth: when a run leaves an unstable rest does not matter, and where it ends is judged.
        return simulate(
            turning_field(value, beta, MatrixMask(allowed)), x, ts, solver=Rodas5P(max_growth=None),
            stepsize_controller=dfx.PIDController(rtol=RTOL, atol=ATOL), adjoint=dfx.ForwardMode(),
            max_steps=MOST_STEPS, throw=False,
        )  # fmt: skip

    return jax.vmap(run)(x0)


@eqx.filter_jit
def derivatives(xs: Array, beta: Array, value: Array, allowed: Array) -> tuple[Array, Array]:
    """Of each of many clouds the velocity (starts, n, d) and its derivative (starts, n, d, n, d)."""
    field = turning_field(value, beta, MatrixMask(allowed))
    velocity = lambda x: field(0.0, x)
    return jax.vmap(velocity)(xs), jax.vmap(jax.jacfwd(velocity))(xs)


def _first_off(runs: Trajectory, value: np.ndarray) -> float:
    """How far a first token is from where it must be, at any time that its run reached."""
    # In the frame that turns with V its symmetric part is left.
    still = jnp.broadcast_to(jnp.asarray((value + value.T) / 2), (len(runs.xs), D, D))
    ensemble = Ensemble(runs.ts[0], runs.xs, still, runs.stats["num_steps"])
    gaps = np.linalg.norm(np.asarray(runs.xs)[:, :, 0] - exact_first_token(ensemble), axis=-1)
    return float(np.nanmax(gaps))


def _reached(run: Any) -> tuple[np.ndarray, np.ndarray]:
    """The times and tokens of a run up to where it came."""
    there = np.isfinite(run.xs).all(axis=(1, 2))
    return run.ts[there], run.xs[there]


def settled(ts: np.ndarray, xs: np.ndarray) -> float:
    """From which saved time on all tokens stay within `NEAR` of their last places; at least the first that is not 0."""
    away = np.linalg.norm(xs - xs[-1], axis=2).max(axis=1) > NEAR
    at = int(np.flatnonzero(away)[-1]) + 1 if away.any() else 0
    return float(max(ts[at], ts[1]))


def _follow(run: Any, field: AbstractField) -> _Start | None:
    """A run that is taken up at its end and followed to the last merger; None if `coarsen` cannot."""
    try:
        tree = coarsen(field, jnp.asarray(run.x1), END, tolerance=RADIUS, max_steps=MOST_MERGING)
    except RuntimeError:
        return None
    times, xs = tree.steps()
    end = np.asarray(tree.at(END))
    # The run in its frames, but for the last, which is the one that is judged.
    where = lambda one: (one.ts, one.xs, one.t1, one.x1)
    frames = (np.append(run.ts[:-1], END), np.concatenate([run.xs[:-1], end[None]]), np.asarray(END), end)
    longer = eqx.tree_at(where, run, frames)
    there = settled(float(run.t1) + times, np.concatenate([xs[:-1], end[None]]))
    return _Start(longer, limit_shape(longer, field, tolerance=TOLERANCE, follow=False), there)


def kind_of(shape: LimitShape, count: int) -> str:
    """The shape's kind, and whether several points are clusters, or one for each token."""
    if shape.kind != SEVERAL:
        return shape.kind
    return APART if count == len(shape.residuals) else CLUSTERS


def certificate(shape: LimitShape, stable: bool) -> str:
    """What certifies a shape: a theorem that it is the limit of, or a rest that attracts."""
    if not shape.fits:
        return NOTHING
    if shape.applies:
        return THEOREM if shape.kind == ONE else NOTHING
    return REST if stable else NOTHING
