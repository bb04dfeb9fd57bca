"""The lemma of 2410.06833 on how soon a pair meets, oracle M1, against its equation and against `coarsen`."""

import numpy as np
import pytest
from scipy.integrate import quad

from tests.coarsen_cases import coarsen, field, on_the_circle


def lemma(u0, beta, c):
    r"""The latest time at which $\dot u = u (1 - u) e^{\beta(u - 1)}$ comes from u0 to $1 - u \le e^{-c\beta}$."""
    return np.exp(beta * (1 - u0)) / u0 + beta**2 * c * np.e / (beta - 1)


def by_equation(u0, beta, c):
    """The time at which u comes to this value, by quadrature."""
    slowness = lambda u: np.exp(beta * (1 - u)) / (u * (1 - u))
    return quad(slowness, u0, 1 - np.exp(-c * beta), epsabs=0, epsrel=1e-12, limit=500)[0]


def test_the_oracle():
    assert by_equation(0.7, 10.0, 0.6) == pytest.approx(15.478668, abs=1e-6)
    assert lemma(0.7, 10.0, 0.6) == pytest.approx(46.8155, abs=1e-4)


@pytest.mark.parametrize(("u0", "beta", "c"), [(0.7, 10.0, 0.6), (0.1, 20.0, 0.3), (0.5, 40.0, 0.2)])
def test_two_tokens_meet_before_the_lemma_says(u0, beta, c):
    """Their cosine grows by 2 (1 - u^2) / (1 + e^(beta (1 - u))), which for u > 0 is faster than in the equation."""
    tree = coarsen(field(beta), on_the_circle(0.0, np.arccos(u0)), 1e300, tolerance=np.sqrt(2 * np.exp(-c * beta)))
    latest = by_equation(u0, beta, c)
    assert len(tree) == 1 and tree.times[0] < latest < lemma(u0, beta, c)
    # The factor between them is 2 (1 + u) / (u (1 + e^(-beta (1 - u)))), which is at most the factor here.
    assert tree.times[0] > latest / (2 * (1 + u0) / u0)
