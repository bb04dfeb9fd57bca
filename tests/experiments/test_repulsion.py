"""What the experiment on V = -I measures: gaps, cosines, rates of polygons and the time of two tokens."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax import AttentionField, SoftmaxAttention
from clusterjax.experiments.figures.repulsion import (
    BETAS,
    FEW,
    LARGE,
    MASKS,
    SIMPLICES,
    Parameters,
    Results,
    approach,
    caption_of,
    claims_of,
    exact_rate,
    gap_error,
    repel,
    simplex_error,
    slowest_rate,
)
from clusterjax.experiments.shared.ensemble import draw_starts
from clusterjax.experiments.shared.exact import pair_time


def on_circle(degrees):
    angles = np.radians(np.asarray(degrees, float))
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


@pytest.mark.parametrize("n", (2, 3, 8))
def test_a_polygon_has_equal_gaps_in_any_order_and_nothing_else_has(n):
    order = np.random.default_rng(0).permutation(n)
    even = 17 + 360 * order / n
    np.testing.assert_allclose(gap_error(on_circle(even)), 0, atol=1e-10)
    even[1] += 3
    np.testing.assert_allclose(gap_error(on_circle(even)), 3, atol=1e-10)
    np.testing.assert_allclose(gap_error(on_circle(np.zeros(n))), 360 - 360 / n, atol=1e-10)


def test_a_simplex_is_one_and_a_square_is_none():
    corners = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) / np.sqrt(3)
    assert simplex_error(corners) < 1e-15 < 0.6 < simplex_error(on_circle([0, 90, 180, 270]))
    assert simplex_error(np.stack([corners, corners[[1, 0, 2, 3]]])).shape == (2,)


@pytest.mark.parametrize("n, beta", ((2, 1.0), (3, 1.0), (5, 0.5), (4, 9.0)))
def test_the_slowest_rate_is_that_of_the_field(n, beta):
    """By the Jacobian of the field on the sphere; for two tokens 2 / (1 + e^(2 beta))."""
    x = jnp.asarray(on_circle(360 * np.arange(n) / n))
    field = AttentionField(SoftmaxAttention(beta), -jnp.eye(2))
    jacobian = np.asarray(jax.jacfwd(lambda y: field(0.0, y))(x)).reshape(2 * n, 2 * n)
    tangents = np.zeros((2 * n, n))
    for k, (one, other) in enumerate(np.asarray(x)):
        tangents[2 * k : 2 * k + 2, k] = (-other, one)
    rates = np.sort(-np.linalg.eigvals(tangents.T @ jacobian @ tangents).real)
    assert abs(rates[0]) < 1e-12
    np.testing.assert_allclose(slowest_rate(n, beta), rates[1], rtol=1e-9)
    if n == 2:
        np.testing.assert_allclose(rates[1], exact_rate("full", beta), rtol=1e-12)


@pytest.mark.parametrize("mask", ("causal", pytest.param("full", marks=pytest.mark.exhaustive)))
def test_pairs_take_the_exact_time(mask):
    """C5 backwards: token 2 of causal attention, and half of its time for two that both move."""
    x0 = draw_starts(0, 3, 2, 2)
    times, rates = approach(x0, mask, 1.0)
    cosines = np.sum(np.asarray(x0[:, 0] * x0[:, 1]), axis=1)
    exact = -pair_time(np.arccos(cosines), np.pi - np.radians(1.0), 1.0) / (1 if mask == "causal" else 2)
    np.testing.assert_allclose(times, exact, rtol=2e-3)
    np.testing.assert_allclose(rates, exact_rate(mask, 1.0), rtol=1e-3)
    # Pairs are followed for as long as they take at a larger beta, too: fifty times as long.
    times, rates = approach(x0, mask, 3.0)
    assert np.all(np.isfinite(times)) and times.max() > 500
    np.testing.assert_allclose(rates, exact_rate(mask, 3.0), rtol=1e-2)


def test_a_pair_that_is_there_already_and_one_that_never_comes():
    x0 = jnp.asarray(np.stack([on_circle([0, 179.5]), on_circle([30, 30])]))
    times, rates = approach(jnp.concatenate([x0, x0[:1]]), "causal", 1.0)
    assert times[0] == 0 and times[1] == np.inf and np.isnan(rates[1])


@pytest.mark.exhaustive
def test_tokens_without_mass_change_nothing():
    """Three tokens alone, and with five that have none."""
    x0 = draw_starts(0, 2, 3, 2)
    alone, beside = (repel(x0, Parameters(n=n, end=100.0), 1.0) for n in (4, 8))
    np.testing.assert_allclose(alone, beside, atol=1e-6)
    assert gap_error(beside)[:, 0].min() > 1 > 0.01 > gap_error(beside)[:, -1].max()


def made(polygon, late, cosine, off, growth):
    """Results with these errors at the end."""
    p = Parameters()
    line = lambda last: np.tile(np.r_[50.0, np.full(len(p.ts) - 1, last)], (4, 1))
    polygons = {(n, p.beta): line(polygon) for n in range(2, 9)} | {(n, LARGE): line(late) for n in FEW}
    pairs = [(mask, beta) for mask in MASKS for beta in BETAS]
    return Results(
        p, 4, polygons, {key: line(cosine) for key in SIMPLICES}, {key: 0.1 for key in polygons},
        {(mask, beta): np.full(4, np.exp(growth * beta)) for mask, beta in pairs},
        {(mask, beta): np.full(4, exact_rate(mask, beta) * (1 + off)) for mask, beta in pairs},
        {n: np.tile(on_circle(360 * np.arange(n) / n), (len(p.ts), 1, 1)) for n in range(2, 9)},
    )  # fmt: skip


def test_claims_hold_of_what_they_say_and_of_nothing_else():
    right, wrong = made(1e-5, 20.0, 1e-6, 1e-4, 2.0), made(0.02, 0.5, 2e-4, 0.02, 1.8)
    assert all(claim.holds for claim in claims_of(right))
    assert not any(claim.holds for claim in claims_of(wrong))
    assert "Tokens come to polygons and simplices, but not by" in caption_of(right, claims_of(right))
    assert "Not all starts come to polygons" in caption_of(wrong, claims_of(wrong))
    unseen = replace(right, rates={key: np.full(4, np.nan) for key in right.rates})
    assert not claims_of(unseen)[3].holds


def test_the_picture_is_drawn():
    from clusterjax.experiments.figures.repulsion import draw

    assert len(draw(made(1e-5, 20.0, 1e-6, 1e-4, 2.0)).axes) == 8
