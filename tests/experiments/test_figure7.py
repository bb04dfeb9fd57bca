"""Figure 7: V as it comes beside its time rescaled, and all heads: which of them repel, and what stays apart."""

import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax.experiments.figures.figure7 import (
    I6,
    TS,
    HeadRuns,
    Parameters,
    Results,
    Runs,
    _repelling_words,
    claims_of as claims_of_measured,
)
from clusterjax.experiments.framework.verdict import Subject
from clusterjax.experiments.shared.ensemble import draw_starts
from clusterjax.experiments.shared.trained_values import TrainedValues, leading_block


def source(*tops, scale=4.0):
    """HeadRuns with three real eigenvalues each, the largest this; `scale` of them is in the pictures."""
    spectra = [scale * np.array([top, top - 0.1, top - 0.2], complex) for top in tops]
    matrices = np.stack([leading_block(one) for one in spectra])
    return TrainedValues(matrices, spectra, int(np.argmax(tops)), "a network", scale, Subject("it", "a network"))


def runs(at6, at15, distance, off=1e-9):
    """Four starts with so many clusters at t = 6 and t = 15."""
    clusters = np.tile(np.interp(TS, [0, 6, 15], [60, at6, at15]), (4, 1))
    return Runs(np.zeros((4, len(TS), 2, 3)), clusters, np.full((4, len(TS)), distance), off)


def heads(clusters):
    mean = np.array([[one, one, 0.5] for one in clusters], float)
    return HeadRuns(mean, np.full(mean.shape, 0.1), 4)


def claims_of(values, raw, run, raw_heads, heads):
    return claims_of_measured(Results(Parameters(), 0, 4, values, raw, run, raw_heads, heads))


def claim_of(claims, start):
    (claim,) = [claim for claim in claims if claim.says.startswith(start)]
    return claim


SOME = source(0.25, -0.05, 0.1, -0.1)


def test_v_as_it_comes_and_rescaled():
    np.testing.assert_allclose(SOME.raw * 4.0, SOME.matrices)
    np.testing.assert_allclose(SOME.top, [0.25, -0.05, 0.1, -0.1])
    assert SOME.repelling.tolist() == [False, True, False, True] and SOME.head == 0
    assert SOME.value[0, 0] == pytest.approx(1.0)
    assert "2 of the 4 heads repel (vermilion)" in _repelling_words(SOME)
    assert "from -0.100 to -0.050 as they come" in _repelling_words(SOME)
    assert _repelling_words(source(0.25, 0.1)) == "None of the 2 heads repels."


@pytest.mark.parametrize(
    ("counts", "holds"), [((1, 55, 20, 60), True), ((1, 20, 20, 60), False), ((1, 55, 40, 60), False)]
)
def test_heads_that_repel_are_just_those_that_keep_tokens_apart(counts, holds):
    claims = claims_of(SOME, runs(58, 50, 1.1), runs(15, 1, 0.1), heads((50, 60, 57, 60)), heads(counts))
    claim = claim_of(claims, "Heads whose V has its top eigenvalue left of zero repel")
    assert claim.holds == holds and claim.value == 2
    assert "heads [2, 4] repel: largest real part from -0.100 to -0.050" in claim.measured
    assert "heads [1, 3] do not: largest real part from 0.100 to 0.250" in claim.measured
    assert claim.measured.endswith("of the others heads [1, 3] attract (real), heads [] turn (a complex pair)")


def test_cases_of_heads_as_they_come_and_rescaled():
    """A pair turns unless it repels, in whichever order its two eigenvalues stand."""
    spectra = [np.array([0.1 - 2j, 0.1 + 2j, 0.05]), np.array([-0.1 + 2j, -0.1 - 2j, -1.0]), np.array([0.2, 0.1, -9.0])]
    matrices = np.stack([leading_block(one) for one in spectra])
    some = TrainedValues(matrices, spectra, 0, "a network", 4.0, Subject("it", "a network"))
    assert some.cases.tolist() == ["rotating", "repulsive", "attractive"]
    np.testing.assert_array_equal(some.cases == "repulsive", some.repelling)


@pytest.mark.parametrize(
    ("at6", "at15", "holds"), [(5, 4.8, True), (14, 1.3, False), (1.2, 1.0, False), (60, 59.8, False)]
)
def test_metastable_are_a_few_clusters_that_stay(at6, at15, holds):
    """Not one cluster, and not tokens that have not gathered at all, which V as it comes leaves; both are told."""
    slow = heads((20.0, 60.0, 20.0, 3.0))
    claims = claims_of(SOME, runs(58, 50, 1.1), runs(at6, at15, 0.1), slow, heads((1.0, 60.0, 1.2, 5.0)))
    claim = claim_of(claims, "The system converges to a metastable state")
    assert claim.holds == holds and claim.value == pytest.approx(at15)
    assert "with V as it comes 58.00 ± 0.00 and 50.00 ± 0.00" in claim.measured
    assert "at 1 [4] of the 4 heads, as they come at 3 [1, 3, 4]" in claim.measured


def test_the_first_token_is_apart_by_the_rescaled_run():
    claims = claims_of(SOME, runs(58, 50, 1.1), runs(15, 1, 0.1), heads((1, 60, 1, 60)), heads((1, 60, 1, 60)))
    claim = claim_of(claims, "The initial token is segregated")
    assert not claim.holds and claim.value == pytest.approx(0.1) and "1.100 ± 0.000" in claim.measured
    exact = claim_of(claims, "The first token follows")
    assert exact.holds and exact.kind == "identity"
    for one, other in ((1e-9, 1e-3), (1e-3, 1e-9)):
        wrong = claims_of(SOME, runs(1, 1, 1, one), runs(1, 1, 1, other), heads((1,) * 4), heads((1,) * 4))
        assert not claim_of(wrong, "The first token follows").holds


def test_runs_and_heads_are_simulated():
    """The run as it comes is the rescaled one, slower by the factor; each head has its own V, and two starts."""
    x0 = draw_starts(0, 6, 64, 3)
    some = source(0.5, -0.5, 0.25, scale=2.0)
    raw, run = Runs.of(x0, some.raw[0]), Runs.of(x0, some.value)
    np.testing.assert_allclose(raw.xs[:, ::2], run.xs[:, :31], rtol=0, atol=1e-5)
    assert max(raw.off, run.off) < 1e-6 and run.clusters[:, 0].min() > 40
    every = HeadRuns.of(x0, some.matrices)
    assert every.starts == 2 and every.mean.shape == (3, 3)
    which = np.arange(6) % 3 == 0
    np.testing.assert_allclose(every.mean[0, :2], run.clusters[which][:, [I6, -1]].mean(axis=0), atol=1e-9)
    assert every.mean[1, 1] > 32 > every.mean[0, 1]
    assert HeadRuns.of(jnp.asarray(x0[:2]), some.matrices).error.shape == (3, 3)
