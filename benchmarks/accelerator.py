"""What do a velocity, a batch, a gradient and a whole run cost on an accelerator, beside PyTorch on the same device?

The velocities are those of attention on the sphere with V = I and beta = 9. `Fused`, `Dense`, `Blocked` and `Harmonic`
are compared with two ways of PyTorch: the softmax of a matrix product in full precision, and the fused
`scaled_dot_product_attention`, for which tokens are padded to a multiple of 8 numbers. Whole runs and sweeps follow
(`_accelerator_runs.py`). Answers are compared with float64 before anything is timed. Without an accelerator nothing is
measured.

The most important parts run first, and results are written after each part, so that they are kept if the `--budget` of
seconds or the script ends. `--resume` continues with the missing parts, and `--parts WORDS` repeats the parts whose
name has these words; both keep the other rows if card, versions and measured code are the same.
"""

import json
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import _accelerator_runs as runs
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _card import Peer, fused_serves, measured
from _harness import (
    Program,
    check,
    compiled,
    environment,
    mask_of,
    options,
    report,
    say,
    some_rows,
    sphere,
    timed,
)
from _plain import torch_average
from table import source

import clusterjax as cjx


BEGIN = time.perf_counter()
BETA, END, SYSTEMS = 9.0, 15.0, 2048
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}
LARGEST_MATRIX = 2**29  # the largest number of pairs of a method that stores all pairs
COLUMNS = ["what", "dtype", "d", "n", "systems", "method", "ps per pair", "share of limit", "over forward", "median ms",
           "IQR/median", "repeats", "compile s", "temporary MB", "launches", "in a turn", "started", "copies to host",
           "error"]  # fmt: skip


def ours(x, summation, causal=False):
    attention = cjx.SoftmaxAttention(jnp.asarray(BETA, x.dtype), mask=mask_of(causal), summation=summation)
    return attention.average(x, None)


def gradient(x, summation, causal=False):
    return jax.grad(lambda x: jnp.sum(ours(x, summation, causal) ** 2))(x)


def fused(x, beta, causal):
    from torch.nn import functional

    padded = functional.pad(x, (0, -x.shape[-1] % 8))
    lead = padded[None, None] if x.ndim == 2 else padded[:, None]
    out = functional.scaled_dot_product_attention(lead, lead, lead, is_causal=causal, scale=beta)
    return (out[0, 0] if x.ndim == 2 else out[:, 0])[..., : x.shape[-1]]


def in_torch(
    peer: Peer | None, x: np.ndarray, causal: bool, *, backwards: bool = False, calls: int = 1
) -> list[Program]:
    """The two programs of PyTorch; none if PyTorch is not installed."""
    if peer is None:
        return []
    tokens = peer.tensor(x)

    def program(name, way):
        def run():
            given = tokens.clone().requires_grad_() if backwards else tokens
            out = way(given, BETA, causal)
            if backwards:
                (out**2).sum().backward()
                out = given.grad
            return out

        return peer.program(name, run, calls=calls)

    ways = {"fused": fused} | ({"": torch_average} if x.shape[-2] ** 2 <= LARGEST_MATRIX else {})
    return [program(name, way) for name, way in ways.items()]


def summations_for(n: int, d: int, dtype: Any, causal: bool) -> list[Any]:
    """The summations of clusterjax: `Fused` if its guard allows it, and those that `Auto` chooses without `Fused`."""
    single = dtype == np.float32
    fused = [cjx.Fused()] if single and fused_serves(d <= 4) else []
    dense = [cjx.Dense()] if n * n <= (2**20 if fused else LARGEST_MATRIX) else []
    series = [cjx.Harmonic()] if d <= 3 and n > 10_000 and single and not causal else []
    return [*fused, cjx.Blocked(), *dense, *series]


def pairs_of(n: int, causal: bool) -> float:
    return n * (n + 1) / 2 if causal else float(n * n)


def named(what: str, causal: bool) -> str:
    return f"{what}, {'causal' if causal else 'full'}"


def averages(n: int, d: int, dtype: Any, causal: bool, peer: Peer | None) -> list[dict]:
    x = sphere(n, d, dtype)
    at, expected = some_rows(x, BETA, causal, tangent=False, count=20)
    programs = [compiled(type(each).__name__, ours, jnp.asarray(x), each, causal)
                for each in summations_for(n, d, dtype, causal)] + in_torch(peer, x, causal)  # fmt: skip
    return measured(named("averages", causal), programs, expected, TOLERANCE[x.dtype.name],
                    answer=lambda found: found[at], pairs=pairs_of(n, causal), single=dtype == np.float32,
                    dtype=x.dtype.name, d=d, n=n, systems=1)  # fmt: skip


