import diffrax as dfx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax._base import checks as _room
from tests.attention_cases import BETA, FORM, MASSES, D, N, X
from tests.helpers import (
    DTYPES,
    CountTraces,
    as_a_user,
    assert_close,
    assert_derivatives,
    assert_same,
    name_of,
    normal,
    tolerance,
)
from tests.reference import attention as attention_reference, fields as reference


VALUE = normal(11, D, D)
DEPTH, STEP = 6, 0.1
OFF = jnp.asarray(np.asarray(X) * np.linspace(0.3, 3.0, N)[:, None], float)
SPHERE, EUCLIDEAN = cjx.Sphere(), cjx.Euclidean()


def field_on(space, beta=BETA, value=VALUE):
    return cjx.AttentionField(cjx.SoftmaxAttention(beta, query_key=FORM, mask=cjx.CausalMask()), value, space)


def loop_field(sphere, value=VALUE):
    def weights(points):
        return attention_reference.softmax_weights(points, BETA, np.asarray(FORM), attention_reference.causal)

    return lambda t, x: reference.velocity(x, weights, np.asarray(value(t) if callable(value) else value), sphere)


LAYER = cjx.ResidualLayer(field_on(SPHERE), STEP)


# --- definition


@pytest.mark.parametrize(
    ("space", "normalise_to"),
    ((SPHERE, None), (EUCLIDEAN, None), (EUCLIDEAN, SPHERE), (SPHERE, EUCLIDEAN)),
    ids=("projected", "in space", "the papers' scheme", "free"),
)
def test_layers_are_the_loop(space, normalise_to):
    """Layers map x to retract(x + step f(x)), with and without tangent projection, with and without normalisation."""
    layer = cjx.ResidualLayer(field_on(space), STEP, normalise_to=normalise_to)
    found = cjx.iterate(layer, OFF, DEPTH)
    ends_on_sphere = (space if normalise_to is None else normalise_to) == SPHERE
    expected = reference.layers(np.asarray(OFF), loop_field(space == SPHERE), STEP, DEPTH, ends_on_sphere)
    assert_close(found.xs, expected)
    assert_same(found.ts, np.arange(DEPTH + 1.0))
    assert layer.space == (SPHERE if ends_on_sphere else EUCLIDEAN)


def test_layer_k_is_at_time_k_times_the_step():
    """If V depends on time, each layer has its own V."""
    values = np.asarray(normal(12, DEPTH, D, D))
    schedule = cjx.PiecewiseConstant(STEP * (np.arange(DEPTH) - 0.5), values)
    layer = cjx.ResidualLayer(field_on(SPHERE, value=schedule), STEP)
    expected = reference.layers(
        np.asarray(X), loop_field(True, lambda t: values[round(t / STEP)]), STEP, DEPTH, sphere=True
    )
    assert_close(cjx.iterate(layer, X, DEPTH).xs, expected)


