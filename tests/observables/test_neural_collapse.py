"""The four measures of neural collapse: the definition, the simplex, invariances, and degenerate input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from tests.helpers import as_a_user
from tests.reference import observables as reference


NAMES = (
    "variability", "equinorm_means", "equinorm_weights", "equiangular_means", "equiangular_weights", "self_duality",
    "disagreement",
)  # fmt: skip


SIZES, D = (4, 6, 5), 5  # of the classes; the same in most tests, so that tests share compiled programs


def values(measured):
    return np.array([float(getattr(measured, name)) for name in NAMES])


def drawn(seed, sizes, d):
    """Features of classes of these sizes, in random order, and a classifier."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    features = 2 * rng.normal(size=(len(sizes), d))[labels] + rng.normal(size=(len(labels), d))
    return features, labels, rng.normal(size=(len(sizes), d)), rng.normal(size=len(sizes))


@pytest.mark.exhaustive_cases("sizes2-1")
@pytest.mark.parametrize(("sizes", "d"), ((SIZES, D), ((2, 7, 1, 4), 6), ((3, 4), 1), ((3, 2, 4, 3, 5), 2)))
def test_measures_are_those_of_loops(sizes, d):
    features, labels, weights, bias = drawn(len(sizes), sizes, d)
    measured = cjx.neural_collapse(jnp.asarray(features, float), labels, weights, bias)
    expected = reference.neural_collapse(features, labels, weights, bias)
    np.testing.assert_allclose(values(measured), expected, rtol=1e-9, atol=1e-14)
    without = values(cjx.neural_collapse(jnp.asarray(features, float), labels, weights))
    expected = reference.neural_collapse(features, labels, weights, 0 * bias)
    np.testing.assert_allclose(without, expected, rtol=1e-9, atol=1e-14)


@pytest.mark.exhaustive_cases("2-1", "10-9")
@pytest.mark.parametrize(("classes", "d"), ((2, 1), (3, 2), (4, 7), (10, 9)))
def test_all_are_zero_at_a_simplex(classes, d):
    """All measures vanish for features at the corners of a shifted simplex and a classifier along these, any scale."""
    centred = np.eye(classes) - 1 / classes
    corners = centred @ np.linalg.svd(centred)[2][: classes - 1].T
    frame = np.linalg.qr(np.random.default_rng(classes).normal(size=(d, classes - 1)))[0]
    corners, labels = 3 * corners @ frame.T, np.repeat(np.arange(classes), 4)
    shift = np.full(d, 0.3)
    # With b = -<w, shift> the classifier decides as the nearest mean does.
    measure = lambda w: values(cjx.neural_collapse(jnp.asarray(corners[labels] + shift, float), labels, w, -w @ shift))
    np.testing.assert_allclose(measure(7 * corners), 0, atol=1e-12)
    np.testing.assert_allclose(measure(-7 * corners), [0, 0, 0, 0, 0, 4, 1], atol=1e-12)


def test_rotations_and_scales():
    features, labels, weights, bias = drawn(1, SIZES, D)
    turn = np.linalg.qr(np.random.default_rng(2).normal(size=(5, 5)))[0]
    plain = values(cjx.neural_collapse(jnp.asarray(features, float), labels, weights, bias))
    turned = values(cjx.neural_collapse(jnp.asarray(features @ turn, float), labels, weights @ turn, bias))
    np.testing.assert_allclose(turned, plain, rtol=1e-11)
    scaled = values(cjx.neural_collapse(jnp.asarray(1e3 * features, float), labels, 1e-3 * weights, bias))
    np.testing.assert_allclose(scaled, plain, rtol=1e-11)


@pytest.mark.parametrize("dtype", (np.float64, np.float32))
@pytest.mark.parametrize(("classes", "rank"), [(4, 3), (5, 1), *(pytest.param(*case, marks=pytest.mark.exhaustive)
                                               for case in ((2, 1), (6, 4)))])  # fmt: skip
