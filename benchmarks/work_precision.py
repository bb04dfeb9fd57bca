"""How long until every token is within 1e-4 of where it is at t = 15: `simulate`, diffrax or the published scheme?

n = 64 tokens on the sphere, d = 3, beta = 1, V = I, full and causal attention. The error is the largest distance of a
token from its place in a run with tolerance 1e-12: at t = 15, where the tokens have gathered and errors have shrunk
with their distances, and over 31 times from 0 to 15, which is what a picture of the run needs. The published scheme
(normalised Euler, float64) is of first order: its step is found from its own errors, and that run is timed. `simulate`
is timed as a user calls it, already compiled, and so is what a user writes in plain jax and diffrax.
"""

from functools import partial
from typing import Any, NamedTuple

import _plain
import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _harness import Program, called, check, interleave, options, ratio, report, say, sphere
from _published import normalised_euler

import clusterjax as cjx


N, D, BETA, END, TARGET = 64, 3, 1.0, 15.0, 1e-4
SOLVERS = {"Tsit5": dfx.Tsit5(), "Dopri8": dfx.Dopri8(), "Heun": dfx.Heun()}
PLAIN = ", plain jax and diffrax"
TIMES = {"t = 15": np.array([0.0, END]), "31 times to 15": np.linspace(0.0, END, 31)}
COLUMNS = ["attention", "error at", "runs", "method", "dtype", "tolerance or step", "error", "steps", "median s",
           "best s", "IQR/median", "repeats", "times faster"]  # fmt: skip


def make_field(causal: bool) -> cjx.AttentionField:
    return cjx.AttentionField(cjx.SoftmaxAttention(BETA, mask=cjx.CausalMask() if causal else cjx.FullMask()))


def solve(field, x0, solver, tolerance, ts=(0.0, END)):
    controller = dfx.PIDController(rtol=tolerance, atol=tolerance)
    return cjx.simulate(field, x0, jnp.asarray(ts, x0.dtype), solver=solver, stepsize_controller=controller)


class Run(NamedTuple):
    xs: jax.Array
    stats: dict[str, Any]


def written(causal, x0, solver, tolerance, ts=(0.0, END)) -> Run:
    """What `solve` does, written in plain jax and diffrax."""
    return _compiled(x0, causal, jnp.asarray(ts, x0.dtype), solver, tolerance)


@eqx.filter_jit
def _compiled(x0, causal, ts, solver, tolerance):
    run = _plain.solve(x0, jnp.asarray(BETA, x0.dtype), causal, ts, solver, tolerance)
    assert run.ys is not None
    return Run(run.ys, run.stats)


def distance(got, expected) -> float:
    return float(np.max(np.linalg.norm(np.asarray(got, np.float64) - np.asarray(expected), axis=-1)))


