"""How long does it take to follow tokens to their last merger, by `coarsen`, of waits up to 1e69?

256 starts of 64 tokens on the sphere in R^3, V and B the identity, tolerance 0.1, in float64, on two processes as a
user would start them. Answers first: the time at which two clusters merge against the quadrature of their exact law, to
2.5e32, and four starts of few tokens, at a beta where it can, against a run of all tokens by `Rodas5P`. The time of
that is told too, for one batch in one process to t = 1e8 at beta = 9, by when most starts have come to one cluster.
"""

import multiprocessing
import time

import diffrax as dfx
import jax
import jax.numpy as jnp
import numpy as np
from _harness import check, options, report, say


jax.config.update("jax_enable_x64", True)

import clusterjax as cjx


COLUMNS = [
    "method",
    "beta",
    "n",
    "d",
    "runs",
    "processes",
    "start s",
    "run s",
    "s a run",
    "steps",
    "last merger",
    "bound",
]
# Oracles of two clusters: beta, cosine at the start, masses, time until the cosine is .99.
ORACLES = (
    (20.0, 0.0, (0.5, 0.5), 12191759.0),
    (40.0, 0.5, (0.8, 0.2), 3949560.9),
    (80.0, 0.0, (0.7, 0.3), 2.5083944e32),
)


def field(beta, masses=None):
    return cjx.AttentionField(cjx.SoftmaxAttention(beta), masses=masses)


def start(seed, n, d):
    x = np.random.default_rng(seed).normal(size=(n, d))
    return jnp.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def merging():
    """The largest relative error of the oracles."""
    worst = 0.0
    for beta, cosine, masses, expected in ORACLES:
        x0 = jnp.array([[1.0, 0.0], [cosine, (1 - cosine**2) ** 0.5]])
        tree = cjx.coarsen(field(beta, jnp.array(masses)), x0, 1e300, tolerance=0.02**0.5)
        worst = max(worst, check(f"beta = {beta}", tree.times / expected, 1.0, 1e-6))
    return worst


def beside_all_tokens():
    """The largest distance of a token from where `Rodas5P`, which follows all of them, has it at t = 1000."""
    worst = 0.0
    for seed in range(4):
        x0 = start(seed, 8, 3)
        tree = cjx.coarsen(field(9.0), x0, 1e300, tolerance=0.1)
        precise = dfx.PIDController(rtol=1e-10, atol=1e-12)
        traj = cjx.simulate(field(9.0), x0, jnp.array([0.0, 1e3]), solver=cjx.Rodas5P(), stepsize_controller=precise)
        worst = max(worst, check(f"start {seed}", tree.at(1e3), traj.xs[-1], 1e-5))
    return worst


def followed(job):
    """One run: its steps and the time of its last merger."""
    beta, seed, n, d = job
    tree = cjx.coarsen(field(beta), start(seed, n, d), 1e300, tolerance=0.1)
    return tree.num_steps, float(tree.times[-1]), len(tree)


def ready(_):
    """The first call in a process: libraries are loaded."""
    followed((1.0, 0, 4, 2))
    time.sleep(0.5)  # so that each process gets one


def timed(pool, beta, n, d, count, processes):
    """One row."""
    begin = time.perf_counter()
    results = pool.map(followed, [(beta, seed, n, d) for seed in range(count)], chunksize=4)
    run_s = time.perf_counter() - begin
    steps, last, mergers = (np.array(column) for column in zip(*results, strict=True))
    assert np.all(mergers == n - 1), "a run did not come to its last merger"
    bounds = [cjx.coarsen(field(beta), start(seed, n, d), 1e300, tolerance=0.1).bound.max() for seed in range(4)]
    say(f"beta = {beta}: {count} runs in {run_s:.3g} s")
    row = {
        "method": "coarsen",
        "beta": beta,
        "n": n,
        "d": d,
        "runs": count,
        "processes": processes,
        "run s": run_s,
        "s a run": run_s / count,
    }
    return row | {
        "steps": int(np.median(steps)),
        "last merger": f"{np.median(last):.1e}",
        "bound": float(np.max(bounds)),
    }


def all_tokens(n, d, count):
    """The row of `Rodas5P`, which follows all tokens of some starts at beta = 9."""

    @jax.jit
    def run(x0):
        traj = cjx.simulate(
            field(9.0),
            x0,
            jnp.array([0.0, 1e8]),
            solver=cjx.Rodas5P(),
            save=lambda t, x, args: cjx.num_clusters(x, 0.1),
        )
        return traj.xs[-1], traj.stats["num_steps"]

    x0 = jnp.stack([start(seed, n, d) for seed in range(count)])
    begin = time.perf_counter()
    jax.block_until_ready(jax.vmap(run)(x0))
    first_s = time.perf_counter() - begin
    begin = time.perf_counter()
    clusters, steps = jax.block_until_ready(jax.vmap(run)(x0))
    run_s = time.perf_counter() - begin
    say(f"Rodas5P: {count} runs in {run_s:.3g} s")
    row = {"method": "Rodas5P to 1e8", "beta": 9.0, "n": n, "d": d, "runs": count, "processes": 1}
    row |= {"start s": first_s - run_s, "run s": run_s, "s a run": run_s / count, "steps": int(np.median(steps))}
    return row | {"last merger": None, "bound": None}, float(np.mean(np.asarray(clusters) == 1))


def main():
    chosen = options(__doc__, "coarsening.json")
    n, count, processes = (16, 4, 2) if chosen.quick else (64, 256, 2)
    error, apart = merging(), beside_all_tokens()
    begin = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(ready, range(processes), chunksize=1)
        start_s = time.perf_counter() - begin
        rows = [{"start s": start_s} | timed(pool, beta, n, 3, count, processes) for beta in (9.0, 80.0)]
    other, ended = all_tokens(n, 3, min(count, 16))
    report(
        [*rows, other],
        chosen.out,
        title="To the last merger",
        columns=COLUMNS,
        findings=(
            f"The times at which two clusters merge are wrong by a relative {error:.1e} at most, "
            "rounding of the oracles included.",
            f"Tokens at t = 1000 are {apart:.1e} from those of a run of all tokens at most.",
            "Goal: 256 starts to the last merger in under two minutes on two cores. "
            + ", ".join(f"beta = {row['beta']:g}: {row['run s']:.0f} s" for row in rows)
            + ". Start s is of two processes and their imports, and of Rodas5P of compilation; coarsen compiles none.",
            f"Rodas5P takes {other['s a run'] / rows[0]['s a run']:.2g} times as long for a start at beta = 9, and "
            f"{ended:.0%} of its starts have come to one cluster by then; coarsen follows all. At beta = 80 it cannot.",
            "Steps and last merger are medians; bound is the largest relative error of a merger time of four starts.",
        ),
        quick=chosen.quick,
    )


if __name__ == "__main__":
    main()
