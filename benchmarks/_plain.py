"""The same in plain jax and diffrax, as a user writes it who has no library for it."""

import diffrax as dfx
import jax
import jax.numpy as jnp


def velocity(x, beta, causal):
    """Softmax attention on the sphere, V = I, of one system."""
    scores = beta * (x @ x.T)
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones_like(scores, bool)), scores, -jnp.inf)
    average = jax.nn.softmax(scores, axis=1) @ x
    return average - jnp.sum(average * x, axis=1, keepdims=True) * x


def solve(x0, beta, causal, ts, solver, tolerance):
    """The tokens at `ts`, and the number of steps; everything in the dtype of `x0`."""
    return dfx.diffeqsolve(
        dfx.ODETerm(lambda t, x, args: velocity(x, beta, causal)),
        solver,
        ts[0],
        ts[-1],
        None,
        x0,
        saveat=dfx.SaveAt(ts=ts),
        stepsize_controller=dfx.PIDController(rtol=tolerance, atol=tolerance),
        max_steps=100_000,
    )
