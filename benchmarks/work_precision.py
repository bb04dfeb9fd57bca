"""How long do `simulate`, diffrax and the published scheme take to compute the tokens at t = 15 to an error of 1e-4?

The runs have n = 64 tokens on the sphere, d = 3, beta = 1, V = I, and full or causal attention. The error is the
largest distance of a token from its position in a run with tolerance 1e-12: either at t = 15, when the tokens have
gathered and errors have decreased with the distances of tokens, or over 31 times from 0 to 15, as a picture of the run
needs. The published scheme (normalised Euler, float64) is of first order: the step that reaches the error is estimated
from measured errors, and the run with this step is timed. `simulate` is timed as a user calls it, already compiled, and
so is the program of a user in plain jax and diffrax.
"""

from functools import partial
from typing import Any, NamedTuple

import _plain
import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _harness import Program, called, check, interleave, mask_of, options, ratio, report, rows_of, say, sphere
from _published import normalised_euler

import clusterjax as cjx


N, D, BETA, END, TARGET = 64, 3, 1.0, 15.0, 1e-4
SOLVERS = {"Tsit5": dfx.Tsit5(), "Dopri8": dfx.Dopri8(), "Heun": dfx.Heun()}
PLAIN = ", plain jax and diffrax"
TIMES = {"t = 15": np.array([0.0, END]), "31 times to 15": np.linspace(0.0, END, 31)}
COLUMNS = ["attention", "error at", "runs", "method", "dtype", "tolerance or step", "error", "steps", "median s",
           "best s", "IQR/median", "repeats", "times faster"]  # fmt: skip


class Run(NamedTuple):
    xs: jax.Array
    stats: dict[str, Any]


def solve(causal, x0, solver, tolerance, ts=(0.0, END)):
    field = cjx.AttentionField(cjx.SoftmaxAttention(BETA, mask=mask_of(causal)))
    controller = dfx.PIDController(rtol=tolerance, atol=tolerance)
    return cjx.simulate(field, x0, jnp.asarray(ts, x0.dtype), solver=solver, stepsize_controller=controller)


@eqx.filter_jit
def written(causal, x0, solver, tolerance, ts=(0.0, END)) -> Run:
    """The computation of `solve` in plain jax and diffrax."""
    ts = jnp.asarray(ts, x0.dtype)
    run = _plain.solve(x0, jnp.asarray(BETA, x0.dtype), causal, ts, solver, tolerance)
    assert run.ys is not None
    return Run(run.ys, run.stats)


def distance(got, expected) -> float:
    return float(np.max(np.linalg.norm(np.asarray(got, np.float64) - np.asarray(expected), axis=-1)))


