"""The processes of tests/summation/test_sharded.py, which compare sums over several devices with sums on one device.

`python sharded_child.py PART` prints the errors as JSON, with four forced CPU devices; `PART PORT RANK` is one of two
processes of two devices each.
"""

import json
import sys

import diffrax as dfx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import clusterjax as cjx
from clusterjax._summation.harmonic import summation as expand


jax.config.update("jax_enable_x64", True)

N = 24
DENSE, BLOCKED = cjx.Dense(), cjx.Blocked(5, 4)
FULL, CAUSAL = cjx.FullMask(), cjx.CausalMask()


def mesh_of(size):
    return Mesh(np.array(jax.devices()[:size]), ("tokens",))


def place(mesh, *arrays):
    """The arrays, divided over the mesh; each process contributes its own parts."""
    sharding = NamedSharding(mesh, PartitionSpec("tokens"))
    return tuple(jax.make_array_from_callback(a.shape, sharding, lambda index, a=a: a[index]) for a in arrays)


def cloud(d=3, seed=0):
    """Queries, tokens, values and masses; scores are exact, so that ties are exact, and some masses are zero."""
    rng = np.random.default_rng(seed)
    queries, tokens = (np.round(2 * rng.normal(size=(N, d))) / 2 for _ in range(2))
    return queries, tokens, rng.normal(size=(N, 2)), np.where(np.arange(N) % 5 == 1, 0, 0.25 * (1 + np.arange(N) % 3))


def sums(summation, mask, queries, tokens, values, masses):
    """The sums that do not depend on the shift, and the hardmax sums."""
    soft = summation.exponential(queries, tokens, values, masses, mask)
    hard = summation.hardmax(queries, tokens, tokens if values is None else values, masses, mask, jnp.zeros(()))
    average = soft.total / jnp.where(soft.normaliser > 0, soft.normaliser, 1)[:, None]
    return soft.shift + jnp.log(soft.normaliser), average, hard.normaliser, hard.total


def with_gradient(summation, mask):
    def loss(*data):
        found = sums(summation, mask, *data)
        return sum(jnp.sum(jnp.sin(jnp.where(jnp.isfinite(a), a, 0))) for a in found), found

    return jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True)


def compare(found, wanted):
    """The largest difference, relative to the largest number of each array; infinities must be equal."""
    worst = 0.0
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        one, two = np.asarray(one), np.asarray(two)
        finite = np.isfinite(two)
        if one.shape != two.shape or not np.array_equal(finite, np.isfinite(one)):
            return float("inf")
        worst = max(
            worst, float(np.max(np.abs(one - two), where=finite, initial=0) / max(1, np.abs(two[finite]).max()))
        )
    return worst


def ring(size, inner, mask, data, gradient):
    summation = cjx.Sharded(inner, "tokens", mesh_of(size))
    make = with_gradient if gradient else lambda s, mask: lambda *data: sums(s, mask, *data)
    found = jax.jit(make(summation, mask))(*place(mesh_of(size), *data))
    return compare(found, jax.jit(make(DENSE, mask))(*data))


def of_the_shift(size, mask, data):
    """Derivatives of the shifts alone are zero; the sums are not differentiated in this case."""
    make = lambda summation: jax.grad(lambda *d: jnp.sum(summation.exponential(*d, mask).shift), argnums=(0, 1, 2, 3))
    found = jax.jit(make(cjx.Sharded(DENSE, "tokens", mesh_of(size))))(*place(mesh_of(size), *data))
    return compare(found, jax.jit(make(DENSE))(*data))


def twice(size, inner, mask):
    """Second derivatives of attention on the circle, reverse over reverse."""

    def curvature(summation, placed):
        def loss(t, tokens):
            turned = jnp.stack([tokens[:, 0] + t * tokens[:, 1] ** 2, tokens[:, 1]], axis=1)
            turned = turned / jnp.linalg.norm(turned, axis=1, keepdims=True)
            attention = cjx.SoftmaxAttention(1.5 + t, mask=mask, summation=summation)
            return jnp.sum(jnp.sin(3 * attention.average(turned, None)))

        return jax.jit(jax.grad(jax.grad(loss)))(0.3, placed)

    tokens, mesh = circle()[1], mesh_of(size)
    found = curvature(cjx.Sharded(inner, "tokens", mesh), *place(mesh, tokens))
    return compare(found, curvature(DENSE, tokens))


def harmonic(size, mask, data, gradient=False):
    def average(summation, queries, tokens, masses):
        found = summation.exponential(queries, tokens, None, masses, mask)
        return found.total / jnp.where(found.normaliser > 0, found.normaliser, 1)[:, None]

    def result(summation):
        fn = lambda *data: average(summation, *data)
        # Only the tangential part is compared: off the sphere a series is another function.
        tangent = lambda g, x: g - jnp.sum(g * x, axis=1, keepdims=True) * x
        slope = lambda *data: tangent(jax.grad(lambda *data: jnp.sum(jnp.sin(3 * fn(*data))), 1)(*data), data[1])
        return jax.jit(lambda *data: (fn(*data), slope(*data) if gradient else 0))

    found = result(cjx.Sharded(cjx.Harmonic(), "tokens", mesh_of(size)))(*place(mesh_of(size), *data))
    return compare(found, result(DENSE)(*data))


def circle(lonely=False):
    """Unit tokens, queries of norm 3; if `lonely`, of norm 30, a heap, and two tokens that no series serves."""
    angle = 0.7 * np.arange(N) ** 1.3
    if lonely:
        angle = np.where(np.arange(N) % 11 == 5, np.pi, 0.01 * np.arange(N))
    tokens = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return (30.0 if lonely else 3.0) * tokens, tokens, 0.25 * (1 + np.arange(N) % 3)


