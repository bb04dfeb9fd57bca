"""`CausalMeanField`: the linear equation of correlations, one law for all places, particles, and its contract."""

import diffrax as dfx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import i1

import clusterjax as cjx


PRECISE = dfx.PIDController(rtol=1e-10, atol=1e-14)


def softmax(rate, beta=1.0):
    position = None if rate is None else cjx.Decay(rate)
    return cjx.SoftmaxAttention(beta, mask=cjx.CausalMask(), position=position)


def unnormalised(rate, beta=1.0):
    return cjx.UnnormalisedAttention(beta, mask=cjx.CausalMask(), position=cjx.Decay(rate))


@pytest.mark.exhaustive_cases("0.0")
@pytest.mark.parametrize("rate", (0.0, 1.0, -2.0))
def test_small_perturbations_follow_the_bessel_function(rate):
    """2605.09213: at s = 1 a perturbation f(s) becomes f(1) + the integral of the influence of s times f(s)."""
    at, size = 1.0, 1e-6
    growth = cjx.uniform_growth_rates(1.0, 2, 1)[1]
    f = lambda s: np.cos(3 * s) + s

    def influence(s):
        share = np.expm1(rate * s) / np.expm1(rate) if rate else s
        slope = rate * np.exp(rate * s) / np.expm1(rate) if rate else 1.0
        w = -np.log(share)
        return slope * np.sqrt(at / w) * i1(2 * np.sqrt(at * w))

    field = cjx.CausalMeanField(softmax(rate), degree=12, places=16)
    c0 = field.from_density(lambda x, s: 1 + size * (jnp.cos(3 * s) + s) * x[:, 0])
    run = cjx.simulate(field, c0, jnp.array([0.0, at / growth]), stepsize_controller=PRECISE)
    # The substitution s = r^2 makes the logarithmic peak at 0 smooth.
    expected = f(1.0) + quad(lambda r: 2 * r * influence(r * r) * f(r * r), 0, 1)[0]
    assert float(field.mean_tokens(run.x1, jnp.ones(1))[0, 0]) / (size / 2) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("rate", (0.5, 6.0, -3.0))
def test_averages_are_integrals(rate):
    """Averages of powers of s are integrals; in unnormalised attention they are divided by s, as row i is by i."""
    for attention, normalised in ((softmax(rate), True), (unnormalised(rate), False)):
        field = cjx.CausalMeanField(attention, degree=12, places=12)
        for power in (0, 1, 5):
            got = field.averages() @ field.nodes**power
            for s, value in zip(field.nodes, got, strict=True):
                weight = lambda r, s=s: np.exp(-rate * (s - r))
                above = quad(lambda r: weight(r) * r**power, 0, s)[0]  # noqa: B023
                assert value == pytest.approx(above / (quad(weight, 0, s)[0] if normalised else s), abs=1e-9)


@pytest.mark.exhaustive_cases("None")
@pytest.mark.parametrize("rate", (None, 2.0))
def test_one_law_for_all_places_stays_one_law(rate):
    density = lambda x: 1 + 0.3 * x[:, 0] + 0.2 * x[:, 0] * x[:, 1]
    field = cjx.CausalMeanField(softmax(rate), jnp.array([[1.0, 0.5], [-0.5, 1.0]]), degree=20, places=5)
    plain = cjx.MeanField(cjx.SoftmaxAttention(1.0), jnp.array([[1.0, 0.5], [-0.5, 1.0]]), d=2, degree=20)
    ts = jnp.array([0.0, 1.5])
    got = cjx.simulate(field, field.from_density(lambda x, s: density(x)), ts, stepsize_controller=PRECISE).x1
    expected = cjx.simulate(plain, plain.from_density(density), ts, stepsize_controller=PRECISE).x1
    for s in (0.0, 0.3, 1.0):
        np.testing.assert_allclose(field.law(got, s), expected, atol=1e-9)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", (softmax, unnormalised))
def test_particles_have_this_limit(kind):
    """The means of tokens move as the field by Euler steps; 24 tokens at each of 32 places sample the first laws
    well."""
    rate, beta, count, each, starts, t = 1.0, 1.0, 32, 24, 16, 1.2
    tilt = lambda s: 0.9 * (1 - s)
    field = cjx.CausalMeanField(kind(rate, beta), degree=40, places=12)
    run = cjx.simulate(field, field.from_density(lambda x, s: 1 + tilt(s) * x[:, 0]), jnp.array([0.0, t]))
    rng, index = np.random.default_rng(0), np.repeat(np.arange(count), each)
    places = (index + 0.5) / count
    theta, grid = np.empty((starts, count * each)), np.linspace(-np.pi, np.pi, 2001)
    for i, s in enumerate(places):
        # The distribution function (angle + tilt sin(angle) + pi) / 2 pi is inverted on a grid.
        theta[:, i] = np.interp(rng.uniform(size=starts), (grid + tilt(s) * np.sin(grid) + np.pi) / (2 * np.pi), grid)
    # Half of the tokens at the same place count as earlier tokens.
    share = np.where(index[:, None] > index, 1.0, np.where(index[:, None] == index, 0.5, 0.0))
    before = share * np.exp(-rate * np.abs(places[:, None] - places))
    first = theta.copy()
    for _ in range(40):
        for one in theta:
            gaps = one[None, :] - one[:, None]
            weights = before * np.exp(beta * np.cos(gaps))
            one += t / 40 * (weights * np.sin(gaps)).sum(-1) / (weights if kind is softmax else share).sum(-1)
    for low, high in ((0.0, 0.25), (0.75, 1.0)):
        part = (places >= low) & (places < high)
        # Movements are compared, since the means have the sampling error of the start.
        moved = (np.cos(theta[:, part]) - np.cos(first[:, part])).mean(1)
        after = np.asarray(field.mean_tokens(run.x1, jnp.asarray(places[part]))[:, 0]).mean()
        expected = after - np.mean(tilt(places[part])) / 2
        error = moved.std(ddof=1) / np.sqrt(starts)
        assert abs(moved.mean() - expected) < 4 * error + 0.005 and error < 0.01
        assert expected > 0.1


