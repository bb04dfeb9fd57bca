"""How times are taken: compiling apart from running, alternatives in turn, no time for a wrong answer."""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from table import MEASURED, machine, markdown, source

from clusterjax._files.sealed import MODEL, SealedFile


HERE = Path(__file__).parent
PACKAGES = ("jax", "jaxlib", "diffrax", "equinox", "flax", "numpy", "torch", "transformers", "pykeops")


@dataclass
class Program:
    """Something to time: `run()` does it once and waits for the end."""

    name: str
    run: Callable[[], Any]
    trace_s: float | None = None
    compile_s: float | None = None
    temp_bytes: int | None = None
    traces: int | None = None
    samples: list[float] = field(default_factory=list)
    cpu_samples: list[float] = field(default_factory=list)

    @property
    def best(self) -> float:
        return min(self.samples)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """Interquartile range over median."""
        low, high = np.quantile(self.samples, (0.25, 0.75))
        return float((high - low) / self.median)

    def columns(self) -> dict[str, Any]:
        """What is reported of every program."""
        return {
            "best s": self.best,
            "median s": self.median,
            "IQR/median": self.spread,
            "best CPU s": min(self.cpu_samples, default=None),
            "repeats": len(self.samples),
            "compile s": self.compile_s,
            "traces": self.traces,
        }


def compiled(name: str, fn: Callable[..., Any], *args: Any) -> Program:
    """`fn(*args)` compiled by jax for the arrays in `args`; tracing and compiling are timed apart, traces counted."""
    arrays, rest = eqx.partition(args, eqx.is_array)
    traces = []

    def counted(arrays):
        traces.append(name)
        return eqx.filter(fn(*eqx.combine(arrays, rest)), eqx.is_array)

    begin = time.perf_counter()
    lowered = jax.jit(counted).lower(arrays)
    middle = time.perf_counter()
    program = lowered.compile()
    end = time.perf_counter()
    jax.block_until_ready(program(arrays))
    assert len(traces) == 1, f"{name} was traced {len(traces)} times"
    memory = program.memory_analysis()
    temp = None if memory is None else memory.temp_size_in_bytes
    run = lambda: jax.block_until_ready(program(arrays))
    return Program(name, run, middle - begin, end - middle, temp, len(traces))


def called(name: str, fn: Callable[..., Any], *args: Any) -> Program:
    """`fn(*args)` as a user calls it, jax or not; for what jax compiles, the first call is the compile time."""
    run = lambda: jax.block_until_ready(fn(*args))
    begin = time.perf_counter()
    run()
    return Program(name, run, compile_s=time.perf_counter() - begin)


def interleave(programs: list[Program], *, repeats: int = 15, budget_s: float = 20.0) -> None:
    """Time the programs in turn, so that a noisy moment meets all of them; short ones are looped inside a sample.

    At least three rounds are made, then as many of `repeats` as fit into `budget_s`.
    """
    loops = {}
    for program in programs:
        begin = time.perf_counter()
        program.run()
        loops[program.name] = max(1, round(2e-3 / max(time.perf_counter() - begin, 1e-7)))
    start = time.perf_counter()
    for sweep in range(repeats):
        for program in programs:
            count = loops[program.name]
            begin, begin_cpu = time.perf_counter(), time.process_time()
            for _ in range(count):
                program.run()
            program.samples.append((time.perf_counter() - begin) / count)
            program.cpu_samples.append((time.process_time() - begin_cpu) / count)
        if sweep >= 2 and time.perf_counter() - start > budget_s:
            break
    for program in programs:
        say(f"{program.name}: best {program.best * 1e3:.4g} ms, median {program.median * 1e3:.4g} ms")


def measure(program: Program, **options: Any) -> Program:
    """Time one program alone."""
    interleave([program], **options)
    return program


def ratio(slow: Program, fast: Program) -> float:
    """How many times longer `slow` takes than `fast`: the ratio of the medians of runs made in turn."""
    return slow.median / fast.median


