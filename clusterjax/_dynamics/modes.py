"""The linearised flow at a state: `modes`, its eigenvalues and eigenvectors, and `lipschitz`, its largest stretch.

A perturbation u of tokens x moves with $u̇ = J u$, $J u = P_x Df(x) u$, in coordinates of an orthonormal basis of the
tangent space: n (d - 1) numbers on the sphere, n d in R^d. **Algorithm.** No matrix is formed if there are many
coordinates: J acts by forward mode (`jax.jvp`), J^T by its transposition. Eigenvalues are found by the implicitly
restarted Arnoldi method of ARPACK, through SciPy. A Krylov space of one vector need not contain every copy of a
repeated eigenvalue. Each search is therefore followed by another in the orthogonal complement of the invariant subspace
that was found, until the complement holds no eigenvalue that belongs to the answer. **Reference.** Lehoucq, Sorensen
and Yang, *ARPACK Users' Guide* (SIAM, 1998); Saad, *Numerical Methods for Large Eigenvalue Problems* (SIAM, 2011),
Section 4.2, on deflation. **Invariants.** Each residual is computed anew from the mode that is returned; matrix-free
and dense results agree up to rounding.
"""

from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Complex, Float, Int

from .._base.checks import (
    check_args,
    check_choice,
    check_concrete,
    check_flag,
    check_integer,
    check_number,
    check_room,
    check_tokens,
    refusal,
)
from .._base.numerics import einsum
from .._base.summary import short
from .._base.types import RealScalarLike, Tokens
from .._model.attention import HardmaxAttention
from .._model.field import AbstractField, check_field
from .._model.heads import MultiHeadField, is_hardmax
from .._model.schedule import check_time
from .._model.space import Sphere, check_directions, tangent_basis
from .._observables import cluster_labels


Which = Literal["slowest", "fastest", "growing"]
# The names of these orders in ARPACK.
_ARPACK = {"slowest": "SM", "fastest": "LM", "growing": "LR"}
# A matrix of at most this many rows is decomposed whole, which takes less time than an iteration.
_DENSE = 1024
# The largest number of restarts of an Arnoldi iteration.
_RESTARTS = 300
# The relative error of an eigenvalue at which it has converged, in units of rounding. The locked directions have an
# eigenvalue ten times as large as the others, whose rounding errors are of some ten units.
_CONVERGED = 100
# An eigenvalue of the complement counts as missed if it precedes the last one by more than this share of the largest.
_MISSED = 1e-6


class Modes(eqx.Module):
    """Eigenvalues and eigenvectors of the linearised flow at a state.

    **Attributes:**

    - `values`: (k,), the eigenvalues: their real parts are the rates at which perturbations grow.
    - `modes`: (k, n, d), the eigenvectors, each a tangent vector for every token, with norm one. The largest entry of
        each is real and positive.
    - `residuals`: (k,), the norms |J u - lambda u|, computed from the modes and values that are returned.
    - `total`: The number of all modes, n (d - 1) on the sphere and n d in R^d.
    """

    values: Complex[np.ndarray, " k"]
    modes: Complex[np.ndarray, "k n d"]
    residuals: Float[np.ndarray, " k"]
    total: int

    __repr__ = short

    def memberships(self, rate: float | int) -> Int[np.ndarray, " n"]:
        r"""The cluster of each token, from the modes that are slower than `rate`.

        In a slow mode the tokens of a cluster move together: their entries are equal. With an orthonormal basis of the
        slow modes, of which token i has the rows $Z_i$, tokens of one cluster have equal rows, and those of two
        clusters of $n_a$ and $n_b$ tokens have $|Z_i - Z_j|^2 = (d - 1)(1/n_a + 1/n_b)$, if all slow modes are there.
        Tokens are joined if $√n |Z_i - Z_j| ≤ 1$.

        **Arguments:**

        - `rate`: The absolute value of an eigenvalue below which a mode is slow, such as 0.1 where tokens within a
            cluster contract at rate 1. The rate defines the clusters and has no default.

        **Returns:**

        One integer for each token, as `cluster_labels` counts them: the index of the first member of its cluster.

        **Raises:**

        - `ValueError` if no mode is slower than `rate`, or all of them are, so that slow modes may be missing.
        """
        rate = check_number(rate, "rate", above=0)
        speeds = np.abs(self.values)
        slow = speeds <= rate
        if not slow.any():
            raise refusal(
                "rate", "be at least the speed of one mode", f"it is {rate}, and the slowest has {speeds.min():.3g}",
                'raise it, or pass modes with which="slowest"',
            )  # fmt: skip
        if slow.all() and len(slow) < self.total:
            raise refusal(
                "rate", "be below the speed of one mode", f"it is {rate}, and the fastest has {speeds.max():.3g}",
                "lower it, or pass more modes, so that none of the slow ones is missing",
            )  # fmt: skip
        n, d = self.modes.shape[1:]
        chosen = self.modes[slow].reshape(-1, n * d)
        basis = _span(np.concatenate([np.real(chosen), np.imag(chosen)]).T)
        rows = np.sqrt(n) * basis.reshape(n, -1)
        return np.asarray(cluster_labels(jnp.asarray(rows), 1.0))


