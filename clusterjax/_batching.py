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
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir


def call_with_rule(
    plain: Callable[..., Any],
    rule: Callable[..., Any],
    *args: Any,
    differentiated: Callable[..., Any] | None = None,
) -> Any:
    """`plain(*args)`; where `jax.vmap` maps over the call, `rule(batched, *args)`.

    **Arguments:**

    - `plain`: A function of arrays, or trees of them, that closes over no traced array.
    - `rule`: Computes a whole batch. `batched` is a tree of booleans like `args`, True where the first axis of an array
        is the batch; the batch is the first axis of every output.
    - `args`: Arrays, or trees of them.
    - `differentiated`: The function `plain`, rewritten so that its derivatives are cheap, also those of a batch; None
        differentiates `plain`, and the rule for a batch.
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
    found = _call.bind(*leaves, plain=flat(plain), rule=flat_rule, differentiated=of_derivatives)
    return jtu.tree_unflatten(outputs, found)


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
    # An axis is None where there is no batch: its name `batching.not_mapped` does not exist in jax 0.11.
    batched = [axis is not None for axis in axes]
    args = [jnp.moveaxis(arg, axis, 0) if moved else arg for arg, axis, moved in zip(args, axes, batched, strict=True)]
    of_batch = lambda *args: rule(batched, *args)
    if differentiated is None:
        outputs = of_batch(*args)
    else:
        # The batch is bound as a primitive again, so that its derivatives are not those of the rule.
        of_batches = lambda again, *args: _as_one_batch(rule, batched, again, *args)
        of_derivatives = jax.vmap(differentiated, _axes(batched))
        outputs = _call.bind(*args, plain=of_batch, rule=of_batches, differentiated=of_derivatives)
    return outputs, [0] * len(outputs)


def _as_one_batch(rule: Any, batched: list[bool], again: list[bool], *args: Any) -> list[Any]:
    """The rule for a batch of batches, applied to all systems as one batch, since a rule limits the systems at once.

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


def _axes(batched: list[bool]) -> list[int | None]:
    return [0 if is_batched else None for is_batched in batched]


batching.primitive_batchers[_call] = _batch
