import os
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import clusterjax as cjx
from tests.attention_cases import BETA, FORM, KINDS, MASSES, D, N, kinds, outcome
from tests.helpers import DTYPES, CountTraces, assert_close, assert_same, name_of, normal, rotation
from tests.model.derivatives_and_maps import assert_maps, assert_slopes
from tests.reference import attention as attention_reference, fields as reference


Z = normal(31, N, D)
TURN = rotation(7, D)


def symmetric(*eigenvalues):
    return jnp.asarray(np.asarray(TURN) @ np.diag(eigenvalues) @ np.asarray(TURN).T, float)


MATRICES = {
    "none": None,
    "general": normal(32, D, D),
    "symmetric": symmetric(1.0, 0.4, -0.6),
    "nilpotent": jnp.asarray([[0.0, 1.0, 2.0], [0.0, 0.0, -1.0], [0.0, 0.0, 0.0]], float),
    "decaying": symmetric(-0.2, -1.0, -2.0),
    "turning": jnp.asarray([[0.3, -2.0, 0.0], [2.0, 0.3, 0.0], [0.0, 0.0, -0.5]], float),
    "defective": jnp.asarray([[1.0, 10.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.5]], float),
}
matrices = pytest.mark.parametrize("matrix", MATRICES)

velocity = eqx.filter_jit(lambda field, t, z: field(t, z))
there = eqx.filter_jit(lambda field, t, z: field.unscale(t, z))
back = eqx.filter_jit(lambda field, t, x: field.rescale(t, x))


def as_matrix(matrix):
    return np.eye(D) if MATRICES[matrix] is None else np.asarray(MATRICES[matrix])


# --- definition


@matrices
def test_velocity_is_that_of_the_paper(matrix):
    """The velocity is sum_j P_ij V (z_j - z_i) with the attention P of e^{tV} z, whose exponential SciPy computes."""
    field = cjx.RescaledField(cjx.SoftmaxAttention(BETA, query_key=FORM), MATRICES[matrix])

    def weights(x):
        return attention_reference.softmax_weights(x, BETA, np.asarray(FORM))

    for t in (0.0, 0.4, 1.5, -0.7):
        expected = reference.rescaled(t, np.asarray(Z), weights, as_matrix(matrix))
        assert_close(velocity(field, jnp.asarray(t), Z), expected, "composed")


@pytest.mark.exhaustive_cases("hardmax", "softmax", "unnormalised")
@kinds
def test_rescaled_tokens_move_as_the_tokens_do(kind):
    """z = e^{-tV} x moves by e^{-tV}(dx/dt - V x) for every kind of attention, with masses."""
    attention, value, t = KINDS[kind][0](query_key=FORM, mask=cjx.CausalMask()), MATRICES["general"], 0.8
    plain = cjx.AttentionField(attention, value, cjx.Euclidean(), masses=MASSES)
    x = np.asarray(Z) @ scipy.linalg.expm(t * np.asarray(value)).T
    moved = np.asarray(velocity(plain, t, jnp.asarray(x))) - x @ np.asarray(value).T
    expected = moved @ scipy.linalg.expm(-t * np.asarray(value)).T
    assert_close(velocity(cjx.RescaledField(attention, value, masses=MASSES), t, Z), expected, "composed")


@matrices
def test_unscale_is_the_exponential_and_rescale_its_inverse(matrix):
    field = cjx.RescaledField(cjx.SoftmaxAttention(BETA), MATRICES[matrix])
    for t in (0.0, 1.5, -0.7):
        grown = np.asarray(Z) @ scipy.linalg.expm(t * as_matrix(matrix)).T
        assert_close(there(field, jnp.asarray(t), Z), grown, "composed")
        assert_close(back(field, jnp.asarray(t), there(field, jnp.asarray(t), Z)), Z, "composed")


def test_no_value_is_the_identity():
    attention = cjx.SoftmaxAttention(BETA, query_key=FORM)
    for t in (0.0, 3.0, 200.0):
        one, two = (velocity(cjx.RescaledField(attention, value), jnp.asarray(t), Z) for value in (None, jnp.eye(D)))
        assert_close(one, two, "composed")


