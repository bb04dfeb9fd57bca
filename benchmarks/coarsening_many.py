"""How long does `coarsen` take to follow 10,000 tokens to their last merger, beside `Blocked`?

The tokens are uniform or in eight heaps in R^64, or uniform on the sphere in R^3; beta = 9, V and B are the identity,
float64, and `coarsen` runs on one thread. In the first phase `coarsen` follows the tokens by tiles until 1,024 clusters
are left. A run with `Blocked` would continue with all tokens in steps of about 2, which stability bounds, with six
velocities in each step; this run is not made, and its time is that of one velocity times the number of velocities.
Answers are checked first: 4,200 tokens in six heaps of width zero against six tokens with the masses of the heaps.
"""

import os
import re
import time


# Threads of BLAS wait for each other if other programs use the machine. NumPy reads this variable when it is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import jax.numpy as jnp
import numpy as np
from _harness import check, compiled, measure, options, report, say, sphere, timed


jax.config.update("jax_enable_x64", True)

import clusterjax as cjx


COLUMNS = ["tokens", "n", "d", "tolerance", "run s", "cpu s", "first phase to t", "steps", "last merger",
           "median bound", "last bound", "after it s", "Blocked velocity s", "Blocked after it s",
           "times faster"]  # fmt: skip
BETA, FEW, END = 9.0, 1024, 1e300
# The step of Tsit5, which stability bounds once clusters have formed, and the number of velocities in a step.
STEP, VELOCITIES = 2.0, 6


def followed(x, tolerance, masses=None, **options):
    # `Blocked` is available in every dimension.
    field = cjx.AttentionField(cjx.SoftmaxAttention(BETA, summation=cjx.Blocked()), masses=masses)
    return cjx.coarsen(field, jnp.asarray(x), END, tolerance=tolerance, **options)


def heaps(n, d):
    """Eight heaps about random centres."""
    x = sphere(8, d, seed=1)[np.arange(n) % 8] + 0.5 * sphere(n, d, seed=2)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def masses_are_tokens():
    counts, spots = np.array([1500, 900, 700, 600, 400, 100]), sphere(6, 8, seed=3)
    many = followed(np.repeat(spots, counts, axis=0), 0.1)
    return check("six heaps", many.times[-5:] / followed(spots, 0.1, jnp.asarray(counts, float)).times, 1.0, 1e-4)


def row(name, x, tolerance):
    (n, d), phases = x.shape, []

    def log(line):
        t, clusters = re.match(r"t = (\S+), step \d+: ([\d,]+) clusters", line).groups()
        phases.append((float(t), int(clusters.replace(",", ""))))

    cpu = time.process_time()
    tree, run_s = timed(lambda: followed(x, tolerance, log=log))
    cpu_s = time.process_time() - cpu
    say(f"{name}, n = {n}: {tree} in {run_s:.3g} s")
    first, clusters = phases[-1]
    # The time is increased slightly, since the reported time of the end of the first phase is rounded.
    points, counts = np.unique(np.asarray(tree.at(first * (1 + 1e-3))), axis=0, return_counts=True)
    assert len(points) <= clusters <= FEW, (len(points), clusters)
    _, after_s = timed(lambda: followed(points, tolerance, jnp.asarray(counts, float)))
    velocity = cjx.AttentionField(cjx.SoftmaxAttention(BETA, summation=cjx.Blocked()))
    program = compiled("Blocked", lambda x: velocity(0.0, x, None), jnp.asarray(x))
    one = measure(program, repeats=3, budget_s=1).median
    wait = float(tree.times[-1]) - first
    blocked = VELOCITIES * one * wait / STEP if wait > STEP else None
    return {
        "tokens": name, "n": n, "d": d, "tolerance": tolerance, "run s": run_s, "cpu s": cpu_s,
        "first phase to t": first, "steps": tree.num_steps, "last merger": f"{tree.times[-1]:.3g}",
        "median bound": float(np.median(tree.bound)), "last bound": float(tree.bound[-1]), "after it s": after_s,
        "Blocked velocity s": one, "Blocked after it s": blocked,
        "times faster": None if blocked is None else blocked / after_s,
    }  # fmt: skip


def main():
    chosen = options(__doc__, "coarsening_many.json")
    error = masses_are_tokens()
    n, d = (4200, 4) if chosen.quick else (10_000, 64)
    rows = [row("heaps", heaps(n, d), 0.1)]
    if not chosen.quick:
        rows += [row("uniform", sphere(n, 3), 0.01), row("uniform", sphere(n, d), 0.1)]
    faster = ", ".join(f"{r['tokens']}, d = {r['d']}: {r['times faster']:.2g}" for r in rows if r["times faster"])
    findings = (
        f"Heaps of no width merge when tokens with their masses do, to a relative {error:.1e}.",
        f"Goal: after the first phase at least 100 times faster than Blocked, extrapolated. {faster}. Where nothing is "
        "left to wait for after it, there is a dash.",
        "Bounds are of the relative errors of merger times, of the median one and of the last; of the first phase "
        "they are estimates.",
        "The first phase takes some 130 velocities of heaps and 250 of uniform tokens, each of half of all pairs: "
        "its time grows with the square of n.",
    )
    report(rows, chosen.out, title="Many tokens to the last merger", columns=COLUMNS, findings=findings,
           quick=chosen.quick)  # fmt: skip


if __name__ == "__main__":
    main()
