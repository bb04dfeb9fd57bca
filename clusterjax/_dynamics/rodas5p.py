"""`Rodas5P`: a linearly implicit Rosenbrock method for very long times.

**Algorithm.** With the Jacobian J at the start of a step of length h, one LU decomposition of I - h gamma J serves
eight stages, $k_i = (I - hγJ)^{-1} γ (h f(t + c_i h, y + ∑_j a_{ij} k_j) + h² d_i f_t + ∑_j C_{ij} k_j)$; the step is
$y + ∑_i b_i k_i$ and its error estimate is $k_8$. A batch under `jax.vmap` is stepped one run after another, without
the runs that have ended.

**Reference.** Steinebach, *Construction of Rosenbrock-Wanner method Rodas5P* (BIT 63, 2023): coefficients. Hairer,
Wanner, *Solving Ordinary Differential Equations II*, sections IV.3 (L-stability), IV.7 (this form of the stages).

**Invariants.** The order is 5, with an error estimate and an interpolant of order 4, even if the field depends on time.
Rounding errors along contracting directions are divided by 1 + h gamma |rate| in the stages and in the error estimate:
steps grow without bound where tokens are clustered. An L-stable method also damps perturbations that should grow, by
1 / (h gamma rate): steps are therefore bounded by the fastest growth, see `_fastest_growth`.
"""

from typing import Any, ClassVar

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PyTree

from .._base.batching import call_with_rule
from .._base.checks import check_number
from .._base.defaults import MAX_GROWTH
from .._base.numerics import einsum, is_concrete, matmul, tensordot
from .._base.types import RealScalarLike, Tokens
from .._model.attention import HardmaxAttention, SoftmaxAttention, UnnormalisedAttention
from .._model.field import AbstractField, AttentionField, RescaledField, ScaledField, SumField
from .._model.heads import MultiHeadField, is_hardmax
from .._model.position import Rotary
from .._model.schedule import at_time
from .._model.space import Sphere, tangent_basis
from .retract import Time


# The Jacobian of an attention field in closed form, at the cost of the matrix itself: n^2 d^2 numbers.
#
# Forward mode costs n d velocities, which take thirty times as long at n = 32. **Algorithm.** With weights w and
# averages $A_i = ∑_j w_{ij} y_j$ of tokens y, and queries $q_i = B^T y_i$,
#
# $$∂A_i / ∂y_j = w_{ij} (I + β c_{ij} q_i^T) + δ_{ij} β ∑_k w_{ik} c_{ik} (B y_k)^T,$$
#
# where $c_{ij}$ is $y_j - A_i$ if the rows of weights are normalised, and $y_j$ if not. **Invariants.** The Jacobian
# equals the derivatives of the field in forward mode, except for rounding, and is differentiable in the field and
# tokens.


def has_velocity_jacobian(field: AbstractField) -> bool:
    """True if `velocity_jacobian` supports the field: attention by exponentials, and its sums and multiples."""
    if isinstance(field, SumField):
        return all(has_velocity_jacobian(summand) for summand in field.fields)
    if isinstance(field, ScaledField):
        return has_velocity_jacobian(field.field)
    if not isinstance(field, AttentionField):
        return False
    # Log-weights do not depend on the tokens; turned queries and keys would differ for each pair.
    attention = field.attention
    by_exponentials = isinstance(attention, SoftmaxAttention | UnnormalisedAttention)
    return by_exponentials and not isinstance(attention.position, Rotary)


def velocity_jacobian(field: Any, t: RealScalarLike, y: Tokens) -> tuple[Float[Array, "n d"], Float[Array, "n d n d"]]:
    """The velocity before its projection onto the tangent space, and its derivative with respect to the tokens `y`."""
    if isinstance(field, SumField):
        first, *others = (velocity_jacobian(summand, t, y) for summand in field.fields)
        return sum((v for v, _ in others), first[0]), sum((j for _, j in others), first[1])
    if isinstance(field, ScaledField):
        velocity, jacobian = velocity_jacobian(field.field, t, y)
        factor = at_time(field.factor, t, y.dtype)
        return factor * velocity, factor * jacobian
    average, jacobian = _average_jacobian(field, t, y)
    value = at_time(field.value, t, y.dtype)
    if value is None:
        return average, jacobian
    return matmul(average, value.T), einsum("ab,ibjc->iajc", value, jacobian)


