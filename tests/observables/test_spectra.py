import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax._observables import effective_beta, product_spectrum, spectrum, symmetric_part_spectrum


def test_eigenvalues_known_in_advance():
    """A rotation by 1 radian scaled by 2, and a real eigenvalue -3, in a random basis."""
    block = np.zeros((3, 3))
    block[:2, :2] = 2 * np.array([[np.cos(1), -np.sin(1)], [np.sin(1), np.cos(1)]])
    block[2, 2] = -3
    basis = np.random.default_rng(0).normal(size=(3, 3))
    actual = spectrum(jnp.asarray(basis @ block @ np.linalg.inv(basis)))
    assert isinstance(actual, np.ndarray) and actual.dtype == np.complex128
    np.testing.assert_allclose(actual, [2 * np.exp(1j), 2 * np.exp(-1j), -3], rtol=0, atol=1e-12)


def test_eigenvalues_are_roots():
    """det(A - lambda) = 0, sum = trace, product = determinant; sorted by real part."""
    matrix = np.random.default_rng(1).normal(size=(6, 6))
    values = spectrum(matrix)
    for value in values:
        assert np.linalg.svd(matrix - value * np.eye(6), compute_uv=False)[-1] < 1e-13
    np.testing.assert_allclose(values.sum(), np.trace(matrix), rtol=0, atol=1e-12)
    np.testing.assert_allclose(values.prod(), np.linalg.det(matrix), rtol=1e-12)
    assert np.all(np.diff(values.real) <= 0)


def test_symmetric_matrices_have_exactly_real_eigenvalues():
    """Also where they are degenerate."""
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
    # As polynomials, since sorting is not stable against the rounding of conjugate pairs.
    np.testing.assert_allclose(np.poly(padded), np.poly(matched), rtol=0, atol=1e-10)


def test_symmetric_part():
    """Also through the product of Q and K side by side, as its docstring says."""
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
    """It is beta for beta I / d, the same in every basis, blind to the antisymmetric part, and linear."""
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
