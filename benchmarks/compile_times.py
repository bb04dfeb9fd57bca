"""How long does each entry point take to trace and to compile, and does a new beta ever compile again?

n = 64 tokens, d = 3, float32, defaults everywhere. The second table counts the traces for five values of beta.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _harness import as_jax, compiled, measure, options, report, say, sphere

import clusterjax as cjx


COLUMNS = ["entry point", "trace s", "compile s", "median ms", "traces for five betas"]
TS = np.linspace(0.0, 3.0, 4)


def velocity(beta, x):
    return cjx.AttentionField(cjx.SoftmaxAttention(beta))(jnp.zeros((), x.dtype), x)


def causal_velocity(beta, x):
    return cjx.AttentionField(cjx.SoftmaxAttention(beta, mask=cjx.CausalMask()))(jnp.zeros((), x.dtype), x)


def blocked_velocity(beta, x):
    return cjx.AttentionField(cjx.SoftmaxAttention(beta, summation=cjx.Blocked(16, 16)))(jnp.zeros((), x.dtype), x)


def simulated(beta, x):
    return cjx.simulate(cjx.AttentionField(cjx.SoftmaxAttention(beta)), x, as_jax(TS)).xs


def scheme(beta, x):
    field = cjx.AttentionField(cjx.SoftmaxAttention(beta), space=cjx.Euclidean())
    return cjx.iterate(cjx.ResidualLayer(field, 0.1, normalise_to=cjx.Sphere()), x, 30).xs


def simulated_gradient(beta, x):
    return jax.grad(lambda b: jnp.sum(simulated(b, x)[-1] ** 3))(beta)


def mapped(beta, x):
    return jax.vmap(lambda b: simulated(b, x))(beta + jnp.arange(8, dtype=x.dtype))


def mapped_gradient(beta, x):
    return jax.vmap(lambda b: simulated_gradient(b, x))(beta + jnp.arange(8, dtype=x.dtype))


def energy(beta, x):
    return cjx.interaction_energy(x, beta)


def clusters(beta, x):
    return cjx.num_clusters(x, 0.1) + 0 * jnp.sum(beta).astype(int)


def histogram(beta, x):
    return cjx.cosine_histogram(beta * x, 50)


ENTRIES = {
    "field": velocity,
    "field, causal": causal_velocity,
    "field, Blocked": blocked_velocity,
    "simulate": simulated,
    "gradient of simulate": simulated_gradient,
    "vmap of simulate": mapped,
    "vmap of gradient of simulate": mapped_gradient,
    "iterate": scheme,
    "interaction_energy": energy,
    "num_clusters": clusters,
    "cosine_histogram": histogram,
}


def traces(fn, x) -> int:
    """How often `fn` is traced for five values of beta."""
    seen = []

    @eqx.filter_jit
    def counted(beta, x):
        seen.append(beta)
        return fn(beta, x)

    for beta in (0.5, 1.0, 2.0, 4.0, 9.0):
        jax.block_until_ready(counted(jnp.asarray(beta, x.dtype), x))
    return len(seen)


def retraced_by_caller(x) -> int:
    """How often the library itself traces the field for five betas, when `simulate` is called without an outer jit."""
    seen = []

    class Counting(cjx.AbstractField):
        inner: cjx.AttentionField
        space: cjx.AbstractSpace = cjx.Sphere()

        def __call__(self, t, x, args=None):
            seen.append(t)
            return self.inner(t, x, args)

        def check(self, n, d):
            self.inner.check(n, d)

    counts = []
    for beta in (0.5, 1.0, 2.0, 4.0, 9.0):
        cjx.simulate(Counting(cjx.AttentionField(cjx.SoftmaxAttention(beta))), x, as_jax(TS))
        counts.append(len(seen))
    assert counts[0] == counts[-1], f"simulate traced again for a new beta: {counts}"
    return 1


def main() -> None:
    chosen = options(__doc__, "compile_times.json")
    x, rows = as_jax(sphere(64, 3, np.float32)), []
    for name, fn in list(ENTRIES.items())[: 4 if chosen.quick else None]:
        program = measure(compiled(name, fn, jnp.asarray(2.0, x.dtype), x), repeats=3 if chosen.quick else 9)
        times = traces(fn, x)
        say(f"{name}: traced in {program.trace_s:.2f} s, compiled in {program.compile_s:.2f} s, {times} trace(s)")
        assert times == 1, f"{name} was traced {times} times"
        rows.append({"entry point": name, "trace s": program.trace_s, "compile s": program.compile_s,
                     "median ms": program.median * 1e3, "traces for five betas": times})  # fmt: skip
    retraced_by_caller(x)
    findings = ("Goal: one trace for any number of betas. So it is in every row, and when `simulate` is called with "
                "five fields that differ in beta, without an outer jit.",)  # fmt: skip
    report(rows, chosen.out, title="Time to trace and to compile", columns=COLUMNS, findings=findings,
           quick=chosen.quick)  # fmt: skip


if __name__ == "__main__":
    main()
