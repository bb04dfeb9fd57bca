"""Leading tokens to targets as an experiment: what is drawn, the baseline in plain loops, and claims that can fail."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.patches import Rectangle

from clusterjax import simulate
from clusterjax.experiments.design_steer import measure as measuring, problems
from clusterjax.experiments.design_steer.claims import caption_of, claims_of
from clusterjax.experiments.design_steer.measure import Parameters, Results
from clusterjax.experiments.design_steer.panels import draw
from clusterjax.experiments.design_steer.problems import SPREAD, TOLERANCE, D, N


def test_problems_and_fields_are_as_they_say():
    x0, targets = problems.draw_problem(jax.random.key(0))
    assert x0.shape == targets.shape == (N, D) == (8, 3) and not np.allclose(x0, targets)
    np.testing.assert_allclose(np.linalg.norm(np.concatenate([x0, targets]), axis=1), 1, rtol=1e-12)
    # Around it nothing moves.
    assert np.abs(np.asarray(problems.field()(0.0, x0))).max() == 0
    drawn = problems.pick(problems.drawn_field(jax.random.key(1), jnp.arange(400.0)))
    around = problems.pick(problems.field())
    for part, spread, base in zip(drawn, SPREAD, around, strict=True):
        assert part.values.shape == (400, *base.shape) and part.ts.tolist() == list(range(400))
        np.testing.assert_allclose(part.values.std(), spread, rtol=0.15)
        np.testing.assert_allclose(np.asarray(part.values).mean(), np.asarray(base).mean(), atol=4 * spread / 20)


def test_derivatives_are_counted_as_runs():
    """beta, B, V, and the weights and biases of the perceptron: each a run more, of one piece of several."""
    numbers = 1 + 2 * D * D + 2 * D * problems.WIDTH + problems.WIDTH
    for runs, pieces in ((1, 1), (7, 3), (300, 8)):
        expected = int(np.ceil(runs * (numbers + 1) / pieces))
        assert problems.simulations(runs, pieces) == expected >= runs


@pytest.mark.exhaustive
def test_random_search_takes_the_nearest(monkeypatch):
    monkeypatch.setattr(problems, "CHUNK", 8)
    x0, targets = problems.draw_problem(jax.random.key(2))
    key, pieces = jax.random.key(3), 2
    keys = jax.random.split(jax.random.fold_in(key, 0), problems.CHUNK)
    missed = []
    for one in keys:
        end = simulate(problems.drawn_field(one, jnp.arange(2.0)), x0, jnp.array([0.0, 2.0])).x1
        missed.append(np.linalg.norm(np.asarray(end - targets), axis=1).max())
    assert abs(problems.random_search(key, x0, targets, pieces, 3) - min(missed)) < 0.05
    more = problems.random_search(key, x0, targets, pieces, 2 * problems.CHUNK)
    assert more <= problems.random_search(key, x0, targets, pieces, problems.CHUNK)


@pytest.mark.exhaustive
def test_one_problem_by_both_methods():
    found = measuring.solve(jax.random.key(0), Parameters(pieces=3, attempts=1))
    assert found["missed"].shape == (N,) and found["attempts"] == 1 and found["runs"] > 100
    assert found["reached"] == (found["missed"].max() <= TOLERANCE)
    assert measuring.search_at(jax.random.key(0), Parameters(pieces=3), problems.CHUNK) > 0.3
    assert found["missed"].max() < found["start"].max() and found["lengths"] < 1e-6


@pytest.fixture(scope="module")
def results():
    """Made up: all but one of 40 are reached."""
    count = 40
    missed = np.full((count, N), 1e-3)
    missed[7, 3] = 0.02
    attempts = np.ones(count, int)
    attempts[7] = 5
    return Results(
        Parameters(), count, missed, np.ones((count, N)), missed.max(axis=1) <= TOLERANCE, attempts,
        300 * np.ones(count), np.zeros(count), np.ones(20),
    )  # fmt: skip


def test_each_claim_can_fail(results):
    claims = claims_of(results)
    assert all(claim.holds for claim in claims), [claim.says for claim in claims if not claim.holds]
    assert "39 of 40 random problems; not in problems 7, which miss by 0.02" in claims[1].measured
    assert "39 of 40 problems are solved, as many as were asked for." in caption_of(results, claims)
    far = results.missed.copy()
    far[:3] = 0.5
    search = results.search.copy()
    search[0] = 0.005
    wrong = [
        (0, {"lengths": results.lengths + 1e-3}),
        (0, {"reached": np.ones(40, bool)}),
        (1, {"missed": far, "reached": far.max(axis=1) <= TOLERANCE}),
        (2, {"search": search}),
        (3, {"attempts": results.attempts + (np.arange(40) < 25)}),
    ]
    for number, change in wrong:
        other = replace(results, **change)
        failed = [k for k, claim in enumerate(claims_of(other)) if not claim.holds]
        assert failed == [number], (failed, number)
        assert caption_of(other, claims_of(other)) != caption_of(results, claims) or number == 0


def test_the_picture_has_its_panels(results):
    left, right = draw(results).axes
    assert [line.get_label() for line in left.lines[:3]] == ["at the start", "random search", "steer"]
    heights = [bar.get_height() for bar in right.patches if isinstance(bar, Rectangle)]
    assert heights == [39, 0, 0, 0, 0, 1]
