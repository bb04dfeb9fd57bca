"""What the experiment on escapes measures: potentials, quadrature and runs against NumPy, and claims that can fail."""

from dataclasses import replace

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.integrate import quad

import clusterjax as cjx
from clusterjax.experiments.kramers_escape import particles, theory
from clusterjax.experiments.kramers_escape.claims import caption_of, claims_of
from clusterjax.experiments.kramers_escape.measure import (
    BETAS,
    CLOUD_BETA,
    CLOUD_TEMPERATURES,
    RATIOS,
    Parameters,
    Results,
    Times,
    times_of,
)
from clusterjax.experiments.kramers_escape.panels import draw


def loop(theta, angles, beta):
    """The potential of tokens at these angles, with equal masses."""
    return -sum(np.exp(beta * (np.cos(theta - a) - 1)) for a in angles) / (beta * len(angles))


@pytest.mark.parametrize("beta", (4.0, 9.0))
def test_the_potential_is_that_of_two_tokens(beta):
    theta = np.linspace(-3, 3, 13)
    potential = theory.two_clusters(beta)
    wanted = loop(theta, (0, np.pi), beta)
    np.testing.assert_allclose(potential(theta), wanted, rtol=1e-12)
    height = loop(np.pi / 2, (0, np.pi), beta) - loop(0, (0, np.pi), beta)
    assert theory.barrier(beta) == pytest.approx(height, rel=1e-10)
    h = 1e-4
    second = [(potential(at + h) - 2 * potential(at) + potential(at - h)) / h**2 for at in (0.0, np.pi / 2)]
    np.testing.assert_allclose(theory.curvatures(beta), (second[0], -second[1]), rtol=1e-3)
    # The force is the velocity of the library: a token without mass between two tokens.
    force = np.asarray(particles.force(jnp.asarray(theta), jnp.asarray(beta)))
    np.testing.assert_allclose(force, -(potential(theta + h) - potential(theta - h)) / (2 * h), atol=1e-7)
    field = cjx.AttentionField(
        cjx.UnnormalisedAttention(beta, offset=beta), masses=jnp.asarray([1.0, 1.0, 1e-14])
    )  # fmt: skip
    x = jnp.asarray([[1.0, 0.0], [-1.0, 0.0], [np.cos(1.2), np.sin(1.2)]])
    along = jnp.asarray([-np.sin(1.2), np.cos(1.2)])
    found = float(particles.force(jnp.asarray(1.2), jnp.asarray(beta)))
    assert float(jnp.sum(field(0.0, x)[2] * along)) == pytest.approx(found, rel=1e-10)


@pytest.mark.parametrize(("beta", "ratio"), [(4.0, 1.5), (9.0, 4.0)])
def test_passage_times_solve_the_equation_of_the_generator(beta, ratio):
    """T u'' - U' u' = -1 with u' = 0 at 0 and u = 0 at pi, by differences, and the double integral by SciPy."""
    temperature, potential = theory.barrier(beta) / ratio, theory.two_clusters(beta)
    found = theory.passage_time(potential, temperature)
    n = 4000
    theta, h = np.linspace(0, np.pi, n + 1), np.pi / n
    # In the form (e^{-U/T} T u')' = -e^{-U/T}, fluxes at the middles.
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
    """Without a force the time is pi^2 / (2 T); where it is very cold it is Kramers', and not before."""
    assert theory.passage_time(np.zeros_like, 0.3) == pytest.approx(np.pi**2 / 0.6, rel=1e-6)
    for beta in BETAS:
        cold, exponent = theory.passage(theory.two_clusters(beta), theory.barrier(beta) / 50_000)
        assert exponent == pytest.approx(50_000, rel=1e-9)
        assert cold / theory.kramers_prefactor(beta) == pytest.approx(1, abs=0.02)
    # One barrier of two parabolas: 2 pi / sqrt(product of curvatures), of which there are two.
    well, top = theory.curvatures(4.0)
    assert theory.kramers_prefactor(4.0) == pytest.approx(2 * np.pi / np.sqrt(well * top) / 2)


def test_clouds_are_stationary_in_their_own_potential():
    beta, temperature = 4.0, 0.02
    potential, q = theory.cloud(beta, temperature)
    theta = 2 * np.pi * (np.arange(400) + 0.5) / 400
    density = np.exp(-potential(theta) / temperature)
    density /= density.sum()
    pairs = np.exp(beta * (np.cos(theta[:, None] - theta[None]) - 1))
    own = -(pairs @ density) / beta
    change = potential(theta) - own
    np.testing.assert_allclose(change, change.mean(), atol=1e-8)
    assert q[0] == q[2] == 0 < q[3] < q[1] < 1
    # Narrow clouds where it is cold: those of tokens that coincide.
    cold, _ = theory.cloud(beta, 1e-4)
    height = float(cold(np.array(np.pi / 2)) - cold(np.array(0.0)))
    assert height == pytest.approx(theory.barrier(beta), rel=2e-3)
    with pytest.raises(RuntimeError, match="no two clouds were found"):
        theory.cloud(beta, float("nan"))


