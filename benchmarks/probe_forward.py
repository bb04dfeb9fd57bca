"""How long does a forward pass through 96 layers of ALBERT take, hidden states only, beside PyTorch (transformers)?

The network has random weights of the size of albert-base in float32, and reads full texts without padding. PyTorch runs
its fastest attention (sdpa) in `inference_mode` without a mask, on as many threads as XLA has cores. Both results are
first compared with PyTorch in float64 at the last layer.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from _harness import Program, check, compiled, options, report, rows_of, say, torch_or_none
from _networks import BASE, cores, full_texts, random_model, run_twin, twin
from flax import nnx


COLUMNS = ["texts", "tokens", "layers", "method", "threads", "seconds", "best s", "IQR/median", "repeats", "compile s",
           "GFLOP/s", "over PyTorch", "error"]  # fmt: skip


def rows_for(texts: int, n: int, depth: int, **timing: Any) -> list[dict[str, Any]]:
    say(f"{texts} x {n} tokens, {depth} layers")
    model = random_model(BASE, depth)
    ids = full_texts(model, texts, n).token_ids
    last = lambda theirs: run_twin(theirs, ids).last_hidden_state.numpy()
    theirs, expected = twin(model, "sdpa"), last(twin(model, "sdpa", double=True))
    form, state = nnx.split(model.network)
    ours = lambda state, ids, mask: nnx.merge(form, state)(ids, mask)
    arguments = state, jnp.asarray(ids), jnp.ones(ids.shape, bool)
    programs = [Program("PyTorch, transformers", lambda: last(theirs)), compiled("clusterjax", ours, *arguments)]
    for program in programs:
        program.error = check(program.name, np.asarray(program.run()), expected, 1e-4 * np.abs(expected).max())
    rows = rows_of(programs, texts=texts, tokens=n, layers=depth, threads=cores(), **timing)
    # The matrix products: the maps of attention, its scores and averages, the feed-forward.
    d, wide = BASE["hidden_size"], BASE["intermediate_size"]
    flops = 2.0 * texts * n * depth * (4 * d * d + 2 * n * d + 2 * d * wide)
    return [row | {"GFLOP/s": flops / row["seconds"] / 1e9, "over PyTorch": row["seconds"] / rows[0]["seconds"]}
            for row in rows]  # fmt: skip


def main() -> None:
    chosen = options(__doc__, "probe_forward.json")
    if torch_or_none() is None:
        return
    depth, sizes = (4, ((1, 64), (2, 32))) if chosen.quick else (96, ((1, 512), (8, 128)))
    timing = {"repeats": 3, "budget_s": 3.0} if chosen.quick else {"repeats": 5, "budget_s": 60.0}
    rows = [row for texts, n in sizes for row in rows_for(texts, n, depth, **timing)]
    findings = tuple(
        f"Goal: no slower than PyTorch within 10 %. {row['texts']} x {row['tokens']} tokens: "
        f"{row['over PyTorch']:.2f} of its time, {row['GFLOP/s']:.0f} GFLOP/s."
        for row in rows if row["method"] == "clusterjax"
    )  # fmt: skip
    report(rows, chosen.out, title=f"A forward pass through {depth} layers of base size", columns=COLUMNS,
           best="seconds", group=("texts", "tokens"), findings=findings, quick=chosen.quick)  # fmt: skip


if __name__ == "__main__":
    main()
