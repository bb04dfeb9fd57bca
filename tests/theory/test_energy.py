"""The energy identities of oracle 1.1, pointwise for any tokens and along trajectories."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax import (
    AttentionField,
    MultiHeadField,
    PerceptronField,
    SoftmaxAttention,
    Sphere,
    UnnormalisedAttention,
    energy_dissipation,
    interaction_energy,
    uniform_energy,
)
from tests import oracles
from tests.solving import angles, solve_tightly, velocity


BETAS = (0.3, 1.0, 4.0, 9.0)
CLOUDS = ((5, 2), (7, 3))


@eqx.filter_jit
def climb(field, energy, x, *parameters):
    """The velocity of the field, the tangential gradient of energy(x, *parameters), and the rate of the energy."""
    velocity = field(0.0, x)
    value = lambda y: energy(y, *parameters)
    return velocity, Sphere().tangent(x, jax.grad(value)(x)), jax.jvp(value, (x,), (velocity,))[1]


def symmetric(seed, *shape):
    matrix = np.random.default_rng(seed).normal(size=shape)
    return jnp.asarray((matrix + matrix.swapaxes(-1, -2)) / 2)


def assert_equal(actual, expected, tolerance=1e-12):
    """The arrays are equal up to `tolerance` times the largest entry."""
    expected = np.asarray(expected)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * np.max(np.abs(expected)))


@pytest.mark.parametrize("n, d", CLOUDS)
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("softmax", (True, False), ids=("SA", "USA"))
def test_flow_is_a_gradient(softmax, beta, n, d):
    """E1, USA: x_i' = n P dE/dx_i, and dE/dt is the mean of |x_i'|^2. E2, SA: the metric has the weights Z_i / n."""
    x = jnp.asarray(oracles.unit_tokens(1, n, d))
    attention = (SoftmaxAttention if softmax else UnnormalisedAttention)(beta)
    weights = np.exp(beta * np.asarray(x) @ np.asarray(x).T).mean(axis=1) if softmax else np.ones(n)
    velocity, gradient, rate = climb(AttentionField(attention), interaction_energy, x, jnp.asarray(beta))
    assert_equal(velocity, (n / weights)[:, None] * gradient)
    expected = np.sum(weights[:, None] * np.square(velocity)) / n
    np.testing.assert_allclose(rate, expected, rtol=1e-12)
    logs = attention.log_partition(x) if isinstance(attention, SoftmaxAttention) else None
    np.testing.assert_allclose(energy_dissipation(x, velocity, log_partition=logs), expected, rtol=1e-12)


def rate_and_dissipation(form, value, beta=1.5):
    x = jnp.asarray(oracles.unit_tokens(3, 7, 3))
    attention = SoftmaxAttention(beta, query_key=form)
    velocity, _, rate = climb(AttentionField(attention, value), interaction_energy, x, jnp.asarray(beta), form)
    return float(rate), float(energy_dissipation(x, velocity, log_partition=attention.log_partition(x)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", ("V is B", "V is -B", "B is not symmetric", "V is not B", "V is the identity"))
def test_value_plus_or_minus_the_symmetric_form(case):
    """E3: for symmetric B and V = +-B the energy of B changes at +- the dissipation, and otherwise it does not."""
    form = symmetric(4, 3, 3)
    value = {"V is -B": -form, "V is not B": symmetric(5, 3, 3), "V is the identity": None}.get(case, form)
    if case == "B is not symmetric":
        form = value = jnp.asarray(np.random.default_rng(6).normal(size=(3, 3)))
    actual, dissipation = rate_and_dissipation(form, value)
    if case in ("V is B", "V is -B"):
        np.testing.assert_allclose(actual, dissipation if case == "V is B" else -dissipation, rtol=1e-12)
    else:
        assert abs(actual - dissipation) > 0.1 * dissipation


def test_heads_climb_the_sum_of_their_energies():
    """E4: for unnormalised heads with V_h = B_h = B_h^T, E is the sum of the E_{B_h}, dE/dt the mean of |x_i'|^2."""
    x, forms, beta = jnp.asarray(oracles.unit_tokens(7, 9, 3)), symmetric(8, 4, 3, 3), 1.3
    field = MultiHeadField(beta, forms, forms, attention=UnnormalisedAttention)
    energy = lambda y, forms: sum(interaction_energy(y, beta, form) for form in forms)
    velocity, gradient, rate = climb(field, energy, x, forms)
    assert_equal(velocity, 9 * gradient)
    np.testing.assert_allclose(rate, energy_dissipation(x, velocity), rtol=1e-12)