def modes(
    field: AbstractField,
    x: Tokens,
    k: int,
    t: RealScalarLike = 0.0,
    args: Any = None,
    *,
    which: Which = "slowest",
    moving: bool = False,
) -> Modes:
    """Eigenvalues and modes of the flow that is linearised at the tokens `x`: $u̇ = J u$, $J u = P_x Df(x) u$.

    Where `x` rests, perturbations grow as $e^{λt}$. Where it moves, J is the covariant derivative of the velocity: the
    rates are those of a frame that is parallel along the curve of the tokens, at this moment. In the direction of the
    velocity v itself, J only tells how the speed changes. With `moving` J is replaced by Q J Q, where Q removes the
    direction of v: this leaves the perturbations across the curve, in the frame that moves with the tokens.

    Directions in which the field is symmetric have the eigenvalue zero at rest: with V = B = I the d (d - 1)/2
    rotations of all tokens are among the slowest modes.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> angles = jnp.array([0.0, 0.0, 1.5, 1.5, 1.5])
        >>> x = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
        >>> found = cjx.modes(cjx.AttentionField(cjx.SoftmaxAttention(9.0)), x, 5)
        >>> print(found.values.real.round(3) + 0.0)  # a rotation, the approach of two clusters, three contractions
        [ 0.     0.004 -0.997 -0.998 -0.998]
        >>> found.memberships(rate=0.1).tolist()
        [0, 0, 2, 2, 2]
        ```

    The result is computed on the host and has no derivatives. Its precision is that of `x`: eigenvalues below about
    1e-7 (float32) or 1e-15 (float64) of the largest are rounding errors. At large beta the rates at which clusters
    approach each other are that small; `coarsen` follows them.

    **Arguments:**

    - `field`: The field, whose weights must be smooth in the tokens: any but that of hardmax attention.
    - `x`: Tokens, (n, d), which are retracted to the space first.
    - `k`: The number of modes, up to all n (d - 1) on the sphere and n d in R^d.
    - `t`, `args`: The time and the arguments of the field.
    - `which`: "slowest", the eigenvalues of smallest absolute value, whose time scale $1/|λ|$ is longest; "fastest",
        those of largest; "growing", those of largest real part.
    - `moving`: Whether the direction of the velocity is removed, as above.

    **Returns:**

    `Modes`, in the order of `which`.

    **Raises:**

    - `ValueError` if `x` does not fit the field, is traced or not of float32 or float64, the field has hardmax
        attention, `k` is larger than the number of modes, or `moving` is True and the tokens rest up to rounding.
    - `RuntimeError` if the iteration does not converge, which takes more than 1,024 coordinates.

    ??? cite "Source"

        Lehoucq, Sorensen and Yang, *ARPACK Users' Guide* (SIAM, 1998), through SciPy; the covariant derivative: Absil,
        Mahony and Sepulchre, *Optimization Algorithms on Matrix Manifolds*, Section 5.3.
    """
    flow = _flow(field, x, t, args)
    check_choice(which, "which", get_args(Which))
    removed = _direction(flow) if check_flag(moving, "moving") else np.zeros((flow.size, 0))
    total = flow.size - removed.shape[1]
    k = check_integer(k, "k", most=total, remedy=f"pass at most {total}, the number of modes")
    if flow.size <= _DENSE or 4 * k >= total:
        values, vectors = _all_modes(flow, removed)
    else:
        values, vectors = _some_modes(flow, removed, k, which)
    order = _order(values, which)[:k]
    values, vectors = values[order], vectors[:, order]
    # The phase of an eigenvector is arbitrary; the choice makes results comparable.
    largest = [ambient.flat[np.abs(ambient).argmax()] for ambient in map(flow.vector, vectors.T)]
    vectors = vectors / (np.asarray(largest) / np.abs(largest) * np.linalg.norm(vectors, axis=0))
    dtype = np.complex64 if flow.x.dtype == jnp.float32 else np.complex128
    values, vectors = values.astype(dtype), vectors.astype(dtype)
    across = lambda u: u - removed @ (removed.T @ u)
    images = (across(flow.push(across(u.real))) + 1j * across(flow.push(across(u.imag))) for u in vectors.T)
    residuals = [np.linalg.norm(image - value * u) for image, value, u in zip(images, values, vectors.T, strict=True)]
    ambient = np.stack([flow.vector(u) for u in vectors.T]).astype(dtype)
    return Modes(values, ambient, np.asarray(residuals, values.real.dtype), total)


