r"""`Rodas5P`: a linearly implicit Rosenbrock method for very long times.

**Algorithm.** With the Jacobian J at the start of a step of length h, one LU decomposition of I - h gamma J serves
eight stages, $k_i = (I - h\gamma J)^{-1} \gamma (h f(t + c_i h, y + \sum_j a_{ij} k_j) + h^2 d_i f_t + \sum_j C_{ij}
k_j)$; the step is $y + \sum_i b_i k_i$ and its error estimate is $k_8$. A batch under `jax.vmap` is stepped one run
after another, without the runs that have ended.

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
from jaxtyping import Array, PyTree

from .._batching import call_with_rule
from .._check import check_number
from .._misc import matmul, tensordot
from .retract import Time
from .tangent import Equation, Linearised, linearise


# The coefficients, in the form in which J is not multiplied by vectors.
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
    if max_growth is None:
        return None
    return float(check_number(max_growth, "max_growth", above=0, remedy="pass a number of e-foldings, or None"))


class Rodas5P(dfx.AbstractAdaptiveSolver):
    r"""An implicit solver for very long, stiff runs: `simulate(..., solver=Rodas5P())` reaches t = 1e8 in a few hundred
    steps, where clusters have formed and drift by $e^{-\beta(1 - c)}$.

    The steps of an explicit solver remain near 3, since tokens within a cluster contract at rates near 1, and the run
    stops at `max_steps`. `Rodas5P` is L-stable: its steps grow as long as the error allows, and shrink when clusters
    merge. The method is linearly implicit: it needs no Newton iteration, but one Jacobian (in closed form for softmax
    and unnormalised attention) and one LU decomposition per step, of size n (d - 1) on the sphere: (n d)^2 numbers and
    (n d)^3 operations, for up to some hundred tokens. Until clusters form, at t of about 20, `diffrax.Tsit5` is
    cheaper.

    Under `jax.vmap` runs that have ended cost nothing. If V rotates (complex eigenvalues), the tokens rotate for ever,
    and the period bounds the steps. In float32 velocities are rounded to 1e-7, and `simulate` refuses times over which
    this rounding matters.

    The order is 5. The solver is differentiable, in forward and reverse mode, also for a user's field and for any
    equation of `diffrax.diffeqsolve` whose state is one real array. It does not support noise, nor hardmax, whose
    velocity jumps, nor `RescaledField`, whose attention tends to hardmax. On the sphere each step preserves all norms.

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
        tracks; None is no bound. Without a bound a run that passes an unstable equilibrium within the tolerance may
        leave it at a wrong time.

    **Raises:**

    - `ValueError` if `max_growth` is not positive.

    ??? cite "Source"

        Steinebach, *Construction of Rosenbrock-Wanner method Rodas5P* (BIT Numerical Mathematics 63, 27, 2023).
    """

    max_growth: float | None = eqx.field(converter=_check_max_growth, static=True)

    # The `__init__` of a dataclass would let equinox flatten its arguments before the converter checks them.
    def __init__(self, max_growth: float | int | None = 1.0):
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
        self,
        terms: PyTree,
        t0: Time,
        t1: Time,
        y0: Array,
        args: PyTree,
        solver_state: PyTree,
        made_jump: bool | Array,
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
        run = call_with_rule if jax.default_backend() == "cpu" else lambda plain, rule, *given: plain(*given)
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
