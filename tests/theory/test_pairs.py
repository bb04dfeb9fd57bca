"""Two clusters that merge, oracle 1.3: the cosine of the pair agrees with quadrature."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax import AttentionField, SoftmaxAttention, UnnormalisedAttention
from tests import oracles
from tests.solving import solve_tightly, velocity


def tokens_at(cosine):
    return oracles.circle_tokens(np.array([0.4, 0.4 + np.arccos(cosine)]))


@pytest.mark.parametrize(
    "c0, beta, mass, printed, tolerance",
    [
        (0.0, 20.0, 0.5, 12191759, 1e-7),
        (0.5, 40.0, 0.5, 8392814.2, 1e-8),
        (0.5, 40.0, 0.8, 3949560.9, 2e-8),
        (0.0, 80.0, 0.7, 2.5083944e32, 2e-8),
        (-0.5, 1.0, 0.5, 4.370241049, 2e-10),
        (0.5, 4.0, 0.5, 3.176545066, 2e-10),
        (-0.5, 9.0, 0.5, 48743.6153, 2e-9),
    ],
)
def test_printed_merging_times(c0, beta, mass, printed, tolerance):
    """1.3: the exact time to the cosine 0.99 has the printed digits."""
    exact = oracles.pair_time(c0, 0.99, beta, mass)
    np.testing.assert_allclose(exact, printed, rtol=tolerance)


def test_equal_pair_is_equiangular():
    """1.3: a pair of equal masses behaves like the two tokens of oracle 1.2."""
    for beta in (1.0, 4.0, 9.0):
        expected = oracles.equiangular_time(0.99, 2, beta, -0.5)
        np.testing.assert_allclose(oracles.pair_time(-0.5, 0.99, beta), expected, rtol=1e-10)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_simulation_of_a_pair_with_masses():
    """1.3: the simulated pair reaches each cosine at its exact time, to 1e-9.

    From c0 = -1/2 at beta = 9 an initial error grows by c'(0.9) / c'(c0) = 5e4, so that rounding costs two digits.
    """
    cases = [(1.0, -0.5, 0.5), (4.0, 0.5, 0.5), (9.0, -0.5, 0.5), (4.0, 0.0, 0.8), (9.0, 0.3, 0.3), (0.0, -0.9, 0.6)]
    cosines = np.array([0.6, 0.9, 0.99])
    times = [[0.0] + [oracles.pair_time(c0, c, beta, mass) for c in cosines] for beta, c0, mass in cases]

    def run(beta, x0, masses, ts):
        return solve_tightly(AttentionField(SoftmaxAttention(beta), masses=masses), x0, ts).xs

    starts = jnp.stack([jnp.asarray(tokens_at(c0)) for _, c0, _ in cases])
    masses = jnp.asarray([[mass, 1 - mass] for _, _, mass in cases])
    xs = np.asarray(eqx.filter_vmap(run)(jnp.asarray([c[0] for c in cases]), starts, masses, jnp.asarray(times)))
    found = np.sum(xs[:, 1:, 0] * xs[:, 1:, 1], axis=-1)
    errors = np.abs(found - cosines[None, :]).max(axis=1)
    assert errors[2] < 3e-8
    assert np.all(np.delete(errors, 2) < 1e-9)


@pytest.mark.parametrize("attention", (SoftmaxAttention, UnnormalisedAttention))
def test_identical_tokens_are_one_of_their_mass(attention):
    """1.3: three tokens at one place and two at another move like two tokens of masses 3 and 2."""
    x = jnp.asarray(tokens_at(-0.3))
    copies = jnp.asarray([0, 0, 0, 1, 1])
    several = velocity(AttentionField(attention(3.0), masses=jnp.ones(5)), x[copies])
    two = velocity(AttentionField(attention(3.0), masses=jnp.asarray([3.0, 2.0])), x)
    np.testing.assert_allclose(several, two[copies], rtol=0, atol=1e-12 * np.abs(two).max())


@pytest.mark.parametrize("attention", (SoftmaxAttention, UnnormalisedAttention))
@pytest.mark.parametrize("beta", (0.0, 1.0, 9.0))
def test_antipodal_pair_is_stationary(attention, beta):
    """1.3, the negative case: an antipodal pair does not merge, whatever its masses."""
    e = np.array([0.6, 0.8])
    scale = np.exp(beta) if attention is UnnormalisedAttention else 1.0
    field = AttentionField(attention(beta), masses=jnp.asarray([0.7, 0.3]))
    assert np.abs(velocity(field, jnp.asarray([e, -e]))).max() < 1e-15 * scale
    assert np.abs(velocity(field, jnp.asarray(tokens_at(-0.99)))).max() > 1e3 * 1e-15 * scale


def test_asymptotic_merging_time():
    """1.3: the exact over the asymptotic time is 1.00516 at beta = 20 and tends to 1 like 1 / beta^2 for any mass."""
    ratio = lambda beta, mass: oracles.pair_time(0.0, 0.99, beta, mass) / oracles.pair_time_asymptotic(0, beta, mass)
    np.testing.assert_allclose(ratio(20, 0.5), 1.00516, rtol=0, atol=6e-6)
    for mass in (0.5, 0.8):
        errors = np.array([ratio(beta, mass) - 1 for beta in (20, 40, 80)])
        np.testing.assert_allclose(np.log2(errors[:-1] / errors[1:]), 2, rtol=0, atol=0.1)
