"""What do a velocity, a batch, a gradient and a whole run cost on an accelerator, beside PyTorch there?

Attention on the sphere, V = I, beta = 9: `Dense`, `Blocked` and `Harmonic` beside PyTorch's softmax of a matrix
product, in full precision, and its fused `scaled_dot_product_attention`, whose tokens are padded to a multiple of 8
numbers. Without an accelerator nothing is measured.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _harness import (
    Program,
    check,
    compiled,
    mask_of,
    options,
    report,
    rows_of,
    say,
    some_rows,
    sphere,
    timed,
    torch_or_none,
)
from _plain import torch_average

import clusterjax as cjx


BETA, END, SYSTEMS = 9.0, 15.0, 2048
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}
LARGEST_MATRIX = 2**29  # pairs, of a method that holds them all
COLUMNS = ["what", "dtype", "d", "n", "systems", "method", "ps per pair", "median ms", "IQR/median", "repeats",
           "compile s", "temporary MB", "error"]  # fmt: skip


def ours(x, summation, causal=False):
    attention = cjx.SoftmaxAttention(jnp.asarray(BETA, x.dtype), mask=mask_of(causal), summation=summation)
    return attention.average(x, None)


def gradient(x, summation):
    return jax.grad(lambda x: jnp.sum(ours(x, summation) ** 2))(x)


def fused(x, beta, causal):
    from torch.nn import functional

    padded = functional.pad(x, (0, -x.shape[-1] % 8))
    lead = padded[None, None] if x.ndim == 2 else padded[:, None]
    out = functional.scaled_dot_product_attention(lead, lead, lead, is_causal=causal, scale=beta)
    return (out[0, 0] if x.ndim == 2 else out[:, 0])[..., : x.shape[-1]]


def in_torch(torch, x: np.ndarray, causal: bool = False, backwards: bool = False) -> list[Program]:
    """Both ways of PyTorch on its first GPU, complete when they return; none without a GPU."""
    if torch is None:
        return []
    tokens = torch.from_numpy(x).cuda()

    def program(name, fn):
        def run():
            given = tokens.clone().requires_grad_() if backwards else tokens
            out = fn(given, BETA, causal)
            if backwards:
                (out**2).sum().backward()
                out = given.grad
            torch.cuda.synchronize()
            return out

        run()
        return Program(name, run)

    ways = {"PyTorch, fused": fused} | ({"PyTorch": torch_average} if x.shape[-2] ** 2 <= LARGEST_MATRIX else {})
    return [program(name, fn) for name, fn in ways.items()]


def measured(
    what: str, x: np.ndarray, pairs: float, programs: list[Program], answer, expected, tolerance
) -> list[dict]:
    """Check each program, PyTorch with twenty times the tolerance, and time all of them in turn."""
    for program in programs:
        found = program.run()
        found = np.asarray(found.detach().cpu() if hasattr(found, "cpu") else found)
        allowed = tolerance * (20 if program.name.startswith("PyTorch") else 1)
        program.error = check(program.name, answer(found), expected, allowed)
    systems, (n, d) = (len(x) if x.ndim == 3 else 1), x.shape[-2:]
    rows = rows_of(programs, pairs=pairs, budget_s=1.5, what=what, dtype=x.dtype.name, d=d, n=n, systems=systems)
    return [row | {"ps per pair": row["ns per pair"] * 1e3} for row in rows]


def averages(n: int, d: int, dtype, causal: bool, torch) -> list[dict]:
    x = sphere(n, d, dtype)
    say(f"averages: n = {n:,}, d = {d}, {x.dtype.name}, {'causal' if causal else 'full'}")
    at, expected = some_rows(x, BETA, causal, tangent=False, count=20)
    summations = [cjx.Blocked()] + ([cjx.Dense()] if n * n <= LARGEST_MATRIX else [])
    if d <= 3 and n > 10_000 and x.dtype == np.float32 and not causal:
        summations.append(cjx.Harmonic())
    programs = [compiled(type(each).__name__, ours, jnp.asarray(x), each, causal) for each in summations]
    pairs = n * (n + 1) / 2 if causal else float(n * n)
    what = f"averages, {'causal' if causal else 'full'}"
    programs += in_torch(torch, x, causal)
    return measured(what, x, pairs, programs, lambda found: found[at], expected, TOLERANCE[x.dtype.name])


def batches(n: int, d: int, torch) -> list[dict]:
    say(f"batches: {SYSTEMS} systems, n = {n}, d = {d}")
    x = sphere(SYSTEMS * n, d, np.float32).reshape(SYSTEMS, n, d)
    at, expected = some_rows(x[-1], BETA, False, tangent=False, count=20)
    batch = jax.vmap(partial(ours, summation=cjx.Auto()))
    programs = [compiled("vmap", batch, jnp.asarray(x)), *in_torch(torch, x)]
    answer, pairs = lambda found: found[-1][at], float(SYSTEMS * n * n)
    return measured("averages of a batch", x, pairs, programs, answer, expected, TOLERANCE["float32"])


def gradients(n: int, torch) -> list[dict]:
    say(f"gradients: n = {n:,}")
    x = sphere(n, 3, np.float32)
    exact = np.asarray(jax.jit(partial(gradient, summation=cjx.Blocked()))(jnp.asarray(x.astype(np.float64))))
    programs = [compiled("Blocked", gradient, jnp.asarray(x), cjx.Blocked()), *in_torch(torch, x, backwards=True)]
    return measured("gradient of a sum of squares", x, float(n * n), programs, lambda found: found, exact, 1e-4)


@eqx.filter_jit
def whole(x0, ts, beta):
    traj = cjx.simulate(cjx.AttentionField(cjx.SoftmaxAttention(beta)), x0, ts, save=lambda t, x, args: jnp.mean(x))
    return traj.x1, traj.stats


def run_of(n: int, d: int) -> dict:
    """A run to t = 15 with all defaults; the velocity is checked by its definition at the end as well."""
    say(f"run: n = {n:,}, d = {d}")
    given = jnp.asarray(sphere(n, d, np.float32)), jnp.asarray([0, END], jnp.float32), jnp.float32(BETA)
    program, compile_s = timed(lambda: whole.lower(*given).compile())
    (x1, stats), run_s = timed(lambda: program(*given))
    at, expected = some_rows(np.asarray(x1), BETA, False, tangent=False, count=20)
    found = jax.jit(partial(ours, summation=cjx.Auto()))(x1)
    error = check("the end of the run", np.asarray(found)[at], expected, TOLERANCE["float32"])
    return {"what": f"run to t = {END:.0f}, {int(stats['num_steps'])} steps", "dtype": "float32", "d": d, "n": n,
            "systems": 1, "method": str(stats.get("summation")), "median ms": run_s * 1e3, "repeats": 1,
            "compile s": compile_s, "error": error}  # fmt: skip


def finding(rows: list[dict], what: str, n: int, dtype: str = "float32", d: int = 3) -> list[str]:
    """The fastest of ours beside the fastest of PyTorch."""
    at = [row for row in rows if (row["what"], row["n"], row["dtype"], row["d"]) == (what, n, dtype, d)]
    theirs = [row for row in at if row["method"].startswith("PyTorch")]
    if not theirs:
        return []
    one, other = (min(part, key=lambda r: r["median ms"]) for part in ([r for r in at if r not in theirs], theirs))
    return [f"{what}, n = {n:,}, d = {d}, {dtype}: {one['method']} {one['median ms']:.3g} ms, {other['method']} "
            f"{other['median ms']:.3g} ms: {other['median ms'] / one['median ms']:.2g} times; errors "
            f"{one['error']:.1e} and {other['error']:.1e}."]  # fmt: skip


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    chosen = options(__doc__, "accelerator.json")
    if jax.default_backend() == "cpu" and not chosen.quick:
        print("There is no accelerator here: nothing was measured. --quick runs small sizes on a CPU.")
        return
    torch = torch_or_none() if jax.default_backend() == "gpu" else None
    if torch is not None:
        torch.set_float32_matmul_precision("highest")
    if chosen.quick:
        cases = [(256, 3, np.float32, False), (256, 3, np.float64, True)]
        n_batch, n_gradient, runs = 8, 256, [(256, 3)]
    else:
        cases = [(n, 3, np.float32, causal) for causal in (False, True) for n in (1024, 16_384, 100_000)]
        cases += [(16_384, 3, np.float64, False), (16_384, 3, np.float64, True), (16_384, 64, np.float32, False)]
        cases += [(100_000, 2, np.float32, False)]
        n_batch, n_gradient, runs = 64, 16_384, [(10_000, 3), (100_000, 3), (1_000_000, 2)]
    rows = [row for case in cases for row in averages(*case, torch)]
    rows += batches(n_batch, 3, torch) + gradients(n_gradient, torch) + [run_of(*run) for run in runs]
    wanted = [("averages, full", n) for n in (1024, 16_384, 100_000)]
    wanted += [("averages, causal", 100_000), ("averages, full", 16_384, "float64")]
    wanted += [("averages, full", 16_384, "float32", 64), ("averages of a batch", n_batch)]
    wanted += [("gradient of a sum of squares", n_gradient)]
    report(rows, chosen.out, title="On an accelerator", columns=COLUMNS, best="median ms",
           group=("what", "dtype", "d", "n"), quick=chosen.quick,
           findings=tuple(line for each in wanted for line in finding(rows, *each)))  # fmt: skip


if __name__ == "__main__":
    main()