def test_attention_and_gradient_perceptron():
    """E5: E + (1/2n) sum_ij w_j phi(<a_j, x_i>), phi' = 2 sigma, rises at the mean of |x_i'|^2; here sigma = tanh."""
    rng = np.random.default_rng(9)
    x, beta = jnp.asarray(oracles.unit_tokens(10, 8, 3)), 2.0
    a, omega = jnp.asarray(rng.normal(size=(5, 3))), jnp.asarray(rng.normal(size=5))
    field = AttentionField(UnnormalisedAttention(beta)) + PerceptronField(a, a.T * omega[None, :], jnp.tanh)

    def energy(y, a, omega):
        phi = 2 * jnp.log(jnp.cosh(y @ a.T))
        return interaction_energy(y, beta) + jnp.sum(phi @ omega) / (2 * 8)

    velocity, gradient, rate = climb(field, energy, x, a, omega)
    assert_equal(velocity, 8 * gradient)
    np.testing.assert_allclose(rate, energy_dissipation(x, velocity), rtol=1e-12)


def torque(x, velocity, weights):
    x, velocity = np.asarray(x), np.asarray(velocity) * weights[:, None]
    return x.T @ velocity - velocity.T @ x


@pytest.mark.parametrize("beta", BETAS)
def test_no_torque(beta):
    """E6: sum_i x_i ^ x_i' = 0 for USA and sum_i Z_i x_i ^ x_i' = 0 for SA, where the sum without Z_i is not zero."""
    x = jnp.asarray(oracles.unit_tokens(11, 9, 4))
    partition = np.exp(beta * np.asarray(x) @ np.asarray(x).T).sum(axis=1)
    unnormalised = velocity(AttentionField(UnnormalisedAttention(beta)), x)
    softmax = velocity(AttentionField(SoftmaxAttention(beta)), x)
    ones = np.ones(9)
    assert np.abs(torque(x, unnormalised, ones)).max() < 1e-12 * np.abs(unnormalised).max()
    assert np.abs(torque(x, softmax, partition)).max() < 1e-12 * np.abs(softmax * partition[:, None]).max()
    assert np.abs(torque(x, softmax, ones)).max() > 1e-3 * np.abs(softmax).max()


energy_of_clouds = jax.jit(jax.vmap(interaction_energy, in_axes=(0, None)))


@pytest.mark.parametrize(
    "beta, circle, sphere, largest",
    [
        (1.0, 0.6330329389, 0.5876005968, 1.3591409142),
        (4.0, 1.4127402440, 0.8528099124, 6.8247687541),
        (9.0, 60.7549085840, 25.0095179141, 450.1713293097),
    ],
)
def test_energy_bounds(beta, circle, sphere, largest):
    """E7: the energy lies between its value for the uniform measure and e^beta / (2 beta); both bounds are attained."""
    for d, printed in ((2, circle), (3, sphere)):
        np.testing.assert_allclose(oracles.coefficient(0, beta, d) / (2 * beta), printed, rtol=0, atol=6e-11)
        np.testing.assert_allclose(uniform_energy(beta, d), oracles.coefficient(0, beta, d) / (2 * beta), rtol=1e-12)
        clouds = np.stack([oracles.unit_tokens(seed, 40, d) for seed in range(50)])
        energies = np.asarray(energy_of_clouds(clouds, beta))
        assert np.all((energies > printed) & (energies < largest))
    polygon = oracles.circle_tokens(2 * np.pi * np.arange(40) / 40)
    polygons, consensus = np.tile(polygon, (25, 1, 1)), np.tile(polygon[:1], (25, 40, 1))
    energies = np.asarray(energy_of_clouds(np.concatenate([polygons, consensus]), beta))
    np.testing.assert_allclose(energies[[0, -1]], [circle, largest], rtol=1e-10)
    np.testing.assert_allclose(energies[-1], np.exp(beta) / (2 * beta), rtol=1e-12)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("n", (3, 6))
