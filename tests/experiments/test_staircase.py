"""The measurements of the staircase of the energy: energies, waits by the law of a pair, and the error of a slope."""

import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax.experiments.figures.staircase import draw_arc, energy_of, rest_of
from clusterjax.experiments.shared.ensemble import line_of
from clusterjax.experiments.shared.exact import pair_waits


def test_energy_is_the_mean_over_pairs():
    x = draw_arc(0, 1, 7, 0.5)[0]
    by_loop = sum(np.exp(40.0 * (float(x[i] @ x[j]) - 1)) for i in range(7) for j in range(7)) / 49
    assert energy_of(x, 40.0) == pytest.approx(by_loop, rel=1e-12)
    of_package = float(cjx.interaction_energy(jnp.asarray(x), 40.0))
    assert energy_of(x, 40.0) == pytest.approx(80 * np.exp(-40.0) * of_package, rel=1e-10)
    assert rest_of(np.array([0, 0, 0, 3])) == pytest.approx((9 + 1) / 16)


def test_waits_are_counted_from_the_merger_before():
    angles = np.array([0.0, 0.1, 0.4, 0.9])
    x0 = jnp.asarray(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    beta = 250.0
    tree = cjx.coarsen(cjx.AttentionField(cjx.SoftmaxAttention(beta)), x0, 1e300, tolerance=0.1 / beta**0.5)
    waits, laws = pair_waits(tree, beta, 1e3, whole=True)
    assert len(waits) == 1 and tree.times[1] > 1e3 > tree.times[0]
    assert waits[0] == pytest.approx(np.log10(tree.times[2] - tree.times[1])) and abs(waits[0] - laws[0]) < 0.05


def test_the_error_of_a_slope_is_over_starts():
    """The error is that of the sandwich of matrices; four copies of each wait in its start change nothing."""
    rng = np.random.default_rng(0)
    laws, starts = rng.uniform(1, 6, 40), np.repeat(np.arange(8), 5)
    waits = laws + 0.2 * rng.normal(size=8)[starts] + 0.1 * rng.normal(size=40)
    line = line_of(waits, laws, starts)
    x = np.stack([laws, np.ones(40)], axis=1)
    bread, missed = np.linalg.inv(x.T @ x), waits - x @ np.linalg.lstsq(x, waits)[0]
    sums = np.stack([(x * missed[:, None])[starts == start].sum(axis=0) for start in range(8)])
    assert line.error == pytest.approx(np.sqrt(8 / 7 * (bread @ sums.T @ sums @ bread)[0, 0]), rel=1e-9)
    assert line_of(*(np.repeat(part, 4) for part in (waits, laws, starts))).error == pytest.approx(line.error, rel=1e-9)
