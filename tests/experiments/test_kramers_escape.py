"""The figure on escapes: potentials, quadrature, clouds and runs, against NumPy and SciPy."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.linalg import solve_banded

import clusterjax as cjx
from clusterjax.experiments.figures import kramers_escape as escape
from clusterjax.experiments.figures.kramers_escape import BETAS, FRESH, PARTS, Clouds, Times, expected_passages


def loop(theta, angles, beta):
    """The potential of tokens at these angles, with equal masses."""
    return -sum(np.exp(beta * (np.cos(theta - a) - 1)) for a in angles) / (beta * len(angles))


@pytest.mark.parametrize("beta", (4.0, 9.0))
def test_the_potential_is_that_of_two_tokens(beta):
    theta = np.linspace(-3, 3, 13)
    potential = escape.two_clusters(beta)
    wanted = loop(theta, (0, np.pi), beta)
    np.testing.assert_allclose(potential(theta), wanted, rtol=1e-12)
    height = loop(np.pi / 2, (0, np.pi), beta) - loop(0, (0, np.pi), beta)
    assert escape.barrier(beta) == pytest.approx(height, rel=1e-10)
    h = 1e-4
    second = [(potential(at + h) - 2 * potential(at) + potential(at - h)) / h**2 for at in (0.0, np.pi / 2)]
    np.testing.assert_allclose(escape.curvatures(beta), (second[0], -second[1]), rtol=1e-3)
    # The force is the velocity of a token without mass between two tokens, as the library computes it.
    force = np.asarray(escape.force(jnp.asarray(theta), jnp.asarray(beta)))
    np.testing.assert_allclose(force, -(potential(theta + h) - potential(theta - h)) / (2 * h), atol=1e-7)
    field = cjx.AttentionField(
        cjx.UnnormalisedAttention(beta, offset=beta), masses=jnp.asarray([1.0, 1.0, 1e-14])
    )  # fmt: skip
    x = jnp.asarray([[1.0, 0.0], [-1.0, 0.0], [np.cos(1.2), np.sin(1.2)]])
    along = np.array([-np.sin(1.2), np.cos(1.2)])
    found = float(escape.force(jnp.asarray(1.2), jnp.asarray(beta)))
    assert float(np.sum(eqx.filter_jit(field)(0.0, x)[2] * along)) == pytest.approx(found, rel=1e-10)


@pytest.mark.parametrize(("beta", "ratio"), [(4.0, 1.5), (9.0, 4.0)])
def test_passage_times_solve_the_equation_of_the_generator(beta, ratio):
    """The time solves T u'' - U' u' = -1, u' = 0 at 0, u = 0 at pi, by differences, and is SciPy's double integral."""
    temperature, potential = escape.barrier(beta) / ratio, escape.two_clusters(beta)
    found = escape.passage_time(potential, temperature)
    n = 4000
    theta, h = np.linspace(0, np.pi, n + 1), np.pi / n
    # In the form (e^{-U/T} T u')' = -e^{-U/T} the equation has fluxes at the middles.
    density = np.exp(-(potential(theta) - potential(0.0)) / temperature)
    middle = np.exp(-(potential(theta[:-1] + h / 2) - potential(0.0)) / temperature) * temperature / h
    mass = density * h * np.where(np.arange(n + 1) == 0, 0.5, 1)
    # The flux through each middle is the mass before it; u falls by the flux over the conductance.
    drops = np.cumsum(mass[:-1]) / middle
    assert found == pytest.approx(drops.sum(), rel=1e-4)
    inner = lambda y: quad(lambda z: np.exp(-potential(z) / temperature), 0, y, epsabs=0, epsrel=1e-9)[0]
    integral = quad(lambda y: np.exp(potential(y) / temperature) * inner(y), 0, np.pi, epsabs=0, epsrel=1e-7)[0]
    assert found == pytest.approx(integral / temperature, rel=1e-5)


def test_a_flat_potential_and_kramers_formula():
    """Without a force the time is pi^2 / (2 T); where it is very cold the time is that of Kramers' formula."""
    assert escape.passage_time(np.zeros_like, 0.3) == pytest.approx(np.pi**2 / 0.6, rel=1e-6)
    for beta in BETAS:
        cold, exponent = escape.passage(escape.two_clusters(beta), escape.barrier(beta) / 50_000)
        assert exponent == pytest.approx(50_000, rel=1e-9)
        assert cold / escape.kramers_prefactor(beta) == pytest.approx(1, abs=0.02)
    # One barrier between parabolas gives 2 pi / sqrt(product of curvatures); here there are two barriers.
    well, top = escape.curvatures(4.0)
    assert escape.kramers_prefactor(4.0) == pytest.approx(2 * np.pi / np.sqrt(well * top) / 2)


