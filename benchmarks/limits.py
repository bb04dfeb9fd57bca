"""What fraction of the limit of this machine does each main computation reach?

The rates of the machine are measured with XLA in the same run: exponentials of an array in the cache, multiply-adds of
a product of two matrices, and bytes of a copy that does not fit into the caches, all in float32 on all cores. The limit
of a computation is the largest of the times that its exponentials, its multiply-adds and its bytes take at these rates;
a step of a solver is compared with the six velocities that it needs. Operations that the mathematics does not need are
not part of the limit.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from _harness import Program, compiled, interleave, mask_of, options, repeated, report, say, sphere
from step_cost import simulated
from transformer_step import our_step

import clusterjax as cjx
from clusterjax.transformer import LanguageRecipe


BETA, COLUMNS = 9.0, ["work", "d", "n", "systems", "method", "bound by", "limit ms", "median ms", "of the limit",
                      "IQR/median"]  # fmt: skip


@dataclass
class Work:
    """A program, and the operations that it needs at least: exponentials, multiply-adds, bytes, or seconds of
    velocities."""

    name: str
    program: Program
    n: int
    d: int
    systems: int = 1
    exponentials: float = 0
    multiply_adds: float = 0
    bytes: float = 0
    seconds: float = 0


def rates(quick: bool) -> dict[str, float]:
    """The rates of exponentials, multiply-adds and bytes per second."""
    size = 256 if quick else 2048
    cached, large = jnp.linspace(-4, 0, 2**18, dtype=jnp.float32), jnp.ones(2**22 if quick else 2**27, jnp.float32)
    square, inside = jnp.asarray(sphere(size, size, np.float32)), 10 if quick else 100
    loop = lambda x: jax.lax.fori_loop(0, inside, lambda _, y: jnp.exp(y) - 2, x)
    exponentials = compiled("exponentials", loop, cached, count=inside)
    products = compiled("multiply-adds", lambda a: a @ a, square)
    copy = compiled("bytes", lambda x: x + 1, large)
    interleave([exponentials, products, copy], repeats=5)
    found = {"exponentials": cached.size / exponentials.median, "multiply_adds": size**3 / products.median,
             "bytes": 2 * large.nbytes / copy.median}  # fmt: skip
    for name, rate in found.items():
        say(f"{name}: {rate / 1e9:.3g}e9 a second")
    return found


def average(x, causal, summation):
    attention = cjx.SoftmaxAttention(jnp.asarray(BETA, x.dtype), mask=mask_of(causal), summation=summation)
    return attention.average(x, None)


def averages(n: int, d: int, systems: int = 1, causal: bool = False, summation=cjx.Dense()) -> Work:
    x = jnp.asarray(sphere(n * systems, d, np.float32).reshape(systems, n, d))
    one = partial(average, causal=causal, summation=summation)
    many = compiled(type(summation).__name__, repeated, x, jax.vmap(one) if systems > 1 else lambda x: one(x[0])[None],
                    4, count=4)  # fmt: skip
    pairs = systems * (n * (n + 1) / 2 if causal else n * n)
    work = Work(f"averages, {'causal' if causal else 'full'}", many, n, d, systems, bytes=2 * x.nbytes)
    if isinstance(summation, cjx.Harmonic):
        # A series of degree K on the circle has 2 K + 1 moments; the sums are a series and its derivative.
        degree = 19
        work.multiply_adds = 3 * n * (2 * degree + 1)
        return work
    work.exponentials, work.multiply_adds = pairs, pairs * (2 * d + 1)
    return work


def step(n: int, d: int, systems: int) -> Work:
    """A step of an adaptive run, whose limit is six velocities of the same systems, measured."""
    x = jnp.asarray(sphere(n * systems, d, np.float32).reshape(systems, n, d))
    x = x[0] if systems == 1 else x
    field = lambda y: cjx.AttentionField(cjx.SoftmaxAttention(jnp.asarray(BETA, y.dtype)))(0.0, y)
    velocities = compiled("velocity", repeated, x, field if systems == 1 else jax.vmap(field), 20, count=20)
    run = compiled("simulate", simulated, x, 2)
    run.count = int(run.run()[1])
    interleave([velocities], repeats=5)
    return Work("step of a run", run, n, d, systems, seconds=6 * velocities.median)


def training_step(quick: bool) -> Work:
    """Loss, gradient and AdamW of the language model of the default recipe."""
    recipe = LanguageRecipe(words=256, d=32, hidden=64, length=16) if quick else LanguageRecipe()
    model, shape = recipe.model(0), (recipe.batch_size, recipe.length + 1)
    rows = np.random.default_rng(0).integers(0, recipe.words, shape, dtype=np.int32)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(model) if isinstance(leaf, jax.Array))
    # Each parameter takes one multiply-add a token forwards and two backwards.
    return Work("training step", our_step(model, rows), recipe.length, recipe.d, len(rows),
                multiply_adds=3 * parameters * len(rows) * recipe.length)  # fmt: skip


def main() -> None:
    chosen = options(__doc__, "limits.json")
    can, few = rates(chosen.quick), chosen.quick
    works = [averages(256 if few else 4096, 3, causal=causal, summation=cjx.Blocked()) for causal in (False, True)]
    works += [averages(64, 3, 32 if few else 2048, causal=causal) for causal in (False, True)]
    works += [averages(128 if few else 2048, 64, summation=cjx.Blocked()), averages(64, 64, 4 if few else 256)]
    works += [averages(10_000 if few else 1_000_000, 2, summation=cjx.Harmonic())]
    works += [step(64, 3, 1), step(32, 2, 32 if few else 2048), training_step(few)]
    interleave([work.program for work in works], repeats=3 if few else 9, budget_s=3 if few else 60)
    rows = []
    for work in works:
        times = {name: getattr(work, name) / can[name] for name in can} | {"velocities": work.seconds}
        bound = max(times, key=times.__getitem__)
        rows.append(work.program.columns() | {
            "work": work.name, "d": work.d, "n": work.n, "systems": work.systems, "bound by": bound.replace("_", "-"),
            "limit ms": times[bound] * 1e3, "of the limit": times[bound] / work.program.median,
        })  # fmt: skip
    findings = [f"This machine: {can['exponentials'] / 1e9:.2f}e9 exponentials, {can['multiply_adds'] / 1e9:.0f}e9 "
                f"multiply-adds and {can['bytes'] / 1e9:.1f}e9 bytes a second."]  # fmt: skip
    report(rows, chosen.out, title="How much of the machine each main work takes, float32", columns=COLUMNS,
           findings=tuple(findings), quick=chosen.quick)  # fmt: skip


if __name__ == "__main__":
    main()
