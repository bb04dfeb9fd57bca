"""Infinitely many tokens: the equation of the coefficients against double loops, theory, and many tokens."""

import re
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.special import iv

import clusterjax as cjx
from tests.helpers import as_a_user, sphere_tokens
from tests.reference import densities


ACCURATE: Any = dict(stepsize_controller=dfx.PIDController(rtol=1e-10, atol=1e-12))
POINTS = {2: densities.circle_points(40), 3: densities.sphere_points(10)}
KINDS = {"SA": cjx.SoftmaxAttention, "USA": cjx.UnnormalisedAttention}


start = eqx.filter_jit(lambda field, density: field.from_density(density))
tail = eqx.filter_jit(lambda field, c: field.tail(c))
velocity = eqx.filter_jit(lambda field, c, t=0.0: field(t, c))


def lopsided(x):
    """A smooth density without a symmetry, which few degrees resolve."""
    return jnp.exp(0.7 * x[:, 0] + 0.4 * x[:, 1] * x[:, -1])


def uniform_density(x):
    return jnp.ones(len(x))


def plain(kind="USA", beta=2.0, d=2, degree=16, **options):
    return cjx.MeanField(KINDS[kind](beta), d=d, degree=degree, **options)


@pytest.mark.parametrize("d", (2, 3))
def test_harmonics_are_those_of_scipy_and_orthonormal(d):
    field, (points, shares) = plain(d=d, degree=6 if d == 2 else 4, beta=0.1), POINTS[d]
    found = np.asarray(jax.jit(jax.vmap(lambda x: field.to_coefficients(x[None])))(points))
    wanted = [[[densities.harmonic(x, *at) for at in row] for row in indices(found.shape[1:])] for x in points[::7]]
    np.testing.assert_allclose(found[::7], wanted, atol=1e-12)
    flat = found.reshape(len(points), -1)
    flat = flat[:, np.abs(flat).max(axis=0) > 0]
    assert flat.shape[1] == (13 if d == 2 else 25)
    np.testing.assert_allclose(flat.T @ (shares[:, None] * flat), np.eye(flat.shape[1]), atol=1e-12)


def indices(shape):
    return [[(row, column) for column in range(shape[1])] for row in range(shape[0])]


@pytest.mark.exhaustive_cases("2-SA-True-1.5", "2-USA-False-1.5", "3-SA-False--1.5")
@pytest.mark.parametrize(
    ("d", "kind", "given", "beta"),
    [(2, "SA", True, 1.5), (2, "USA", False, 1.5), (3, "SA", False, -1.5), (3, "USA", True, 1.5)],
)
def test_it_is_the_double_loop(d, kind, given, beta):
    """For any V, and B or none, the coefficients change as those of a fine grid of tokens with the density as
    masses."""
    rng, (points, shares) = np.random.default_rng(3), POINTS[d]
    value, form = rng.normal(size=(d, d)), 0.5 * rng.normal(size=(d, d)) if given else None
    more = {"offset": 0.3} if kind == "USA" else {}
    field = cjx.MeanField(KINDS[kind](beta, query_key=form, **more), value, d=d, degree=9, temperature=0.07)
    c = start(field, lopsided)
    masses = np.asarray(jax.jit(lambda c: field.density(c, jnp.asarray(points)))(c)) * field.basis.area * shares
    assert masses.sum() == pytest.approx(1, abs=1e-12)
    v = densities.velocity(points, masses, beta, value, form, kind == "SA", **more)
    found = np.asarray(velocity(field, c))
    for l, column in ((0, 0), (1, 0), (1, 1), (2, 0), (3, 1), (5, 0)) + (((2, 2), (3, 5), (4, 8)) if d == 3 else ()):
        wanted = densities.change(points, masses, v, 0.07, l, column)
        assert found[l, column] == pytest.approx(wanted, abs=3e-9), (l, column)
    assert found[0, 0] == 0


