"""How much memory does a measurement through 96 layers of ALBERT take, over 100 texts of 512 tokens?

The network has random weights of the size of albert-base in float32. Each measurement runs in a separate process,
`--measure NAME`, whose peak memory is reported, including the interpreter, libraries, weights and compilation. The
table also has the memory that the trace read by the measurement would need if it were kept. The script takes most of an
hour, or ten minutes with `TEXTS=24` in the environment.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from _harness import options, report, say
from _networks import BASE, full_texts, random_model

from clusterjax import probe


COLUMNS = ["measurement", "texts", "tokens", "layers", "batch", "peak MB", "kept trace MB", "seconds"]
MEASUREMENTS = {
    "weights and libraries alone": lambda model, texts: model.network,
    "similarity_histograms": probe.similarity_histograms,
    "head_correlations": probe.head_correlations,
}
BATCH = 8  # the default of all measurements
TEXTS = int(os.environ.get("TEXTS", "100"))  # fewer texts take the same memory, and less time


def measure(name: str, count: int, length: int, depth: int) -> None:
    """Make the measurement in this process, and print its seconds and the peak of the process in MB."""
    model = random_model(BASE, depth)
    texts = full_texts(model, count, length)
    begin = time.perf_counter()
    MEASUREMENTS[name](model, texts)
    unit = 2**20 if sys.platform == "darwin" else 2**10  # macOS counts bytes, Linux kilobytes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    print(json.dumps({"peak MB": peak, "seconds": time.perf_counter() - begin}))


def kept(name: str, count: int, length: int, depth: int) -> float | None:
    """The size in MB of the hidden states, or of the attention, of all texts and layers in float32."""
    if name.startswith("weights"):
        return None
    states = (depth + 1) * length * BASE["hidden_size"]
    attention = depth * BASE["num_attention_heads"] * length**2
    return count * (states if name.startswith("similarity") else attention) * 4 / 2**20


def row_of(name: str, count: int, length: int, depth: int) -> dict[str, Any]:
    say(name)
    arguments = [sys.executable, str(Path(__file__)), "--measure", name, str(count), str(length), str(depth)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    say(f"{name}: {found['peak MB']:.0f} MB, {found['seconds']:.0f} s")
    row = {"measurement": name, "texts": count, "tokens": length, "layers": depth, "batch": BATCH}
    return row | found | {"kept trace MB": kept(name, count, length, depth)}


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        return measure(sys.argv[2], *map(int, sys.argv[3:]))
    chosen = options(__doc__, "probe_memory.json")
    count, length, depth = (10, 64, 8) if chosen.quick else (TEXTS, 512, 96)
    rows = [row_of(name, count, length, depth) for name in MEASUREMENTS]
    found = [
        f"Goal: under 2 GB. {row['measurement']}: {row['peak MB'] / 1024:.2f} GB, where keeping what it reads would "
        f"take {row['kept trace MB'] / 1024:.1f} GB."
        for row in rows[1:]
    ]
    report(rows, chosen.out, title=f"Peak memory, {count} texts of {length} tokens", columns=COLUMNS,
           findings=tuple(found), quick=chosen.quick)  # fmt: skip


if __name__ == "__main__":
    main()