def run(size):
    """A short run of `simulate` from a sharded start: its error, and True if its end is sharded like its start."""
    mesh, dt, steps = mesh_of(size), 0.125, 4
    tokens = np.array(cloud()[1]) + 0.1
    attention = cjx.SoftmaxAttention(2.0, mask=CAUSAL, summation=cjx.Sharded(cjx.Auto(), "tokens", mesh))
    (start,) = place(mesh, tokens)
    options = {"solver": dfx.Euler(), "stepsize_controller": dfx.ConstantStepSize(), "dt0": dt}
    found = cjx.simulate(cjx.AttentionField(attention), start, jnp.asarray([0.0, dt * steps]), **options)
    field = cjx.AttentionField(cjx.SoftmaxAttention(2.0, mask=CAUSAL, summation=DENSE))

    @jax.jit
    def alone(x):
        step = lambda _, x: x + dt * field(0.0, x)
        return field.space.retract(jax.lax.fori_loop(0, steps, step, field.space.retract(x)))

    kept = found.xs.sharding.shard_shape(found.xs.shape)[1] == N // size
    whole = jax.jit(lambda a: a, out_shardings=NamedSharding(mesh, PartitionSpec()))(found.xs[-1])
    return compare(np.asarray(whole.addressable_data(0)), alone(jnp.asarray(tokens))), bool(kept)


def message(fn):
    try:
        fn()
    except ValueError as error:
        return str(error)
    return None


def explicit(tokens):
    mesh = Mesh(np.array(jax.devices()[:4]), ("tokens",), axis_types=(AxisType.Explicit,))
    attention = cjx.SoftmaxAttention(2.0, summation=cjx.Sharded(DENSE, "tokens", mesh))
    cjx.simulate(cjx.AttentionField(attention), place(mesh, tokens + 0.1)[0], jnp.asarray([0.0, 1.0]))


def rodas(tokens):
    field = cjx.AttentionField(cjx.SoftmaxAttention(2.0))
    cjx.simulate(field, place(mesh_of(4), tokens + 0.1)[0], jnp.asarray([0.0, 1.0]), solver=cjx.Rodas5P())


def complaints():
    data = cloud()

    def use(n=N, **options):
        sums(cjx.Sharded(DENSE, "tokens", **options), FULL, *(a[:n] for a in data))

    return {
        "not divisible": message(lambda: use(N - 2, mesh=mesh_of(4))),
        "unknown axis": message(lambda: cjx.Sharded(DENSE, "rows", mesh_of(4))),
        "no mesh": message(use),
        "explicit mesh": message(lambda: explicit(data[1])),
        "Rodas5P": message(lambda: rodas(data[1])),
    }


def ordinary():
    expand.DEGREES[2, 8] = (23,), (23,)  # one degree instead of several, so that less is compiled
    worst, kept = run(2)
    return {
        "ring of 4, causal, with gradient": ring(4, BLOCKED, CAUSAL, cloud(), True),
        "moments of 4, causal": harmonic(4, CAUSAL, circle()),
        "run of 2": worst,
        "run of 2 keeps its sharding": kept,
        "complaints": complaints(),
    }


def exhaustive():
    graph = np.random.default_rng(1).random((N, N)) < 0.3
    np.fill_diagonal(graph, True)
    masks = {"full": FULL, "causal": CAUSAL, "window": cjx.WindowMask(5), "graph": cjx.MatrixMask(graph)}
    masks["sink"] = cjx.SinkMask(5, kept=3)
    out = {}
    for size in (2, 4):
        for name, mask in masks.items():
            out[f"ring of {size}, {name}"] = ring(size, BLOCKED, mask, cloud(seed=size), True)
        for mask in (FULL, CAUSAL):
            name = f"moments of {size}, {type(mask).__name__}"
            out[name] = harmonic(size, mask, circle(), gradient=size == 2)
            out[f"{name}, rows sent round"] = harmonic(size, mask, circle(lonely=True))
    for mask in (FULL, CAUSAL):
        out[f"ring of 2, {type(mask).__name__}, twice"] = twice(2, BLOCKED, mask)
    out["ring of 2, the shift alone"] = of_the_shift(2, FULL, cloud())
    out["moments of 2, twice"] = twice(2, cjx.Harmonic(1e-6), CAUSAL)
    queries, tokens, _, masses = cloud()
    with jax.set_mesh(mesh_of(4)):
        found = jax.jit(lambda *data: sums(cjx.Sharded(BLOCKED, "tokens"), CAUSAL, *data))(
            queries, tokens, None, masses
        )
    out["mesh that is set"] = compare(found, sums(DENSE, CAUSAL, queries, tokens, None, masses))
    worst, kept = run(4)
    return out | {"run of 4": worst, "run of 4 keeps its sharding": kept}


def processes():
    worst, kept = run(4)
    mesh, data = mesh_of(4), cloud()
    placed = place(mesh, *data)
    gather = jax.jit(
        lambda *data: sums(cjx.Sharded(BLOCKED, "tokens", mesh), CAUSAL, *data),
        out_shardings=NamedSharding(mesh, PartitionSpec()),
    )
    found = [np.asarray(a.addressable_data(0)) for a in gather(*placed)]
    devices = [jax.process_count(), jax.device_count(), jax.local_device_count()]
    error = compare(found, sums(DENSE, CAUSAL, *data))
    return {"devices": devices, "ring": error, "run": worst, "run keeps its sharding": kept}


if __name__ == "__main__":
    part, *where = sys.argv[1:]
    if where:
        jax.distributed.initialize(f"127.0.0.1:{where[0]}", num_processes=2, process_id=int(where[1]))
    print(json.dumps({"ordinary": ordinary, "exhaustive": exhaustive, "processes": processes}[part]()))
