"""How long does a whole run of very many tokens take, and does the run agree with the theory of the uniform measure?

The runs have softmax attention with V = Q = K = I, beta = 9, independent uniform tokens, float32, and the default
solver to t = 15. Some rows of the velocity, at the start and at the end, are first checked against float64 sums in
NumPy, and the growth of the angular power against `uniform_growth_rates`. A whole run with `Blocked` is not made: its
time is the number of evaluations times the time of one velocity, which is measured for at most 30,000 tokens and
extrapolated by the number of pairs.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from _harness import check, compiled, measure, options, report, say, some_rows, sphere, timed, velocity

import clusterjax as cjx


BETA, END, DEGREES, COMPARED = 9.0, 15.0, 12, 6
EVALUATIONS = 6  # the number of evaluations of a Tsit5 step
LARGEST_BLOCKED = 30_000
TOLERANCE = 2e-5
COLUMNS = ["d", "n", "summation", "steps", "compile s", "run s", "velocity ms", "Blocked velocity ms", "times faster",
           "error at start", "error at end", "worst rate off by", "clusters"]  # fmt: skip


@eqx.filter_jit
def whole_run(x0, ts, beta):
    """The angular power at `ts`, and the tokens at the end."""
    field = cjx.AttentionField(cjx.SoftmaxAttention(beta))
    traj = cjx.simulate(field, x0, ts, save=lambda t, x, args: cjx.angular_power(x, DEGREES))
    return traj.xs, traj.x1, traj.stats


def checked(name, x):
    """The error of some rows of the velocity, checked by the definition for unit tokens."""
    rows, expected = some_rows(
        np.asarray(x) / np.linalg.norm(np.asarray(x, np.float64), axis=1, keepdims=True), BETA, False
    )
    return check(name, np.asarray(eqx.filter_jit(velocity)(x, BETA))[rows], expected, TOLERANCE)


def row_for(n: int, d: int) -> dict:
    say(f"n = {n:,}, d = {d}")
    x0, beta = jnp.asarray(sphere(n, d, np.float32)), jnp.asarray(BETA, jnp.float32)
    ts = jnp.linspace(0.0, END, 31, dtype=jnp.float32)
    at_start = checked("the velocity at the start", x0)
    program, compile_s = timed(lambda: whole_run.lower(x0, ts, beta).compile())
    (power, x1, stats), run_s = timed(lambda: program(x0, ts, beta))
    at_end = checked("the velocity at the end", x1)
    rates = cjx.uniform_growth_rates(BETA, d, DEGREES)
    # With more tokens the perturbation stays small for longer; the time is that at which it is about a twentieth.
    at = max(1, int(np.searchsorted(np.asarray(ts), np.clip(np.log(0.05 * np.sqrt(n)) / rates.max(), 0.5, 3.0))))
    found = np.log(np.asarray(power[at] / power[0], np.float64)) / (2 * float(ts[at]))
    off = float(np.abs(found - rates)[1 : COMPARED + 1].max())
    one = measure(compiled("velocity", velocity, x0, beta), repeats=5, budget_s=10)
    some = min(n, LARGEST_BLOCKED)
    slow = measure(compiled("Blocked", velocity, x0[:some], beta, False, cjx.Blocked()), repeats=3, budget_s=1)
    pairs_s = slow.median * (n / some) ** 2
    steps = int(stats["num_steps"])
    return {"d": d, "n": n, "summation": str(stats.get("summation")), "steps": steps, "compile s": compile_s,
            "run s": run_s, "velocity ms": one.median * 1e3, "Blocked velocity ms": pairs_s * 1e3,
            "times faster": pairs_s * steps * EVALUATIONS / run_s, "error at start": at_start,
            "error at end": at_end, "worst rate off by": off, "rates": found[1:].tolist(),
            "clusters": int(cjx.num_clusters(x1[:512], radius=0.5 / np.sqrt(BETA)))}  # fmt: skip


def main() -> None:
    chosen = options(__doc__, "many_tokens.json")
    sizes = {2: (10_000,), 3: (4096,)} if chosen.quick else {2: (100_000, 1_000_000), 3: (10_000, 100_000)}
    rows = [row_for(n, d) for d, of in sizes.items() for n in of]
    last = rows[-1]
    found = (
        f"Goal: 100,000 tokens on the sphere to t = 15 in under two minutes. n = {last['n']:,}: {last['run s']:.1f} s "
        f"after {last['compile s']:.1f} s of compiling; with Blocked it would be "
        f"{last['times faster'] * last['run s'] / 60:.0f} minutes.",
        "The rates of degree 1 to 6 are off by at most "
        + ", ".join(f"{row['worst rate off by']:.3f} (d = {row['d']}, n = {row['n']:,})" for row in rows)
        + f"; the largest are {cjx.uniform_growth_rates(BETA, 2, 12).max():.3f} (d = 2) and "
        f"{cjx.uniform_growth_rates(BETA, 3, 12).max():.3f} (d = 3).",
    )
    report(rows, chosen.out, title="A whole run of very many tokens", columns=COLUMNS, findings=found,
           quick=chosen.quick)  # fmt: skip


if __name__ == "__main__":
    main()
