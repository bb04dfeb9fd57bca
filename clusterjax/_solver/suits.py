"""Refuses runs that `Rodas5P` cannot solve, with the reason."""

from typing import Any

import diffrax as dfx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array

from .._attention import HardmaxAttention
from .._field import AbstractField, MultiHeadField, RescaledField
from .._misc import is_concrete
from .._schedule import example
from .rodas5p import Rodas5P


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
    parts = jtu.tree_leaves(field, is_leaf=_is_part)
    if any(isinstance(part, RescaledField) for part in parts):
        raise ValueError(
            "solver must not be Rodas5P with RescaledField, whose attention becomes a hardmax as t grows, with a "
            "velocity that jumps; leave it out."
        )
    if any(map(_is_hardmax, parts)):
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


def _is_part(part: Any) -> bool:
    return isinstance(part, HardmaxAttention | MultiHeadField | RescaledField)


def _is_hardmax(part: Any) -> bool:
    # Heads build their attention when they are called, here with arbitrary numbers; factors have exponentials only.
    if isinstance(part, MultiHeadField) and part.factors is None:
        form = None if part.query_key is None else jnp.eye(example(part.query_key).shape[-1])
        part = part.attention(jnp.ones(()), query_key=form, mask=part.mask, summation=part.summation)
    return isinstance(part, HardmaxAttention)
