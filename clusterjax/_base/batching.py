"""Functions with a custom rule for `jax.vmap` and with derivatives of every order.

`jax.custom_batching.custom_vmap` also has such rules, but under `vmap` its results have no reverse-mode derivative.
This module defines a new JAX primitive instead (JAX documentation, *How JAX primitives work*), whose derivatives are
those of a plain function: a differentiated call is traced as if there were no rule, and `vmap` maps over its
operations. **Invariant.** Neither a rule nor the function `differentiated` changes a result, except for rounding.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Int


def call_with_rule(
    plain: Callable[..., Any], rule: Callable[..., Any], *args: Any, differentiated: Callable[..., Any] | None = None
) -> Any:
    """`plain(*args)`; where `jax.vmap` maps over the call, `rule(batched, *args)`.

    **Arguments:**

    - `plain`: A function of arrays, or trees of them, that closes over no traced array.
    - `rule`: Computes a whole batch. `batched` is a tree of booleans like `args`, True where the first axis of an array
        is the batch; the batch is the first axis of every output.
    - `args`: Arrays, or trees of them.
    - `differentiated`: A function with the values of `plain` whose derivatives cost less, also for a batch. If None,
        `plain` is differentiated, and `rule` for a batch.
    """
    # A primitive takes and returns flat lists of arrays; the functions are its parameters.
    leaves, tree = jtu.tree_flatten(args)
    # The structure of the outputs is found without computing them.
    outputs = jtu.tree_structure(jax.eval_shape(plain, *args))

    def flat(function):
        return lambda *leaves: jtu.tree_leaves(function(*jtu.tree_unflatten(tree, leaves)))

    def flat_rule(batched, *leaves):
        return jtu.tree_leaves(rule(jtu.tree_unflatten(tree, batched), *jtu.tree_unflatten(tree, leaves)))

    of_derivatives = None if differentiated is None else flat(differentiated)
    results = _call.bind(*leaves, plain=flat(plain), rule=flat_rule, differentiated=of_derivatives)
    return jtu.tree_unflatten(outputs, results)


_call = Primitive("call_with_rule")
_call.multiple_results = True


@_call.def_impl
def _(*leaves, plain, rule, differentiated):
    return plain(*leaves)


@_call.def_abstract_eval
def _(*avals, plain, rule, differentiated):
    # The shapes and dtypes are those of the plain function; the rule adds a leading batch axis to each.
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    return [jax.core.ShapedArray(out.shape, out.dtype) for out in jax.eval_shape(plain, *shapes)]


# Where no `vmap` surrounds the primitive, it is compiled as the plain function, inlined.
_lowered = mlir.lower_fun(lambda *leaves, plain, rule, differentiated: plain(*leaves), multiple_results=True)
mlir.register_lowering(_call, _lowered)


def _derivative(primals, tangents, *, plain, rule, differentiated):
    """The JVP of the function to be differentiated, in whose derivatives the primitive does not occur."""
    differentiated = differentiated or plain
    # Inputs without a tangent are constants: `jax.jvp` refuses symbolic zeros, and explicit zeros would cost time.
    moving = [type(tangent) is not ad.Zero for tangent in tangents]

    def of_moving(*moving_primals):
        remaining = iter(moving_primals)
        return differentiated(
            *(next(remaining) if moves else primal for moves, primal in zip(moving, primals, strict=True))
        )

    select = lambda values: tuple(value for value, moves in zip(values, moving, strict=True) if moves)
    jvp: Any = jax.jvp
    return jvp(of_moving, select(primals), select(tangents))


ad.primitive_jvps[_call] = _derivative


def _batch(args, axes, *, plain, rule, differentiated):
    """The rule, applied after the batch axis of every batched argument has been moved to the front."""
    # The axis of an argument without a batch is None. jax 0.11 no longer has the name `batching.not_mapped` for it.
    batched = [axis is not None for axis in axes]
    args = [jnp.moveaxis(arg, axis, 0) if moved else arg for arg, axis, moved in zip(args, axes, batched, strict=True)]
    of_batch = lambda *args: rule(batched, *args)
    if differentiated is None:
        outputs = of_batch(*args)
    else:
        # The batch is bound as a primitive again, so that its derivatives are not those of the rule.
        of_batches = lambda again, *args: _as_one_batch(rule, batched, again, *args)
        of_derivatives = jax.vmap(differentiated, [0 if moved else None for moved in batched])
        outputs = _call.bind(*args, plain=of_batch, rule=of_batches, differentiated=of_derivatives)
    return outputs, [0] * len(outputs)


def _as_one_batch(rule: Any, batched: list[bool], again: list[bool], *args: Any) -> list[Any]:
    """The rule for a batch of batches, applied to all systems as one batch, since a rule bounds their number in memory.

    The outer batch is the first axis of an array whose `again` is True; the inner batch is the next axis.
    """
    pairs = list(zip(args, batched, again, strict=True))
    outer = next(arg.shape[0] for arg, _, second in pairs if second)
    inner = next(arg.shape[int(second)] for arg, first, second in pairs if first)

    def flat(arg, first, second):
        if not (first or second):
            return arg
        arg = arg if second else arg[None]
        arg = arg if first else arg[:, None]
        return jnp.broadcast_to(arg, (outer, inner, *arg.shape[2:])).reshape(outer * inner, *arg.shape[2:])

    either = [first or second for _, first, second in pairs]
    outputs = rule(either, *(flat(*pair) for pair in pairs))
    return [output.reshape(outer, inner, *output.shape[1:]) for output in outputs]


batching.primitive_batchers[_call] = _batch


# Blocks of rows: split arrays, map over the blocks one at a time, join the results.
#
# Unless the block size divides the number of rows, the last block is padded with copies of the last row, which is a
# valid row for every function, or with a number; `join` drops the results of the padding. `map_systems_last` maps
# over a batch of small systems in the same way, with the systems along the last axis.


def cut(a: Array, size: int, fill: float | None = None) -> Array:
    """The n rows of `a` as (blocks, size, ...), the last block padded with copies of the last row, or with `fill`."""
    n = a.shape[0]
    blocks = -(-n // size)
    missing = blocks * size - n
    if missing:
        last = a[-1:] if fill is None else jnp.full((1, *a.shape[1:]), fill, a.dtype)
        a = jnp.concatenate([a, jnp.broadcast_to(last, (missing, *a.shape[1:]))])
    return a.reshape(blocks, size, *a.shape[1:])


def join(a: Array, n: int) -> Array:
    """The first `n` rows of the blocks, one after another."""
    return a.reshape(-1, *a.shape[2:])[:n]


def map_blocks(fn: Callable[..., Any], size: int, *arrays: Any, recompute: bool = False) -> Any:
    """Apply `fn` to each block of at most `size` rows of the arrays, and join the results along their first axis.

    Only one block is in memory at a time, so that a function that builds (rows, n) never builds (n, n). With
    `recompute` the backward pass computes each block again instead of keeping its intermediate arrays.
    """
    n = jtu.tree_leaves(arrays)[0].shape[0]
    size = min(size, n)
    fn = jax.checkpoint(fn) if recompute else fn
    # A single block needs no loop.
    if size == n:
        return fn(*arrays)
    blocks = jtu.tree_map(lambda a: cut(a, size), arrays)
    return jtu.tree_map(lambda leaf: join(leaf, n), lax.map(lambda block: fn(*block), blocks))


# Sizes for the kernels of many small systems, with the systems along the last axis, on a CPU. Up to FEW_DIMENSIONS
# these kernels write out the coordinates; beyond, matrix products are faster. PAIRS_AT_ONCE numbers of each kind are
# processed at once, for at least LEAST_SYSTEMS systems: XLA reduces arrays of this size by vector instructions and
# smaller ones by scalar instructions, and larger ones exceed the cache of a core.
FEW_DIMENSIONS, PAIRS_AT_ONCE, LEAST_SYSTEMS = 4, 2**14, 32


def systems_at_once(pairs: int) -> int:
    """The number of systems, of `pairs` numbers each, that `map_systems_last` processes at once."""
    return LEAST_SYSTEMS * max(1, PAIRS_AT_ONCE // (LEAST_SYSTEMS * pairs))


def map_systems_last(fn: Callable[..., Any], *arrays: Any, pairs: int) -> Any:
    """Apply `fn` to blocks of systems. Systems are the first axis of `arrays` and of the results, and the last axis of
    the arguments and results of `fn`.

    Operations then run along the systems, and not along a short axis. Each system takes `pairs` numbers in `fn`.
    """
    systems = jtu.tree_leaves(arrays)[0].shape[0]
    size = min(systems_at_once(pairs), systems)
    # The arrays are transposed before the loop: after a transpose within the loop XLA would read with strides.
    blocks = jtu.tree_map(lambda a: jnp.moveaxis(cut(a, size), 1, -1), arrays)
    results = lax.map(lambda block: fn(*block), blocks)
    return jtu.tree_map(lambda a: join(jnp.moveaxis(a, -1, 1), systems), results)


# One choice of branch for a whole batch, so that `jax.vmap` does not compute every branch.
#
# Under `vmap`, a `lax.switch` or `lax.cond` whose index differs within the batch computes all branches and selects
# among their results. The maximum of the index over the batch is unbatched, so that only one branch is computed.
# Branches are ordered such that a branch with a larger index serves every system that a branch with a smaller index
# serves.


def batch_max(choice: Int[Array, ""]) -> Int[Array, ""]:
    """Return `choice` or, where `jax.vmap` maps over it, its maximum over the batch."""
    # An index has no derivative; `custom_vmap` has no reverse mode and needs none here.
    return _largest(lax.stop_gradient(choice))


@jax.custom_batching.custom_vmap
def _largest(choice):
    return choice


@_largest.def_vmap
def _(axis_size, in_batched, choice):
    return (jnp.max(choice, axis=0) if in_batched[0] else choice), False
