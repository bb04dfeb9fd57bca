"""`coarsen`: tokens that come within the tolerance and part again in one step."""

import numpy as np

from clusterjax._coarsen import clouds, run, steps
from tests.clouds import cloud
from tests.coarsen_cases import agrees, coarsen, field, sphere
from tests.reference import coarsening as reference


def test_tokens_that_pass_each_other_within_a_step():
    # Token 5 passes token 3 at a distance of .1886, in one step.
    x0 = cloud("lattice", 6, 3, seed=7, sphere=True)
    masses = np.array([0.0, 0.5, 1.0, 0.0, 2.0, 1.7])
    options = {"causal": True, "masses": masses}
    found = agrees(x0, 1.0, 10.0, 0.2, options)
    assert found.pairs[0].tolist() == [3, 5] and found.bound.max() < 1e-6
    least = reference.least_distance(x0, 1.0, 3, 5, (1.5, 1.7), **options)
    touching, missing = (
        coarsen(field(1.0, None, masses, causal=True), x0, 10.0, tolerance=least + off) for off in (1e-9, -1e-9)
    )
    assert [3, 5] in touching.pairs.tolist() and [3, 5] not in missing.pairs.tolist()
    assert touching.times[0] < 1.7 < missing.times[0]


def passes_on_great_circles(seed):
    """A step of tokens on great circles, all distances at many shares of it, (shares, n, n), and pairs that pass."""
    y0, pull = sphere(8, 3, seed=seed), np.random.default_rng([seed, 1]).normal(size=(8, 3))
    pull -= np.sum(pull * y0, axis=1, keepdims=True) * y0
    # The length of a step is that of the path of all tokens, and some tenths at most.
    pull /= np.linalg.norm(pull)
    speeds, length = np.linalg.norm(pull, axis=1, keepdims=True), 0.5
    at = lambda s: y0 * np.cos(s * speeds) + pull / speeds * np.sin(s * speeds)
    slope = lambda s: np.append(pull * np.cos(s * speeds) - y0 * speeds * np.sin(s * speeds), 1.0)
    slopes, error = np.stack([slope(0.0), slope(length)]), np.zeros(y0.size + 1)
    apart = np.array([clouds.distances(at(s)) for s in np.linspace(0, length, 1001)])
    inner = np.triu(apart.min(axis=0) < np.minimum(apart[0], apart[-1]) - 1e-4, 1)
    return steps.Step(y0, at(length), 0.0, 1.0, length, slopes, error, None), apart, np.argwhere(inner)


def test_pairs_that_may_pass_are_never_too_few():
    kept, turned, every = 0, 0, np.ones((8, 8), bool)
    for seed in range(20):
        done, apart, pairs = passes_on_great_circles(seed)
        for i, j in pairs:
            least, turned = apart[:, i, j].min(), turned + 1
            assert run._may_pass(done, apart[-1], least, every)[i, j], "it is missed"
            kept += run._may_pass(done, apart[-1], 0.9 * least, every)[i, j]
    assert turned > 20 and kept < turned / 2, "hardly any is told apart"
