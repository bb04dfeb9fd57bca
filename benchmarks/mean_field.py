"""How long do a bifurcation diagram of infinitely many tokens under noise, and a run of their density, take?

The diagram has the order parameter r against T for beta = 1 to 9 on the circle and on the sphere, for unnormalised
attention with V = B = I, by `phase.branch`: stable and unstable densities, folds and equal free energies. For
comparison, runs of a `MeanField` to rest give some of the stable densities, and their time is extrapolated to all
stable densities; no run reaches an unstable density. A run without noise to t = 1.5 at beta = 2 follows: the density by
coefficients of several degrees, and tokens drawn from the same density, by the `Harmonic` sums that `Auto` chooses.
Answers are checked first: each stationary density in its equation by quadrature in NumPy, and the order parameter of a
run against that of degree 96. The compile time of the diagram is that of its first call, which includes one run; most
programs of the second dimension are then compiled already.
"""

import jax
import jax.numpy as jnp
import numpy as np
from _harness import check, compiled, interleave, options, report, say, timed
from scipy.special import i0e


jax.config.update("jax_enable_x64", True)

import clusterjax as cjx


COLUMNS = ["task", "method", "d", "points", "compile s", "run s", "all points s", "error"]
# The run of a density: beta, the end, the slope of the initial density, and the degree of the reference.
BETA, END, TILT, BEST = 2.0, 1.5, 0.5, 96


def stationary(found, index, beta):
    """The change of the order parameter if the density of one point is put into its equation, by sums."""
    l = np.arange(1, found.moments.shape[1] + 1)
    if found.d == 2:
        angle = 2 * np.pi * np.arange(1024) / 1024
        z, weights = np.cos(angle), np.full(1024, 1 / 1024)
        density = 1 + 2 * np.cos(angle[:, None] * l) @ found.moments[index]
        kernel = np.exp(beta * (np.cos(angle[:, None] - angle) - 1))
    else:
        z, weights = np.polynomial.legendre.leggauss(512)
        weights = weights / 2
        density = np.polynomial.legendre.legval(z, np.append(1, (2 * l + 1) * found.moments[index]))
        across = np.sqrt(1 - z**2)
        # The mean over the angle about the axis is a Bessel function.
        products = beta * np.outer(across, across)
        kernel = np.exp(beta * (np.outer(z, z) - 1) + products) * i0e(products)
    potential = kernel @ (weights * density) * np.exp(beta) / (beta * found.temperatures[index])
    again = np.exp(potential - potential.max())
    again /= weights @ again
    return float(weights @ (again * z) - found.order_parameters[index])


def row(*values):
    return dict(zip(COLUMNS, values, strict=True))


def branches_of(d, betas):
    return {beta: cjx.phase.branch(cjx.UnnormalisedAttention(float(beta)), d) for beta in betas}


def diagram(d, betas):
    """The branches of one dimension: the time of the first call, which compiles, and the time of all branches."""
    _, first_s = timed(lambda: branches_of(d, (0.5,)))
    branches, run_s = timed(lambda: branches_of(d, betas))
    missed = [stationary(one, k, beta) for beta, one in branches.items() for k in range(0, len(one.temperatures), 9)]
    error = check(f"densities, d = {d}", missed, 0.0, 1e-8)
    points = sum(len(one.temperatures) for one in branches.values())
    say(f"d = {d}: {points} points in {run_s:.3g} s, {first_s:.3g} s before")
    return branches, row("diagram", "phase.branch", d, points, first_s, run_s, run_s, error)


def at_rest(d, branches, each):
    """The stable points that take the fewest steps, by runs of 25 relaxation times from the density of a neighbour."""

    @jax.jit
    def run(beta, temperature, c0, end):
        field = cjx.MeanField(cjx.UnnormalisedAttention(beta), d=d, degree=32, temperature=temperature)
        return field.order_parameter(cjx.simulate(field, c0, jnp.stack([0.0 * end, end]), max_steps=1_000_000).x1)

    seconds, errors, count = [], [], 0
    for beta, one in branches.items():
        stable = np.flatnonzero(one.stable[:-1])
        count += len(stable)
        # The chosen points take the fewest steps; the diffusion of the highest degree bounds the length of a step.
        for k in stable[np.argsort(one.temperatures[stable] / -one.growth_rates[stable])[:each]]:
            args = (jnp.float64(beta), jnp.float64(one.temperatures[k]), jnp.asarray(one.coefficients(k + 1)),
                    jnp.float64(-25 / one.growth_rates[k]))  # fmt: skip
            if not seconds:
                _, compile_s = timed(lambda args=args: run(*args))
            r, run_s = timed(lambda args=args: run(*args))
            seconds.append(run_s)
            errors.append(float(r) - one.order_parameters[k])
    error, mean = check(f"densities at rest, d = {d}", errors, 0.0, 1e-3), float(np.mean(seconds))
    say(f"d = {d}: {mean:.3g} s a density at rest, of {len(seconds)}")
    return row("diagram", "MeanField to rest", d, len(seconds), compile_s, sum(seconds), mean * count, error)