def test_the_force_of_many_tokens_is_the_double_loop():
    beta, theta = 4.0, np.random.default_rng(0).uniform(-np.pi, np.pi, (2, 9))
    modes = jnp.asarray(theory.kernel_modes(beta))
    found = particles.mean_force(jnp.asarray(theta), jnp.asarray(beta), modes)
    for one, angles in zip(found, theta, strict=True):
        wanted = [np.mean(np.exp(beta * (np.cos(b - a) - 1)) * np.sin(b - a)) for b in [angles] for a in angles]
        wanted = [np.mean(np.exp(beta * (np.cos(angles - a) - 1)) * np.sin(angles - a)) for a in angles]
        np.testing.assert_allclose(one, wanted, atol=1e-7)


def test_runs_escape_after_the_passage_time():
    """Hot, so that it is soon: five standard errors of many tokens; and the two clouds pass their tokens on."""
    temperature = theory.barrier(4.0) / 0.5
    times = np.asarray(particles.passage_times(jnp.asarray(4.0), jnp.asarray(temperature), jr.key(0), 2000))
    wanted = theory.passage_time(theory.two_clusters(4.0), temperature)
    assert abs(times.mean() - wanted) < 5 * times.std() / 2000**0.5
    assert (times > 0).all() and times.dtype == jnp.float64


def test_the_middle_of_two_clouds_is_followed():
    """Without noise clouds at rest stay; tokens that are turned through pi are counted, and turning alone is not."""
    turned = particles.middle(jnp.asarray([[0.3, 0.3 + np.pi], [-0.2, 3.0]]))
    np.testing.assert_allclose(turned, [0.6, np.angle(np.exp(-0.4j) + np.exp(6.0j))], atol=1e-12)
    found = particles.cloud_times(4.0, 0.06, jr.key(1), systems=2, tokens=200, width=0.3, window=40.0)
    free = theory.passage_time(theory.two_clusters(4.0), 0.06)
    # Hotter than two clouds last: tokens pass at a rate between that of a flat potential and that of fixed clusters.
    assert found.shape == (2,) and (np.pi**2 / 0.12 / 2 < found).all() and (found < 2 * free).all()


def made(**changes):
    """Results as theory has them."""
    rng = np.random.default_rng(1)
    held, coldest = {}, {}
    for beta in BETAS:
        each = [np.array(1.0)] * len(RATIOS)
        for k, ratio in enumerate(RATIOS):
            drawn = -np.log((np.arange(2000) + 0.5) / 2000)
            each[k] = rng.permutation(drawn) / drawn.mean() * theory.passage_time(
                theory.two_clusters(beta), theory.barrier(beta) / ratio
            )  # fmt: skip
        held[beta], coldest[beta] = times_of(beta, each), np.sort(each[-1])
    t = np.array(CLOUD_TEMPERATURES)
    exact = np.array([theory.passage_time(theory.cloud(CLOUD_BETA, one)[0], one) for one in t])
    clouds = Times(t, exact * 1.01, exact * 0.02, exact, np.full(len(t), np.nan))
    return replace(Results(Parameters(), 2000, 8, held, coldest, clouds, dict.fromkeys(BETAS, 1.01)), **changes)


def test_each_claim_can_fail():
    right = made()
    claims = claims_of(right)
    # Kramers' formula is off where the barrier is flat, by the quadrature itself.
    assert [place for place, claim in enumerate(claims) if not claim.holds] == [3]
    assert "since the barrier is flat" in caption_of(right, claims)
    scaled = lambda one, factor: replace(one, means=one.means * factor)
    four = right.held[4.0]
    spoiled = (
        ({"held": {**right.held, 4.0: scaled(four, 1.08)}}, {0, 3}),
        ({"held": {**right.held, 4.0: scaled(four, np.array([0.8, 0.9, 1, 1.2]))}}, {0, 1, 3}),
        ({"limits": {4.0: 1.0, 6.0: 1.04}}, {2, 3}),
        ({"held": {4.0: four}}, set()),
        ({"held": {**right.held, 4.0: replace(four, spread=four.spread * 0.9)}}, {3, 4}),
        ({"clouds": scaled(right.clouds, 1.25)}, {3, 5}),
        ({"clouds": scaled(right.clouds, np.array([0.9, 0.95, 1.05, 1.1]))}, {3, 6}),
    )
    for changes, wanted in spoiled:
        wrong = claims_of(made(**changes))
        assert {place for place, claim in enumerate(wrong) if not claim.holds} == wanted, changes


def test_slopes_are_those_of_a_line():
    t = np.array([0.1, 0.12, 0.2])
    times = 3 * np.exp(0.7 / t)
    found, error, exact = Times(t, times, 0.1 * times, times, t).slope()
    assert found == pytest.approx(0.7) == exact
    # Of equal relative errors, the error of least squares.
    assert error == pytest.approx(0.1 / np.sqrt(np.sum((1 / t - np.mean(1 / t)) ** 2)))


def test_the_picture_is_drawn():
    assert len(draw(made()).axes) == 4
