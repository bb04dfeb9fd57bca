import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax._observables import expected_strong_centres, renyi_centres, similarity as _pairs
from tests.reference import observables as reference


@jax.jit
def centres(x, separation):
    """The centres and the strong centres."""
    return jnp.stack([renyi_centres(x, separation, strong=strong) for strong in (False, True)])


@pytest.mark.parametrize("separation", (0.2, 0.5, 1.5, 3.0))
@pytest.mark.parametrize("d", (2, 3))
def test_centres_are_those_of_the_definition(d, separation):
    x = np.random.default_rng(d).normal(size=(50, d))
    expected = [reference.renyi_centres(x, separation, strong) for strong in (False, True)]
    np.testing.assert_array_equal(centres(x, separation), expected)


def test_order_and_kinds_differ():
    """If tokens are 0.4 apart, every second token is a centre at 0.5, but only the first is a strong centre."""
    angles = 0.4 * np.arange(6)
    x = jnp.asarray(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    np.testing.assert_array_equal(centres(x, 0.5), [[1, 0, 1, 0, 1, 0], [1, 0, 0, 0, 0, 0]])
    np.testing.assert_array_equal(renyi_centres(x, 0.3, strong=True), np.ones(6))


def test_special_clouds():
    pair = np.array([[2.0, 0], [-3.0, 0], [1.0, 0]])
    for x, separation, expected in (
        (pair, 3.1, [1, 1, 0]), (pair, math.pi, [1, 0, 0]), (pair[:, :1], 1.0, [1, 1, 0]), (pair[:1], 1.0, [1]),
        (pair.astype(np.float32), 1e-4, [1, 1, 0]),
    ):  # fmt: skip
        np.testing.assert_array_equal(centres(x, separation), [expected, expected])


def test_expected_number_in_closed_form():
    """C10 gives pi / delta on the circle, 1 / sin^2(delta / 2) on the sphere, and the printed values."""
    for delta in (0.1, 0.5, 1.5, 2.5):
        np.testing.assert_allclose(expected_strong_centres(delta, math.inf, 2), math.pi / delta, rtol=1e-12)
        np.testing.assert_allclose(
            expected_strong_centres(delta, math.inf, 3), 1 / math.sin(delta / 2) ** 2, rtol=1e-12
        )
    np.testing.assert_allclose(expected_strong_centres(0.5, math.inf, 2), 6.2832, rtol=0, atol=5e-5)
    np.testing.assert_allclose(expected_strong_centres(0.5, math.inf, 3), 16.3375, rtol=0, atol=5e-5)
    np.testing.assert_allclose(expected_strong_centres(1.0, math.inf, 4), 5.7607, rtol=0, atol=5e-5)
    np.testing.assert_allclose(expected_strong_centres(1.0, math.inf, 1), 2, rtol=1e-12)
    np.testing.assert_allclose(expected_strong_centres(math.pi, 9, 1), 1, rtol=1e-12)
    single = jax.eval_shape(lambda angle: expected_strong_centres(angle, 200, 3), jnp.float32(0.5))
    assert single.dtype == jnp.float32


@pytest.mark.parametrize(("d", "p"), ((2, 0.5 / math.pi), (3, math.sin(0.25) ** 2)))
@pytest.mark.parametrize("n", (1, 2, 7, 200))
def test_expected_number_for_finite_n(n, d, p):
    """Token k + 1 is strong with probability (1 - p)^k, where p is the share of a cap of radius 1/2."""
    expected = sum((1 - p) ** k for k in range(n))
    np.testing.assert_allclose(expected_strong_centres(0.5, n, d), expected, rtol=1e-12)


@pytest.mark.exhaustive
@pytest.mark.parametrize("d, separation", ((2, 0.5), (3, 2.0)))
def test_number_of_strong_centres(d, separation):
    """Counts agree with C10 to 4 sigma; the printed formula for d = 3, a third of this, would be many sigma off."""
    x = np.random.default_rng(d).normal(size=(500, 50, d))
    counts = np.sum(jax.jit(jax.vmap(centres, (0, None)))(x, separation)[:, 1], axis=1)
    error = counts.std() / math.sqrt(500)
    assert abs(counts.mean() - float(expected_strong_centres(separation, 50, d))) < 4 * error


def test_blocks_of_rows_change_nothing(monkeypatch):
    """The function is traced anew, since no other test here has eleven tokens."""
    monkeypatch.setattr(_pairs, "_BLOCK_ENTRIES", 33)
    x = np.random.default_rng(5).normal(size=(11, 3))
    expected = [reference.renyi_centres(x, 0.8, strong) for strong in (False, True)]
    np.testing.assert_array_equal(centres(x, 0.8), expected)


@pytest.mark.parametrize("separation", (0.0, -0.1, 3.2, np.nan))
def test_bad_separation(separation):
    for function in (
        lambda: renyi_centres(jnp.ones((3, 2)), separation),
        lambda: expected_strong_centres(separation, 9, 2),
    ):
        with pytest.raises(ValueError, match="separation must be"):
            function()
