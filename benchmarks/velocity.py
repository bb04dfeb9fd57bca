"""What does one velocity cost for each pair of tokens, from 64 tokens to 100,000, and how much memory?

Softmax attention on the sphere, beta = 9, V = I: `Dense` and `Blocked`, full and causal, float32 and float64, beside
the formula in plain jax, the published NumPy formula, PyTorch and KeOps where they are installed. A pair is one that
the mask allows: n^2, or n (n + 1) / 2. Evaluations of jax that take less than a few milliseconds are repeated inside
one compiled program, so that calling it does not count. `--memory N` is used by the script itself: the peak memory of
one evaluation in a process of its own.
"""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import _plain
import jax
import jax.numpy as jnp
import numpy as np
from _harness import Program, as_jax, called, check, compiled, interleave, options, report, say, sphere
from _published import velocity as published

import clusterjax as cjx


BETA = 9.0
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}
BUDGET_PAIRS = {
    "plain jax": 2**26,
    "NumPy, published": 2**26,
    "PyTorch": 2**26,
    "KeOps": 2**28,
    "Dense": 2**28,
    "Blocked": 10**11,
}
COLUMNS = ["attention", "dtype", "d", "n", "method", "ns per pair", "median ms", "IQR/median", "repeats", "compile s",
           "temporary MB", "error"]  # fmt: skip


def field_of(x, summation, causal):
    mask = cjx.CausalMask() if causal else cjx.FullMask()
    attention = cjx.SoftmaxAttention(jnp.asarray(BETA, x.dtype), mask=mask, summation=summation)
    return cjx.AttentionField(attention)


def ours(x, summation, causal):
    return field_of(x, summation, causal)(jnp.zeros((), x.dtype), x)


def plain(x, causal):
    return _plain.velocity(x, jnp.asarray(BETA, x.dtype), causal)


def many(x, once, count):
    """`count` evaluations one after the other, each at tokens moved a little by the last."""
    small = jnp.asarray(1e-6, x.dtype)
    return jax.lax.fori_loop(0, count, lambda _, y: y + small * once(y), x)


def torch_velocity(x, causal):
    import torch

    kernel = BETA * (x @ x.T)
    if causal:
        n = x.shape[0]
        kernel = kernel.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
    average = torch.softmax(kernel, dim=1) @ x
    return average - (average * x).sum(1, keepdim=True) * x


def keops_velocity(x, causal):
    import torch
    from pykeops.torch import LazyTensor

    rows, columns = LazyTensor(x[:, None, :]), LazyTensor(x[None, :, :])
    scores = BETA * (rows | columns)
    if causal:
        index = torch.arange(x.shape[0], dtype=x.dtype)[:, None]
        later = LazyTensor(index[:, None, :]) - LazyTensor(index[None, :, :])
        scores = later.ifelse(scores, scores - 1e4)
    average = scores.sumsoftmaxweight(columns, axis=1)
    return average - (average * x).sum(1, keepdim=True) * x


def available() -> dict[str, str | None]:
    """The peers, and why each is left out if it is."""
    reasons: dict[str, str | None] = {"NumPy, published": None}
    try:
        import torch

        torch.set_grad_enabled(False)
        reasons["PyTorch"] = None
    except ImportError as error:
        return reasons | {"PyTorch": str(error), "KeOps": str(error)}
    try:
        check("KeOps", keops_velocity(torch.eye(3), False), torch_velocity(torch.eye(3), False), 1e-5)
        reasons["KeOps"] = None
    except Exception as error:
        reasons["KeOps"] = f"{type(error).__name__}: {error}"
    return reasons


def reference_rows(x: np.ndarray, causal: bool) -> tuple[np.ndarray, np.ndarray]:
    """Some rows of the tangent velocity in float64, each by its definition."""
    rows = np.unique(np.linspace(0, len(x) - 1, 40).astype(int))
    x64, out = x.astype(np.float64), []
    for i in rows:
        others = x64[: i + 1] if causal else x64
        weights = np.exp(BETA * (others @ x64[i] - 1))
        average = weights @ others / weights.sum()
        out.append(average - (average @ x64[i]) / (x64[i] @ x64[i]) * x64[i])
    return rows, np.array(out)


