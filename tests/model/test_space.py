import math

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.special
import scipy.stats

import clusterjax as cjx
from tests.helpers import (
    DTYPES,
    assert_close,
    assert_derivatives,
    assert_same,
    name_of,
    normal,
    sphere_tokens,
    tolerance,
)
from tests.model.derivatives_and_maps import assert_maps
from tests.reference import fields as reference


SPHERE, EUCLIDEAN = cjx.Sphere(), cjx.Euclidean()
SPACES = (SPHERE, EUCLIDEAN)

tangent = jax.jit(SPHERE.tangent)
retract = jax.jit(SPHERE.retract)
distance = jax.jit(SPHERE.distance)


# --- definition


@pytest.mark.parametrize("d", (4, 9, 64))  # many coordinates are summed by a product of matrices
def test_sphere_retracts_by_the_norm(d):
    x = 3 * normal(1, 12, d)
    assert_close(retract(x), np.array([reference.unit(row) for row in np.asarray(x)]))
    assert_close(retract(x[0]), reference.unit(np.asarray(x[0])))


@pytest.mark.parametrize("length", (1e-3, 1.0, 40.0))
def test_sphere_projector_is_that_of_the_paper(length):
    """The projection is v - <x, v> x / |x|^2 and is orthogonal to x, also off the sphere."""
    x, v = length * sphere_tokens(1, 12, 4), normal(2, 12, 4)
    w = tangent(x, v)
    assert_close(w, np.array([reference.tangent(a, b) for a, b in zip(np.asarray(x), np.asarray(v), strict=True)]))
    along = np.abs((np.asarray(x) * np.asarray(w)).sum(axis=1)) / length / np.linalg.norm(v, axis=1)
    assert along.max() < 1e-15


def test_euclidean_leaves_everything():
    x, v = normal(1, 12, 4), normal(2, 12, 4)
    assert_same(EUCLIDEAN.retract(x), x)
    assert_same(EUCLIDEAN.tangent(x, v), v)
    assert_close(
        EUCLIDEAN.distance(x, v), np.array([math.dist(a, b) for a, b in zip(x.tolist(), v.tolist(), strict=True)])
    )


def test_sphere_distance_is_the_angle():
    """The angle is accurate to rounding also near 0 and pi, where an arc cosine loses half of the digits."""
    angles = np.array([0.0, 1e-8, 1e-3, 1.0, math.pi / 2, 3.0, math.pi - 1e-3, math.pi - 1e-8, math.pi])
    x = np.broadcast_to([1.0, 0.0], (9, 2))
    y = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for a, b in ((x, y), (3.0 * x, 0.2 * y)):
        measured = np.asarray(distance(jnp.asarray(a), jnp.asarray(b)))
        assert np.max(np.abs(measured - angles)) <= 1e-15
        assert abs(measured[1] - 1e-8) <= 1e-23
        assert abs((math.pi - measured[-2]) - 1e-8) <= 1e-15


def test_sphere_distance_of_a_point_to_itself_and_its_antipode():
    x = sphere_tokens(3, 50, 5)
    assert_same(distance(x, x), np.zeros(50))
    assert_same(distance(x, -x), np.full(50, math.pi))


# --- invariance


def test_retract_and_tangent_are_projections():
    x, v = 5 * normal(1, 12, 4), normal(2, 12, 4)
    y, w = retract(x), tangent(x, v)
    assert_close(retract(y), y, "exact")
    assert_close(tangent(x, w), w, "exact")
    assert np.max(np.abs(tangent(x, x))) < 1e-14


# --- limit


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_retract_neither_overflows_nor_underflows(dtype):
    """Tokens whose squares overflow or underflow are retracted to rounding."""
    large = 1e10 * float(jnp.finfo(dtype).max) ** 0.5
    for size in (large, 1 / large):
        x = jnp.asarray(size * np.array([[3.0, 0.0, 4.0], [0.0, -5.0, 0.0]]), dtype)
        assert_close(retract(x), np.array([[0.6, 0, 0.8], [0, -1, 0]]), "exact")


def test_the_sphere_of_one_dimension_has_two_points_and_no_tangents(getkey):
    x = SPHERE.sample(getkey(), 4000, 1)
    assert set(np.unique(x)) == {-1.0, 1.0}
    assert abs(np.mean(x)) < 4 / math.sqrt(4000)
    assert SPHERE.sample(getkey(), 4000, 1, dtype=jnp.float32).dtype == jnp.float32
    assert_same(retract(-0.3 * x), -x)
    assert_same(tangent(x, 1.7 * jnp.ones((4000, 1))), np.zeros((4000, 1)))


# --- uniformity of the sample


@pytest.mark.parametrize("d", (2, 3, 8))
def test_sample_has_the_marginal_of_the_uniform_measure(d):
    """One coordinate, and the inner product of two tokens, have density (1-t^2)^{(d-3)/2} / B(1/2, (d-1)/2)."""
    n = 5000
    x = np.asarray(SPHERE.sample(jr.key(11), 2 * n, d))

    def cdf(t):
        return scipy.special.betainc((d - 1) / 2, (d - 1) / 2, (1 + t) / 2)

    # The derivative of the distribution function must be the density.
    t = np.linspace(-0.9, 0.9, 7)
    density = (1 - t**2) ** ((d - 3) / 2) / scipy.special.beta(0.5, (d - 1) / 2)
    np.testing.assert_allclose((cdf(t + 1e-6) - cdf(t - 1e-6)) / 2e-6, density, rtol=1e-7)
    assert scipy.stats.kstest(x[:n, 0], cdf).pvalue > 1e-3
    assert scipy.stats.kstest((x[:n] * x[n:]).sum(axis=1), cdf).pvalue > 1e-3


def test_sample_of_euclidean_is_normal():
    x = np.asarray(EUCLIDEAN.sample(jr.key(7), 5000, 2))
    assert scipy.stats.kstest(x.ravel(), scipy.stats.norm.cdf).pvalue > 1e-3


# --- contract


@pytest.mark.parametrize("space", SPACES, ids=name_of)
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_dtype_is_kept(getkey, space, dtype):
    x = space.sample(getkey(), 6, 3, dtype=dtype)
    v = space.sample(getkey(), 6, 3, dtype=x.dtype)
    assert x.shape == (6, 3)
    for array in (x, v, *jax.jit(lambda x, v: (space.retract(x), space.tangent(x, v), space.distance(x, v)))(x, v)):
        assert array.dtype == dtype
    if space == SPHERE:
        assert np.max(np.abs(np.linalg.norm(x, axis=1) - 1)) < tolerance(dtype, "exact")


@pytest.mark.parametrize("space", SPACES, ids=name_of)
def test_sample_follows_its_key_and_no_other(getkey, space):
    key = getkey()
    x = space.sample(key, 6, 3)
    assert x.dtype == jnp.float64
    assert_same(x, space.sample(key, 6, 3))
    assert not np.any(np.asarray(x) == np.asarray(space.sample(getkey(), 6, 3)))


def test_vmap_equals_loop():
    xs, vs = normal(1, 3, 12, 4), normal(2, 3, 12, 4)
    assert_maps(lambda x, v: (tangent(x, v), distance(x, v), retract(x)), xs, vs, kind="exact")


@pytest.mark.parametrize("fn", (tangent, distance))
def test_derivatives_in_each_argument(fn):
    x, y = normal(1, 12, 4), normal(2, 12, 4)
    assert_derivatives(lambda pair: fn(pair[:12], pair[12:]), jnp.concatenate([x, y]))


def test_derivative_of_retract():
    assert_derivatives(SPHERE.retract, normal(1, 12, 4))
