"""How long is the first second: an import, a first run, a first gradient, a first trace, a first prediction?

Each row is measured on whole processes, each of which computes and prints one result. A row has the wall time and the
CPU time of the process, the number of programs that XLA compiled, and the times that jax spent on tracing, lowering and
compilation, as `jax.monitoring` reports them. The file cache is warm. Without jax's persistent cache each process
compiles everything; with the cache, a first process fills an empty folder and a second process reads the folder.
`--against FOLDER` measures another checkout in turn with this one, such as the state before a change.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _harness import HERE, options, report, say


COLUMNS = ["process", "checkout", "cache", "CPU s", "wall s", "programs", "traced s", "lowered s", "compiled s",
           "least CPU s", "repeats"]  # fmt: skip
TOKENS = """
import clusterjax as cjx, jax, jax.numpy as jnp
x0 = cjx.Sphere().sample(jax.random.key(0), n=64, d=3)
field = cjx.AttentionField(cjx.SoftmaxAttention(9.0, mask=cjx.CausalMask()))
ts = jnp.array([0.0, 5.0])
"""
PLAIN = """
import sys; sys.path.insert(0, {benchmarks!r})
import diffrax as dfx, jax, jax.numpy as jnp, _plain
x0 = jax.random.normal(jax.random.key(0), (64, 3))
x0 = x0 / jnp.linalg.norm(x0, axis=1, keepdims=True)
beta, ts = jnp.asarray(9.0), jnp.array([0.0, 5.0])
run = lambda x0, beta, ts: _plain.solve(x0, beta, True, ts, dfx.Tsit5(), 1e-6).ys[-1]
"""
PROCESSES = {
    "import jax and diffrax": "import diffrax, jax.numpy",
    "import clusterjax": "import clusterjax as cjx; cjx.simulate",
    "first simulate": f"{TOKENS}print(cjx.simulate(field, x0, ts).xs[-1])",
    "the same in plain jax and diffrax": f"{PLAIN}print(jax.jit(run)(x0, beta, ts))",
    "first gradient": f"{TOKENS}print(jax.grad(lambda x: cjx.simulate(field, x, ts).xs[-1].sum())(x0))",
    "the same gradient in plain jax and diffrax": f"{PLAIN}print(jax.jit(jax.grad(lambda *args: run(*args).sum()))"
    "(x0, beta, ts))",
    "first probe.load and trace": """
import clusterjax as cjx
network = cjx.probe.load()
token_ids, mask = cjx.probe.encode(network, ["Tokens cluster as they pass through attention."])
print(cjx.probe.trace(network, token_ids, mask).hidden[0, :, 0, 0])
""",
    "first sentiment predict": """
from clusterjax import sentiment
print(sentiment.explain(sentiment.load(), "A wonderful film, not boring at all."))
""",
}
# The listener counts the events of jax in the process; the report is the last line of the output.
PRELUDE = """
import atexit, json, jax.monitoring
_seconds = {"jaxpr_trace": [], "jaxpr_to_mlir": [], "backend_compile": []}
def _listen(event, seconds, **_):
    for name, found in _seconds.items():
        found += [seconds] * (name in event)
jax.monitoring.register_event_duration_secs_listener(_listen)
atexit.register(lambda: print(json.dumps(_seconds)))
"""


def process(code: str, checkout: Path, cache: str | None) -> dict[str, float]:
    """The cost of one process that runs `code` with the package in `checkout` and the compilation cache in `cache`."""
    own = ("JAX_", "XLA_", "EQX_", "PYTHON")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    environment |= {"PYTHONPATH": str(checkout), "JAX_PLATFORMS": "cpu"}
    if cache is not None:
        environment |= {
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
    code = PRELUDE + code.replace("{benchmarks!r}", repr(str(HERE)))
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        begin = time.perf_counter()
        child = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=output, stderr=errors)
        _, status, used = os.wait4(child.pid, 0)
        wall = time.perf_counter() - begin
        child.returncode = os.waitstatus_to_exitcode(status)
        for stream in (output, errors):
            stream.seek(0)
        if child.returncode:
            raise RuntimeError(errors.read().decode())
        seconds = json.loads(output.read().decode().splitlines()[-1])
    return {
        "wall s": wall,
        "CPU s": used.ru_utime + used.ru_stime,
        "programs": len(seconds["backend_compile"]),
        "traced s": sum(seconds["jaxpr_trace"]),
        "lowered s": sum(seconds["jaxpr_to_mlir"]),
        "compiled s": sum(seconds["backend_compile"]),
    }


def row(name: str, checkout: str, cache: str, samples: list[dict[str, float]]) -> dict[str, Any]:
    """The medians of some processes."""
    medians = {column: statistics.median(sample[column] for sample in samples) for column in samples[0]}
    medians["programs"] = int(medians["programs"])
    least = min(sample["CPU s"] for sample in samples)
    say(f"{name}, {checkout}, {cache}: {medians['CPU s']:.2f} s of a core, {medians['programs']} programs")
    return {"process": name, "checkout": checkout, "cache": cache, **medians, "least CPU s": least,
            "repeats": len(samples)}  # fmt: skip


def main() -> None:
    chosen = options(
        __doc__,
        "compile_times.json",
        ("--against", {"type": Path, "metavar": "FOLDER", "help": "another checkout, measured in turn"}),
        ("--only", {"metavar": "WORDS", "help": "only the processes whose names contain these words"}),
    )
    checkouts = {"before": chosen.against.resolve()} if chosen.against else {}
    checkouts["after" if checkouts else "this"] = HERE.parent
    rows, repeats = [], 1 if chosen.quick else 3
    for name, code in PROCESSES.items():
        if chosen.only is not None and chosen.only not in name:
            continue
        samples: dict[tuple[str, str], list] = {}
        plain = "clusterjax" not in code
        for _ in range(repeats):
            for checkout, folder in list(checkouts.items())[-1:] if plain else checkouts.items():
                own = "any" if plain else checkout
                samples.setdefault((own, "none"), []).append(process(code, folder, None))
                if name.startswith("import"):
                    continue
                with tempfile.TemporaryDirectory() as cache:
                    for turn in ("first process", "second process"):
                        samples.setdefault((own, turn), []).append(process(code, folder, cache))
        rows += [row(name, *of, found) for of, found in samples.items()]
    report(
        rows,
        chosen.out,
        title="Whole processes, from the start of Python to the printed answer",
        columns=COLUMNS,
        findings=findings(rows),
        quick=chosen.quick,
    )


def findings(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """The goals, and the results."""
    cpu = {(r["process"], r["checkout"], r["cache"]): r["CPU s"] for r in rows}
    found = []
    for name in PROCESSES:
        before, after = cpu.get((name, "before", "none")), cpu.get((name, "after", "none"))
        if before and after:
            found.append(f"Goal: half of before. {name}: {after:.2f} of {before:.2f} s of a core.")
    for checkout in ("this", "after"):
        if second := cpu.get(("first simulate", checkout, "second process")):
            found.append(f"Goal: a second process within 2.5 s. First simulate with the cache: {second:.2f} s.")
    return tuple(found)


if __name__ == "__main__":
    main()
