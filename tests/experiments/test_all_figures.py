"""Every figure at a tiny size, `reproduce` and its folders, and measurements that the figures of particles share."""

import json
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad

import clusterjax as cjx
from clusterjax.experiments import EXPERIMENTS, Files, Settings, find_experiments, reproduce
from clusterjax.experiments.framework.experiment import Claim, Outcome
from clusterjax.experiments.framework.record import read_record, record_of
from clusterjax.experiments.framework.run import _finished, _whole_folder
from clusterjax.experiments.framework.verdict import DIFFERENT, VIOLATED
from clusterjax.experiments.shared import causal
from clusterjax.experiments.shared.ensemble import (
    count_clusters,
    distance_to_first,
    draw_starts,
    exact_first_token,
    mean_and_error,
    run_ensemble,
)
from clusterjax.experiments.shared.exact import dyadic_distance, pair_error, pair_time
from clusterjax.experiments.shared.sources import particles


QUIETLY = {"say": lambda line: None}
PNG = Files(("png",), film=False)

# The parameters of each figure at a tiny size.
TINY = {
    "figure1": {"draws": 2, "late": 5, "near": 0.8},
    "figure2": {"draws": 2, "replicates": 30},
    "figure3": {"n": 8, "beta": 5.5, "d": 2, "end": 7},
    "figure4": {"n": 8, "beta": 5, "end": 30},
    "figure5": {"n": 9, "beta": 5.5, "end": 25},
    "figure6": {"n": 8, "beta": 5.5, "end": 5},
    "figure7": {"n": 8, "beta": 5.5, "radius": 0.2},
    "figure8": {"n": 8, "beta": 5.5},
    "albert-training": {"draws": 4},
    "sink-training": {},
    "perceptron-delay": {"texts": 2, "tokens": 8, "draws": 2, "steps": 2},
    "interacting-heads": {"n": 8, "beta": 2.5, "radius": 0.2},
    "phase-diagram": {"n": 16},
    "emergence-polytope": {"n": 9, "beta": 2.5, "end": 7.3},
    "emergence-hyperplanes": {"n": 9, "beta": 2.5, "end": 7.3},
    "emergence-mixed": {"n": 9, "beta": 2.5, "end": 7.3},
    "boolean-attention": {"n": 9, "beta": 2.5, "end": 7.3},
    "moebius": {"n": 9, "beta": 2.5},
    "spectrum-along-a-run": {"n": 6, "beta": 5.5},
    "transfer-operator": {"n": 6, "window": 10.0},
    "albert-bridge": {"draws": 2, "controls": 2, "steps_per_layer": 1},
    "albert-spectra": {"draws": 19, "top": 3, "outside": 2.0},
    "energy-budget": {"draws": 2, "beta": 2.5},
    "fact-traces": {"facts": 4, "draws": 1},
    "head-places": {"draws": 2, "d": 4, "samples": 2},
    "depth-as-noise": {"samples": 200},
    "layers-as-draws": {"turns": 4, "orders": 1999},
    "gradient-flow": {"n": 9, "beta": 2.5, "end": 7.0},
    "hardmax-polytope": {"n": 9, "alpha": 1.5, "layers": 12},
    "hardmax-open-problems": {"n": 5, "d": 2, "clouds": 20, "tries": 12, "reviews": 200, "examined": 4},
    "sentiment-words": {"shortest": 18, "longest": 22},
    "sentiment-leaders": {"leaders": 6},
    "sentiment-training": {"sampled": 40},
    "language-training": {"draws": 2, "sink": 0.5},
    "lstm": {"steps": 16, "d": 8, "texts": 4, "labelled": 20, "draws": 2},
    "facts": {},
    "word-senses": {},
    "sentiment-neuron": {"texts": 20, "draws": 2, "steps": 16, "units": 4},
    "causal-network": {},
    "massive-activations": {},
    "influence-of-places": {"parts": 4},
    "causal-bridge": {},
    "causal-phase-diagram": {"n": 8, "beta": 1.5, "most": 6.0},
    "renyi-centres": {"n": 16, "beta": 25, "c": 4.5, "share": 0.05, "end": 160},
    "any-query-key": {"n": 7, "d": 4, "beta": 5.0, "reach": 0.02},
    "norm-schemes": {"n": 8, "d": 2, "beta": 0.5},
    "rank-collapse": {"n": 8, "d": 16, "heads": 2, "layers": 13},
    "long-context": {"n": 2048, "beta": 0.5},
    "linear-phase": {"n": 1024, "beta": 5.5, "end": 10},
    "staircase": {"n": 9, "beta": 1000, "arc": 0.4, "points": 30},
    "cluster-lifetimes": {"n": 9, "d": 4, "beta": 12.0, "radius": 0.2, "points": 30},
    "noise-bifurcation": {"n": 110, "small": 20, "time": 5.0},
    "kramers-escape": {"n": 40, "window": 0.03},
    "lost-in-the-middle": {"tokens": 8192},
    "design-recover": {"problems": 3},
    "design-hold": {"problems": 3},
    "design-steer": {"problems": 3, "pieces": 3, "attempts": 1},
    "rotary-twists": {"n": 7, "end": 5.0},
}
# Figures that take a few seconds at most, one or two each on particles, networks, hardmax and sentiment.
QUICK = ("figure6", "any-query-key", "albert-spectra", "hardmax-polytope", "sentiment-leaders")


