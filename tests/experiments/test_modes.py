"""The number of modes of a density of tokens, oracle M2: pairs, a fine grid, the formula of Kac and Rice, the law."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from clusterjax.experiments.figures.staircase import POWERS, counts_of_normal, laws_of, modes_of, slopes_of


def density(places, x, beta):
    return np.array([sum(np.exp(-beta * (t - token) ** 2 / 2) for token in x) for t in places])


@pytest.mark.parametrize("beta", [0.25, 1.0, 400.0])
def test_two_tokens_have_two_modes_if_they_are_two_widths_apart(beta):
    for apart, many in ((0.0, 1), (1.9, 1), (1.99, 1), (2.01, 2), (2.1, 2), (40.0, 2), (4000.0, 2)):
        found = modes_of(np.array([5.0, 5.0 + apart / beta**0.5]), beta)
        assert len(found) == many, apart
        if many == 1:
            assert found[0] == pytest.approx(5 + apart / beta**0.5 / 2, abs=0.02 / beta**0.5)


def test_degenerate_clouds():
    assert modes_of(np.array([3.0]), 9.0) == pytest.approx(3.0) and len(modes_of(np.full(7, -2.0), 9.0)) == 1
    # On a lattice with a spacing of three widths each token has a mode; with half a width all tokens share one.
    lattice = np.arange(20.0)
    assert len(modes_of(lattice, 9.0)) == 20 and len(modes_of(lattice[:6], 0.25)) == 1
    # Tokens may be so far apart that the density between them is zero in floats; their order does not matter.
    far = np.array([1e6, 0.0, -1e6, 0.1])
    np.testing.assert_allclose(modes_of(far, 1.0), [-1e6, 0.05, 1e6], atol=1e-3)


@pytest.mark.exhaustive_cases("200-400.0")
@pytest.mark.parametrize(("n", "beta"), [(40, 30.0), (200, 400.0), (60, 3000.0)])
def test_modes_are_the_maxima_on_a_finer_grid(n, beta):
    x = np.random.default_rng(n).normal(size=n)
    width = beta**-0.5
    places = np.arange(x.min() - width, x.max() + width, width / 40)
    values = density(places, x, beta)
    highest = places[1:-1][(values[1:-1] > values[:-2]) & (values[1:-1] > values[2:])]
    found = modes_of(x, beta)
    assert len(found) == len(highest) > 4
    np.testing.assert_allclose(found, highest, atol=width / 20)
    np.testing.assert_allclose(modes_of(2 * x + 1, beta / 4), 2 * found + 1, atol=1e-9)


def kac_rice(n, beta, reach):
    """The expected number of modes within `reach` of zero if the two derivatives are jointly normal."""

    def moment(t, power, c):
        # The mean of u^power e^(-c u^2 / 2) for u normal around t.
        mean, variance = t / (1 + c), 1 / (1 + c)
        raw = [1.0, mean]
        for k in range(2, power + 1):
            raw.append(mean * raw[k - 1] + (k - 1) * variance * raw[k - 2])
        return (1 + c) ** -0.5 * np.exp(-c * t**2 / 2 / (1 + c)) * raw[power]

    def rate(t):
        first = -beta * moment(t, 1, beta)
        second = beta**2 * moment(t, 2, beta) - beta * moment(t, 0, beta)
        of = lambda power: moment(t, power, 2 * beta)
        a = (beta**2 * of(2) - first**2) / n
        b = (-(beta**3) * of(3) + beta**2 * of(1) - first * second) / n
        c = (beta**4 * of(4) - 2 * beta**3 * of(2) + beta**2 * of(0) - second**2) / n
        mean, spread = second - b / a * first, (c - b**2 / a) ** 0.5
        falls = spread * norm.pdf(mean / spread) - mean * norm.cdf(-mean / spread)
        return norm.pdf(first / a**0.5) / a**0.5 * falls

    return quad(rate, -reach, reach, limit=200)[0]


@pytest.mark.parametrize(("n", "beta"), [(2048, 200.0), pytest.param(4096, 1500.0, marks=pytest.mark.exhaustive)])
def test_as_many_as_the_formula_of_kac_and_rice_says(n, beta):
    counts = []
    for seed in range(60):
        modes = modes_of(np.random.default_rng([seed, n]).normal(size=n), beta)
        counts.append(np.sum(np.abs(modes) < 1))
    error = np.std(counts, ddof=1) / np.sqrt(len(counts))
    # Two in a hundred are allowed: windows hold finitely many tokens, so that derivatives are only nearly normal.
    assert abs(np.mean(counts) - kac_rice(n, beta, 1.0)) < 4 * error + 0.02 * np.mean(counts)


def test_the_law_and_what_it_is_not():
    sizes = (256, 512, 1024, 2048)
    law, root = laws_of(sizes)
    assert law[1, 0] == pytest.approx((256 * np.log(256)) ** 0.5) and root[0, 3] == pytest.approx(2048 ** (1 / 3))
    exact = np.stack([3.0 * law, 0.5 * law], axis=1)
    np.testing.assert_allclose(slopes_of(exact, law), 1, rtol=1e-12)
    assert np.all(slopes_of(exact, root) > 1.05) and np.all(slopes_of(exact**2, law) > 1.9)
    counts = counts_of_normal(0, sizes, 12)
    np.testing.assert_array_equal(counts_of_normal(0, sizes, 2), counts[:, :2])
    assert counts.shape == (len(POWERS), 12, 4)
    slopes = slopes_of(counts, law)
    assert np.all(np.abs(slopes.mean(axis=1) - 1) < 0.05 + 4 * slopes.std(axis=1, ddof=1) / 12**0.5)
