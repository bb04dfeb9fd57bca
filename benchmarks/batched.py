"""What does a velocity of 2048 small systems in one vmap cost for each pair, beside plain jax and PyTorch?

Softmax attention on the sphere, beta = 9, V = I: the field of one system under `jax.vmap`, against the formula in plain
jax under `jax.vmap`, against `torch.bmm` on the batch and against a Python loop over the systems, in PyTorch and in
NumPy (the loops run over 64 systems). What jax compiles runs eight times inside one program, as it does in a solver.
"""

import os

import _plain
import jax
import jax.numpy as jnp
import numpy as np
from _harness import as_jax, called, check, compiled, interleave, options, report, say, sphere
from _published import velocity as published

import clusterjax as cjx


BETA, LOOP, INSIDE = 9.0, 64, 8
COLUMNS = ["attention", "dtype", "n", "d", "systems", "method", "ns per pair", "median ms", "IQR/median", "repeats",
           "compile s", "error"]  # fmt: skip


def ours(x, causal):
    attention = cjx.SoftmaxAttention(jnp.asarray(BETA, x.dtype), mask=cjx.CausalMask() if causal else cjx.FullMask())
    return jax.vmap(lambda y: cjx.AttentionField(attention)(jnp.zeros((), x.dtype), y))(x)


def plain(x, causal):
    return jax.vmap(lambda y: _plain.velocity(y, jnp.asarray(BETA, x.dtype), causal))(x)


def many(x, batch, causal):
    """`INSIDE` evaluations of a batch one after the other, each at tokens moved a little by the last."""
    small = jnp.asarray(1e-6, x.dtype)
    return jax.lax.fori_loop(0, INSIDE, lambda _, y: y + small * batch(y, causal), x)


def torch_batch(x, causal):
    import torch

    scores = BETA * torch.bmm(x, x.mT)
    if causal:
        n = x.shape[1]
        scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
    average = torch.bmm(torch.softmax(scores, dim=2), x)
    return average - (average * x).sum(2, keepdim=True) * x


def torch_loop(x, causal):
    import torch

    return torch.cat([torch_batch(one[None], causal) for one in x])


def numpy_loop(x, causal):
    out = np.stack([published(one, x.dtype.type(BETA), causal) for one in x])
    return out - np.sum(out * x, axis=2, keepdims=True) * x


def expected(x: np.ndarray, causal: bool) -> np.ndarray:
    return numpy_loop(x.astype(np.float64), causal)


def rows_for(n: int, d: int, dtype, causal: bool, systems: int, quick: bool) -> list[dict]:
    mask = "causal" if causal else "full"
    say(f"n = {n}, d = {d}, {np.dtype(dtype).name}, {mask}")
    x = sphere(n * systems, d, dtype).reshape(systems, n, d)
    pairs = n * (n + 1) / 2 if causal else n * n
    few, tolerance = x[:LOOP], 5e-6 if dtype == np.float32 else 1e-13
    programs, systems_of, velocities, errors = [], {}, {}, {}
    for name, batch in (("clusterjax, vmap", ours), ("plain jax, vmap", plain)):
        systems_of[name], velocities[name] = systems, INSIDE
        errors[name] = check(name, batch(as_jax(few), causal), expected(few, causal), tolerance)
        programs.append(compiled(name, many, as_jax(x), batch, causal))
    peers = [("NumPy, loop", numpy_loop, few)]
    try:
        import torch

        torch.set_grad_enabled(False)
        peers += [("PyTorch, bmm", torch_batch, torch.from_numpy(x)), ("PyTorch, loop", torch_loop, torch.from_numpy(few))]  # fmt: skip  # noqa: E501
    except ImportError:
        say("PyTorch is not installed")
    for name, fn, argument in peers:
        systems_of[name], velocities[name] = len(argument), 1
        errors[name] = check(name, np.asarray(fn(argument, causal))[:LOOP], expected(few, causal), 10 * tolerance)
        programs.append(called(name, fn, argument, causal))
        programs[-1].compile_s = None
    interleave(programs, repeats=3 if quick else 15, budget_s=3.0 if quick else 20.0)
    rows = []
    for program in programs:
        times, systems_here = program.columns(), systems_of[program.name]
        median, best = program.median / velocities[program.name], program.best / velocities[program.name]
        row = {"attention": mask, "dtype": np.dtype(dtype).name, "n": n, "d": d, "systems": systems_here,
               "method": program.name, "ns per pair": median / pairs / systems_here * 1e9,
               "best ns per pair": best / pairs / systems_here * 1e9, "median ms": median * 1e3,
               "error": errors[program.name]}  # fmt: skip
        rows.append(row | {k: times[k] for k in ("IQR/median", "repeats", "compile s", "best CPU s")})
    return rows


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads of one method must not slow the next one
    chosen = options(__doc__, "batched.json")
    systems, rows = 256 if chosen.quick else 2048, []
    for causal in (False, True):
        for dtype in (np.float32, np.float64):
            for n, d in ((32, 2),) if chosen.quick else ((32, 2), (32, 3), (64, 2), (64, 3)):
                rows += rows_for(n, d, dtype, causal, systems, chosen.quick)
    won = [r for r in rows if (r["method"], r["dtype"], r["attention"]) == ("clusterjax, vmap", "float32", "full")]
    shown = ", ".join(f"{r['ns per pair']:.2f} (n = {r['n']}, d = {r['d']})" for r in won)
    beside = ", ".join(
        f"{theirs['ns per pair'] / r['ns per pair']:.2f} ({r['attention']}, {r['dtype']}, n = {r['n']}, d = {r['d']})"
        for r, theirs in zip(rows, rows[1:], strict=False)
        if r["method"] == "clusterjax, vmap"
    )
    report(rows, chosen.out, title=f"One velocity of {systems} systems, ns per pair", columns=COLUMNS,
           best="ns per pair", group=("attention", "dtype", "n", "d"), quick=chosen.quick,
           findings=(f"Goal: at most 2.5 ns per pair in float32, full. Measured: {shown}.",
                     f"Goal: nowhere slower than plain jax. Its time over ours: {beside}."))  # fmt: skip


if __name__ == "__main__":
    main()