@pytest.mark.exhaustive_cases(*(experiment.name for experiment in EXPERIMENTS if experiment.name not in QUICK))
@pytest.mark.parametrize("name", [experiment.name for experiment in EXPERIMENTS])
def test_a_figure_of_tiny_size_is_drawn_and_recorded(name, tmp_path, monkeypatch):
    """Identities hold, the record is complete, and no verdict on a paper is given from other sizes."""
    monkeypatch.setattr(causal, "find_smollm2", lambda: None)
    settings = Settings(starts=2, quick=True, parameters=TINY[name])
    (record,) = reproduce([name], tmp_path, settings, PNG, **QUIETLY)
    assert record == read_record(tmp_path / name)
    claims = {kind: [c for c in record["claims"] if c["kind"] == kind] for kind in ("identity", "paper", "finding")}
    assert claims["identity"] and all(claim["holds"] for claim in claims["identity"]), claims["identity"]
    assert (tmp_path / name / f"{name}.png").stat().st_size > 10_000
    assert record["parameters"]["seed"] == 0 and record["parameters"]["starts"] >= 1
    assert TINY[name].items() <= record["fingerprint"]["parameters"].items()
    series = record["series"] if "t" in record["series"] else {}
    lengths = {len(values) for label, values in series.items() if "_by_" not in label}
    assert len(lengths) <= 1, "series against time have one length"
    if TINY[name]:
        assert {claim["verdict"] for claim in claims["paper"]} <= {*DIFFERENT.values(), "not measured"}
        assert record["measured_on"]["changed"]


@pytest.mark.exhaustive
def test_film_is_written_where_it_is_asked_for(tmp_path):
    settings = Settings(starts=2, quick=True)
    (record,) = reproduce(["figure8"], tmp_path, settings, Files(("png", "svg")), **QUIETLY)
    assert record["files"] == ["figure8.png", "figure8.svg", "figure8.gif", "figure8-player.html"]
    assert (tmp_path / "figure8" / "figure8.gif").read_bytes()[:6] == b"GIF89a"
    assert f"<title>{record['title']}" in (tmp_path / "figure8" / "figure8-player.html").read_text("utf-8")


@pytest.mark.parametrize(("name", "near"), [("figure44", "figure4"), ("single_clustr", "single_cluster"), ("zzz", "")])
def test_an_unknown_figure_is_refused_with_what_is_most_like_it(name, near):
    words = f"did you mean '{near}'? All of them" if near else "all of them"
    with pytest.raises(ValueError, match=f"there is no '{name}'; {words}".replace("?", r"\?")):
        find_experiments([name])


def test_names_and_aliases_find_each_experiment_once_in_order():
    found = find_experiments(["first_token", "figure3", "single_cluster"])
    assert [experiment.name for experiment in found] == ["figure3", "figure8"]


def test_figure_survives_an_interruption_between_the_two_renamings(tmp_path, monkeypatch):
    place = tmp_path / "figure3"
    place.mkdir()
    (place / "results.json").write_text("old")
    rename, calls = Path.rename, []

    def interrupted(self, target):
        calls.append(target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), _whole_folder(place) as draft:
        (draft / "results.json").write_text("new")
    assert (place / "results.json").read_text() == "old" and list(tmp_path.iterdir()) == [place]


