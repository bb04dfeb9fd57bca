import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from clusterjax._observables import (
    effective_beta,
    kreiss_constant,
    non_normality,
    product_spectrum,
    spectrum,
    symmetric_part_spectrum,
)
from tests.helpers import as_a_user


def test_eigenvalues_known_in_advance():
    """A rotation by 1 radian scaled by 2 and a real eigenvalue -3 are found in a random basis."""
    block = np.zeros((3, 3))
    block[:2, :2] = 2 * np.array([[np.cos(1), -np.sin(1)], [np.sin(1), np.cos(1)]])
    block[2, 2] = -3
    basis = np.random.default_rng(0).normal(size=(3, 3))
    actual = spectrum(jnp.asarray(basis @ block @ np.linalg.inv(basis)))
    assert isinstance(actual, np.ndarray) and actual.dtype == np.complex128
    np.testing.assert_allclose(actual, [2 * np.exp(1j), 2 * np.exp(-1j), -3], rtol=0, atol=1e-12)


def test_eigenvalues_are_roots():
    """Values solve det(A - lambda) = 0, their sum is the trace, their product the determinant, and real parts fall."""
    matrix = np.random.default_rng(1).normal(size=(6, 6))
    values = spectrum(matrix)
    for value in values:
        assert np.linalg.svd(matrix - value * np.eye(6), compute_uv=False)[-1] < 1e-13
    np.testing.assert_allclose(values.sum(), np.trace(matrix), rtol=0, atol=1e-12)
    np.testing.assert_allclose(values.prod(), np.linalg.det(matrix), rtol=1e-12)
    assert np.all(np.diff(values.real) <= 0)


def test_symmetric_matrices_have_exactly_real_eigenvalues():
    """Eigenvalues are exactly real, also where they are degenerate."""
    factor = np.random.default_rng(2).normal(size=(6, 2))
    values = spectrum(factor @ factor.T)
    assert np.all(values.imag == 0)
    np.testing.assert_allclose(values[2:], 0, atol=1e-12)
    np.testing.assert_allclose(values.sum(), np.sum(factor**2), rtol=1e-12)


@pytest.mark.parametrize("d, k", ((6, 2), (2, 6), (4, 4)))
def test_product(d, k):
    rng = np.random.default_rng(3)
    left, right = rng.normal(size=(d, k)), rng.normal(size=(k, d))
    values = product_spectrum(jnp.asarray(left), jnp.asarray(right))
    assert values.shape == (min(d, k),)
    padded = np.zeros(d, dtype=complex)
    padded[: min(d, k)] = values
    matched = spectrum(left @ right)
    # Characteristic polynomials are compared, since sorting is not stable against the rounding of conjugate pairs.
    np.testing.assert_allclose(np.poly(padded), np.poly(matched), rtol=0, atol=1e-10)


def test_symmetric_part():
    """The spectrum follows also from the product of Q and K side by side, as the docstring says."""
    rng = np.random.default_rng(4)
    query, key = rng.normal(size=(2, 7)), rng.normal(size=(2, 7))
    form = query.T @ key
    values = symmetric_part_spectrum(jnp.asarray(form))
    np.testing.assert_allclose(values.sum(), np.trace(form), rtol=1e-12)
    np.testing.assert_allclose((values**2).sum(), np.sum(((form + form.T) / 2) ** 2), rtol=1e-12)
    assert np.all(np.diff(values) <= 0)
    low_rank = product_spectrum(np.hstack([query.T, key.T]) / 2, np.vstack([key, query]))
    biggest = np.sort(values[np.argsort(-np.abs(values))[:4]])[::-1]
    np.testing.assert_allclose(low_rank, biggest, rtol=0, atol=1e-12)


def test_effective_beta():
    """The effective beta is beta for beta I / d, basis-free, blind to the antisymmetric part, and homogeneous."""
    rng = np.random.default_rng(5)
    np.testing.assert_allclose(effective_beta(jnp.eye(16) * 9 / 16), 9, rtol=1e-12)
    form = rng.normal(size=(5, 5))
    rotation = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    expected = np.sqrt(5 * sum(((form[i, j] + form[j, i]) / 2) ** 2 for i in range(5) for j in range(5)))
    np.testing.assert_allclose(effective_beta(form), expected, rtol=1e-12)
    np.testing.assert_allclose(effective_beta(rotation @ form @ rotation.T), expected, rtol=1e-12)
    np.testing.assert_allclose(effective_beta(form - form.T), 0, atol=1e-12)
    np.testing.assert_allclose(effective_beta(-3 * form), 3 * expected, rtol=1e-12)
    np.testing.assert_allclose(effective_beta(1e300 * np.eye(4)), 4e300, rtol=1e-12)  # its squares overflow
    assert effective_beta(np.zeros((2, 2))) == 0


def test_precision_follows_the_matrix():
    single = np.eye(2, dtype=np.float32)
    assert spectrum(single).dtype == product_spectrum(single, single).dtype == np.complex64
    assert product_spectrum(single, np.eye(2)).dtype == np.complex128
    assert symmetric_part_spectrum(single).dtype == np.float32
    np.testing.assert_array_equal(spectrum(jnp.asarray([[-2.0]])), [-2])


