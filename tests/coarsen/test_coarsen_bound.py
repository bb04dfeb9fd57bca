"""The bound of `coarsen` on tokens that become one too early, and the gradient of each merger time behind it."""

import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax._coarsen import bound, clouds, run, velocity as laws
from tests.coarsen_cases import coarsen, field, gradient_of_time, on_the_circle, sphere, unit
from tests.reference import coarsening as reference


@pytest.mark.parametrize(
    ("beta", "early", "starts"),
    [
        (2.0, 0.003, 2),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in ((2.0, 0.003, 24), (2.0, 0.01, 24), (4.0, 0.003, 24))
        ),
    ],
)
def test_the_bound_covers_tokens_that_become_one_far_too_early(beta, early, starts):
    # Tokens become one at a distance where the difference shows, in place of 1e-5.
    law, shown = laws.Law(beta, None, None, 1.0, True, False, 0.0), 0.0
    for seed in range(starts):
        x0, masses = sphere(6, 3, seed), np.random.default_rng(seed).uniform(0.3, 2, 6)
        fine, coarse = (run.run(law, x0, masses, 1e9, 0.1, inner, 10_000) for inner in (1e-7, early))
        exact, found = (np.array([merger.time for merger in each.mergers]) for each in (fine, coarse))
        off, bounds = np.abs(found - exact) / exact, bound.relative_errors(coarse)
        assert np.all(off <= bounds + 1e-9) and bounds.max() < (0.1 if early < 0.01 else 1)
        shown = max(shown, off.max())
    assert shown > 1e-5


@pytest.mark.exhaustive_cases("sphere", "three")
@pytest.mark.parametrize(
    ("x0", "masses"),
    [
        (on_the_circle(0.0, 1.1, 2.9), (1, 1, 1)),
        (sphere(4, 3, seed=7), (0.6, 1.5, 1, 1)),
        (sphere(3, 3, seed=2), (2, 1, 1)),
    ],
    ids=["circle", "sphere", "three"],
)
def test_the_gradient_of_a_merger_time(x0, masses):
    """The gradient of each merger time agrees with differences of whole runs in three directions."""
    law, masses = laws.Law(6.0, None, None, 1.0, True, False, 0.0), np.array(masses, float)
    follow = lambda x: run.run(law, x / np.linalg.norm(x, axis=1)[:, None], masses, 1e12, 0.1, 1e-7, 10_000)
    monitored = follow(x0)
    assert len(monitored.mergers) == len(x0) - 1
    steps = np.random.default_rng(0).normal(scale=1e-5, size=(3, *x0.shape))
    times = [[[one.time for one in follow(x0 + sign * step).mergers] for sign in (1, -1)] for step in steps]
    change = np.array(times)[:, 0] - np.array(times)[:, 1]
    for number, merger in enumerate(monitored.mergers):
        gradient = gradient_of_time(law, monitored, merger)
        found = 2 * merger.time * np.sum(gradient * steps, axis=(1, 2))
        np.testing.assert_allclose(found, change[:, number], rtol=0, atol=2e-3 * np.abs(change[:, number]).max())


def test_the_spread_of_a_cluster_is_its_mean_square_distance():
    rng = np.random.default_rng(3)
    x = np.array([0.0, 0.6, 0.8]) + 1e-3 * rng.normal(size=(5, 3))
    x, masses = unit(x), rng.uniform(0.2, 2, 5)
    flow = laws.Law(1.0, None, None, 1.0, True, False, 0.0)
    found = clouds.start(flow, x, masses)
    for group in ([0, 1], [0, 1, 2, 3]):  # the first group is within the second: spreads add up
        found = clouds._joined(flow, found, np.array(group), 1e-3)
    expected, gap = 0.0, 0.0
    for mass, token in zip(masses, x, strict=True):
        expected += mass / masses.sum() * np.sum((token - found.y[0]) ** 2)
        gap = max(gap, np.linalg.norm(token - found.y[0]))
    # The middle of the first two lies on the sphere and not on their chord.
    np.testing.assert_allclose(found.spread[0], expected, rtol=1e-2)
    assert gap <= found.radius[0] <= 3 * gap


