"""The text of a `Trajectory`: its repr, and the summary of the run."""

import textwrap
from typing import Any

import jax
import numpy as np

from ._misc import is_concrete
from ._summary import brief, spread
from ._verdicts import verdicts


_WIDTH = 110


def brief_run(run: Any) -> str:
    """The repr of a `Trajectory`: shapes, and the result of the run where its value is known."""
    told = {name: brief(getattr(run, name)) for name in ("ts", "xs", "saved", "t1") if getattr(run, name) is not None}
    if is_concrete(run.result) and run.ts.ndim == 1:
        told["t1"] = f"{float(run.t1):.6g}"
        told |= {"result": str(verdicts(run.result)), "event_reached": str(bool(run.event_reached))}
    return f"Trajectory({', '.join(f'{name}={words}' for name, words in told.items())})"


def account(run: Any) -> str:
    """The summary of a `Trajectory`; a traced one is summarised by its shapes only."""
    if not is_concrete((run.ts, run.x1, run.stats, run.result)):
        return brief_run(run)
    settings = run.settings()
    clock = "layers" if "layer" in settings else "times"
    batch = run.ts.shape[:-1]
    n, d = run.x1.shape[-2:]
    # Only a run of a `MeanField` has `resolved` in its stats, and its rows are degrees rather than tokens.
    of_tokens = f"{n} token{'s' if n > 1 else ''} of dimension {d}"
    state = f"coefficients up to degree {n - 1}" if "resolved" in run.stats else of_tokens
    tokens = f"{state}, {run.x1.dtype}"
    rows = [f"{tokens}, in {'x'.join(map(str, batch))} runs" if batch else tokens]
    first, last = (f"{float(np.min(end)):.6g}" for end in (run.ts[..., 0], run.ts[..., -1]))
    rows.append(f"{clock} {first} to {last}, {run.ts.shape[-1]} saved; reached {spread(run.t1)}")
    if settings.get("event") is not None:
        rows.append(f"event reached in {np.count_nonzero(run.event_reached)} of {np.size(run.event_reached)} runs")
    names, counts = np.unique(verdicts(run.result), return_counts=True)
    found = ", ".join(f"{name} ({count})" if batch else str(name) for name, count in zip(names, counts, strict=True))
    steps = f"{spread(run.stats['num_steps'])} {'layers' if clock == 'layers' else 'steps'}"
    rows.append(f"{found} after {steps}{_sums(run.stats)}")
    for name in ("field", "layer", "solver", "stepsize_controller", "noise", "event", "save"):
        if settings.get(name) is not None:
            words = textwrap.shorten(f"{name}: {told(settings[name])}", _WIDTH, placeholder=" ...")
            rows.append(words)
    return "\n".join(rows)


def told(node: Any) -> str:
    """The description of an object, written as the call that constructs it: its class, and its fields except None."""
    if isinstance(node, dict) and "class" in node:
        fields = {name: entry for name, entry in node.items() if name != "class" and entry is not None}
        return f"{node['class']}({', '.join(f'{name}={told(entry)}' for name, entry in fields.items())})"
    if isinstance(node, dict) and "function" in node:
        return str(node["function"]).rpartition(".")[2]
    if isinstance(node, jax.Array | np.ndarray):
        return f"{float(node):.4g}" if node.ndim == 0 and is_concrete(node) else brief(node)
    return f"[{', '.join(map(told, node))}]" if isinstance(node, list) else str(node)


def _sums(stats: dict[str, Any]) -> str:
    return f"; summed by {stats['summation']}" if "summation" in stats else ""
