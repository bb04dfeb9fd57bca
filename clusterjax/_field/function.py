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

    The function is evaluated at `space.retract(x)` and projected onto the tangent space, so that on the sphere any
    function of tokens is allowed. The field can be added to other fields, and used wherever a field is.

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

    - `fn`: `fn(t, x, args)` returns a velocity of the shape (n, d) of the tokens `x`, as a jax array. It is a function
        or a callable `equinox.Module`, whose arrays are parameters that may be differentiated.
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
        # Evaluation on the space and projection make a vector field of the space from any function of tokens.
        velocity, remedy = call_traced(self.fn, "fn", _WHAT, t, y, args), "return the velocity of each token"
        velocity = check_array(velocity, "fn(t, x, args)", shape=y.shape, finite=False, remedy=remedy)
        return self.space.tangent(y, velocity.astype(y.dtype))

    def check(self, n: int, d: int) -> None:
        pass  # the shapes that a function accepts are known only when it is called
