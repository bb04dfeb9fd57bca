"""Laws of V and Q^T K without symmetry, and laws of given eigenvalues."""

import functools

import jax
import numpy as np
import pytest

from clusterjax.phase import Gaussian, Once, Orthogonal, PerSystem, Spectrum, phase_diagram
from tests.helpers import as_a_user


COUNT = 4000


def draw(law, d, count=COUNT, compute=jax.jit):
    return compute(lambda beta: law.draw(jax.random.key(3), beta, count, d, None))(np.asarray(1.0))


def shape(law, d, count=COUNT):
    return draw(law, d, count, lambda fn: functools.partial(jax.eval_shape, fn)).shape


def test_gaussian_has_its_moments_and_no_symmetry():
    drawn = np.asarray(draw(Gaussian(), 3))
    np.testing.assert_allclose(drawn.mean(axis=0), 0, atol=4 / np.sqrt(3 * COUNT))
    np.testing.assert_allclose(drawn.var(axis=0), 1 / 3, atol=4 * np.sqrt(2 / COUNT) / 3)
    assert abs(np.mean(drawn[:, 0, 1] * drawn[:, 1, 0])) < 4 / 3 / np.sqrt(COUNT)
    assert shape(Gaussian(Once()), 3) == (3, 3)


def test_orthogonal_is_uniform():
    """Diagonal entries have no preferred sign, unlike those of the routine, and both signs of the determinant occur."""
    drawn = np.asarray(draw(Orthogonal(), 3))
    np.testing.assert_allclose(drawn @ drawn.swapaxes(1, 2), np.broadcast_to(np.eye(3), drawn.shape), atol=1e-12)
    np.testing.assert_allclose(drawn.mean(axis=0), 0, atol=4 / np.sqrt(3 * COUNT))
    np.testing.assert_allclose((drawn**2).mean(axis=0), 1 / 3, atol=4 * np.sqrt(4 / 45 / COUNT))
    assert abs(np.mean(np.linalg.det(drawn) > 0) - 0.5) < 4 * 0.5 / np.sqrt(COUNT)


@pytest.mark.parametrize("given", ([0.0, 2, 2, -1], [1 + 2j, 1 - 2j], [0.5, -1 - 3j, -1 + 3j, 1j, -1j]), ids=str)
def test_spectrum_has_the_eigenvalues_in_an_orthonormal_basis(given):
    drawn = draw(Spectrum(np.asarray(given)), len(given), 5)
    by_size = lambda z: z[np.lexsort((z.imag.round(6), z.real.round(6)))]
    for matrix in drawn:
        np.testing.assert_allclose(
            by_size(np.linalg.eigvals(matrix) + 0j), by_size(np.asarray(given, complex)), atol=1e-9
        )
        np.testing.assert_allclose(matrix @ matrix.T, matrix.T @ matrix, atol=1e-9)
    assert not np.allclose(drawn[0], drawn[1]) or len(set(np.abs(given))) == 1


def test_spectrum_is_drawn_when_said():
    assert shape(Spectrum(np.array([1.0, 0.5]), Once()), 2) == (2, 2)
    assert shape(Spectrum(np.array([1.0, 0.5]), PerSystem()), 2, 7) == (7, 2, 2)


@pytest.mark.parametrize(
    ("given", "words"),
    (
        ([], "they are"), ([np.nan, 1.0], "they are"), ([[1.0]], "they are"), ("12", "they are"),
        ([1j, 2.0], "lack a conjugate"), ([1j, 1j], "lack a conjugate"), ([1j, -1j, -1j], "lack a conjugate"),
    ),
    ids=str,
)  # fmt: skip
def test_spectrum_refuses_what_has_no_real_matrix(given, words):
    with as_a_user(), pytest.raises(ValueError, match=f"^eigenvalues must be finite numbers .*{words}"):
        Spectrum(given)


def test_spectrum_must_have_an_eigenvalue_for_each_coordinate():
    with as_a_user(), pytest.raises(ValueError, match="^eigenvalues must be as many as tokens have coordinates, 2"):
        phase_diagram(
            np.array([1.0]), np.array([0.0, 1.0]), n=3, samples=2, value=Spectrum([1.0, 0.5, 0.2]), progress=False
        )
