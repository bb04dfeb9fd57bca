"""Canonical velocities and runs: fields, masks, summations, dtypes, schedules, solvers, noise, events, gradients."""

import functools

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import clusterjax as cjx

from .. import clouds
from ..helpers import normal, sphere_tokens
from .register import golden


N, D = 9, 3
FORM, VALUE = normal(2, D, D), normal(3, D, D)
GRAPH = np.random.default_rng(5).random((N, N)) < 0.4
np.fill_diagonal(GRAPH, True)
MASKS = {
    "full": cjx.FullMask(),
    "causal": cjx.CausalMask(),
    "window": cjx.WindowMask(3),
    "sink": cjx.SinkMask(3, kept=2),
    "matrix": cjx.MatrixMask(GRAPH),
}
SUMMATIONS = {"dense": cjx.Dense(), "blocked": cjx.Blocked(4, 3)}
ALL = [*((mask, "dense") for mask in MASKS), ("full", "blocked"), ("causal", "blocked"), ("matrix", "blocked")]
FEW = [("full", "dense"), ("causal", "blocked")]
MASSES = clouds.masses("some zero", N, seed=1)
X = sphere_tokens(1, 8, D)
TS = jnp.asarray([0.0, 0.5, 2.0, 6.0])


def unit(*names):
    """The clouds of these names on the sphere."""
    return [clouds.cloud(name, N, D, seed=1, sphere=True) for name in names]


