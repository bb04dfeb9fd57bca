"""`propagator`: the derivative of the tokens of a run with respect to its start, as matrices over time.

**Algorithm.** Tokens x and perturbations u are integrated together, by x' = f(x) and the variational equation u' = J u,
so that steps are as short as the perturbations need: at rest the tokens alone would need none. **Invariants.** On the
sphere the matrices map radial vectors to zero, and every vector to a tangent vector. Propagators of two parts of a run
multiply.
"""

from typing import Any

import diffrax as dfx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.checks import check_room
from .._base.defaults import MAX_STEPS
from .._base.types import RealScalarLike, Tokens
from .._model.field import AbstractField
from .._model.space import AbstractSpace, Euclidean
from .simulate import check_start, check_times, simulate


def propagator(
    field: AbstractField,
    x0: Tokens,
    ts: Float[Array, " times"],
    args: Any = None,
    *,
    solver: dfx.AbstractSolver | None = None,
    stepsize_controller: dfx.AbstractStepSizeController | None = None,
    dt0: RealScalarLike | None = None,
    max_steps: int = MAX_STEPS,
) -> Float[Array, "times nd nd"]:
    """$M(t) = ∂x(t)/∂x_0$ at the times `ts`: a small perturbation u of the start becomes $M(t)u$.

    M(t) solves the variational equation $Ṁ = JM$ along the run. On the sphere M(t) maps the tangent space of the start
    to that of the tokens at t, and radial vectors to zero; at `ts[0]` it is the projection onto the tangent space. The
    singular values of M(t) say how much perturbations grow, and do not depend on coordinates. `non_normality` and
    `kreiss_constant` compare its directions at the start with those at t, in the coordinates of $R^{nd}$.

    For many tokens the action on one perturbation u needs no matrix: `jax.jvp` of `simulate` with
    `adjoint=diffrax.ForwardMode()`.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> x0 = jnp.array([[1.0, 0.0], [0.6, 0.8]])
        >>> field = cjx.AttentionField(cjx.SoftmaxAttention(0.0))
        >>> matrices = cjx.propagator(field, x0, jnp.array([0.0, 9.0]))
        >>> print(jnp.linalg.svd(matrices[-1], compute_uv=False).round(3) + 0.0)  # both tokens end at one point
        [1. 0. 0. 0.]
        ```

    **Arguments:**

    - `field`, `x0`, `ts`, `args`: As for `simulate`.
    - `solver`, `stepsize_controller`, `dt0`, `max_steps`: As for `simulate`; errors of perturbations count too.

    **Returns:**

    One matrix of n d rows for each time; entry i d + a of a perturbation is coordinate a of token i. Differentiable.

    **Raises:**

    - `ValueError` as `simulate`, or if the matrices do not fit in memory.

    ??? cite "Source"

        Hairer, Nørsett and Wanner, *Solving Ordinary Differential Equations I*, Section I.14: the variational equation.
    """
    x0 = check_start(field, x0)
    ts = check_times(ts, x0.dtype)
    n, d = x0.shape
    num_bytes = 4 * len(ts) * (n * d) ** 2 * x0.dtype.itemsize
    remedy = "pass fewer tokens or times, or use jax.jvp of simulate"
    check_room(n, "x0", num_bytes, f"matrices of {n * d} rows at {len(ts)} times", remedy=remedy)
    space = field.space
    # Column k of the matrix is perturbation k, (n, d).
    stretched = jnp.moveaxis(jax.jacfwd(space.retract)(x0), (2, 3), (0, 1)).reshape(-1, d)
    options = {"solver": solver, "stepsize_controller": stepsize_controller, "dt0": dt0, "max_steps": max_steps}
    start = jnp.concatenate([space.retract(x0), stretched])
    states = simulate(_Variational(field, n), start, ts, args, **options).xs

    def at(state: Float[Array, "rows d"]) -> Float[Array, "nd nd"]:
        push = lambda u: jax.jvp(space.retract, (state[:n],), (u,))[1]
        return jax.vmap(push)(state[n:].reshape(-1, n, d)).reshape(n * d, n * d).T

    return jax.vmap(at)(states)


class _Variational(AbstractField):
    """Tokens, the first n rows, and perturbations of them, n rows each."""

    field: AbstractField
    n: int

    @property
    def space(self) -> AbstractSpace:
        """All of R^d, since perturbations are not points of the space of the tokens."""
        return Euclidean()

    def __call__(self, t: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        velocity, push = jax.linearize(lambda tokens: self.field(t, tokens, args), x[: self.n])
        pushed = jax.vmap(push)(x[self.n :].reshape(-1, self.n, x.shape[1]))
        return jnp.concatenate([velocity, pushed.reshape(-1, x.shape[1])])

    def check(self, n: int, d: int) -> None:
        pass  # the field was checked with its own tokens