def lipschitz(field: AbstractField, x: Tokens, t: RealScalarLike = 0.0, args: Any = None) -> float:
    """The local Lipschitz constant of the field at `x`: the largest singular value of J, $J u = P_x Df(x) u$.

    To first order, a perturbation of the tokens changes their velocity by at most this constant times the norm of the
    perturbation. The constant is at least the absolute value of every eigenvalue of J.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> x = jnp.concatenate([jnp.array([[9.0, 0.0]]), jnp.tile(jnp.array([1.0, 0.0]), (99, 1))])
        >>> field = cjx.AttentionField(cjx.SoftmaxAttention(4.0), space=cjx.Euclidean())
        >>> round(cjx.lipschitz(field, x), 3)  # all 100 tokens attend to the first alone
        10.0
        ```

    **Arguments:**

    - `field`, `x`, `t`, `args`: As for `modes`.

    **Returns:**

    A float, not negative.

    **Raises:**

    - `ValueError` if `x` does not fit the field, is traced or not of float32 or float64, or the field has hardmax
        attention.
    - `RuntimeError` if the iteration does not converge, which takes more than 1,024 coordinates.

    ??? cite "Source"

        Castin, Ablin and Peyré, *How smooth is attention?* (2312.14820): for n tokens of a bounded set the constant of
        softmax attention is at most of the order of √n, and this order is attained. The largest eigenvalue of $J^T J$
        by the Lanczos method of ARPACK, through SciPy.
    """
    flow = _flow(field, x, t, args)
    if flow.size <= _DENSE:
        return float(np.linalg.norm(flow.matrix(), 2))
    from scipy.sparse.linalg import eigsh  # imported here, since the import takes as long as a small run

    squared = _operator(flow, lambda u: flow.pull(flow.push(u)))
    try:
        eigenvalues: Any = eigsh(squared, 1, v0=_start(flow), which="LA", maxiter=_RESTARTS, return_eigenvectors=False)
    except Exception as error:
        raise _unfinished(error, 1) from error
    return float(np.sqrt(max(eigenvalues[0], 0.0)))


class _Flow(eqx.Module):
    """The linearised flow at a state, in coordinates of the tangent space."""

    field: AbstractField
    x: Array
    t: Any
    args: Any
    # None in R^d, where the coordinates are those of the tokens.
    basis: Float[Array, "n d k"] | None

    @property
    def size(self) -> int:
        """The number of coordinates."""
        n, d = self.x.shape
        return n * (d if self.basis is None else d - 1)

    def velocity(self) -> np.ndarray:
        return np.asarray(self._coordinates(self.field(self.t, self.x, self.args)))

    def push(self, u: np.ndarray) -> np.ndarray:
        """J u."""
        return np.asarray(_push(self, jnp.asarray(u, self.x.dtype)))

    def pull(self, u: np.ndarray) -> np.ndarray:
        """J^T u."""
        return np.asarray(_pull(self, jnp.asarray(u, self.x.dtype)))

    def matrix(self) -> np.ndarray:
        """J, in double precision."""
        content = f"J, with {self.size} rows, and what its eigenvalues take"
        check_room(self.x.shape[0], "x", 6 * 8 * self.size**2, content, remedy="ask for fewer modes of as many tokens")
        return np.asarray(_matrix(self), float)

    def vector(self, u: Any) -> Any:
        """The tangent vector, (n, d), of coordinates u."""
        if self.basis is None:
            return u.reshape(self.x.shape)
        n, _, k = self.basis.shape
        if isinstance(u, np.ndarray):
            return np.einsum("ida,ia->id", self.basis, u.reshape(n, k))
        return einsum("ida,ia->id", self.basis, u.reshape(n, k))

    def _coordinates(self, v: Array) -> Array:
        return (v if self.basis is None else einsum("ida,id->ia", self.basis, v)).reshape(-1)

    def act(self, u: Array) -> Array:
        """J u, in jax."""
        velocity = lambda x: self.field(self.t, x, self.args)
        return self._coordinates(jax.jvp(velocity, (self.x,), (self.vector(u),))[1])


