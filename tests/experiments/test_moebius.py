"""What the experiment at beta = 0 measures: cross ratios, and tokens that a Moebius map has moved."""

import math

import numpy as np
import pytest

from clusterjax.experiments.moebius.measure import drift_of, moved_evenly


def test_cross_ratios_are_those_of_the_definition():
    xs = np.random.default_rng(0).normal(size=(2, 3, 5, 3))
    found = drift_of(xs)
    for s in range(2):
        ratios = []
        for t in range(3):
            x = xs[s, t]
            far = lambda i, j, x=x: math.dist(x[i], x[j])
            ratios.append(far(0, 1) * far(2, 3) / (far(0, 2) * far(1, 3)))
        np.testing.assert_allclose(found[s], np.abs(np.log(ratios) - np.log(ratios[0])), atol=1e-12)


@pytest.mark.parametrize("r", (0.0, 0.2, 0.6))
def test_moved_tokens_have_the_mean_and_the_cross_ratios_of_even_ones(r):
    """On the circle, with the mean r, and their cross ratios are those of evenly spaced tokens."""
    x, even = moved_evenly(64, r), moved_evenly(64, 0.0)
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1.0, rtol=1e-14)
    np.testing.assert_allclose(x.mean(axis=0), [r, 0.0], atol=1e-13)
    both = np.stack([even, x])[None]
    assert drift_of(both).max() < 1e-12
