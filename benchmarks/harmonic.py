"""How long is one velocity of a million tokens by `Harmonic`, beside `Blocked`, how exact, and from how many tokens on?

Softmax attention on the circle and on the spheres of three and four dimensions, uniform tokens, V = I, B = I, full and
causal, float32 and float64, beta = 1 to 81; some with a general B, whose queries differ in length. Answers are held
against rows summed by NumPy in float64 first. `Blocked` is timed up to 100,000 tokens (in float32 at
beta = 9, else 10,000) in the same run and extrapolated by its pairs. The gradient is that of the sum of squares of the
averages. The break-even is the number of tokens at which the lines between the measured sizes, in logarithms, cross.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from _harness import Program, as_jax, check, compiled, interleave, options, report, say, sphere

import clusterjax as cjx


TOLERANCE = {"float32": 2e-6, "float64": 1e-12}
COLUMNS = ["d", "attention", "dtype", "B", "beta", "n", "Harmonic ms", "Blocked ms", "times faster", "extrapolated",
           "gradient / forward", "error", "error of Blocked", "rows in pairs", "temporary MB", "compile s",
           "gradient compile s", "IQR/median"]  # fmt: skip


def average(beta, x, summation, causal, form):
    mask = cjx.CausalMask() if causal else cjx.FullMask()
    attention = cjx.SoftmaxAttention(beta, query_key=form, mask=mask, summation=summation)
    return cjx.AttentionField(attention)(jnp.zeros((), x.dtype), x)


def gradient(beta, x, summation, causal, form):
    return jax.grad(lambda y: jnp.sum(average(beta, y, summation, causal, form) ** 2))(x)


def reference(x: np.ndarray, rows: np.ndarray, beta: float, causal: bool, form: np.ndarray | None) -> np.ndarray:
    """The velocity of some tokens, in float64."""
    x = x.astype(np.float64)
    out = []
    for i in rows:
        seen = x[: i + 1] if causal else x
        query = x[i] if form is None else form.T.astype(np.float64) @ x[i]
        scores = beta * (seen @ query)
        weights = np.exp(scores - scores.max())
        mean = weights @ seen / weights.sum()
        out.append(mean - (mean @ x[i]) * x[i])
    return np.asarray(out)


def form_of(general: bool, d: int, dtype) -> np.ndarray | None:
    return np.diag(np.linspace(0.7, 1, d)).astype(dtype) if general else None


def one_row(case: dict, n: int, largest_blocked: int, repeats: int, with_gradient: bool) -> dict:
    d, causal, dtype, general, beta = (case[k] for k in ("d", "causal", "dtype", "general", "beta"))
    x, form = sphere(n, d, dtype, seed=n), form_of(general, d, dtype)
    rows = np.unique(np.linspace(0, n - 1, 12).astype(int))
    expected = reference(x, rows, beta, causal, form)
    args = (jnp.asarray(beta, dtype), as_jax(x))
    given = None if form is None else as_jax(form)
    queries = args[0] * args[1] if given is None else args[0] * args[1] @ given
    mask = cjx.CausalMask() if causal else cjx.FullMask()
    in_pairs = n - int(jnp.sum(cjx.Harmonic().certified(queries, args[1], None, mask)))

    errors, programs = {}, {}
    for name, summation in (("Harmonic", cjx.Harmonic()), ("Blocked", cjx.Blocked())):
        if name == "Harmonic" or n <= largest_blocked:
            fn = partial(average, summation=summation, causal=causal, form=given)
            programs[name] = compiled(name, fn, *args)
            got = np.asarray(programs[name].run())[rows]
            errors[name] = check(name, got, expected, TOLERANCE[np.dtype(dtype).name] * max(1, beta / 9))
    if with_gradient:
        fn = partial(gradient, summation=cjx.Harmonic(), causal=causal, form=given)
        programs["gradient"] = compiled("gradient", fn, *args)
    interleave(list(programs.values()), repeats=repeats, budget_s=5.0)
    return row_of(case, n, programs, errors, in_pairs)


def row_of(case: dict, n: int, programs: dict[str, Program], errors: dict[str, float], in_pairs: int) -> dict:
    ours, blocked, backwards = (programs.get(name) for name in ("Harmonic", "Blocked", "gradient"))
    assert ours is not None and ours.temp_bytes is not None
    return {
        "d": case["d"], "attention": "causal" if case["causal"] else "full", "dtype": np.dtype(case["dtype"]).name,
        "B": "general" if case["general"] else "identity", "beta": case["beta"], "n": n,
        "Harmonic ms": ours.median * 1e3, "Blocked ms": blocked and blocked.median * 1e3,
        "times faster": blocked and blocked.median / ours.median, "extrapolated": "",
        "gradient / forward": backwards and backwards.median / ours.median,
        "error": errors["Harmonic"], "error of Blocked": errors.get("Blocked"), "rows in pairs": in_pairs,
        "temporary MB": ours.temp_bytes / 1e6, "compile s": ours.compile_s,
        "gradient compile s": backwards and backwards.compile_s, "IQR/median": ours.spread,
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
    """The number of tokens from which on `Harmonic` is the faster one; that of the smallest run if it always is."""
    points = sorted((row["n"], math.log(row["times faster"])) for row in rows)
    for (n, gain), (later, more) in zip(points, points[1:], strict=False):
        if gain < 0 <= more:
            return math.exp(math.log(n) + (math.log(later) - math.log(n)) * -gain / (more - gain))
    return points[0][0] if points[0][1] >= 0 else math.inf


def cases(quick: bool) -> list[dict]:
    out = []
    for d in (2, 3, 4):
        for dtype in (np.float32, np.float64):
            for causal in (False, True):
                betas = (9.0,) if d == 4 or quick else (1.0, 9.0, 25.0, 81.0) if dtype == np.float32 else (9.0, 81.0)
                for beta in betas:
                    out.append({"d": d, "causal": causal, "dtype": dtype, "general": False, "beta": beta})
                if d < 4 and dtype == np.float32:
                    out.append({"d": d, "causal": causal, "dtype": dtype, "general": True, "beta": 9.0})
    return [case for case in out if not quick or (case["dtype"] == np.float32 and not case["general"])]


def sizes(case: dict, quick: bool) -> tuple[int, ...]:
    if quick:
        return (512, 4096)
    main = case["beta"] == 9.0
    if not main:
        return (10_000, 100_000)
    few = (1000, 10_000, 100_000) if case["general"] else (300, 1000, 3000, 10_000, 100_000)
    return (*few, 1_000_000) if not case["general"] and case["d"] < 4 else few


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
    rows = []
    for case in cases(chosen.quick):
        for n in sizes(case, chosen.quick):
            say(f"d = {case['d']}, causal {case['causal']}, {case['dtype'].__name__}, beta = {case['beta']:g}, "
                f"general {case['general']}, n = {n:,}")  # fmt: skip
            with_gradient = n == (4096 if chosen.quick else 100_000) and case["beta"] == 9.0
            single = case["beta"] == 9.0 and case["dtype"] == np.float32 and not case["general"]
            largest = 4096 if chosen.quick else 100_000 if single else 10_000
            rows.append(one_row(case, n, largest, 3 if chosen.quick else 7, with_gradient))
    report(rows, chosen.out, title="One velocity of many tokens by series", columns=COLUMNS, best=None,
           findings=tuple(findings(rows, chosen.quick)), quick=chosen.quick)  # fmt: skip


if __name__ == "__main__":
    main()
