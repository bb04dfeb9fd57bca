"""What do a velocity, a batch, a gradient and a whole run cost on an accelerator, beside PyTorch there?

Attention on the sphere, V = I, beta = 9: `Dense`, `Blocked` and `Harmonic` beside PyTorch's softmax of a matrix
product, in full precision, and its fused `scaled_dot_product_attention`, whose tokens are padded to a multiple of 8
numbers. Without an accelerator nothing is measured.
"""

import time
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _harness import Program, as_jax, check, compiled, interleave, options, report, say, sphere

import clusterjax as cjx


BETA, END, SYSTEMS = 9.0, 15.0, 2048
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}
LARGEST_MATRIX = 2**29  # pairs, of a method that holds them all
COLUMNS = ["what", "dtype", "d", "n", "systems", "method", "ps per pair", "median ms", "IQR/median", "repeats",
           "compile s", "temporary MB", "error"]  # fmt: skip


def attention(dtype, summation, causal=False):
    mask = cjx.CausalMask() if causal else cjx.FullMask()
    return cjx.SoftmaxAttention(jnp.asarray(BETA, dtype), mask=mask, summation=summation)


def ours(x, summation, causal=False):
    return attention(x.dtype, summation, causal).average(x, None)


def gradient(x, summation):
    return jax.grad(lambda x: jnp.sum(ours(x, summation) ** 2))(x)


def batch(x):
    return jax.vmap(lambda x: ours(x, cjx.Auto()))(x)


class Torch:
    """The same in PyTorch on its first GPU: what each function returns is complete when it returns."""

    def __init__(self):
        import torch

        self.torch = torch
        torch.set_float32_matmul_precision("highest")

    def tensor(self, x: np.ndarray):
        return self.torch.from_numpy(x).cuda()

    def plain(self, x, causal=False):
        scores = BETA * (x @ x.mT)
        if causal:
            n = x.shape[-1 if x.ndim == 1 else -2]
            later = self.torch.ones(n, n, dtype=self.torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, -self.torch.inf)
        return self.torch.softmax(scores, -1) @ x

    def fused(self, x, causal=False):
        d = x.shape[-1]
        padded = self.torch.nn.functional.pad(x, (0, -d % 8))
        lead = padded[None, None] if x.ndim == 2 else padded[:, None]
        attend = self.torch.nn.functional.scaled_dot_product_attention
        out = attend(lead, lead, lead, is_causal=causal, scale=BETA)
        return (out[0, 0] if x.ndim == 2 else out[:, 0])[..., :d]

    def gradient(self, fn, x):
        x = x.clone().requires_grad_()
        (fn(x) ** 2).sum().backward()
        return x.grad

    def program(self, name, fn, *args) -> Program:
        def run():
            out = fn(*args)
            self.torch.cuda.synchronize()
            return out

        run()
        return Program(name, run)


def reference_rows(x: np.ndarray, causal: bool) -> tuple[np.ndarray, np.ndarray]:
    """Some averages in float64, each by its definition."""
    rows = np.unique(np.linspace(0, len(x) - 1, 20).astype(int))
    x64, out = x.astype(np.float64), []
    for i in rows:
        others = x64[: i + 1] if causal else x64
        weights = np.exp(BETA * (others @ x64[i] - 1))
        out.append(weights @ others / weights.sum())
    return rows, np.array(out)


def rows_of(what: str, x: np.ndarray, pairs: float, programs: list[tuple[Program, float]]) -> list[dict]:
    interleave([program for program, _ in programs], repeats=15, budget_s=1.5)
    systems, (n, d) = (len(x) if x.ndim == 3 else 1), x.shape[-2:]
    out = []
    for program, error in programs:
        times = program.columns()
        out.append({"what": what, "dtype": x.dtype.name, "d": d, "n": n, "systems": systems, "method": program.name,
                    "ps per pair": program.median / pairs * 1e12, "median ms": program.median * 1e3, "error": error,
                    "temporary MB": None if program.temp_bytes is None else program.temp_bytes / 1e6}
                   | {k: times[k] for k in ("IQR/median", "repeats", "compile s")})  # fmt: skip
    return out


def averages(n: int, d: int, dtype, causal: bool, torch: Torch | None) -> list[dict]:
    x = sphere(n, d, dtype)
    say(f"averages: n = {n:,}, d = {d}, {x.dtype.name}, {'causal' if causal else 'full'}")
    at, expected = reference_rows(x, causal)
    pairs = n * (n + 1) / 2 if causal else float(n * n)
    summations = {"Blocked": cjx.Blocked()}
    if n * n <= LARGEST_MATRIX:
        summations["Dense"] = cjx.Dense()
    if d <= 3 and n > 10_000 and x.dtype == np.float32 and not causal:
        summations["Harmonic"] = cjx.Harmonic()
    programs = []
    for name, summation in summations.items():
        program = compiled(name, ours, as_jax(x), summation, causal)
        programs.append((program, check(name, np.asarray(program.run())[at], expected, TOLERANCE[x.dtype.name])))
    if torch is not None:
        ways = {"PyTorch, fused": torch.fused} | ({"PyTorch": torch.plain} if n * n <= LARGEST_MATRIX else {})
        for name, fn in ways.items():
            program = torch.program(name, fn, torch.tensor(x), causal)
            error = check(name, program.run().cpu().numpy()[at], expected, 20 * TOLERANCE[x.dtype.name])
            programs.append((program, error))
    return rows_of(f"averages, {'causal' if causal else 'full'}", x, pairs, programs)


