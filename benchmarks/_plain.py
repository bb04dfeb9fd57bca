"""The same computations in plain jax and diffrax, and in PyTorch, as a user without clusterjax writes them."""

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


def torch_solve(x, beta, end, rtol, atol):
    """A batch (systems, n, d) at time `end` by Tsit5; each system has its own steps, as under `jax.vmap`.

    The step size depends on the last error alone, as with the I controller of diffrax. At each step the loop asks the
    device whether all systems have finished.
    """
    import torch

    tableau, column = dfx.Tsit5.tableau, (slice(None), None, None)
    t, step = x.new_zeros(len(x)), x.new_full((len(x),), 0.01)
    first = torch_velocity(x, beta, False)
    for _ in range(100_000):
        last = step >= end - t
        h, ks = torch.where(last, end - t, step), [first]
        for row in tableau.a_lower:
            y = x + h[column] * sum(float(a) * k for a, k in zip(row, ks, strict=True))
            ks.append(torch_velocity(y, beta, False))
        error = h[column] * sum(float(b) * k for b, k in zip(tableau.b_error, ks, strict=True))
        scaled = error / (atol + rtol * torch.maximum(x.abs(), y.abs()))
        size = scaled.square().mean((1, 2)).sqrt()
        good = size <= 1
        t = torch.where(good, torch.where(last, torch.full_like(t, end), t + h), t)
        x, first = torch.where(good[column], y, x), torch.where(good[column], ks[-1], first)
        step = h * (0.9 * size.clamp_min(1e-10) ** -0.2).clamp(0.2, 10.0)
        if bool((t >= end).all()):
            return x
    raise RuntimeError("the systems did not come to the end")
