"""The branch of stationary densities under noise: theory, sums over pairs, and the Jacobian of the mean field."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from scipy.special import eval_gegenbauer, ive

import clusterjax as cjx
from clusterjax._base.numerics import double_precision
from clusterjax.phase import _branch as _zonal
from clusterjax.phase._branch import growth
from tests.helpers import as_a_user
from tests.reference import stationary as reference, zonal_branch


ANY: Any = cjx
USA, SA = cjx.UnnormalisedAttention, cjx.SoftmaxAttention
# Oracle N3: beta, T_x / T_c, T_f / T_c, r_x.
FIRST_ORDER = ((3.0, 1.00885210, 1.011439, 0.4815), (4.0, 1.04695937, 1.058849, 0.6688),
               (5.0, 1.09301266, 1.114774, 0.7480), (9.0, 1.26930040, 1.325768, 0.8588))  # fmt: skip


@pytest.mark.parametrize("d", (2, 3, 4, 8))
def test_harmonics_of_each_order_are_orthonormal_and_have_these_derivatives(d):
    z, weights = _zonal.nodes(64, d)
    for order in range(2 if d == 2 else 3):
        values, along, across = _zonal.table(64, 6, d, order)
        np.testing.assert_allclose(values.T @ (weights[:, None] * values), np.eye(7 - order), atol=1e-12)
        # Both parts of the gradient give the rates of the Laplacian.
        energies = along.T @ (weights[:, None] * along) + across.T @ (weights[:, None] * across)
        l = np.arange(order, 7)
        np.testing.assert_allclose(energies, np.diag(l * (l + d - 2.0)), atol=1e-10)
        index = d / 2 - 1 + order
        # Chebyshev's polynomials of the first kind are the limit for the index 0.
        known = np.cos(5 * np.arccos(z)) if index == 0 else eval_gegenbauer(5 - order, index, z)
        wanted = np.sqrt(1 - z * z) ** order * known
        np.testing.assert_allclose(values[:, 5 - order] / values[0, 5 - order], wanted / wanted[0], atol=1e-10)


def limit_and_curvature(found):
    """T / T_c at r = 0, and half its second derivative, from three points of an even function."""
    square, ratio = found.order_parameters[:3] ** 2, found.temperatures[:3] / found.critical_temperature
    limit, curvature = np.linalg.solve(np.stack([square**k for k in range(3)], 1), ratio)[:2]
    return limit, curvature


@pytest.mark.exhaustive_cases("2-1.0-0.565159103992", "2-9.0-114.5460802797")
@pytest.mark.parametrize(("d", "beta", "critical"), [
    (2, 1.0, 0.565159103992), (2, 4.0, 2.439866288426), (2, 9.0, 114.5460802797), (3, 1.0, 0.367879441171),
    (3, 4.0, 1.280359596046),
])  # fmt: skip
def test_the_branch_begins_at_the_critical_temperature(d, beta, critical):
    """The critical temperature is that of N1, and is also the limit of the branch as r tends to zero."""
    found = cjx.phase.branch(USA(beta), d, order_parameters=[0.01, 0.02, 0.03])
    assert found.critical_temperature == pytest.approx(critical, rel=1e-11)
    assert limit_and_curvature(found)[0] == pytest.approx(1, abs=1e-8)
    scaled = cjx.phase.branch(USA(beta, offset=beta), d, order_parameters=[0.01, 0.02, 0.03])
    np.testing.assert_allclose(scaled.temperatures, found.temperatures * np.exp(-beta), rtol=1e-9)
    assert cjx.phase.branch(SA(beta), d, order_parameters=[0.01, 0.02, 0.03]).critical_temperature == pytest.approx(
        ive(d / 2, beta) / ive(d / 2 - 1, beta) / beta, rel=1e-11
    )


def test_a_beta_that_is_not_positive_has_a_branch():
    """T_c = I_1(β) / (β I_0(β)) on the circle for either sign, and the mean of z², 1/2, for beta = 0."""
    at = lambda beta: cjx.phase.branch(SA(beta), 2, order_parameters=[0.01, 0.02, 0.03]).critical_temperature
    assert at(-3.0) == pytest.approx(ive(1, 3.0) / ive(0, 3.0) / 3, rel=1e-11)
    assert at(0.0) == pytest.approx(0.5, rel=1e-12)


@pytest.mark.parametrize(("d", "least"), [
    (2, 2.446918311289), (3, 1.816154525436), (4, 1.575257150092), (8, 1.266553024521), (16, 1.128971575483),
])  # fmt: skip
def test_the_transition_is_continuous_up_to_this_beta(d, least):
    """N2: T falls with r at first below this beta, and rises above it."""
    at = lambda beta: limit_and_curvature(cjx.phase.branch(USA(beta), d, order_parameters=[0.01, 0.02, 0.03]))[1]
    low, high = at(least - 0.01), at(least + 0.01)
    assert low < 0 < high
    # The root of the line through both; its curvature leaves an error of the square of .01.
    assert least - 0.01 + 0.02 * low / (low - high) == pytest.approx(least, abs=2e-5)


def test_order_parameters_below_the_critical_temperature():
    """Temperatures are those of N3, for beta = 1 on the circle."""
    rs = [0.0540480935, 0.1700450924, 0.5109125576, 0.9049769881]
    found = cjx.phase.branch(USA(1.0), 2, order_parameters=rs)
    np.testing.assert_allclose(found.temperatures / found.critical_temperature, [0.999, 0.99, 0.9, 0.5], atol=2e-10)
    assert found.continuous and found.fold is None and found.coexistence is None and found.stable.all()
    assert found.free_energies is not None and (np.diff(found.free_energies) < 0).all() and found.free_energies[0] < 0


@pytest.mark.exhaustive_cases(
    "3.0-1.0088521-1.011439-0.4815", "5.0-1.09301266-1.114774-0.748", "9.0-1.2693004-1.325768-0.8588"
)
@pytest.mark.parametrize(("beta", "equal", "fold", "r"), FIRST_ORDER)
def test_folds_and_equal_free_energies(beta, equal, fold, r):
    """Values are those of N3, whose fold is the largest temperature of a table, and so a little below."""
    found = cjx.phase.branch(USA(beta), 2)
    assert not found.continuous and found.fold is not None and found.coexistence is not None
    assert found.coexistence.temperature / found.critical_temperature == pytest.approx(equal, abs=1e-8)
    assert found.coexistence.order_parameter == pytest.approx(r, abs=5e-5)
    assert 0 <= found.fold.temperature / found.critical_temperature - fold < 5e-5
    # Points are stable beyond the fold and not before, where no perturbation of another symmetry grows.
    well = found.order_parameters < 0.9
    beyond = found.order_parameters > found.fold.order_parameter
    np.testing.assert_array_equal(found.stable[well], beyond[well])
    at_fold = cjx.phase.branch(USA(beta), 2, order_parameters=found.fold.order_parameter * np.array([0.3, 0.6, 1.0]))
    assert at_fold.growth_rates[-1] == pytest.approx(0, abs=1e-6 * found.critical_temperature)


@pytest.mark.parametrize(
    ("d", "kind", "beta"), [(2, USA, 4.0), (3, SA, 6.0), (5, USA, 2.0), (3, SA, -2.0), (2, USA, -3.0)]
)
def test_points_are_stationary_by_sums_over_pairs(d, kind, beta):
    found = cjx.phase.branch(kind(beta), d, order_parameters=np.linspace(0.1, 0.6, 21))
    z, shares = np.polynomial.legendre.leggauss(48)
    z, shares = (np.cos(np.pi * (np.arange(48) + 0.5) / 48), np.ones(48)) if d == 2 else (z, shares)
    shares = shares * (1 - z * z) ** max((d - 3) / 2, 0)
    shares /= shares.sum()
    numbers = np.array([cjx.phase._branch.number_of_harmonics(l, d) for l in range(1, 33)], float)
    index = d / 2 - 1
    polynomial = lambda l: np.cos(l * np.arccos(z)) if d == 2 else (
        eval_gegenbauer(l, index, z) / eval_gegenbauer(l, index, 1.0)
    )  # fmt: skip
    for k in (4, 20):
        density = 1 + sum(
            n * m * polynomial(l) for l, (n, m) in enumerate(zip(numbers, found.moments[k], strict=True), 1)
        )
        wanted = reference.stationary_density(z, shares, density, beta, found.temperatures[k], d, kind is SA)
        np.testing.assert_allclose(density, wanted, rtol=1e-7, atol=1e-7)


RISING = np.linspace(0.1, 0.6, 6)
# Each kernel comes with its integral; the cubic kernel is negative at -1.
QUARTIC = (lambda s: (1 + s) ** 4, lambda s: (1 + s) ** 5 / 5)
CUBIC = (lambda s: 1 + s / 2 - 0.3 * s**2 + 0.4 * s**3, lambda s: s + s**2 / 4 - 0.1 * s**3 + 0.1 * s**4)


@pytest.mark.exhaustive_cases("1.0-2-UnnormalisedAttention", "4.0-2-SoftmaxAttention", "3.0-3-SoftmaxAttention")
@pytest.mark.parametrize(
    ("beta", "d", "kind"), [(4.0, 2, USA), (4.0, 2, SA), (1.0, 2, USA), (3.0, 3, SA), (2.0, 5, USA), (2.0, 5, SA)]
)
def test_the_kernel_of_an_exponential_has_the_branch_of_attention(beta, d, kind):
    """The branch is the same, also if the parameter of the kernel is in float32."""
    expected = cjx.phase.branch(kind(beta), d, order_parameters=RISING)
    with jax.numpy_dtype_promotion("standard"):
        kernel = cjx.KernelAttention(jtu.Partial(lambda b, s: jnp.exp(b * s), jnp.float32(beta)), normalise=kind is SA)
        found = cjx.phase.branch(kernel, d, order_parameters=RISING)
    scale = expected.critical_temperature
    assert found.critical_temperature == pytest.approx(scale, rel=1e-12)
    np.testing.assert_allclose(found.temperatures, expected.temperatures, rtol=1e-9)
    np.testing.assert_allclose(found.moments, expected.moments, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.growth_rates, expected.growth_rates, rtol=0, atol=1e-9 * scale)
    assert (found.fold is None) == (expected.fold is None) and (found.free_energies is None) == (kind is SA)
    if found.fold is not None and expected.fold is not None:
        np.testing.assert_allclose(found.fold, expected.fold, rtol=1e-9)
    if kind is USA:
        np.testing.assert_allclose(found.free_energies, expected.free_energies, rtol=0, atol=1e-9 * scale)


@pytest.mark.exhaustive_cases(
    "quartic, normalised-3", "quartic, normalised-5", "quartic-3", "cubic-2", "quartic, normalised-2"
)
@pytest.mark.parametrize("d", (2, 3, 5))
@pytest.mark.parametrize("kernel", ("quartic", "cubic", "quartic, normalised"))
def test_the_branch_of_a_polynomial_kernel_by_newton_on_a_grid(kernel, d):
    """NumPy solves for the density itself, at 48 heights."""
    pair, normalise = QUARTIC if kernel.startswith("quartic") else CUBIC, kernel.endswith("normalised")
    found = cjx.phase.branch(cjx.KernelAttention(pair[0], normalise=normalise), d, order_parameters=RISING, degree=24)
    for k in (1, 5):
        guess = 1.03 * found.temperatures[k]
        temperature, z, shares, density = zonal_branch.state(*pair, d, RISING[k], guess, normalise=normalise)
        assert temperature == pytest.approx(found.temperatures[k], rel=1e-9)
        square = np.sum(shares * density * z**2)
        assert (1 + (d - 1) * found.moments[k, 1]) / d == pytest.approx(square, abs=1e-9)


@pytest.mark.parametrize("normalise", (True, False))
def test_growth_rates_of_a_kernel_are_those_of_tokens(normalise):
    """The rate is that of the equation of the density on a ring of many tokens, noise included."""
    kernel = cjx.KernelAttention(QUARTIC[0], normalise=normalise)
    found = cjx.phase.branch(kernel, 2, order_parameters=RISING, degree=24)
    m, k = 96, 4
    theta = 2 * np.pi * np.arange(m) / m
    l = np.arange(1, 25)
    density = 1 + 2 * np.cos(np.outer(theta, l)) @ found.moments[k]
    of_pairs = QUARTIC[0](np.cos(theta[:, None] - theta)) * np.sin(theta - theta[:, None])
    sums = QUARTIC[0](np.cos(theta[:, None] - theta))

    def drift(values):
        force = of_pairs @ values / m
        return force / (sums @ values / m) if normalise else force

    # The equation is d rho/dt = T rho'' - (rho v)' on the grid; the discrete transform gives exact derivatives.
    waves = np.fft.fftfreq(m, 1 / m)
    along = lambda values: np.fft.ifft(
        1j * np.where(np.abs(waves) == m / 2, 0, waves) * np.fft.fft(values, axis=0), axis=0
    )
    rate = lambda values: np.real(found.temperatures[k] * along(along(values)) - along(values * drift(values)))
    assert np.abs(rate(density)).max() < 1e-9 * found.critical_temperature
    basis = np.concatenate([np.cos(np.outer(theta, l)), np.sin(np.outer(theta, l))], axis=1)
    changes = np.stack([(rate(density + 1e-5 * b) - rate(density - 1e-5 * b)) / 2e-5 for b in basis.T], axis=1)
    eigenvalues = np.linalg.eigvals(np.linalg.lstsq(basis, changes, rcond=None)[0])
    remaining = np.delete(eigenvalues, np.argmin(np.abs(eigenvalues)))
    assert found.growth_rates[k] == pytest.approx(np.max(remaining.real), abs=1e-6 * found.critical_temperature)


EXHAUSTIVE = pytest.mark.exhaustive


@pytest.mark.exhaustive_cases("2-SoftmaxAttention-24-4.0")
@pytest.mark.parametrize(("d", "kind", "degree", "beta"), [
    (2, SA, 24, 4.0), pytest.param(2, USA, 24, 4.0, marks=EXHAUSTIVE),
    pytest.param(3, USA, 12, 2.5, marks=EXHAUSTIVE), pytest.param(3, SA, 12, 2.5, marks=EXHAUSTIVE),
])  # fmt: skip
def test_growth_rates_are_those_of_the_mean_field(d, kind, degree, beta):
    found = cjx.phase.branch(kind(beta), d, degree=degree, order_parameters=np.linspace(0.05, 0.5, 10))
    for index in (2, 9) if d == 2 else (4,):
        field = cjx.MeanField(kind(beta), d=d, degree=degree, temperature=float(found.temperatures[index]))
        c = jnp.asarray(found.coefficients(index))
        assert float(field.order_parameter(c)) == pytest.approx(found.order_parameters[index], abs=1e-12)
        assert float(jnp.max(jnp.abs(field(0.0, c)))) < 1e-6
        near = cjx.phase.stationary(
            field, c + 1e-3 * jnp.where(c == 0, 0, jnp.sin(jnp.arange(c.size)).reshape(c.shape))
        )
        assert near.rotations == d - 1 and near.residual < 1e-11
        assert near.growth_rate == pytest.approx(found.growth_rates[index], abs=1e-6)
        assert float(field.order_parameter(near.coefficients)) == pytest.approx(found.order_parameters[index], abs=1e-6)
        if kind is USA:
            uniform = jnp.zeros_like(c).at[0, 0].set(1)
            excess = field.free_energy(c) - field.free_energy(uniform)
            assert float(excess) == pytest.approx(found.free_energies[index], abs=1e-8)


@pytest.mark.parametrize(("kind", "order"), [
    (USA, 1), pytest.param(SA, 1, marks=EXHAUSTIVE), pytest.param(USA, 2, marks=EXHAUSTIVE),
    pytest.param(SA, 2, marks=EXHAUSTIVE),
])  # fmt: skip
def test_perturbations_of_each_order_grow_as_those_of_the_mean_field(kind, order):
    """On the sphere all eigenvalues of the Jacobian in one column of the coefficients are found."""
    degree, beta = 10, 2.0
    found = cjx.phase.branch(kind(beta), 3, degree=degree, order_parameters=[0.1, 0.2, 0.3])
    c, column = jnp.asarray(found.coefficients(2)), 2 * order
    field = cjx.MeanField(kind(beta), d=3, degree=degree, temperature=float(found.temperatures[2]))
    of_column = lambda row: field(0.0, c.at[order:, column].set(row))[order:, column]
    jacobian = jax.jit(jax.jacfwd(of_column))(c[order:, column])
    l = np.arange(1, degree + 1)
    rates = cjx.uniform_growth_rates(beta, 3, degree, unnormalised=kind is USA)[1:] / (l * (l + 1))
    z, _ = _zonal.nodes(64, 3)
    meridian = np.stack([np.sqrt(1 - z * z), 0 * z, z], axis=1)
    density = np.asarray(eqx.filter_jit(field.density)(c, jnp.asarray(meridian))) * 4 * np.pi
    softmax = None if kind is USA else beta
    equations = _zonal.equations_of(rates, 2.0 * l + 1, softmax, 3, 64)
    matrix = growth(equations, found.moments[2], found.temperatures[2], density, 3, order)
    ordered = lambda one: np.sort(np.linalg.eigvals(np.asarray(one)).real)
    np.testing.assert_allclose(ordered(matrix), ordered(jacobian), rtol=1e-6, atol=1e-6)


@pytest.mark.exhaustive
def test_a_stationary_density_of_any_value():
    """Without a symmetry nothing is taken out, and the rate is that of the whole Jacobian."""
    field = cjx.MeanField(USA(2.0), jnp.array([[1.0, 0.5], [0.0, -0.5]]), d=2, degree=16, temperature=0.6)
    found = cjx.phase.stationary(field, field.from_density(lambda x: jnp.exp(3 * x[:, 0])))
    assert 0.5 < float(field.order_parameter(found.coefficients))
    assert found.residual < 1e-12 and found.rotations == 0
    jacobian = jax.jacfwd(lambda c: field(0.0, c))(found.coefficients).reshape(34, 34)[2:, 2:]
    assert found.growth_rate == pytest.approx(np.linalg.eigvals(jacobian).real.max(), abs=1e-9)
    uniform = cjx.MeanField(USA(2.0), d=2, degree=16, temperature=0.6)
    at = cjx.phase.stationary(uniform, uniform.from_density(lambda x: jnp.ones(len(x))))
    assert at.rotations == 0
    assert at.growth_rate == pytest.approx(cjx.uniform_growth_rates(2.0, 2, 1, unnormalised=True)[1] - 0.6, abs=1e-9)


single_precision = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64


@pytest.mark.parametrize("attention", (USA(4.0, offset=1.0), SA(2.0)), ids=("unnormalised", "softmax"))
def test_a_branch_is_computed_in_double_precision_whatever_is_set(attention):
    rs = np.linspace(0.1, 0.6, 21)
    wanted = cjx.phase.branch(attention, 2, order_parameters=rs)
    with single_precision(False):
        assert jnp.ones(1).dtype == jnp.float32
        found = cjx.phase.branch(attention, 2, order_parameters=rs.tolist())
        # The caller's setting is left as it was.
        assert jnp.ones(1).dtype == jnp.float32
    for name in ("order_parameters", "temperatures", "moments", "growth_rates", "free_energies"):
        one, other = getattr(found, name), getattr(wanted, name)
        if one is not None:
            assert type(one) is np.ndarray and one.dtype == np.float64
            np.testing.assert_array_equal(one, other, err_msg=name)
    assert found.coefficients(0).dtype == np.float64
    assert (found.fold, found.coexistence) == (wanted.fold, wanted.coexistence)
    assert found.critical_temperature == wanted.critical_temperature
    assert (found.free_energies is None) == isinstance(attention, SA)


def test_a_stationary_density_needs_double_precision():
    """In float32 the search would end before rotations are told from growth; with x64 float64 densities are found."""
    words = (
        r"^guess must be float64, since Newton's method to 1e-8 needs double precision, but it is float32; call "
        r'jax\.config\.update\("jax_enable_x64", True\) first and make it again\.$'
    )
    with as_a_user(), single_precision(False):
        with pytest.raises(ValueError, match=words):
            cjx.phase.stationary(plain(), jnp.ones((17, 2)))
        with double_precision():
            guess = np.zeros((17, 2))
            guess[0, 0], guess[1:, 0] = 1, np.sqrt(2) * ive(np.arange(1, 17), 3) / ive(0, 3)  # the density exp(3 x_1)
            found = cjx.phase.stationary(plain(), jnp.asarray(guess))
    assert found.coefficients.dtype == jnp.float64 and found.residual < 1e-12 and found.rotations == 1
    # With x64 coefficients in float32 are refused all the same.
    with pytest.raises(ValueError, match=words):
        cjx.phase.stationary(plain(), jnp.ones((17, 2), jnp.float32))


def kernel(function, normalise=True, degree=32):
    return cjx.phase.branch(cjx.KernelAttention(function, normalise=normalise), 2, degree=degree)


BAD = {
    "attention": (lambda: cjx.phase.branch(ANY.HardmaxAttention(), 2), "attention must be SoftmaxAttention, Unn"),
    "rough": (lambda: kernel(lambda s: jnp.abs(s) ** 3), "attention.function must be smooth, .* degree 32 for d 2"),
    "steps": (lambda: kernel(lambda s: jnp.where(s > 0.5, 1.0, 0.0)), "attention.function must be smooth"),
    "low": (lambda: kernel(lambda s: jnp.exp(9 * s), degree=12), "attention.function must be smooth, .* degree 12"),
    "below zero": (lambda: kernel(CUBIC[0]), "attention.function must not be negative where its rows are normalised"),
    "repels": (lambda: kernel(lambda s: -jnp.exp(s), False), "attention.function must make .* degree 1 first"),
    "two poles": (lambda: kernel(lambda s: 0.1 + s * s * s, False), "attention.function must make .* and degree 2"),
    "logarithm": (lambda: kernel(jnp.log), "attention.function must be finite between -1 and 1, and not zero"),
    "zero": (lambda: kernel(lambda s: 0 * s), "attention.function must be finite .* and not zero, but it is zero"),
    "two numbers": (lambda: kernel(lambda s: jnp.stack([s, s])), r"attention.function\(s\) must be"),
    "traced": (lambda: jax.jit(lambda a: kernel(jtu.Partial(jnp.add, a)))(1.0), "attention must be made of numbers"),
    "form": (
        lambda: cjx.phase.branch(cjx.KernelAttention(jnp.exp, query_key=jnp.eye(2)), 2),
        "attention must have query_key None",
    ),
    "query_key": (lambda: cjx.phase.branch(USA(1.0, query_key=jnp.eye(2)), 2), "attention must have query_key None"),
    "mask": (lambda: cjx.phase.branch(SA(1.0, mask=cjx.CausalMask()), 2), "attention must have query_key None"),
    "schedule": (lambda: cjx.phase.branch(SA(lambda t: 1 + t), 2), "attention must have a beta that is one number"),
    "degree": (lambda: cjx.phase.branch(SA(9.0), 2, degree=8), "degree must be at least 16 for beta 9"),
    "orders": (lambda: cjx.phase.branch(SA(1.0), 2, order_parameters=[0.1, 0.3, 0.2]), "order_parameters must be at"),
    "far": (lambda: cjx.phase.branch(USA(9.0), 16, order_parameters=[0.1, 0.6, 0.9]), "order_parameters must be near"),
    "coefficients": (
        lambda: cjx.phase.branch(USA(1.0), 4, order_parameters=[0.1, 0.2, 0.3]).coefficients(0), "d must be 2 or 3",
    ),
    "field": (lambda: cjx.phase.stationary(ANY.AttentionField(SA(1.0)), jnp.ones((2, 2))), "field must be a MeanField"),
    "guess": (lambda: cjx.phase.stationary(plain(), jnp.ones((3, 2))), "guess must hold coefficients"),
    "no zero": (
        lambda: cjx.phase.stationary(plain(), 1e200 * jnp.cos(jnp.arange(34.0)).reshape(17, 2)),
        "guess must be near a stationary density, but Newton's",
    ),
    "negative": (
        lambda: cjx.phase.stationary(plain(0.05), 3 * jnp.cos(jnp.arange(34.0) ** 2).reshape(17, 2)),
        "guess must be near a stationary density, but the one near it is negative",
    ),
}  # fmt: skip


def plain(temperature=0.3):
    return cjx.MeanField(USA(1.0), d=2, degree=16, temperature=temperature)


@pytest.mark.exhaustive_cases("no zero")
@pytest.mark.parametrize(("make", "words"), BAD.values(), ids=BAD)
def test_bad_arguments(make, words):
    with as_a_user(), pytest.raises(ValueError, match=f"^{words}.*; .*\\.$"):
        make()
