"""The function `time_to_cluster` against exact times, against a loop on degenerate clouds, and for failed runs."""

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from tests.clouds import CLOUDS, cloud
from tests.helpers import DTYPES, CountTraces
from tests.oracles import equiangular_time
from tests.reference import attention as weights_of
from tests.reference.first_passage import first_passage


N = 5
FINE = {"stepsize_controller": dfx.PIDController(rtol=1e-10, atol=1e-12)}


def softmax(beta):
    return cjx.AttentionField(cjx.SoftmaxAttention(beta))


def radius_at(gamma):
    """The distance of n equiangular unit tokens from their mean."""
    return np.sqrt((1 - gamma) * (N - 1) / N)


@eqx.filter_jit
def timed(beta, x0, radius, until):
    return cjx.time_to_cluster(softmax(beta), x0, radius, until, **FINE)


def number(value):
    return jnp.asarray(value, float)


@pytest.mark.exhaustive
def test_times_of_a_batch_that_is_compiled_once():
    """Two runs cluster, one does not in time, and one starts clustered; then radii and ends change."""
    count = CountTraces(lambda *given: tuple(timed(*given)))
    mapped = jax.jit(jax.vmap(count, in_axes=(0, 0, None, None)))
    betas, same = jnp.asarray([1.0, 2.0, 9.0, 1.0]), jnp.ones((N, N)) / np.sqrt(N)
    starts = jnp.stack([jnp.eye(N)] * 3 + [same])
    for gamma, until in ((0.9, 6.0), (0.99, 7.0)):
        time, reached = mapped(betas, starts, number(radius_at(gamma)), number(until))
        expected = [equiangular_time(gamma, N, 1.0), equiangular_time(gamma, N, 2.0), until, 0.0]
        np.testing.assert_allclose(time, expected, rtol=0, atol=1e-7)
        np.testing.assert_array_equal(reached, [True, True, False, True])
        assert time[2] == until
    assert count.traces == 1


@pytest.mark.exhaustive_cases("float32")
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtype_is_that_of_the_tokens(dtype):
    found = cjx.time_to_cluster(softmax(1.0), jnp.eye(N, dtype=dtype), radius_at(0.5), 40.0)
    assert found.time.dtype == dtype and found.reached.dtype == bool and found.time.shape == found.reached.shape == ()
    assert abs(float(found.time) - equiangular_time(0.5, N, 1.0)) < 1e-4 and found.reached


def test_clouds_against_a_loop():
    """Some of the heaps, ties, lines and antipodes are together at the start, and some never cluster."""
    beta, radius, until, h = 2.0, 0.3, 3.0, 0.05
    starts = np.stack([cloud(name, 4, sphere=True) for name in CLOUDS])
    found = jax.vmap(timed, in_axes=(None, 0, None, None))(number(beta), starts, number(radius), number(until))
    weights = lambda x: weights_of.softmax_weights(x, beta)
    expected = [first_passage(x, weights, radius, until, h) for x in starts]
    np.testing.assert_array_equal(found.reached, [reached for _, reached in expected])
    np.testing.assert_allclose(found.time, [time for time, _ in expected], rtol=0, atol=1e-5)
    assert 0 < np.sum(found.reached) < len(starts) and np.any(found.time == 0)


def test_tokens_that_part_were_together_at_the_start():
    """With V = -I the event sees nothing, since the tokens are outside the radius after one step."""
    x0 = jnp.asarray([[1.0, 0.0], [np.cos(0.1), np.sin(0.1)], [np.cos(0.1), -np.sin(0.1)]])
    # Tokens off the sphere are retracted first.
    for start in (x0, jnp.asarray([[0.5], [1.0], [3.0]]) * x0):
        found = cjx.time_to_cluster(-10 * softmax(1.0), start, 0.102, 2.0, dt0=0.5, solver=dfx.Tsit5())
        assert found.time == 0 and found.reached
    alone = cjx.time_to_cluster(softmax(1.0), x0[:1], 0.1, 2.0)
    assert alone.time == 0 and alone.reached


@pytest.mark.exhaustive
def test_derivatives():
    """Derivatives with respect to beta and radius are differences of the exact time, and zero if it is not reached."""
    beta, gamma, h = 2.0, 0.8, 1e-5
    time = lambda beta, radius, until: timed(beta, jnp.eye(N), radius, until).time
    slopes = jax.jit(jax.grad(time, argnums=(0, 1, 2)))
    by_beta, by_radius, by_until = slopes(number(beta), number(radius_at(gamma)), number(40.0))
    difference = (equiangular_time(gamma, N, beta + h) - equiangular_time(gamma, N, beta - h)) / (2 * h)
    np.testing.assert_allclose(by_beta, difference, rtol=1e-5)
    rise = equiangular_time(gamma + h, N, beta) - equiangular_time(gamma - h, N, beta)
    np.testing.assert_allclose(by_radius, rise / (radius_at(gamma + h) - radius_at(gamma - h)), rtol=1e-5)
    assert by_until == 0
    np.testing.assert_array_equal(slopes(number(beta), number(radius_at(gamma)), number(0.5)), [0, 0, 1])
    np.testing.assert_array_equal(slopes(number(beta), number(2.0), number(0.5)), [0, 0, 0])


@pytest.mark.exhaustive
def test_a_run_that_fails_is_censored_where_it_stopped():
    given = (softmax(9.0), jnp.eye(N), 0.01, 100.0)
    with pytest.raises(RuntimeError):
        cjx.time_to_cluster(*given, max_steps=5)
    found = cjx.time_to_cluster(*given, max_steps=5, throw=False)
    assert 0 < found.time < 100 and not found.reached


@pytest.mark.exhaustive
def test_options_are_those_of_simulate():
    """With noise the time is the end of a step; args reach the field."""
    noisy = {"noise": 1e-4, "dt0": 0.25, "key": jax.random.key(0)}
    found = cjx.time_to_cluster(softmax(1.0), jnp.eye(N), radius_at(0.5), 40.0, **noisy)
    assert found.reached and found.time % 0.25 == 0 and found.time >= equiangular_time(0.5, N, 1.0)
    field = cjx.FunctionField(lambda t, x, rate: -rate * x, cjx.Euclidean())
    found = cjx.time_to_cluster(field, 2 * jnp.asarray([[1.0], [-1.0]]), 1.0, 9.0, number(0.5), **FINE)
    np.testing.assert_allclose(found.time, 2 * np.log(2.0), atol=1e-7)


BAD = {
    "density": ((cjx.MeanField(cjx.UnnormalisedAttention(1.0), d=2, degree=8), jnp.eye(2), 0.1, 1.0), "field must"),
    "radius": ((softmax(1.0), jnp.eye(2), 0.0, 1.0), "radius must be a finite number above 0"),
    "until": ((softmax(1.0), jnp.eye(2), 0.1, np.inf), "until must be a finite number above 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_it_refuses(name):
    given, words = BAD[name]
    with pytest.raises(ValueError, match=f"^{words}"):
        cjx.time_to_cluster(*given)
