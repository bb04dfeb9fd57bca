"""Short reprs that print no array, and summaries with the numbers that a reader wants."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax._base.summary import estimate, levels, short, spread, summary
from clusterjax._training.loop import Training
from tests.trajectory.test_trajectory_file import run


VALUES = np.random.default_rng(0).normal(size=(9, 4))


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


@pytest.mark.exhaustive
def test_a_run_in_one_line_and_in_a_few():
    traj = run("layers")
    assert repr(traj) == "Trajectory(ts=f64[3], xs=f64[3,5,3], t1=4, result=successful, event_reached=False)"
    lines = traj.summary().splitlines()
    assert lines[:3] == ["5 tokens of dimension 3, float64", "layers 0 to 4, 3 saved; reached 4",
                         "successful after 4 layers"]  # fmt: skip
    assert lines[3].startswith(
        "layer: ResidualLayer(field=AttentionField(attention=SoftmaxAttention(beta=2, mask=Causal"
    )
    assert repr(run("batch")) == "Trajectory(ts=f64[3,3], xs=f64[3,3,5,3], t1=f64[3])"
    lines = run("batch").summary().splitlines()
    assert lines[0] == "5 tokens of dimension 3, float64, in 3 runs"
    assert lines[2] == "event reached in 1 of 3 runs"
    assert re.match(r"event_occurred \(1\), successful \(2\) after .* steps; summed by Dense", lines[3])
    assert any(line.startswith("solver: Euler()") for line in lines) and len(lines) < 10


def test_a_run_that_is_traced_has_shapes():
    seen = []
    jax.eval_shape(lambda traj: seen.append((repr(traj), traj.summary())), run("single"))
    assert seen == [("Trajectory(ts=f32[3], xs=f32[3,5,3], t1=f32[])",) * 2]


def test_plateaus_have_a_line_each():
    found = cjx.plateaus(np.arange(9.0), np.array([0, 0, 0, 1, 1, 1, 1, 5, 9.0]), tolerance=0.1, min_dwell=1.0)
    assert repr(found) == "Plateaus(start=f64[2], stop=f64[2], level=f64[2], escape_times=f64[2])"
    assert found.summary().splitlines() == [
        "2 plateaus", "  from 0 to 2 at 0, for 2, left by 3", "  from 3 to 6 at 1, for 3, left by 7"
    ]  # fmt: skip


def test_training_names_its_best_epoch():
    history = [{"loss": 1.0, "accuracy": 0.5}, {"loss": 0.25, "accuracy": 0.75}]
    found = Training(jnp.zeros(3), None, history, 2, False, [1.0, 2.0])
    assert found.summary() == "epoch 2 of 2\nloss: 0.25\naccuracy: 0.75"
    assert repr(found).startswith("Training(model=f64[3], last=None, history=list of 2, best_epoch=2, stopped_early=")


def test_measures_of_networks():
    probe = pytest.importorskip("clusterjax.probe")
    from clusterjax.probe.measures.survey import average_of

    average = average_of(VALUES)
    last = f"{VALUES[:, -1].mean():.4g} ± {VALUES[:, -1].std(ddof=1) / 3:.4g} last of 4"
    assert repr(average) == "Average(mean=f64[4], spread=f64[4], texts=9, values=f64[9,4])"
    assert average.summary().endswith(last + ", over 9 texts")
    similarity = probe.Similarity(np.zeros(5), average, np.zeros(3), *[average] * 5, 0.9)
    heads = average_of(np.stack([VALUES, VALUES], axis=-1))
    sinks = probe.AttentionSinks({"first": heads}, {"first": average}, {"first": average})
    assert len(repr(similarity).splitlines()) <= 6 and "array(" not in repr(similarity)
    assert len([line for line in similarity.summary().splitlines() if line.endswith(last)]) == 5
    assert [line.split("  ")[0] for line in sinks.summary().splitlines()] == [
        "mass: first", "excess: first", "causal_excess: first"
    ]  # fmt: skip
    beyond = probe.Comparison(average.mean, average.error, average.mean / average.error, 8.0)
    controls = probe.Controls(similarity, similarity, (similarity,) * 3, beyond, beyond, -1, 2.0)
    assert beyond.summary().endswith(last)
    lines = controls.summary().splitlines()
    told = f"{average.mean[-1]:.4g} ± {average.error[-1]:.4g}, z = {beyond.z[-1]:.4g}"
    assert lines[1:3] == [f"  shuffled tokens: {told}", f"  random weights: {told}"]
    assert lines[-1] == "it does not exceed both, by 2 standard errors."
    sure = controls._replace(beyond_shuffled=beyond._replace(z=np.full(4, 99.0)),
                             beyond_random=beyond._replace(z=np.full(4, 99.0)))  # fmt: skip
    assert sure.summary().endswith("it exceeds both, by 2 standard errors.")
    clusters = probe.HeadClusters(np.zeros((2, 3), int), np.zeros((2, 2, 4)), np.ones(2), np.ones((2, 3, 3)))
    assert "stability  1 on average, from 1 to 1" in clusters.summary()
    bridge = probe.Bridge(average, {"fitted": average}, 1.5, 0.25, np.zeros(3), 2.0, True)
    assert bridge.summary().splitlines()[0] == "time per layer 1.5, beta 0.25 of the network's own (converged)"
    assert "fitted: 0 away, correlation 1;" in bridge.summary()
    assert all(len(repr(found).splitlines()) <= 6 for found in (controls, sinks, beyond, clusters, bridge))


def test_many_fields_are_cut():
    from typing import NamedTuple

    Many = NamedTuple("Many", [(f"a_field_of_a_long_name_{k}", np.ndarray) for k in range(40)])
    found = Many(*[np.zeros((2, 3), np.int32)] * 40)
    assert len(short(found).splitlines()) == 6 and short(found).endswith("...)")
    assert len(summary(found, "first").splitlines()) == 41