def test_clouds_are_stationary_in_their_own_potential():
    beta, temperature = 4.0, 0.02
    potential, q = escape.cloud(beta, temperature)
    theta = 2 * np.pi * (np.arange(400) + 0.5) / 400
    density = np.exp(-potential(theta) / temperature)
    density /= density.sum()
    pairs = np.exp(beta * (np.cos(theta[:, None] - theta[None]) - 1))
    own = -(pairs @ density) / beta
    change = potential(theta) - own
    np.testing.assert_allclose(change, change.mean(), atol=1e-8)
    assert q[0] == q[2] == 0 < q[3] < q[1] < 1
    # Where it is cold the clouds are narrow, and the barrier is that of tokens that coincide.
    cold, _ = escape.cloud(beta, 1e-4)
    height = float(cold(np.array(np.pi / 2)) - cold(np.array(0.0)))
    assert height == pytest.approx(escape.barrier(beta), rel=2e-3)
    with pytest.raises(RuntimeError, match="no two clouds were found"):
        escape.cloud(beta, float("nan"))


@pytest.mark.parametrize("share", (0.5, 0.6, 0.7))
def test_unequal_clouds_are_at_rest_in_the_wells_of_the_loop(share):
    """In each well the density is e^{-U/T} times a factor, and U is the potential by a double loop over angles."""
    beta, temperature = 4.0, 0.02
    q = escape.shapes(beta, temperature, share)
    theta = 2 * np.pi * (np.arange(800) + 0.5) / 800 - np.pi / 2
    strengths = escape.kernel_modes(beta) / beta
    both = escape._of_harmonics(share * strengths * q[0], theta)
    both += escape._of_harmonics((1 - share) * strengths * q[1], theta - np.pi)
    ahead = (theta > 0) & (theta < np.pi)
    edge = theta[ahead][np.argmax(both[ahead])]
    first = np.abs(theta) < edge
    density = np.exp(-both / temperature)
    density = np.where(first, share * density / density[first].sum(), (1 - share) * density / density[~first].sum())
    pairs = np.exp(beta * (np.cos(theta[:, None] - theta[None]) - 1))
    change = both + (pairs @ density) / beta
    # The edge is a grid point of the library, whose grid differs from this one.
    np.testing.assert_allclose(change, change.mean(), atol=1e-3 * np.ptp(both))
    # The larger cloud is the narrower one.
    assert (q[0][0] > q[1][0] + 0.01) == (share > 0.5)
    if share == 0.5:
        np.testing.assert_allclose(q[0], q[1], atol=1e-10)
        cloud = escape.cloud(beta, temperature)[1]
        np.testing.assert_allclose(np.where(np.arange(escape.MODES) % 2, q[0], 0), cloud, atol=1e-9)
    with pytest.raises(RuntimeError, match="no two clouds of masses 1 and 0.0001 are at rest"):
        escape.shapes(beta, temperature, 0.9999)


def test_exit_times_by_differences_and_of_equal_clouds():
    """The times solve T u'' - U' u' = -1 with u = 0 at both ends; for equal opposite clouds they are passage times."""
    beta, temperature = 4.0, 0.022
    wanted = escape.passage_time(escape.cloud(beta, temperature)[0], temperature)
    np.testing.assert_allclose(escape.exit_times(beta, temperature, 0.5, np.pi), wanted, rtol=1e-9)
    assert escape.exit_time(np.zeros_like, 0.3, -1.0, 2.0) == pytest.approx(2 / 0.6, rel=1e-6)
    potential = lambda x: 0.05 * np.cos(2 * x) - 0.03 * np.sin(x)
    left, right, n = -2.0, 4.0, 3000
    x = np.linspace(left, right, n + 1)
    h = x[1] - x[0]
    middle, at = np.exp(-potential(x[:-1] + h / 2) / temperature), np.exp(-potential(x[1:-1]) / temperature)
    bands = np.stack([np.append(0, middle[1:-1]), -(middle[1:] + middle[:-1]), np.append(middle[1:-1], 0)])
    u = solve_banded((1, 1), temperature / h**2 * bands, -at)
    place = round(-left / h) - 1
    assert x[place + 1] == pytest.approx(0, abs=1e-12)
    assert escape.exit_time(potential, temperature, left, right) == pytest.approx(u[place], rel=1e-4)
    # Seen the other way round the circle, the clouds and their masses are exchanged.
    turned = escape.exit_times(beta, temperature, 0.4, 2 * np.pi - 2.6)[::-1]
    np.testing.assert_allclose(escape.exit_times(beta, temperature, 0.6, 2.6), turned, rtol=3e-3)
    # Tokens leave the smaller cloud sooner and the larger one later, and near clouds sooner than far ones.
    out, back = escape.exit_times(beta, temperature, 0.55, np.pi)
    assert back < wanted < out
    assert max(escape.exit_times(beta, temperature, 0.5, 2.6)) < wanted