def batches(n: int, d: int, torch: Torch | None) -> list[dict]:
    say(f"batches: {SYSTEMS} systems, n = {n}, d = {d}")
    x = sphere(SYSTEMS * n, d, np.float32).reshape(SYSTEMS, n, d)
    at, expected = reference_rows(x[-1], False)
    programs = []
    program = compiled("vmap", batch, as_jax(x))
    programs.append((program, check("vmap", np.asarray(program.run())[-1][at], expected, TOLERANCE["float32"])))
    for name, fn in {} if torch is None else {"PyTorch": torch.plain, "PyTorch, fused": torch.fused}.items():
        program = torch.program(name, fn, torch.tensor(x))
        error = check(name, program.run().cpu().numpy()[-1][at], expected, 20 * TOLERANCE["float32"])
        programs.append((program, error))
    return rows_of("averages of a batch", x, float(SYSTEMS * n * n), programs)


def gradients(n: int, torch: Torch | None) -> list[dict]:
    say(f"gradients: n = {n:,}")
    x = sphere(n, 3, np.float32)
    exact = np.asarray(jax.jit(partial(gradient, summation=cjx.Blocked()))(as_jax(x.astype(np.float64))))
    programs = []
    program = compiled("Blocked", gradient, as_jax(x), cjx.Blocked())
    programs.append((program, check("Blocked", program.run(), exact, 1e-4)))
    for name, fn in {} if torch is None else {"PyTorch": torch.plain, "PyTorch, fused": torch.fused}.items():
        program = torch.program(name, torch.gradient, fn, torch.tensor(x))
        programs.append((program, check(name, program.run().cpu().numpy(), exact, 2e-3)))
    return rows_of("gradient of a sum of squares", x, float(n * n), programs)


@eqx.filter_jit
def whole(x0, ts, beta):
    traj = cjx.simulate(cjx.AttentionField(cjx.SoftmaxAttention(beta)), x0, ts, save=lambda t, x, args: jnp.mean(x))
    return traj.x1, traj.stats


def run_of(n: int, d: int) -> dict:
    """A run to t = 15 with all defaults; the velocity is checked by its definition at the end as well."""
    say(f"run: n = {n:,}, d = {d}")
    x0, ts, beta = as_jax(sphere(n, d, np.float32)), jnp.asarray([0, END], jnp.float32), jnp.float32(BETA)
    begin = time.perf_counter()
    program = whole.lower(x0, ts, beta).compile()
    compile_s = time.perf_counter() - begin
    begin = time.perf_counter()
    x1, stats = jax.block_until_ready(program(x0, ts, beta))
    run_s = time.perf_counter() - begin
    at, expected = reference_rows(np.asarray(x1), False)
    found = jax.jit(partial(ours, summation=cjx.Auto()))(x1)
    error = check("the end of the run", np.asarray(found)[at], expected, TOLERANCE["float32"])
    return {"what": f"run to t = {END:.0f}, {int(stats['num_steps'])} steps", "dtype": "float32", "d": d, "n": n,
            "systems": 1, "method": str(stats.get("summation")), "median ms": run_s * 1e3, "repeats": 1,
            "compile s": compile_s, "error": error}  # fmt: skip


def finding(rows: list[dict], what: str, n: int, dtype: str = "float32", d: int = 3) -> str | None:
    """The fastest of ours beside the fastest of PyTorch."""
    of = [r for r in rows if (r["what"], r["n"], r["dtype"], r["d"]) == (what, n, dtype, d)]
    theirs = [r for r in of if r["method"].startswith("PyTorch")]
    if not theirs:
        return None
    one, other = (min(part, key=lambda r: r["median ms"]) for part in ([r for r in of if r not in theirs], theirs))
    return (f"{what}, n = {n:,}, d = {d}, {dtype}: {one['method']} {one['median ms']:.3g} ms, {other['method']} "
            f"{other['median ms']:.3g} ms: {other['median ms'] / one['median ms']:.2g} times; errors "
            f"{one['error']:.1e} and {other['error']:.1e}.")  # fmt: skip


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    chosen = options(__doc__, "accelerator.json")
    if jax.default_backend() == "cpu" and not chosen.quick:
        print("There is no accelerator here: nothing was measured. --quick runs small sizes on a CPU.")
        return
    torch = None
    if jax.default_backend() == "gpu":
        try:
            torch = Torch()
        except ImportError:
            say("PyTorch is not installed")
    if chosen.quick:
        cases = [(256, 3, np.float32, False), (256, 3, np.float64, True)]
        n_batch, n_gradient, runs = 8, 256, [(256, 3)]
    else:
        cases = [(n, 3, np.float32, causal) for causal in (False, True) for n in (1024, 16_384, 100_000)]
        cases += [(16_384, 3, np.float64, False), (16_384, 3, np.float64, True), (16_384, 64, np.float32, False)]
        cases += [(100_000, 2, np.float32, False)]
        n_batch, n_gradient, runs = 64, 16_384, [(10_000, 3), (100_000, 3), (1_000_000, 2)]
    rows = []
    for case in cases:
        rows += averages(*case, torch)
    rows += batches(n_batch, 3, torch)
    rows += gradients(n_gradient, torch)
    rows += [run_of(*run) for run in runs]
    found = [finding(rows, "averages, full", n) for n in (1024, 16_384, 100_000)]
    found += [finding(rows, "averages, causal", 100_000), finding(rows, "averages, full", 16_384, "float64")]
    found += [finding(rows, "averages, full", 16_384, d=64), finding(rows, "averages of a batch", n_batch)]
    found += [finding(rows, "gradient of a sum of squares", n_gradient)]
    report(rows, chosen.out, title="On an accelerator", columns=COLUMNS, best="median ms",
           group=("what", "dtype", "d", "n"), findings=tuple(line for line in found if line),
           quick=chosen.quick)  # fmt: skip


if __name__ == "__main__":
    main()