@pytest.mark.exhaustive_cases("2", "3")
@pytest.mark.parametrize("d", (2, 3))
def test_rates_around_the_uniform_density_are_those_of_theory(d):
    """The rates are l (l + d - 2) a_l(beta) / beta, divided by a_0 for softmax (oracle 1.5)."""
    for beta in (1.0, 9.0):
        a = np.array([iv(l + d / 2 - 1, beta) for l in range(21)]) * (1 if d == 2 else np.sqrt(np.pi / 2 / beta))
        l = np.arange(21)
        for kind, scale in (("USA", 1.0), ("SA", a[0])):
            field = plain(kind, beta, d, 20)
            uniform = start(field, uniform_density)
            # Each harmonic of the first column grows by itself: no harmonics are mixed.
            matrix = jax.jacfwd(lambda row, field=field, u=uniform: field(0.0, u.at[:, 0].set(row)))(uniform[:, 0])
            wanted = l * (l + d - 2) * a / beta / scale
            np.testing.assert_allclose(matrix[:, 0], np.diag(wanted), rtol=1e-10, atol=1e-10)
            assert np.abs(matrix[:, 1:]).max() < 1e-10
    assert plain("SA", 9.0, 2, 20)(0.0, uniform_with(plain("SA", 9.0, 2, 20), 4))[4, 0] == pytest.approx(
        1e-8 * 0.70449703, rel=1e-6
    )


def uniform_with(field, l):
    return start(field, uniform_density).at[l, 0].set(1e-8)


def test_ott_antonsen():
    """At beta = 0 a Poisson kernel, with coefficients r^l, remains one, and dr/dt = r (1 - r^2) / 2 (oracle E10)."""
    field, r = plain("SA", 0.0, 2, 48), 0.4
    c = start(field, lambda x: 1 / (1 - 2 * r * x[:, 0] + r**2))
    np.testing.assert_allclose(c[1:, 0], np.sqrt(2) * r ** np.arange(1, 49), atol=1e-12)
    np.testing.assert_allclose(velocity(field, c), np.arange(49)[:, None] * np.asarray(c) * (1 - r**2) / 2, atol=1e-11)
    assert float(field.order_parameter(c)) == pytest.approx(r) and float(field.lowest(c)) > 0


@pytest.mark.exhaustive_cases("3")
@pytest.mark.parametrize("d", (2, 3))
def test_the_free_energy_falls_at_the_rate_of_the_dissipation(d):
    points, shares = POINTS[d]

    @eqx.filter_jit
    def measures(field):
        c = field.from_density(lopsided)
        _, rate = jax.jvp(field.free_energy, (c,), (field(0.0, c),))
        return rate, field.dissipation(c), field.energy(c), field.entropy(c), field.density(c, jnp.asarray(points))

    field = cjx.MeanField(cjx.UnnormalisedAttention(4.0, offset=1.5), d=d, degree=24, temperature=0.2)
    rate, dissipation, energy, entropy, density = map(np.asarray, measures(field))
    assert -rate == pytest.approx(dissipation, rel=1e-10) and rate < 0
    # The energy is that of a fine grid of tokens whose masses are the density.
    masses = density * field.basis.area * shares
    of_tokens = cjx.interaction_energy(jnp.asarray(points), 4.0, masses=jnp.asarray(masses))
    assert energy == pytest.approx(float(of_tokens) * np.exp(-1.5), rel=1e-7)
    assert entropy == pytest.approx(-np.sum(masses * np.log(masses / shares)), rel=1e-6)


@pytest.mark.exhaustive_cases("0.5-0.9049769881", "0.9-0.5109125576")
@pytest.mark.parametrize(("share", "wanted"), [(0.9, 0.5109125576), (0.5, 0.9049769881)])
def test_tokens_gather_below_the_critical_temperature(share, wanted):
    """Below T_c = I_1(1) the order parameter is the exact one (oracles N1 and N3)."""
    field = plain(beta=1.0, degree=24, temperature=share * 0.565159103992)
    c0 = field.from_density(lambda x: 1 + 0.5 * x[:, 0])
    traj = cjx.simulate(field, c0, jnp.array([0.0, 400.0]), solver=cjx.Rodas5P())
    assert float(field.order_parameter(traj.x1)) == pytest.approx(wanted, abs=1e-9)
    assert bool(traj.stats["resolved"])


