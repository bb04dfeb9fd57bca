"""Figure 7: unscaled V beside scaled V, and all heads: which of them repel, and whose tokens stay apart."""

import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax.experiments.figures.figure7 import (
    I6,
    TS,
    Parameters,
    runs_of_heads,
)
from clusterjax.experiments.framework.verdict import Subject
from clusterjax.experiments.shared.ensemble import draw_starts, run_ensemble
from clusterjax.experiments.shared.trained_values import TrainedValues, leading_block


def source(*tops, scale=4.0):
    """Heads with three real eigenvalues each, the largest of which is given."""
    spectra = [scale * np.array([top, top - 0.1, top - 0.2], complex) for top in tops]
    matrices = np.stack([leading_block(one) for one in spectra])
    return TrainedValues(matrices, spectra, int(np.argmax(tops)), "a network", scale, Subject("it", "a network"))


def test_cases_of_heads():
    """A pair turns unless it repels, in either order of its two eigenvalues."""
    spectra = [np.array([0.1 - 2j, 0.1 + 2j, 0.05]), np.array([-0.1 + 2j, -0.1 - 2j, -1.0]), np.array([0.2, 0.1, -9.0])]
    matrices = np.stack([leading_block(one) for one in spectra])
    some = TrainedValues(matrices, spectra, 0, "a network", 4.0, Subject("it", "a network"))
    assert some.cases.tolist() == ["rotating", "repulsive", "attractive"]
    np.testing.assert_array_equal(some.cases == "repulsive", some.repelling)


@pytest.mark.exhaustive
def test_runs_and_heads_are_simulated():
    """The unscaled run is the scaled run, slower by the factor; each head has its own V, and two starts."""
    x0, p = draw_starts(0, 6, 64, 3), Parameters()
    some = source(0.5, -0.5, 0.25, scale=2.0)
    raw, run = (run_ensemble(x0, TS, beta=1.0, value=value) for value in (some.raw[0], some.value))
    np.testing.assert_allclose(raw.xs[:, ::2], run.xs[:, :31], rtol=0, atol=1e-5)
    assert max(raw.off, run.off) < 1e-6 and run.clusters[:, 0].min() > 40
    every = runs_of_heads(x0, some.matrices, p)
    which = np.arange(6) % 3 == 0
    expected = run.clusters[which][:, [I6, -1]].mean(axis=0)
    np.testing.assert_allclose((every.at6[0][0], every.at15[0][0]), expected, atol=1e-9)
    assert every.starts == 2 and every.at15[0][1] > 32 > every.at15[0][0]
    assert runs_of_heads(jnp.asarray(x0[:2]), some.matrices, p).at15[1].shape == (3,)
