"""How long is a forward pass through 96 layers of ALBERT, hidden states only, beside the PyTorch of transformers?

Random weights of the size of albert-base, float32, full texts without padding. PyTorch runs its fastest attention
(sdpa) in `inference_mode` without a mask, on as many threads as XLA has cores. Both are compared with PyTorch in
float64 at the last layer first.
"""

import os
from typing import Any

import jax.numpy as jnp
import numpy as np
from _harness import Program, check, compiled, interleave, options, report, say
from _networks import BASE, cores, full_texts, peers, random_model, run_twin, twin
from flax import nnx


COLUMNS = ["texts", "tokens", "layers", "method", "threads", "seconds", "best s", "IQR/median", "repeats", "compile s",
           "GFLOP/s", "over PyTorch", "error"]  # fmt: skip


def flops(sizes, texts: int, n: int, depth: int) -> float:
    """Of the matrix products: the maps of attention, its scores and averages, the feed-forward."""
    d, wide = sizes.hidden_size, sizes.intermediate_size
    return 2.0 * texts * n * depth * (4 * d * d + 2 * n * d + 2 * d * wide)


def rows_for(texts: int, n: int, depth: int, **timing: Any) -> list[dict[str, Any]]:
    say(f"{texts} x {n} tokens, {depth} layers")
    model = random_model(BASE, depth)
    ids = full_texts(model, texts, n).token_ids
    last = lambda theirs: run_twin(theirs, ids).last_hidden_state.numpy()
    theirs = twin(model, "sdpa")
    expected = last(twin(model, "sdpa", double=True))
    form, state = nnx.split(model.network)
    ours = lambda state, ids, mask: nnx.merge(form, state)(ids, mask)
    arguments = state, jnp.asarray(ids), jnp.ones(ids.shape, bool)
    programs = [Program("PyTorch, transformers", lambda: last(theirs)), compiled("clusterjax", ours, *arguments)]
    answers = last(theirs), np.asarray(programs[1].run())
    tolerance = 1e-4 * np.abs(expected).max()
    errors = [check(p.name, got, expected, tolerance) for p, got in zip(programs, answers, strict=True)]
    interleave(programs, **timing)
    work = flops(BASE, texts, n, depth)
    return [
        {
            "texts": texts, "tokens": n, "layers": depth, "method": program.name, "threads": cores(),
            "seconds": program.median, "GFLOP/s": work / program.median / 1e9,
            "over PyTorch": program.median / programs[0].median, "error": error,
        } | program.columns()
        for program, error in zip(programs, errors, strict=True)
    ]  # fmt: skip


def main() -> None:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads of one method must not slow the next one
    chosen = options(__doc__, "probe_forward.json")
    if not peers():
        return
    depth = 4 if chosen.quick else 96
    sizes = ((1, 64), (2, 32)) if chosen.quick else ((1, 512), (8, 128))
    timing = {"repeats": 3 if chosen.quick else 5, "budget_s": 3.0 if chosen.quick else 60.0}
    rows = [row for texts, n in sizes for row in rows_for(texts, n, depth, **timing)]
    found = [
        f"Goal: no slower than PyTorch within 10 %. {row['texts']} x {row['tokens']} tokens: "
        f"{row['over PyTorch']:.2f} of its time, {row['GFLOP/s']:.0f} GFLOP/s."
        for row in rows
        if row["method"] == "clusterjax"
    ]
    report(rows, chosen.out, title=f"A forward pass through {depth} layers of base size", columns=COLUMNS,
           best="seconds", group=("texts", "tokens"), findings=tuple(found), quick=chosen.quick)  # fmt: skip


if __name__ == "__main__":
    main()
