"""What do derivatives of a run cost in time and memory, for how many tokens, and of how many steps?

Tokens on the sphere in R^3 at beta = 4 with a V that is no multiple of the identity, softmax attention, from t = 0 to
15 by `simulate` with its defaults, float64. The derivative is that of a sum of the last tokens with fixed weights, in
beta, V and all tokens at once, by reverse mode with as many checkpoints as the adjoint keeps; memory is what the
compiled program needs beside its arguments and results. The first rows keep the checkpoints that diffrax takes for
`max_steps`, 16,384 if left at its default; `checkpoints` sets their number. Answers first: each gradient against
central differences in a random direction. Then second derivatives in beta and a factor of V, by the ways jax has.
"""

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _harness import as_jax, check, compiled, interleave, options, ratio, report, say, sphere


jax.config.update("jax_enable_x64", True)

import clusterjax as cjx


COLUMNS = [
    "derivative",
    "n",
    "adjoint",
    "max steps",
    "steps",
    "compile s",
    "run ms",
    "derivative ms",
    "times a run",
    "memory MB",
    "error",
]
D, BETA, END, GOAL = 3, 4.0, 15.0, 4.0
VALUE = np.array([[1.0, -0.4, 0.1], [0.4, 0.9, -0.3], [-0.1, 0.3, 0.8]])
# The second derivative is taken over a shorter run of few tokens.
FEW, SHORT = 16, 5.0


def run(given, end, **keywords):
    """The trajectory of tokens, by parameters that are what derivatives are taken in."""
    beta, value, x0 = given
    return cjx.simulate(cjx.AttentionField(cjx.SoftmaxAttention(beta), value), x0, jnp.array([0.0, end]), **keywords)


def loss(given, weights, **keywords):
    return jnp.sum(weights * run(given, END, **keywords).x1)


def checked(gradient, given, weights):
    """The error of a gradient in a random direction, relatively to what differences give there."""
    direction = jax.tree.map(lambda leaf: as_jax(np.random.default_rng(7).normal(size=leaf.shape)), given)
    tight = {"stepsize_controller": dfx.PIDController(rtol=1e-11, atol=1e-13)}
    at = lambda h: float(loss(jax.tree.map(lambda leaf, by: leaf + h * by, given, direction), weights, **tight))
    # So short that no token comes to another cluster: of 1,024 one is very near to the border.
    step = 1e-6
    expected = (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)
    found = sum(float(jnp.vdot(a, b)) for a, b in zip(*map(jax.tree.leaves, (gradient, direction)), strict=True))
    # The run itself is right to its tolerances, and the gradient of what was computed is exact.
    return check("gradient", found / expected, 1.0, 1e-2)


def first(n, adjoint, max_steps, repeats):
    name = "default" if adjoint is None else f"{adjoint.checkpoints} checkpoints"
    given = (jnp.asarray(BETA), as_jax(VALUE), as_jax(sphere(n, D, seed=n)))
    weights, keywords = as_jax(sphere(n, D, seed=1)), {"adjoint": adjoint, "max_steps": max_steps}
    steps = int(run(given, END).stats["num_steps"])
    forward = compiled("a run", lambda given: loss(given, weights, max_steps=max_steps), given)
    reverse = compiled("reverse", jax.grad(lambda given: loss(given, weights, **keywords)), given)
    error = checked(jax.grad(lambda given: loss(given, weights, **keywords))(given), given, weights)
    interleave([forward, reverse], repeats=repeats)
    say(f"n = {n}, {name}, max_steps = {max_steps}: {ratio(reverse, forward):.3g} times a run")
    return {
        "derivative": "gradient",
        "n": n,
        "adjoint": name,
        "max steps": max_steps,
        "steps": steps,
        "compile s": reverse.compile_s,
        "run ms": forward.median * 1e3,
        "derivative ms": reverse.median * 1e3,
        "times a run": ratio(reverse, forward),
        "memory MB": None if reverse.temp_bytes is None else reverse.temp_bytes / 2**20,
        "error": error,
    }


def second(name, derivative, adjoint, repeats):
    """Second derivatives in beta and a factor of V."""
    x0, weights = as_jax(sphere(FEW, D, seed=FEW)), as_jax(sphere(FEW, D, seed=1))

    def short(parameters, adjoint):
        traj = run((parameters[0], parameters[1] * as_jax(VALUE), x0), SHORT, adjoint=adjoint)
        return jnp.sum(weights * traj.x1)

    at, step = jnp.array([BETA, 1.0]), 1e-4
    gradient = eqx.filter_jit(jax.grad(lambda parameters: short(parameters, None)))
    expected = jnp.stack([(gradient(at + step * e) - gradient(at - step * e)) / (2 * step) for e in jnp.eye(2)])
    whole = lambda parameters: derivative(lambda p: short(p, adjoint))(parameters)
    program = compiled(name, whole, at)
    forward = compiled("a run", lambda parameters: short(parameters, None), at)
    error = check(name, whole(at) / expected, 1.0, 1e-2)
    interleave([forward, program], repeats=repeats)
    return {
        "derivative": name,
        "n": FEW,
        "adjoint": type(adjoint).__name__,
        "max steps": 16_384,
        "steps": None,
        "compile s": program.compile_s,
        "run ms": forward.median * 1e3,
        "derivative ms": program.median * 1e3,
        "times a run": ratio(program, forward),
        "memory MB": None if program.temp_bytes is None else program.temp_bytes / 2**20,
        "error": error,
    }


def main():
    chosen = options(__doc__, "gradient_cost.json")
    repeats = 3 if chosen.quick else 15
    sizes = (16,) if chosen.quick else (16, 64, 256, 1024)
    counts = (4,) if chosen.quick else (4, 16, 64)
    kept = [dfx.RecursiveCheckpointAdjoint(checkpoints=count) for count in counts]
    rows = [first(n, None, 16_384, repeats) for n in sizes]
    rows += [first(64, None, steps, repeats) for steps in (() if chosen.quick else (128, 1024, 131_072))]
    rows += [first(n, adjoint, 16_384, repeats) for n in sizes for adjoint in kept]
    twice = lambda f: jax.jacfwd(jax.jacfwd(f))
    rows.append(second("jacfwd(jacfwd)", twice, dfx.ForwardMode(), repeats))
    if not chosen.quick:
        rows.append(second("hessian", jax.hessian, dfx.DirectAdjoint(), repeats))
    goal = next((row for row in rows if row["n"] == 64), rows[0])
    report(
        rows,
        chosen.out,
        title="Derivatives of a run",
        columns=COLUMNS,
        findings=(
            f"Goal: a gradient of n = 64 tokens to t = 15 takes at most {GOAL:g} runs: it takes "
            f"{goal['times a run']:.2g} at n = {goal['n']}.",
            "Checkpoints bound memory, whatever the number of steps; fewer take longer, for steps are made again.",
            "Errors are relative, against differences of runs with tolerances of 1e-11.",
        ),
        quick=chosen.quick,
    )


if __name__ == "__main__":
    main()
