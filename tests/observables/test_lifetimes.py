"""`lifetimes`: spells and their survival curve, against loops, SciPy, an exponential law, and results by hand."""

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
    """Spells are 1, 2, 2+, 3, 4+ and 5, where + is censored: S = 5/6, 2/3, 4/9, 0 at 1, 2, 3, 5."""
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
    """Counts that `simulate` saves under vmap are read, also of runs that an event stopped; floats with NaN agree."""
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
    # A state that returns begins a spell of its own.
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


# `survival` and the mean up to a horizon.


@pytest.mark.parametrize("seed", range(4))
def test_survival_of_times_is_that_of_a_loop(seed):
    """Times may tie, be zero, and be censored beside ends; float32 gives the results of float64."""
    rng = np.random.default_rng(seed)
    times, reached = rng.integers(0, 9, 30) / 4, rng.random(30) < (0.3, 0.5, 0.9, 1.0)[seed]
    curve = cjx.survival(times, reached)
    single = cjx.survival(jnp.asarray(times, jnp.float32), jnp.asarray(reached))
    for horizon in (0.3, 1.0, float(times.max())):
        mean, error = reference.restricted_mean(times, ~reached, horizon)
        assert curve.restricted_mean(horizon) == pytest.approx(mean, abs=1e-14)
        assert curve.restricted_mean_error(horizon) == pytest.approx(error, abs=1e-14)
        assert single.restricted_mean(horizon) == curve.restricted_mean(horizon)
    np.testing.assert_array_equal(single.standard_errors, curve.standard_errors)


def test_mean_by_hand():
    """Times are 1, 2, 3+, 4, where + was not reached: S = 3/4, 1/2, 0 from 1, 2, 4 on."""
    curve = cjx.survival([1.0, 2.0, 3.0, 4.0], [True, True, False, True])
    assert curve.restricted_mean(4.0) == 1 + 3 / 4 + 1 / 2 * 2 == curve.restricted_mean(9.0)
    assert curve.restricted_mean_error(4.0) == pytest.approx(np.sqrt((7 / 4) ** 2 / 12 + 1 / 6), abs=1e-15)
    never = cjx.survival([5.0, 5.0], [False, False])
    assert never.restricted_mean(5.0) == 5.0 and never.restricted_mean_error(5.0) == 0.0
    assert never.quantile(0.5) == np.inf
    at_once = cjx.survival([0.0, 0.0], [True, True])
    assert at_once.restricted_mean(5.0) == 0.0 == at_once.restricted_mean_error(5.0)


def test_without_censoring_it_is_the_mean():
    times = np.random.default_rng(5).exponential(size=40)
    curve, cut = cjx.survival(times, np.ones(40, bool)), np.minimum(times, 1.5)
    assert curve.restricted_mean(1.5) == pytest.approx(cut.mean(), abs=1e-14)
    assert curve.restricted_mean_error(1.5) == pytest.approx(cut.std() / np.sqrt(40), abs=1e-14)


def test_exponential_times_that_were_censored():
    """The mean is (1 - e^-h) within its error, which is the spread over repetitions; naive means are too short."""
    rng, horizon, means, errors, naive, dropped = np.random.default_rng(0), 2.0, [], [], [], []
    for _ in range(400):
        times, ends = rng.exponential(size=100), np.minimum(rng.exponential(2.0, size=100), 6.0)
        reached, seen = times <= ends, np.minimum(times, ends)
        curve = cjx.survival(seen, reached)
        means.append(curve.restricted_mean(horizon))
        errors.append(curve.restricted_mean_error(horizon))
        naive.append(np.minimum(seen, horizon).mean())
        dropped.append(np.minimum(seen, horizon)[reached].mean())
    truth = -np.expm1(-horizon)
    assert abs(np.mean(means) - truth) < 3 * np.std(means) / 20
    assert np.mean(errors) == pytest.approx(np.std(means), rel=0.1)
    assert np.mean(naive) < 0.85 * truth and np.mean(dropped) < 0.85 * truth


@pytest.mark.parametrize("horizon", (0.1, 0.7, 200.0, 1e-30))
def test_the_end_of_runs_in_float32_is_followed(horizon):
    """The horizon may be the end of the runs, also where float32 rounds the end down."""
    curve = cjx.survival(np.full(3, horizon, np.float32), np.zeros(3, bool))
    assert curve.restricted_mean(horizon) == pytest.approx(horizon, rel=1e-6)
    with pytest.raises(ValueError, match="^horizon must be at most"):
        curve.restricted_mean(1.001 * horizon)
    with pytest.raises(ValueError, match="^horizon must be at most"):
        curve.restricted_mean_error(1.001 * horizon)


BAD_TIMES = {
    "shapes": (([1.0, 2.0], [True]), "reached must be an array of booleans of shape .2,., one for each time"),
    "numbers": (([1.0], [0.5]), "reached must be an array of booleans"),
    "words": (([1.0], ["yes"]), "reached must be an array of booleans of shape .1,., one for each time, but it i"),
    "negative": (([-1.0], [True]), "times must be at least 0, but entry 0 is -1"),
    "nan": (([np.nan], [True]), "times must be finite"),
    "none": (([], np.zeros(0, bool)), "times must"),
}


@pytest.mark.parametrize("name", BAD_TIMES)
def test_which_times_it_refuses(name):
    given, words = BAD_TIMES[name]
    with pytest.raises(ValueError, match=f"^{words}"):
        cjx.survival(*given)
    with pytest.raises(ValueError, match="^times must have a value, but it is traced"):
        jax.jit(lambda times: cjx.survival(times, [True]))(jnp.ones(1))
