"""`lifetimes`: spells and their survival curve, against loops, scipy, an exponential law, and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import clusterjax as cjx
from tests.reference import survival as reference


def series(seed, runs=7, times=12):
    """Falling counts with ties and plateaus; some runs stop early."""
    rng = np.random.default_rng(seed)
    ts = np.cumsum(rng.integers(1, 4, size=times)).astype(float)
    states = 9 - np.cumsum(rng.integers(0, 2, size=(runs, times)), axis=1)
    for run in range(0, runs, 3):
        states[run, rng.integers(0, times) :] = -1
    return ts, np.maximum(states, -1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("state", (None, 6))
def test_spells_are_those_of_a_loop(seed, state):
    ts, states = series(seed)
    lives = cjx.lifetimes(ts, states, state=state)
    spells = [(*spell, run) for run, row in enumerate(states) for spell in reference.spells(ts, row)]
    expected = [spell for spell in spells if state in (None, spell[5])]
    found = (lives.durations, lives.censored, lives.least, lives.most, lives.starts, lives.states, lives.runs)
    np.testing.assert_array_equal(np.array(found, dtype=float).T, np.array(expected, dtype=float).reshape(-1, 7))
    assert len(lives) == len(expected) > 0
    assert np.all(lives.least <= lives.durations) and np.all(lives.durations <= lives.most)


@pytest.mark.parametrize("seed", range(3))
def test_curve_is_that_of_a_loop_and_of_scipy(seed):
    lives = cjx.lifetimes(*series(seed))
    curve = lives.survival()
    for t in np.arange(0, lives.durations.max(), 0.5):
        share, error = reference.survival(lives.durations, lives.censored, t)
        assert curve.at(t) == pytest.approx(share, abs=1e-14)
        index = np.searchsorted(curve.times, t, side="right") - 1
        assert (curve.standard_errors[index] if index >= 0 else 0.0) == pytest.approx(error, abs=1e-14)
    data = scipy.stats.CensoredData.right_censored(lives.durations, lives.censored)
    sf = scipy.stats.ecdf(data).sf
    np.testing.assert_allclose([curve.at(t) for t in sf.quantiles], sf.probabilities, atol=1e-14)
    half = lives.median
    assert curve.at(half) <= 0.5 and (half == curve.times[0] or curve.at(half * (1 - 1e-9)) > 0.5)


def test_by_hand():
    """Spells of 1, 2, 2+, 3, 4+ and 5, where + is censored: S = 5/6, 2/3, 4/9, 0 at 1, 2, 3, 5."""
    ts = np.arange(6.0)
    rows = [[2, 1, 1, 1, 1, 1], [2, 2, 1, 1, 1, 1], [2, 2, 2, -1, -1, -1], [2, 2, 2, 1, 1, 1]]
    rows += [[2, 2, 2, 2, 2, -1], [2, 2, 2, 2, 2, 1]]
    lives = cjx.lifetimes(ts, rows, state=2)
    curve = lives.survival()
    np.testing.assert_array_equal(lives.durations, [1, 2, 2, 3, 4, 5])
    np.testing.assert_array_equal(lives.censored, [False, False, True, False, True, False])
    np.testing.assert_array_equal(curve.times, [1, 2, 3, 5])
    np.testing.assert_allclose(curve.probabilities, [5 / 6, 2 / 3, 4 / 9, 0], atol=1e-15)
    np.testing.assert_allclose(curve.standard_errors[0], np.sqrt(5 / 6 / 6 / 6), atol=1e-15)
    assert lives.median == 3.0 and curve.quantile(0.1) == 1.0 and curve.quantile(1 / 3) == 2.0
    assert curve.restricted_mean(4) == pytest.approx(1 + 5 / 6 + 2 / 3 + 4 / 9)
    assert curve.restricted_mean(9) == pytest.approx(1 + 5 / 6 + 2 / 3 + 2 * 4 / 9)
    assert curve.at(0.5) == 1.0 and curve.at(7) == 0.0


@pytest.mark.exhaustive
def test_of_a_batch_of_runs():
    """Counts saved by `simulate` under vmap, those of runs that an event stopped too; floats with NaN are the same."""
    starts = jax.vmap(lambda key: cjx.Sphere().sample(key, n=6, d=3))(jax.random.split(jax.random.key(0), 3))
    ts, field = jnp.linspace(0.0, 8.0, 9), cjx.AttentionField(cjx.SoftmaxAttention(2.0))
    count = lambda t, x, args: cjx.num_clusters(x, 0.2)
    solve = lambda x0: cjx.simulate(field, x0, ts, save=count, event=cjx.clustered_event(0.3)).xs
    counts = np.asarray(jax.vmap(solve)(starts))
    assert np.any(counts == -1)
    lives = cjx.lifetimes(ts, counts)
    assert np.all(np.bincount(lives.runs[lives.censored], minlength=3) == 1)
    floats = cjx.lifetimes(ts, np.where(counts < 0, np.nan, counts))
    np.testing.assert_array_equal(floats.durations, lives.durations)


def test_degenerate_series():
    none = cjx.lifetimes([0.0, 1.0], [[-1, -1], [3, 3]], state=2)
    assert len(none) == 0 and none.median == np.inf and np.isnan(none.survival().at(1.0))
    alone = cjx.lifetimes([0.0, 1.0], [3, 3])
    np.testing.assert_array_equal(alone.durations, [1.0])
    assert alone.censored.all() and alone.median == np.inf and alone.survival().at(1.0) == 1.0
    first = cjx.lifetimes([0.0, 1.0, 2.0], [3, -1, -1])
    np.testing.assert_array_equal(first.durations, [0.0])
    # A state that comes again is a spell of its own.
    np.testing.assert_array_equal(cjx.lifetimes(np.arange(4.0), [1, 2, 1, 1], state=1).durations, [1.0, 1.0])


BAD = {
    "shape": (([0.0, 1.0], [1, 2, 3]), "states must be one series of 2, or one a row"),
    "order": (([1.0, 0.0], [1, 2]), "ts must be finite and increase"),
    "gap": (([0.0, 1.0, 2.0], [1, -1, 2]), "states must be -1 or NaN after the end of a run only, but run 0"),
    "words": (([0.0, 1.0], ["a", "b"]), "states must be a series of real numbers"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_it_refuses(name):
    given, words = BAD[name]
    with pytest.raises(ValueError, match=f"^{words}"):
        cjx.lifetimes(*given)
