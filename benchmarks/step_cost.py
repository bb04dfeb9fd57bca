"""How many field evaluations does a Tsit5 step cost, of which six are needed, for a batch and for one system?

The cost is the time of a solve divided by its number of steps and by the time of one evaluation of the same field; all
are timed in turn in float32. The cases are `simulate` on one system of n = 64, d = 3; `simulate` under vmap on 2048
systems of n = 32, d = 2; and one diffrax solve whose state is this whole batch, so that all systems share their steps.
For comparison, the table has the programs of a user in plain jax and diffrax, in units of the field of clusterjax; a
hand-written Tsit5 loop without dense output, derivatives or checks (the floor); and a solve with times in float64,
which make diffrax solve a float32 state in float64.
"""

import _plain
import diffrax as dfx
import jax
import jax.numpy as jnp
import numpy as np
from _harness import check, compiled, options, repeated, report, rows_of, say, sphere, velocity

import clusterjax as cjx


BETA, END, RTOL = 9.0, 15.0, 1e-6
COLUMNS = ["state", "method", "fields per step", "steps", "us per step", "us per field", "IQR/median", "repeats",
           "compile s", "error"]  # fmt: skip
TABLEAU = dfx.Tsit5.tableau


def field(x):
    """The velocity of one system or, for an array of three dimensions, of each of a batch."""
    if x.ndim == 3:
        return jax.vmap(field)(x)
    return velocity(x, BETA)


def controller(dtype):
    return dfx.PIDController(rtol=jnp.asarray(RTOL, dtype), atol=jnp.asarray(RTOL, dtype))


def simulated(x, times):
    """`simulate`, mapped over the batch if there is one; the steps of the longest run count."""
    if x.ndim == 3:
        ends, steps = jax.vmap(lambda one: simulated(one, times))(x)
        return ends, jnp.max(steps)
    attention = cjx.SoftmaxAttention(jnp.asarray(BETA, x.dtype))
    ts = jnp.linspace(0, END, times).astype(x.dtype)
    run = cjx.simulate(cjx.AttentionField(attention), x, ts, stepsize_controller=controller(x.dtype))
    return run.x1, run.stats["num_steps"]


def written(x):
    """The computation of `simulated` in plain jax and diffrax."""
    if x.ndim == 3:
        ends, steps = jax.vmap(written)(x)
        return ends, jnp.max(steps)
    ts, beta, tolerance = (jnp.asarray(value, x.dtype) for value in ((0, END), BETA, RTOL))
    run = _plain.solve(x, beta, False, ts, dfx.Tsit5(), tolerance)
    return run.ys[-1], run.stats["num_steps"]


def shared(x, time_dtype):
    """One diffrax solve with the whole array as its state, the times in `time_dtype`."""
    t0, t1 = jnp.asarray(0, time_dtype), jnp.asarray(END, time_dtype)
    term = dfx.ODETerm(lambda t, y, args: field(y))
    run = dfx.diffeqsolve(term, dfx.Tsit5(), t0, t1, None, x, stepsize_controller=controller(time_dtype))
    return run.ys[-1], run.stats["num_steps"]


def floor(x, first=0.01):
    """Tsit5 with the simplest step control, by hand; without a loop over the stages XLA would compute some twice."""
    stages = len(TABLEAU.c) + 1
    lower = np.zeros((stages, stages))
    for i, row in enumerate(TABLEAU.a_lower):
        lower[i + 1, : i + 1] = row
    lower, weights = (jnp.asarray(a, x.dtype) for a in (lower, np.asarray(TABLEAU.b_error)))

    def body(state):
        t, y, k, h, steps = state
        h = jnp.minimum(h, END - t)

        def stage(i, carry):
            ks, _ = carry
            end = y + h * jnp.tensordot(lower[i], ks, 1)
            return ks.at[i].set(field(end)), end

        ks = jnp.zeros((stages, *y.shape), y.dtype).at[0].set(k)
        ks, end = jax.lax.fori_loop(1, stages, stage, (ks, y))
        scale = RTOL + RTOL * jnp.maximum(jnp.abs(y), jnp.abs(end))
        error = jnp.sqrt(jnp.mean((h * jnp.tensordot(weights, ks, 1) / scale) ** 2))
        keep, factor = error <= 1, jnp.clip(0.9 * (error + 1e-10) ** -0.2, 0.2, 10.0)
        moved = (jnp.where(keep, t + h, t), jnp.where(keep, end, y), jnp.where(keep, ks[-1], k))
        return (*moved, (h * factor).astype(y.dtype), steps + 1)

    start = (jnp.zeros((), x.dtype), x, field(x), jnp.asarray(first, x.dtype), 0)
    return jax.lax.while_loop(lambda state: state[0] < END, body, start)[1::3]