@pytest.mark.exhaustive
def test_derivatives_dtypes_and_batches():
    def last(rate):
        field = cjx.CausalMeanField(softmax(rate), degree=8, places=6)
        c0 = field.from_density(lambda x, s: 1 + 0.3 * (1 - 2 * s) * x[:, 0])
        run = cjx.simulate(field, c0, jnp.array([0.0, 1.0]), stepsize_controller=PRECISE)
        return field.mean_tokens(run.x1, jnp.ones(1))[0, 0]

    rate, step = jnp.asarray(1.0), 1e-4
    slope = (last(rate + step) - last(rate - step)) / (2 * step)
    assert float(jax.grad(last)(rate)) == pytest.approx(float(slope), rel=1e-6) and abs(slope) > 1e-3
    rates = jnp.array([0.5, 1.0])
    np.testing.assert_allclose(jax.vmap(last)(rates), [last(rate) for rate in rates], rtol=1e-9)
    field = cjx.CausalMeanField(softmax(1.0), degree=8, places=6)
    c = field.from_density(lambda x, s: 1 + 0.3 * s * x[:, 0]).astype(jnp.float32)
    assert field(0.0, c).dtype == jnp.float32
    np.testing.assert_allclose(field(0.0, c), field(0.0, c.astype(jnp.float64)), atol=1e-6)


@pytest.mark.exhaustive
def test_noise_smooths_each_law():
    field = cjx.CausalMeanField(softmax(1.0), jnp.zeros((2, 2)), degree=8, places=4, temperature=0.3)
    c0 = field.from_density(lambda x, s: 1 + s * (x[:, 0] ** 2 - 0.5))
    run = cjx.simulate(field, c0, jnp.array([0.0, 1.0]), stepsize_controller=PRECISE)
    np.testing.assert_allclose(field.law(run.x1, 0.7)[2, 0], np.exp(-4 * 0.3) * field.law(c0, 0.7)[2, 0], rtol=1e-7)
    with pytest.raises(ValueError, match="noise must be None"):
        cjx.simulate(field, c0, jnp.array([0.0, 1.0]), noise=0.1, key=jax.random.key(0), dt0=0.1)


def test_laws_that_steepen_end_the_run():
    field = cjx.CausalMeanField(softmax(1.0, 4.0), degree=12, places=6)
    c0 = field.from_density(lambda x, s: 1 + 0.5 * x[:, 0])
    run = cjx.simulate(field, c0, jnp.array([0.0, 50.0]), throw=False)
    assert not bool(run.stats["resolved"]) and float(run.t1) < 20
    # The tail is that of the worst law: here one law has a coefficient of the highest degree.
    rough = c0.at[2, -1].set(0.1)
    assert float(field.tail(c0)) < 1e-12 and float(field.tail(rough)) == pytest.approx(0.1 / 2**0.5)


def test_densities_come_back():
    field = cjx.CausalMeanField(softmax(1.0), degree=12, places=8)
    density = lambda x, s: (1 + 0.5 * s**2 * x[:, 1]) / (2 * jnp.pi)
    points = jnp.stack([jnp.cos(jnp.arange(5.0)), jnp.sin(jnp.arange(5.0))], axis=1)
    for s in (0.0, 0.37, 1.0):
        got = field.density(field.from_density(density), points, s)
        np.testing.assert_allclose(got, density(points, s), atol=1e-12)


@pytest.mark.parametrize(
    ("build", "message"),
    (
        (lambda: cjx.CausalMeanField(cjx.SoftmaxAttention(1.0), degree=8, places=4), "must be CausalMask"),
        (lambda: cjx.CausalMeanField(cjx.HardmaxAttention(), degree=8, places=4), "SoftmaxAttention or Unnorm"),
        (
            lambda: cjx.CausalMeanField(
                cjx.SoftmaxAttention(1.0, mask=cjx.CausalMask(), position=cjx.ALiBi(0.1)), degree=8, places=4
            ),
            "must be Decay or None, but it is ALiBi",
        ),
        (lambda: cjx.CausalMeanField(softmax(9.0), degree=8, places=8), "places must be at least the rate"),
        (lambda: cjx.CausalMeanField(softmax(1.0), degree=8, places=1), "places must"),
        (
            lambda: cjx.CausalMeanField(softmax(1.0), degree=8, places=4)(0.0, jnp.ones((4, 17))),
            r"x must hold a row of coefficients for each place, \(4, 18\)",
        ),
        (
            lambda: cjx.time_to_cluster(
                cjx.CausalMeanField(softmax(1.0), degree=8, places=4), jnp.ones((4, 18)), 0.1, 1.0
            ),
            "it is a CausalMeanField",
        ),
    ),
)  # fmt: skip
def test_errors(build, message):
    with pytest.raises(ValueError, match=message):
        build()
