"""`iterate`: applies a layer many times, in one compiled scan.

The scans are nested: the inner scan applies `save_every` layers, the outer scan saves. The layer number is traced, so
that no loop is unrolled. Invariant: `xs[k]` are the tokens after `k * save_every` layers, `xs[0]` the retracted start.
"""

from typing import Any

import diffrax as dfx
import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from .._base.checks import check_args, check_instance, check_integer, check_room, check_tokens
from .._base.summary import Setup
from .._base.types import Tokens
from .._model.layer import AbstractLayer
from .._model.schedule import check_schedules
from .._model.space import check_directions
from .._trajectory.interpolants import Stored
from .._trajectory.trajectory import Trajectory


def iterate(layer: AbstractLayer, x0: Tokens, depth: int, args: Any = None, *, save_every: int = 1) -> Trajectory:
    """Apply `layer` `depth` times to `x0`: `x_{k+1} = layer(k, x_k, args)`.

    The layers run in one compiled scan, whatever the depth. Parameters are arrays, whose new values do not compile
    again. The function is differentiable and can be mapped by `jax.vmap`.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax
        >>> layer = cjx.ResidualLayer(cjx.AttentionField(cjx.SoftmaxAttention(2.0)), 0.5)
        >>> x0 = cjx.Sphere().sample(jax.random.key(0), n=8, d=8)
        >>> traj = cjx.iterate(layer, x0, depth=40, save_every=20)
        >>> [(int(layers), int(cjx.num_clusters(x, radius=0.1))) for layers, x in zip(traj.ts, traj.xs)]
        [(0, 8), (20, 1), (40, 1)]
        ```

    **Arguments:**

    - `layer`: A layer, such as `ResidualLayer(field, step)`.
    - `x0`: The tokens of layer 0, (n, d), which are retracted onto `layer.space` first.
    - `depth`: The number of layers, a positive integer.
    - `args`: Passed to `layer`.
    - `save_every`: Layers 0, `save_every`, 2 `save_every`, ... are saved; it must divide `depth`.

    **Returns:**

    A `Trajectory` whose `ts` are the numbers of the saved layers; `at(k)` gives the last saved layer up to k.

    **Raises:**

    - `ValueError` if `depth` or `save_every` is not a positive integer, or `save_every` does not divide `depth`, or
        `x0` is not a finite cloud that fits the layer.
    """
    check_instance(layer, "layer", AbstractLayer, "a layer of clusterjax", "wrap a field, ResidualLayer(field, step)")
    x0 = check_tokens(x0, "x0")
    check_directions(layer.space, x0)
    layer.check(*x0.shape)
    check_schedules(layer, (0.0,))
    depth = check_integer(depth, "depth", remedy="pass at least 1")
    save_every = check_integer(save_every, "save_every", remedy="pass at least 1")
    # The scan saves after equal numbers of layers; the message proposes the next smaller depth.
    if depth % save_every:
        raise ValueError(
            f"save_every must divide depth, but depth is {depth} and save_every is {save_every}; "
            f"take depth {depth - depth % save_every or save_every}."
        )
    # Memory holds the saved layers and their numbers twice: as the scan returns them, and joined to the start.
    saved = depth // save_every + 1
    content = f"{saved} saved layers, for save_every is {save_every}, and the numbers of the layers"
    remedy = "pass a smaller depth, or a larger save_every"
    check_room(
        depth, "depth", 2 * saved * x0.size * x0.dtype.itemsize + 4 * depth, content, longest=depth, remedy=remedy
    )
    return _scan(layer, x0, check_args(args), depth, save_every)


@eqx.filter_jit
def _scan(layer: AbstractLayer, x0: Tokens, args: Any, depth: int, save_every: int) -> Trajectory:
    # Every layer ends on its space, and so the start must lie on it.
    start = layer.space.retract(x0)

    def apply(x: Array, k: Array) -> tuple[Array, None]:
        return layer(k, x, args), None

    def apply_and_save(x: Array, ks: Array) -> tuple[Array, Array]:
        x = lax.scan(apply, x, ks)[0]
        return x, x

    # (saved, save_every): each row has the layer numbers between two saves.
    ks = jnp.arange(depth).reshape(depth // save_every, save_every)
    last, saved = lax.scan(apply_and_save, start, ks)
    # The layer numbers have the dtype of the tokens, as the times of `simulate` have.
    ts = jnp.arange(0, depth + 1, save_every).astype(x0.dtype)
    xs = jnp.concatenate([start[None], saved])
    setup = Setup.of(layer=layer, args=args, depth=depth, save_every=save_every)
    stats = {"num_steps": jnp.asarray(depth), "max_steps": depth}
    return Trajectory(ts, xs, stats, dfx.RESULTS.successful, ts[-1], last, Stored(setup))
