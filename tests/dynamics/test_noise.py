"""Noise is Brownian motion on the space, and has its exact moments."""

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
    FunctionField,
    NoisyLayer,
    PerceptronField,
    PiecewiseConstant,
    ResidualLayer,
    Retract,
    SoftmaxAttention,
    Sphere,
    clustered_event,
    iterate,
    simulate,
    stationary_event,
)
from clusterjax._dynamics.noise import brownian_step
from tests import oracles
from tests.helpers import as_a_user


TS = np.array([0.0, 0.25, 0.5])
TEMPERATURE, STEP = 0.7, 1 / 64


def stay(t, x, args):
    return jnp.zeros_like(x)


def brownian_motion(d, space, key=jr.key(2), ts=TS, n=4000):
    """A run of n independent tokens without drift."""
    x0 = jnp.asarray(oracles.unit_tokens(1, n, d))
    return simulate(FunctionField(stay, space), x0, jnp.asarray(ts), noise=TEMPERATURE, key=key, dt0=STEP)


def assert_mean(samples, expected):
    """Asserts that the mean of independent samples is as expected within 4 sigma, and that sigma is small."""
    error = samples.std() / np.sqrt(samples.size)
    assert error < 0.02
    assert abs(samples.mean() - expected) < 4 * error


@pytest.mark.exhaustive_cases("2")
@pytest.mark.parametrize("d", (2, 3))
def test_brownian_motion_on_the_sphere(d):
    """E <x_t, x_0> = e^{-(d - 1) T t}, the second harmonic decays like e^{-2 d T t}, and norms are one throughout."""
    xs = np.asarray(brownian_motion(d, Sphere(), n=1500).xs)
    x0 = oracles.unit_tokens(1, 1500, d)
    np.testing.assert_allclose(np.linalg.norm(xs, axis=-1), 1.0, rtol=0, atol=1e-15)
    for k, t in enumerate(TS[1:], start=1):
        cosine = np.sum(x0 * xs[k], axis=1)
        assert_mean(cosine, np.exp(-(d - 1) * TEMPERATURE * t))
        assert_mean((d * cosine**2 - 1) / (d - 1), np.exp(-2 * d * TEMPERATURE * t))
    # No direction is preferred: apart from the decay, tokens are displaced by zero on average.
    rest = xs[-1] - np.exp(-(d - 1) * TEMPERATURE) * x0
    assert np.abs(rest.mean(axis=0)).max() < 4 / np.sqrt(len(x0))


@pytest.mark.exhaustive
def test_brownian_motion_in_space():
    """E |x_t - x_0|^2 = 2 d T t, and each coordinate is Gaussian."""
    xs = np.asarray(brownian_motion(2, Euclidean()).xs)
    x0 = oracles.unit_tokens(1, 4000, 2)
    for k, t in enumerate(TS[1:], start=1):
        step = (xs[k] - x0) / np.sqrt(2 * TEMPERATURE * t)
        assert_mean(step.ravel(), 0.0)
        assert_mean(step.ravel() ** 2, 1.0)
        assert abs(np.mean(step**4) - 3) < 0.3
    increments = np.diff(xs, axis=0)
    assert abs(np.mean(increments[0] * increments[1])) < 4 * np.std(increments[0] * increments[1]) / np.sqrt(len(x0))


def noisy(temperature, key, **options):
    x0, field = jnp.asarray(oracles.unit_tokens(3, 5, 3)), AttentionField(SoftmaxAttention(2.0))
    return simulate(field, x0, jnp.asarray(TS), noise=temperature, key=key, dt0=STEP, **options)


@pytest.mark.exhaustive
def test_zero_temperature_is_the_deterministic_scheme():
    """At T = 0 the run is normalised Heun with the same steps; at a small T it is near that run, at T = 1 it is not."""
    deterministic = noisy(None, None, solver=Retract(dfx.Heun()), stepsize_controller=dfx.ConstantStepSize()).xs
    cold, cool, warm = (noisy(temperature, jr.key(4)).xs for temperature in (0.0, 1e-8, 1.0))
    np.testing.assert_allclose(cold, deterministic, rtol=0, atol=1e-12)
    assert 1e-6 < np.abs(cool - deterministic).max() < 1e-2
    assert np.abs(warm - deterministic).max() > 0.1