class WrongAnswer(Exception):
    """A method disagreed with the reference, and gets no time."""


def check(name: str, got: Any, expected: Any, tolerance: float) -> float:
    """The largest error of `got`; raises `WrongAnswer` where it exceeds `tolerance`."""
    error = float(np.max(np.abs(np.asarray(got, np.float64) - np.asarray(expected, np.float64))))
    if not error <= tolerance:
        raise WrongAnswer(f"{name} is wrong by {error:.3g}, where {tolerance:.3g} is allowed.")
    return error


def report(
    rows: list[dict[str, Any]],
    path: Path,
    *,
    title: str,
    columns: list[str],
    best: str | None = None,
    group: tuple[str, ...] = (),
    findings: tuple[str, ...] = (),
    quick: bool = False,
    anew: bool = True,
) -> None:
    """Print the rows as a Markdown table and write them, with machine and versions, to `path`.

    `best` names the column whose least value is bold within each `group`; `findings` are the goals and what came out.
    Where not all rows are measured `anew`, the commit and the code that they are of stay those of the results before.
    """
    of_code = {"source": source(path.stem) if path.stem in MEASURED else None}
    if not anew:
        before = json.loads(path.read_text())["environment"] if path.exists() else {}
        of_code = {"commit": before.get("commit", "unknown"), "source": before.get("source")}
    document = {
        "title": title,
        "quick": quick,
        "environment": environment() | of_code,
        "columns": columns,
        "best": best,
        "group": list(group),
        "findings": list(findings),
        "rows": rows,
    }
    print(f"\n## {title}\n\n{markdown(document)}\n")
    for finding in findings:
        print(f"- {finding}")
    print(machine(document))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    say(f"wrote {path}")


def environment() -> dict[str, Any]:
    """Machine, versions, settings, commit and date."""
    device = jax.devices()[0]
    return {
        "device": device.device_kind if device.platform != "cpu" else "cpu",
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "x64": bool(jax.config.read("jax_enable_x64")),
        "commit": _git_commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git_commit() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def options(question: str | None, results: str) -> argparse.Namespace:
    """`--quick` and `--out` of a script."""
    parser = argparse.ArgumentParser(description=question, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes and few repeats, to see that it runs")
    parser.add_argument(
        "--out", type=Path, default=None, help=f"results file (default: results/{results}; with --quick, out/{results})"
    )
    chosen = parser.parse_args()
    if chosen.out is None:
        chosen.out = HERE / ("out" if chosen.quick else "results") / results
    return chosen


def say(message: str) -> None:
    """A line of progress, with the time since the start."""
    print(f"[{time.perf_counter() - _START:7.1f} s] {message}", flush=True)


_START = time.perf_counter()


def sphere(n: int, d: int, dtype: Any = np.float64, seed: int = 0) -> np.ndarray:
    """`n` unit vectors, the same for every method."""
    x = np.random.default_rng(seed).normal(size=(n, d))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(dtype)


def as_jax(x: np.ndarray) -> jax.Array:
    return jnp.asarray(x)


_ANY = SealedFile("run", None, 0, "train it again", what="model")


def header_of(folder: Path) -> dict[str, Any]:
    """The header of the model in a folder, with its history and its report."""
    header = _ANY.unpack(folder / MODEL)[0]
    return header | header.get("further", {})


def amend(source: Path, target: Path, arrays: dict[str, np.ndarray] | None = None, **further: Any) -> None:
    """Copy the model of a folder to another folder, with further arrays and entries of its header."""
    header, own = _ANY.unpack(source / MODEL)
    kind = SealedFile("target", header.pop("format"), header.pop("version"), "name another", what="model")
    # transformers reads a file only if its metadata have this format.
    metadata = {"format": "pt"} if kind.format == "clusterjax albert" else {}
    del header["sha256"]
    kind.write(target / MODEL, own | (arrays or {}), header.pop("settings"), metadata, **header | further)
