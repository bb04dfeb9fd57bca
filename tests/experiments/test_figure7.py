"""Figure 7: unscaled V beside scaled V, and all heads: which of them repel, and whose tokens stay apart."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax.experiments.figures.figure7 import (
    I6,
    TS,
    HeadRuns,
    Parameters,
    Results,
    metastable,
    repelling,
    runs_of_heads,
    segregated,
)
from clusterjax.experiments.framework.verdict import Subject
from clusterjax.experiments.shared.ensemble import Ensemble, draw_starts, first_token, run_ensemble
from clusterjax.experiments.shared.trained_values import TrainedValues, leading_block


def source(*tops, scale=4.0):
    """Heads with three real eigenvalues each, the largest of which is given."""
    spectra = [scale * np.array([top, top - 0.1, top - 0.2], complex) for top in tops]
    matrices = np.stack([leading_block(one) for one in spectra])
    return TrainedValues(matrices, spectra, int(np.argmax(tops)), "a network", scale, Subject("it", "a network"))


def runs(at6=15.0, at15=1.0, distance=0.1, off=1e-9):
    """Four starts of two tokens at this distance, with so many clusters at t = 6 and t = 15."""
    made = Ensemble(TS, np.zeros((4, len(TS), 2, 3)), np.zeros((4, 3, 3)))
    made.xs[:, :, 1, 0] = distance
    # The cached properties of a frozen dataclass stand in its __dict__.
    made.__dict__.update(clusters=np.tile(np.interp(TS, [0, 6, 15], [60, at6, at15]), (4, 1)), off=off)
    return made


def heads(*clusters):
    error = np.full(len(clusters), 0.1)
    return HeadRuns((np.array(clusters), error), (np.array(clusters), error), (error, error), 4)


SOME = source(0.25, -0.05, 0.1, -0.1)
MADE = Results(Parameters(), 0, 4, SOME, runs(58, 50, 1.1), runs(), heads(1, 60, 1, 60), heads(1, 60, 1, 60))


def test_unscaled_and_scaled_v():
    np.testing.assert_allclose(SOME.raw * 4.0, SOME.matrices)
    np.testing.assert_allclose(SOME.top, [0.25, -0.05, 0.1, -0.1])
    assert SOME.repelling.tolist() == [False, True, False, True] and SOME.head == 0
    assert SOME.value[0, 0] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("counts", "holds"), [((1, 55, 20, 60), True), ((1, 20, 20, 60), False), ((1, 55, 40, 60), False)]
)
def test_heads_that_repel_are_exactly_those_that_keep_tokens_apart(counts, holds):
    claim = repelling(replace(MADE, heads=heads(*counts)))
    assert claim.holds == holds and claim.value == 2 and "repelling heads [2, 4]" in claim.measured


def test_cases_of_heads():
    """A pair turns unless it repels, in either order of its two eigenvalues."""
    spectra = [np.array([0.1 - 2j, 0.1 + 2j, 0.05]), np.array([-0.1 + 2j, -0.1 - 2j, -1.0]), np.array([0.2, 0.1, -9.0])]
    matrices = np.stack([leading_block(one) for one in spectra])
    some = TrainedValues(matrices, spectra, 0, "a network", 4.0, Subject("it", "a network"))
    assert some.cases.tolist() == ["rotating", "repulsive", "attractive"]
    np.testing.assert_array_equal(some.cases == "repulsive", some.repelling)


@pytest.mark.parametrize(
    ("at6", "at15", "holds"), [(5, 4.8, True), (14, 1.3, False), (1.2, 1.0, False), (60, 59.8, False)]
)
def test_a_metastable_state_is_a_few_clusters_that_stay(at6, at15, holds):
    """One cluster is no metastable state, and neither are tokens that have not gathered at all."""
    claim = metastable(replace(MADE, run=runs(at6, at15), heads=heads(1.0, 60.0, 1.2, 5.0)))
    assert claim.holds == holds and claim.value == pytest.approx(at15)
    assert "the criterion holds for head 4 with scaled V and for no head with unscaled V" in claim.measured


def test_the_first_token_is_segregated_by_the_scaled_run():
    claim = segregated(MADE)
    assert not claim.holds and claim.value == pytest.approx(0.1) and "1.100 ± 0.000" in claim.measured
    assert segregated(replace(MADE, run=runs(distance=0.6))).holds and first_token(MADE).holds
    for wrong in ({"run": runs(off=1e-3)}, {"raw": runs(off=1e-3)}):
        assert not first_token(replace(MADE, **wrong)).holds


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