def batches(n: int, d: int, causal: bool, calls: int, peer: Peer | None) -> list[dict]:
    """Small systems under `jax.vmap`, in a single call and in several calls in a row with one wait at the end."""
    x = sphere(SYSTEMS * n, d, np.float32).reshape(SYSTEMS, n, d)
    at, expected = some_rows(x[-1], BETA, causal, tangent=False, count=20)
    chosen = ([cjx.Fused()] if fused_serves(d <= 4) else []) + [cjx.Dense()]  # before and after
    programs = [compiled(f"vmap, {type(each).__name__}", jax.vmap(partial(ours, summation=each, causal=causal)),
                         jnp.asarray(x), calls=calls) for each in chosen]  # fmt: skip
    programs += in_torch(peer, x, causal, calls=calls)
    what = named("averages of a batch", causal) + (f", {calls} in a row" if calls > 1 else "")
    return measured(what, programs, expected, TOLERANCE["float32"], answer=lambda found: found[-1][at],
                    pairs=SYSTEMS * pairs_of(n, causal), dtype="float32", d=d, n=n, systems=SYSTEMS)  # fmt: skip


def gradients(n: int, causal: bool, peer: Peer | None) -> list[dict]:
    """The gradient with its forward pass, and the ratio of its time to that of a forward pass of the same summation."""
    x = sphere(n, 3, np.float32)
    exact = jax.jit(partial(gradient, summation=cjx.Blocked(), causal=causal))(jnp.asarray(x.astype(np.float64)))
    chosen = ([cjx.Fused()] if fused_serves(True) else []) + [cjx.Blocked()]
    programs = [compiled(type(each).__name__, gradient, jnp.asarray(x), each, causal) for each in chosen]
    programs += in_torch(peer, x, causal, backwards=True)
    rows = measured(named("gradient of a sum of squares", causal), programs, exact, 1e-4, pairs=pairs_of(n, causal),
                    single=False, dtype="float32", d=3, n=n, systems=1)  # fmt: skip
    forward = [compiled(type(each).__name__, ours, jnp.asarray(x), each, causal) for each in chosen]
    at, expected = some_rows(x, BETA, causal, tangent=False, count=20)
    alone = measured("", forward, expected, TOLERANCE["float32"], answer=lambda found: found[at])
    for row, one in zip(rows, alone, strict=False):
        row["over forward"] = row["seconds"] / one["seconds"]
    return rows


@eqx.filter_jit
def whole(x0, ts, beta):
    traj = cjx.simulate(cjx.AttentionField(cjx.SoftmaxAttention(beta)), x0, ts, save=lambda t, x, args: jnp.mean(x))
    return traj.x1, traj.stats


def run_of(n: int, d: int) -> list[dict]:
    """A run to t = 15 with all defaults; at the end the velocity is also checked by its definition."""
    given = jnp.asarray(sphere(n, d, np.float32)), jnp.asarray([0, END], jnp.float32), jnp.float32(BETA)
    program, compile_s = timed(lambda: whole.lower(*given).compile())
    (x1, stats), run_s = timed(lambda: program(*given))
    at, expected = some_rows(np.asarray(x1), BETA, False, tangent=False, count=20)
    found = jax.jit(partial(ours, summation=cjx.Auto()))(x1)
    error = check("the end of the run", np.asarray(found)[at], expected, TOLERANCE["float32"])
    return [{"what": f"run to t = {END:.0f}, {int(stats['num_steps'])} steps", "dtype": "float32", "d": d, "n": n,
             "systems": 1, "method": str(stats.get("summation")), "median ms": run_s * 1e3, "repeats": 1,
             "compile s": compile_s, "error": error}]  # fmt: skip


class Part(NamedTuple):
    """Rows that answer one question and are measured together; `goal` was set before the measurement."""

    name: str
    goal: str
    run: Callable[[], list[dict]]


def parts_of(quick: bool, peer: Peer | None) -> list[Part]:
    """All parts: the most important parts come first, and parts that repeat known answers come last."""
    f32, f64, found = np.float32, np.float64, []

    def add(name, goal, function, *given):
        found.append(Part(name, goal, partial(function, *given)))

    def sums(n, d, dtype, causal, goal=""):
        name = f"{named('averages', causal)}, n = {n:,}, d = {d}, {np.dtype(dtype).name}"
        add(name, goal, averages, n, d, dtype, causal, peer)

    few, many, systems = (256, 512, 32) if quick else (16_384, 100_000, SYSTEMS)
    no_slower, five, within = "no slower than PyTorch", "5 times faster than PyTorch", "at most 1.1 of PyTorch's time"
    sums(many, 3, f32, False, "at most 8 ms")
    sums(many, 3, f32, True, "at most 5 ms")
    for n in (32, 64):
        add(f"phase cell, n = {n}", five, runs.phase_cells, n, systems, 20 if quick else 200, peer)
    for n in (32, 64):
        add(f"adaptive run, n = {n}", five, runs.adaptive, n, systems, peer)
    for causal in (False, True):
        sums(few, 64, f32, causal, no_slower)
    for causal in (False, True):
        add(named("batch", causal), no_slower, batches, 8 if quick else 64, 3, causal, 1, peer)
    for causal in (False, True):
        add(named("gradient", causal), "at most 3 forward passes", gradients, few, causal, peer)
    add("training step", within, runs.training_step, quick, peer)
    add("forward pass", within, runs.forward_pass, quick, peer)
    add("sweep", "", runs.swept, *((6, 12) if quick else (100, 2500)), peer)
    add("batch, full, 20 in a row", no_slower, batches, 8 if quick else 64, 3, False, 20, peer)
    for d in (2, 16):
        add(f"hardmax epoch, d = {d}", "", runs.hardmax_epoch, d, 1000 if quick else 35_000, peer)
    for causal in (False, True):
        sums(few, 3, f32, causal)
    for n in (256,) if quick else (10_000, 100_000):
        add(f"run, n = {n:,}", "", run_of, n, 3)
    if not quick:
        add("run, n = 1,000,000", "", run_of, 1_000_000, 2)
        sums(many, 2, f32, False)
        for causal in (False, True):
            sums(1024, 3, f32, causal)
    for causal in (False, True):
        sums(few, 3, f64, causal)
    return found


