"""Equiangular tokens, oracle 1.2: they have one cosine, whose exact time is known by exponential integrals."""

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax import AttentionField, Euclidean, Retract, SoftmaxAttention, Sphere, UnnormalisedAttention, simulate
from tests import oracles
from tests.solving import gram, solve_tightly, velocity


ATTENTIONS = {"SA": SoftmaxAttention, "USA": UnnormalisedAttention}

# Each row has the number of tokens, beta, the time and the printed cosine.
COSINES = {
    True: (
        (2, 1.0, 3.0, 0.9874400110), (2, 9.0, 30.0, 0.0076616885), (64, 1.0, 6.0, 0.9995651893),
        (64, 4.0, 3.0, 0.4241964983), (128, 9.0, 30.0, 0.0128035068),
    ),
    False: ((2, 1.0, 0.5, 0.5880618838), (32, 4.0, 1.0, 0.4373602528), (128, 9.0, 1.0, 0.0773250106)),
}  # fmt: skip
HITTING_TIMES = {
    128: {0.0: 5.879396, 1.0: 5.909020, 4.0: 6.569550, 5.0: 7.634246, 7.0: 17.350424, 9.0: 82.593358},
    64: {1.0: 5.583295, 4.0: 6.655804, 9.0: 123.60899},
    32: {1.0: 5.270284, 4.0: 6.953502, 9.0: 178.73093},
}
CURVE = {7: 4.519270, 10: 5.912396, 20: 7.219828, 30: 7.784877, 100: 9.214027, 1000: 11.668872}


def test_beta_zero_is_elementary():
    """1.2: the cosine is (1 - e^{-2t}) / (1 + (n - 1) e^{-2t}), which is tanh t for two tokens."""
    for n in (2, 5, 64):
        decay = np.exp(-2 * 1.3)
        expected = (1 - decay) / (1 + (n - 1) * decay)
        np.testing.assert_allclose(oracles.equiangular_cosine(1.3, n, 0.0), expected, rtol=1e-12)
    np.testing.assert_allclose(oracles.equiangular_cosine(1.3, 2, 0.0), np.tanh(1.3), rtol=1e-12)


def test_printed_cosines():
    """1.2: the cosines equal the printed table to ten digits."""
    for softmax, table in COSINES.items():
        for n, beta, t, printed in table:
            actual = oracles.equiangular_cosine(t, n, beta, softmax=softmax)
            np.testing.assert_allclose(actual, printed, rtol=0, atol=1e-10)


TARGETS = np.array([0.4, 0.7, 0.95, 1 - 1e-4, 1 - 1e-8])


@pytest.mark.exhaustive_cases("SA-5", "USA-5")
@pytest.mark.slow
@pytest.mark.parametrize("n", (5, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (2, 8))))
@pytest.mark.parametrize("name", ATTENTIONS)
def test_simulation_follows_the_exact_cosine(name, n):
    """1.2: tokens stay equiangular and reach each cosine at its exact time, to 1e-9, for every beta and start; at late
    times 1 - gamma decays at the rate 2 for SA and 2 e^beta for USA.
    """
    softmax = name == "SA"
    starts = (0.0, 0.3, -0.25 / (n - 1))
    cases = [(beta, gamma0) for beta in (0.0, 1.0, 4.0, 9.0) for gamma0 in starts]
    x0 = jnp.stack([jnp.asarray(oracles.equiangular_tokens(n, n, gamma0)) for _, gamma0 in cases])
    times = [
        np.append(0, oracles.equiangular_time(TARGETS, n, beta, gamma0, softmax=softmax)) for beta, gamma0 in cases
    ]

    def run(beta, x0, ts):
        return solve_tightly(AttentionField(ATTENTIONS[name](beta)), x0, ts).xs

    xs = np.asarray(eqx.filter_vmap(run)(jnp.asarray([beta for beta, _ in cases]), x0, jnp.asarray(times)))
    off = ~np.eye(n, dtype=bool)
    cosines = gram(xs)[:, 1:][..., off]
    np.testing.assert_allclose(cosines, np.broadcast_to(TARGETS[None, :, None], cosines.shape), rtol=0, atol=1e-9)
    gaps = np.sum(np.square(xs[:, 1:, 0] - xs[:, 1:, 1]), axis=-1) / 2
    rates = np.log(gaps[:, -2] / gaps[:, -1]) / np.array([ts[-1] - ts[-2] for ts in times])
    expected = 2 * np.exp([0 if softmax else beta for beta, _ in cases])
    np.testing.assert_allclose(rates, expected, rtol=1e-3)


@pytest.mark.parametrize("beta", (0.0, 1.0, 9.0))
@pytest.mark.parametrize("name", ATTENTIONS)
def test_simplex_is_stationary(name, beta):
    """1.2: tokens at gamma = -1 / (n - 1) do not move."""
    x = jnp.asarray(oracles.equiangular_tokens(5, 5, -1 / 4))
    largest = np.abs(velocity(AttentionField(ATTENTIONS[name](beta)), x)).max()
    assert largest < 1e-15 * max(1, np.exp(beta) if name == "USA" else 1)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_random_tokens_track_the_cosine():
    """1.2: 64 random tokens of dimension 64, in 32 runs of the authors' normalised Euler scheme, have at t = 3 the mean
    cosine of the printed Monte-Carlo run, within 4 sigma of both together, and follow gamma from below.
    """
    key = jax.random.key(5)
    starts = jax.vmap(lambda k: Sphere().sample(k, 64, 64))(jax.random.split(key, 32))

    def run(beta, x0):
        traj = simulate(
            AttentionField(SoftmaxAttention(beta), space=Euclidean()),
            x0,
            jnp.asarray([0.0, 3.0]),
            solver=Retract(dfx.Euler()),
            stepsize_controller=dfx.ConstantStepSize(),
            dt0=0.1,
        )
        cosines = traj.xs[-1] @ traj.xs[-1].T
        return (jnp.sum(cosines) - 64) / (64 * 63)

    betas = jnp.asarray([1.0, 4.0])
    means = np.asarray(eqx.filter_vmap(lambda b: eqx.filter_vmap(lambda x: run(b, x))(starts))(betas))
    error = means.std(axis=1) / np.sqrt(32)
    assert np.all(error < 0.02)
    assert np.all(np.abs(means.mean(axis=1) - [0.7923, 0.3548]) < 4 * np.sqrt(2) * error)
    assert np.all(means.mean(axis=1) < [0.8507, 0.4242])
    assert np.all(means.mean(axis=1) > np.array([0.8507, 0.4242]) - 0.1)


def test_limits_of_the_phase_transition_curve():
    """1.2: the time tends to e^beta / (2 beta), slowly for large n; if beta is small, it is near ln(n / delta) / 2."""
    ratio = lambda n, beta: oracles.equiangular_time(1 - 1e-3, n, beta) / (np.exp(beta) / (2 * beta))
    for beta, printed, digits in ((10, 1.026, 6e-4), (20, 1.0052, 6e-5), (40, 1.00126, 6e-6), (80, 1.00031, 6e-6)):
        np.testing.assert_allclose(ratio(2, beta), printed, rtol=0, atol=digits)
    np.testing.assert_allclose([ratio(64, 10), ratio(64, 320)], [0.28, 0.856], rtol=0, atol=3e-3)
    for n in (128, 1024):
        for beta in (0.5, 1.0, 2.0):
            exact = oracles.equiangular_time(1 - 1e-3, n, beta)
            assert abs(exact - np.log(n / 1e-3) / 2) < 4 * np.exp(beta) / n
