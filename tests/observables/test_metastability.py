import inspect

import numpy as np
import pytest
import scipy.integrate
import scipy.special

from clusterjax._observables import plateaus


def pair_cosine(c0, beta, m1, ts):
    """The cosine of two clusters of masses m1 and 1 - m1 (oracle 1.3), by SciPy."""
    m2 = 1 - m1

    def speed(t, c):
        first = m2 * np.exp(beta * (c - 1)) / (m1 + m2 * np.exp(beta * (c - 1)))
        second = m1 * np.exp(beta * (c - 1)) / (m2 + m1 * np.exp(beta * (c - 1)))
        return (1 - c**2) * (first + second)

    solution = scipy.integrate.solve_ivp(speed, (0, ts[-1]), [c0], "LSODA", t_eval=ts, rtol=1e-11, atol=1e-13)
    return solution.y[0]


def test_staircase():
    """The series has three levels with wobble, a jump within one sample, and a last level whose end is not seen."""
    ts = np.arange(0, 30, 0.5)
    values = np.where(ts < 10, 3.0, np.where(ts < 12, 2.0, 1.0)) + 0.04 * np.cos(40 * ts)
    found = plateaus(ts, values, tolerance=0.05, min_dwell=2.5)
    np.testing.assert_allclose(found.start, [0, 12], rtol=0, atol=0)
    np.testing.assert_allclose(found.stop, [9.5, 29.5], rtol=0, atol=0)
    np.testing.assert_allclose(found.level, [3, 1], rtol=0, atol=0.005)
    np.testing.assert_array_equal(found.escape_times, [10, np.inf])
    np.testing.assert_array_equal(found.dwell_times, [9.5, 17.5])
    assert len(found) == 2
    np.testing.assert_allclose(plateaus(ts, values, tolerance=0.05, min_dwell=1.5).start, [0, 10, 12], rtol=0, atol=0)
    assert len(plateaus(ts, values, tolerance=0.01, min_dwell=2.5)) == 0
    assert len(plateaus(ts, values, tolerance=1.1, min_dwell=2.5)) == 1


def test_counts_and_zero_tolerance():
    values = np.array([5, 5, 4, 3, 3, 3, 2, 2, 1])
    found = plateaus(np.arange(9), values, tolerance=0.0, min_dwell=1)
    np.testing.assert_array_equal(found.level, [5, 3, 2])
    np.testing.assert_array_equal(found.start, [0, 3, 6])
    np.testing.assert_array_equal(found.stop, [1, 5, 7])
    np.testing.assert_array_equal(found.escape_times, [2, 6, 8])


@pytest.mark.parametrize("seed", range(5))
def test_properties_of_the_definition(seed):
    """On a random walk at random times plateaus are within tolerance, long enough, disjoint, and longest first."""
    rng = np.random.default_rng(seed)
    ts, values = np.cumsum(rng.uniform(0.1, 1, 200)), np.cumsum(rng.normal(size=200))
    tolerance, min_dwell = 2.0, 3.0
    found = plateaus(ts, values, tolerance=tolerance, min_dwell=min_dwell)
    spread = lambda a, b: values[a : b + 1].max() - values[a : b + 1].min()
    free, expected = np.ones(200, dtype=bool), []
    while True:  # among all windows the longest free one is taken, again and again
        best = None
        for a in range(200):
            for b in range(a, 200):
                if not free[b] or spread(a, b) > 2 * tolerance:
                    break
                if free[a] and ts[b] - ts[a] >= min_dwell and (best is None or ts[b] - ts[a] > best[0]):
                    best = (ts[b] - ts[a], a, b)
        if best is None:
            break
        expected.append(best[1:])
        free[best[1] : best[2] + 1] = False
    expected.sort()
    assert len(expected) > 3
    np.testing.assert_array_equal(found.start, ts[[a for a, _ in expected]])
    np.testing.assert_array_equal(found.stop, ts[[b for _, b in expected]])
    for start, stop, level in zip(found.start, found.stop, found.level, strict=True):
        assert np.all(np.abs(values[(ts >= start) & (ts <= stop)] - level) <= tolerance + 1e-12)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"ts": [0.0, 1.0]}, "ts and values must be two series of one length"),
        ({"ts": [0.0, 1.0, 1.0]}, "ts must be finite and increase"),
        ({"values": [0.0, np.nan, 1.0]}, "values must be finite, but entry 1 is nan"),
    ],
)
def test_bad_input(change, words):
    arguments = {"ts": [0.0, 1.0, 2.0], "values": [0.0, 1.0, 2.0], "tolerance": 0.1, "min_dwell": 1.0, **change}
    with pytest.raises(ValueError, match=words):
        inspect.unwrap(plateaus)(arguments.pop("ts"), arguments.pop("values"), **arguments)


def test_dwell_and_escape_of_a_metastable_pair():
    """Two equal clusters at c0 = 0, beta = 20 stay within [0, 0.2] until the time of the exact inverse t(0.2)."""
    beta, n, gamma = 20.0, 2, 0.2
    a, ei, e1 = 1 / (n - 1), scipy.special.expi, scipy.special.exp1
    escape = (n - 1) * np.log(((n - 1) * gamma + 1) / (1 - gamma)) + ei(beta) - ei(beta * (1 - gamma))
    escape = (escape + np.exp(beta * (1 + a)) * (e1(beta * a) - e1(beta * (gamma + a)))) / (2 * n)
    ts = np.linspace(0, 1.5 * escape, 5001)
    found = plateaus(ts, pair_cosine(0.0, beta, 0.5, ts), tolerance=0.1, min_dwell=escape / 2)
    np.testing.assert_allclose(found.start[0], 0, rtol=0, atol=0)
    np.testing.assert_allclose(found.dwell_times[0], escape, rtol=0, atol=2 * ts[1])
    np.testing.assert_allclose(found.escape_times[0], found.stop[0] + ts[1], rtol=1e-12)
    np.testing.assert_allclose(found.level[0], 0.1, rtol=0, atol=1e-3)
