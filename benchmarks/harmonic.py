"""How long does `Harmonic` take for one velocity of a million tokens, how exact is it, and when is it faster than
`Blocked`?

The cases are softmax attention on the circle and on the spheres in R^3 and R^4, for uniform tokens, V = I, B = I, full
and causal, in float32 and float64, beta = 1 to 81, and some cases with a general B, whose queries differ in norm.
Answers are first compared with rows that NumPy sums in float64. `Blocked` is timed in the same run up to 100,000 tokens
(in float32 at beta = 9, otherwise 10,000), and its time is extrapolated by the number of pairs. The gradient is that of
the sum of squares of the averages. The break-even is the number of tokens at which the lines through the measured
times, in logarithms, cross.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from _harness import check, compiled, interleave, mask_of, options, report, say, some_rows, sphere, velocity

import clusterjax as cjx


TOLERANCE = {"float32": 2e-6, "float64": 1e-12}
COLUMNS = ["d", "attention", "dtype", "B", "beta", "n", "Harmonic ms", "Blocked ms", "times faster", "extrapolated",
           "gradient / forward", "error", "error of Blocked", "rows in pairs", "temporary MB", "compile s",
           "gradient compile s", "IQR/median"]  # fmt: skip


def row_of(
    d: int, causal: bool, dtype, general: bool, beta: float, n: int, largest: int, backwards: bool, repeats: int
):
    """One case; `Blocked` is timed up to `largest` tokens, and the gradient where `backwards`."""
    mask, name = "causal" if causal else "full", np.dtype(dtype).name
    say(f"d = {d}, {mask}, {name}, beta = {beta:g}, general {general}, n = {n:,}")
    host, form = sphere(n, d, dtype, seed=n), np.diag(np.linspace(0.7, 1, d)).astype(dtype) if general else None
    rows, expected = some_rows(host, beta, causal, form=form, count=12)
    x, beta_, form = jnp.asarray(host), jnp.asarray(beta, dtype), None if form is None else jnp.asarray(form)
    queries = beta_ * x if form is None else beta_ * x @ form
    in_pairs = n - int(jnp.sum(cjx.Harmonic().certified(queries, x, None, mask_of(causal))))
    ways = {kind.__name__: partial(velocity, causal=causal, summation=kind(), form=form)
            for kind in (cjx.Harmonic, cjx.Blocked)[: 2 if n <= largest else 1]}  # fmt: skip
    programs = {kind: compiled(kind, way, x, beta_) for kind, way in ways.items()}
    for kind, program in programs.items():
        program.error = check(kind, np.asarray(program.run())[rows], expected, TOLERANCE[name] * max(1, beta / 9))
    if backwards:
        squares = lambda x, beta: jnp.sum(ways["Harmonic"](x, beta) ** 2)
        programs["gradient"] = compiled("gradient", jax.grad(squares), x, beta_)
    interleave(list(programs.values()), repeats=repeats, budget_s=5.0)
    ours = programs["Harmonic"].columns()
    blocked, back = (programs[kind].columns() if kind in programs else {} for kind in ("Blocked", "gradient"))
    over = lambda a, b: a["seconds"] / b["seconds"] if a and b else None
    return {
        "d": d, "attention": mask, "dtype": name, "B": "general" if general else "identity", "beta": beta, "n": n,
        "Harmonic ms": ours["median ms"], "Blocked ms": blocked.get("median ms"), "times faster": over(blocked, ours),
        "extrapolated": "", "gradient / forward": over(back, ours), "error": ours["error"],
        "error of Blocked": blocked.get("error"), "rows in pairs": in_pairs, "temporary MB": ours["temporary MB"],
        "compile s": ours["compile s"], "gradient compile s": back.get("compile s"), "IQR/median": ours["IQR/median"],
    }  # fmt: skip


def extrapolate(rows: list[dict]) -> None:
    """The time of `Blocked` where it was not run: that of its largest run, by the number of pairs."""
    largest = max((row for row in rows if row["Blocked ms"]), key=lambda row: row["n"])
    for row in rows:
        if not row["Blocked ms"]:
            row["Blocked ms"] = largest["Blocked ms"] * (row["n"] / largest["n"]) ** 2
            row["times faster"] = row["Blocked ms"] / row["Harmonic ms"]
            row["extrapolated"] = f"from {largest['n']:,}"


def break_even(rows: list[dict]) -> float:
    """The number of tokens from which on `Harmonic` is faster than `Blocked`, or the smallest number if always."""
    points = sorted((row["n"], math.log(row["times faster"])) for row in rows)
    for (n, gain), (later, more) in zip(points, points[1:], strict=False):
        if gain < 0 <= more:
            return math.exp(math.log(n) + (math.log(later) - math.log(n)) * -gain / (more - gain))
    return points[0][0] if points[0][1] >= 0 else math.inf


def measured(quick: bool) -> list[dict]:
    """All cases: fewer sizes for other beta than 9, for a general B, and in four dimensions."""
    rows = []
    for d in (2, 3, 4):
        for dtype in (np.float32,) if quick else (np.float32, np.float64):
            single = dtype == np.float32
            betas = (9.0,) if d == 4 or quick else (1.0, 9.0, 25.0, 81.0) if single else (9.0, 81.0)
            for causal in (False, True):
                given = [(False, beta) for beta in betas] + ([(True, 9.0)] if d < 4 and single and not quick else [])
                for general, beta in given:
                    sizes = (512, 4096) if quick else (10_000, 100_000)
                    if beta == 9.0 and not quick:
                        sizes = (1000, *sizes) if general else (300, 1000, 3000, *sizes)
                        sizes += (1_000_000,) if not general and d < 4 else ()
                    for n in sizes:
                        backwards = beta == 9.0 and n == (4096 if quick else 100_000)
                        largest = 100_000 if beta == 9.0 and single and not general else 10_000
                        rows.append(row_of(d, causal, dtype, general, beta, n, largest, backwards, 3 if quick else 7))
    return rows


def findings(rows: list[dict], quick: bool) -> list[str]:
    out = []
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[k] for k in ("d", "attention", "dtype", "B", "beta")), []).append(row)
    for key, group in groups.items():
        extrapolate(group)
        name = f"d = {key[0]}, {key[1]}, {key[2]}, B {key[3]}, beta = {key[4]:g}"
        line = f"{name}: faster than Blocked from {break_even(group):.3g} tokens on"
        large = {row["n"]: row["Harmonic ms"] for row in group if row["n"] >= 10_000}
        if 10_000 in large and len(large) > 1:
            most = max(large)
            exponent = math.log(large[most] / large[10_000]) / math.log(most / 10_000)
            line += f"; cost exponent from 10,000 to {most:,} tokens {exponent:.2f}"
        out.append(line + ".")
    goals = {(2, "full"): 0.15, (2, "causal"): 0.6, (3, "full"): 0.8, (3, "causal"): 2.2}
    for (d, attention), goal in goals.items() if not quick else ():
        row = next(r for r in rows if (r["d"], r["attention"], r["dtype"], r["B"], r["beta"], r["n"])
                   == (d, attention, "float32", "identity", 9.0, 1_000_000))  # fmt: skip
        out.append(f"Goal: a million tokens, d = {d}, {attention}, float32, beta = 9 in {goal} s, at an error below "
                   f"1e-6, with less than 100 MB. {row['Harmonic ms'] / 1e3:.2f} s, {row['error']:.1e}, "
                   f"{row['temporary MB']:.0f} MB, {row['times faster']:,.0f} times faster than Blocked.")  # fmt: skip
    return out


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    chosen = options(__doc__, "harmonic.json")
    rows = measured(chosen.quick)
    report(rows, chosen.out, title="One velocity of many tokens by series", columns=COLUMNS,
           findings=tuple(findings(rows, chosen.quick)), quick=chosen.quick)  # fmt: skip


if __name__ == "__main__":
    main()
