"""The measurements of the experiment on Renyi centres, against loops and oracles: numbers, windows, and departures."""

import math

import numpy as np
import pytest

from clusterjax.experiments.figures import renyi_centres as renyi
from clusterjax.experiments.figures.renyi_centres import (
    PARKING,
    Followed,
    Parameters,
    follow,
    holding,
    mean_parked,
    pull,
    windows,
)
from clusterjax.experiments.framework.experiment import Settings
from tests import oracles
from tests.reference.observables import renyi_centres as by_loop


@pytest.mark.parametrize("beta", (1.0, 9.0, 64.0, 81.0))
def test_the_pull_is_largest_at_its_peak(beta):
    """The peak is that of C9, and the pull there that of the definition with the cosine."""
    peak = oracles.interaction_peak(beta)
    near = np.array([pull(peak * (1 + shift), beta) for shift in (-0.01, 0.0, 0.01)])
    assert near[1] == near.max() and near[0] < near[1] > near[2]
    np.testing.assert_allclose(near[1], math.exp(beta * (math.cos(peak) - 1)) * math.sin(peak), rtol=1e-12)


def test_windows_are_those_of_the_condition():
    """Windows satisfy T s h = epsilon c beta^(-1/2), so that later centres have shorter windows."""
    found = windows(np.array([2, 5, 100]), 0.5, 64.0, 0.1)
    h = math.exp(64 * (math.cos(0.5) - 1)) * math.sin(0.5)
    np.testing.assert_allclose(found * np.array([2, 5, 100]) * h, 0.05, rtol=1e-12)


def test_parking_is_that_of_a_loop_and_of_the_constant():
    """Parking gives 9.135 +- 0.030 at n = 200, delta = 0.5 (C11), Renyi's constant for many, a loop's mean for few."""
    (at_200,) = mean_parked(0.5, 200)
    assert abs(at_200 - 9.135) < 2 * 0.030
    np.testing.assert_allclose(mean_parked(0.5, 10**6), PARKING * 2 * np.pi / 0.5, rtol=2e-5)
    rng = np.random.default_rng(0)
    for n in (12, 30):
        angles = rng.uniform(0, 2 * np.pi, (4000, n))
        numbers = np.array([parked(row, 0.5) for row in angles])
        assert abs(numbers.mean() - mean_parked(0.5, n)[0]) < 4 * numbers.std() / np.sqrt(4000)
    # Nearly all of a few tokens are centres.
    np.testing.assert_allclose(mean_parked(1e-3, 2), 2.0, atol=1e-2)


def parked(angles, separation):
    """Returns the number of cars that park, each where no car is within `separation`."""
    there = []
    for angle in angles:
        apart = [abs((angle - other + np.pi) % (2 * np.pi) - np.pi) for other in there]
        if all(one > separation for one in apart):
            there.append(angle)
    return len(there)


@pytest.fixture(scope="module")
def found():
    """A measurement of few tokens on the circle."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(renyi, "DIMENSIONS", (2,))
        patch.setattr(renyi, "COUNTED", (2, 3))
        patch.setattr(renyi, "GROWN", 100)
        return renyi.measure(Parameters(n=12, beta=25.0, end=150.0), Settings(starts=2, quick=True), lambda line: None)


@pytest.mark.exhaustive
def test_counts_are_those_of_the_first_tokens(found):
    x = np.asarray(renyi.draw_starts(1, 2, 12, 2))
    for strong, counts in ((True, found.counts.strong[2]), (False, found.counts.ordinary[2])):
        assert counts.shape == (32, 12)
        for cloud in (0, 1):
            for k in (1, 5, 12):
                assert counts[cloud, k - 1] == by_loop(x[cloud, :k], 0.8, strong).sum()


@pytest.mark.exhaustive
def test_ordinary_centres_that_are_followed_are_not_strong(found):
    strong, other = found.followed[2, "strong"], found.followed[2, "ordinary"]
    pairs = lambda one: set(zip(one.starts.tolist(), one.tokens.tolist(), strict=True))
    assert not pairs(strong) & pairs(other) and all(token > 0 for _, token in pairs(strong) | pairs(other))
    assert pairs(found.followed[2, "margin"]) <= pairs(strong)
    x = np.asarray(renyi.draw_starts(0, 2, 12, 2))
    assert pairs(strong) == {(s, int(k)) for s in (0, 1) for k in np.flatnonzero(by_loop(x[s], 0.8, True)) if k}


def test_moves_and_windows_by_hand():
    """With one start, three tokens and two times, token 2 turns by 0.3 radians and token 3 stays."""
    angles = np.array([[0.0, 1.0, 2.0], [0.0, 1.3, 2.0]])
    xs = np.stack([np.cos(angles), np.sin(angles)], axis=2)[None]
    p = Parameters()
    one = follow(xs, np.array([[True, True, True]]), p)
    np.testing.assert_allclose(one.moved, [[0, 0.3], [0, 0]], atol=1e-12)
    assert one.tokens.tolist() == [1, 2]
    np.testing.assert_allclose(one.windows, windows(np.array([2, 3]), 0.5, 64.0, 0.1))


def test_who_left_and_who_left_too_early():
    """Token 1 leaves at t = 2 and comes back, token 2 never leaves, and token 3 leaves at t = 3 within its window."""
    ts = np.array([0.0, 1.0, 2.0, 3.0])
    moved = np.array([[0, 0, 0.2, 0], [0, 0, 0, 0.05], [0, 0, 0, 0.1]])
    one = Followed(np.zeros(3, int), np.arange(1, 4), moved, np.array([2.0, 9.0, 3.5]))
    stay = one.stay(ts, 0.1)
    assert stay.durations.tolist() == [2, 3, 3] and stay.censored.tolist() == [False, True, False]
    assert one.early(ts, 0.1).tolist() == [False, False, True]


def test_clusters_that_hold_a_centre_are_counted():
    angles = np.array([[0.0, 0.01, 1.0, 1.01, 2.0]])
    x = np.stack([np.cos(angles), np.sin(angles)], axis=2)
    marks = {"strong": np.array([[True, True, False, False, False]]),
             "ordinary": np.array([[True, False, False, True, False]])}  # fmt: skip
    found = holding(x, marks, Parameters())
    np.testing.assert_allclose([found["strong"][0], found["ordinary"][0]], [1 / 3, 2 / 3])


def test_the_error_of_a_share_is_over_starts():
    """Three starts have 1, 2 and 5 centres; the residuals of the ratio are computed by hand."""
    starts, near = np.repeat([0, 1, 2], [1, 2, 5]), np.array([1, 1, 0, 1, 0, 0, 0, 0], bool)
    one = Followed(starts, starts, np.zeros((8, 1)), np.zeros(8))
    residuals = [1 - 3 / 8 * 1, 1 - 3 / 8 * 2, 1 - 3 / 8 * 5]
    np.testing.assert_allclose(renyi._share(one, near, 3), [3 / 8, np.std(residuals, ddof=1) * 3**0.5 / 8], rtol=1e-12)
