"""Write `runs.safetensors`.

`python -m tests.golden.make` computes all runs. `python -m tests.golden.make NAME ...` computes the named runs and
keeps all others as they are in the file. The file was written before the package was restructured: a run may be
computed again only where a commit changes its result on purpose.
"""

import sys
import time

import jax


# The modules of runs build arrays when they are imported.
jax.config.update("jax_enable_x64", True)

from safetensors.numpy import save_file

from .register import FILE, stored
from .runs import RUNS


def main(names: list[str]) -> None:
    if unknown := [name for name in names if name not in RUNS]:
        raise SystemExit(f"names must be runs, but {unknown} are none; the runs are {sorted(RUNS)}.")
    runs = {name: arrays for name, arrays in (stored() if names else {}).items() if name in RUNS}
    for name in names or RUNS:
        began = time.process_time()
        runs[name] = RUNS[name].arrays()
        size = sum(array.nbytes for array in runs[name].values())
        flat = {f"{run}/{part}": array for run in sorted(runs) for part, array in runs[run].items()}
        save_file(flat, FILE)  # The file is written after each run, so that a run that raises loses no other run.
        print(f"{name}: {len(runs[name])} arrays, {size} bytes, {time.process_time() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
