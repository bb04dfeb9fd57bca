"""How long does it take to follow 10,000 tokens, or 100,000, to their last merger, by `coarsen`, beside `Blocked`?

Uniform tokens and eight heaps in R^64, uniform ones on the sphere of R^3; beta = 9, V and B the identity, in float64,
`coarsen` on one thread. Many tokens are followed by tiles until 1,024 clusters are left: the first phase. After it
`Blocked` would go on with all tokens, in steps of about 2, by stability, of six velocities each; it is not run, its
time is that of one velocity times their number. Answers first: 4,200 tokens in six heaps of no width against six tokens
with their masses. More than 20,000 tokens: the heaps alone, with the state told after each step, for an hour and more.
"""

import argparse
import os
import re
import time
from pathlib import Path


# Threads of BLAS wait for each other where others use the machine; to be said before NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import jax.numpy as jnp
import numpy as np
from _harness import HERE, Program, check, measure, report, say, sphere


jax.config.update("jax_enable_x64", True)

import clusterjax as cjx


COLUMNS = [
    "tokens",
    "n",
    "d",
    "tolerance",
    "run s",
    "cpu s",
    "first phase to t",
    "steps",
    "last merger",
    "median bound",
    "last bound",
    "after it s",
    "Blocked velocity s",
    "Blocked after it s",
    "times faster",
]
BETA, FEW, END, MANY = 9.0, 1024, 1e300, 20_000
# Of Tsit5, whose steps stability bounds once clusters have formed.
STEP, VELOCITIES = 2.0, 6


def field(masses=None):
    # Pairs, in blocks: what serves every dimension.
    return cjx.AttentionField(cjx.SoftmaxAttention(BETA, summation=cjx.Blocked()), masses=masses)


def heaps(n, d):
    """Eight heaps about random centres."""
    centres, noise = sphere(8, d, seed=1), sphere(n, d, seed=2)
    x = centres[np.arange(n) % 8] + 0.5 * noise
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def masses_are_tokens():
    counts, spots = np.array([1500, 900, 700, 600, 400, 100]), sphere(6, 8, seed=3)
    many = cjx.coarsen(field(), jnp.asarray(np.repeat(spots, counts, axis=0)), END, tolerance=0.1)
    few = cjx.coarsen(field(jnp.asarray(counts, float)), jnp.asarray(spots), END, tolerance=0.1)
    return check("six heaps", many.times[-5:] / few.times, 1.0, 1e-4)


def few_clusters(tree, told):
    """When tiles were left, and the clusters then with their masses."""
    t, clusters = told[-1]
    # A little later, for the line rounds it. All steps of very many tokens fit no memory.
    x = np.asarray(tree.at(t * (1 + 1e-3)))
    points, counts = np.unique(x, axis=0, return_counts=True)
    assert len(points) <= clusters <= FEW, (len(points), clusters)
    return t, points, counts


def row(name, x, tolerance):
    n, d = x.shape
    begin, cpu = time.perf_counter(), time.process_time()
    told = []

    def log(line):
        if n > MANY:
            say(line)
        t, clusters = re.match(r"t = (\S+), step \d+: ([\d,]+) clusters", line).groups()
        told.append((float(t), int(clusters.replace(",", ""))))

    tree = cjx.coarsen(field(), jnp.asarray(x), END, tolerance=tolerance, log=log)
    run_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    say(f"{name}, n = {n}: {tree} in {run_s:.3g} s")
    first, points, counts = few_clusters(tree, told)
    begin = time.perf_counter()
    cjx.coarsen(field(jnp.asarray(counts, float)), jnp.asarray(points), END, tolerance=tolerance)
    after_s = time.perf_counter() - begin
    velocity = jax.jit(lambda x: field()(0.0, x, None))
    x = jnp.asarray(x)
    one = measure(
        Program("Blocked", lambda: jax.block_until_ready(velocity(x))), repeats=1 if n > MANY else 3, budget_s=1
    ).median
    wait = float(tree.times[-1]) - first
    blocked = VELOCITIES * one * wait / STEP if wait > STEP else None
    return {
        "tokens": name,
        "n": n,
        "d": d,
        "tolerance": tolerance,
        "run s": run_s,
        "cpu s": cpu_s,
        "first phase to t": first,
        "steps": tree.num_steps,
        "last merger": f"{tree.times[-1]:.3g}",
        "median bound": float(np.median(tree.bound)),
        "last bound": float(tree.bound[-1]),
        "after it s": after_s,
        "Blocked velocity s": one,
        "Blocked after it s": blocked,
        "times faster": None if blocked is None else blocked / after_s,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="4,200 tokens in low dimension, to see that it runs")
    parser.add_argument("--n", type=int, default=10_000, help="the number of tokens")
    parser.add_argument("--out", type=Path, default=None, help="results file")
    chosen = parser.parse_args()
    many = not chosen.quick and chosen.n > MANY
    name = f"coarsening_{chosen.n}.json" if many else "coarsening_many.json"
    out = chosen.out or HERE / ("out" if chosen.quick else "results") / name
    error = masses_are_tokens()
    n, d = (4200, 4) if chosen.quick else (chosen.n, 64)
    rows = [row("heaps", heaps(n, d), 0.1)]
    if not chosen.quick and not many:
        rows += [row("uniform", sphere(n, 3), 0.01), row("uniform", sphere(n, d), 0.1)]
    faster = ", ".join(
        f"{one['tokens']}, d = {one['d']}: {one['times faster']:.2g}" for one in rows if one["times faster"]
    )
    report(
        rows,
        out,
        title="Many tokens to the last merger",
        columns=COLUMNS,
        findings=(
            f"Heaps of no width merge when tokens with their masses do, to a relative {error:.1e}.",
            "Goal: after the first phase at least 100 times faster than Blocked, extrapolated. "
            f"{faster}. Where nothing is left to wait for after it, there is a dash.",
            "Bounds are of the relative errors of merger times, of the median one and of the last; of the first phase "
            "they are estimates.",
            "The first phase takes some 130 velocities of heaps and 250 of uniform tokens, each of half of all pairs: "
            "its time grows with the square of n.",
        ),
        quick=chosen.quick,
    )


if __name__ == "__main__":
    main()
