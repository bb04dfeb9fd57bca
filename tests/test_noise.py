"""Noise: Brownian motion on the space, against its exact moments."""

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from clusterjax import (
    AttentionField,
    Euclidean,
    PerceptronField,
    Retract,
    SoftmaxAttention,
    Sphere,
    simulate,
)

from . import oracles
from .helpers import as_a_user


TS = np.array([0.0, 0.25, 0.5, 1.0])
TEMPERATURE, STEP = 0.7, 1 / 64


def brownian_motion(d, space, n=4000):
    """n independent tokens without drift."""
    still = PerceptronField(jnp.zeros((1, d)), jnp.zeros((d, 1)), jnp.tanh, space=space)
    x0 = jnp.asarray(oracles.unit_tokens(1, n, d))
    traj = simulate(still, x0, jnp.asarray(TS), noise=TEMPERATURE, key=jr.key(2), dt0=STEP)
    return np.asarray(x0), np.asarray(traj.xs)


def assert_mean(samples, expected):
    """The mean of independent samples, within 4 sigma, where sigma is small."""
    error = samples.std() / np.sqrt(samples.size)
    assert error < 0.02
    assert abs(samples.mean() - expected) < 4 * error


@pytest.mark.parametrize("d", (2, pytest.param(3, marks=pytest.mark.exhaustive)))
def test_brownian_motion_on_the_sphere(d):
    """E <x_t, x_0> = e^{-(d - 1) T t}, and the second harmonic decays like e^{-2 d T t}; unit norms throughout."""
    x0, xs = brownian_motion(d, Sphere())
    np.testing.assert_allclose(np.linalg.norm(xs, axis=-1), 1.0, rtol=0, atol=1e-15)
    for k, t in enumerate(TS[1:], start=1):
        cosine = np.sum(x0 * xs[k], axis=1)
        assert_mean(cosine, np.exp(-(d - 1) * TEMPERATURE * t))
        assert_mean((d * cosine**2 - 1) / (d - 1), np.exp(-2 * d * TEMPERATURE * t))
    # No direction is preferred: the mean over tokens of what was added is that of the decay alone.
    rest = xs[-1] - np.exp(-(d - 1) * TEMPERATURE) * x0
    assert np.abs(rest.mean(axis=0)).max() < 4 / np.sqrt(len(x0))


def test_brownian_motion_in_space():
    """E |x_t - x_0|^2 = 2 d T t, and each coordinate is Gaussian."""
    x0, xs = brownian_motion(2, Euclidean())
    for k, t in enumerate(TS[1:], start=1):
        step = (xs[k] - x0) / np.sqrt(2 * TEMPERATURE * t)
        assert_mean(step.ravel(), 0.0)
        assert_mean(step.ravel() ** 2, 1.0)
        assert abs(np.mean(step**4) - 3) < 0.3
    increments = np.diff(xs, axis=0)
    assert abs(np.mean(increments[1] * increments[2])) < 4 * np.std(increments[1] * increments[2]) / np.sqrt(len(x0))


def noisy(temperature, key, **options):
    x0 = jnp.asarray(oracles.unit_tokens(3, 5, 3))
    field = AttentionField(SoftmaxAttention(2.0))
    return simulate(field, x0, jnp.asarray(TS), noise=temperature, key=key, dt0=STEP, **options)


def test_zero_temperature_is_the_deterministic_scheme():
    """T = 0 is normalised Heun with the same steps; a small T is near it, and the larger T is not."""
    deterministic = noisy(None, None, solver=Retract(dfx.Heun()), stepsize_controller=dfx.ConstantStepSize()).xs
    cold, cool, warm = (noisy(temperature, jr.key(4)).xs for temperature in (0.0, 1e-8, 1.0))
    np.testing.assert_allclose(cold, deterministic, rtol=0, atol=1e-12)
    assert 1e-6 < np.abs(cool - deterministic).max() < 1e-2
    assert np.abs(warm - deterministic).max() > 0.1


def test_key_determines_the_run():
    """The same key gives the same bits, another key another run; a batch of keys is a loop over them."""
    keys = jr.split(jr.key(5), 2)
    first, again, other = noisy(0.3, keys[0]).xs, noisy(0.3, keys[0]).xs, noisy(0.3, keys[1]).xs
    np.testing.assert_array_equal(first, again)
    assert np.abs(first[1] - other[1]).min(axis=-1).max() > 1e-3
    batch = eqx.filter_vmap(lambda key: noisy(0.3, key).xs)(keys)
    np.testing.assert_allclose(batch, jnp.stack([first, other]), rtol=0, atol=1e-12)


def test_single_precision_noise():
    """dtype follows the tokens; keys of the old style do too."""
    x0 = jnp.asarray(oracles.unit_tokens(3, 5, 3), jnp.float32)
    field = AttentionField(SoftmaxAttention(2.0))
    traj = simulate(field, x0, jnp.asarray(TS), noise=0.3, key=jax.random.PRNGKey(0), dt0=STEP)
    assert {leaf.dtype for leaf in (traj.xs, traj.ts, traj.t1, traj.x1)} == {jnp.dtype(jnp.float32)}
    np.testing.assert_allclose(np.linalg.norm(traj.xs, axis=-1), 1.0, rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="at needs the tokens between the save times"):
        traj.at(0.1)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"noise": 0.1, "dt0": 0.1}, "key must be given with noise, but it is None"),
        ({"noise": 0.1, "key": jr.key(0)}, "dt0 must be given with noise, but it is None"),
        ({"noise": -0.1, "key": jr.key(0), "dt0": 0.1}, "noise must be a finite number of at least 0, but it is -0.1"),
        ({"noise": np.nan, "key": jr.key(0), "dt0": 0.1}, "noise must be a finite number of at least 0, but it is nan"),
        ({"noise": np.inf, "key": jr.key(0), "dt0": 0.1}, "noise must be a finite number of at least 0, but it is inf"),
        ({"noise": np.ones(2), "key": jr.key(0), "dt0": 0.1}, "noise must be a number"),
    ],
)
def test_bad_noise(options, message):
    field = AttentionField(SoftmaxAttention(1.0))
    with as_a_user(), pytest.raises(ValueError, match=message):
        simulate(field, jnp.asarray(oracles.unit_tokens(3, 5, 3)), jnp.asarray(TS), **options)