NORMAL = {
    "symmetric": np.array([[-2.0, 1.0], [1.0, -1.0]]),
    "skew": np.array([[0.0, 3.0], [-3.0, 0.0]]),
    "rotation": np.array([[np.cos(1), -np.sin(1)], [np.sin(1), np.cos(1)]]) / 2 - np.eye(2),
    "zero": np.zeros((3, 3)),
    "one": np.array([[-4.0]]),
}


@pytest.mark.parametrize("name", NORMAL)
def test_normal_matrices(name):
    assert non_normality(NORMAL[name]) < 1e-15
    assert kreiss_constant(NORMAL[name]) == pytest.approx(1, abs=1e-7)
    step = NORMAL[name] / max(1, np.abs(np.linalg.eigvals(NORMAL[name])).max())
    assert kreiss_constant(step, discrete=True) == pytest.approx(1, abs=1e-7)


def test_departure_from_normality():
    """The departure is sqrt(|A|^2 - sum |lambda|^2)/|A| where this does not cancel, invariant, exact at any scale."""
    matrix = np.random.default_rng(0).normal(size=(6, 6))
    expected = np.sqrt(1 - np.sum(np.abs(np.linalg.eigvals(matrix)) ** 2) / np.sum(matrix**2))
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(6, 6)))[0]
    for same in (matrix, -3 * matrix, matrix.T, turn @ matrix @ turn.T, 1e250 * matrix, 1e-250 * matrix):
        assert non_normality(same) == pytest.approx(expected, rel=1e-12)
    assert non_normality(np.array([[0.0, 5.0], [0.0, 0.0]])) == pytest.approx(1)
    # This departure is far below the root of the machine epsilon.
    assert non_normality(np.array([[1.0, 1e-12], [0.0, 2.0]])) == pytest.approx(1e-12 / np.sqrt(5))


@pytest.mark.parametrize(("rate", "coupling"), [(1.0, 1.0), (0.1, 3.0), (1.0, 100.0), (1e-3, 7.0)])
def test_kreiss_constant_of_a_jordan_block(rate, coupling):
    """The smallest singular value of [[w, -c], [0, w]] is 2 w^2 / (c + sqrt(c^2 + 4 w^2)), least where w is real."""
    x = np.exp(np.linspace(-16, 8, 400_001))
    w = x + rate
    expected = np.max(x * (coupling + np.sqrt(coupling**2 + 4 * w**2)) / (2 * w**2))
    found = kreiss_constant(np.array([[-rate, coupling], [0.0, -rate]]))
    assert found == pytest.approx(max(1, expected), rel=1e-8)
    # For a nilpotent step the constant is the maximum of (r - 1)/sigma, with w = r.
    r = 1 + x
    expected = np.max(x * (coupling + np.sqrt(coupling**2 + 4 * r**2)) / (2 * r**2))
    assert kreiss_constant(np.array([[0.0, coupling], [0.0, 0.0]]), discrete=True) == pytest.approx(
        max(1, expected), rel=1e-8
    )


@pytest.mark.parametrize("discrete", [False, True])
def test_kreiss_constant_against_a_fine_grid_and_its_theorem(discrete):
    """The faster of two oscillating pairs is more non-normal, so that the maximum lies off the real axis."""
    block = lambda speed, coupling: np.array([[-0.1, speed + coupling], [-speed, -0.1]])
    matrix = np.zeros((4, 4))
    matrix[:2, :2], matrix[2:, 2:] = block(1.0, 0.5), block(2.0, 9.0)
    matrix = scipy.linalg.expm(matrix * 0.3) if discrete else matrix
    best, eye = 0.0, np.eye(4)
    for distance in np.exp(np.linspace(-4, 2, 120)):
        turns = np.linspace(0, np.pi, 721)
        z = (1 + distance) * np.exp(1j * turns) if discrete else distance + 1j * np.linspace(0, 6, 721)
        smallest = np.linalg.svd(z[:, None, None] * eye - matrix, compute_uv=False)[:, -1].min()
        best = max(best, distance / smallest)
    found = kreiss_constant(matrix, discrete=discrete)
    assert best <= found * (1 + 1e-9) and found == pytest.approx(best, rel=1e-3) and found > 1.1
    steps = range(400)
    powers = [np.linalg.matrix_power(matrix, k) if discrete else scipy.linalg.expm(0.1 * k * matrix) for k in steps]
    largest = max(np.linalg.norm(power, 2) for power in powers)
    assert found <= largest * (1 + 1e-3) and largest <= np.e * 4 * found


def test_what_grows_has_no_kreiss_constant():
    for growing in (np.array([[0.1]]), np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([[0.01, 3.0], [-3.0, 0.01]])):
        assert kreiss_constant(growing) == np.inf
    for growing in (np.array([[-1.1]]), np.array([[1.0, 1.0], [0.0, 1.0]])):
        assert kreiss_constant(growing, discrete=True) == np.inf
    # A direction that is conserved to rounding does not grow.
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    assert kreiss_constant(turn @ np.diag([0.0, -1.0, -3.0]) @ turn.T) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("function", [non_normality, kreiss_constant])
def test_matrices_without_a_departure(function):
    with as_a_user(), pytest.raises(ValueError, match=r"matrix must be a square matrix, but its shape is \(2, 3\)"):
        function(np.ones((2, 3)))
    with as_a_user(), pytest.raises(ValueError, match="matrix must be finite"):
        function(np.full((2, 2), np.nan))
    with as_a_user(), pytest.raises(ValueError, match="matrix must not be traced"):
        jax.jit(lambda a: function(a))(jnp.eye(2))
