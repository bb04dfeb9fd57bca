"""The GPU: its limits, the kernels that a program starts, PyTorch on the same GPU, and checks and times of programs.

Kernels are counted in the text of a compiled program, which needs no GPU; `profile` counts those that a run started.
"""

import functools
import re
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from _harness import Program, check, rows_of, say, torch_or_none


# The number of multiprocessors and the clock in MHz of each card, which neither jax nor nvidia-smi reports.
CARDS = {"H200": (132, 1980), "H100 80GB HBM3": (132, 1980), "H100 PCIe": (114, 1755), "A100": (108, 1410)}
PER_CLOCK = 16  # exponentials of float32 of a multiprocessor, of compute capability 7, 8 or 9


def exponentials_per_second() -> float | None:
    """The largest rate of exponentials: multiprocessors x 16 per clock x clock; None for an unknown card."""
    device = jax.devices()[0]
    if device.platform != "gpu" or str(getattr(device, "compute_capability", ""))[:1] not in ("7", "8", "9"):
        return None
    count, clock = next((known for name, known in CARDS.items() if name in device.device_kind), (None, None))
    count, clock = getattr(device, "core_count", None) or count, _largest_clock() or clock
    return count * PER_CLOCK * clock * 1e6 if count and clock else None


def _largest_clock() -> float | None:
    """The largest clock of the first card in MHz according to nvidia-smi; None if it is unknown."""
    ask = ["nvidia-smi", "--query-gpu=clocks.max.sm", "--format=csv,noheader,nounits", "--id=0"]
    try:
        return float(subprocess.run(ask, capture_output=True, text=True, check=True, timeout=20).stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


# --- the kernels, copies and library calls of a compiled program

# A line of XLA's text with an instruction has its operation, an opening parenthesis, and the rest. No type has a word
# before a parenthesis.
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = .*?\s([a-z][a-z0-9\-]*)\((.*)$")
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier", "partition-id",
         "replica-id", "add-dependency"}  # fmt: skip
_TO_HOST = re.compile(r'custom_call_target="[^"]*(?:[Cc]allback|MoveToHost)[^"]*"|is_host_transfer=true')


class Synchronises(Exception):
    """A program waits for the host while it runs."""


def _computations(text: str) -> tuple[dict[str, list[tuple[str, str]]], str]:
    """The instructions of each computation, and the name of the first to run."""
    found: dict[str, list[tuple[str, str]]] = {}
    entry = name = ""
    for line in text.splitlines():
        if head := _HEAD.match(line):
            name = head[2]
            found[name], entry = [], name if head[1] else entry
        elif name and (instruction := _INSTRUCTION.match(line)):
            found[name].append((instruction[1], instruction[2]))
    return found, entry


def _called(rest: str, *keys: str) -> list[str]:
    """The computations that an instruction names under these attributes."""
    groups = re.findall(rf"(?:{'|'.join(keys)})=\{{?(%?[\w.\-]+(?:, ?%[\w.\-]+)*)", rest)
    return [name.strip(" %") for group in groups for name in group.split(",")]


def _inside(operation: str, rest: str) -> list[str]:
    """The computations that an instruction runs, except those within one kernel."""
    keys = {"while": ("condition", "body"), "call": ("to_apply",),
            "conditional": ("branch_computations", "true_computation", "false_computation")}  # fmt: skip
    return _called(rest, *keys[operation]) if operation in keys else []


def launches(text: str) -> tuple[int, ...]:
    """The number of kernels, copies and library calls that one call of a compiled program starts, and the number of
    these in loops whose number of iterations XLA does not know, for which one iteration is counted.

    For other loops all iterations are counted, and for a conditional the longest branch.
    """
    computations, entry = _computations(text)

    def count(name: str) -> np.ndarray:
        total = np.zeros(2, int)
        for operation, rest in computations[name]:
            inner = [count(other) for other in _inside(operation, rest)]
            if operation == "while":
                turns = re.search(r'known_trip_count":\{"n":"(\d+)', rest)
                turn = np.sum(inner, axis=0)
                total += int(turns[1]) * turn if turns else turn[0]
            elif operation == "conditional":
                total += max(inner, key=lambda pair: pair[0])
            elif operation == "call":
                total += np.sum(inner, axis=0)
            elif operation not in _FREE and not operation.endswith("-done"):
                total += (1, 0)
        return total

    return tuple(count(entry).tolist())


def launch_columns(text: str) -> dict[str, int | None]:
    total, turn = launches(text)
    return {"launches": total, "in a turn": turn or None}


def check_no_host(name: str, text: str) -> None:
    """Raise `Synchronises` if a compiled program calls the host, or copies to or from it, while it runs.

    Callbacks with which equinox raises errors are allowed outside of loops, since they run only after an error. XLA
    copies the conditions of branches, and of loops whose end depends on data, to the host; `profile` counts these.
    """
    computations, entry = _computations(text)

    def visit(computation: str, looped: bool) -> None:
        for operation, rest in computations[computation]:
            moves = operation.removesuffix("-start") in ("infeed", "outfeed", "send", "recv")
            called = _TO_HOST.search(rest)
            if moves or (called and (looped or "error_if" not in rest)):
                raise Synchronises(f"{name} waits for the host: {operation if moves else called[0]}.")
            for other in _inside(operation, rest):
                visit(other, looped or operation == "while")

    visit(entry, False)


def profile(run: Callable[[], Any]) -> dict[str, int]:
    """The number of kernels and copies that one run started, and of copies to the host; {} if they are unknown."""
    if jax.default_backend() != "gpu":
        return {}
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run()
        files = [str(file) for file in Path(folder).rglob("*.xplane.pb")]
        planes = [plane for file in files for plane in jax.profiler.ProfileData.from_file(file).planes]
        names = [event.name for plane in planes if plane.name.startswith("/device:GPU") for line in plane.lines
                 if line.name.startswith("Stream") for event in line.events]  # fmt: skip
    copies = sum("d2h" in name.lower() or "dtoh" in name.lower() for name in names)
    return {"started": len(names), "copies to host": copies} if names else {}


# --- the programs that are measured


@functools.cache
def fused_serves(few: bool) -> bool:
    """True if the guard of `Fused` allows it on this device, in few or in many dimensions; else a line says why not."""
    from clusterjax._summation.fused import usable

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        good = usable(few, sloped=False)
    for warning in told:
        say(f"{'at most 4' if few else 'more than 4'} dimensions: {warning.message} There are no rows of Fused.")
    return good


class Peer:
    """PyTorch on the GPU if jax uses the GPU, and otherwise on the CPU."""

    def __init__(self, torch: Any, device: str):
        self.torch, self.device = torch, device
        torch.set_float32_matmul_precision("highest")

    @classmethod
    def find(cls) -> "Peer | None":
        """PyTorch if it is installed and finds the device of jax; otherwise None, and a line states the reason."""
        torch, device = torch_or_none(), {"gpu": "cuda", "cpu": "cpu"}.get(jax.default_backend())
        if torch is None or device is None or (device == "cuda" and not torch.cuda.is_available()):
            say("Rows of clusterjax stand alone: PyTorch is not installed, or does not see the accelerator of jax.")
            return None
        return cls(torch, device)

    def tensor(self, x: np.ndarray) -> Any:
        return self.torch.from_numpy(x).to(self.device)

    def program(self, name: str, fn: Callable[[], Any], count: float = 1, calls: int = 1) -> Program:
        """`fn` called `calls` times in a row, complete at the end; it has run once before."""

        def run():
            for _ in range(calls):
                out = fn()
            if self.device == "cuda":
                self.torch.cuda.synchronize()
            return out

        run()
        return Program(f"PyTorch, {name}" if name else "PyTorch", run, count * calls)


def measured(
    what: str, programs: list[Program], expected: Any, tolerance: float, *, answer: Callable[[Any], Any] = lambda f: f,
    pairs: float | None = None, single: bool = True, profiled: bool = False, **labels: Any,
) -> list[dict]:  # fmt: skip
    """Check each program, PyTorch with twenty times the tolerance, and time all of them in turn.

    If `pairs` are given and the precision is `single`, a row has the fraction of the card's rate of exponentials.
    """
    further = []
    for program in programs:
        found = program.run()
        found = np.asarray(found.detach().cpu() if hasattr(found, "detach") else found)
        allowed = tolerance * (20 if program.name.startswith("PyTorch") else 1)
        program.error = check(program.name, answer(found), expected, allowed)
        text = program.executable.as_text() if program.executable is not None else None
        if text is not None:
            check_no_host(program.name, text)
        further.append({} if text is None else launch_columns(text))
        if profiled and text is not None:
            further[-1] |= profile(program.run)
    rows = [row | more for row, more in zip(
        rows_of(programs, pairs=pairs, budget_s=1.5, what=what, **labels), further, strict=True)]  # fmt: skip
    limit = exponentials_per_second() if single and pairs else None
    for row in rows if pairs else ():
        row["ps per pair"] = row["ns per pair"] * 1e3
        if limit and row["method"] != "Harmonic":  # which sums no pairs
            row["share of limit"] = pairs / (row["seconds"] * limit)
    return rows