@pytest.mark.exhaustive_cases("2-4.0-2.439866288426")
@pytest.mark.parametrize(("d", "beta", "critical"), [(2, 4.0, 2.439866288426), (3, 4.0, 1.280359596046)])
def test_the_critical_temperature(d, beta, critical):
    for factor, sign in ((1 - 1e-9, 1), (1 + 1e-9, -1)):
        field = plain(beta=beta, d=d, temperature=factor * critical)
        uniform = np.array(start(field, uniform_density))
        uniform[1, 0] = 1e-3
        assert np.sign(velocity(field, uniform)[1, 0]) == sign


def test_a_density_that_steepens_ends_the_run_with_the_reason():
    field = plain("SA", 2.0, 2, 24)
    c0 = start(field, lopsided)
    ts = jnp.array([0.0, 1.0, 30.0])
    traj = cjx.simulate(field, c0, ts, throw=False)
    assert not bool(traj.stats["resolved"])
    assert re.search("steepened beyond the degree .* raise degree or temperature", traj.failure)
    assert traj.summary().startswith("coefficients of densities, 25 x 2, float64\n")
    assert 1 < float(traj.t1) < 15 and np.isnan(traj.xs[-1]).all() and np.isfinite(traj.xs[1]).all()
    # The tail has just reached the tolerance.
    assert 1e-5 < float(field.tail(traj.x1)) < 1e-3


@pytest.mark.exhaustive
def test_a_rough_start_may_become_four_times_as_rough():
    field = plain("SA", 2.0, 2, 24)
    rough = 0.004 * np.random.default_rng(5).normal(size=(24, 2))
    c0 = jnp.asarray(np.asarray(start(field, lopsided)) + np.pad(rough, ((1, 0), (0, 0))), float)
    before = float(tail(field, c0))
    assert before > 1e-3
    traj = cjx.simulate(field, c0, jnp.array([0.0, 1.0, 30.0]), throw=False)
    assert not bool(traj.stats["resolved"]) and 4 <= float(tail(field, traj.x1)) / before < 6


@pytest.mark.exhaustive
def test_an_event_of_the_caller_is_kept():
    field = plain("SA", 2.0, 2, 32)
    c0 = field.from_density(lopsided)
    event = dfx.Event(lambda t, y, args, **kwargs: field.order_parameter(y) > 0.5)
    traj = cjx.simulate(field, c0, jnp.array([0.0, 30.0]), event=event)
    assert bool(traj.stats["resolved"]) and float(field.order_parameter(traj.x1)) > 0.5
    assert dfx.is_event(traj.result)


@pytest.mark.exhaustive
def test_few_tokens_are_no_density():
    field = plain("SA", 2.0, 3, 16)
    c0 = field.to_coefficients(sphere_tokens(0, 9, 3))
    with as_a_user(), pytest.raises(ValueError, match=r"^x0 must be the coefficients of a density .*; take more .*\.$"):
        cjx.simulate(field, c0, jnp.array([0.0, 1.0]))
    smooth = field.smoothed(c0, 0.05)
    assert float(field.tail(smooth)) < 1e-5 and float(smooth[0, 0]) == pytest.approx(1)
    assert np.isfinite(cjx.simulate(field, smooth, jnp.array([0.0, 0.05])).x1).all()
    warm = plain("SA", 2.0, 3, 16, temperature=0.5)
    assert np.isfinite(cjx.simulate(warm, c0, jnp.array([0.0, 0.3])).x1).all()