def test_tokens_at_rest_have_the_density_of_the_clouds():
    """The density of the tokens of both clouds is e^{-U/T}."""
    beta, temperature = 4.0, 0.024
    potential, q = escape.cloud(beta, temperature)
    away = np.asarray(escape.at_rest(potential, temperature, jr.key(2), 2, 50_000)).ravel()
    assert np.abs(away).max() < np.pi and abs(away.mean()) < 5 * away.std() / away.size**0.5
    for m in (2, 4):  # even waves do not depend on the cloud of a token
        wave = np.cos(m * away)
        assert abs(wave.mean() - q[m - 1]) < 5 * wave.std() / away.size**0.5


def test_tokens_at_rest_belong_to_the_middle_where_they_were_last():
    """Free tokens reach their own middle first with a probability that is linear in the angle."""
    away = np.abs(np.asarray(escape.at_rest(np.zeros_like, 0.3, jr.key(3), 1, 40_000))).ravel() / np.pi
    for power, wanted in ((1, 1 / 3), (2, 1 / 6)):
        one = away**power
        assert abs(one.mean() - wanted) < 5 * one.std() / 200


def test_the_force_of_many_tokens_is_the_double_loop():
    beta, theta = 4.0, np.random.default_rng(0).uniform(-np.pi, np.pi, (2, 9))
    modes = jnp.asarray(escape.kernel_modes(beta))
    found = escape.mean_force(jnp.asarray(theta), jnp.asarray(beta), modes)
    for one, angles in zip(found, theta, strict=True):
        wanted = [np.mean(np.exp(beta * (np.cos(angles - a) - 1)) * np.sin(angles - a)) for a in angles]
        np.testing.assert_allclose(one, wanted, atol=1e-7)


@pytest.mark.exhaustive
def test_runs_escape_after_the_passage_time():
    """The mean time at a high temperature is within five standard errors of the quadrature."""
    temperature = escape.barrier(4.0) / 0.5
    times = np.asarray(escape.passage_times(jnp.asarray(4.0), jnp.asarray(temperature), jr.key(0), 2000))
    wanted = escape.passage_time(escape.two_clusters(4.0), temperature)
    assert abs(times.mean() - wanted) < 5 * times.std() / 2000**0.5
    assert (times > 0).all() and times.dtype == jnp.float64


def test_the_middle_and_the_two_clouds_are_followed():
    """The middle and the means of both clouds agree with NumPy, for tokens at any place of either cloud."""
    turned = escape.middle(jnp.asarray([[0.3, 0.3 + np.pi], [-0.2, 3.0]]))
    np.testing.assert_allclose(turned, [0.6, np.angle(np.exp(-0.4j) + np.exp(6.0j))], atol=1e-12)
    rng = np.random.default_rng(3)
    theta, second = rng.uniform(-9, 9, (3, 7)), rng.random((3, 7)) < 0.4
    share, one, two = escape.centres(jnp.asarray(theta), jnp.asarray(second))
    for k in range(3):
        assert share[k] == pytest.approx(1 - second[k].mean())
        assert one[k] == pytest.approx(np.angle(np.exp(1j * theta[k][~second[k]]).sum()))
        assert two[k] == pytest.approx(np.angle(np.exp(1j * theta[k][second[k]]).sum()))


@pytest.mark.exhaustive
def test_the_noise_of_each_part_is_new():
    """Counts and distances of a run do not depend on the number of parts."""
    run = lambda parts: escape.cloud_passages(
        4.0, 0.05, jr.key(6), systems=2, tokens=64, window=12.0, parts=parts
    )  # fmt: skip
    one, two = run(1), run(2)
    np.testing.assert_array_equal(one.counts[0], two.counts.sum(0))
    assert one.counts.sum() > 0
    np.testing.assert_allclose(one.distances[-1], two.distances[-1], rtol=1e-9)