@matrices
def test_velocities_turn_with_the_tokens(matrix):
    turn = rotation(8, D)
    field = cjx.RescaledField(cjx.SoftmaxAttention(BETA, query_key=FORM), MATRICES[matrix])
    value = None if MATRICES[matrix] is None else turn @ MATRICES[matrix] @ turn.T
    turned = cjx.RescaledField(cjx.SoftmaxAttention(BETA, query_key=turn @ FORM @ turn.T), value)
    t = jnp.asarray(1.3)
    assert_close(velocity(turned, t, Z @ turn.T), velocity(field, t, Z) @ turn.T, "composed")


# --- invariance


# --- limits


@pytest.mark.exhaustive_cases(*(f"float32-{matrix}" for matrix in MATRICES if matrix != "symmetric"))
@matrices
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_nothing_overflows(matrix, dtype):
    """Velocities are finite up to t = 1e4, where e^{tV} has long exceeded the largest floating-point number."""
    field = cjx.RescaledField(cjx.SoftmaxAttention(BETA, query_key=FORM), MATRICES[matrix])
    for t in (10.0, 100.0, 1e4):
        found = velocity(field, jnp.asarray(t, dtype), Z.astype(dtype))
        assert found.dtype == dtype
        assert np.all(np.isfinite(found))


@pytest.mark.exhaustive_cases("float64")
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_at_large_times_softmax_is_hardmax(dtype):
    """With V = I the attention of e^t z is that of z at inverse temperature beta e^{2t}."""
    z = np.asarray(Z, dtype)
    field = cjx.RescaledField(cjx.SoftmaxAttention(BETA, query_key=FORM))
    limit = outcome(cjx.HardmaxAttention(query_key=FORM), z, z)[1] - z
    for t in (40.0, 400.0, 1e4):
        assert_close(velocity(field, jnp.asarray(t, dtype), z), limit, "identity")
    early = outcome(cjx.SoftmaxAttention(BETA * np.exp(3.0), query_key=FORM), z, z)[1] - z
    assert_close(velocity(field, jnp.asarray(1.5, dtype), z), early, "composed")


@pytest.mark.exhaustive
def test_nothing_overflows_in_unoptimised_code():
    """The test of large times passes in unoptimised code, which computes scores twice and rounds them differently."""
    env = os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0", "JAX_PLATFORMS": "cpu"}
    test = f"{Path(__file__)}::test_at_large_times_softmax_is_hardmax"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.parametrize("matrix", ("symmetric", "decaying"))
def test_large_times_with_a_symmetric_value(matrix):
    """Velocities up to t = 1e4 equal a reference whose scores in the eigenbasis do not overflow."""
    field = cjx.RescaledField(cjx.SoftmaxAttention(BETA), MATRICES[matrix])
    for t in (2.0, 10.0, 80.0, 1e4):
        expected = reference.rescaled_symmetric(t, np.asarray(Z), as_matrix(matrix), BETA)
        assert_close(velocity(field, jnp.asarray(t), Z), expected, "composed")


def test_a_defective_value_at_large_times():
    """As e^{tV} = e^t (I + tN) on the first two axes, scores are inner products of (z_1 + 10 t z_2, z_2)."""
    field = cjx.RescaledField(cjx.SoftmaxAttention(BETA), MATRICES["defective"])
    for t in (60.0, 1e3):
        z = np.asarray(Z)
        grown = np.stack([z[:, 0] + 10 * t * z[:, 1], z[:, 1]], axis=1)
        chosen = np.argmax(grown @ grown.T, axis=1)
        expected = (z[chosen] - z) @ as_matrix("defective").T
        assert_close(velocity(field, jnp.asarray(t), Z), expected, "composed")


@pytest.mark.exhaustive_cases("3")
@pytest.mark.parametrize("d", (1, D))
def test_one_token_is_at_rest(d):
    field = cjx.RescaledField(cjx.SoftmaxAttention(BETA), 0.7 * jnp.eye(d))
    for t in (0.0, 1e4):
        assert_same(velocity(field, jnp.asarray(t), np.asarray(Z)[:1, :d]), np.zeros((1, d)))


# --- a value that is traced


@jax.jit
def built_inside(value, t, z):
    return cjx.RescaledField(cjx.SoftmaxAttention(BETA, query_key=FORM), value)(t, z)


@pytest.mark.parametrize("matrix", [matrix for matrix in MATRICES if matrix != "none"])
def test_a_traced_value_is_as_good(matrix):
    """Under jit a value that is unknown while compiling gives the velocities of a known value."""
    field = cjx.RescaledField(cjx.SoftmaxAttention(BETA, query_key=FORM), MATRICES[matrix])
    for t in (0.0, 1.5, *((60.0, 300.0, 1e4) if matrix in ("general", "defective") else ())):
        found = built_inside(MATRICES[matrix], jnp.asarray(t), Z)
        assert_close(found, velocity(field, jnp.asarray(t), Z), "composed")
    assert np.all(np.isfinite(built_inside(MATRICES[matrix], jnp.asarray(1e4), Z)))