@pytest.mark.exhaustive
def test_an_event_ends_a_noisy_run_with_its_step():
    """The run ends at one of its states, the first for which the event holds, and not on a line between two states."""
    ts = jnp.asarray(np.arange(65) * STEP)
    x0 = jnp.asarray(oracles.unit_tokens(3, 3, 3))
    field = AttentionField(SoftmaxAttention(2.0))
    run = lambda **more: simulate(field, x0, ts, noise=0.3, key=jr.key(7), dt0=STEP, **more)
    whole, ended = run(), run(event=clustered_event(0.9))
    happens = [bool(np.all(np.linalg.norm(x - x.mean(0), axis=1) <= 0.9)) for x in np.asarray(whole.xs)]
    first = happens.index(True)
    assert first > 1 and bool(ended.event_reached) and float(ended.t1) == float(ts[first])
    np.testing.assert_allclose(ended.x1, whole.xs[first], rtol=0, atol=1e-14)


def test_a_noisy_run_has_no_speed():
    with as_a_user(), pytest.raises(ValueError, match="^event must be .*: a path with noise has no speed"):
        noisy(0.3, jr.key(0), event=stationary_event(0.1))


@pytest.mark.exhaustive
def test_key_determines_the_run():
    """The same key gives the same bits, and another key another run; a batch of keys is a loop over them."""
    keys = jr.split(jr.key(5), 2)
    run = lambda key: brownian_motion(3, Sphere(), key, n=5)
    first, other = run(keys[0]), run(keys[1])
    np.testing.assert_array_equal(first.xs, run(keys[0]).xs)
    assert np.abs(first.x1 - other.x1).mean() > 0.1
    batch = eqx.filter_vmap(lambda key: run(key).x1)(keys)
    np.testing.assert_allclose(batch, [first.x1, other.x1], rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="^at needs .* between them a run with noise is not interpolated.* into ts.$"):
        first.at(0.1)


@pytest.mark.exhaustive
def test_the_noise_of_a_key_is_the_same_whether_few_or_many_ends_of_steps_are_saved():
    few, many = (brownian_motion(3, Sphere(), ts=ts, n=5).x1 for ts in (TS[[0, -1]], TS))
    np.testing.assert_allclose(few, many, rtol=0, atol=1e-12)


@pytest.mark.exhaustive
def test_single_precision_noise():
    """The dtype is that of the tokens, also with a key of the old style."""
    x0 = jnp.asarray(oracles.unit_tokens(3, 5, 3), jnp.float32)
    field = AttentionField(SoftmaxAttention(2.0))
    traj = simulate(field, x0, jnp.asarray(TS), noise=0.3, key=jax.random.PRNGKey(0), dt0=STEP)
    assert {leaf.dtype for leaf in (traj.xs, traj.ts, traj.t1, traj.x1)} == {jnp.dtype(jnp.float32)}
    np.testing.assert_allclose(np.linalg.norm(traj.xs, axis=-1), 1.0, rtol=0, atol=1e-6)


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


# --- after layers


def still(space=Sphere()):
    """A layer that does not move tokens."""
    field = PerceptronField(jnp.zeros((1, 3)), jnp.zeros((3, 1)), jnp.tanh, space=space)
    return ResidualLayer(field, 0.1)