def published(x0, causal, exact, quick) -> tuple[Program, int]:
    """The published scheme at the step that reaches TARGET, and its steps (quick: 600 of them are timed)."""
    errors, moments = {}, len(exact) - 1
    euler = lambda steps: normalised_euler(x0, BETA, causal, END / steps, steps, steps // moments)
    for steps in (1500, 6000):
        errors[steps] = distance(euler(steps), exact)
        say(f"published scheme, {steps} steps: error {errors[steps]:.2e}")
    assert 3 < errors[1500] / errors[6000] < 5, "the published scheme should be of first order"
    steps = moments * int(np.ceil(6000 * errors[6000] / (0.98 * TARGET) / moments))
    few = 600 if quick else steps
    run = lambda: normalised_euler(x0, BETA, causal, END / steps, few, few // moments)
    program = called("published, NumPy", run, compiles=False, count=few / steps)
    program.error = 0.98 * TARGET if quick else check("published scheme", distance(euler(steps), exact), 0.0, TARGET)
    interleave([program], repeats=3, budget_s=1.0)
    return program, steps


def loosest(run, solver, exact, dtype=np.float64, ts=(0.0, END)) -> tuple[float, float, int]:
    """The loosest tolerance of a ladder with an error of at most TARGET, that error, and the number of steps."""
    for tolerance in 10.0 ** np.arange(-2.0, -7.1, -0.5):
        end = run(solver, jnp.asarray(tolerance, dtype), ts)
        if (error := distance(end.xs, exact)) <= TARGET:
            return float(tolerance), error, int(jnp.max(end.stats["num_steps"]))
    raise AssertionError("no tolerance reaches the target")


def single(causal, when, quick) -> list[dict]:
    """One run: the published scheme and each solver at the loosest tolerance that reaches TARGET."""
    x0, ts = sphere(N, D), TIMES[when]
    exact = np.asarray(solve(causal, jnp.asarray(x0), dfx.Dopri8(), jnp.asarray(1e-12), ts).xs)
    old, steps = published(x0, causal, exact, quick)
    labels = {"attention": "causal" if causal else "full", "error at": when, "runs": 1}
    told, programs = [{"dtype": "float64", "tolerance or step": END / steps, "steps": steps}], []
    ways = [(name, solve, solver) for name, solver in SOLVERS.items()]
    ways += [(f"{name}{PLAIN}", written, SOLVERS[name]) for name in ("Tsit5", "Dopri8")]
    for dtype in (np.float64, np.float32):
        for name, run, solver in ways:
            run = partial(run, causal, jnp.asarray(x0, dtype))
            tolerance, error, steps = loosest(run, solver, exact, dtype, ts)
            programs.append(called(name, run, solver, jnp.asarray(tolerance, dtype), ts))
            programs[-1].error = error
            told.append({"dtype": dtype.__name__, "tolerance or step": tolerance, "steps": steps})
    rows = [labels | old.columns(), *rows_of(programs, repeats=5 if quick else 25, **labels)]
    faster = [ratio(old, program) for program in (old, *programs)]
    return [row | more | {"times faster": times} for row, more, times in zip(rows, told, faster, strict=True)]


def batch(causal, old: dict, quick) -> list[dict]:
    """Many runs in one vmap, Tsit5 in float64, against as many runs of the published scheme (one timed, multiplied)."""
    runs, told, programs, exact = 16 if quick else 256, [], [], None
    starts = jnp.stack([jnp.asarray(sphere(N, D, seed=k)) for k in range(runs)])
    for name, run in ((f"Tsit5, vmap{words}", run) for words, run in (("", solve), (PLAIN, written))):
        last = lambda x, solver, tolerance, ts, run=run: Run(
            (end := run(causal, x, solver, tolerance, ts)).xs[-1], end.stats
        )
        many = partial(eqx.filter_jit(eqx.filter_vmap(last, in_axes=(0, None, None, None))), starts)
        exact = np.asarray(many(dfx.Tsit5(), jnp.asarray(1e-10), (0.0, END)).xs) if exact is None else exact
        tolerance, error, steps = loosest(many, dfx.Tsit5(), exact)
        programs.append(called(name, many, dfx.Tsit5(), jnp.asarray(tolerance), (0.0, END)))
        programs[-1].error = error
        told.append({"dtype": "float64", "tolerance or step": tolerance, "steps": steps})
    labels = {key: old[key] for key in ("attention", "error at")} | {"runs": runs}
    rows = rows_of(programs, repeats=3 if quick else 9, **labels)
    return [row | more | {"times faster": runs * old["median s"] / row["median s"]}
            for row, more in zip(rows, told, strict=True)]  # fmt: skip


def curve(causal, quick) -> list[dict]:
    """Error against time for a ladder of tolerances and of the published scheme's steps, float64."""
    x0, programs, told = sphere(N, D), [], []
    x = jnp.asarray(x0)
    exact = np.asarray(solve(causal, x, dfx.Dopri8(), jnp.asarray(1e-12)).xs[-1])
    for name, solver in SOLVERS.items():
        for tolerance in (1e-3, 1e-5) if quick else (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-10):
            if name == "Heun" and tolerance < 1e-6:  # tens of thousands of steps
                continue
            programs.append(called(name, solve, causal, x, solver, jnp.asarray(tolerance)))
            end = programs[-1].run()
            programs[-1].error = distance(end.xs[-1], exact)
            told.append({"tolerance or step": tolerance, "steps": int(end.stats["num_steps"])})
    for step in (0.1,) if quick else (0.1, 0.01, 0.001):
        steps = round(END / step)
        programs.append(called("published, NumPy", normalised_euler, x0, BETA, causal, step, steps, compiles=False))
        programs[-1].error = distance(programs[-1].run()[-1], exact)
        told.append({"tolerance or step": step, "steps": steps})
    rows = rows_of(programs, repeats=3 if quick else 9, attention="causal" if causal else "full", dtype="float64")
    return [row | more for row, more in zip(rows, told, strict=True)]


def findings(alone: list[dict], together: list[dict]) -> list[str]:
    """The results; each number is a ratio of two methods in one dtype."""
    at = {(row["method"], row["dtype"]): row for row in alone}
    where = f"{alone[0]['attention']}, {alone[0]['error at']}"
    times = [f"{name} {at[name, 'float64']['times faster']:,.0f} times" for name in SOLVERS]
    plain = [f"{name} in {dtype} {at[name + PLAIN, dtype]['median s'] / at[name, dtype]['median s']:.2f}"
             for dtype in ("float64", "float32") for name in ("Tsit5", "Dopri8")]  # fmt: skip
    if together:
        ours, theirs = together
        times.append(f"Tsit5 in a batch of {ours['runs']} {ours['times faster']:,.0f} times")
        plain.append(f"Tsit5 in the batch {theirs['median s'] / ours['median s']:.2f}")
    return [f"Goal: at least 100 times less time than the published scheme. {where}, both in float64: "
            f"{', '.join(times)}.",
            f"Goal: no slower than plain jax and diffrax. {where}, their time over ours in the same dtype: "
            f"{', '.join(plain)}."]  # fmt: skip


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    chosen = options(__doc__, "work_precision.json")
    rows, found = [], []
    for causal in (False, True):
        for when in TIMES:
            alone = single(causal, when, chosen.quick)
            together = batch(causal, alone[0], chosen.quick) if when == "t = 15" else []
            rows += alone + together
            found += findings(alone, together)
    report(rows, chosen.out, title="Time to an error of 1e-4", columns=COLUMNS, best="median s",
           group=("attention", "error at", "runs"), findings=tuple(found), quick=chosen.quick)  # fmt: skip
    rows = curve(False, chosen.quick) + curve(True, chosen.quick)
    columns = ["attention", "method", "tolerance or step", "error", "steps", "median s", "best s", "repeats"]
    report(rows, chosen.out.with_name("work_precision_curve.json"), title="Work against precision at t = 15, float64",
           columns=columns, quick=chosen.quick)  # fmt: skip


if __name__ == "__main__":
    main()
