r"""What is measured of the atlas: where tokens of each cell end, what certifies it, and when they are there.

A cell is a kind of V, a beta and a mask. All starts of a cell run as one batch, by the implicit solver, to
$1000(1 + e^{2\beta})$, a thousand times of two tokens of V = -I; those of V = I to t = 100 alone, from where `coarsen`
follows what is not one point yet, however long that takes. `limit_shape` says which shape the tokens have. What
certifies it is a theorem, where one applies, a rest that attracts, see `rest`, or a closed curve that attracts, see
`curve`; else the cell says that nothing does.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from ..._base.types import RealScalarLike, Tokens
from ..._coarsen import coarsen
from ..._dynamics.rodas5p import Rodas5P
from ..._dynamics.simulate import simulate
from ..._limits import LimitShape, limit_shape
from ..._limits.result import CIRCLE, NONE, ONE, OPPOSITE, SEVERAL, SUBSPACE
from ..._limits.sphere import components
from ..._model.attention import SoftmaxAttention
from ..._model.field import AbstractField, AttentionField, FunctionField
from ..._model.mask import CausalMask, FullMask, MatrixMask
from ..._observables import effective_beta
from ..._trajectory.trajectory import Trajectory
from ...plot import OKABE_ITO, style
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, percent
from ..framework.figure import declared
from ..framework.verdict import ANY, Source
from ..shared.ensemble import Ensemble, draw_starts, exact_first_token, mean_and_error
from ..shared.layout import WIDTH
from ..shared.sources import particles


# Whether tokens are at a stable rest: what certifies a limit where no theorem speaks of it.
#
# **Algorithm.** At tokens x with velocity f and Jacobian J, in an orthonormal basis of the tangent space without the
# directions O of the symmetries of the field: the eigenvalues of the remaining block $J_q$ say whether a rest near x
# attracts, and $-J_q^{-1} f_q$, Newton's step, where it is. **Invariants.** A slow flow is not taken for rest: the step
# is a distance and not a speed. A rest attracts only if the tokens have had time for it, some relaxation times: neither
# a rate that rounding makes of zero, where rests are a continuum, nor one that falls like 1 / t, where they attract
# less than exponentially, is one. All of it is to first order: it is no proof.


_EPS = float(np.finfo(np.float64).eps)
# Times n d eps: rates below, for V of norm one, may be rounding. It is that of sums of order one which cancel in J.
_ROUNDING = 8
# The relaxation times that tokens must have had.
TIMES = 10.0
# Of the size of a rotation, per coordinate.
_HARDLY = 0.01


class Rest(NamedTuple):
    """How tokens are at rest.

    **Attributes:**

    - `rate`: The slowest rate at which the tokens come back to the rest near them; negative if they leave it.
    - `least`: What rounding may make of a rate of zero.
    - `distance`: How far a token is from the rest near them, at most, to first order; infinite if there is none.
    - `drift`: The speed along the symmetries that is left there.
    """

    rate: float
    least: float
    distance: float
    drift: float

    def stable(self, tolerance: float, t: float) -> bool:
        """Whether a rest that attracts, of which tokens at time t have had some relaxation times, is within `tolerance`
        of them, and they do not drift along symmetries."""
        attracts = self.rate > self.least and self.rate * t >= TIMES
        return bool(attracts and self.distance <= tolerance and self.drift <= tolerance * self.rate)


def rest_of(
    x: Float[np.ndarray, "n d"],
    velocity: Float[np.ndarray, "n d"],
    jacobian: Float[np.ndarray, "n d n d"],
    generators: Float[np.ndarray, "k d d"],
) -> Rest:
    """The rest near unit tokens x; `generators` are skew matrices whose rotations leave the field as it is."""
    n, d = x.shape
    q = quotient(x, velocity, jacobian, generators)
    least = _ROUNDING * n * d * _EPS * max(float(np.linalg.norm(q.inner, 2)), 1.0)
    rate = -float(np.linalg.eigvals(q.block).real.max())
    if abs(rate) <= least:
        return Rest(rate, least, np.inf, np.inf)
    step = np.linalg.solve(q.block, -q.pushed)
    moved = (q.basis @ step).reshape(n, d)
    drift = q.orbit.T @ (q.velocity + q.inner @ q.rest @ step)
    return Rest(rate, least, float(np.linalg.norm(moved, axis=1).max()), float(np.abs(drift).max(initial=0.0)))


class Quotient(NamedTuple):
    """The field at tokens, linear, without the directions of its symmetries.

    **Attributes:**

    - `basis`: Orthonormal directions that turn no symmetry, in coordinates of the tokens, (n d, m).
    - `block`, `pushed`: The Jacobian (m, m) and the velocity (m,) in them.
    - `inner`, `velocity`: The same in an orthonormal basis of the whole tangent space.
    - `orbit`, `rest`: In that basis the directions of the symmetries, and all others: `basis` is of the latter.
    """

    basis: np.ndarray
    block: np.ndarray
    pushed: np.ndarray
    inner: np.ndarray
    velocity: np.ndarray
    orbit: np.ndarray
    rest: np.ndarray


def quotient(
    x: Float[np.ndarray, "n d"],
    velocity: Float[np.ndarray, "n d"],
    jacobian: Float[np.ndarray, "n d n d"],
    generators: Float[np.ndarray, "k d d"],
) -> Quotient:
    """The field at unit tokens x without the rotations that leave it as it is."""
    n, d = x.shape
    tangent = _tangent_basis(x)
    inner = tangent.T @ jacobian.reshape(n * d, n * d) @ tangent
    pushed = tangent.T @ velocity.ravel()
    along = np.stack([tangent.T @ (x @ one.T).ravel() for one in generators], axis=1) if len(generators) else None
    orbit, rest = _split(along, len(inner))
    return Quotient(tangent @ rest, rest.T @ inner @ rest, rest.T @ pushed, inner, pushed, orbit, rest)


def _tangent_basis(x: np.ndarray) -> np.ndarray:
    """(n d, n (d - 1)): an orthonormal basis of the tangent space at each token, block by block."""
    n, d = x.shape
    basis = np.zeros((n, d, n, d - 1))
    for i, one in enumerate(x):
        basis[i, :, i] = np.linalg.svd(one[None])[2][1:].T
    return basis.reshape(n * d, n * (d - 1))


def _split(along: np.ndarray | None, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Orthonormal bases of the directions of the symmetries, and of all others."""
    if along is None:
        return np.zeros((size, 0)), np.eye(size)
    left, sizes, _ = np.linalg.svd(along)
    # A rotation about a point that all tokens are near, or opposite to, moves them hardly and is no direction apart.
    rank = int(np.sum(sizes > _HARDLY * np.sqrt(size)))
    return left[:, :rank], left[:, rank:]