@pytest.mark.exhaustive_cases("2", "3")
@pytest.mark.parametrize("d", (2, 3, 16))
def test_noisy_layers_are_brownian_motion(d):
    """E <x', x> = e^{-(d - 1) T t}, and the second harmonic decays likewise, for steps whose 2 T t is not small."""
    x0 = jnp.asarray(oracles.unit_tokens(3, 40_000, d))
    amount = 0.3 / (d - 1)
    x = brownian_step(Sphere(), x0, jr.key(1), jnp.asarray(amount))
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1.0, atol=1e-14)
    cosine = np.sum(np.asarray(x0 * x), axis=1)
    error = cosine.std() / np.sqrt(len(cosine))
    assert abs(cosine.mean() - np.exp(-0.3)) < 4 * error + 0.3**3 / 20
    second = (d * cosine**2 - 1) / (d - 1)
    assert abs(second.mean() - np.exp(-2 * d * amount)) < 4 * second.std() / np.sqrt(len(second)) + 0.01
    # No direction is preferred.
    rest = np.asarray(x) - np.exp(-0.3) * np.asarray(x0)
    assert np.abs(rest.mean(axis=0)).max() < 4.5 / np.sqrt(len(x0))


def test_noisy_layers_in_space():
    x0 = jnp.asarray(oracles.unit_tokens(3, 20_000, 3))
    moved = np.asarray(brownian_step(Euclidean(), x0, jr.key(1), jnp.asarray(0.4)) - x0)
    assert abs((moved**2).mean() / 0.8 - 1) < 4 * np.sqrt(2 / moved.size)
    assert np.abs(moved.mean(axis=0)).max() < 4 * np.sqrt(0.8 / len(x0))


@pytest.mark.exhaustive
def test_each_layer_has_its_own_noise_whatever_the_depth():
    layer = NoisyLayer(still(), 0.2, time=0.1, key=jr.key(5))
    x0 = jnp.asarray(oracles.unit_tokens(3, 6, 3))
    traj = iterate(layer, x0, 4)
    np.testing.assert_array_equal(iterate(layer, x0, 2).x1, traj.xs[2])
    steps = [
        np.asarray(brownian_step(Sphere(), traj.xs[k], jr.fold_in(jr.key(5), k), jnp.asarray(0.02))) for k in range(4)
    ]
    np.testing.assert_allclose(traj.xs[1:], steps, atol=1e-14)
    moves = np.asarray(traj.xs[1:] - traj.xs[:-1])
    assert np.abs(moves[0] - moves[1]).max() > 0.01
    other = iterate(NoisyLayer(still(), 0.2, time=0.1, key=jr.key(6)), x0, 4)
    assert np.abs(np.asarray(other.x1 - traj.x1)).max() > 0.01
    # Without noise only the layer acts, and with a schedule each layer has its own temperature.
    unmoved = NoisyLayer(still(), 0.0, time=0.1, key=jr.key(5))
    np.testing.assert_allclose(iterate(unmoved, x0, 2).x1, traj.xs[0], atol=1e-15)
    np.testing.assert_allclose(jax.grad(lambda x: unmoved(0, x)[0, 0])(x0)[1:], 0.0, atol=1e-15)
    late = NoisyLayer(still(), lambda k: jnp.where(k < 2, 0.0, 0.2), time=0.1, key=jr.key(5))
    late = iterate(late, x0, 3)
    np.testing.assert_allclose(late.xs[2], traj.xs[0], atol=1e-15)
    assert np.abs(np.asarray(late.xs[3] - late.xs[2])).max() > 0.01


def test_noisy_layers_keep_the_dtype_and_are_differentiable():
    x0 = jnp.asarray(oracles.unit_tokens(3, 5, 3))
    layer = NoisyLayer(still(), 0.2, time=0.1, key=jr.key(5))
    assert iterate(layer, x0.astype(jnp.float32), 2).x1.dtype == jnp.float32

    def value(temperature):
        return iterate(NoisyLayer(still(), temperature, time=0.1, key=jr.key(5)), x0, 3).x1[0, 0]

    slope = jax.grad(value)(jnp.asarray(0.2))
    assert float(slope) == pytest.approx(float(value(0.2001) - value(0.1999)) / 2e-4, rel=1e-5)