def velocities(attention, tokens, dtype, parts, *, masses=(None,), space=cjx.Sphere(), slope=False):
    """For each mask and summation the velocities of several clouds, and with `slope` a gradient through them.

    The k-th cloud has the k-th entry of `masses`; where `masses` has one entry, all clouds have it.
    """
    d = tokens[0].shape[1]
    weights = jnp.cos(jnp.arange(tokens[0].size, dtype=dtype)).reshape(tokens[0].shape)

    def velocity(mask, summation, masses, x):
        made = attention(mask=MASKS[mask], summation=SUMMATIONS.get(summation, summation))
        return cjx.AttentionField(made, jnp.asarray(VALUE[:d, :d], dtype), space, masses=masses)(0.0, x)

    @jax.jit
    def each(masses, x):
        found = {}
        for mask, summation in parts:
            name = f"{mask}, {summation if isinstance(summation, str) else type(summation).__name__}, {x.dtype}"
            at = functools.partial(velocity, mask, summation, masses)
            found[name] = at(x)
            if slope:
                found[f"gradient: {name}"] = jax.vjp(at, x)[1](weights)[0]
        return found

    masses = [m if m is None else jnp.asarray(m, dtype) for m in masses] * (len(tokens) // len(masses))
    results = [each(m, jnp.asarray(x, dtype)) for m, x in zip(masses, tokens, strict=True)]
    return {name: np.stack([result[name] for result in results]) for name in results[0]}


def in_both(attention, tokens, **options):
    """The velocities in float64, and a few of them in float32."""
    wide = velocities(attention, tokens, jnp.float64, ALL, **options)
    return wide | velocities(attention, tokens, jnp.float32, FEW, **options)


@golden()
def softmax_velocities():
    attention = lambda **options: cjx.SoftmaxAttention(4.0, query_key=FORM, **options)
    return in_both(attention, unit("generic", "repeats", "antipodes"))


@golden()
def softmax_gradients():
    """Some masses are zero, in the second cloud also the first, so that the first causal rows are empty."""
    attention = lambda **options: cjx.SoftmaxAttention(4.0, query_key=FORM, **options)
    parts, masses = [*FEW, ("sink", "dense")], [clouds.masses(name, N, seed=1) for name in ("some zero", "first zero")]
    return velocities(attention, unit("generic", "repeats"), jnp.float64, parts, masses=masses, slope=True)


@golden()
def unnormalised_velocities():
    attention = lambda **options: cjx.UnnormalisedAttention(3.0, query_key=FORM, offset=0.4, **options)
    return in_both(attention, unit("generic", "repeats", "antipodes"), masses=[MASSES])


@golden()
def hardmax_velocities():
    """Tokens are in the plane, in clouds with exact ties."""
    tokens = [clouds.cloud(name, N, 2, seed=1) for name in ("generic", "heaps", "lattice")]
    attention = lambda **options: cjx.HardmaxAttention(**options)
    parts = [*ALL, ("full", cjx.Hull()), ("causal", cjx.Hull())]
    return velocities(attention, tokens, jnp.float64, parts, space=cjx.Euclidean(), masses=[MASSES])


@golden()
def kernel_velocities():
    kernel = lambda s: 1 / (1.5 - 0.4 * s) + 0.2 * s * s

    def attention(normalise, summation, **options):
        """Kernel attention, which sums over pairs whatever the summation."""
        return cjx.KernelAttention(kernel, query_key=FORM, normalise=normalise, **options)

    found, tokens, parts = {}, unit("generic", "repeats"), [(mask, "dense") for mask in ("full", "causal", "matrix")]
    for normalise in (True, False):
        each = velocities(functools.partial(attention, normalise), tokens, jnp.float64, parts, masses=[MASSES])
        found |= {f"{name}, {'normalised' if normalise else 'not normalised'}": array for name, array in each.items()}
    return found


# The float32 series is certified to 2e-3, and programs that round otherwise differ by a fraction of this.
@golden(float32=2e-4)
def harmonic_averages():
    """Series on the circle; antipodes are summed pair by pair."""
    found = {}
    for d, mask, dtype in ((2, "causal", "float64"), (2, "full", "float32")):
        attention = cjx.SoftmaxAttention(4.0, mask=MASKS[mask], summation=cjx.Harmonic())
        average = eqx.filter_jit(lambda x, attention=attention: attention.average(x, None))
        for name in ("generic", "antipodes"):
            x = jnp.asarray(clouds.cloud(name, 24, d, seed=1, sphere=True), dtype)
            found[f"{name}, {d}, {mask}, {dtype}"] = average(x)[::3]
    return found


@golden()
def summations_that_auto_chooses():
    """The place of the chosen summation in the list below, for numbers of tokens, dimensions, dtypes and masks."""
    kinds = [cjx.Dense, cjx.Blocked, cjx.Harmonic, cjx.Hull]
    place = lambda chosen: kinds.index(type(chosen))
    sizes = [(n, d) for n in (8, 512, 4096, 100_000) for d in (2, 3, 4, 8)]
    found = {"hardmax": [place(cjx.Auto().choose_hardmax(n, d, m)) for n, d in sizes for m in MASKS.values()]}
    for dtype in (jnp.float32, jnp.float64):
        chosen = [cjx.Auto().choose(n, d, dtype, mask) for n, d in sizes for mask in MASKS.values()]
        found[jnp.dtype(dtype).name] = [place(summation) for summation in chosen]
    return found


@golden()
def softmax_weights_and_partition():
    """The matrix of weights and the logarithms of the partition functions."""
    found = {}
    for name, mask in MASKS.items():
        attention = cjx.SoftmaxAttention(4.0, query_key=FORM, mask=mask)
        x = jnp.asarray(unit("repeats")[0])
        found[f"weights, {name}"] = attention.weights(x, 0.0, jnp.asarray(MASSES))
        found[f"log partition, {name}"] = attention.log_partition(x)
    return found


# --- runs


def flow(beta=4.0, value=None, *, mask=cjx.FullMask(), **options):
    return cjx.AttentionField(cjx.SoftmaxAttention(beta, mask=mask), value, **options)


@golden(float32=1e-4)  # near the rounding of float32 the estimated errors, and so the steps, are rounding errors
def run_of_softmax():
    found = {}
    for dtype in ("float64", "float32"):
        traj = cjx.simulate(flow(), X.astype(dtype), TS.astype(dtype))
        found[dtype] = traj.xs[1:]
    return found


@golden()
def run_of_causal_attention_with_masses_in_euclidean_space():
    field = flow(1.0, 0.3 * VALUE, mask=cjx.CausalMask(), space=cjx.Euclidean(), masses=jnp.asarray(MASSES[:8]))
    return {"xs": cjx.simulate(field, X, TS[:3]).xs[1:]}


@golden()
def run_of_unnormalised_attention_and_a_perceptron():
    perceptron = cjx.PerceptronField(
        normal(6, 5, D), normal(7, D, 5), jnp.tanh, bias_in=normal(8, 5), bias_out=normal(9, D)
    )
    attention = cjx.UnnormalisedAttention(3.0, mask=cjx.WindowMask(3), offset=3.0)
    field = cjx.AttentionField(attention) + 0.3 * perceptron
    return {"xs": cjx.simulate(field, X, TS).xs[1:]}


@golden()
def run_of_heads_with_schedules():
    """beta(t) interpolated, Q(t) piecewise constant, V(t) a function of time."""
    knots = jnp.asarray([0.0, 1.0, 3.0])
    forms = normal(10, 2, 2, D, D)
    field = cjx.MultiHeadField(
        cjx.Interpolated(knots, jnp.asarray([[1.0, 2.0], [4.0, 1.0], [2.0, 2.0]])),
        cjx.PiecewiseConstant(knots, forms),
        cjx.FunctionSchedule(lambda t: jnp.cos(t) * jnp.stack([VALUE, jnp.eye(D, dtype=t.dtype)])),
        mask=cjx.CausalMask(),
    )
    return {"xs": cjx.simulate(field, X, jnp.asarray([0.0, 0.5, 1.5, 3.0])).xs[1:]}


@golden()
def run_of_factored_heads():
    maps = normal(11, 3, 2, D, 2)
    field = cjx.MultiHeadField.factored(jnp.asarray([1.0, 3.0]), *maps, jnp.swapaxes(normal(12, 2, D, 2), 1, 2))
    return {"xs": cjx.simulate(field, X, TS).xs[1:]}


@golden()
def run_of_rescaled_tokens():
    field = cjx.RescaledField(cjx.SoftmaxAttention(1.0, query_key=FORM), 0.5 * VALUE)
    traj = cjx.simulate(field, normal(13, 8, D), TS[:3])
    return {"xs": traj.xs[1:], "unscaled": field.unscale(2.0, traj.xs[-1])}


@golden()
def run_by_steps_of_euler_on_the_sphere():
    """Constant steps of `Retract(Euler())`, with hardmax attention."""
    options = {"solver": cjx.Retract(dfx.Euler()), "stepsize_controller": dfx.ConstantStepSize(), "dt0": 0.125}
    hardmax = cjx.AttentionField(cjx.HardmaxAttention(query_key=FORM, mask=cjx.CausalMask()))
    return {"hardmax": cjx.simulate(hardmax, X, TS, **options).xs[1:]}


@golden(float64=1e-7)  # the number of steps of an implicit run is large, and each solves linear equations
def run_by_rodas_to_a_million():
    ts = jnp.asarray([0.0, 1.0, 30.0, 1e6])
    return {"causal": cjx.simulate(flow(9.0, mask=cjx.CausalMask()), X, ts, solver=cjx.Rodas5P()).xs[1:]}


@golden()
def run_with_noise():
    ts, options = jnp.asarray([0.0, 0.3, 1.0]), {"noise": 0.2, "key": jr.key(3), "dt0": 0.1}
    layer = cjx.NoisyLayer(cjx.ResidualLayer(flow(), 0.1, normalise_to=cjx.Sphere()), 0.2, time=0.1, key=jr.key(4))
    return {
        "sphere": cjx.simulate(flow(), X, ts, **options).xs[1:],
        "layers": cjx.iterate(layer, X, 4).xs[1:],
    }


@golden(float64=1e-8)  # the time of an event is found between two steps, by a search that ends at a tolerance
def run_to_an_event():
    traj = cjx.simulate(flow(1.0), X, jnp.asarray([0.0, 100.0]), event=cjx.clustered_event(0.1))
    return {"t1": traj.t1, "x1": traj.x1, "reached": traj.event_reached}


@golden()
def gradients_of_a_run():
    """The gradients by beta and by the start are taken in reverse mode."""

    def loss(beta, x0):
        xs = cjx.simulate(flow(beta, mask=cjx.CausalMask()), x0, TS[:3]).xs
        return jnp.sum(jnp.cos(3 * xs[-1]))

    value, slopes = eqx.filter_jit(jax.value_and_grad(loss, argnums=(0, 1)))(jnp.asarray(4.0), X)
    return {"loss": value, "by beta": slopes[0], "by the start": slopes[1]}


@golden()
def run_of_a_batch():
    """Two systems under `vmap`, with the number of clusters and the energy beside the tokens."""
    starts = jnp.stack([X, sphere_tokens(15, 8, D)])
    save = cjx.TokensAnd(
        lambda t, x, args: {"clusters": cjx.num_clusters(x, 0.5), "energy": cjx.interaction_energy(x, 4.0)}
    )
    many = eqx.filter_vmap(lambda x: cjx.simulate(flow(), x, TS, save=save))(starts)
    return {"xs": many.xs[:, -1], **many.saved}


@golden()
def iterated_layers():
    layer = cjx.ResidualLayer(flow(2.0, VALUE, space=cjx.Euclidean()), 0.3)
    sphere = cjx.ResidualLayer(flow(2.0, mask=cjx.CausalMask()), 0.5, normalise_to=cjx.Sphere())
    return {
        "residual": cjx.iterate(layer, X, 6, save_every=3).xs[1:],
        "on the sphere": cjx.iterate(sphere, X, 6, save_every=3).xs[1:],
    }
