"""The same in plain jax and diffrax, and in PyTorch, as a user writes it who has no library for it."""

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
    term = dfx.ODETerm(lambda t, x, args: velocity(x, beta, causal))
    controller = dfx.PIDController(rtol=tolerance, atol=tolerance)
    return dfx.diffeqsolve(
        term, solver, ts[0], ts[-1], None, x0, saveat=dfx.SaveAt(ts=ts), stepsize_controller=controller,
        max_steps=100_000,
    )  # fmt: skip


def torch_average(x, beta, causal):
    """The averages of attention of one system or of a batch."""
    import torch

    scores = beta * (x @ x.mT)
    if causal:
        n = x.shape[-2]
        scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1), -torch.inf)
    return torch.softmax(scores, dim=-1) @ x


def torch_velocity(x, beta, causal):
    average = torch_average(x, beta, causal)
    return average - (average * x).sum(-1, keepdim=True) * x