def test_figure_with_a_violated_identity_is_run_again(tmp_path):
    claim = Claim(says="It is so.", measured="1", criterion="1", holds=True, kind="identity")
    written = lambda holds: record_of(
        EXPERIMENTS[0], Outcome("", (replace(claim, holds=holds),), {}, {}, lambda: None, None, on=particles()),
        {"seed": 0}, [], {"total": 1.0, "simulation": 1.0},
    )  # fmt: skip
    place, quiet = tmp_path / EXPERIMENTS[0].name, lambda line: None
    place.mkdir()
    (place / "results.json").write_text(json.dumps(written(True)))
    assert _finished(place, {"seed": 0}, quiet) == written(True) | {"finished": read_record(place)["finished"]}
    assert _finished(place, {"seed": 1}, quiet) is None
    (place / "results.json").write_text(json.dumps(written(False)))
    assert _finished(place, {"seed": 0}, quiet) is None and read_record(place)["claims"][0]["verdict"] == VIOLATED


@pytest.mark.exhaustive
def test_measurements_are_those_of_a_loop():
    """Clusters, distances and the standard error agree with results by hand, and the first token with the exponential;
    starts do not depend on how many are drawn."""
    np.testing.assert_array_equal(draw_starts(3, 2, 5, 3), draw_starts(3, 4, 5, 3)[:2])
    assert not np.array_equal(draw_starts(3, 2, 5, 3), draw_starts(4, 2, 5, 3))
    xs = np.array([[[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]], [[[0.0, 1.0], [0.0, -1.0], [0.0, 1.0]]]])
    assert np.asarray(count_clusters(jnp.asarray(xs), jnp.asarray(0.1))).tolist() == [[2], [2]]
    value = np.array([[0.5, -0.3], [0.2, -1.0]])
    runs = run_ensemble(jnp.asarray(xs[:, 0]), np.array([0.0, 0.7]), beta=1.0, value=value)
    expected = [[np.linalg.norm(np.asarray(runs.xs)[s, 0, k] - xs[s, 0, 0]) for k in (1, 2)] for s in (0, 1)]
    np.testing.assert_allclose(distance_to_first(runs)[:, 0], np.mean(expected, axis=1), rtol=1e-15)
    np.testing.assert_allclose(exact_first_token(runs), np.asarray(runs.xs)[:, :, 0], atol=1e-7)
    mean, error = mean_and_error(np.array([1.0, 2.0, 4.0]))
    assert mean == pytest.approx(7 / 3) and error == pytest.approx(np.sqrt(7 / 3) / np.sqrt(3))


def test_time_of_a_pair_is_that_of_quadrature():
    """The time is the quadrature of da/dt = -sin(a) / (1 + e^(beta (1 - cos a))), and agrees with two known values."""
    slowness = lambda angle: (1 + np.exp(9 * (1 - np.cos(angle)))) / np.sin(angle)
    np.testing.assert_allclose(pair_time(1.0, 0.3, 9.0), quad(slowness, 0.3, 1.0)[0], rtol=1e-12)
    end = np.arccos(0.95)
    np.testing.assert_allclose([pair_time(2.0, end, 1.0), pair_time(2.0, end, 4.0)], [6.526625009, 81.968569804])


@pytest.mark.exhaustive
@pytest.mark.parametrize("sign", (1.0, -1.0))
def test_pair_error_sees_a_wrong_run(sign):
    """A run has no error at its own beta, and an error at another beta."""
    x0 = draw_starts(0, 2, 3, 2)
    runs = run_ensemble(x0, np.array([0.0, 0.7]), beta=1.0, value=sign * np.eye(2))
    ts, xs = np.asarray(runs.ts), np.asarray(runs.xs)
    assert pair_error(ts, xs, 1.0, sign) < 1e-8 < 1e-3 < pair_error(ts, xs, 1.5, sign)


def test_dyadic_places_are_at_rest_and_elsewhere_is_not():
    """Tokens that halve the gaps feel no force under V = -I and are zero degrees from their places; others are not."""
    angles = np.radians(20.0 + np.array([0, 180, 90, 270, 45, 225, 315, 135]))
    x = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    assert dyadic_distance(x).max() < 1e-10
    field = cjx.AttentionField(cjx.SoftmaxAttention(1.0, mask=cjx.CausalMask()), -jnp.eye(2))
    np.testing.assert_allclose(eqx.filter_jit(field)(0.0, jnp.asarray(x)), 0.0, atol=1e-15)
    angles[4] += np.radians(10.0)
    moved = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    np.testing.assert_allclose(dyadic_distance(moved), [0, 0, 0, 10, 0, 0, 0], atol=1e-10)
