"""Is any batch of systems slower than ten lines of plain jax and diffrax that a user would write without clusterjax?

The computations are the velocity of softmax attention on the sphere with beta = 9, V = I and all defaults, its
gradient, and a run to t = 2 with diffrax's step control at 1e-5, for 1 to 4,096 systems of 8 to 4,096 tokens under
`jax.vmap`. The fields of clusterjax retract tokens to the sphere, which plain jax omits; the cost of a retraction in
plain jax is measured as well. The table has the time of clusterjax divided by the time of plain jax.
"""

import itertools
import json
import statistics

import _plain
import diffrax as dfx
import jax
import jax.numpy as jnp
import numpy as np
from _harness import Program, check, compiled, interleave, mask_of, options, report, say, some_rows, sphere, velocity

import clusterjax as cjx


BETA, END, RTOL, INSIDE = 9.0, 2.0, 1e-5, 4
SIZES = ((8, 1), (8, 64), (8, 4096), (32, 1), (32, 64), (32, 2048), (64, 1), (64, 64), (64, 1024), (128, 32), (512, 8),
         (1024, 1), (4096, 1))  # fmt: skip
DIMENSIONS, PARTS, GOAL = (2, 3, 8, 64), ("velocity", "gradient", "run"), 1.05
# Runs have fewer sizes, since a run takes hundreds of velocities and seconds to compile; then the sizes of --quick.
RUNS, QUICK = ((8, 64), (32, 64), (64, 1), (64, 64), (128, 32)), ((8, 64), (64, 1))
NAMES = {size: f"{size[0]} x {size[1]}" for size in SIZES}


def our_run(x, beta, causal):
    tolerance = jnp.asarray(RTOL, x.dtype)
    field = cjx.AttentionField(cjx.SoftmaxAttention(beta, mask=mask_of(causal)))
    controller = dfx.PIDController(rtol=tolerance, atol=tolerance)
    return cjx.simulate(field, x, jnp.asarray([0, END], x.dtype), stepsize_controller=controller).x1


def plain_run(x, beta, causal):
    tolerance = jnp.asarray(RTOL, x.dtype)
    return _plain.solve(x, beta, causal, jnp.asarray([0, END], x.dtype), dfx.Tsit5(), tolerance).ys[-1]


def retracting(x, beta, causal):
    return _plain.velocity(x / jnp.linalg.norm(x, axis=1, keepdims=True), beta, causal)


def program(name: str, part: str, way, x: np.ndarray, causal: bool) -> Program:
    """A velocity, a gradient or a run of all systems; velocities and gradients are repeated inside one program."""
    of_one = lambda y: way(y, jnp.asarray(BETA, y.dtype), causal)
    fn = jax.grad(lambda y: jnp.sum(of_one(y) ** 3)) if part == "gradient" else of_one
    batch = fn if x.ndim == 2 else jax.vmap(fn)

    def repeated(x):
        return jax.lax.fori_loop(0, INSIDE, lambda _, y: y + jnp.asarray(1e-6, x.dtype) * batch(y), x), batch(x)

    if part == "run":
        return compiled(name, batch, jnp.asarray(x))
    return compiled(name, repeated, jnp.asarray(x), count=INSIDE + 1)


def measured(part: str, n: int, systems: int, d: int, dtype, causal: bool) -> tuple[float, float]:
    """The time of clusterjax over that of plain jax, after a comparison of the answers, and for a velocity the factor
    by which a retraction increases the time of plain jax."""
    x = sphere(n * systems, d, dtype).reshape((systems, n, d) if systems > 1 else (n, d))
    ours, plain = (our_run, plain_run) if part == "run" else (velocity, _plain.velocity)
    ways = {"ours": ours, "plain": plain} | ({"retracting": retracting} if part == "velocity" else {})
    programs = [program(name, part, way, x, causal) for name, way in ways.items()]
    found = [np.asarray(each.run() if part == "run" else each.run()[1]) for each in programs]
    # A run without retraction leaves the sphere by the errors of its steps, and some starts are near a saddle.
    allowed = 300 * RTOL if part == "run" else 2e-5 if dtype == np.float32 else 1e-12
    if part == "gradient":  # of a function that does not retract, the gradient has a radial part
        found = [gradient - np.sum(gradient * x, axis=-1, keepdims=True) * x for gradient in found]
    scale = max(1.0, np.abs(found[1]).max())
    if part == "velocity":
        rows, expected = some_rows(x[-1] if systems > 1 else x, BETA, causal, count=8)
        check("ours", (found[0][-1] if systems > 1 else found[0])[rows], expected, allowed)
    check(f"ours beside plain jax, {part}, n = {n}, d = {d}", found[0] / scale, found[1] / scale, allowed)
    interleave(programs, repeats=7, budget_s=0.6)
    medians = [each.median for each in programs]
    return medians[0] / medians[1], medians[-1] / medians[1]


def findings_of(rows: list[dict]) -> tuple[str, ...]:
    ratios = lambda part, d: [row[name] for row in rows if (row["part"], row["d"]) == (part, d)
                              for name in NAMES.values() if name in row]  # fmt: skip
    every = [ratio for part in PARTS for d in DIMENSIONS for ratio in ratios(part, d)]
    above = sum(ratio > GOAL for ratio in every)
    found = [f"Goal: never more than {GOAL} times plain jax. {len(every) - above} of {len(every)} cases meet this; "
             f"the median is {statistics.median(every):.2f}, the largest ratio {max(every):.2f}."]  # fmt: skip
    for part in ("retraction", *PARTS):
        of_each = [(d, ratios(part, d)) for d in DIMENSIONS if ratios(part, d)]
        shown = "; ".join(f"d = {d}: {statistics.median(of):.2f}, at most {max(of):.2f}" for d, of in of_each)
        what = (
            "Plain jax that retracts over plain jax, velocity"
            if part == "retraction"
            else f"Ours over plain jax, {part}"
        )
        found.append(f"{what}, median: {shown}.")
    return tuple(found)


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    chosen = options(
        __doc__, "plain_jax.json",
        ("--resume", {"action": "store_true", "help": "keep the rows that the results have, and measure the others"}),
    )  # fmt: skip
    kept = json.loads(chosen.out.read_text()) if chosen.resume and chosen.out.exists() else {"quick": None, "rows": []}
    rows = kept["rows"] if kept["quick"] == chosen.quick else []
    keys = ("part", "attention", "dtype", "d")
    done = {tuple(row[key] for key in keys) for row in rows}
    sizes = QUICK if chosen.quick else SIZES
    for part, causal, dtype, d in itertools.product(PARTS, (False, True), (np.float32, np.float64), DIMENSIONS):
        of = dict(zip(keys, (part, "causal" if causal else "full", dtype.__name__, d), strict=True))
        if tuple(of.values()) in done:
            continue
        row, retraction = dict(of), of | {"part": "retraction"}
        for n, systems in [size for size in sizes if part != "run" or size in RUNS]:
            say(f"{part}, {systems} systems of n = {n}, d = {d}, {dtype.__name__}, {of['attention']}")
            row[NAMES[n, systems]], retraction[NAMES[n, systems]] = measured(part, n, systems, d, dtype, causal)
        rows += [row, retraction] if part == "velocity" else [row]
        jax.clear_caches()
        report(rows, chosen.out, title="Our time over that of plain jax and diffrax, n x systems",
               columns=[*keys, *(NAMES[size] for size in sizes)], findings=findings_of(rows), quick=chosen.quick,
               shown=False)  # fmt: skip
    print(*findings_of(rows), sep="\n")


if __name__ == "__main__":
    main()