@pytest.mark.exhaustive_cases("general", "nilpotent")
@pytest.mark.parametrize("matrix", ("general", "nilpotent"))
def test_derivatives_in_tokens_value_and_form(matrix):

    def fn(z, value, form):
        attention = cjx.SoftmaxAttention(0.3, query_key=form, mask=cjx.CausalMask())
        return cjx.RescaledField(attention, value)(0.6, z)

    assert_slopes(fn, Z, MATRICES[matrix], FORM)


def test_the_derivative_in_the_value_is_finite_at_large_times():
    gradient = jax.jit(jax.grad(lambda value: jnp.sum(built_inside(value, jnp.asarray(30.0), Z) ** 2)))
    for matrix in ("symmetric", "nilpotent", "decaying"):
        assert np.all(np.isfinite(gradient(MATRICES[matrix])))


def test_a_value_that_is_replaced():
    """A value may be replaced, as `equinox.tree_at` and every optimiser do."""
    attention = cjx.SoftmaxAttention(BETA)
    replaced = eqx.tree_at(lambda field: field.value, cjx.RescaledField(attention, -3 * jnp.eye(D)), 3 * jnp.eye(D))
    wanted = cjx.RescaledField(attention, 3 * jnp.eye(D))
    assert_close(velocity(replaced, jnp.asarray(200.0), Z), velocity(wanted, jnp.asarray(200.0), Z))


def test_rescale_neither_overflows_nor_underflows_early():
    """For V = diag(1, -1, 0) and t = 400, e^{-tV} x is right: e^{400} and e^{-400} are floating-point numbers."""
    field = cjx.RescaledField(cjx.SoftmaxAttention(BETA), np.diag([1.0, -1.0, 0.0]))
    found = back(field, jnp.asarray(400.0), np.ones((1, D)))
    assert_close(np.log(found), np.array([[-400.0, 400.0, 0.0]]), "composed")


# --- contract


@pytest.mark.exhaustive_cases("float64")
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_dtype_is_that_of_the_tokens(dtype):
    field = cjx.RescaledField(cjx.SoftmaxAttention(BETA, query_key=FORM), MATRICES["symmetric"], masses=MASSES)
    z = Z.astype(dtype)
    for t in (1.5, 1, jnp.asarray(1.5, jnp.float32), jnp.asarray(1.5)):
        assert jax.eval_shape(field, t, z).dtype == dtype
    for call in (field.unscale, field.rescale):
        assert jax.eval_shape(call, 1.5, z).dtype == dtype
    assert_close(velocity(field, jnp.asarray(1.5), z), velocity(field, jnp.asarray(1.5), Z), "composed")


@pytest.mark.exhaustive_cases("bfloat16")
@pytest.mark.parametrize("dtype", (jnp.float16, jnp.bfloat16), ids=name_of)
def test_half_precision(dtype):
    """The exponential is computed in single precision and rounded at the end, so that results agree to a tenth."""
    field = cjx.RescaledField(cjx.SoftmaxAttention(BETA), MATRICES["symmetric"])
    for call in (velocity, there):
        found, expected = (np.asarray(call(field, jnp.asarray(1.5), Z.astype(kind)), float) for kind in (dtype, float))
        np.testing.assert_allclose(found, expected, rtol=0, atol=0.1 * np.abs(expected).max())


def test_one_trace_for_any_numbers():
    body = CountTraces(lambda field, t: field(t, Z))
    compiled = eqx.filter_jit(body)
    for k in (0.5, 1.0, 2.0, -3.0, 9.0):
        compiled(cjx.RescaledField(cjx.SoftmaxAttention(k), k * MATRICES["general"]), jnp.asarray(k))
    assert body.traces == 1


def test_mapping_over_values_and_tokens_equals_a_loop():
    values = np.stack([MATRICES["general"], MATRICES["symmetric"], MATRICES["turning"]])
    zs = np.stack([Z, np.asarray(Z)[::-1], 0.5 * np.asarray(Z)])
    assert_maps(lambda value, z: built_inside(value, jnp.asarray(1.5), z), values, zs, kind="composed")
