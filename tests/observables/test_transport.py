"""The Wasserstein distance: against all permutations, on generic and degenerate clouds, and its known properties."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment, linprog

import clusterjax as cjx
from tests import oracles
from tests.helpers import as_a_user
from tests.reference import transport as reference


FLAT = cjx.Euclidean()


def clouds(seed, n, d, sphere):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(2, n, d))
    if sphere:
        x, y = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (x, y))
    return x, y


@pytest.mark.parametrize("d", (1, 2, 3, 5))
@pytest.mark.parametrize("sphere", (True, False))
@pytest.mark.parametrize("p", (1.0, 2.0, 3.5))
def test_it_is_the_best_of_all_permutations(d, sphere, p):
    for seed in range(4):
        x, y = clouds(seed, 6, d, sphere)
        found = cjx.wasserstein(x, y, p, space=cjx.Sphere() if sphere else FLAT)
        assert found == pytest.approx(reference.wasserstein(x, y, p, sphere), abs=1e-7)


@pytest.mark.parametrize("d", (2, 3))
def test_degenerate_clouds(d):
    """Clouds may have heaps, repeats, antipodes, and tokens on both sides of the cut of the circle."""
    x, y = clouds(1, 6, d, True)
    pole = np.eye(d)[:1]
    near = np.array([[-1, 1e-3, 0][:d], [-1, -1e-3, 0][:d]])
    for one, other in (
        (np.repeat(x[:1], 6, 0), y), (np.concatenate([x[:3], -x[:3]]), np.concatenate([y[:3], y[:3]])),
        (np.repeat(pole, 6, 0), -np.repeat(pole, 6, 0)), (np.repeat(near[:1], 6, 0), np.repeat(near[1:], 6, 0)),
    ):  # fmt: skip
        one, other = (cloud / np.linalg.norm(cloud, axis=1, keepdims=True) for cloud in (one, other))
        for p in (1.0, 2.0):
            assert cjx.wasserstein(one, other, p) == pytest.approx(reference.wasserstein(one, other, p, True), abs=1e-7)
    assert cjx.wasserstein(x, x[::-1]) == pytest.approx(0, abs=1e-7)
    assert cjx.wasserstein(pole, -pole) == pytest.approx(np.pi)


@pytest.mark.parametrize(("d", "sphere"), [(1, False), (2, True), (3, True), (2, False)])
def test_masses_are_repeated_tokens(d, sphere):
    """Small whole masses are equivalent to so many copies of a token, and masses of zero to none."""
    space = cjx.Sphere() if sphere else FLAT
    x, y = clouds(7, 6, d, sphere)
    first, second = np.array([1, 2, 0, 1, 2]), np.array([3, 1, 2])
    found = cjx.wasserstein(x[:5], y[:3], space=space, masses=(first, 5.0 * second))
    wanted = reference.wasserstein(np.repeat(x[:5], first, 0), np.repeat(y[:3], second, 0), 2, sphere)
    assert found == pytest.approx(wanted, abs=1e-7)


def repeated(x, y, p, sphere):
    """W_p of 8 and 6 tokens of equal mass, as an assignment of each x three times and each y four times. The unit of
    costs is the largest distance of the assignment: otherwise powers are lost for clusters of several widths.
    """
    far = np.array([[reference.distance(a, b, sphere) for b in y] for a in x])
    far, unit = np.repeat(np.repeat(far, 3, 0), 4, 1), far.max()
    for _ in range(6):
        gone = far[linear_sum_assignment(np.minimum(far / unit, 1e150 ** (1 / p)) ** p)]
        unit = gone.max()
    return unit * np.mean((gone / unit) ** p) ** (1 / p)


@pytest.mark.parametrize(("d", "sphere"), [(1, False), (2, False), (3, False), (2, True), (3, True), (4, True)])
@pytest.mark.parametrize("p", (1.0, 2.0, 4.0, 64.0))
@pytest.mark.parametrize("heads", (1, 2))
def test_clusters_of_any_width(d, p, heads, sphere):
    """W is right for 8 and 6 tokens in one cluster, or in two at antipodes, down to the width of rounding."""
    rng = np.random.default_rng(d)
    x, y = rng.normal(size=(8, d)), rng.normal(size=(6, d))
    side = [np.where(np.arange(n) < n // heads, 1, -1)[:, None] for n in (8, 6)]
    for width in (1e-4, 1e-9):
        one, other = (sign * np.eye(d)[0] + width * cloud for sign, cloud in zip(side, (x, y), strict=True))
        if sphere:
            one, other = (cloud / np.linalg.norm(cloud, axis=1, keepdims=True) for cloud in (one, other))
        found = cjx.wasserstein(one, other, p, space=cjx.Sphere() if sphere else FLAT)
        assert found == pytest.approx(repeated(one, other, p, sphere), rel=1e-12 + 1e-14 / width)
        masses = (np.full(8, 0.1), np.full(6, 3.7))
        same = cjx.wasserstein(one, other, p, space=cjx.Sphere() if sphere else FLAT, masses=masses)
        assert same == pytest.approx(found, rel=1e-12 + 1e-14 / width)


@pytest.mark.parametrize("d", (1, 2, 3))
def test_any_scale(d):
    """W scales with the clouds, for any p, with masses and without."""
    x, y = clouds(5, 7, d, False)
    for masses in (None, (np.arange(7), np.ones(7))):
        for p in (1.0, 2.0, 64.0):
            plain = cjx.wasserstein(x, y, p, space=FLAT, masses=masses)
            for scale in (2.0**-900, 2.0**-30, 2.0**30, 2.0**900):
                assert cjx.wasserstein(scale * x, scale * y, p, space=FLAT, masses=masses) / scale == pytest.approx(
                    plain, rel=1e-14
                )


@pytest.mark.parametrize("d", (2, 3))
def test_rounding_of_masses_is_not_carried(d):
    """Masses .1, .1, .1 and .3 differ by rounding, and the difference is not carried to the cluster at the antipode."""
    pole = np.eye(d)[:1]
    one = np.concatenate([np.repeat(pole, 3, 0), -pole])
    other = np.concatenate([pole, -pole]) + 1e-9 * np.eye(d)[1]
    found = cjx.wasserstein(one, other, masses=([0.1, 0.1, 0.1, 0.7], [0.3, 0.7]))
    assert found == pytest.approx(1e-9, rel=1e-5)


@pytest.mark.parametrize(("d", "sphere"), [(1, False), (2, True), (3, True)])
def test_a_little_mass_is_carried(d, sphere):
    """A mass of 1e-11 that moves by about 1 counts beside tokens that move by 1e-8."""
    x = np.eye(d)[:1] if sphere else np.zeros((1, 1))
    far, near = (np.eye(d)[1:2], np.array([[1.0, 1e-8, 0][:d]])) if sphere else (np.ones((1, 1)), np.full((1, 1), 1e-8))
    found = cjx.wasserstein(
        x, np.concatenate([near, far]), space=cjx.Sphere() if sphere else FLAT, masses=(np.ones(1), [1 - 1e-11, 1e-11])
    )
    assert found**2 == pytest.approx(1e-16 + 1e-11 * (np.pi**2 / 4 if sphere else 1), rel=1e-4)


@pytest.mark.parametrize("d", (2, 3))
def test_it_is_the_linear_programme(d):
    """For many tokens of any masses the distance is that of the linear programme over all pairs."""
    x, y = clouds(3, 30, d, True)
    masses = np.random.default_rng(4).uniform(size=(2, 30))
    cost = np.arccos(np.clip(x @ y.T, -1, 1))
    share = masses / masses.sum(axis=1, keepdims=True)
    rows = np.concatenate([np.kron(np.eye(30), np.ones(30)), np.kron(np.ones(30), np.eye(30))])
    for p in (1.0, 2.0):
        exact = linprog(cost.ravel() ** p, A_eq=rows, b_eq=share.ravel()).fun ** (1 / p)
        assert cjx.wasserstein(x, y, p, masses=(masses[0], masses[1])) == pytest.approx(exact, abs=1e-7)


BAD = {
    "y": (lambda x: cjx.wasserstein(x, x[:, :2]), "y must be tokens of the same dimension"),
    "number": (lambda x: cjx.wasserstein(x, x, masses=(np.ones(4), np.ones(5))), "masses must"),
    "one": (lambda x: cjx.wasserstein(x, x, masses=np.ones(5)), "masses must be a pair"),  # pyright: ignore
    "size": (lambda x: cjx.wasserstein(1e301 * x, x, space=FLAT), "x must be at most 1e"),
    "many": (lambda x: cjx.wasserstein(np.ones((9000, 3)), np.ones((9000, 3))), "x must make at most"),
}


@pytest.mark.parametrize(("make", "words"), BAD.values(), ids=BAD)
def test_bad_arguments(make, words):
    x, _ = clouds(0, 5, 3, True)
    with as_a_user(), pytest.raises(ValueError, match=f"^{words}.*; .*\\.$"):
        make(jnp.asarray(x, float))


@pytest.mark.exhaustive
def test_what_is_known():
    """Evenly spread tokens turn by the shortest way, W_2 along a flow has the speed of the flow, and W is a metric."""
    even = oracles.circle_tokens(2 * np.pi * np.arange(12) / 12)
    turned = oracles.circle_tokens(2 * np.pi * (np.arange(12) + 0.3) / 12)
    assert cjx.wasserstein(even, turned) == pytest.approx(0.3 * 2 * np.pi / 12, abs=1e-9)
    x = np.asarray(cjx.Sphere().sample(jr.key(0), 40, 3))
    field = cjx.AttentionField(cjx.SoftmaxAttention(4.0))
    speed = float(jnp.sqrt(jnp.mean(jnp.sum(field(0.0, jnp.asarray(x, float)) ** 2, axis=1))))
    later = cjx.simulate(field, jnp.asarray(x, float), jnp.array([0.0, 1e-4])).x1
    assert cjx.wasserstein(x, later) / 1e-4 == pytest.approx(speed, rel=1e-3)
    # W is a metric.
    y, z = clouds(9, 40, 3, True)
    assert cjx.wasserstein(x, z) <= cjx.wasserstein(x, y) + cjx.wasserstein(y, z)
    assert cjx.wasserstein(x, y) == pytest.approx(cjx.wasserstein(y, x), abs=1e-12)
    assert cjx.wasserstein(x, y, 1.0) <= cjx.wasserstein(x, y, 2.0)