def rows_for(name: str, x: np.ndarray, quick: bool) -> list[dict]:
    say(name)
    x, count = jnp.asarray(x), 20 if x.ndim == 3 else 500
    vmap, diffrax = ("", "diffrax") if x.ndim == 2 else ("vmap of ", "diffrax, shared steps")
    evaluations = compiled("field", repeated, x, field, count, count=count)
    programs = [compiled("hand-written loop", floor, x)]
    for times in (2,) if quick else (2, 31, 121):
        programs.append(compiled(f"{vmap}simulate, {times} save times", simulated, x, times))
    programs.append(compiled(f"{vmap}plain jax and diffrax", written, x))
    for dtype in (jnp.float32, jnp.float64):
        programs.append(compiled(f"{diffrax}, times in {dtype.__name__}", shared, x, dtype))
    exact = jax.jit(lambda y: shared(y, jnp.float64))(x.astype(jnp.float64))[0]
    steps = [int(program.run()[1]) for program in programs]
    for program in programs:
        program.error = check(program.name, program.run()[0], exact, 1e-2)
    one, *rows = rows_of([evaluations, *programs], repeats=3 if quick else 15, budget_s=5.0 if quick else 60.0)
    return [
        row | {"state": name, "steps": steps, "fields per step": row["seconds"] / one["seconds"] / steps,
               "us per step": row["seconds"] / steps * 1e6, "us per field": one["seconds"] * 1e6}
        for row, steps in zip(rows, steps, strict=True)
    ]  # fmt: skip


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    chosen = options(__doc__, "step_cost.json")
    systems = 256 if chosen.quick else 2048
    one, many = "one system, n = 64, d = 3", f"{systems} systems, n = 32, d = 2"
    batch = sphere(32 * systems, 2, np.float32).reshape(systems, 32, 2)
    rows = rows_for(one, sphere(64, 3, np.float32), chosen.quick) + rows_for(many, batch, chosen.quick)
    at = lambda state, method: next(r for r in rows if r["state"] == state and r["method"].startswith(method))
    cost = lambda state, method: f"{at(state, method)['fields per step']:.1f}"
    over = lambda state, vmap: at(state, f"{vmap}plain jax")["seconds"] / at(state, f"{vmap}simulate")["seconds"]
    shared_steps = "diffrax, shared steps, times in"
    findings = (
        f"Goal: a Tsit5 step on the batch at most 8 field evaluations. Shared steps: "
        f"{cost(many, f'{shared_steps} float32')}; vmap of simulate: {cost(many, 'vmap of simulate')}.",
        f"Goal: at most 10 for one system. `simulate`: {cost(one, 'simulate')}.",
        f"Goal: no slower than plain jax and diffrax. Their time of a run over ours: one system {over(one, ''):.2f}, "
        f"the batch {over(many, 'vmap of '):.2f}.",
        f"With times in float64 a float32 batch is solved in float64: {cost(many, f'{shared_steps} float64')} "
        "evaluations; `simulate` takes the dtype of x0.",
    )
    report(rows, chosen.out, title="Field evaluations a Tsit5 step costs, float32", columns=COLUMNS,
           findings=findings, quick=chosen.quick)  # fmt: skip


if __name__ == "__main__":
    main()
