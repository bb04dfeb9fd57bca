"""The figure at beta = 0: cross ratios, and evenly spaced tokens that a Moebius map has moved."""

import math

import numpy as np
import pytest

from clusterjax.experiments import Settings
from clusterjax.experiments.figures import moebius
from clusterjax.experiments.figures.moebius import EVEN, R0, TS, drift_of, moved_evenly


def test_cross_ratios_are_those_of_the_definition():
    xs = np.random.default_rng(0).normal(size=(8, 3, 5, 3))
    found = drift_of(xs)
    for s in range(8):
        ratios = []
        for t in range(3):
            x = xs[s, t]
            far = lambda i, j, x=x: math.dist(x[i], x[j])
            ratios.append(far(0, 1) * far(2, 3) / (far(0, 2) * far(1, 3)))
        np.testing.assert_allclose(found[s], np.abs(np.log(ratios) - np.log(ratios[0])), atol=1e-12)


@pytest.mark.parametrize("r", (0.0, 0.2, 0.6))
def test_moved_tokens_have_the_mean_and_the_cross_ratios_of_even_ones(r):
    """The moved tokens are on the circle, and have the mean r and the cross ratios of evenly spaced tokens."""
    x, even = moved_evenly(64, r), moved_evenly(64, 0.0)
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1.0, rtol=1e-14)
    np.testing.assert_allclose(x.mean(axis=0), [r, 0.0], atol=1e-13)
    both = np.stack([even, x])[None]
    assert drift_of(both).max() < 1e-12


@pytest.fixture(scope="module")
def found():
    """A measurement on the circle alone, since each dimension is compiled separately."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moebius, "DIMENSIONS", (2,))
        return moebius.measure(moebius.Parameters(n=5), Settings(starts=2, quick=True), lambda line: None)


@pytest.mark.exhaustive
def test_the_mean_follows_the_printed_numbers(found):
    """From r = 0.2 the formula agrees at t = 1, 2, 4, 6 to the printed digits, and 256 tokens nearly do."""
    printed = [0.31896496, 0.48518275, 0.83345624, 0.97151958]
    at = [int(np.argmin(np.abs(TS - t))) for t in (1, 2, 4, 6)]
    assert TS[at].tolist() == [1, 2, 4, 6] and R0 == 0.2
    np.testing.assert_allclose(found.exact[at], printed, rtol=0, atol=6e-9)
    np.testing.assert_allclose(found.mean[at[:3]], printed[:3], rtol=0, atol=1e-8)
    # The mean of n tokens is off by about its norm to the power n - 1, which matters near one.
    assert 1e-8 < np.abs(found.mean[-1] - printed[-1]) < 0.97151958 ** (EVEN - 1)