def test_energy_of_closed_configurations(n, beta):
    """E8: orthonormal tokens, the simplex and the regular n-gon have the exact energies."""
    orthonormal = (np.exp(beta) + n - 1) / (2 * beta * n)
    simplex = (np.exp(beta) + (n - 1) * np.exp(-beta / (n - 1))) / (2 * beta * n)
    polygon = np.pad(oracles.circle_tokens(2 * np.pi * np.arange(n) / n), ((0, 0), (0, n - 2)))
    clouds = np.stack([*(oracles.equiangular_tokens(n, n, gamma) for gamma in (0.0, -1 / (n - 1))), polygon])
    expected = [orthonormal, simplex, oracles.polygon_energy(n, beta)]
    np.testing.assert_allclose(energy_of_clouds(clouds, beta), expected, rtol=1e-12)


TIMES = np.linspace(0.0, 8.0, 33)


@pytest.fixture(scope="module")
def runs():
    """SA and USA from six tokens of a hemisphere and from six tokens of a great circle, for three betas."""
    hemisphere = oracles.unit_tokens(13, 6, 3)
    hemisphere[:, 2] = 0.05 + np.abs(hemisphere[:, 2])
    hemisphere /= np.linalg.norm(hemisphere, axis=1, keepdims=True)
    circle = np.pad(oracles.circle_tokens(np.random.default_rng(14).uniform(-np.pi, np.pi, 6)), ((0, 0), (0, 1)))
    starts = np.stack([hemisphere] * 3 + [circle] * 3)
    betas = jnp.asarray([0.0, 0.5, 2.0] * 2)

    def run(attention):
        solve = lambda beta, x0: solve_tightly(AttentionField(attention(beta)), x0, TIMES).xs
        xs = np.asarray(eqx.filter_vmap(solve)(betas, jnp.asarray(starts)))
        return xs.reshape(2, 3, *xs.shape[1:])

    return {"SA": run(SoftmaxAttention), "USA": run(UnnormalisedAttention)}


@pytest.mark.exhaustive
def test_sum_of_angles_is_conserved_on_the_circle(runs):
    """E6: USA on the circle conserves the sum of the angles; SA does not."""
    totals = {name: np.unwrap(angles(xs[1]).sum(axis=-1), axis=-1) for name, xs in runs.items()}
    drift = {name: np.abs(total - total[:, :1]).max(axis=1) for name, total in totals.items()}
    assert np.all(drift["USA"] < 1e-10)
    assert drift["SA"][0] < 1e-10  # at beta = 0 SA and USA are equal
    assert np.all(drift["SA"][1:] > 1e-2)


@pytest.mark.exhaustive
def test_cross_ratios_are_conserved_at_beta_zero(runs):
    """E9: at beta = 0 the flow consists of Möbius maps, in any dimension; at beta = 1/2 it does not."""
    xs = runs["SA"][0]
    distance = lambda i, j: np.linalg.norm(xs[:, :, i] - xs[:, :, j], axis=-1)
    for i, j, k, m in ((0, 1, 2, 3), (1, 3, 5, 4), (2, 0, 5, 1)):
        ratio = distance(i, j) * distance(k, m) / (distance(i, k) * distance(j, m))
        drift = np.abs(ratio / ratio[:, :1] - 1).max(axis=1)
        assert drift[0] < 1e-11
        assert drift[1] > 0.01


