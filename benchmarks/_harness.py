"""Measurement of times: compilation and runs are timed separately, alternatives run in turn, answers are checked."""

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
from table import MEASURED, SHIPPED, machine, markdown, source

import clusterjax as cjx
from clusterjax._files.sealed import MODEL, SealedFile


# Idle threads of one method must not slow the next one.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

HERE = Path(__file__).parent
DATA = HERE.parent.parent / "shared" / "data"
IMDB = "--imdb", {"type": Path, "default": DATA / "imdb" / "imdb50k.csv.gz", "help": "the 50,000 reviews"}
PACKAGES = ("jax", "jaxlib", "diffrax", "equinox", "flax", "numpy", "torch", "transformers", "pykeops")
_START = time.perf_counter()


@dataclass
class Program:
    """A program to time: `run()` makes `count` evaluations and waits for the end. All times are of one evaluation."""

    name: str
    run: Callable[[], Any]
    count: float = 1
    error: float | None = None
    trace_s: float | None = None
    compile_s: float | None = None
    temp_bytes: int | None = None
    executable: Any = None  # of jax, compiled
    samples: list[float] = field(default_factory=list)
    cpu_samples: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    def columns(self) -> dict[str, Any]:
        """The columns that are reported for every program."""
        low, high = np.quantile(self.samples, (0.25, 0.75))
        return {
            "method": self.name,
            "seconds": self.median,
            "median s": self.median,
            "median ms": self.median * 1e3,
            "best s": min(self.samples),
            "IQR/median": float((high - low) / self.median),
            "best CPU s": min(self.cpu_samples, default=None),
            "repeats": len(self.samples),
            "compile s": self.compile_s,
            "temporary MB": None if self.temp_bytes is None else self.temp_bytes / 1e6,
            "error": self.error,
        }


def compiled(name: str, fn: Callable[..., Any], *args: Any, count: float = 1, calls: int = 1) -> Program:
    """`fn(*args)` compiled by jax for the arrays in `args`; tracing and compilation are timed, and traces counted.

    A run makes `calls` calls in a row, and waits once.
    """
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
    run = lambda: jax.block_until_ready([program(arrays) for _ in range(calls)][-1])
    return Program(name, run, count * calls, trace_s=middle - begin, compile_s=end - middle, temp_bytes=temp,
                   executable=program)  # fmt: skip


def called(name: str, fn: Callable[..., Any], *args: Any, compiles: bool = True, count: float = 1) -> Program:
    """`fn(*args)` as a user calls it; if jax compiles it, the compile time is the time of the first call."""
    run = lambda: jax.block_until_ready(fn(*args))
    _, seconds = timed(run)
    return Program(name, run, count, compile_s=seconds if compiles else None)


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """The result of a call, and its duration in seconds."""
    begin = time.perf_counter()
    found = jax.block_until_ready(run())
    return found, time.perf_counter() - begin


def interleave(programs: list[Program], *, repeats: int = 15, budget_s: float = 20.0) -> None:
    """Time the programs in turn, so that noise affects all of them alike; short programs are repeated within a sample.

    At least three rounds are made, then as many of `repeats` as fit into `budget_s`.
    """
    loops = [max(1, round(2e-3 / max(timed(program.run)[1], 1e-7))) for program in programs]
    start = time.perf_counter()
    for sweep in range(repeats):
        for program, loop in zip(programs, loops, strict=True):
            begin, begin_cpu = time.perf_counter(), time.process_time()
            for _ in range(loop):
                program.run()
            program.samples.append((time.perf_counter() - begin) / loop / program.count)
            program.cpu_samples.append((time.process_time() - begin_cpu) / loop / program.count)
        if sweep >= 2 and time.perf_counter() - start > budget_s:
            break
    for program in programs:
        say(f"{program.name}: best {min(program.samples) * 1e3:.4g} ms, median {program.median * 1e3:.4g} ms")


def measure(program: Program, **options: Any) -> Program:
    """Time one program alone."""
    interleave([program], **options)
    return program


def rows_of(programs: list[Program], *, pairs: float | None = None, repeats=15, budget_s=20.0, **labels: Any) -> list:
    """Time the programs in turn: a row for each, with its labels and, if `pairs` is given, its time for each pair."""
    interleave(programs, repeats=repeats, budget_s=budget_s)
    cost = lambda program: {} if pairs is None else {"ns per pair": program.median / pairs * 1e9}
    return [labels | program.columns() | cost(program) for program in programs]


def ratio(slow: Program, fast: Program) -> float:
    """The ratio of the medians of the times of `slow` and `fast`, whose runs were made in turn."""
    return slow.median / fast.median


class WrongAnswer(Exception):
    """A method disagrees with the reference, so that its time is not reported."""


