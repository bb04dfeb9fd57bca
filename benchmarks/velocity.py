"""What does one velocity cost for each pair of tokens, from 64 tokens to 100,000, and how much memory?

The velocity is that of softmax attention on the sphere with beta = 9 and V = I. `Dense` and `Blocked`, full and causal,
in float32 and float64, are compared with the formula in plain jax, the published NumPy formula, PyTorch and KeOps if
they are installed. The pairs are those that the mask allows: n^2, or n (n + 1) / 2. Evaluations of jax that take less
than a few milliseconds are repeated inside one compiled program, so that the time of a call does not count. The script
itself uses `--memory N` to measure the peak memory of one evaluation in a separate process.
"""

import subprocess
import sys
from functools import partial
from pathlib import Path

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
    some_rows,
    sphere,
    torch_or_none,
    velocity,
)
from _plain import torch_velocity, velocity as plain
from _published import velocity as published

import clusterjax as cjx


BETA = 9.0
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}
MOST_PAIRS = {"KeOps": 2**28, "Dense": 2**28, "Blocked": 10**11}  # the other methods have at most 2^26 pairs
COLUMNS = ["attention", "dtype", "d", "n", "method", "ns per pair", "median ms", "IQR/median", "repeats", "compile s",
           "temporary MB", "error"]  # fmt: skip


def keops_velocity(x, beta, causal):
    import torch
    from pykeops.torch import LazyTensor

    rows, columns = LazyTensor(x[:, None, :]), LazyTensor(x[None, :, :])
    scores = float(beta) * (rows | columns)
    if causal:
        index = torch.arange(x.shape[0], dtype=x.dtype)[:, None]
        later = LazyTensor(index[:, None, :]) - LazyTensor(index[None, :, :])
        scores = later.ifelse(scores, scores - 1e4)
    average = scores.sumsoftmaxweight(columns, axis=1)
    return average - (average * x).sum(1, keepdim=True) * x


def peers_of() -> tuple[dict, dict[str, str]]:
    """The velocities of other libraries and the functions that make their arrays, by name, and the reasons for which
    other libraries are left out."""
    peers = {"NumPy, published": (published, np.asarray)}
    if (torch := torch_or_none()) is None:
        return peers, dict.fromkeys(("PyTorch", "KeOps"), "PyTorch is not installed")
    torch.set_grad_enabled(False)
    peers["PyTorch"] = torch_velocity, torch.from_numpy
    try:
        check("KeOps", keops_velocity(torch.eye(3), BETA, False), torch_velocity(torch.eye(3), BETA, False), 1e-5)
    except Exception as error:
        return peers, {"KeOps": f"{type(error).__name__}: {error}"}
    return peers | {"KeOps": (keops_velocity, torch.from_numpy)}, {}