# The rows of the atlas: a V of each kind, the field in the frame that turns with it, and its symmetries.
#
# **The frame.** With a complex leading pair tokens turn for ever and never rest. Each V here is normal, so that its
# skew part K commutes with it, and with $Q^\top K = I$: $y = e^{-tK}x$ then follows the field of V less $Ky$, which
# does not depend on time. Rest in this frame is a steady turn; K is zero where V is symmetric.
#
# **Symmetries.** Rotations that commute with V map limits to limits. The skew matrices that commute with V span their
# directions, along which no limit attracts.


D = 3
BETAS = (1.0, 3.0, 9.0)
FULL, CAUSAL = "full", "causal"
MASKS = {FULL: FullMask(), CAUSAL: CausalMask()}
IDENTITY, DOUBLE, SIMPLE, PAIR, NEGATIVE, REPULSIVE = "identity", "double", "simple", "pair", "negative", "repulsive"
# V = I; a leading eigenvalue that is double, simple, one of a complex pair, or negative; and V = -I.
ROWS = (IDENTITY, DOUBLE, SIMPLE, PAIR, NEGATIVE, REPULSIVE)
# The third eigenvalue where the leading one is simple.
LAST = -0.5
# The leading eigenvalue where all are negative. Under a causal mask a second token may rest at the first, on the axis:
# at a small distance u, where both have half of the weight, u' = (-1/2 - LEAST) u. At -1/2 that is zero, and u falls
# like t^(-1/2) only.
LEAST = -0.4


def values_of(second: float, turn: float) -> dict[str, Float[np.ndarray, "d d"]]:
    """The V of each row: `second` is the second eigenvalue where the leading one is simple, `turn` the imaginary part
    of the pair."""
    return {
        IDENTITY: np.eye(D),
        DOUBLE: np.diag([1.0, 1.0, 0.0]),
        SIMPLE: np.diag([1.0, second, LAST]),
        PAIR: np.array([[1.0, -turn, 0.0], [turn, 1.0, 0.0], [0.0, 0.0, 0.0]]),
        NEGATIVE: np.diag([LEAST, -1.0, -1.0]),
        REPULSIVE: -np.eye(D),
    }


def labels_of(second: float, turn: float) -> dict[str, str]:
    """The eigenvalues of each row, as text."""
    size = "" if turn == 1 else f"{turn:g}"
    return {
        IDENTITY: "1, 1, 1", DOUBLE: "1, 1, 0", SIMPLE: f"1, {second:g}, {LAST:g}", PAIR: f"1 ± {size}i, 0",
        NEGATIVE: f"{LEAST:g}, -1, -1", REPULSIVE: "-1, -1, -1",
    }  # fmt: skip


class Turn(eqx.Module):
    """-K y, of the frame that turns with K."""

    skew: Float[Array, "d d"]

    def __call__(self, t: RealScalarLike, x: Tokens, args: object) -> Tokens:
        return -x @ self.skew.T


def turning_field(
    value: Float[Array, "d d"], beta: RealScalarLike, mask: FullMask | CausalMask | MatrixMask
) -> AbstractField:
    """The field of V with Q^T K = I, in the frame that turns with the skew part of V."""
    attention = AttentionField(SoftmaxAttention(beta, mask=mask), value)
    return attention + FunctionField(Turn((value - value.T) / 2))


def judged_field(row: str, value: np.ndarray, beta: float, mask: str) -> AbstractField:
    """The same as `limit_shape` is to judge it: attention alone where nothing turns, since theorems speak of that."""
    if row == PAIR:
        return turning_field(jnp.asarray(value), beta, MASKS[mask])
    return AttentionField(SoftmaxAttention(beta, mask=MASKS[mask]), jnp.asarray(value))


def permitted(mask: str, n: int) -> np.ndarray:
    """Who attends to whom, (n, n)."""
    return np.tril(np.ones((n, n), bool)) if mask == CAUSAL else np.ones((n, n), bool)