@pytest.mark.exhaustive
@pytest.mark.parametrize("d", (2, 3))
def test_coefficients_of_tokens_are_means_with_masses(d):
    """Coefficients are means weighted by masses for repeated tokens, masses of zero and one token, in chunks too."""
    field, x = plain(d=d, degree=12), sphere_tokens(1, 7, d)
    masses = jnp.array([0.0, 1, 2, 0, 3, 0.5, 1])
    found = field.to_coefficients(x, masses)
    wanted = sum(m * field.to_coefficients(one[None]) for m, one in zip(masses, x, strict=True)) / 7.5
    np.testing.assert_allclose(found, wanted, atol=1e-14)
    heap = jnp.tile(x[:1], (5, 1))
    np.testing.assert_allclose(field.to_coefficients(3 * heap), field.to_coefficients(x[:1]), atol=1e-14)
    assert float(field.tail(found[...] * 0 + field.to_coefficients(x[:1]))) == pytest.approx(1)
    np.testing.assert_allclose(field.mean_token(found), masses @ x / 7.5, atol=1e-14)
    assert float(field.order_parameter(field.to_coefficients(x[:1]))) == pytest.approx(1)
    many = cjx.Sphere().sample(jr.key(2), 40_000, d)
    halves = (field.to_coefficients(many[:20_000]) + field.to_coefficients(many[20_000:])) / 2
    np.testing.assert_allclose(field.to_coefficients(many), halves, atol=1e-13)


@pytest.mark.parametrize("d", (2, 3))
def test_samples_have_the_density(d):
    field, n, points = plain(d=d, degree=12, beta=1.0), 4000, sphere_tokens(5, 6, d)
    density = lambda x: jnp.exp(1.5 * x[:, 0] + x[:, -1])

    @jax.jit
    def drawn(key):
        c = field.from_density(density)
        x = field.sample(c, key, n)
        # A squared harmonic has mean one in the uniform density, hence at most the largest ratio of the density to it.
        largest = jnp.sqrt(jnp.max(field.basis.values(12, c)))
        return x, (field.to_coefficients(x) - c)[1:4], largest, field.density(c, points) / density(points)

    x, errors, largest, ratio = map(np.asarray, drawn(jr.key(3)))
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, atol=1e-12)
    assert np.abs(errors).max() * np.sqrt(n) < 4.5 * largest
    np.testing.assert_array_equal(x, drawn(jr.key(3))[0])
    assert not np.array_equal(x, drawn(jr.key(4))[0])
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-6)


@pytest.mark.exhaustive
def test_more_tokens_come_nearer_as_the_root_of_their_number():
    field = plain("SA", 2.0, 2, 48)
    c0 = field.from_density(lopsided)
    exact = cjx.simulate(field, c0, jnp.array([0.0, 1.0]), **ACCURATE).x1[1:4]
    tokens = cjx.AttentionField(cjx.SoftmaxAttention(2.0))
    sizes, errors = (300, 3_000, 30_000), []
    for n in sizes:
        found = []
        for seed in range(16):
            x = cjx.simulate(tokens, field.sample(c0, jr.key(seed), n), jnp.array([0.0, 1.0])).x1
            found.append(field.to_coefficients(x)[1:4] - exact)
        errors.append(np.sqrt(np.mean(np.square(found))))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.05), (slope, errors)


@pytest.mark.exhaustive
def test_derivatives_batches_and_dtypes():
    c = plain("SA", 1.5, 2, 12).from_density(lopsided)

    def moved(beta):
        return cjx.MeanField(cjx.SoftmaxAttention(beta), d=2, degree=12, temperature=0.1)(0.0, c)

    betas = jnp.array([-0.5, 0.0, 2.0])
    found = jax.jit(jax.vmap(moved))(betas)
    np.testing.assert_allclose(found, [moved(beta) for beta in betas], atol=1e-14)
    _, slope = jax.jvp(moved, (jnp.asarray(1.5),), (jnp.asarray(1.0),))
    np.testing.assert_allclose(slope, (moved(1.5001) - moved(1.4999)) / 2e-4, atol=1e-7)
    single = plain("SA", 1.5, 2, 12, temperature=0.1)(0.0, c.astype(jnp.float32))
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, moved(1.5), atol=1e-5)


@pytest.mark.exhaustive
def test_a_run_is_differentiable_and_maps():
    ts = jnp.array([0.0, 0.5])

    def last(beta):
        one = cjx.MeanField(cjx.SoftmaxAttention(beta), d=2, degree=12, temperature=0.1)
        return one.order_parameter(cjx.simulate(one, one.from_density(lopsided), ts, **ACCURATE).x1)

    betas = jnp.array([0.5, 1.0, 2.0])
    np.testing.assert_allclose(jax.jit(jax.vmap(last))(betas), [last(beta) for beta in betas], atol=1e-9)
    slope = jax.grad(last)(jnp.asarray(1.5))
    assert float(slope) == pytest.approx(float(last(1.5001) - last(1.4999)) / 2e-4, rel=1e-5)


