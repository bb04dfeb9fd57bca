"""Steps of runs: a causal run takes few, and slopes do not depend on the size of the velocities."""

import numpy as np
import pytest

from clusterjax._coarsen import clouds, run, steps, velocity as laws
from tests.coarsen_cases import coarsen, field, on_the_circle, sphere


@pytest.mark.parametrize("size", (1e-300, 1e-200, 1e-126, 1e-124, 1.0, 1e124, 1e126, 1e200, 1e300))
def test_slopes_do_not_depend_on_the_size_of_velocities(size):
    velocity = np.array([[3.0, 0.0], [0.0, -4.0]])
    direction, slowness = steps.along_orbit(size * velocity, np.log(2.0))
    np.testing.assert_allclose(direction, [0.6, 0, 0, -0.8], rtol=1e-14)
    assert slowness == pytest.approx(np.log(0.4) - np.log(size), abs=1e-12)


@pytest.mark.exhaustive
def test_a_causal_run_to_the_end_takes_few_steps():
    """Tokens of a component pass each other closely: if these made steps short, 4,000 steps would not suffice."""
    tree = coarsen(field(9.0, causal=True), sphere(24, 3, seed=2), 1e300, tolerance=0.1, max_steps=800)
    assert len(tree) == 23 and 1e6 < tree.times[-1] < 1e8
    # All tokens are at the first token, which has not moved.
    np.testing.assert_allclose(tree.at(1e300), np.tile(sphere(24, 3, seed=2)[0], (24, 1)), atol=1e-6)


def test_only_tokens_of_different_components_make_a_step_short():
    y, slopes = on_the_circle(0.0, 0.1, 2.0), np.zeros((3, 2))
    slopes[1] = [np.sin(0.1), -np.cos(0.1)]  # the second token moves towards the first
    apart = np.linalg.norm(y[:, None] - y[None], axis=2)
    alone, joined = (run._reach(y, slopes, apart, np.array(of)) for of in ([0, 1, 2], [0, 0, 2]))
    assert alone == pytest.approx(0.8 * 0.1, rel=1e-2) and joined == np.inf


def test_distances_are_of_the_clusters_when_as_many_are_let_go_as_become_one(monkeypatch):
    """One pair of tokens becomes one; later it is released and another pair becomes one: the number is the same."""
    flow, x, masses = laws.Law(4.0, None, None, 1.0, True, True, 0.0), sphere(5, 3, seed=1), np.ones(5)
    sizes, reach, seen = [], run._reach, []

    def as_many(flow, cloud, radius):
        sizes.append(len(cloud.first))
        if len(sizes) == 2:
            return clouds._joined(flow, cloud, np.array([0, 1]), np.inf)
        if len(sizes) == 4:
            alone = clouds.start(flow, cloud.y[cloud.cluster], masses)
            return clouds._joined(flow, alone, np.array([3, 4]), np.inf)
        return cloud

    def checked(y, slopes, apart, component):
        np.testing.assert_allclose(apart, clouds.distances(y), atol=1e-15)
        seen.append(len(y))
        return reach(y, slopes, apart, component)

    monkeypatch.setattr(run, "released", as_many)
    monkeypatch.setattr(run, "_reach", checked)
    with pytest.raises(run.Stalled):
        run.run(flow, x, masses, 1e9, 0.1, 1e-5, 8)
    assert seen[:5] == [5, 5, 4, 4, 4]