def symmetries(value: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "k d d"]:
    """A basis of the skew matrices that commute with V."""
    d = len(value)
    basis = np.zeros((d * (d - 1) // 2, d, d))
    for skew, (i, j) in zip(basis, np.stack(np.tril_indices(d, -1), axis=1), strict=True):
        skew[i, j], skew[j, i] = 1.0, -1.0
    commutators = (basis @ value - value @ basis).reshape(len(basis), -1)
    left, sizes, _ = np.linalg.svd(commutators)
    free = np.concatenate([sizes, np.zeros(len(basis) - len(sizes))]) <= 1e-12
    return np.einsum("bk,bij->kij", left[:, free], basis)


# Whether tokens are on a closed curve that attracts: what certifies a limit that one slow direction delays.
#
# Two rings of repelled tokens that face each other feel their twist only by the smallest of harmonics: at beta = 9 the
# rate of it is below rounding, and no run comes to the end of it. All other directions have long come to rest. So the
# limit is on a curve, and if every place of the curve has the same shape, that is the shape of the limit.
#
# **Algorithm.** Of the block $J_q$ of `rest` the eigenvalue along the curve is slow: the tokens have had no ten
# relaxation times of it. All others must have had them. With the unit eigenvector u of the slow one the bordered system
# $J_q\delta + \mu u = -f_q,\ u^\top\delta = 0$, which the slow rate leaves regular, is Newton's step to the curve
# (Keller, "Numerical solution of bifurcation and nonlinear eigenvalue problems", 1977). The curve is followed by steps
# along u, each corrected so, until the inner products of all tokens, plain and with V, are what they were and change
# the same way: rotations that commute with V map the rest of the curve onto what was followed.
#
# **Invariants.** At every place there is one slow direction and no second one, the shape is that of the tokens, and the
# corrected step is short; a curve that does not close within `LENGTH`, or on which this fails, certifies nothing. What
# is slow along the curve is not asked to be at rest: a closed curve that attracts has the limit on it, wherever on it
# that is. To first order, as `rest`: no proof.


Derive = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
# The length of a step, of all coordinates together, and of the longest curve that is followed.
STEP, LENGTH = 0.15, 30.0
# Newton's method at a place of the curve: how far it must come, in how many steps.
_CLOSE, _CORRECTIONS = 1e-9, 8


class Place(NamedTuple):
    """Tokens on the curve.

    **Attributes:**

    - `x`: The tokens, (n, d).
    - `along`: The unit direction of the curve there, (n d,).
    """

    x: np.ndarray
    along: np.ndarray


def on_attracting_curve(
    x: Float[np.ndarray, "n d"],
    derive: Derive,
    value: Float[np.ndarray, "d d"],
    kind_at: Callable[[np.ndarray], str],
    t: float,
    tolerance: float,
) -> bool:
    """Whether unit tokens x, which have run for a time t, are within `tolerance` of a closed curve that attracts in all
    directions across it, and on which the tokens have one kind of shape.

    **Arguments:**

    - `derive`: The velocity (n, d) and its derivative (n, d, n, d) at tokens.
    - `value`: V (d, d): rotations that commute with it leave the field as it is.
    - `kind_at`: The kind of shape of tokens.
    - `t`: How long the tokens have run.
    - `tolerance`: A chordal distance.
    """
    generators = symmetries(value)
    place = correct(x, None, derive, generators, t)
    if place is None or np.linalg.norm(place.x - x, axis=1).max() > tolerance:
        return False
    kind, wanted, onwards = kind_at(x), _invariants(place.x, value), _change(place, value)
    first, gone, before = np.inf, False, 0.0
    for _ in range(int(LENGTH / STEP)):
        if kind_at(place.x) != kind:
            return False
        moved = place.x + STEP * place.along.reshape(x.shape)
        moved /= np.linalg.norm(moved, axis=1, keepdims=True)
        following = correct(moved, place.along, derive, generators, t)
        # A second curve nearby is not to be taken for this one.
        if following is None or np.linalg.norm(following.x - place.x) > 2 * STEP:
            return False
        last, place = place, following
        away = float(np.abs(_invariants(place.x, value) - wanted).max())
        # Closed: nearest to where it began, nearer than the first step, after having been away, and going the same way:
        # a mirror image of where it began, which the curve passes backwards, is not the end of it.
        first = away if np.isinf(first) else first
        gone = gone or away > 2 * first
        same_way = np.sum(_change(last, value) * onwards) > np.sum(onwards**2) / 2
        if gone and away > before and before < first and same_way:
            return True
        before = away
    return False


def _invariants(x: np.ndarray, value: np.ndarray) -> np.ndarray:
    """What the symmetries leave as it is: the inner products of tokens, plain and with V, (2, n, n)."""
    return np.stack([x @ x.T, x @ value @ x.T])


def _change(place: Place, value: np.ndarray) -> np.ndarray:
    """How the invariants change along the curve."""
    x, along = place.x, place.along.reshape(place.x.shape)
    return np.stack([along @ x.T + x @ along.T, along @ value @ x.T + x @ value @ along.T])


def correct(x: np.ndarray, along: np.ndarray | None, derive: Derive, generators: np.ndarray, t: float) -> Place | None:
    """The place of the curve next to tokens x, across `along`, or across the slow direction at x; None where there is
    no such curve."""
    for _ in range(_CORRECTIONS):
        q = quotient(x, *derive(x), generators)
        # Away from the curve no direction need be slow: there the one of the place before serves.
        across = slow_direction(q.block) if along is None else q.basis.T @ along
        if across is None:
            return None
        size = len(across)
        bordered = np.zeros((size + 1, size + 1))
        bordered[:size, :size], bordered[:size, size], bordered[size, :size] = q.block, across, across
        if np.linalg.matrix_rank(bordered) <= size:  # a second direction without any force
            return None
        moved = q.basis @ np.linalg.solve(bordered, np.append(-q.pushed, 0.0))[:size]
        x = x + moved.reshape(x.shape)
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
        if np.linalg.norm(moved) <= _CLOSE:
            return _place(x, along, derive, generators, t)
    return None


def _place(x: np.ndarray, along: np.ndarray | None, derive: Derive, generators: np.ndarray, t: float) -> Place | None:
    q = quotient(x, *derive(x), generators)
    slow = slow_direction(q.block, t)
    if slow is None:
        return None
    direction = q.basis @ slow
    return Place(x, direction if along is None or direction @ along > 0 else -direction)


def slow_direction(block: Float[np.ndarray, "m m"], t: float | None = None) -> Float[np.ndarray, " m"] | None:
    """The unit eigenvector of the leading eigenvalue; None if that is complex. With a time t also if tokens have had
    `TIMES` relaxation times of it by then, if they leave along it, or if another one is as slow."""
    if len(block) == 0:
        return None
    # As complex numbers always, whatever they are.
    values, vectors = (np.asarray(one, complex) for one in np.linalg.eig(block))
    rates = -np.real(values)
    order = np.argsort(rates)
    first = order[0]
    # Of two complex eigenvalues neither is alone.
    found = np.imag(values[first]) == 0
    if t is not None:
        others_rest = bool((rates[order[1:]] * t >= TIMES).all())
        found = found and others_rest and abs(rates[first]) * t < TIMES
    leading = np.real(vectors[:, first])
    return leading / np.linalg.norm(leading) if found else None


# The heads of trained networks in the atlas: by the leading eigenvalue of V, and by their effective beta.
#
# A head of width d is not a cell: its V has many more eigenvalues, and its Q^T K is no multiple of the identity. What
# is placed is which eigenvalue leads, in the row of that case, and the effective beta, in the nearest column.


# The row of each case of `probe.head_signs`; a head whose V is zero is in none.
ROW_OF_CASE = {"attractive": SIMPLE, "rotating": PAIR, "repulsive": NEGATIVE}
# Of the networks, in their order, and how a caption calls them.
MARKS = {"o": "circles", "s": "squares", "D": "diamonds"}
QUICK = "A quick run leaves out the heads of SmolLM2-135M-Instruct (Q4_1), whose spectra take some twenty seconds."
ABSENT = (
    "SmolLM2-135M-Instruct (Q4_1) is not installed (pip install 'clusterjax[smollm2]'), so that its heads are not "
    "among these."
)


class Heads(NamedTuple):
    """The heads of one network.

    **Attributes:**

    - `name`: Of the network, in a legend.
    - `network`: What it is, in a sentence.
    - `mask`: "full" or "causal", as it attends.
    - `leading`: The eigenvalue of V of largest real part, of each head, (heads,), complex.
    - `cases`: "attractive", "rotating", "repulsive" or "neutral", (heads,).
    - `beta`: The effective inverse temperature, (heads,).
    """

    name: str
    network: str
    mask: str
    leading: np.ndarray
    cases: np.ndarray
    beta: np.ndarray

    def counts(self) -> dict[tuple[str, float, str], int]:
        """How many heads are in each cell that has any."""
        found: dict[tuple[str, float, str], int] = {}
        for case, beta in zip(self.cases, self.beta, strict=True):
            if (row := ROW_OF_CASE.get(str(case))) is not None:
                key = (row, nearest(float(beta)), self.mask)
                found[key] = found.get(key, 0) + 1
        return found


def nearest(beta: float) -> float:
    """The beta of the atlas that is nearest, as a ratio."""
    return BETAS[int(np.argmin(np.abs(np.log(max(beta, 1e-300)) - np.log(BETAS))))]


def heads_of(settings: Settings, say: Callable[[str], None]) -> tuple[tuple[Heads, ...], str]:
    """The heads of the package's ALBERT, SmolLM2-135M-Instruct (Q4_1) and the settings' ALBERT; why some are not."""
    # These need the extra probe, without which the registry has no atlas.
    from ..shared.causal import NAME, SMOLLM2, smollm2
    from ..shared.networks import model_of

    say("taking the spectra of the heads of networks")
    own = settings.albert is None
    model, about = model_of(settings if own else dataclasses.replace(settings, albert=None, heads=None))
    heads, absent = [read_heads("ALBERT of the package", about, FULL, model)], QUICK
    if not settings.quick:
        further = smollm2()
        absent = ABSENT if further is None else ""
        if further is not None:
            heads.append(read_heads(NAME, SMOLLM2.words, CAUSAL, further))
    if not own:
        model, about = model_of(settings)
        name = "PL-BERT (of phonemes)" if about.startswith("PL-BERT") else str(model.name)
        heads.append(read_heads(name, about, FULL, model))
    return tuple(heads), absent


def read_heads(name: str, network: str, mask: str, model: Any) -> Heads:
    """The heads of each block that has weights of its own."""
    from ... import probe

    signs, matrices = probe.head_signs(model), probe.head_matrices(model)
    blocks, heads = signs.case.shape
    beta = [
        effective_beta(matrices.scale * matrices.query[b, h] @ matrices.key[b, h].T)
        for b in range(blocks) for h in range(heads)
    ]  # fmt: skip
    return Heads(name, network, mask, signs.leading.ravel(), signs.case.ravel(), np.array(beta))


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


# The table of the atlas: one row for each cell, as numbers and words for the record.


def table_of(m: Results) -> dict[str, dict[str, Any]]:
    """A row for each cell: which limits, what certifies them, and when tokens are there."""
    rows = {}
    for (row, beta, mask), cell in m.cells.items():
        kinds, counts = np.unique(cell.kinds, return_counts=True)
        followed, lost = cell.followed
        rows[f"{row}, beta = {beta:g}, {mask}"] = {
            "limits": {str(kind): int(count) for kind, count in zip(kinds, counts, strict=True)},
            "certified by": {by: int(np.sum(cell.by == by)) for by in (THEOREM, REST, CURVE, NOTHING)},
            "theorems": list(cell.theorems), "points": [int(cell.points.min()), int(cell.points.max())],
            "clusters at t = 15": float(cell.early.mean()),
            "log10 of the time": [float(one) for one in np.quantile(cell.log_times, (0.0, 0.5, 1.0))],
            "coarsened": followed, "not followed": lost,
            "heads": {one.name: number for one in m.heads if (number := one.counts().get((row, beta, mask)))},
        }  # fmt: skip
    return rows


# What is claimed of the atlas: theorems and conjectures cell by cell, and what certifies the other cells.
#
# Criteria were set before any limit was looked at. Before that, only the steps that runs of another seed take had been
# counted, to choose the tolerance of the solver and the number of tokens. After a quick run of 16 starts the runs were
# made fifty times longer, since tokens of a negative V had not come to rest at beta = 1 and 3. After a full run a rest
# was asked to have had ten relaxation times, since rates of 1e-13 of either sign, of rounding, had counted as
# attracting in a part of the starts of a negative V. After that run, in which 32 of 36 cells were certified, curves
# that attract were added to what certifies, and the leading eigenvalue of the negative V was moved from -0.5, where
# tokens come to rest only like a power of t, to -0.4. No criterion of a claim was changed.


FIRST = 1e-3  # how far a first token may be from e^(tV) x_1: the tolerance of the solver is 1e-5
RATE = 0.01  # of the rates at one point
SHARE = 0.95  # of the starts of each cell
COSINE = 0.01  # of two cosines that count as the same
WAITING = 0.5  # the share of the starts of V = I that still have several clusters at the large beta
ONE_POINT = Source("2312.10794, Theorem 6.1", ANY, ANY)
COLLAPSE = Source("2411.04990, Theorem 4.1", ANY, ANY)
SIMPLE_TOP = Source("2411.04990, the conjecture on a simple leading eigenvalue", ANY, ANY)
DOUBLE_TOP = Source("2411.04990, the conjecture on a multiple leading eigenvalue", ANY, ANY)


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return over(f"{m.starts} starts", (
        _first(m), _rates(m), _one_point(m, FULL), _one_point(m, CAUSAL), _waiting(m), _simple(m), _double(m),
        _simple_full(m), _double_full(m), _pair(m), _apart(m), _cross(m), _certified(m), *_leading(m),
    ))  # fmt: skip


def _each(shares: dict[float, np.ndarray]) -> tuple[str, float, float]:
    """By beta which starts are so, as text; the smallest share and its error."""
    found = {beta: mean_and_error(yes) for beta, yes in shares.items()}
    text = ", ".join(f"{percent(mean, error)} (beta = {beta:g})" for beta, (mean, error) in
                     found.items())  # fmt: skip
    least, error = min(found.values(), key=lambda pair: float(pair[0]))
    return text, float(least), float(error)


def _first(m: Results) -> Claim:
    off = max(cell.off for cell in m.cells.values())
    return Claim(
        says="The first token of a causal head moves alone: it is at e^(tV) x_1, normalised, for every V.",
        measured=f"at most {off:.1e} from it, in all cells and at all times",
        criterion=f"less than {FIRST:g}",
        holds=off < FIRST,
        kind="identity",
        value=off,
    )


def _rates(m: Results) -> Claim:
    off = 0.0
    for mask, rate in {FULL: 1.0, CAUSAL: 0.5}.items():
        for cell in m.of(IDENTITY, mask).values():
            found = cell.rates[(cell.kinds == ONE) & cell.certified]
            off = max(off, float(np.abs(found - rate).max(initial=0.0)))
    return Claim(
        says="With V = I the slowest rate at one point is 1 under full and 1/2 under causal attention, for every beta.",
        measured=f"off by {off:.1e} at most, from the Jacobian at the end of each start",
        criterion=f"less than {RATE:g}",
        holds=off < RATE,
        kind="identity",
        value=off,
    )


def _one_point(m: Results, mask: str) -> Claim:
    cells = m.of(IDENTITY, mask)
    there = {beta: (cell.kinds == ONE) & (cell.by == THEOREM) for beta, cell in cells.items()}
    lost = sum(cell.followed[1] for cell in cells.values())
    says = "With V = I and a full mask all tokens come to one point, from almost every start."
    if mask == CAUSAL:
        says = "With V = I and a causal mask all tokens come to the first."
        # The first token rests where it starts.
        near = {beta: np.linalg.norm(cell.ends - m.x0[:, :1], axis=2).max(axis=1) for beta, cell in cells.items()}
        there = {beta: yes & (near[beta] < 2 * TOLERANCE) for beta, yes in there.items()}
    text, least, error = _each(there)
    latest = max(float(cell.log_times.max()) for cell in cells.values())
    return Claim(
        says=says,
        measured=f"certified: {text}; the latest is there at t = 1e{latest:.1f}"
        + (f"; {lost} could not be followed" if lost else ""),
        criterion="every start at every beta",
        holds=least == 1.0,
        kind="paper",
        value=least,
        error=error,
        source=COLLAPSE if mask == CAUSAL else ONE_POINT,
    )


def _waiting(m: Results) -> Claim:
    large = BETAS[-1]
    found = {mask: mean_and_error(m.cells[IDENTITY, large, mask].early > 1) for mask in MASKS}
    listed = ", ".join(f"{percent(s, e)} ({mask})" for mask, (s, e) in found.items())
    least, error = min(found.values(), key=lambda pair: float(pair[0]))
    return Claim(
        says=f"At beta = {large:g} what is seen at t = {EARLY:g} is not the limit: several clusters, where V = I has "
        "one point.",
        measured=f"several clusters by then: {listed} of the starts",
        criterion=f"more than {100 * WAITING:g} % under either mask",
        holds=bool(least > WAITING),
        kind="finding",
        value=float(least),
        error=float(error),
    )


def to_axis(cell: Cell) -> np.ndarray:
    """How far a token of each start is from both ends of the first axis, (starts,)."""
    beside = np.linalg.norm(cell.ends[..., 1:], axis=-1)
    # The chord to the nearer end.
    return np.hypot(beside, 1 - np.abs(cell.ends[..., 0])).max(axis=1)


def _on_axis(cell: Cell) -> np.ndarray:
    kinds = (cell.kinds == ONE) | (cell.kinds == OPPOSITE)
    return kinds & cell.certified & (to_axis(cell) < 2 * TOLERANCE)


def _simple(m: Results) -> Claim:
    cells = m.of(SIMPLE, CAUSAL)
    text, least, error = _each({beta: _on_axis(cell) for beta, cell in cells.items()})
    return Claim(
        says="With a simple leading eigenvalue and a causal mask every token comes to its eigenvector, or to the "
        "opposite of it.",
        measured=f"certified there: {text}",
        criterion=f"more than {100 * SHARE:g} % of the starts at every beta",
        holds=least > SHARE,
        kind="paper",
        value=least,
        error=error,
        source=SIMPLE_TOP,
    )


def _double(m: Results) -> Claim:
    # The projection of the first token to the plane of the double eigenvalue.
    plane = m.x0[:, 0] * np.array([1.0, 1.0, 0.0])
    place = plane / np.linalg.norm(plane, axis=1, keepdims=True)
    cells = m.of(DOUBLE, CAUSAL)
    there = {
        beta: cell.certified & (np.linalg.norm(cell.ends - place[:, None], axis=2).max(axis=1) < 2 * TOLERANCE)
        for beta, cell in cells.items()
    }
    text, least, error = _each(there)
    return Claim(
        says="With a double leading eigenvalue and a causal mask all tokens come to the projection of the first to its "
        "plane.",
        measured=f"certified there: {text}",
        criterion=f"more than {100 * SHARE:g} % of the starts at every beta",
        holds=least > SHARE,
        kind="paper",
        value=least,
        error=error,
        source=DOUBLE_TOP,
    )


def _simple_full(m: Results) -> Claim:
    cells = m.of(SIMPLE, FULL)
    text, least, error = _each({beta: _on_axis(cell) for beta, cell in cells.items()})
    both = ", ".join(f"{100 * cell.share(OPPOSITE):.0f} %" for cell in cells.values())
    return Claim(
        says="With a simple leading eigenvalue and a full mask too, tokens of random starts come to its eigenvector,"
        " or to the opposite of it.",
        measured=f"certified there: {text}; at both ends: {both}",
        criterion=f"more than {100 * SHARE:g} % of the starts at every beta",
        holds=least > SHARE,
        kind="finding",
        value=least,
        error=error,
    )


def _double_full(m: Results) -> Claim:
    cells = m.of(DOUBLE, FULL)
    flat = {beta: np.abs(cell.ends[..., 2]).max(axis=1) < 2 * TOLERANCE for beta, cell in cells.items()}
    text, least, error = _each({beta: (cell.kinds == ONE) & cell.certified & flat[beta] for beta, cell in
                                cells.items()})  # fmt: skip
    return Claim(
        says="With a double leading eigenvalue and a full mask all tokens come to one point of its circle.",
        measured=f"certified there: {text}",
        criterion=f"more than {100 * SHARE:g} % of the starts at every beta",
        holds=least > SHARE,
        kind="finding",
        value=least,
        error=error,
    )


def _pair(m: Results) -> Claim:
    found = {}
    for mask in MASKS:
        shares = {beta: (cell.kinds == ONE) & cell.certified for beta, cell in m.of(PAIR, mask).items()}
        found[mask] = _each(shares)
    least, error = min((least, error) for _, least, error in found.values())
    return Claim(
        says="With a complex leading pair all tokens come to one point, which turns for ever at the imaginary part.",
        measured="certified in the frame that turns: " + "; ".join(f"{mask}: {text}" for mask, (text, _, _) in
                                                                   found.items()),
        criterion=f"more than {100 * SHARE:g} % of the starts in every cell",
        holds=least > SHARE,
        kind="finding",
        value=least,
        error=error,
    )  # fmt: skip


def sorted_cosines(x: np.ndarray) -> np.ndarray:
    """The cosines of all pairs of tokens (..., n, d), in order, (..., pairs)."""
    i, j = np.triu_indices(x.shape[-2], 1)
    return np.sort(np.einsum("...id,...jd->...ij", x, x)[..., i, j], axis=-1)


def energies(x: np.ndarray, beta: float) -> np.ndarray:
    """The logarithm of the sum of e^(beta cosine) over all pairs, (...)."""
    exponents = beta * sorted_cosines(x)
    return np.asarray(exponents[..., -1] + np.log(np.exp(exponents - exponents[..., -1:]).sum(axis=-1)))


def _apart(m: Results) -> Claim:
    same = {}
    for beta, cell in m.of(REPULSIVE, FULL).items():
        cosines = sorted_cosines(cell.ends)
        # The certified one of least energy: V = -I descends it.
        energy = np.where(cell.certified, energies(cell.ends, beta), np.inf)
        off = np.abs(cosines - cosines[int(energy.argmin())]).max(axis=1)
        same[beta] = (cell.kinds == APART) & cell.certified & (off < COSINE)
    text, least, error = _each(same)
    return Claim(
        says="With V = -I and a full mask all tokens stay apart, and come to one configuration, up to rotations and "
        "order.",
        measured=f"the cosines of all pairs are those of the least energy, within {COSINE:g}: {text}",
        criterion=f"more than {100 * SHARE:g} % of the starts at every beta",
        holds=least > SHARE,
        kind="finding",
        value=least,
        error=error,
    )


def cross_error(x: np.ndarray) -> np.ndarray:
    """How far the first 2 d tokens (..., n, d) are from d pairs of opposite points on orthogonal axes: the largest
    error of a cosine, (...)."""
    d = x.shape[-1]
    first = x[..., : 2 * d, :]
    count = first.shape[-2]
    wanted = np.eye(count)
    for k in range(0, count - 1, 2):
        wanted[k, k + 1] = wanted[k + 1, k] = -1.0
    return np.asarray(np.abs(np.einsum("...id,...jd->...ij", first, first) - wanted).max(axis=(-1, -2)))


def _cross(m: Results) -> Claim:
    cells = m.of(REPULSIVE, CAUSAL)
    text, least, error = _each({beta: cross_error(cell.ends) < COSINE for beta, cell in cells.items()})
    count = min(2 * D, m.p.n)
    fewer = ", ".join(
        f"{100 * min(float(np.mean(cross_error(cell.ends[:, :k]) < COSINE)) for cell in cells.values()):.0f} % of the "
        f"first {k}"
        for k in range(2, count)
    )
    return Claim(
        says=f"With V = -I and a causal mask the first {count} tokens come to opposite points on orthogonal axes, pair "
        "by pair.",
        measured=f"all their cosines within {COSINE:g}: {text}; of fewer tokens, at the worst beta: {fewer}",
        criterion=f"more than {100 * SHARE:g} % of the starts at every beta",
        holds=least > SHARE,
        kind="finding",
        value=least,
        error=error,
    )


def _certified(m: Results) -> Claim:
    shares = {key: float(cell.certified.mean()) for key, cell in m.cells.items()}
    lacking = [f"{row}, beta = {beta:g}, {mask}: {100 * share:.0f} %" for (row, beta, mask), share in shares.items()
               if share <= SHARE]  # fmt: skip
    theorems = sum(bool(cell.theorems) for cell in m.cells.values())
    resting = sum(bool((cell.by == REST).any()) for cell in m.cells.values())
    curves = sum(bool((cell.by == CURVE).any()) for cell in m.cells.values())
    return Claim(
        says="In every cell of the atlas more than 95 % of the starts have a certified limit.",
        measured=f"{len(shares) - len(lacking)} of {len(shares)} cells have; {theorems} by a theorem, {resting} by "
        f"rests that attract, {curves} by curves that attract, for some of their starts or all"
        + (f"; not certified: {'; '.join(lacking)}" if lacking else ""),
        criterion=f"more than {100 * SHARE:g} % of the starts of each cell",
        holds=not lacking,
        kind="finding",
        value=min(shares.values()),
    )


def _leading(m: Results) -> tuple[Claim, ...]:
    if not m.heads:
        return ()
    found = {one.name: float(np.mean(one.cases == "attractive")) for one in m.heads}
    listed = ", ".join(
        f"{int(np.sum(one.cases == 'attractive'))} of {len(one.cases)} ({one.name}; effective beta "
        f"{one.beta.min():.3g} to {one.beta.max():.3g})"
        for one in m.heads
    )
    return (
        Claim(
            says="Most heads of trained networks are in the row of a simple leading eigenvalue.",
            measured=f"real and positive: {listed}",
            criterion="more than half of the heads of each network",
            holds=min(found.values()) > 0.5,
            kind="finding",
            value=min(found.values()),
        ),
    )


def caption_of(m: Results) -> str:
    """What is seen, and what certifies it."""
    placed = "; ".join(
        f"{words}: {len(one.cases)} of {one.network}" for one, words in zip(m.heads, MARKS.values(), strict=False)
    )
    return (
        f"Where {m.p.n} uniform tokens of the sphere in R^{D} end with Q = K = I, by the eigenvalues of V, beta and "
        f"the mask: {m.starts} starts in each of {len(m.cells)} cells. (a) Colours are the shares of the limits that "
        "starts end in; hatched is what nothing certifies. "
        f"Letters: T, a theorem says so and the tokens are there within {TOLERANCE:g}; R, no theorem is known, and the "
        "tokens are at a rest that attracts, to first order, in the frame that turns with V; C, they are on a closed "
        "curve that attracts and has one shape all along, which they follow more slowly than the run is long. Below "
        "them the median of the time. V = I is followed to the last merger. Numbers on white: how many heads of "
        "networks have such a leading eigenvalue, in the column nearest to their effective beta, those beyond all "
        f"columns in the last ({placed}). (b) These heads, by effective beta and the angle of the leading eigenvalue "
        "of V in the complex plane. A head is not a cell: it has more eigenvalues, and another Q^T K. " + m.absent
    ).strip()


# The picture of the atlas: a grid of cells by V, beta and mask, and the heads of networks.


# By limit; light enough for black letters.
COLOURS = {
    ONE: "#56b4e9", OPPOSITE: "#f0e442", CLUSTERS: "#e69f00", APART: "#cc79a7", CIRCLE: "#009e73", SUBSPACE: "#8fd3b6",
    NONE: "#c8c8c8",
}  # fmt: skip
HATCH = "////"
LETTERS = {"T": THEOREM, "R": REST, "C": CURVE}
_GAP = 0.35  # between the two masks
_WORDS = {NONE: "no shape"}


@style()
def draw(m: Results) -> Figure:
    """The grid, and the heads below it."""
    figure = Figure(figsize=(WIDTH, 7.2), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(5.0, 2.2))  # pyright: ignore
    grid, heads = top.subplots(), bottom.subplots()
    _grid(grid, m)
    _heads(heads, m)
    for letter, ax in (("a", grid), ("b", heads)):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def place_of(mask: str, beta: float) -> float:
    """The left edge of the column of a mask and a beta."""
    return BETAS.index(beta) + (0.0 if mask == FULL else len(BETAS) + _GAP)


def _grid(ax: Axes, m: Results) -> None:
    labels = labels_of(m.p.second, m.p.turn)
    for (row, beta, mask), cell in m.cells.items():
        left, low = place_of(mask, beta), float(len(ROWS) - 1 - ROWS.index(row))
        _cell(ax, cell, left, low)
        counts = [(mark, one.counts().get((row, beta, mask), 0)) for mark, one in zip(MARKS, m.heads, strict=False)]
        for k, (mark, number) in enumerate(one for one in counts if one[1]):
            _badge(ax, left + 0.82, low + 0.2 + 0.38 * k, mark, number)
    wide = 2 * len(BETAS) + _GAP
    ax.set(xlim=(-0.02, wide + 0.02), ylim=(-0.02, len(ROWS) + 0.02))
    ax.set_xticks([place_of(mask, beta) + 0.5 for mask in MASKS for beta in BETAS],
                  [f"beta = {beta:g}" for _ in MASKS for beta in BETAS])  # fmt: skip
    names = [f"{labels[row]}\n{_ROW_WORDS[row]}" for row in reversed(ROWS)]
    ax.set_yticks(np.arange(len(ROWS)) + 0.5, names)
    ax.tick_params(length=0)
    ax.set_ylabel("eigenvalues of V")
    for mask in MASKS:
        ax.text(place_of(mask, BETAS[1]) + 0.5, len(ROWS) + 0.08, f"{mask} mask", ha="center", va="bottom")
    for spine in ax.spines.values():
        spine.set_visible(False)
    seen = {kind for cell in m.cells.values() for kind in cell.kinds}
    keys = [Patch(facecolor=colour, edgecolor="0.3", label=_WORDS.get(kind, kind)) for kind, colour in COLOURS.items()
            if kind in seen]  # fmt: skip
    keys.append(Patch(facecolor="white", edgecolor="0.3", hatch=HATCH, label="not certified"))
    ax.legend(handles=keys, loc="upper center", bbox_to_anchor=(0.5, -0.06), ncols=len(keys))


_ROW_WORDS = {
    "identity": "V = I", "double": "double", "simple": "simple (gap)", "pair": "complex pair, turning",
    "negative": "negative", "repulsive": "V = -I",
}  # fmt: skip


def _cell(ax: Axes, cell: Cell, left: float, low: float) -> None:
    """A rectangle, cut into the shares of the limits; what nothing certifies is hatched."""
    pad, at = 0.03, 0.03
    for kind, colour in COLOURS.items():
        for certified in (True, False):
            width = (1 - 2 * pad) * cell.share(kind, certified=certified)
            if width > 0:
                ax.add_patch(Rectangle((left + at, low + pad), width, 1 - 2 * pad, facecolor=colour, edgecolor="0.35",
                                       lw=0.4, hatch=None if certified else HATCH))  # fmt: skip
            at += width
    ax.add_patch(Rectangle((left + pad, low + pad), 1 - 2 * pad, 1 - 2 * pad, fill=False, edgecolor="0.2", lw=0.8))
    box = {"facecolor": "white", "alpha": 0.75, "lw": 0, "pad": 1.0}
    ax.text(left + 0.08, low + 0.9, _letters(cell), ha="left", va="top", fontsize=7, bbox=box)
    ax.text(left + 0.08, low + 0.1, f"t = $10^{{{np.median(cell.log_times):.1f}}}$", ha="left", va="bottom",
            fontsize=7, bbox=box)  # fmt: skip


def _letters(cell: Cell) -> str:
    """Which certificates there are, and of how many of the starts in percent."""
    shares = {letter: 100 * float(np.mean(cell.by == by)) for letter, by in LETTERS.items()}
    told = [f"{letter} {share:.3g} %" for letter, share in shares.items() if share > 0]
    return "\n".join(told) or "none"


def _badge(ax: Axes, x: float, y: float, mark: str, number: int) -> None:
    ax.plot([x], [y], mark, ms=12 if mark == "D" else 14, mfc="white", mec="0.1", mew=0.9)
    ax.text(x, y - 0.005, str(number), ha="center", va="center", fontsize=6)


def _heads(ax: Axes, m: Results) -> None:
    for one, mark, colour in zip(m.heads, MARKS, OKABE_ITO, strict=False):
        angle = np.abs(np.degrees(np.angle(one.leading)))
        ax.plot(one.beta, angle, mark, ms=4, color=colour, mfc="none", label=one.name)
    for beta in BETAS:
        ax.axvline(beta, color="0.6", lw=0.7, ls=":")
    ax.axhline(90, color="0.6", lw=0.7, ls="--")
    ax.set(
        xscale="log", xlabel="effective beta of the head (dotted: columns of the atlas)", ylim=(-8, 188),
        ylabel="angle of the leading\neigenvalue of V (degrees)", yticks=(0, 45, 90, 135, 180),
    )  # fmt: skip
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))


