"""Solutions that are accurate enough for comparisons with exact formulas."""

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from clusterjax import simulate


def solve_tightly(field, x0, ts, **options):
    """`simulate` by an eighth-order method with small tolerances; its steps end on `ts`; nothing is interpolated."""
    ts = jnp.asarray(ts, dtype=float)
    controller = dfx.ClipStepSizeController(dfx.PIDController(rtol=1e-13, atol=1e-14), step_ts=ts)
    options = {"solver": dfx.Dopri8(), "stepsize_controller": controller, "max_steps": 200_000} | options
    return simulate(field, jnp.asarray(x0), ts, **options)


@eqx.filter_jit
def velocity(field, x):
    """The velocity of each token at t = 0; all fields of one kind and size share one compiled program."""
    return field(0.0, x)


@eqx.filter_jit
def angular_jacobian(field, theta):
    """The angular velocities of tokens on the circle, and their Jacobian."""

    def turning(theta):
        x = jnp.stack([jnp.cos(theta), jnp.sin(theta)], axis=1)
        return jnp.sum(jnp.stack([-x[:, 1], x[:, 0]], axis=1) * field(0.0, x), axis=1)

    return turning(theta), jax.jacfwd(turning)(theta)


def gram(xs):
    """All inner products of the tokens, for each time."""
    xs = np.asarray(xs)
    return xs @ xs.swapaxes(-1, -2)


def angles(xs):
    """The polar angles of tokens of the plane."""
    xs = np.asarray(xs)
    return np.arctan2(xs[..., 1], xs[..., 0])