def field_of(d, degree):
    return cjx.MeanField(cjx.SoftmaxAttention(BETA), d=d, degree=degree)


def tilted(d, degree):
    size = 2 * np.pi if d == 2 else 4 * np.pi
    return field_of(d, degree).from_density(lambda x: (1 + TILT * x[:, 0]) / size)


def runs(d, degrees, counts, draws, repeats):
    """A run of the density by coefficients, and by tokens."""
    ts = jnp.array([0.0, END])
    order = lambda degree: lambda c: field_of(d, degree).order_parameter(cjx.simulate(field_of(d, degree), c, ts).x1)
    best = float(order(BEST)(tilted(d, BEST)))
    check(f"degrees, d = {d}", float(order(BEST // 2)(tilted(d, BEST // 2))), best, 1e-7)
    tokens = cjx.AttentionField(cjx.SoftmaxAttention(BETA))
    mean = lambda x: jnp.linalg.norm(jnp.mean(cjx.simulate(tokens, x, ts).x1, 0))
    cases, programs = [], []
    for degree in degrees:
        programs.append(compiled(f"degree {degree}, d = {d}", order(degree), tilted(d, degree)))
        cases.append((f"MeanField, degree {degree}", degree, abs(float(programs[-1].run()) - best)))
    for n in counts:
        starts = [field_of(d, 32).sample(tilted(d, 32), key, n) for key in jax.random.split(jax.random.key(n), draws)]
        programs.append(compiled(f"{n} tokens, d = {d}", mean, starts[0]))
        error = float(np.sqrt(np.mean((np.array([float(jax.jit(mean)(x0)) for x0 in starts]) - best) ** 2)))
        cases.append(("tokens", n, check(f"{n} tokens, d = {d}", error, 0.0, 5 / np.sqrt(n))))
    interleave(programs, repeats=repeats)
    return [row("run", method, d, points, program.compile_s, program.median, None, error)
            for program, (method, points, error) in zip(programs, cases, strict=True)]  # fmt: skip


def main():
    chosen = options(__doc__, "mean_field.json")
    betas, each = ((1, 4), {2: 1, 3: 1}) if chosen.quick else (range(1, 10), {2: 3, 3: 1})
    degrees, counts = ((16, 32), (1000,)) if chosen.quick else ((16, 32, 64), (10_000, 100_000))
    rows, total = [], 0.0
    for d in (2, 3):
        branches, found = diagram(d, betas)
        total += found["compile s"] + found["run s"]
        rows += [found, at_rest(d, branches, each[d])]
    for d in (2, 3):
        rows += runs(d, degrees, counts, 2 if chosen.quick else 4, 3 if chosen.quick else 7)
    at = {(r["d"], r["method"], r["points"]): r for r in rows}
    pairs = [(d, at[d, "tokens", counts[-1]], at[d, f"MeanField, degree {degrees[-1]}", degrees[-1]]) for d in (2, 3)]
    times = " and ".join(f"{a['run s'] / b['run s']:.3g} times as long (d = {d})" for d, a, b in pairs)
    errors = " and ".join(f"{a['error']:.1e} (d = {d})" for d, a, _ in pairs)
    findings = (
        f"Goal: the diagram of circle and sphere for beta = 1 to 9 in under two minutes: {total:.3g} s, compiled anew.",
        "All points s of MeanField to rest is extrapolated from the quickest points to all stable ones, and so too "
        "little; it reaches no unstable one.",
        f"A run of {counts[-1]:,} tokens takes {times} as one of their density of degree {degrees[-1]}, and errs by "
        f"{errors}.",
        "Errors of the diagram are those of r in its own equation, by quadrature, or from the branch; of runs those of "
        f"the order parameter, from degree {BEST}, of tokens the root mean square over draws.",
    )
    report(rows, chosen.out, title="Infinitely many tokens", columns=COLUMNS, findings=findings, quick=chosen.quick)


if __name__ == "__main__":
    main()
