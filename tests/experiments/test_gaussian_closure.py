"""What the experiment on Gaussian tokens measures: the closure, moments, exponents, and claims that can fail."""

from dataclasses import replace

import numpy as np
import pytest

from clusterjax.experiments import Settings
from clusterjax.experiments.figures import gaussian_closure as gaussian
from clusterjax.experiments.figures.gaussian_closure import (
    MEAN,
    Moments,
    Parameters,
    caption_of,
    claims_of,
    closure,
    draw_cloud,
    fitted,
    matrices_of,
    moments_of,
    run_clouds,
    slope,
    starts_of,
)


P = Parameters(n=540, end=20.0)


def test_the_closure_is_the_mean_over_many_draws(monkeypatch):
    """Its rates against the velocity of a double loop over very many draws, with V and B that are not symmetric."""
    # A mean far from zero, where V Sigma B^T m and V Sigma B m differ.
    mean = np.array([1.0, -0.5])
    monkeypatch.setattr(gaussian, "MEAN", mean)
    value, form = matrices_of("random", 1, 2)
    x = draw_cloud(P, 0, 0, 3000)
    velocity = np.zeros_like(x)
    for i, one in enumerate(x):
        weights = np.exp(x @ (form.T @ one))
        velocity[i] = value @ (weights @ x / weights.sum())
    centred = x - x.mean(axis=0)
    half = centred.T @ velocity / len(x)
    rate = (closure(P.covariance, np.array([0.0, 1e-5]), value, form)[1] - np.append(mean, P.covariance)) / 1e-5
    np.testing.assert_allclose(rate[:2], velocity.mean(axis=0), atol=0.02)
    np.testing.assert_allclose(rate[2:].reshape(2, 2), half + half.T, atol=0.01)
    # The terms of the covariance are not small beside that tolerance, nor is that of the mean.
    assert np.abs(rate[2:]).max() > 0.03 and np.abs(rate[:2]).max() > 0.05


def test_the_closure_has_the_two_exact_solutions():
    for case, sign in (("attracting", -1), ("repelling", 1)):
        ts = np.array([0.0, 0.4, 0.9]) * P.blow_up
        found = closure(P.covariance, ts, *matrices_of(case))[:, 2:].reshape(-1, 2, 2)
        for t, one in zip(ts, found, strict=True):
            np.testing.assert_allclose(np.linalg.inv(one), np.linalg.inv(P.covariance) + sign * 2 * t * np.eye(2))
    np.testing.assert_allclose(P.blow_up * 2 * np.linalg.eigvalsh(P.covariance).max(), 1.0)
    assert gaussian.defect(P) < 1e-9


def test_clouds_have_the_law_they_are_drawn_from():
    x = np.concatenate([draw_cloud(P, 3, k, 2000) for k in range(10)])
    mean, covariance = moments_of(x)
    np.testing.assert_allclose(mean, MEAN, atol=0.015)
    np.testing.assert_allclose(covariance, P.covariance, atol=0.01)
    np.testing.assert_allclose(covariance, np.cov(x.T, bias=True), rtol=1e-12)
    assert not np.array_equal(draw_cloud(P, 3, 0, 5), draw_cloud(P, 3, 1, 5))
    for start in range(3):
        value, form = matrices_of("random", 0, start)
        np.testing.assert_allclose([np.linalg.norm(value, 2), np.linalg.norm(form, 2)], 1.0)


def test_tokens_move_as_a_double_loop_has_them():
    """One short step of each case against Euler's of a loop."""
    x = draw_cloud(P, 0, 0, 7)
    for case in gaussian.CASES:
        value, form = matrices_of(case)
        moved = run_clouds(x[None], np.array([0.0, 1e-4]), np.stack([value, form])[None], 1e-4)[0]
        for i in range(7):
            weights = np.array([np.exp(x[i] @ form @ y) for y in x])
            np.testing.assert_allclose(
                (moved[1, i] - x[i]) / 1e-4, value @ (weights @ x) / weights.sum(), rtol=0, atol=2e-4
            )


def test_errors_are_relative_and_the_exponent_is_that_of_the_data():
    exact = np.append([1.0, 0.0], [[4.0, 0.0], [0.0, 5.0]])[None, None].repeat(2, axis=0)
    means = np.array([[[1.0, 0.3]], [[1.0, 0.0]]])
    covariances = np.array([[[[4.0, 0.0], [0.0, 5.0]]], [[[4.0, 3.0], [3.0, 5.0]]]])
    apart, off = Moments(means, covariances, exact, np.ones((2, 1))).errors(0)
    np.testing.assert_allclose(apart, [0.1, 0.0])
    np.testing.assert_allclose(off, [0.0, np.sqrt(18 / 41)])
    rng, sizes = np.random.default_rng(0), np.array([20.0, 60.0, 180.0, 540.0])
    drawn = [np.abs(rng.normal(size=400)) * n**-0.5 for n in sizes]
    found, error = slope(sizes, drawn)
    assert abs(found + 0.5) < 3 * error and 0.005 < error < 0.03
    # A cloud of large error counts for less: here all but the last are exact, and the last has few starts.
    found, _ = slope(sizes, [*drawn[:3], np.concatenate([10 * drawn[3][:2], drawn[3][:2]])])
    assert abs(found + 0.5) < 0.2


def test_large_clouds_have_fewer_starts():
    assert [starts_of(n, 256) for n in (20, 700, 1400, 6000)] == [256, 256, 64, 4]
    assert starts_of(6000, 2) == 2


@pytest.fixture(scope="module")
def found():
    with pytest.MonkeyPatch.context() as patch:
        # Two sizes and a short end: each is compiled for itself.
        patch.setattr(Parameters, "sizes", property(lambda p: (p.n // 9, p.n)))
        yield gaussian.measure(P, Settings(starts=3), lambda line: None)


@pytest.mark.exhaustive
def test_a_run_follows_the_closure(found):
    claims = claims_of(found)
    assert claims[0].holds and claims[1].holds and claims[5].holds and claims[6].holds
    np.testing.assert_allclose(fitted(found, 540), 1.0, atol=0.1)
    for moments in found.moments.values():
        assert moments.errors(0)[1].max() < 0.6 and moments.errors(1)[1].max() < 0.6
        assert moments.covariances.shape[:2] == moments.longest.shape
    assert {name for name, _ in found.shown} == {"attracting", "repelling"} and len(found.shown) == 4
    assert found.film.shape == (41, 60, 2)


@pytest.mark.exhaustive
def test_claims_fail_on_what_they_exclude(found):
    """Each criterion is missed where its number is spoiled."""
    spoiled = {}
    for (case, n), one in found.moments.items():
        ts = {"attracting": found.p.ts, "random": found.p.early, "repelling": found.p.late}[case]
        wrong = one.covariances * (1 + 0.5 * ts)[:, None, None]
        spoiled[case, n] = replace(one, means=one.means + 1.0, covariances=wrong, longest=one.longest * (1 + ts))
    m = replace(found, moments=spoiled, closure=1e-3)
    claims = claims_of(m)
    assert [claim.holds for claim in claims] == [False] * 7
    assert "does not fall" in caption_of(m, claims) and "becomes round" not in caption_of(m, claims)