def test_tokens_that_part_again_do_not_become_one():
    """At the pole from which V = diag(1, -1) repels, tokens part although they are near enough to become one."""
    x0 = np.array([[1e-7, 1.0], [-1e-7, 1.0]])
    tree = coarsen(field(1.0, np.diag([1.0, -1.0])), x0, 60.0, tolerance=0.1)
    np.testing.assert_allclose(tree.at(60.0), [[1.0, 0.0], [-1.0, 0.0]], rtol=0, atol=1e-6)


@pytest.mark.parametrize("value", [None, np.array([[1.2, 0.3, 0.0], [-0.2, 0.9, 0.1], [0.1, 0.0, 0.4]])])
@pytest.mark.parametrize(("normalised", "causal"), [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize("form", [None, np.array([[0.9, 0.3, -0.2], [0.0, 0.7, 0.4], [0.3, -0.1, 0.8]])])
def test_derivatives_are_those_of_velocities(value, normalised, causal, form):
    """Jacobian and product agree with differences of the double loop in tangent directions, and with each other."""
    x, masses, h = sphere(5, 3, seed=2), np.array([1.0, 0.4, 2.0, 1.0, 0.7]), 1e-6
    flow = laws.Law(3.0, form, value, 1.0 if value is not None else 1.3, normalised, causal, 0.0)
    cloud = clouds.start(flow, x, masses)
    held, velocity = laws.jacobian(flow, x, cloud.attended)
    again, product = laws.transposed(flow, x, cloud.attended)
    pace = np.exp(laws.moves(flow, x, cloud.attended).unit)
    options = {
        "form": form,
        "value": 1.3 * np.eye(3) if value is None else value,
        "masses": masses,
        "causal": causal,
        "normalised": normalised,
    }
    np.testing.assert_allclose(velocity / pace, reference.velocity(x, 3.0, **options), atol=1e-14)
    np.testing.assert_allclose(again, velocity, atol=1e-15)
    rng = np.random.default_rng(0)
    tangent = lambda one: one - np.sum(one * x, axis=-1, keepdims=True) * x
    directions, gradients = tangent(rng.normal(size=(3, 5, 3))), tangent(rng.normal(size=(4, 5, 3)))
    for one in directions:
        ends = [reference.velocity(unit(x + sign * h * one), 3.0, **options) for sign in (1, -1)]
        found = (held @ one.ravel()).reshape(5, 3) / pace
        np.testing.assert_allclose(found, (ends[0] - ends[1]) / (2 * h), atol=1e-8)
    by_matrix = tangent((gradients.reshape(4, -1) @ held).reshape(4, 5, 3))
    np.testing.assert_allclose(product(gradients), by_matrix, atol=1e-14)


def test_an_unknown_place_of_tokens_counts_only_where_their_cluster_does():
    """The place of the last token, which begins at the first, has no bound; the first mergers are without these two."""
    x0 = on_the_circle(-0.6545, -0.599, 1.5612, 0.8153, -0.6545)
    masses = jnp.array([0.0377, 0.4877, 1e-4, 0.7208, 0.1961])
    # Infinity times zero would give a warning, which is an error in tests.
    tree = coarsen(field(300.0, masses=masses, causal=True), x0, 1e300, tolerance=0.05)
    assert not np.isnan(tree.bound).any() and tree.bound[0] < 1e-6


def test_clusters_that_hardly_come_nearer_to_each_other_bound_no_step():
    """The time in which clusters would meet overflows, and is infinite without a warning."""
    tree = coarsen(field(2000.0, normalised=False, offset=2000.0), sphere(4, 3, 5), 1e300, tolerance=0.05)
    assert np.all(tree.bound < 1e-6)