# The atlas of limits as an experiment: what is measured, claimed, recorded and drawn.


EXPLORED = (
    "the steps of runs of another seed, before the criteria were set; after a quick run of 16 starts the runs were "
    "made fifty times longer; after a full run a rest was asked to have had ten relaxation times; after a "
    "further one curves that attract were added to what certifies, and the leading eigenvalue of the negative V was "
    "moved from -0.5, where tokens come to rest like a power of t, to -0.4; no criterion of a claim was changed"
)


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    if m.absent:
        say(m.absent)
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"n": p.n, "d": D, "beta": list(BETAS), "value": labels_of(p.second, p.turn), "query_key": "identity",
         "masks": list(MASKS), "starts": m.starts, "tolerance": TOLERANCE,
         "solver": f"Rodas5P, rtol {RTOL:g}, atol {ATOL:g}; of V = I coarsen from t = {SEEN:g} on",
         "networks": [one.name for one in m.heads], "explored": EXPLORED, "cells": table_of(m)},
        _series(m),
        partial(draw, m),
        None,
        on=particles(tokens=p.n, d=D, beta=BETAS, starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    """By beta, for each V and mask: what is certified, the time, and the clusters at t = 15."""
    series: dict[str, np.ndarray] = {"beta": np.array(BETAS)}
    for row in ROWS:
        for mask in MASKS:
            cells = list(m.of(row, mask).values())
            series |= {
                f"certified, {row}, {mask}": np.array([cell.certified.mean() for cell in cells]),
                f"median log10 t, {row}, {mask}": np.array([np.median(cell.log_times) for cell in cells]),
                f"clusters at t = {EARLY:g}, {row}, {mask}": np.array([cell.early.mean() for cell in cells]),
            }
    for one in m.heads:
        series |= {
            f"leading_real_part_by_head, {one.name}": np.real(one.leading),
            f"leading_imaginary_part_by_head, {one.name}": np.imag(one.leading),
            f"beta_by_head, {one.name}": one.beta,
        }
    return series


FIGURE = declared("atlas", _run, parameters=Parameters)