def check(name: str, got: Any, expected: Any, tolerance: float) -> float:
    """The largest error of `got`; raises `WrongAnswer` where it exceeds `tolerance`."""
    error = float(np.max(np.abs(np.asarray(got, np.float64) - np.asarray(expected, np.float64))))
    if not error <= tolerance:
        raise WrongAnswer(f"{name} is wrong by {error:.3g}, where {tolerance:.3g} is allowed.")
    return error


def some_rows(x: np.ndarray, beta: float, causal: bool, *, form=None, tangent=True, count=40):
    """Some tokens, and their softmax averages in float64 by the definition, `tangent` or not; `form` is Q^T K."""
    rows, x, out = np.unique(np.linspace(0, len(x) - 1, count).astype(int)), np.asarray(x, np.float64), []
    for i in rows:
        others = x[: i + 1] if causal else x
        scores = beta * (others @ (x[i] if form is None else np.asarray(form, np.float64).T @ x[i]))
        weights = np.exp(scores - scores.max())
        average = weights @ others / weights.sum()
        out.append(average - (average @ x[i]) / (x[i] @ x[i]) * x[i] if tangent else average)
    return rows, np.array(out)


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
    shown: bool = True,
) -> None:
    """Print the rows as a Markdown table, if `shown`, and write them, with machine and versions, to `path`.

    `best` names the column whose least value is bold within each `group`; `findings` are the goals and the results. If
    not all rows are measured `anew`, the machine, commit, date and code of the earlier results are kept, except that
    results of a training that made a model of the package get the hash of the present model.
    """
    of_code = {"source": source(path.stem) if path.stem in MEASURED else None}
    where = environment() | of_code
    if not anew:
        unknown = {"commit": "unknown", "source": None}
        where |= json.loads(path.read_text())["environment"] if path.exists() else unknown
        where |= of_code if path.stem in SHIPPED else {}
    document = {
        "title": title,
        "quick": quick,
        "environment": where,
        "columns": columns,
        "best": best,
        "group": list(group),
        "findings": list(findings),
        "rows": rows,
    }
    if shown:
        print(f"\n## {title}\n\n{markdown(document)}\n", *(f"- {finding}" for finding in findings), sep="\n")
        print(machine(document))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    say(f"wrote {path}")


def environment() -> dict[str, Any]:
    """Machine, versions, settings, commit and date."""
    device = jax.devices()[0]
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False)
    return {
        "device": device.device_kind if device.platform != "cpu" else "cpu",
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "x64": bool(jax.config.read("jax_enable_x64")),
        "commit": git.stdout.strip() or "unknown",
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


def options(question: str | None, results: str, *others: tuple[str, dict[str, Any]]) -> argparse.Namespace:
    """`--quick`, `--out` and the other arguments of a script, each a name and the keywords of `add_argument`."""
    parser = argparse.ArgumentParser(description=question, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes and few repeats, to see that it runs")
    parser.add_argument(
        "--out", type=Path, default=None, help=f"results file (default: results/{results}; with --quick, out/{results})"
    )
    for name, settings in others:
        parser.add_argument(name, **settings)
    chosen = parser.parse_args()
    chosen.out = chosen.out or HERE / ("out" if chosen.quick else "results") / results
    return chosen


def say(message: str) -> None:
    """A line of progress, with the time since the start."""
    print(f"[{time.perf_counter() - _START:7.1f} s] {message}", flush=True)


def sphere(n: int, d: int, dtype: Any = np.float64, seed: int = 0) -> np.ndarray:
    """`n` unit vectors, the same for every method."""
    x = np.random.default_rng(seed).normal(size=(n, d))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(dtype)


def mask_of(causal: bool) -> cjx.AbstractMask:
    return cjx.CausalMask() if causal else cjx.FullMask()


def velocity(x, beta, causal: bool = False, summation: Any = None, form: Any = None) -> jax.Array:
    """One velocity under softmax attention on the sphere, V = I; `form` is Q^T K."""
    attention = cjx.SoftmaxAttention(
        jnp.asarray(beta, x.dtype), query_key=form, mask=mask_of(causal), summation=summation or cjx.Auto()
    )
    return cjx.AttentionField(attention)(jnp.zeros((), x.dtype), x)


def repeated(x, once: Callable[[Any], Any], count: int) -> jax.Array:
    """`count` evaluations one after the other, each at tokens that the previous evaluation has moved a little."""
    return jax.lax.fori_loop(0, count, lambda _, y: y + jnp.asarray(1e-6, x.dtype) * once(y), x)


def torch_or_none() -> Any:
    """PyTorch; None, and a line that says so, where it is not installed."""
    try:
        import torch
    except ImportError:
        say("PyTorch is not installed, and there is nothing to compare with")
        return None
    return torch


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
