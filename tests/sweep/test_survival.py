"""`restricted_mean` of a sweep: the labelled mean of each curve; `time_to_cluster` may be the output of a sweep."""

import numpy as np
import pytest
import xarray as xr

import clusterjax as cjx
from clusterjax import sweep


@pytest.fixture(scope="module")
def found():
    """Clustering times of tokens on the circle; at beta = 9 no tokens cluster in time."""

    def time(beta, draw, key):
        x0 = cjx.Sphere().sample(key, 4, 2)
        return cjx.time_to_cluster(cjx.AttentionField(cjx.SoftmaxAttention(beta)), x0, 0.1, 4.0)

    return sweep.run(time, {"beta": [0.0, 1.0, 9.0], "draw": range(8)}, batch_size=8, seed=2, progress=False)


def test_each_point_has_the_mean_of_its_curve(found):
    assert found.reached.dtype == bool and found.reached.sel(beta=0.0).any() and not found.reached.all()
    for axis, others in (("draw", "beta"), ("beta", "draw")):
        means = sweep.restricted_mean(found, axis, 4.0)
        assert set(means.coords) == {others} and set(means.data_vars) == {"mean", "standard_error", "reached"}
        for label in found[others].values:
            cell, mean = found.sel({others: label}), means.sel({others: label})
            curve = cjx.survival(cell.time.values, cell.reached.values)
            assert mean.mean() == curve.restricted_mean(4.0) and mean["mean"] == curve.restricted_mean(4.0)
            assert mean.standard_error == curve.restricted_mean_error(4.0)
            assert mean.reached == np.mean(cell.reached.values)
    means = sweep.restricted_mean(found, "draw", 4.0)
    assert means["mean"].sel(beta=9.0) == 4.0 and means.reached.sel(beta=9.0) == 0


def test_other_names_and_an_unknown_curve():
    """A mean is NaN if its curve ends before the horizon; the share of reached runs remains."""
    data = {"t": (("a", "run"), [[1.0, 2.0], [1.0, 5.0]]), "seen": (("a", "run"), [[True, False], [True, False]])}
    means = sweep.restricted_mean(xr.Dataset(data), "run", 4.0, time="t", reached="seen")
    np.testing.assert_array_equal(means["mean"], [np.nan, 2.5])
    np.testing.assert_array_equal(np.isnan(means.standard_error), [True, False])
    np.testing.assert_array_equal(means.reached, [0.5, 0.5])


def test_what_it_refuses(found):
    holed = found.assign(time=found.time.where(found.time != found.time.min()))
    cases = {
        "^dim must be an axis of 'time', but it is 'run'; choose from beta, draw": {"dim": "run"},
        "^time must name a variable of found, but it is 't'": {"time": "t"},
        "^reached must name a variable of found": {"reached": "r"},
        "^reached must be an array of booleans": {"reached": "time"},
        "^found must have finite times, but 1 of 24 are not": {"found": holed},
        "^horizon must be a finite number above 0": {"horizon": 0.0},
    }
    for words, changed in cases.items():
        given = {"found": found, "dim": "draw", "horizon": 4.0} | changed
        with pytest.raises(ValueError, match=words):
            sweep.restricted_mean(**given)


@pytest.mark.exhaustive
def test_runs_that_fail_may_be_censored():
    """A run that has no steps left gives a lower bound in place of a missing value."""
    field = cjx.AttentionField(cjx.SoftmaxAttention(1.0))
    run = lambda draw, key: cjx.time_to_cluster(
        field, cjx.Sphere().sample(key, 4, 2), 0.1, 50.0, max_steps=6, throw=False
    )
    found = sweep.run(run, {"draw": range(4)}, batch_size=4, progress=False)
    assert not found.reached.any() and not found.status.any()
    means = sweep.restricted_mean(found, "draw", float(found.time.min()))
    assert means["mean"] == pytest.approx(float(found.time.min()))
