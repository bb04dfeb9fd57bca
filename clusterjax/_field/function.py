"""`FunctionField`: a field from a function of t, x and args."""

from collections.abc import Callable
from typing import Any

import equinox as eqx

from .._check import call_traced, check_array, check_callable
from .._custom_types import RealScalarLike, Tokens
from .._schedule import check_time
from .._space import AbstractSpace, Sphere, check_space
from .base import AbstractField


_WHAT = "a function of t, x and args"


def _check_velocity(fn: Callable[..., Any]) -> Callable[..., Any]:
    return check_callable(fn, "fn", _WHAT, takes=3)


class FunctionField(AbstractField):
    r"""$\dot x = P_x\, f(t, x, \text{args})$: a field from a function, on a space.

    Evaluated at `space.retract(x)` and projected onto the tangent space, so that on the sphere any function of tokens
    will do. It adds to other fields, and everything that takes a field takes it.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> def towards_mean(t, x, args):
        ...     return args * jnp.broadcast_to(x.mean(axis=0), x.shape)
        ...
        >>> drift = cjx.FunctionField(towards_mean, cjx.Sphere())
        >>> traj = cjx.simulate(drift, jnp.eye(3), jnp.array([0.0, 9.0]), 2.0)
        >>> [int(cjx.num_clusters(x, radius=0.1)) for x in traj.xs]
        [3, 1]
        ```

    **Arguments:**

    - `fn`: `fn(t, x, args)` returns a velocity of the shape (n, d) of the tokens `x`, as jax arrays. A function or an
        `equinox.Module` that can be called; arrays of a module are parameters, which may be differentiated.
    - `space`: `Sphere()` or `Euclidean()`.

    **Raises:**

    - `ValueError` if `fn` does not take three arguments or `space` is not a space; on use, if `fn` returns another
        shape.
    """

    fn: Callable[..., Any] = eqx.field(converter=_check_velocity)
    space: AbstractSpace = Sphere()

    def __check_init__(self):
        check_space(self.space)

    def __call__(self, t: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        check_time(t)
        y = self.enter(x)
        # Any function of tokens becomes a vector field of the space: it is evaluated on it, and projected.
        velocity, remedy = call_traced(self.fn, "fn", _WHAT, t, y, args), "return the velocity of each token"
        velocity = check_array(velocity, "fn(t, x, args)", shape=y.shape, finite=False, remedy=remedy)
        return self.space.tangent(y, velocity.astype(y.dtype))

    def check(self, n: int, d: int) -> None:
        pass  # a function does not say which shapes it takes: that is checked when it is called
