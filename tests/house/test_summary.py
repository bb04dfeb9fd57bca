"""A repr is short and prints no array, and a summary has the numbers that a reader wants."""

import jax
import numpy as np

import clusterjax as cjx
from clusterjax._base.summary import estimate, levels, short, spread, summary
from tests.trajectory.test_trajectory_file import run


def test_estimates():
    assert estimate(0.31234, 0.00412) == "0.3123 ± 0.00412"
    assert estimate(np.asarray([2.0]), np.nan) == "2 (no standard error)"
    assert estimate(np.asarray([1.0, 3.0]), np.zeros(2)) == "2 on average, from 1 to 3"
    assert levels(np.asarray([1.0, 2.0, 4.0]), np.asarray([0.5, 0.1, 0.25])) == "1 ± 0.5 first, 4 ± 0.25 last of 3"
    assert levels(np.asarray(1.0), np.asarray(0.5)) == "1 ± 0.5"


def test_spreads():
    assert spread(np.asarray([1.0, np.nan, 3.0])) == "2 on average, from 1 to 3, 1 of 3 not finite"
    assert spread(np.zeros(0)) == "none" and spread(np.asarray([np.inf])) == "inf"
    assert spread(np.full(2, np.nan)) == "no finite number of 2"
    assert spread(np.asarray([True, False, True])) == "true for 2 of 3"
    assert spread(np.asarray(7)) == "7" and spread(np.asarray(["a", "b"])) == "2 entries"


def test_a_run_says_its_tokens_times_result_and_settings():
    layers = run("layers")
    assert repr(layers) == (
        "Trajectory(ts=f64[3], xs=f64[3,5,3], t1=4, result=successful, event_reached=False)"
    )  # fmt: skip
    assert layers.summary().splitlines()[:4] == [
        "5 tokens of dimension 3, float64", "layers 0 to 4, 3 saved; reached 4", "successful after 4 layers",
        "layer: ResidualLayer(field=AttentionField(attention=SoftmaxAttention(beta=2, mask=CausalMask(), ...",
    ]  # fmt: skip
    single = run("single").summary()
    assert single.startswith("5 tokens of dimension 3, float32") and "reached 2" in single


def test_runs_of_a_batch_are_counted():
    lines = run("batch").summary().splitlines()
    assert lines[:4] == [
        "5 tokens of dimension 3, float64, in 3 runs",
        "times 0 to 1, 3 saved; reached 0.6667 on average, from 0 to 1",
        "event reached in 1 of 3 runs",
        "event_occurred (1), successful (2) after 3 on average, from 1 to 4 steps; summed by Dense",
    ]
    assert lines[4].startswith("field: AttentionField(attention=SoftmaxAttention(beta=f64[3]")
    assert lines[-1].startswith("event: Event(cond_fn=")


def test_plateaus_have_a_line_each():
    found = cjx.plateaus(np.arange(9.0), np.array([0, 0, 0, 1, 1, 1, 1, 5, 9.0]), tolerance=0.1, min_dwell=1.0)
    assert repr(found) == "Plateaus(start=f64[2], stop=f64[2], level=f64[2], escape_times=f64[2])"
    assert found.summary().splitlines() == [
        "2 plateaus", "  from 0 to 2 at 0, for 2, left by 3", "  from 3 to 6 at 1, for 3, left by 7"
    ]  # fmt: skip


def test_a_run_that_is_traced_has_shapes():
    seen = []
    jax.eval_shape(lambda traj: seen.append((repr(traj), traj.summary())), run("single"))
    assert seen == [("Trajectory(ts=f32[3], xs=f32[3,5,3], t1=f32[])",) * 2]


def test_many_fields_are_cut():
    from typing import NamedTuple

    Many = NamedTuple("Many", [(f"a_field_of_a_long_name_{k}", np.ndarray) for k in range(40)])
    found = Many(*[np.zeros((2, 3), np.int32)] * 40)
    assert len(short(found).splitlines()) == 6 and short(found).endswith("...)")
    assert len(summary(found, "first").splitlines()) == 41