@eqx.filter_jit
def _push(flow: _Flow, u: Array) -> Array:
    return flow.act(u)


@eqx.filter_jit
def _pull(flow: _Flow, u: Array) -> Array:
    (image,) = jax.linear_transpose(flow.act, u)(u)
    return image


@eqx.filter_jit
def _matrix(flow: _Flow) -> Array:
    # The weights of each column of a block, n^2 numbers, exist at the same time.
    columns = max(1, 2**22 // flow.x.shape[0] ** 2)
    return jax.lax.map(flow.act, jnp.eye(flow.size, dtype=flow.x.dtype), batch_size=columns).T


def _flow(field: Any, x: Any, t: Any, args: Any) -> _Flow:
    """The checked arguments as a linearised flow."""
    check_field(field)
    x = check_tokens(x)
    for value, name in ((field, "field"), (x, "x"), (t, "t"), (args, "args")):
        check_concrete(value, name)
    if x.dtype not in (jnp.float32, jnp.float64):
        raise refusal("x", "be of float32 or float64", f"its dtype is {x.dtype}", "pass x.astype(jax.numpy.float32)")
    check_directions(field.space, x, "x")
    type(field).check(field, *x.shape)
    check_time(t)
    parts = jtu.tree_leaves(field, is_leaf=lambda part: isinstance(part, HardmaxAttention | MultiHeadField))
    if any(map(is_hardmax, parts)):
        raise refusal(
            "field", "have weights that are smooth in the tokens", "it has HardmaxAttention, whose weights jump",
            "use SoftmaxAttention with a large beta",
        )  # fmt: skip
    on_sphere = isinstance(field.space, Sphere)
    if on_sphere and x.shape[1] < 2:
        raise refusal("x", "have at least two dimensions on the sphere", "it has one", "pass tokens that can move")
    x = field.space.retract(x)
    return _Flow(field, x, jnp.asarray(t, x.dtype), check_args(args), tangent_basis(x) if on_sphere else None)


def _direction(flow: _Flow) -> np.ndarray:
    """The direction of the velocity, (size, 1), if it is larger than its rounding errors."""
    velocity = flow.velocity().astype(float)
    speed = np.linalg.norm(velocity)
    # The norm of J, estimated from its action on one vector, times the rounding error of the tokens.
    start = _start(flow)
    norm = np.sqrt(flow.size) * np.linalg.norm(flow.push(start)) / np.linalg.norm(start)
    rounding = float(jnp.finfo(flow.x.dtype).eps) * norm * float(np.linalg.norm(flow.x))
    if not speed > rounding:
        raise refusal(
            "moving",
            "be False where tokens rest",
            f"it is True, and the velocity {speed:.1e} is rounding",
            "leave it out",
        )
    return (velocity / speed)[:, None]


def _order(values: np.ndarray, which: Which) -> np.ndarray:
    """The indices that sort eigenvalues: by `which`, then by their real parts, then by their imaginary parts."""
    # Speeds are rounded to single precision, so that those of conjugate and repeated eigenvalues are equal.
    speed = np.abs(values).astype(np.float32)
    first = {"slowest": (speed,), "fastest": (-speed,), "growing": ()}[which]
    return np.lexsort((-np.imag(values), -np.real(values), *first))


def _all_modes(flow: _Flow, removed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All eigenvalues, and their eigenvectors as columns."""
    matrix = flow.matrix()
    if not removed.size:
        values, vectors = np.linalg.eig(matrix)
        return values.astype(complex), vectors.astype(complex)
    # An orthonormal basis whose first vector is the one that is removed.
    rest = np.linalg.qr(np.concatenate([removed, np.eye(flow.size)], axis=1))[0][:, removed.shape[1] :]
    values, vectors = np.linalg.eig(rest.T @ matrix @ rest)
    return values.astype(complex), rest @ vectors.astype(complex)


def _some_modes(flow: _Flow, removed: np.ndarray, k: int, which: Which) -> tuple[np.ndarray, np.ndarray]:
    """At least `k` eigenvalues, and their eigenvectors as columns, by deflated Arnoldi iterations."""
    values, basis = _arnoldi(flow, removed, k, which)
    while True:
        # The basis spans an invariant subspace of Q J Q, so that the eigenvalues there are exact.
        image = np.stack([flow.push(u) for u in basis.T], axis=1).astype(float)
        values, vectors = np.linalg.eig(basis.T @ image)
        last = complex(values[_order(values, which)[k - 1]])
        others, more = _arnoldi(flow, np.concatenate([removed, basis], axis=1), 1, which)
        if not _precedes(others, last, float(np.abs(values).max()), which):
            return values.astype(complex), basis @ vectors.astype(complex)
        basis = _span(np.concatenate([basis, more], axis=1))


def _precedes(others: np.ndarray, last: complex, largest: float, which: Which) -> bool:
    """Whether one of `others` belongs before `last` in the order of `which`, by more than rounding."""
    measure = {"slowest": lambda z: -np.abs(z), "fastest": np.abs, "growing": np.real}[which]
    return bool(np.any(measure(others) > measure(last) + _MISSED * largest))


def _arnoldi(flow: _Flow, locked: np.ndarray, k: int, which: Which) -> tuple[np.ndarray, np.ndarray]:
    """`k` eigenvalues in the orthogonal complement of `locked`, and an orthonormal basis of their eigenvectors."""
    from scipy.sparse.linalg import eigs

    # An earlier start has only one component in the eigenspace of a repeated eigenvalue, and the locked vectors may
    # contain that component. Each search therefore begins with a different start.
    start = _start(flow, locked.shape[1])
    scale = np.linalg.norm(flow.push(start)) * np.sqrt(flow.size) / np.linalg.norm(start)
    # Locked directions get an eigenvalue that is not wanted.
    put = {"slowest": 10 * scale, "fastest": 0.0, "growing": -10 * scale}[which]

    def act(u):
        along = locked.T @ u
        image = flow.push(u - locked @ along)
        return image - locked @ (locked.T @ image) + put * (locked @ along)

    size = min(flow.size, max(4 * k, 40))
    try:
        operator = _operator(flow, act)
        # SciPy has no types for what it returns, and a wrong type for the tolerance.
        tolerance: Any = _CONVERGED * float(jnp.finfo(flow.x.dtype).eps)
        eigenpairs: Any = eigs(
            operator, k, v0=start, which=_ARPACK[which], ncv=size, maxiter=_RESTARTS, tol=tolerance
        )  # fmt: skip
    except Exception as error:
        raise _unfinished(error, k) from error
    values, vectors = eigenpairs[0], eigenpairs[1] - locked @ (locked.T @ eigenpairs[1])
    return values, _span(np.concatenate([vectors.real, vectors.imag], axis=1))


def _operator(flow: _Flow, act: Any) -> Any:
    import scipy.sparse.linalg

    # Type checkers do not see that the constructor returns another class.
    operator: Any = scipy.sparse.linalg.LinearOperator
    return operator((flow.size, flow.size), matvec=act, dtype=flow.x.dtype)


def _start(flow: _Flow, number: int = 0) -> np.ndarray:
    """A vector in a generic direction, the same in every call with this number."""
    return np.random.default_rng(number).normal(size=flow.size).astype(flow.x.dtype)


def _span(columns: np.ndarray) -> np.ndarray:
    """An orthonormal basis of the span of the columns, up to their rounding errors."""
    left, singular, _ = np.linalg.svd(columns.astype(float), full_matrices=False)
    return left[:, singular > 1e-6 * singular[0]]


def _unfinished(error: Exception, k: int) -> Exception:
    """The error of an iteration that did not converge."""
    from scipy.sparse.linalg import ArpackError

    if not isinstance(error, ArpackError):
        return error
    failure = f"The iteration for {k} mode{'s' if k > 1 else ''} did not converge in {_RESTARTS} restarts"
    return RuntimeError(f"{failure}: {error}; ask for another number of modes, or for other ones.")
