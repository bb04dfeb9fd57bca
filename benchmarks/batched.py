"""What does a velocity of 2048 small systems in one vmap cost for each pair, beside plain jax and PyTorch?

The velocity is that of softmax attention on the sphere with beta = 9 and V = I. The field of one system under
`jax.vmap` is compared with the formula in plain jax under `jax.vmap`, with batched matrix products and a Python loop
over the systems in PyTorch, and with a loop in NumPy (the loops run over 64 systems). The programs of jax evaluate the
velocity eight times inside one compiled program, as a solver does.
"""

import jax
import jax.numpy as jnp
import numpy as np
from _harness import (
    Program,
    called,
    check,
    compiled,
    options,
    repeated,
    report,
    rows_of,
    say,
    sphere,
    torch_or_none,
    velocity,
)
from _plain import torch_velocity, velocity as plain
from _published import velocity as published


BETA, LOOP, INSIDE = 9.0, 64, 8
COLUMNS = ["attention", "dtype", "n", "d", "systems", "method", "ns per pair", "median ms", "IQR/median", "repeats",
           "compile s", "error"]  # fmt: skip


def numpy_loop(x, beta, causal):
    out = np.stack([published(one, beta, causal) for one in x])
    return out - np.sum(out * x, axis=2, keepdims=True) * x


def programs_for(x: np.ndarray, causal: bool, torch) -> list[Program]:
    few, tolerance, programs = x[:LOOP], 5e-6 if x.dtype == np.float32 else 1e-13, []
    expected = numpy_loop(few.astype(np.float64), BETA, causal)
    for name, way in (("clusterjax, vmap", velocity), ("plain jax, vmap", plain)):
        batch = jax.vmap(lambda y, way=way: way(y, jnp.asarray(BETA, y.dtype), causal))
        programs.append(compiled(name, repeated, jnp.asarray(x), batch, INSIDE, count=INSIDE))
        programs[-1].error = check(name, batch(jnp.asarray(few)), expected, tolerance)
    peers = [("NumPy, loop", numpy_loop, few)]
    if torch is not None:
        loop = lambda x, beta, causal: torch.stack([torch_velocity(one, beta, causal) for one in x])
        peers += [("PyTorch, bmm", torch_velocity, torch.from_numpy(x)), ("PyTorch, loop", loop, torch.from_numpy(few))]
    for name, fn, tokens in peers:
        count = len(tokens) / len(x)  # of all systems
        programs.append(called(name, fn, tokens, x.dtype.type(BETA), causal, compiles=False, count=count))
        programs[-1].error = check(name, np.asarray(programs[-1].run())[:LOOP], expected, 10 * tolerance)
    return programs


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    chosen = options(__doc__, "batched.json")
    systems, rows, torch = 256 if chosen.quick else 2048, [], torch_or_none()
    timing = {"repeats": 3, "budget_s": 3.0} if chosen.quick else {}
    for mask in ("full", "causal"):
        for dtype in (np.float32, np.float64):
            for n, d in ((32, 2),) if chosen.quick else ((32, 2), (32, 3), (64, 2), (64, 3)):
                say(f"n = {n}, d = {d}, {dtype.__name__}, {mask}")
                x = sphere(n * systems, d, dtype).reshape(systems, n, d)
                pairs = systems * (n * n if mask == "full" else n * (n + 1) / 2)
                labels = {"attention": mask, "dtype": dtype.__name__, "n": n, "d": d, "systems": systems}
                rows += rows_of(programs_for(x, mask == "causal", torch), pairs=pairs, **labels, **timing)
    ours = [(row, beside) for row, beside in zip(rows, rows[1:], strict=False) if row["method"] == "clusterjax, vmap"]
    shown = ", ".join(f"{row['ns per pair']:.2f} (n = {row['n']}, d = {row['d']})" for row, _ in ours
                      if (row["dtype"], row["attention"]) == ("float32", "full"))  # fmt: skip
    beside = ", ".join(
        f"{plain['ns per pair'] / row['ns per pair']:.2f} ({row['attention']}, {row['dtype']}, n = {row['n']}, "
        f"d = {row['d']})" for row, plain in ours
    )  # fmt: skip
    report(rows, chosen.out, title=f"One velocity of {systems} systems, ns per pair", columns=COLUMNS,
           best="ns per pair", group=("attention", "dtype", "n", "d"), quick=chosen.quick,
           findings=(f"Goal: at most 2.5 ns per pair in float32, full. Measured: {shown}.",
                     f"Goal: nowhere slower than plain jax. Its time over ours: {beside}."))  # fmt: skip


if __name__ == "__main__":
    main()
