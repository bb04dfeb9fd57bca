"""From how many tokens on is a bounding-volume hierarchy faster than all n^2 pairs in the plane, and how does its time
grow?

Hardmax sums of `Hull` are compared with `Blocked`, full and causal, for tokens on the circle, in a disc, and in two
heaps of tokens that are equal up to rounding; ties have the default tolerance. Every answer is checked before it is
timed: in all rows up to 16,384 tokens, and in a hundred rows for more tokens. Rows may differ only if a score is within
four machine epsilons, times the norms of both tokens, of the smallest score that ties. The exponent is that of the time
between 16,384 tokens and the largest number of tokens.
"""

import jax
import jax.numpy as jnp
import numpy as np
from _harness import WrongAnswer, compiled, mask_of, options, report, rows_of, say

import clusterjax as cjx


COLUMNS = ["mask", "dtype", "cloud", "n", "method", "median ms", "IQR/median", "repeats", "us per row", "compile s",
           "temporary MB", "rows that differ"]  # fmt: skip
MOST_PAIRS = 2**31


def cloud(name: str, n: int, dtype) -> np.ndarray:
    rng = np.random.default_rng(n)
    angle = rng.uniform(0, 2 * np.pi, n)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    if name == "circle":
        return circle.astype(dtype)
    if name == "disc":
        return (circle * np.sqrt(rng.uniform(size=(n, 1)))).astype(dtype)
    heaps = np.where(rng.random((n, 1)) < 0.5, [[0.6, 0.8]], [[-1.0, 0.3]])
    return (heaps * (1 + 4 * np.finfo(dtype).eps * rng.integers(-1, 2, (n, 2)))).astype(dtype)


def sums(x, summation, causal):
    tolerance = jnp.asarray(64 * jnp.finfo(x.dtype).eps, x.dtype)
    return summation.hardmax(x, x, x, None, mask_of(causal), tolerance).normaliser


def differing(got: np.ndarray, x: np.ndarray, causal: bool) -> int:
    """The number of rows whose ties differ from the definition; an error if rounding does not explain a difference."""
    rows = np.arange(len(x)) if len(x) <= 16_384 else np.linspace(0, len(x) - 1, 100).astype(int)
    x64, eps, wrong = x.astype(np.float64), float(np.finfo(x.dtype).eps), 0
    length = np.sqrt((x64 * x64).sum(axis=1))
    for i in rows:
        end = i + 1 if causal else len(x)
        scores, size = x64[:end] @ x64[i], length[i] * length[:end].max()
        least = scores.max() - 64 * eps * size
        low, high = ((scores >= least + side * 4 * eps * size).sum() for side in (1, -1))
        if not low <= got[i] <= high:
            raise WrongAnswer(f"row {i} has {got[i]} ties, and there are {low} to {high}.")
        wrong += int(got[i] != (scores >= least).sum())
    return wrong


def measured(mask: str, dtype, name: str, n: int) -> list[dict]:
    say(f"{mask}, {dtype.__name__}, {name}, n = {n}")
    x, programs, wrong = cloud(name, n, dtype), [], []
    for summation in (cjx.Hull(), cjx.Blocked())[: 2 if n * n <= MOST_PAIRS else 1]:
        programs.append(compiled(type(summation).__name__, sums, jnp.asarray(x), summation, mask == "causal"))
        wrong.append(differing(np.asarray(jax.tree.leaves(programs[-1].run())[0]), x, mask == "causal"))
    labels = {"mask": mask, "dtype": dtype.__name__, "cloud": name, "n": n}
    rows = rows_of(programs, repeats=3 if n > 20_000 else 7, budget_s=10, **labels)
    return [row | {"us per row": row["seconds"] / n * 1e6, "rows that differ": count}
            for row, count in zip(rows, wrong, strict=True)]  # fmt: skip


def main() -> None:
    chosen = options(__doc__, "hardmax_hull.json")
    jax.config.update("jax_enable_x64", True)
    sizes = (1024, 4096) if chosen.quick else (1024, 4096, 8192, 16_384, 131_072, 1_048_576)
    rows, findings = [], []
    for mask in ("full", "causal"):
        for dtype in (np.float32,) if chosen.quick else (np.float32, np.float64):
            for name in ("circle", "disc", "heaps"):
                found = [row for n in sizes for row in measured(mask, dtype, name, n)]
                times = {(row["method"], row["n"]): row["seconds"] for row in found}
                findings.append(f"{mask}, {dtype.__name__}, {name}: {finding(times, sizes)}")
                rows += found
    report(rows, chosen.out, title="Hardmax in the plane", columns=COLUMNS, best="median ms",
           group=("mask", "dtype", "cloud", "n"), findings=tuple(findings), quick=chosen.quick)  # fmt: skip


def finding(times: dict[tuple[str, int], float], sizes: tuple[int, ...]) -> str:
    both = [n for n in sizes if ("Blocked", n) in times]
    pays = [n for n in both if times["Hull", n] < times["Blocked", n]]
    first, last = max(n for n in both if n <= 16_384), max(n for name, n in times if name == "Hull")
    words = f"Hull is faster from n = {pays[0]} on" if pays else "Hull is not faster at these sizes"
    if last > first:
        words += (
            f", its time grows as n^{np.log(times['Hull', last] / times['Hull', first]) / np.log(last / first):.2f}"
        )
        every = times["Blocked", both[-1]] * (last / both[-1]) ** 2
        words += f", and at n = {last} it is {every / times['Hull', last]:.0f} times faster than Blocked extrapolated"
    return words + "."


if __name__ == "__main__":
    main()