def programs_for(x: np.ndarray, causal: bool, pairs: float, peers: dict) -> list[Program]:
    """All methods that can handle this number of pairs; each is checked."""
    programs, (rows, expected) = [], some_rows(x, BETA, causal)
    ways = {name: partial(velocity, summation=summation) for name, summation in
            (("Dense", cjx.Dense()), ("Blocked", cjx.Blocked()))} | {"plain jax": plain}  # fmt: skip
    for name, way in ways.items():
        if pairs <= MOST_PAIRS.get(name, 2**26):
            once = lambda x, way=way: way(x, jnp.asarray(BETA, x.dtype), causal)
            error = check(name, np.asarray(jax.jit(once)(jnp.asarray(x)))[rows], expected, TOLERANCE[x.dtype.name])
            count = int(max(1, 2**21 // pairs))
            many = lambda x, once=once, count=count: once(x) if count == 1 else repeated(x, once, count)
            programs.append(compiled(name, many, jnp.asarray(x), count=count))
            programs[-1].error = error
    for name, (fn, array) in peers.items():
        if pairs <= MOST_PAIRS.get(name, 2**26):
            programs.append(called(name, fn, array(x), x.dtype.type(BETA), causal, compiles=False))
            got = np.asarray(programs[-1].run())
            # The published full velocity has no tangent projection, so it is projected for the comparison only.
            got = got - np.sum(got * x, axis=1, keepdims=True) * x
            programs[-1].error = check(name, got[rows], expected, 20 * TOLERANCE[x.dtype.name])
    return programs


def resident(which: str) -> float:
    """`VmRSS` or its peak `VmHWM` of this process, in MB (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(which))


def peak_memory(n: int, causal: bool) -> None:
    """Print the increase of the peak memory of this process, in MB, by compiling and computing one velocity."""
    x = jnp.asarray(sphere(n, 3, np.float32))
    jax.block_until_ready(jax.jit(lambda y: y @ y.T)(x[:8]))
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    jax.block_until_ready(jax.jit(partial(velocity, beta=BETA, causal=causal))(x))
    print(resident("VmHWM") - before)


def findings(rows: list[dict], reasons: dict[str, str]) -> list[str]:
    """The goals and the results, at d = 3."""
    at = {
        (row["method"], row["attention"], row["dtype"], row["n"]): row["ns per pair"] for row in rows if row["d"] == 3
    }
    best = lambda *where: min(cost for (name, *of), cost in at.items() if of == [*where] and name in MOST_PAIRS)
    largest = lambda *where: max((n for name, *of, n in at if (name, *of) == where), default=None)
    n, out = largest("Blocked", "full", "float32"), []
    full, causal = (at["Blocked", mask, "float32", n] for mask in ("full", "causal"))
    out.append(f"Goal: Blocked in float32 at most 1.3 ns per pair. At n = {n:,}: {full:.2f} full, {causal:.2f} causal.")
    for name in ("NumPy, published", "KeOps"):
        for dtype in ("float64", "float32"):
            if (n := largest(name, "full", dtype)) is not None:
                theirs = at[name, "full", dtype, n]
                times = [f"{theirs / best('full', of, n):.1f} times ours in {of}" for of in ("float32", "float64")]
                out.append(f"Goal: at least 10 times below {name}. In {dtype} at n = {n:,} it takes {theirs:.1f} ns "
                           f"per pair: {', '.join(times)}.")  # fmt: skip
    for dtype in ("float32", "float64"):
        times = [f"{cost / best(mask, dtype, n):.2f} (n = {n:,}, {mask})"
                 for (name, mask, of, n), cost in at.items() if (name, of) == ("plain jax", dtype)]  # fmt: skip
        out.append(f"Goal: nowhere slower than plain jax. Plain jax over the faster of Dense and Blocked, {dtype}, "
                   f"d = 3: {', '.join(times)}.")  # fmt: skip
    return out + [f"{method} is not in the table: {why}" for method, why in reasons.items()]


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    if sys.argv[1:2] == ["--memory"]:
        return peak_memory(int(sys.argv[2]), sys.argv[3] == "causal")
    chosen = options(__doc__, "velocity.json")
    peers, reasons = peers_of()
    timing = {"repeats": 3, "budget_s": 2.0} if chosen.quick else {"repeats": 11, "budget_s": 15.0}
    sizes = [(n, 3) for n in ((64, 1024) if chosen.quick else (64, 256, 1024, 4096, 16384, 100_000))]
    rows, n_memory = [], 4096 if chosen.quick else 100_000
    for mask in ("full", "causal"):
        for dtype in (np.float32, np.float64):
            for n, d in sizes if chosen.quick else (*sizes, (4096, 2), (4096, 64)):
                say(f"n = {n}, d = {d}, {dtype.__name__}, {mask}")
                pairs = n * n if mask == "full" else n * (n + 1) / 2
                programs = programs_for(sphere(n, d, dtype), mask == "causal", pairs, peers)
                rows += rows_of(programs, pairs=pairs, attention=mask, dtype=dtype.__name__, d=d, n=n, **timing)
    found = findings(rows, reasons)
    for mask in ("full", "causal"):
        command = [sys.executable, __file__, "--memory", str(n_memory), mask]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(f"Goal: n = {n_memory:,} in under 200 MB. The peak of a process grows by "
                     f"{float(done.stdout.split()[-1]):.0f} MB, {mask} (compiling included).")  # fmt: skip
    report(rows, chosen.out, title="One velocity, ns per pair", columns=COLUMNS, best="ns per pair",
           group=("attention", "dtype", "d", "n"), findings=tuple(found), quick=chosen.quick)  # fmt: skip


if __name__ == "__main__":
    main()
