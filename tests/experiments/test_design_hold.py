"""Keeping clusters and tokens apart as an experiment: gradients against differences, and claims that can fail."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.patches import Rectangle

from clusterjax import AttentionField, SoftmaxAttention, Sphere, num_clusters
from clusterjax._base.random import draw_normal
from clusterjax.experiments.figures import design_hold as collapse, design_hold as holding
from clusterjax.experiments.figures.design_hold import (
    CASES,
    METHODS,
    NORM,
    Apart,
    Parameters,
    Results,
    caption_of,
    claims_of,
    difference,
    draw,
    of_case,
)
from tests.reference import design as reference


def test_the_mean_cosine_is_that_of_pairs():
    x = np.random.default_rng(0).normal(size=(5, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    expected = np.mean([x[i] @ x[j] for i in range(5) for j in range(5) if i != j])
    np.testing.assert_allclose(collapse.mean_cosine(jnp.asarray(x)), expected, rtol=1e-12)


def test_changes_by_hand_have_the_norm_and_do_as_they_say():
    x0 = Sphere().sample(jax.random.key(0), n=16, d=3)
    along, less, turn = np.asarray(collapse.by_hand(x0))
    np.testing.assert_allclose([np.linalg.norm(one) for one in (along, less, turn)], NORM, rtol=1e-12)
    mean = np.asarray(x0).mean(axis=0)
    mean /= np.linalg.norm(mean)
    np.testing.assert_allclose(along @ mean, -NORM * mean, atol=1e-12)
    np.testing.assert_allclose(less, -NORM / np.sqrt(3) * np.eye(3), atol=1e-12)
    np.testing.assert_allclose(turn + turn.T, 0, atol=1e-12)
    np.testing.assert_allclose(turn @ mean, 0, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(np.asarray(collapse.scaled(jnp.eye(3)))), NORM)


@pytest.mark.exhaustive
def test_the_aim_is_that_of_plain_loops_and_its_descent_falls():
    x0 = Sphere().sample(jax.random.key(1), n=16, d=3)
    change = collapse.scaled(jnp.asarray(np.random.default_rng(1).normal(size=(3, 3))))
    run = reference.heun(x0, [0.0, collapse.AIM], 400, collapse.BETA, np.eye(3), np.eye(3) + np.asarray(change))
    np.testing.assert_allclose(collapse.aim(change, x0), collapse.mean_cosine(jnp.asarray(run[-1])), atol=1e-3)
    # The best of random changes: of those of its first chunk, one after the other.
    drawn = np.asarray(draw_normal(jax.random.fold_in(jax.random.key(7), 0), (collapse.CHUNK * 3, 3), x0.dtype))
    each = [collapse.scaled(jnp.asarray(one)) for one in drawn.reshape(-1, 3, 3)[:4]]
    best = collapse.best_of_random(x0, 4, jax.random.key(7))
    np.testing.assert_allclose(best, min(each, key=lambda one: float(collapse.aim(one, x0))), rtol=0, atol=1e-12)
    found = collapse.solve(jax.random.key(3))
    assert found.runs > 100
    assert found.cosine.shape == found.time.shape == (len(METHODS) + 1,) and (found.change[-1] == 0).all()
    assert found.cosine[0] == found.cosine[:-1].min() and (found.time[:-1] <= collapse.LAST).all()


@pytest.mark.exhaustive
def test_constant_betas_are_judged_as_in_plain_loops():
    x0 = Sphere().sample(jax.random.key(2), n=holding.N, d=2)
    betas = jnp.array([1.0, 9.0])
    counts = np.asarray(holding.counts(x0, betas))
    assert counts.shape == (2, holding.COUNTED)
    for beta, found in zip((1.0, 9.0), counts, strict=True):
        run = reference.heun(x0, [0.0, 5.0, 10.0], 400, beta, np.eye(2), np.eye(2))
        assert [int(num_clusters(jnp.asarray(x), holding.RADIUS)) for x in run[1:]] == [found[0], found[-1]]
    k = int(counts[1, 0])
    assert holding.held(x0, betas, k).tolist() == [(one == k).all() for one in counts]
    one = holding.solve(jax.random.key(5), 2, 2)
    assert one.runs >= 4 and one.betas.shape == (holding.PIECES,) and one.hold == np.isinf(one.until)


def test_attention_keeps_its_defaults():
    """V = I and B = I, of which the caption speaks."""
    assert AttentionField(SoftmaxAttention(1.0)).value is None


@pytest.fixture(scope="module")
def results():
    """Made up: all as it should be."""
    count, methods = 48, len(METHODS) + 1
    cases = np.array([CASES[k % len(CASES)] for k in range(count)])
    yes = np.ones(count, bool)
    half = np.arange(count) % 2 == 0
    cosine = np.tile(np.array([0.1, 0.3, 0.5, 0.6, 0.7, 0.9]), (count, 1))
    change = np.zeros((count, methods, 3, 3))
    change[:, :-1, 0, 0] = NORM
    return Results(
        Parameters(), count, cases, yes, half, half, 100 * np.ones(count), np.full(count, np.inf),
        np.ones((count, 2)), Apart(cosine, 30 - 20 * cosine, change, np.full(count, 700)),
    )  # fmt: skip


def test_each_claim_can_fail(results):
    claims = claims_of(results)
    assert all(claim.holds for claim in claims), [claim.says for claim in claims if not claim.holds]
    assert "collapse last" in caption_of(results, claims)
    apart, half = results.apart, results.grid
    swapped = apart.cosine[:, [1, 0, 2, 3, 4, 5]]
    by_hand = apart.cosine.copy()
    by_hand[:, 3] = 0.05
    wrong = [
        ([0], {"apart": apart._replace(change=1.1 * apart.change)}),
        ([1, 2, 3, 4], {"hold": half & (np.arange(48) < 40)}),
        ([3], {"grid": np.ones(48, bool)}),
        ([4], {"search": np.ones(48, bool)}),
        ([5], {"apart": apart._replace(cosine=swapped)}),
        ([6], {"apart": apart._replace(cosine=by_hand)}),
        ([7], {"apart": apart._replace(time=apart.time[:, [1, 0, 2, 3, 4, 5]])}),
    ]
    for numbers, change in wrong:
        other = replace(results, **change)
        failed = [k for k, claim in enumerate(claims_of(other)) if not claim.holds]
        assert failed == numbers, (failed, numbers)
        assert caption_of(other, claims_of(other)) != caption_of(results, claims) or numbers == [0]


def test_numbers_of_cases_and_differences(results):
    assert of_case(results, results.grid, 2, 2) == 1.0 and of_case(results, results.grid, 2, 3) == 0.0
    assert np.isnan(of_case(results, results.grid, 4, 2))
    more, error = difference(np.array([True, True, True, False]), np.array([True, False, False, False]))
    np.testing.assert_allclose(np.array([more, error]), np.array([0.5, np.std([0, 1, 1, 0], ddof=1) / 2]))


def test_the_picture_has_its_panels(results):
    figure = draw(results)
    assert [ax.get_title() for ax in figure.axes] == ["k clusters kept", "where kept", "against collapse"]
    bars = [bar for bar in figure.axes[0].patches if isinstance(bar, Rectangle)]
    assert len(bars) == 18 and sorted({bar.get_height() for bar in bars}) == [0.0, 1.0]
