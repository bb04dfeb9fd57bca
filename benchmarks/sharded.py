"""What does one velocity cost on several devices or processes, and how many bytes do they exchange?

    python benchmarks/sharded.py --processes 2     two processes on this machine, started by this one command
    python benchmarks/sharded.py --devices 4       one process with four devices on the CPU

The sums are those of softmax attention on the circle and the sphere, beta = 9, full and causal, in float32: `Sharded`
over `Harmonic` and over `Blocked`, beside the same sum on one device. Every answer is checked first: some rows against
the definition in float64, and all rows against one device. The bytes that a device passes to all-reduces and shifts are
counted in the compiled program, for a velocity whose rows are all certified and for a velocity that the ring must sum.
On one machine the devices share the cores, so that the time shows the cost of sharding and not its gain. `--rank` is
used by the script itself; on a cluster, where the scheduler starts each process, pass
`--coordinator HOST:PORT --processes N --rank K`.
"""

import argparse
import math
import os
import re
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path


HERE = Path(__file__).parent
BETA = 9.0
COLUMNS = ["processes", "devices", "attention", "d", "n", "method", "median ms", "best ms", "repeats", "compile s",
           "one device ms", "times one device", "kB sent, moments", "kB sent, ring", "error"]  # fmt: skip


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1, help="how many processes share the tokens")
    parser.add_argument("--devices", type=int, default=1, help="forced CPU devices of each process")
    parser.add_argument("--rank", type=int, default=None, help="which of the processes this is")
    parser.add_argument("--coordinator", default=None, help="HOST:PORT of the first process")
    parser.add_argument("--quick", action="store_true", help="small sizes and few repeats, to see that it runs")
    parser.add_argument("--out", type=Path, default=None)
    chosen = parser.parse_args()
    if chosen.processes == chosen.devices == 1:
        chosen.devices = 2
    if chosen.out is None:
        kind = f"processes{chosen.processes}" if chosen.processes > 1 else f"devices{chosen.devices}"
        chosen.out = HERE / ("out" if chosen.quick else "results") / f"sharded_{kind}.json"
    return chosen


def launch(processes: int) -> int:
    """Run this script once for each process, on the loopback; if one process fails, the others are ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, __file__, *sys.argv[1:], "--coordinator", address]
    children = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(processes)]
    try:
        for child in children:
            if child.wait():
                return child.returncode
        return 0
    finally:
        for child in children:
            child.kill()


def measure(chosen: argparse.Namespace) -> None:
    if chosen.devices > 1:
        force = f"--xla_force_host_platform_device_count={chosen.devices}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {force}"
    import jax

    if chosen.processes > 1:
        jax.distributed.initialize(chosen.coordinator, num_processes=chosen.processes, process_id=chosen.rank)
    import numpy as np
    from _harness import report, say, sphere

    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("tokens",))
    rows, first = [], chosen.rank in (None, 0)
    for d in (2, 3):
        for causal in (False, True):
            for inner, n in (("Harmonic", 12 if chosen.quick else 17), ("Blocked", 10 if chosen.quick else 13)):
                if first:
                    say(f"d = {d}, {'causal' if causal else 'full'}, {inner}, n = {2**n}")
                row = row_of(mesh, sphere(2**n, d, np.float32), causal, inner, 3 if chosen.quick else 11)
                rows.append({"processes": chosen.processes, "devices": mesh.size, "d": d, "n": 2**n} | row)
    if first:
        report(rows, chosen.out, title="Tokens on several devices", columns=COLUMNS, quick=chosen.quick,
               findings=(f"{mesh.size} devices in {chosen.processes} processes give the answer of one.",))  # fmt: skip


def row_of(mesh, x, causal, inner, repeats):
    import jax
    import numpy as np
    from _harness import check, some_rows, timed, velocity
    from jax.sharding import NamedSharding, PartitionSpec

    import clusterjax as cjx

    summation, by_moments = getattr(cjx, inner)(), inner == "Harmonic"
    of = lambda summation: jax.jit(lambda x: velocity(x, BETA, causal, summation))
    placed = jax.make_array_from_callback(x.shape, NamedSharding(mesh, PartitionSpec("tokens")), lambda index: x[index])
    program, compile_s = timed(lambda: of(cjx.Sharded(summation, "tokens", mesh)).lower(placed).compile())
    whole = jax.jit(lambda a: a, out_shardings=NamedSharding(mesh, PartitionSpec()))
    found = np.asarray(whole(program(placed)).addressable_data(0))
    local, alone = jax.device_put(x, jax.local_devices()[0]), of(summation)
    tolerance = 5e-4 if by_moments else 2e-5
    check("one device", found, np.asarray(alone(local)), tolerance)
    at, expected = some_rows(x, BETA, causal)
    error = check("the definition", found[at], expected, tolerance)
    times, single = (
        np.array([timed(partial(run, given))[1] for _ in range(repeats)])
        for run, given in ((program, placed), (alone, local))
    )
    moments, ring = sent(program.as_text() or "")
    return {
        "attention": "causal" if causal else "full", "method": inner, "median ms": float(np.median(times)) * 1e3,
        "best ms": float(times.min()) * 1e3, "repeats": repeats, "compile s": compile_s,
        "one device ms": float(np.median(single)) * 1e3,
        "times one device": float(np.median(times) / np.median(single)),
        "kB sent, moments": moments / 1e3 if by_moments else None, "kB sent, ring": ring * mesh.size / 1e3,
        "error": error,
    }  # fmt: skip


SIZES = {"f64": 8, "f32": 4, "s64": 8, "s32": 4, "pred": 1}


def sent(program: str) -> tuple[int, int]:
    """The bytes that a compiled program gives to all-reduces and shifts in one velocity, and in one step of its ring.

    The program has a branch for each degree of the series, of which the lowest is taken at this beta. The shifts of the
    ring are recognised by their pairs, one of which leads from the last device to the first.
    """
    always, branches, ring, computation = 0, {}, 0, ""
    for line in program.splitlines():
        if re.match(r"^(ENTRY )?%?[\w.\-]+ .*\{$", line):
            computation = line.split(" ")[0]
        found = re.search(r"= (.*?) (all-reduce|collective-permute)(-start)?\(", line)
        if not found:
            continue
        size = 0
        for kind, shape in re.findall(r"(\w+)\[([\d,]*)\]", found[1]):
            size += SIZES.get(kind, 4) * math.prod(int(side) for side in shape.split(",") if side)
        if re.search(r"source_target_pairs=\{.*\{\d+,0\}", line):
            ring += size
        elif computation == "ENTRY":
            always += size
        else:
            branches[computation] = branches.get(computation, 0) + size
    return always + min(branches.values(), default=0), ring


def main() -> int:
    chosen = parse()
    if chosen.processes > 1 and chosen.rank is None:
        return launch(chosen.processes)
    measure(chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