@pytest.mark.exhaustive
@pytest.mark.parametrize("d, n, beta, expected", [(2, 8, 2.0, 0.173976), (3, 16, 4.0, 0.300084)])
def test_mean_token_grows_from_uniform_tokens(d, n, beta, expected):
    """E11: d/dt E|M|^2 = 2 (n - 1)(d - 1) a_1 / (n^2 beta) at t = 0 for independent uniform tokens, USA; 4 sigma."""
    exact = 2 * (n - 1) * (d - 1) * oracles.coefficient(1, beta, d) / (n**2 * beta)
    np.testing.assert_allclose(exact, expected, rtol=0, atol=6e-7)
    x = jnp.asarray(oracles.unit_tokens(12, 20_000 * n, d).reshape(20_000, n, d))
    field = AttentionField(UnnormalisedAttention(beta))
    velocity = jax.vmap(lambda y: field(0.0, y))(x)
    growth = np.asarray(2 * jnp.sum(jnp.mean(x, axis=1) * jnp.mean(velocity, axis=1), axis=1))
    error = growth.std() / np.sqrt(len(growth))
    assert error < 0.01 * exact
    assert abs(growth.mean() - exact) < 4 * error


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ("SA", "USA"))
def test_tokens_of_a_hemisphere_close_in(runs, name):
    """E12: min_i <x_i, w> never falls if it is positive, and near the limit x* the least cosine alpha with x* obeys
    alpha' >= (1 - alpha) / (2 n e^{2 beta}) once alpha >= 1/2.
    """
    attentions = {"SA": SoftmaxAttention, "USA": UnnormalisedAttention}
    for beta, xs in zip((0.0, 0.5, 2.0), runs[name][0], strict=True):
        height = xs[:, :, 2].min(axis=1)
        assert height[0] > 0
        assert np.all(np.diff(height) > -1e-11)
        assert height[-1] > height[0]
        limit = xs[-1].mean(axis=0) / np.linalg.norm(xs[-1].mean(axis=0))
        field = AttentionField(attentions[name](beta))
        tested = 0
        for x in xs[:-8]:
            alpha, first = (x @ limit).min(), (x @ limit).argmin()
            if alpha < 0.5 or alpha > 1 - 1e-4:  # nearer, x* itself is not known accurately
                continue
            speed = float(np.asarray(field(0.0, jnp.asarray(x)))[first] @ limit)
            assert speed >= (1 - alpha) / (2 * 6 * np.exp(2 * beta))
            tested += 1
        assert tested > 0


@pytest.mark.exhaustive
@pytest.mark.slow
def test_poisson_kernel_data_at_beta_zero():
    """E10: on the circle at beta = 0, r(t) = [1 + (r0^{-2} - 1) e^{-t}]^{-1/2}."""
    n, r0, ts = 1000, 0.2, np.array([0.0, 1.0, 2.0, 4.0, 6.0])
    w = np.exp(2j * np.pi * (np.arange(n) + 0.5) / n)
    z = (w + r0) / (1 + r0 * w)
    xs = solve_tightly(AttentionField(SoftmaxAttention(0.0)), oracles.circle_tokens(np.angle(z)), ts).xs
    r = np.linalg.norm(np.asarray(xs).mean(axis=1), axis=-1)
    np.testing.assert_allclose(r, (1 + (r0**-2 - 1) * np.exp(-ts)) ** -0.5, rtol=0, atol=5e-12)
    np.testing.assert_allclose(r[1:], [0.31896496, 0.48518275, 0.83345624, 0.97151958], rtol=0, atol=6e-9)


@pytest.mark.exhaustive
def test_energy_rises_by_what_is_dissipated():
    """Oracle 7.7: E(6) - E(0) = int_0^6 dissipation dt for SA, 1.0947965035 for n = 12, d = 3, beta = 2."""
    nodes, weights = np.polynomial.legendre.leggauss(60)
    ts = np.concatenate([[0.0], 3 + 3 * nodes, [6.0]])
    x0 = oracles.unit_tokens(1, 12, 3)
    attention = SoftmaxAttention(2.0)
    field = AttentionField(attention)
    xs = solve_tightly(field, x0, ts).xs
    energies = [float(interaction_energy(xs[k], 2.0)) for k in (0, -1)]
    dissipation = jax.vmap(lambda x: energy_dissipation(x, field(0.0, x), log_partition=attention.log_partition(x)))
    spent = 3 * float(weights @ np.asarray(dissipation(xs[1:-1])))
    np.testing.assert_allclose(energies[1] - energies[0], spent, rtol=1e-10)
    np.testing.assert_allclose(spent, 1.0947965035, rtol=0, atol=6e-11)