@pytest.mark.exhaustive
def test_what_passes_between_clouds_is_counted():
    """Shares change by the counts, and the counts of equal clouds are within five errors of the quadrature."""
    found = escape.cloud_passages(4.0, 0.024, jr.key(1), systems=3, tokens=400, window=60.0, parts=4)
    assert found.counts.shape == (4, 2, 3) and found.shares.shape == found.distances.shape == (5, 3)
    assert found.part == pytest.approx(15.0)
    moved = np.cumsum(found.counts[:, 1] - found.counts[:, 0], axis=0) / 400
    np.testing.assert_allclose(found.shares - 0.5, np.concatenate([np.zeros((1, 3)), moved]), atol=1e-12)
    assert np.abs(found.distances - np.pi).max() < 1
    wanted = 3 * 400 * 60 / escape.passage_time(escape.cloud(4.0, 0.024)[0], 0.024)
    assert abs(found.counts.sum() - wanted) < 5 * wanted**0.5
    expected = expected_passages(found, 0.024, 400)
    assert expected.shape == (4, 2, 3) and abs(expected.sum() - wanted) < 0.3 * wanted
    # The first part of the first system is computed by hand.
    rates = []
    for share, distance in zip(found.shares[:2, 0], found.distances[:2, 0], strict=True):
        one, two = escape.exit_times(4.0, 0.024, share, distance)
        rates.append((400 * share / one, 400 * (1 - share) / two))
    np.testing.assert_allclose(expected[0, :, 0], 15 * np.mean(rates, axis=0), rtol=1e-12)
    nobody = escape.Passages(found.counts[:1], np.ones((2, 3)), found.distances[:2], 15.0)
    assert np.isnan(expected_passages(nobody, 0.024, 400)).all()


def test_counts_of_clouds_are_those_of_a_loop():
    """Times and the excess of the smaller cloud are sums over parts; parts without a well count in neither."""
    rng = np.random.default_rng(4)
    t, exact = np.array([0.02, 0.024]), np.array([30.0, 20.0])
    shares = rng.uniform(0.3, 0.7, (PARTS + 1, 3))
    passages = tuple(escape.Passages(rng.integers(0, 9, (PARTS, 2, 3)), shares, shares, part) for part in (0.3, 0.2))
    expected = rng.uniform(1, 9, (2, PARTS, 2, 3))
    expected[0, 4, :, 1] = np.nan
    made = Clouds(16, t, exact, passages, expected)
    net, total, wanted = 0, 0, 0.0
    for k, one in enumerate(passages):
        counted, awaited, spent, fresh = 0, 0.0, 0.0, 0
        for part in range(PARTS):
            for system in range(3):
                left = one.counts[part, :, system]
                fresh += left.sum() if part < FRESH else 0
                if np.isnan(expected[k, part, 0, system]):
                    continue
                counted, spent = counted + left.sum(), spent + 16 * one.part
                awaited += expected[k, part, :, system].sum()
                small = int(shares[part, system] > 0.5)
                net, total = net + left[small] - left[1 - small], total + left.sum()
                wanted += expected[k, part, small, system] - expected[k, part, 1 - small, system]
        whole, quadrature = made.whole()
        assert whole.means[k] == pytest.approx(spent / counted) and quadrature[k] == pytest.approx(spent / awaited)
        assert whole.errors[k] == pytest.approx(whole.means[k] / counted**0.5)
        equal = made.equal()
        assert equal.means[k] == pytest.approx(16 * 3 * FRESH * one.part / fresh)
        assert equal.errors[k] == pytest.approx(equal.means[k] / fresh**0.5)
    assert made.net() == (net, pytest.approx(total**0.5), pytest.approx(wanted))


def test_slopes_are_those_of_a_line():
    t = np.array([0.1, 0.12, 0.2])
    times = 3 * np.exp(0.7 / t)
    found, error, exact = Times(t, times, 0.1 * times, times, t).slope()
    assert found == pytest.approx(0.7) == exact
    # For equal relative errors this is the error of least squares.
    assert error == pytest.approx(0.1 / np.sqrt(np.sum((1 / t - np.mean(1 / t)) ** 2)))
