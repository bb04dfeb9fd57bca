"""Solves that are accurate enough for exact formulas."""

import diffrax as dfx
import jax.numpy as jnp
import numpy as np

from clusterjax import simulate


def solve_tightly(field, x0, ts, **options):
    """`simulate` by an eighth-order method with small tolerances, whose steps end on `ts`: nothing is interpolated."""
    ts = jnp.asarray(ts, dtype=float)
    controller = dfx.ClipStepSizeController(dfx.PIDController(rtol=1e-13, atol=1e-14), step_ts=ts)
    options = {"solver": dfx.Dopri8(), "stepsize_controller": controller, "max_steps": 200_000} | options
    return simulate(field, jnp.asarray(x0), ts, **options)


def gram(xs):
    """All inner products of the tokens, for each time."""
    xs = np.asarray(xs)
    return xs @ xs.swapaxes(-1, -2)


def angles(xs):
    """The polar angles of tokens of the plane."""
    xs = np.asarray(xs)
    return np.arctan2(xs[..., 1], xs[..., 0])