BAD_LAYERS = {
    "layer": (lambda: NoisyLayer(AttentionField(SoftmaxAttention(1.0)), 0.1, time=0.1, key=jr.key(0)), "layer must be"),
    "temperature": (lambda: NoisyLayer(still(), -0.1, time=0.1, key=jr.key(0)), "temperature must not be negative"),
    "none": (lambda: NoisyLayer(still(), None, time=0.1, key=jr.key(0)), "temperature must be a number"),
    "several": (lambda: NoisyLayer(still(), jnp.ones(2), time=0.1, key=jr.key(0)), "temperature must be a number"),
    "time": (lambda: NoisyLayer(still(), 0.1, time=-0.1, key=jr.key(0)), "time must be"),
    "key": (lambda: NoisyLayer(still(), 0.1, time=0.1, key=1), "key must be"),
}


@pytest.mark.parametrize(("make", "words"), BAD_LAYERS.values(), ids=BAD_LAYERS)
def test_bad_noisy_layers(make, words):
    with as_a_user(), pytest.raises(ValueError, match=f"^{words}.*; .*\\.$"):
        make()


# --- save times


STILL = FunctionField(stay, Euclidean())
ADAPTIVE = {"stepsize_controller": dfx.PIDController(rtol=1e-3, atol=1e-3), "solver": dfx.Heun()}


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", ({}, ADAPTIVE), ids=("constant", "adaptive"))
def test_free_noise_has_its_variance_at_times_between_steps_and_independent_increments(how):
    """Var x(t) = 2 T t, also at times that are not multiples of dt0."""
    ts, temperature, n = np.array([0.0, 0.05, 0.15, 0.25, 0.35, 0.5]), 0.5, 6000
    traj = simulate(STILL, jnp.zeros((n, 2)), jnp.asarray(ts), noise=temperature, key=jr.key(0), dt0=0.1, **how)
    xs = np.asarray(traj.xs).reshape(len(ts), -1)
    # The variance of 2 n normal numbers has a relative standard error of 1 / sqrt(n), a correlation 1 / sqrt(2 n).
    assert np.abs(xs[1:].var(axis=1) / (2 * temperature * ts[1:]) - 1).max() < 4 / np.sqrt(n)
    between = np.corrcoef(np.diff(xs, axis=0)) - np.eye(len(ts) - 1)
    assert np.abs(between).max() < 4 / np.sqrt(2 * n)


@pytest.mark.exhaustive
def test_noise_between_save_times_and_jumps_is_resolved():
    """Steps end at the save times and at the end of a layer, even where these are closer than half of dt0."""
    drift = 0.0 * AttentionField(SoftmaxAttention(PiecewiseConstant([0.0, 0.27], [1.0, 2.0])), space=Euclidean())
    ts, n = jnp.asarray([0.0, 0.25, 0.255, 0.26, 0.265, 0.3]), 2000
    traj = simulate(drift, jnp.zeros((n, 2)), ts, noise=0.5, key=jr.key(1), dt0=0.1)
    assert int(traj.stats["num_steps"]) == 8
    variances = np.diff(np.asarray(traj.xs), axis=0).reshape(len(ts) - 1, -1).var(axis=1)
    assert np.abs(variances / np.diff(ts) - 1).max() < 4 / np.sqrt(n)


def test_nothing_is_interpolated_between_save_times():
    how = {"noise": 0.5, "key": jr.key(0), "dt0": 0.1}
    run = lambda ts, **options: simulate(STILL, jnp.zeros((3, 2)), jnp.asarray(ts), **how, **options)
    with pytest.raises(ValueError, match="^dense must be False with noise, but it is True: .* put every time"):
        run([0.0, 0.5], dense=True)
    with pytest.raises(ValueError, match="^stepsize_controller must step .* not onto 0.25: .* add the times of ts"):
        run([0.0, 0.25, 0.5], stepsize_controller=dfx.StepTo(jnp.asarray([0.0, 0.2, 0.5])))