def published_step(x0, causal, exact) -> float:
    """The step at which the published scheme errs by TARGET, from its errors at two steps (first order)."""
    errors, moments = {}, len(exact) - 1
    for steps in (1500, 6000):
        saved = normalised_euler(x0, BETA, causal, END / steps, steps, steps // moments)
        errors[steps] = distance(saved, exact)
        say(f"published scheme, {steps} steps: error {errors[steps]:.2e}")
    assert 3 < errors[1500] / errors[6000] < 5, "the published scheme should be of first order"
    return 0.98 * (END / 6000) * TARGET / errors[6000]


def published(x0, causal, exact, quick) -> tuple[Program, dict]:
    """The published scheme, timed at the step that reaches TARGET (quick: 600 of its steps, multiplied)."""
    moments = len(exact) - 1
    steps = moments * int(np.ceil(END / published_step(x0, causal, exact) / moments))
    timed, every = (600, 600) if quick else (steps, steps // moments)
    program = called(f"published, {steps} steps", normalised_euler, x0, BETA, causal, END / steps, timed, every)
    interleave([program], repeats=3, budget_s=1.0)
    program.samples = [sample * steps / timed for sample in program.samples]
    error = 0.98 * TARGET
    if not quick:
        error = distance(normalised_euler(x0, BETA, causal, END / steps, steps, every), exact)
        check("published scheme", error, 0.0, TARGET)
    row = {"method": "published, NumPy", "dtype": "float64", "tolerance or step": END / steps}
    return program, row | {"error": error, "steps": steps}


def loosest(run, x0, solver, exact, ts) -> float:
    """The loosest tolerance of a ladder with an error of at most TARGET."""
    for tolerance in 10.0 ** np.arange(-2.0, -7.1, -0.5):
        if distance(run(x0, solver, jnp.asarray(tolerance, x0.dtype), ts).xs, exact) <= TARGET:
            return float(tolerance)
    raise AssertionError("no tolerance reaches the target")


def single(causal, when, quick) -> list[dict]:
    """One run: the published scheme and each solver at the loosest tolerance that reaches TARGET."""
    mask, field, x0, ts = "causal" if causal else "full", make_field(causal), sphere(N, D), TIMES[when]
    exact = np.asarray(solve(field, jnp.asarray(x0), dfx.Dopri8(), jnp.asarray(1e-12), ts).xs)
    old, row = published(x0, causal, exact, quick)
    common = {"attention": mask, "error at": when, "runs": 1}
    rows, programs = [common | row], [old]
    ways = [(name, partial(solve, field), solver) for name, solver in SOLVERS.items()]
    ways += [(f"{name}{PLAIN}", partial(written, causal), SOLVERS[name]) for name in ("Tsit5", "Dopri8")]
    for dtype in (np.float64, np.float32):
        x = jnp.asarray(x0, dtype)
        for name, run, solver in ways:
            tolerance = loosest(run, x, solver, exact, ts)
            arguments = x, solver, jnp.asarray(tolerance, dtype), ts
            end = run(*arguments)
            programs.append(called(f"{name} {dtype.__name__} {mask} {when}", run, *arguments))
            row = {"method": name, "dtype": dtype.__name__, "tolerance or step": tolerance}
            rows.append(common | row | {"error": distance(end.xs, exact), "steps": int(end.stats["num_steps"])})
    interleave(programs[1:], repeats=5 if quick else 25)
    for row, program in zip(rows, programs, strict=True):
        row.update({k: v for k, v in program.columns().items() if k not in ("traces", "compile s")})
        row["times faster"] = ratio(old, program)
    return rows


def batch(causal, old: dict, quick) -> list[dict]:
    """Many runs in one vmap, Tsit5 in float64, against as many runs of the published scheme (one timed, multiplied)."""
    runs, mask = 16 if quick else 256, "causal" if causal else "full"
    starts = jnp.stack([jnp.asarray(sphere(N, D, seed=k)) for k in range(runs)])
    ways = {"Tsit5, vmap": partial(solve, make_field(causal)), f"Tsit5, vmap{PLAIN}": partial(written, causal)}
    rows, programs, exact = [], [], None
    for name, run in ways.items():
        many = eqx.filter_jit(eqx.filter_vmap(partial(_last, run), in_axes=(0, None)))
        exact = np.asarray(many(starts, jnp.asarray(1e-10))[0]) if exact is None else exact
        for tolerance in (1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 1e-6):
            ends, steps = many(starts, jnp.asarray(tolerance))
            error = distance(ends, exact)
            if error <= TARGET:
                break
        check("batch", error, 0.0, TARGET)
        programs.append(called(f"{name} of {runs}, {mask}", many, starts, jnp.asarray(tolerance)))
        row = {"attention": mask, "error at": old["error at"], "runs": runs, "method": name, "dtype": "float64"}
        rows.append(row | {"tolerance or step": tolerance, "error": error, "steps": int(jnp.max(steps))})
    interleave(programs, repeats=3 if quick else 9)
    for row, program in zip(rows, programs, strict=True):
        row |= {k: v for k, v in program.columns().items() if k not in ("traces", "compile s")}
        row["times faster"] = runs * old["median s"] / program.median
    return rows


def _last(run, x, tolerance):
    end = run(x, dfx.Tsit5(), tolerance)
    return end.xs[-1], end.stats["num_steps"]


def curve(causal, quick) -> list[dict]:
    """Error against time for a ladder of tolerances and of the published scheme's steps, float64."""
    mask, field, x0 = "causal" if causal else "full", make_field(causal), sphere(N, D)
    x, programs, rows = jnp.asarray(x0), [], []
    exact = np.asarray(solve(field, x, dfx.Dopri8(), jnp.asarray(1e-12)).xs[-1])
    for name, solver in SOLVERS.items():
        for tolerance in (1e-3, 1e-5) if quick else (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-10):
            if name == "Heun" and tolerance < 1e-6:  # tens of thousands of steps
                continue
            end = solve(field, x, solver, jnp.asarray(tolerance))
            programs.append(called(f"{name} {tolerance:g} {mask}", solve, field, x, solver, jnp.asarray(tolerance)))
            rows.append({"attention": mask, "runs": 1, "method": name, "dtype": "float64",
                         "tolerance or step": tolerance, "error": distance(end.xs[-1], exact),
                         "steps": int(end.stats["num_steps"])})  # fmt: skip
    for step in (0.1,) if quick else (0.1, 0.01, 0.001):
        steps = round(END / step)
        programs.append(called(f"published {step} {mask}", normalised_euler, x0, BETA, causal, step, steps))
        rows.append({"attention": mask, "runs": 1, "method": "published, NumPy", "dtype": "float64",
                     "tolerance or step": step, "steps": steps,
                     "error": distance(normalised_euler(x0, BETA, causal, step, steps)[-1], exact)})  # fmt: skip
    interleave(programs, repeats=3 if quick else 9)
    return [row | program.columns() for row, program in zip(rows, programs, strict=True)]


def told(alone: list[dict], together: list[dict]) -> list[str]:
    """What came out, each number a ratio of two methods in one dtype."""
    at = {(row["method"], row["dtype"]): row for row in alone}
    where, both = f"{alone[0]['attention']}, {alone[0]['error at']}", ("Tsit5", "Dopri8")
    times = [f"{name} {at[name, 'float64']['times faster']:,.0f} times" for name in SOLVERS]
    times += [f"Tsit5 in a batch of {row['runs']} {row['times faster']:,.0f} times" for row in together[:1]]
    plain = [f"{name} in {dtype} {at[name + PLAIN, dtype]['median s'] / at[name, dtype]['median s']:.2f}"
             for dtype in ("float64", "float32") for name in both]  # fmt: skip
    if together:
        ours, theirs = together
        plain.append(f"Tsit5 in the batch {theirs['median s'] / ours['median s']:.2f}")
    return [f"Goal: at least 100 times less time than the published scheme. {where}, both in float64: "
            f"{', '.join(times)}.",
            f"Goal: no slower than plain jax and diffrax. {where}, their time over ours in the same dtype: "
            f"{', '.join(plain)}."]  # fmt: skip


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    chosen = options(__doc__, "work_precision.json")
    rows, findings = [], []
    for causal in (False, True):
        for when in TIMES:
            alone = single(causal, when, chosen.quick)
            rows += alone
            together = batch(causal, alone[0], chosen.quick) if when == "t = 15" else []
            rows += together
            findings += told(alone, together)
    report(rows, chosen.out, title="Time to an error of 1e-4", columns=COLUMNS, best="median s",
           group=("attention", "error at", "runs"), findings=tuple(findings), quick=chosen.quick)  # fmt: skip
    rows = curve(False, chosen.quick) + curve(True, chosen.quick)
    columns = ["attention", "method", "tolerance or step", "error", "steps", "median s", "best s", "repeats"]
    report(rows, chosen.out.with_name("work_precision_curve.json"), title="Work against precision at t = 15, float64",
           columns=columns, quick=chosen.quick)  # fmt: skip


if __name__ == "__main__":
    main()