def test_an_offset_changes_nothing(classes, rank, dtype):
    """NC1 to NC3 change only by the rounding of features, also for means that span fewer directions than they could."""
    rng = np.random.default_rng(classes)
    labels = np.repeat(np.arange(classes), 6)
    means = rng.normal(size=(classes, rank)) @ rng.normal(size=(rank, 16))
    features, weights = means[labels] + 0.1 * rng.normal(size=(len(labels), 16)), rng.normal(size=(classes, 16))
    if rank < classes - 1:  # the drawn features have class means of this lower rank as well
        for k in range(classes):
            features[labels == k] += means[k] - features[labels == k].mean(axis=0)
    for offset in (0.0, 1.0, 1e3, 1e6):
        if offset * np.finfo(dtype).eps > 1e-4:
            continue
        moved = jnp.asarray(features + offset, dtype)
        measured = cjx.neural_collapse(moved, labels, jnp.asarray(weights, dtype))
        # The reference takes the features as they were rounded: nothing else may be lost.
        wanted = reference.neural_collapse(np.asarray(moved, float) - offset, labels, weights, np.zeros(classes))
        eps = float(np.finfo(dtype).eps)
        np.testing.assert_allclose(values(measured)[:6], wanted[:6], rtol=300 * eps + offset**2 * eps**2, atol=10 * eps)


@pytest.mark.exhaustive_cases("0.0")
@pytest.mark.parametrize("offset", (0.0, 1e3))
def test_the_derivative_of_variability(offset):
    """The derivative agrees with central differences, and is zero at a simplex, where singular values are equal."""
    features, labels, weights, _ = drawn(5, SIZES, D)
    along = np.random.default_rng(6).normal(size=features.shape)
    measure = lambda x: cjx.neural_collapse(jnp.asarray(x, float), labels, weights).variability
    gradient = jax.jit(jax.grad(measure))
    rise = [float(measure(features + offset + step * along)) for step in (-1e-5, 1e-5)]
    assert np.sum(gradient(features + offset) * along) == pytest.approx((rise[1] - rise[0]) / 2e-5, rel=1e-6)
    np.testing.assert_allclose(gradient(np.eye(3, D)[labels] + offset), 0, atol=1e-9)


def test_equal_means_have_no_measures():
    """If means are equal up to rounding, only the measures of the classifier alone are numbers."""
    features, labels, weights, bias = drawn(3, SIZES, D)
    near = 0.1 * (1 + 4e-16 * labels[:, None]) * np.ones((1, D))
    measured = values(cjx.neural_collapse(jnp.asarray(near, float), labels, weights, bias))
    assert np.isnan(measured).tolist() == [True, True, False, True, False, True, True]
    assert np.isnan(values(cjx.neural_collapse(jnp.asarray(0 * features, float), labels, weights, bias))[0])


def test_traced_and_single():
    features, labels, weights, bias = drawn(4, SIZES, D)
    plain = cjx.neural_collapse(jnp.asarray(features, float), labels, weights, bias)
    traced = jax.jit(cjx.neural_collapse)
    np.testing.assert_allclose(values(traced(features, labels, weights, bias)), values(plain), rtol=1e-12)
    for bad in (0 * labels, labels + 1):
        assert np.isnan(values(traced(features, bad, weights, bias))[[0, 1, 3, 5, 6]]).all()
    single = cjx.neural_collapse(jnp.asarray(features, jnp.float32), labels, jnp.asarray(weights, jnp.float32))
    assert all(getattr(single, name).dtype == jnp.float32 for name in NAMES)
    np.testing.assert_allclose(
        values(single), values(cjx.neural_collapse(jnp.asarray(features, float), labels, weights)), rtol=1e-4
    )


X = jnp.asarray(np.eye(4), float)
BAD = {
    "label": (([0, 1, 2, 1], np.ones((2, 4))), "^labels must be from 0 to 1, but one is 2; pass"),
    "empty class": (
        ([0, 0, 2, 0], np.ones((3, 4))),
        "^labels must name each of 3 classes, but class 1 has no feature",
    ),
    "one class": (
        ([0, 0, 0, 0], np.ones((1, 4))),
        "^weights must have rows for 2 classes at least",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    arguments, words = BAD[name]
    with as_a_user(), pytest.raises(ValueError, match=words):
        cjx.neural_collapse(X, *arguments)


def test_half_precision():
    features, labels, weights, bias = drawn(3, SIZES, D)
    single, half = (cjx.neural_collapse(jnp.asarray(features, f"float{b}"), labels, weights, bias) for b in (32, 16))
    assert half.variability.dtype == jnp.float16
    np.testing.assert_allclose(values(half), values(single), rtol=0.1)