def test_parameters_may_depend_on_time():
    switch = cjx.PiecewiseConstant(np.array([0.0, 0.5]), np.stack([np.eye(2), -np.eye(2)]))
    field = cjx.MeanField(cjx.SoftmaxAttention(lambda t: 1 + t), switch, d=2, degree=12, temperature=lambda t: 0.1 + t)
    c = start(field, lopsided)
    for t, sign in ((0.2, 1), (0.8, -1)):
        constant = cjx.MeanField(cjx.SoftmaxAttention(1 + t), sign * np.eye(2), d=2, degree=12, temperature=0.1 + t)
        np.testing.assert_allclose(velocity(field, c, t), velocity(constant, c), atol=1e-14)


BAD = {
    "degree": (lambda: plain("SA", 9.0, 2, 8), "degree must be at least 16 for queries of length 9"),
    "degree for B": (
        lambda: cjx.MeanField(cjx.SoftmaxAttention(3.0, query_key=3 * jnp.eye(3)), d=3, degree=8), "degree must be",
    ),
    "d": (lambda: plain(d=4), "d must be an integer from 2 to 3"),
    "temperature": (lambda: plain(temperature=-0.1), "temperature must not be negative"),
    "no temperature": (lambda: plain(temperature=None), "temperature must be a number"),
    "matrix of temperatures": (lambda: plain(temperature=jnp.ones(2)), "temperature must be a number"),
    "mask": (lambda: cjx.MeanField(cjx.SoftmaxAttention(1.0, mask=cjx.CausalMask()), d=2, degree=8), "attention.mask"),
    "attention": (lambda: cjx.MeanField(cjx.HardmaxAttention(), d=2, degree=8), "attention must be SoftmaxAttention"),
    "value": (lambda: cjx.MeanField(cjx.SoftmaxAttention(1.0), jnp.eye(3), d=2, degree=8), "value must act on tokens"),
    "query_key": (
        lambda: cjx.MeanField(cjx.SoftmaxAttention(1.0, query_key=jnp.eye(3)), d=2, degree=8), "query_key must act",
    ),
    "tolerance": (lambda: plain(tolerance=0), "tolerance must be"),
    "tokens": (lambda: cjx.simulate(plain(), sphere_tokens(0, 5, 2), jnp.array([0.0, 1.0])), "x0 must hold the coeff"),
    "noise": (
        lambda: cjx.simulate(
            plain(), plain().from_density(lopsided), jnp.array([0.0, 1.0]), noise=0.1, key=jr.key(0), dt0=0.1
        ),
        "noise must be None with MeanField",
    ),
    "dimension of tokens": (lambda: plain().to_coefficients(sphere_tokens(0, 5, 3)), "x must be of dimension 2"),
    "masses": (lambda: plain().to_coefficients(sphere_tokens(0, 2, 2), jnp.zeros(2)), "masses must be finite"),
    "density": (lambda: plain().from_density(lambda x: -jnp.ones(len(x))), "density must have a positive integral"),
    "gradient": (lambda: plain("SA").dissipation(plain().from_density(lopsided)), "attention must be Unnormalised"),
    "time": (lambda: plain().smoothed(plain().from_density(lopsided), -1.0), "time must be"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "words"), BAD.values(), ids=BAD)
def test_bad_arguments(make, words):
    with as_a_user(), pytest.raises(ValueError, match=f"^{words}.*; .*\\.$"):
        make()


@pytest.mark.exhaustive
def test_mean_fields_add():
    """The velocities of two mean fields add, and a run of the sum checks that its density is resolved."""
    one, two = plain("SA", 1.0, temperature=0.1), plain("USA", 2.0, temperature=0.1)
    c = one.from_density(lopsided)
    np.testing.assert_allclose((one + two)(0.0, c), one(0.0, c) + two(0.0, c))
    assert "resolved" in cjx.simulate(one + two, c, jnp.array([0.0, 0.2])).stats
