"""How long does `coarsen` take to follow tokens to their last merger, with waits up to 1e69?

The runs have 256 starts of 64 tokens on the sphere in R^3, V and B the identity, tolerance 0.1, in float64, in two
processes as a user would start them. Answers are checked first: the time at which two clusters merge, up to 2.5e32, by
quadrature of the exact law, and four starts of few tokens, at a moderate beta, by runs of all tokens with `Rodas5P`.
The time of `Rodas5P` is reported as well, for one batch in one process at beta = 9 to t = 1e8, when most starts have
reached one cluster.
"""

import multiprocessing
import time

import diffrax as dfx
import jax
import jax.numpy as jnp
import numpy as np
from _harness import check, options, report, say, sphere, timed


jax.config.update("jax_enable_x64", True)

import clusterjax as cjx


COLUMNS = ["method", "beta", "n", "d", "runs", "processes", "start s", "run s", "s a run", "steps", "last merger",
           "bound"]  # fmt: skip
# Exact times of two clusters: beta, the cosine at the start, the masses, and the time until the cosine is .99.
ORACLES = (
    (20.0, 0.0, (0.5, 0.5), 12191759.0),
    (40.0, 0.5, (0.8, 0.2), 3949560.9),
    (80.0, 0.0, (0.7, 0.3), 2.5083944e32),
)
D = 3


def field(beta, masses=None):
    return cjx.AttentionField(cjx.SoftmaxAttention(beta), masses=masses)


def followed(beta, seed, n):
    """One start to its last merger."""
    return cjx.coarsen(field(beta), jnp.asarray(sphere(n, D, seed=seed)), 1e300, tolerance=0.1)


def merging():
    """The largest relative error of `coarsen` against the exact times."""
    worst = 0.0
    for beta, cosine, masses, expected in ORACLES:
        x0 = jnp.array([[1.0, 0.0], [cosine, (1 - cosine**2) ** 0.5]])
        tree = cjx.coarsen(field(beta, jnp.array(masses)), x0, 1e300, tolerance=0.02**0.5)
        worst = max(worst, check(f"beta = {beta}", tree.times / expected, 1.0, 1e-6))
    return worst


def beside_all_tokens():
    """The largest distance of a token at t = 1000 from its position by `Rodas5P`, which follows all tokens."""
    worst, precise = 0.0, dfx.PIDController(rtol=1e-10, atol=1e-12)
    for seed in range(4):
        x0, ts = jnp.asarray(sphere(8, D, seed=seed)), jnp.array([0.0, 1e3])
        traj = cjx.simulate(field(9.0), x0, ts, solver=cjx.Rodas5P(), stepsize_controller=precise)
        worst = max(worst, check(f"start {seed}", followed(9.0, seed, 8).at(1e3), traj.xs[-1], 1e-5))
    return worst


def numbers(job):
    """The steps of a run, the time of its last merger, and the number of its mergers."""
    tree = followed(*job)
    return tree.num_steps, float(tree.times[-1]), len(tree)


def ready(_):
    """The first call in a process: libraries are loaded."""
    followed(1.0, 0, 4)
    time.sleep(0.5)  # so that each process gets one of these calls


def pooled(pool, beta, n, count, processes):
    """One row of `coarsen`."""
    results, run_s = timed(lambda: pool.map(numbers, [(beta, seed, n) for seed in range(count)], chunksize=4))
    steps, last, mergers = (np.array(column) for column in zip(*results, strict=True))
    assert np.all(mergers == n - 1), "a run did not come to its last merger"
    bounds = [followed(beta, seed, n).bound.max() for seed in range(4)]
    say(f"beta = {beta}: {count} runs in {run_s:.3g} s")
    return {
        "method": "coarsen", "beta": beta, "n": n, "d": D, "runs": count, "processes": processes, "run s": run_s,
        "s a run": run_s / count, "steps": int(np.median(steps)), "last merger": f"{np.median(last):.1e}",
        "bound": float(np.max(bounds)),
    }  # fmt: skip


def all_tokens(n, count):
    """The row of `Rodas5P`, which follows all tokens of some starts at beta = 9, and the share of single clusters."""
    clusters = lambda t, x, args: cjx.num_clusters(x, 0.1)
    run = lambda x0: cjx.simulate(field(9.0), x0, jnp.array([0.0, 1e8]), solver=cjx.Rodas5P(), save=clusters)
    batched = jax.jit(jax.vmap(lambda x0: ((traj := run(x0)).xs[-1], traj.stats["num_steps"])))
    x0 = jnp.stack([jnp.asarray(sphere(n, D, seed=seed)) for seed in range(count)])
    _, first_s = timed(lambda: batched(x0))
    (left, steps), run_s = timed(lambda: batched(x0))
    say(f"Rodas5P: {count} runs in {run_s:.3g} s")
    row = {"method": "Rodas5P to 1e8", "beta": 9.0, "n": n, "d": D, "runs": count, "processes": 1,
           "start s": first_s - run_s, "run s": run_s, "s a run": run_s / count, "steps": int(np.median(steps)),
           "last merger": None, "bound": None}  # fmt: skip
    return row, float(np.mean(np.asarray(left) == 1))


def main():
    chosen = options(__doc__, "coarsening.json")
    n, count, processes = (16, 4, 2) if chosen.quick else (64, 256, 2)
    error, apart = merging(), beside_all_tokens()
    begin = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(ready, range(processes), chunksize=1)
        start_s = time.perf_counter() - begin
        rows = [{"start s": start_s} | pooled(pool, beta, n, count, processes) for beta in (9.0, 80.0)]
    other, ended = all_tokens(n, min(count, 16))
    findings = (
        f"The times at which two clusters merge are wrong by a relative {error:.1e} at most, "
        "rounding of the oracles included.",
        f"Tokens at t = 1000 are {apart:.1e} from those of a run of all tokens at most.",
        "Goal: 256 starts to the last merger in under two minutes on two cores. "
        + ", ".join(f"beta = {row['beta']:g}: {row['run s']:.0f} s" for row in rows)
        + ". Start s is of two processes and their imports, and of Rodas5P of compilation; coarsen compiles none.",
        f"Rodas5P takes {other['s a run'] / rows[0]['s a run']:.2g} times as long for a start at beta = 9, and "
        f"{ended:.0%} of its starts have come to one cluster by then; coarsen follows all. At beta = 80 it cannot.",
        "Steps and last merger are medians; bound is the largest relative error of a merger time of four starts.",
    )
    report([*rows, other], chosen.out, title="To the last merger", columns=COLUMNS, findings=findings,
           quick=chosen.quick)  # fmt: skip


if __name__ == "__main__":
    main()
