import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from clusterjax._observables import hemisphere
from tests.reference import observables as reference


@pytest.mark.parametrize("n, d, probability", ((5, 2, 0.3125), (8, 3, 0.2265625)))
def test_wendel(n, d, probability):
    """The share of uniform clouds in an open hemisphere is Wendel's to 4 sigma of 150 draws; each yes has a witness."""
    np.testing.assert_allclose(reference.wendel(n, d), probability, rtol=1e-12)
    rng, draws, inside = np.random.default_rng(n), 150, 0
    for _ in range(draws):
        x = rng.normal(size=(n, d))
        is_open, w, margin = hemisphere(jnp.asarray(x, float))
        least = min(row @ w / np.linalg.norm(row) for row in x)
        np.testing.assert_allclose(np.linalg.norm(w), 1, rtol=1e-12)
        assert (least > 0) == is_open == (margin > 0)
        assert not is_open or abs(margin - least) < 1e-12
        inside += is_open
    assert abs(inside / draws - probability) < 4 * np.sqrt(probability * (1 - probability) / draws)


@pytest.mark.parametrize("n, d", ((4, 2), (6, 3), (9, 4), (30, 4)))
def test_against_a_linear_programme(n, d):
    """The answer is that of a linear programme, and no w of the programme has a larger margin."""
    rng, inside = np.random.default_rng(n), 0
    for k in range(20):
        x = rng.normal(size=(n, d)) + (k % 4) * np.eye(d)[0]
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
        w = scipy.optimize.linprog(
            np.append(np.zeros(d), -1.0),
            A_ub=np.hstack([-x, np.ones((n, 1))]),
            b_ub=np.zeros(n),
            bounds=[(-1, 1)] * d + [(0, None)],
        ).x[:d]
        answer = hemisphere(jnp.asarray(x, float))
        margin = (x @ w).min() / np.linalg.norm(w) if np.any(w) else 0.0
        assert answer.is_open_hemisphere == (margin > 1e-7)
        assert answer.margin >= margin - 1e-7 or not answer.is_open_hemisphere
        inside += answer.is_open_hemisphere
    assert 0 < inside < 20


def test_borders():
    """A closed hemisphere is not open; tokens with antipodes are in no open one; their scale does not matter."""
    closed = jnp.asarray([[1.0, 0], [-1, 0], [0, 1]])
    assert not hemisphere(closed).is_open_hemisphere and hemisphere(closed).margin <= 0
    assert not hemisphere(jnp.asarray([[1.0], [-1.0]])).is_open_hemisphere
    narrow = jnp.asarray([[1.0, 1e-5], [-1, 1e-5]])
    assert hemisphere(narrow).is_open_hemisphere
    np.testing.assert_allclose(hemisphere(narrow).margin, 1e-5, rtol=1e-6)
    np.testing.assert_allclose(hemisphere(1e-200 * jnp.ones((3, 2))).margin, 1, rtol=1e-12)
    np.testing.assert_allclose(hemisphere(jnp.ones((3, 2), dtype=jnp.float32)).w, np.sqrt([0.5, 0.5]), rtol=1e-12)


def test_no_more_tokens_than_dimensions():
    rng = np.random.default_rng(0)
    for n, d in ((1, 1), (1, 4), (2, 2), (3, 5), (6, 6)):
        for _ in range(5):
            assert hemisphere(jnp.asarray(rng.normal(size=(n, d)))).is_open_hemisphere