def _average_jacobian(field: AttentionField, t: RealScalarLike, y: Tokens) -> tuple[Array, Array]:
    n, d = y.shape
    attention: Any = field.attention
    weights = attention.weights(y, t, at_time(field.masses, t, y.dtype))
    beta, form = (at_time(part, t, y.dtype) for part in (attention.beta, attention.query_key))
    average = matmul(weights, y)
    queries = y if form is None else matmul(y, form)
    keys = y if form is None else matmul(y, form.T)
    # c_ij has the shape (n, n, d).
    centred = y[None, :, :] - average[:, None, :] if isinstance(attention, SoftmaxAttention) else y[None, :, :]
    weighted = weights[:, :, None] * centred
    own = beta * einsum("ika,kb->iab", weighted, keys)
    others = weights[:, None, :, None] * jnp.eye(d, dtype=y.dtype)[None, :, None, :]
    others = others + beta * jnp.swapaxes(weighted, 1, 2)[:, :, :, None] * queries[:, None, None, :]
    here = jnp.eye(n, dtype=y.dtype)[:, None, :, None]
    return average, others + here * own[:, :, None, :]


# The linearisation of an equation on a space, in coordinates of the tangent space, for the linear solves of `Rodas5P`.
#
# On the sphere the field is evaluated at retracted tokens and is tangent to the space. The Jacobian J of f(x) therefore
# has no columns along x_i, and its row along x_i is known: <x_i, f_i> = 0 gives -<u, f_i> / |x_i| for a tangent u. One
# LU decomposition of size n (d - 1), instead of n d, then solves (I - c J) k = r exactly. On other spaces it has the
# size of the state.


class Equation(eqx.Module):
    """The right-hand side of a term, which on the sphere is made tangent and evaluated at retracted tokens."""

    term: Any

    @property
    def field(self) -> Any:
        """The field of clusterjax in the term; None for another vector field."""
        # diffrax wraps the term for runs backwards in time.
        field = getattr(getattr(self.term, "term", self.term), "vector_field", None)
        return field if isinstance(field, AbstractField) else None

    @property
    def direction(self) -> Any:
        """-1 where the term runs backwards, so that its time is minus the time of the field; else 1."""
        return getattr(self.term, "direction", 1)

    @property
    def on_sphere(self) -> bool:
        return self.field is not None and isinstance(self.field.space, Sphere)

    def __call__(self, t, y, args):
        if not self.on_sphere:
            return self.term.vf(t, y, args)
        space = self.field.space
        # The fields of clusterjax are tangent and retract already; a user's field may not.
        return space.tangent(y, self.term.vf(t, space.retract(y), args))

    def projected(self, y0, y1):
        """The end of a step from `y0`; on the sphere the norm of each token is restored to its norm in `y0`."""
        if not self.on_sphere:
            return y1
        # Norms are constant along the flow. If V rotates, all steps would change norms to the same side: the error of
        # the angular velocity v / |x| would grow with time, and the error of the phase with the square of time.
        return y1 * (jnp.linalg.norm(y0, axis=1) / jnp.linalg.norm(y1, axis=1))[:, None]


class Linearised(eqx.Module):
    """The Jacobian at a state, in tangent coordinates; `solver(c)` solves with I - c J."""

    jacobian: Float[Array, "size size"]
    by_time: Array
    # On the sphere: tangent basis, unit radial vectors, and velocity divided by the norm of each token. Otherwise None.
    basis: Float[Array, "n d k"] | None
    radial: Float[Array, "n d"] | None
    slope: Float[Array, "n d"] | None
    shape: tuple[int, ...] = eqx.field(static=True)

    def coordinates(self, v: Array) -> Array:
        """The tangent coordinates of v."""
        return (v if self.basis is None else einsum("ida,id->ia", self.basis, v)).reshape(-1)

    def vector(self, u: Array) -> Array:
        """The tangent vector of coordinates u."""
        if self.basis is None:
            return u.reshape(self.shape)
        n, _, k = self.basis.shape
        return einsum("ida,ia->id", self.basis, u.reshape(n, k))

    def solver(self, c):
        """The function r -> (I - c J)^{-1} r, and the corresponding function in tangent coordinates."""
        size = self.jacobian.shape[0]
        # The permutation is computed once with the decomposition, and not in each solve.
        lu, _, permutation = jax.lax.linalg.lu(jnp.eye(size, dtype=self.jacobian.dtype) - c * self.jacobian)

        def inner(u):
            column = u[permutation][:, None]
            column = jax.lax.linalg.triangular_solve(lu, column, left_side=True, lower=True, unit_diagonal=True)
            return jax.lax.linalg.triangular_solve(lu, column, left_side=True, lower=False)[:, 0]

        def outer(r):
            k = self.vector(inner(self.coordinates(r)))
            if self.radial is None or self.slope is None:
                return k
            # The row along x_i is solved after the tangent part is known.
            along = jnp.sum(self.radial * r, axis=1) - c * jnp.sum(self.slope * k, axis=1)
            return k + along[:, None] * self.radial

        return outer, inner