@pytest.mark.parametrize(
    ("dtype", "step", "edge_dtype"),
    (
        (jnp.float64, 0.1, jnp.float64),
        (jnp.float32, 0.1, jnp.float64),
        (jnp.float32, np.float32(0.1), jnp.float32),
        (jnp.float32, np.float32(0.7), jnp.float32),
        (jnp.float32, np.float32(0.01), jnp.float32),
    ),
)
def test_one_value_a_layer_is_met_by_its_layer(dtype, step, edge_dtype):
    """With edges at k times the step, layer k has the k-th value, however both are rounded."""
    depth = 50
    signs = np.where(np.arange(depth) // 2 % 2 == 0, 1.0, -1.0)
    edges = (np.arange(depth) * float(f"{step:.2g}")).astype(edge_dtype)
    schedule = cjx.PiecewiseConstant(edges, signs[:, None, None] * np.eye(2))
    attention = cjx.SoftmaxAttention(BETA, mask=cjx.WindowMask(1))
    layer = cjx.ResidualLayer(cjx.AttentionField(attention, schedule, EUCLIDEAN), step)
    xs = np.asarray(cjx.iterate(layer, jnp.ones((1, 2), dtype), depth).xs)[:, 0, 0]
    expected = np.cumprod([1.0, *(1 + float(step) * signs)])
    np.testing.assert_allclose(xs, expected, rtol=tolerance(dtype, "composed"))


def test_the_layer_is_one_step_of_the_loop():
    x = LAYER(3, X)
    expected = reference.layers(np.asarray(X), loop_field(True), STEP, 1)[1]
    assert_close(x, expected)
    assert_close(LAYER(jnp.asarray(3.0), X), expected)


# --- what is saved


@pytest.mark.exhaustive_cases("3")
@pytest.mark.parametrize("save_every", (1, 2, 3, 6))
def test_every_so_many_layers_are_saved(save_every):
    every, some = cjx.iterate(LAYER, OFF, DEPTH), cjx.iterate(LAYER, OFF, DEPTH, save_every=save_every)
    assert_close(some.xs, np.asarray(every.xs)[::save_every], "exact")
    assert_same(some.ts, np.arange(0.0, DEPTH + 1, save_every))
    assert_same(some.x1, np.asarray(some.xs)[-1])
    assert float(some.t1) == DEPTH
    assert int(some.stats["num_steps"]) == DEPTH
    assert dfx.is_successful(some.result)


def test_at_gives_the_last_saved_layer():
    found = cjx.iterate(LAYER, OFF, DEPTH, save_every=2)
    xs = np.asarray(found.xs)
    for k, saved in ((0.0, 0), (1.0, 0), (2.0, 1), (3.5, 1), (6.0, 3)):
        assert_same(found.at(k), xs[saved])
    assert_same(found.at(np.array([0.0, 5.0])), xs[[0, 2]])
    for k in (-1, 6.5, np.nan):
        with pytest.raises(ValueError, match=r"^t must (lie within the run, \[0\.0, 6\.0\]|be finite), but it is"):
            found.at(k)
    with pytest.raises(ValueError, match=r"^t must be a time or a vector of times, but its shape is \(1, 1\); flatten"):
        found.at(jnp.zeros((1, 1)))


# --- invariance, limits


def test_causal_layers_do_not_see_what_comes_later():
    """Earlier tokens are the same bit for bit, through all layers."""
    changed = jnp.asarray(np.where(np.arange(N)[:, None] < 5, X, -X), float)
    first, other = (np.asarray(cjx.iterate(LAYER, x, DEPTH).xs) for x in (X, changed))
    assert_same(first[:, :5], other[:, :5])
    assert not np.any(np.all(first[:, 5:] == other[:, 5:], axis=2))


def test_one_token_and_one_dimension():
    alone = cjx.ResidualLayer(cjx.AttentionField(cjx.SoftmaxAttention(BETA)), STEP)
    one = jnp.asarray(np.asarray(X)[:1], float)
    assert_close(cjx.iterate(alone, one, 3).xs, np.broadcast_to(one, (4, 1, D)), "exact")
    line = jnp.asarray(np.array([[1.0], [-1.0], [1.0]]), float)
    assert_same(cjx.iterate(alone, line, 3).xs, np.broadcast_to(line, (4, 3, 1)))


# --- contract


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_dtype_is_that_of_the_start(dtype):
    found = cjx.iterate(LAYER, OFF.astype(dtype), DEPTH)
    assert found.ts.dtype == found.xs.dtype == found.t1.dtype == found.x1.dtype == dtype
    assert np.max(np.abs((np.asarray(found.xs) ** 2).sum(axis=2) - 1)) < tolerance(dtype, "exact")
    assert_close(found.xs, cjx.iterate(LAYER, OFF, DEPTH).xs, "composed")


def test_one_trace_for_any_numbers():
    kind = CountTraces(cjx.SoftmaxAttention)
    for k in (0.5, 1.0, 2.0, -3.0, 9.0):
        field = cjx.MultiHeadField(k, FORM[None], k * VALUE[None], attention=kind, masses=MASSES)
        cjx.iterate(cjx.ResidualLayer(field, 0.01 * k), k * X, 4)
    assert kind.traces == 1


def test_mapping_equals_a_loop():
    """A run that is mapped over starts and betas equals a loop over them."""
    x = np.asarray(X)
    xs, betas = jnp.asarray(np.stack([x, x[::-1], 0.5 * x]), float), np.array([0.0, 2.0, -9.0])

    def run(beta, x):
        return cjx.iterate(cjx.ResidualLayer(field_on(SPHERE, beta), STEP), x, DEPTH, save_every=3)

    together = np.asarray(jax.jit(jax.vmap(lambda beta, x: run(beta, x).xs))(betas, xs))
    assert together.shape == (3, 3, N, D)
    for b in range(3):
        assert_close(together[b], run(betas[b], xs[b]).xs)


@pytest.mark.exhaustive
def test_derivatives_through_all_layers():
    packed = jnp.concatenate([OFF.ravel(), VALUE.ravel(), jnp.asarray([BETA, STEP])])

    def fn(packed):
        x, value, beta, step = jnp.split(packed, (N * D, N * D + D * D, N * D + D * D + 1))
        field = field_on(SPHERE, beta[0], value.reshape(D, D))
        return cjx.iterate(cjx.ResidualLayer(field, step[0]), x.reshape(N, D), DEPTH, save_every=3).xs

    assert_derivatives(fn, packed, step=1e-3)


def test_arguments_reach_the_layer():
    class Shift(cjx.AbstractLayer):
        space: cjx.AbstractSpace = EUCLIDEAN

        def __call__(self, k, x, args=None):
            return x + k.astype(x.dtype) * args

        def check(self, n, d):
            pass

    found = cjx.iterate(Shift(), jnp.zeros((2, 2)), 4, jnp.asarray(0.5))
    assert_same(np.asarray(found.xs)[:, 0, 0], [0.0, 0.0, 0.5, 1.5, 3.0])


# --- errors


@pytest.mark.parametrize(
    ("options", "message"),
    (
        ({"depth": 0}, r"^depth must be a positive integer, but it is 0; pass at least 1\.$"),
        ({"depth": 2.0}, r"^depth must be a positive integer, but it is 2\.0; pass at least 1\.$"),
        ({"depth": True}, r"^depth must be a positive integer, but it is True; pass at least 1\.$"),
        ({"depth": 4, "save_every": 0}, r"^save_every must be a positive integer, but it is 0; pass at least 1\.$"),
        ({"depth": 5, "save_every": 2}, r"^save_every must divide depth, but depth is 5 and .* is 2; take depth 4\.$"),
        ({"depth": 2**40}, r"^depth must make no axis longer than int32 can index, but it is 1099511627776, .*;"),
        ({"depth": 2**31, "save_every": 2**31}, r"^depth must make no axis .* 2147483648 entries, .*; pass a smaller"),
        ({"depth": 5, "save_every": 9}, r"^save_every must divide depth, but depth is 5 and .* is 9; take depth 9\.$"),
    ),
)
def test_depths_that_make_no_network(options, message):
    with as_a_user(), pytest.raises(ValueError, match=message):
        cjx.iterate(LAYER, X, **options)


def test_layers_that_memory_does_not_hold(monkeypatch):
    """Only the saved layers count, not the layers that are applied."""
    monkeypatch.setattr(_room, "memory_room", lambda: 2.0**29)
    with as_a_user(), pytest.raises(ValueError, match=r"^depth must leave room in memory, but it is 40000000, .*; pa"):
        cjx.iterate(LAYER, X, 40_000_000)
    few = jax.eval_shape(lambda: cjx.iterate(LAYER, X, 40_000_000, save_every=40_000_000).xs)
    assert few.shape == (2, N, D)
