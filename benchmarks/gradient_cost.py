"""What do derivatives of a run cost in time and memory, for how many tokens and steps?

Tokens on the sphere in R^3 move by softmax attention at beta = 4, with a V that is no multiple of the identity, from
t = 0 to 15, by `simulate` with its defaults in float64. The derivative is that of a sum of the last tokens with fixed
weights with respect to beta, V and all tokens at once, by reverse mode with checkpoints. Memory is the memory of the
compiled program besides its arguments and results. In the first rows the number of checkpoints is the default of
diffrax for `max_steps`, which is 16,384 by default; in other rows `checkpoints` sets this number. Each gradient is
first checked against central differences in a random direction. Second derivatives with respect to beta and a factor of
V follow, by the modes that jax offers.
"""

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _harness import check, compiled, interleave, options, ratio, report, say, sphere


jax.config.update("jax_enable_x64", True)

import clusterjax as cjx


COLUMNS = ["derivative", "n", "adjoint", "max steps", "steps", "compile s", "run ms", "derivative ms", "times a run",
           "memory MB", "error"]  # fmt: skip
D, BETA, END, GOAL, MAX_STEPS = 3, 4.0, 15.0, 4.0, 16_384
VALUE = jnp.array([[1.0, -0.4, 0.1], [0.4, 0.9, -0.3], [-0.1, 0.3, 0.8]])
FEW, SHORT = 16, 5.0  # the tokens and the end of the run of the second derivative


def run(given, end, **keywords):
    """The trajectory of the tokens; derivatives are taken with respect to the parameters `given`."""
    beta, value, x0 = given
    return cjx.simulate(cjx.AttentionField(cjx.SoftmaxAttention(beta), value), x0, jnp.array([0.0, end]), **keywords)


def loss(given, weights, **keywords):
    return jnp.sum(weights * run(given, END, **keywords).x1)


def checked(gradient, given, weights):
    """The error of a gradient in a random direction, relative to the central difference."""
    direction = jax.tree.map(lambda leaf: jnp.asarray(np.random.default_rng(7).normal(size=leaf.shape)), given)
    tight = {"stepsize_controller": dfx.PIDController(rtol=1e-11, atol=1e-13)}
    at = lambda h: float(loss(jax.tree.map(lambda leaf, by: leaf + h * by, given, direction), weights, **tight))
    step = 1e-6  # so short that no token changes its cluster: one of 1,024 tokens is very near to a border
    expected = (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)
    along = sum(float(jnp.vdot(a, b)) for a, b in zip(*map(jax.tree.leaves, (gradient, direction)), strict=True))
    # The gradient of the computed run is exact, but the run is accurate only to its tolerances.
    return check("gradient", along / expected, 1.0, 1e-2)


def row_of(name, n, adjoint, max_steps, steps, forward, program, repeats):
    interleave([forward, program], repeats=repeats)
    say(f"{name}, n = {n}, {adjoint}, max_steps = {max_steps}: {ratio(program, forward):.3g} times a run")
    return {"derivative": name, "n": n, "adjoint": adjoint, "max steps": max_steps, "steps": steps,
            "compile s": program.compile_s, "run ms": forward.median * 1e3, "derivative ms": program.median * 1e3,
            "times a run": ratio(program, forward), "error": program.error,
            "memory MB": None if program.temp_bytes is None else program.temp_bytes / 2**20}  # fmt: skip


def first(n, adjoint, max_steps, repeats):
    given, weights = (jnp.asarray(BETA), VALUE, jnp.asarray(sphere(n, D, seed=n))), jnp.asarray(sphere(n, D, seed=1))
    gradient = jax.grad(lambda given: loss(given, weights, adjoint=adjoint, max_steps=max_steps))
    forward = compiled("a run", lambda given: loss(given, weights, max_steps=max_steps), given)
    reverse = compiled("reverse", gradient, given)
    reverse.error = checked(gradient(given), given, weights)
    name = "default" if adjoint is None else f"{adjoint.checkpoints} checkpoints"
    steps = int(run(given, END).stats["num_steps"])
    return row_of("gradient", n, name, max_steps, steps, forward, reverse, repeats)


def second(name, derivative, adjoint, repeats):
    """Second derivatives in beta and a factor of V."""
    x0, weights = jnp.asarray(sphere(FEW, D, seed=FEW)), jnp.asarray(sphere(FEW, D, seed=1))
    short = lambda p, adjoint=None: jnp.sum(weights * run((p[0], p[1] * VALUE, x0), SHORT, adjoint=adjoint).x1)
    at, step = jnp.array([BETA, 1.0]), 1e-4
    gradient = eqx.filter_jit(jax.grad(short))
    expected = jnp.stack([(gradient(at + step * e) - gradient(at - step * e)) / (2 * step) for e in jnp.eye(2)])
    program = compiled(name, derivative(lambda p: short(p, adjoint)), at)
    program.error = check(name, jax.tree.leaves(program.run())[0] / expected, 1.0, 1e-2)
    forward = compiled("a run", short, at)
    return row_of(name, FEW, type(adjoint).__name__, MAX_STEPS, None, forward, program, repeats)


def main():
    chosen = options(__doc__, "gradient_cost.json")
    repeats, sizes, counts = (3, (16,), (4,)) if chosen.quick else (15, (16, 64, 256, 1024), (4, 16, 64))
    rows = [first(n, None, MAX_STEPS, repeats) for n in sizes]
    rows += [first(64, None, steps, repeats) for steps in (() if chosen.quick else (128, 1024, 131_072))]
    checkpoints = [dfx.RecursiveCheckpointAdjoint(checkpoints=count) for count in counts]
    rows += [first(n, adjoint, MAX_STEPS, repeats) for n in sizes for adjoint in checkpoints]
    rows.append(second("jacfwd(jacfwd)", lambda f: jax.jacfwd(jax.jacfwd(f)), dfx.ForwardMode(), repeats))
    if not chosen.quick:
        rows.append(second("hessian", jax.hessian, dfx.DirectAdjoint(), repeats))
    goal = next((row for row in rows if row["n"] == 64), rows[0])
    findings = (
        f"Goal: a gradient of n = 64 tokens to t = 15 takes at most {GOAL:g} runs: it takes "
        f"{goal['times a run']:.2g} at n = {goal['n']}.",
        "Checkpoints bound memory, whatever the number of steps; fewer take longer, for steps are made again.",
        "Errors are relative, against differences of runs with tolerances of 1e-11.",
    )
    report(rows, chosen.out, title="Derivatives of a run", columns=COLUMNS, findings=findings, quick=chosen.quick)


if __name__ == "__main__":
    main()