def linearise(equation: Equation, t, y: Array, args: Any) -> Linearised:
    """The derivatives of the equation at (t, y), with respect to time and to the state."""
    velocity, by_time = jax.jvp(lambda t: equation(t, y, args), (t,), (jnp.ones_like(t),))
    if not equation.on_sphere:
        jacobian = jax.jacfwd(lambda u: equation(t, u.reshape(y.shape), args).reshape(-1))(y.reshape(-1))
        return Linearised(jacobian, by_time, None, None, None, y.shape)
    radii = jnp.linalg.norm(y, axis=1)
    point = y / radii[:, None]
    basis = tangent_basis(point)
    n, d, k = basis.shape
    if has_velocity_jacobian(equation.field):
        ambient, derivative = velocity_jacobian(equation.field, t * equation.direction, point)
        blocks = einsum("ida,idje,jeb->iajb", basis, derivative, basis)
        # The derivative of the projection is -<y_i, v_i> on the diagonal.
        pull = jnp.sum(point * ambient, axis=1)
        diagonal = einsum("ij,i,ab->iajb", jnp.eye(n, dtype=y.dtype), pull, jnp.eye(k, dtype=y.dtype))
        blocks = (blocks - diagonal) / radii[None, None, :, None]
    else:
        _, push = jax.linearize(lambda x: equation(t, x, args), y)
        columns = einsum("ij,jda->jaid", jnp.eye(n, dtype=y.dtype), basis).reshape(n * k, n, d)
        blocks = einsum("ida,mid->iam", basis, jax.vmap(push)(columns))
    return Linearised(blocks.reshape(n * k, n * k), by_time, basis, point, velocity / radii[:, None], y.shape)


# The coefficients of the form of the method that needs no products of J with vectors.
_GAMMA = 0.21193756319429014
_LAST = (-7.502846399306121, 2.561846144803919, -11.627539656261098, -0.18268767659942256, 0.030198172008377946)
_STAGES = (
    (),
    (3.0,),
    (2.849394379747939, 0.45842242204463923),
    (-6.954028509809101, 2.489845061869568, -10.358996098473584),
    (2.8029986275628964, 0.5072464736228206, -0.3988312541770524, -0.04721187230404641),
    _LAST,
    (*_LAST, 1.0),
    (*_LAST, 1.0, 1.0),
)
_COUPLING = (
    (),
    (-14.155112264123755,),
    (-17.97296035885952, -2.859693295451294),
    (147.12150275711716, -1.41221402718213, 71.68940251302358),
    (165.43517024871676, -0.4592823456491126, 42.90938336958603, -5.961986721573306),
    (24.854864614690072, -3.0009227002832186, 47.4931110020768, 5.5814197821558125, -0.6610691825249471),
    (
        *(30.91273214028599, -3.1208243349937974, 77.79954646070892),
        *(34.28646028294783, -19.097331116725623, -28.087943162872662),
    ),
    (
        *(37.80277123390563, -3.2571969029072276, 112.26918849496327),
        *(66.9347231244047, -40.06618937091002, -54.66780262877968, -9.48861652309627),
    ),
)
_TIMES = (0.0, 0.6358126895828704, 0.4095798393397535, 0.9769306725060716, 0.4288403609558664, 1.0, 1.0, 1.0)
_TIME_DERIVATIVE = (_GAMMA, -0.42387512638858027, -0.3384627126235924, 1.8046452872882734, 2.325825639765069)
_DENSE = (
    (
        *(25.948786856663858, -2.5579724845846235, 10.433815404888879, -2.3679251022685204),
        *(0.524948541321073, 1.1241088310450404, 0.4272876194431874, -0.17202221070155493),
    ),
    (
        *(-9.91568850695171, -0.9689944594115154, 3.0438037242978453, -24.495224566215796),
        *(20.176138334709044, 15.98066361424651, -6.789040303419874, -6.710236069923372),
    ),
    (
        *(11.419903575922262, 2.8879645146136994, 72.92137995996029, 80.12511834622643),
        *(-52.072871366152654, -59.78993625266729, -0.15582684282751913, 4.883087185713722),
    ),
)