def finding(part: Part, rows: list[dict]) -> list[str]:
    """The fastest program of clusterjax beside the fastest program of PyTorch."""
    at = [row for row in rows if row["part"] == part.name]
    theirs = [row for row in at if row["method"].startswith("PyTorch")]
    if not at or not (theirs or part.goal):
        return []
    fastest = lambda among: min(among, key=lambda row: row["median ms"])
    words = lambda row: f"{row['method']} {row['median ms']:.3g} ms" + (
        "" if row["error"] is None else f", error {row['error']:.1e}")  # fmt: skip
    one = fastest([row for row in at if row not in theirs])
    told = (f"Goal: {part.goal}. " if part.goal else "") + f"{part.name}: {words(one)}"
    if one.get("over forward"):
        told += f", {one['over forward']:.2g} forward passes"
    if one.get("share of limit"):
        told += f", {one['share of limit']:.2g} of the exponentials of the card"
    if theirs:
        other = fastest(theirs)
        told += f"; {words(other)}: {other['median ms'] / one['median ms']:.2g} times ours"
    return [f"{told}."]


def kept_rows(path: Path, quick: bool) -> list[dict]:
    """The rows of an earlier measurement of the same code with the same versions on the same card."""
    if not path.exists():
        return []
    document = json.loads(path.read_text())
    of, now = document["environment"], environment() | {"source": source("accelerator")}
    same = document["quick"] == quick and all(of[name] == now[name] for name in ("device", "versions", "source"))
    return [row for row in document["rows"] if "part" in row] if same else []


def measure_parts(
    parts: list[Part], rows: list[dict], left_s: Callable[[], float], write: Callable[[list[dict], list[str]], None]
) -> bool:
    """Measure the parts that have no row yet while time is left, and write all rows after each; False if one failed."""
    notes, good = [], True
    for part in parts:
        if any(row["part"] == part.name for row in rows):
            continue
        if left_s() <= 0:
            notes.append(f"Not measured, since the time was over: {part.name}.")
            continue
        say(part.name)
        try:
            found = part.run()
        except Exception as error:  # a part that fails for any reason must not prevent the other parts
            traceback.print_exc()
            first = (str(error).strip() or "no words").splitlines()[0]
            notes.append(f"Failed: {part.name} ({type(error).__name__}: {first})")
            good = False
            continue
        rows += [row | {"part": part.name} for row in found]
        write(rows, notes)
    write(rows, notes)
    return good


def main() -> int:
    jax.config.update("jax_enable_x64", True)
    chosen = options(
        __doc__, "accelerator.json",
        ("--budget", {"type": float, "default": 300.0, "help": "seconds after which no part begins (default: 300)"}),
        ("--resume", {"action": "store_true", "help": "keep the parts that the results have, and measure the others"}),
        ("--parts", {"metavar": "WORDS", "help": "measure only the parts whose name has these words"}),
    )  # fmt: skip
    if jax.default_backend() == "cpu" and not chosen.quick:
        print("There is no accelerator here: nothing was measured. --quick runs small sizes on a CPU.")
        return 0
    parts = parts_of(chosen.quick, Peer.find())
    wanted = [part for part in parts if (chosen.parts or "") in part.name]
    again = {part.name for part in wanted} if chosen.parts and not chosen.resume else set()
    rows = kept_rows(chosen.out, chosen.quick) if chosen.parts or chosen.resume else []
    rows = [row for row in rows if row["part"] not in again]
    order = {part.name: number for number, part in enumerate(parts)}
    told: list[Any] = []

    def write(rows, notes, shown=False):
        told[:] = rows, notes
        rows = sorted(rows, key=lambda row: order[row["part"]])
        findings = (*(line for part in parts for line in finding(part, rows)), *notes)
        report(rows, chosen.out, title="On an accelerator", columns=COLUMNS, best="median ms",
               group=("what", "dtype", "d", "n"), quick=chosen.quick, findings=findings, shown=shown)  # fmt: skip

    good = measure_parts(wanted, rows, lambda: chosen.budget - (time.perf_counter() - BEGIN), write)
    write(*told, shown=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
