"""What do a cell of the published phase diagram and a whole diagram cost, beside the published code?

A cell is one beta at one save time. A row has 300 steps of 0.1 and 200 save times up to t = 30, and a diagram has 90
rows, with n = 32 tokens and 2048 starts on the circle (512 in d = 8, 128 in d = 128). The published code is written in
PyTorch; both programs start from the same tokens, and the diagrams are compared before anything is timed. In clusterjax
a row is a program on one core, and the sweep runs as many rows at once as there are cores: the time of several rows at
once is divided by their number.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
from _harness import Program, called, check, options, report, rows_of, say, timed
from _published_phase import BETA, STEP, Cell, N, starts, steps_of, times_of


CORES = os.cpu_count() or 1
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", CORES)

from clusterjax.phase import Adaptive, Given, NormalisedEuler, PhaseDiagram, phase_diagram


SAMPLES = {2: 2048, 8: 512, 128: 128}
COLUMNS = ["d", "systems", "attention", "dtype", "method", "ms per cell", "median s", "IQR/median", "repeats",
           "compile s", "error"]  # fmt: skip


def side_by_side(rows: list) -> list[np.ndarray]:
    """The rows, one on each core."""
    with ThreadPoolExecutor(len(rows)) as pool:
        return list(pool.map(lambda row: np.asarray(row(BETA)["close_pairs"]), rows))


def compiled_row(x0: np.ndarray, ts: np.ndarray, dtype, integrator, device):
    diagram = PhaseDiagram(Given(jnp.asarray(x0, dtype)), jnp.asarray(ts, dtype), integrator=integrator)
    program = jax.jit(lambda beta: diagram(beta))
    return lambda beta: program(jax.device_put(jnp.asarray(beta, dtype), device))


def rows_for(d: int, dtype: str, count: int, quick: bool) -> list[dict]:
    samples = SAMPLES[d] // (8 if quick else 1)
    say(f"d = {d}, {dtype}")
    x0, ts = starts(samples, d).astype(dtype), times_of(count)
    published, steps, programs = Cell(x0, BETA, STEP), steps_of(ts), []
    expected = np.array(published.row(steps))
    for name, integrator in (("clusterjax", NormalisedEuler(STEP)), ("clusterjax, accurate", Adaptive())):
        accurate = integrator == Adaptive()
        if accurate and (d != 2 or quick):
            continue
        rows = [compiled_row(x0, ts, dtype, integrator, device) for device in jax.devices()]
        programs.append(called(name, side_by_side, rows, count=CORES))
        # By rounding, pairs at the threshold may count as close or not; accurate integration gives another diagram.
        tolerance = np.inf if accurate else 2e-3 if dtype == "float32" else 1e-5
        programs[-1].error = check(f"{name}, d = {d}, {dtype}", side_by_side(rows)[0], expected, tolerance)
    programs.append(Program("PyTorch, as published", lambda: published.row(steps), error=0.0))
    timing = {"repeats": 3, "budget_s": 10.0} if quick else {"repeats": 7, "budget_s": 60.0}
    rows = rows_of(programs, d=d, systems=samples, attention="softmax", dtype=dtype, **timing)
    return [row | {"ms per cell": row["median ms"] / count} for row in rows]


def whole(quick: bool) -> dict:
    """The diagram of 90 betas and 200 times on all cores, including compilation."""
    betas, times = np.linspace(0.1, 9, 6 if quick else 90), np.linspace(0, 30, 20 if quick else 200)
    samples = 128 if quick else 2048
    ask = lambda: phase_diagram(betas, times, samples=samples, dtype=jnp.float32, progress=False)
    program = Program(f"clusterjax, {len(betas)} x {len(times)}", ask)
    program.samples.append(timed(ask)[1])
    cell = {"ms per cell": program.median / len(betas) / len(times) * 1e3}
    return {"d": 2, "systems": samples, "attention": "softmax", "dtype": "float32"} | program.columns() | cell


def speed(rows: list[dict], d: int, ours: str, theirs: str = "float64") -> float:
    cell = {(row["d"], row["dtype"], row["method"]): row["ms per cell"] for row in rows}
    return cell[d, theirs, "PyTorch, as published"] / cell[d, ours, "clusterjax"]


def main() -> None:
    chosen = options(__doc__, "phase_diagram.json")
    rows = []
    for d in SAMPLES:
        for dtype in ("float32", "float64"):
            rows += rows_for(d, dtype, 4 if chosen.quick else 20, chosen.quick)
    say("a whole diagram")
    rows.append(whole(chosen.quick))
    report(
        rows, chosen.out, title=f"A cell of a phase diagram, n = {N}, beta = {BETA:g}", columns=COLUMNS,
        best="ms per cell", group=("d", "dtype"), quick=chosen.quick,
        findings=(
            "Goal: a cell on the circle 10 times faster in float32 than the published one in float64, and 4 times in "
            f"float64, on the same cores. Measured: {speed(rows, 2, 'float32'):.0f} and "
            f"{speed(rows, 2, 'float64'):.0f}.",
            f"In d = 8: {speed(rows, 8, 'float32'):.1f} and {speed(rows, 8, 'float64'):.1f}; in d = 128: "
            f"{speed(rows, 128, 'float32'):.1f} and {speed(rows, 128, 'float64'):.1f}.",
            f"Goal: the whole diagram, 90 x 200, in less than 180 s. Measured: {rows[-1]['median s']:.0f} s for "
            f"{rows[-1]['method'].removeprefix('clusterjax, ')}.",
        ),
    )  # fmt: skip


if __name__ == "__main__":
    main()