def _padded(rows: tuple[tuple[float, ...], ...]) -> np.ndarray:
    return np.array([(*row, *(0.0,) * (8 - len(row))) for row in rows])


def _check_max_growth(max_growth: float | int | None) -> float | None:
    remedy = "pass a number of e-foldings, or None"
    return None if max_growth is None else check_number(max_growth, "max_growth", above=0, remedy=remedy)


class Rodas5P(dfx.AbstractAdaptiveSolver):
    """An implicit solver for very long, stiff runs: `simulate(..., solver=Rodas5P())` reaches t = 1e8 in a few hundred
    steps, where clusters have formed and drift by $exp(-β(1 - c))$.

    The steps of an explicit solver remain near 3, since tokens within a cluster contract at rates near 1, and the run
    stops at `max_steps`. `Rodas5P` is L-stable: its steps grow as long as the error allows, and shrink when clusters
    merge. The method is linearly implicit: in place of a Newton iteration, a step has one Jacobian (in closed form for
    softmax and unnormalised attention) and one LU decomposition, of size n (d - 1) on the sphere. The decomposition
    takes (n d)^2 numbers and (n d)^3 operations, which suits up to some hundred tokens. Until clusters form, at t of
    about 20, `diffrax.Tsit5` is cheaper.

    Under `jax.vmap` runs that have ended cost nothing. If V rotates (complex eigenvalues), the tokens rotate for ever,
    and the period bounds the steps. In float32 velocities are rounded to 1e-7, and `simulate` refuses times over which
    this rounding matters.

    The order is 5. The solver is differentiable, in forward and reverse mode, also for a user's field and for any
    equation of `diffrax.diffeqsolve` whose state is one real array. Noise is not supported, nor hardmax, whose velocity
    jumps, nor `RescaledField`, whose attention tends to hardmax. On the sphere each step preserves all norms.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> x0 = jnp.array([[1.0, 0.0], [-0.5, 0.75**0.5]])  # two clusters, 120 degrees apart
        >>> field = cjx.AttentionField(cjx.SoftmaxAttention(6.0))
        >>> traj = cjx.simulate(field, x0, jnp.array([0.0, 500.0, 2000.0]), solver=cjx.Rodas5P())
        >>> [int(cjx.num_clusters(x, radius=0.1)) for x in traj.xs], bool(traj.stats["num_steps"] < 200)
        ([2, 2, 1], True)
        ```

    **Arguments:**

    - `max_growth`: The largest length of a step, in e-foldings of the fastest-growing perturbation, which the solver
        tracks, by default 1; None is no bound. Without a bound a run that passes an unstable equilibrium within the
        tolerance may leave it at a wrong time.

    **Raises:**

    - `ValueError` if `max_growth` is not positive.

    ??? cite "Source"

        Steinebach, *Construction of Rosenbrock-Wanner method Rodas5P* (BIT Numerical Mathematics 63, 27, 2023).
    """

    max_growth: float | None = eqx.field(converter=_check_max_growth, static=True)

    # The `__init__` of a dataclass would let equinox flatten its arguments before the converter checks them.
    def __init__(self, max_growth: float | int | None = MAX_GROWTH):
        self.max_growth = max_growth  # pyright: ignore[reportAttributeAccessIssue]

    term_structure: ClassVar = dfx.AbstractTerm

    @property
    def interpolation_cls(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return _Interpolation

    def order(self, terms: PyTree) -> int:
        return 5

    def error_order(self, terms: PyTree) -> float:
        return 5.0

    def init(self, terms: PyTree, t0: Time, t1: Time, y0: Array, args: PyTree) -> PyTree:
        # The state is the perturbation that the solver tracks, and its rate of growth.
        return _generic(y0), jnp.zeros((), y0.dtype)

    def func(self, terms: PyTree, t0: Time, y0: Array, args: PyTree) -> Array:
        return terms.vf(t0, y0, args)

    def step(
        self, terms: PyTree, t0: Time, t1: Time, y0: Array, args: PyTree, solver_state: PyTree, made_jump: bool | Array
    ):
        t0, t1 = jnp.asarray(t0, y0.dtype), jnp.asarray(t1, y0.dtype)
        # Functions with a rule must not close over traced arrays.
        arrays, static = eqx.partition((terms, args), eqx.is_array)

        def single(t0, t1, y0, state, arrays):
            # diffrax stores the direction of time as an integer, whose weak type is lost here.
            with jax.numpy_dtype_promotion("standard"):
                terms, args = eqx.combine(arrays, static)
                return _step(terms, args, t0, t1, y0, state, self.max_growth)

        # A batched decomposition is faster on all backends except the CPU.
        run = call_with_rule if jax.default_backend() == "cpu" else lambda plain, rule, *operands: plain(*operands)
        y1, error, dense, state = run(single, _one_by_one(single), t0, t1, y0, solver_state, arrays)
        return y1, error, {"y0": y0, "y1": y1, "polynomial": dense}, state, dfx.RESULTS.successful


def _step(terms, args, t0, t1, y0: Array, state, max_growth):
    """The end of the step, its error estimate, the coefficients of the interpolant, and the next state."""
    equation = Equation(terms)
    # `span` is the length in the time of diffrax, which always increases; h has a sign.
    span, h = t1 - t0, jnp.asarray(terms.contr(t0, t1), y0.dtype)
    linear = linearise(equation, t0, y0, args)
    solve, solve_tangent = linear.solver(_GAMMA * h)
    constant = lambda numbers: jnp.asarray(numbers, y0.dtype)
    stages, coupling, times = constant(_padded(_STAGES)), constant(_padded(_COUPLING)), constant(_TIMES)
    by_time = constant(_padded((_TIME_DERIVATIVE,))[0])

    def stage(i, k):
        # Rounding must not move the time beyond t1, where a parameter may jump.
        time = jnp.where(times[i] == 1, t1, t0 + times[i] * span)
        velocity = equation(time, y0 + tensordot(stages[i], k, 1), args)
        right = h * (velocity + span * by_time[i] * linear.by_time) + tensordot(coupling[i], k, 1)
        return k.at[i].set(solve(_GAMMA * right))

    # A loop compiles the field once for all stages; the coefficients above the diagonal are zero.
    k = lax.fori_loop(0, 8, stage, jnp.zeros((8, *y0.shape), y0.dtype))
    y1 = equation.projected(y0, y0 + tensordot(constant((*_LAST, 1.0, 1.0, 1.0)), k, 1))
    error = k[7]
    if max_growth is not None:
        before, state = state[1], _fastest_growth(linear, solve_tangent, jnp.sign(h), state)
        # An infinite error rejects the step, whatever the controller and its tolerances.
        too_long = span * jnp.maximum(before, state[1]) > max_growth
        error = jnp.where(too_long, jnp.inf, error)
    return y1, error, tensordot(constant(_DENSE), k, 1), state


def _fastest_growth(linear: Linearised, solve_tangent, sign, state):
    """The perturbation after the step, and its rate of growth, an estimate of the largest eigenvalue of J.

    Five implicit Euler steps of length gamma h, about h in total, use the available decomposition; a Rayleigh quotient
    follows. Growing directions come to dominate as in the flow itself. A generic vector is added each time, so that a
    direction that begins to grow late is found too.
    """
    unit = lambda u: u / jnp.maximum(jnp.linalg.norm(u), jnp.finfo(u.dtype).tiny)
    generic = linear.coordinates(_generic(state[0]))
    u = lax.stop_gradient(unit(linear.coordinates(state[0])) + 0.1 * unit(generic))
    for _ in range(5):
        u = unit(solve_tangent(u))
    u = lax.stop_gradient(u)
    rate = sign * matmul(u, matmul(lax.stop_gradient(linear.jacobian), u))
    return linear.vector(u), rate


def _generic(y: Array) -> Array:
    """A vector of the shape of y in a generic direction, which is orthogonal to no particular vector."""
    return jnp.cos(jnp.square(jnp.arange(1, y.size + 1, dtype=y.dtype))).reshape(y.shape)


def _one_by_one(single):
    """The rule of a batch: its runs are stepped one after another, as fast on a CPU, without those that have ended."""

    def rule(batched, *arguments):
        leaves, tree = jtu.tree_flatten(arguments)
        flags = jtu.tree_leaves(batched)

        def of_run(own):
            own = iter(own)
            t0, t1, y0, state, arrays = jtu.tree_unflatten(
                tree, [next(own) if flag else leaf for leaf, flag in zip(leaves, flags, strict=True)]
            )
            outputs = jax.eval_shape(single, t0, t1, y0, state, arrays)
            at_rest = lambda: (y0, jnp.zeros_like(y0), jnp.zeros(outputs[2].shape, y0.dtype), state)
            # diffrax steps a run that has ended further, by steps of length zero, until all runs have ended.
            return lax.cond(t0 == t1, at_rest, lambda: single(t0, t1, y0, state, arrays))

        return lax.map(of_run, [leaf for leaf, flag in zip(leaves, flags, strict=True) if flag])

    return rule


class _Interpolation(dfx.AbstractLocalInterpolation):
    """The polynomial of degree 4 within one step."""

    t0: Any
    t1: Any
    y0: Array
    y1: Array
    polynomial: Array

    def evaluate(self, t0, t1=None, left: bool = True) -> Array:
        if t1 is not None:
            # diffrax requires the increment from t0 to t1.
            return self.evaluate(t1, left=left) - self.evaluate(t0, left=left)
        span = self.t1 - self.t0
        share = jnp.where(span == 0, 0, (t0 - self.t0) / jnp.where(span == 0, 1, span)).astype(self.y0.dtype)
        second, third, fourth = self.polynomial
        inner = second + share * (third + share * fourth)
        return (1 - share) * self.y0 + share * (self.y1 + (1 - share) * inner)


# Over the accepted times the rounding errors of velocities add up to at most this angle, in radians.
_MOST_DRIFT = 1e-3


def check_suits(solver: Any, field: AbstractField, ts: Array, *, adjoint: Any, noise: Any, sharded: bool) -> None:
    """Raise a ValueError if `solver` is a `Rodas5P` that cannot solve this run."""
    if not isinstance(solver, Rodas5P):
        return
    if noise is not None:
        raise ValueError("noise must be None with Rodas5P, which solves no stochastic equation; leave the solver out.")
    if sharded:
        raise ValueError(
            "x0 must lie on one device with Rodas5P, whose decompositions are of all tokens at once, but it is cut "
            "over several; pass it whole, or leave the solver out."
        )
    if isinstance(adjoint, dfx.BacksolveAdjoint):
        raise ValueError(
            "adjoint must not be BacksolveAdjoint with Rodas5P, since a flow that contracts cannot be run backwards; "
            "leave it out."
        )
    parts = jtu.tree_leaves(
        field, is_leaf=lambda part: isinstance(part, HardmaxAttention | MultiHeadField | RescaledField)
    )
    if any(isinstance(part, RescaledField) for part in parts):
        raise ValueError(
            "solver must not be Rodas5P with RescaledField, whose attention becomes a hardmax as t grows, with a "
            "velocity that jumps; leave it out."
        )
    if any(map(is_hardmax, parts)):
        raise ValueError(
            "solver must not be Rodas5P with HardmaxAttention, whose velocity jumps and has no Jacobian there; "
            "leave it out."
        )
    if is_concrete(ts):
        span, longest = float(np.ptp(np.asarray(ts))), _MOST_DRIFT / float(jnp.finfo(ts.dtype).eps)
        if span > longest:
            # Where the times already have float64, the remedy cannot be to use float64.
            remedy = "pass x0 in float64, with jax_enable_x64 set" if ts.dtype == jnp.float32 else "end earlier"
            raise ValueError(
                f"ts must span at most {longest:.3g} with Rodas5P in {ts.dtype}, but it spans {span:.3g}: by then the "
                f"rounding of velocities has moved tokens by {_MOST_DRIFT}; {remedy}."
            )