def tangent(velocity, x):
    """The published full velocity has no tangent projection: it is made before comparing, not before timing."""
    velocity = np.asarray(velocity)
    return velocity - np.sum(velocity * x, axis=1, keepdims=True) * x


def programs_for(x: np.ndarray, causal: bool, peers: list[str]) -> tuple[list[Program], dict[str, float]]:
    """Every method that fits into the budget of pairs, each checked, and how many evaluations one run makes."""
    n, name, programs, counts, errors = len(x), x.dtype.name, [], {}, {}
    pairs = n * (n + 1) // 2 if causal else n * n
    rows, expected = reference_rows(x, causal)
    compilable = {"Dense": partial(ours, summation=cjx.Dense()), "Blocked": partial(ours, summation=cjx.Blocked()),
                  "plain jax": plain}  # fmt: skip
    for method, once in compilable.items():
        if pairs > BUDGET_PAIRS[method]:
            continue
        once = partial(once, causal=causal)
        errors[method] = check(method, np.asarray(jax.jit(once)(as_jax(x)))[rows], expected, TOLERANCE[name])
        counts[method] = max(1, 2**21 // pairs)
        given = (many, as_jax(x), once, counts[method]) if counts[method] > 1 else (once, as_jax(x))
        programs.append(compiled(method, *given))
    for method in peers:
        if pairs > BUDGET_PAIRS[method]:
            continue
        if method == "NumPy, published":
            fn, argument = lambda y: published(y, x.dtype.type(BETA), causal), x
        else:
            import torch

            fn = partial(torch_velocity if method == "PyTorch" else keops_velocity, causal=causal)
            argument = torch.from_numpy(x)
        got = tangent(fn(argument), x)
        errors[method] = check(method, got[rows], expected, 20 * TOLERANCE[name])
        counts[method] = 1
        programs.append(called(method, fn, argument))
        programs[-1].compile_s = None
    for program in programs:
        program.error = errors[program.name]  # pyright: ignore[reportAttributeAccessIssue]
    return programs, counts


def rows_for(n: int, d: int, dtype, causal: bool, peers: list[str], quick: bool) -> list[dict]:
    mask = "causal" if causal else "full"
    say(f"n = {n}, d = {d}, {dtype.__name__}, {mask}")
    pairs = n * (n + 1) / 2 if causal else n * n
    programs, counts = programs_for(sphere(n, d, dtype), causal, peers)
    interleave(programs, repeats=3 if quick else 11, budget_s=2.0 if quick else 15.0)
    out = []
    for program in programs:
        times = program.columns()
        out.append({"attention": mask, "dtype": dtype.__name__, "d": d, "n": n, "method": program.name,
                    "ns per pair": program.median / pairs / counts[program.name] * 1e9,
                    "best ns per pair": program.best / pairs / counts[program.name] * 1e9,
                    "median ms": program.median / counts[program.name] * 1e3,
                    "temporary MB": None if program.temp_bytes is None else program.temp_bytes / 1e6,
                    "error": program.error} | {k: times[k] for k in ("IQR/median", "repeats", "compile s", "best CPU s")})  # fmt: skip  # noqa: E501
    return out


def resident(which: str) -> float:
    """`VmRSS` or its peak `VmHWM` of this process, in MB (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(which))


def peak_memory(n: int, causal: bool) -> None:
    """Print how far the peak of this process rises, in MB, when n tokens' velocity is compiled and computed."""
    x = as_jax(sphere(n, 3, np.float32))
    jax.block_until_ready(jax.jit(lambda y: y @ y.T)(x[:8]))
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    jax.block_until_ready(jax.jit(partial(ours, summation=cjx.Auto(), causal=causal))(x))
    print(resident("VmHWM") - before)


def measured_memory(n: int, mask: str) -> float:
    done = subprocess.run([sys.executable, __file__, "--memory", str(n), mask], capture_output=True, text=True, check=True)  # fmt: skip  # noqa: E501
    return float(done.stdout.split()[-1])


def findings(rows: list[dict], memory: dict[str, float], n_memory: int, reasons: dict) -> list[str]:
    """The goals and what came out."""

    def at(method, mask="full", dtype="float32"):
        found = [r for r in rows if (r["method"], r["attention"], r["dtype"], r["d"]) == (method, mask, dtype, 3)]
        return max(found, key=lambda row: row["n"]) if found else None

    row = at("Blocked")
    out = [f"Goal: Blocked in float32 at most 1.3 ns per pair. At n = {row['n']:,}: {row['ns per pair']:.2f} full, "
           f"{at('Blocked', 'causal')['ns per pair']:.2f} causal."]  # fmt: skip
    for method in ("NumPy, published", "KeOps"):
        for dtype in ("float64", "float32"):
            peer = at(method, dtype=dtype)
            if peer is not None:
                best = {which: min(r["ns per pair"] for r in rows if r["method"] in ("Dense", "Blocked")
                        and (r["n"], r["attention"], r["dtype"], r["d"]) == (peer["n"], "full", which, 3))
                        for which in ("float32", "float64")}  # fmt: skip
                times = {which: peer["ns per pair"] / cost for which, cost in best.items()}
                out.append(f"Goal: at least 10 times below {method}. In {dtype} at n = {peer['n']:,} it takes "
                           f"{peer['ns per pair']:.1f} ns per pair: {times['float32']:.1f} times ours in float32, "
                           f"{times['float64']:.1f} times ours in float64.")  # fmt: skip
    for dtype in ("float32", "float64"):
        times = [f"{plain_ns / best:.2f} (n = {n:,}, {mask})" for mask, n, best, plain_ns in beside_plain(rows, dtype)]
        out.append(f"Goal: nowhere slower than plain jax. Plain jax over the faster of Dense and Blocked, {dtype}, "
                   f"d = 3: {', '.join(times)}.")  # fmt: skip
    for mask, megabytes in memory.items():
        out.append(f"Goal: n = {n_memory:,} in under 200 MB. The peak of a process grows by {megabytes:.0f} MB, "
                   f"{mask} (compiling included).")  # fmt: skip
    out += [f"{method} is not in the table: {why}" for method, why in reasons.items() if why]
    return out


def beside_plain(rows: list[dict], dtype: str) -> list[tuple[str, int, float, float]]:
    """Mask, number of tokens, the least cost of ours and the cost of plain jax, in ns per pair."""
    at = lambda row: (row["attention"], row["n"])
    these = [row for row in rows if (row["dtype"], row["d"]) == (dtype, 3)]
    best = lambda place: min(r["ns per pair"] for r in these if at(r) == place and r["method"] in ("Dense", "Blocked"))
    return [(*at(row), best(at(row)), row["ns per pair"]) for row in these if row["method"] == "plain jax"]


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads of one method must not slow the next one
    if len(sys.argv) > 1 and sys.argv[1] == "--memory":
        return peak_memory(int(sys.argv[2]), sys.argv[3] == "causal")
    chosen = options(__doc__, "velocity.json")
    reasons = available()
    peers = [name for name, why in reasons.items() if why is None]
    sizes = (64, 1024) if chosen.quick else (64, 256, 1024, 4096, 16384, 100_000)
    rows = []
    for causal in (False, True):
        for dtype in (np.float32, np.float64):
            for n in sizes:
                rows += rows_for(n, 3, dtype, causal, peers, chosen.quick)
            for d in () if chosen.quick else (2, 64):
                rows += rows_for(4096, d, dtype, causal, peers, chosen.quick)
    n_memory = 4096 if chosen.quick else 100_000
    memory = {mask: measured_memory(n_memory, mask) for mask in ("full", "causal")}
    report(rows, chosen.out, title="One velocity, ns per pair", columns=COLUMNS, best="ns per pair",
           group=("attention", "dtype", "d", "n"), findings=tuple(findings(rows, memory, n_memory, reasons)),
           quick=chosen.quick)  # fmt: skip


if __name__ == "__main__":
    main()
