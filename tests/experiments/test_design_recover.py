"""The figure on the inverse problem: regression against loops, the bound against differences, the end of a search."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2

from clusterjax.experiments.figures import design_recover as recover
from clusterjax.experiments.figures.design_recover import END, IDENTIFIABLE, INSIDE, TIMES, TS, D, N, identifiable
from tests.helpers import as_a_user


def test_regression_is_exact_on_exact_velocities():
    """Regression recovers V from velocities that plain loops compute, for tokens of any norm."""
    rng = np.random.default_rng(0)
    x, form, value = rng.normal(size=(2, 7, D)), rng.normal(size=(D, D)), rng.normal(size=(D, D))
    velocities = np.zeros_like(x)
    for t in range(2):
        y = [one / np.linalg.norm(one) for one in x[t]]
        for i in range(7):
            weights = np.array([np.exp(y[i] @ form @ y[j]) for j in range(7)])
            moved = value @ sum(weights[j] * y[j] for j in range(7)) / weights.sum()
            velocities[t, i] = moved - (y[i] @ moved) * y[i]
    np.testing.assert_allclose(recover.regress_on(x, velocities, form), value, atol=1e-10)
    # Central differences are exact for tokens that move on parabolas.
    ts = np.array([0.0, 0.1, 0.2])
    path = x[0] + ts[:, None, None] * velocities[0] + 0.5 * (ts**2)[:, None, None] * rng.normal(size=(7, D))
    expected = recover.regress_on(path[1:2], (path[2:] - path[:1]) / 0.2, form)
    np.testing.assert_allclose(recover.regress(path, ts, form), expected, atol=1e-12)


def test_problems_are_drawn_as_they_say():
    truths = jax.jit(jax.vmap(recover.draw_truth))(jax.random.split(jax.random.key(0), 2000))
    assert 1 <= truths.beta.min() < 1.05 and 2.95 < truths.beta.max() <= 3
    for part in (truths.form, truths.value):
        np.testing.assert_allclose(part.mean(axis=0), np.eye(D), atol=0.06)
        np.testing.assert_allclose(part.std(axis=0), 0.5, atol=0.05)
    assert not np.allclose(truths.form, truths.value)
    assert len(TS) == TIMES == 9 and TS[-1] == END == 2.0


def test_what_can_be_told_is_the_product():
    beta, form, value = 2.0, np.arange(9.0).reshape(3, 3), np.ones((3, 3))
    np.testing.assert_allclose(identifiable(beta, form, value), [0, 2, 4, 6, 8, 10, 12, 14, 16, *[1] * 9])
    np.testing.assert_allclose(chi2.cdf(INSIDE, IDENTIFIABLE), 0.9973)
    assert IDENTIFIABLE == 18


@pytest.mark.exhaustive
def test_random_search_takes_the_nearest_and_the_bound_is_that_of_differences():
    problem = recover.draw_problem(jax.random.key(4))
    assert problem.xs.shape == (TIMES, N, D) and problem.errors.shape == problem.xs.shape
    one, two = (recover.random_search(jax.random.key(1), problem, problem.xs, runs) for runs in (100, 101))
    misses = []
    for part in range(2):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(1), part), recover.CHUNK)
        betas = jax.vmap(recover.draw_truth)(keys).beta
        each = [float(recover._tried(keys[k : k + 1], problem.x0, problem.xs)[1]) for k in range(recover.CHUNK)]
        misses.append((min(each), float(betas[int(np.argmin(each))])))
    np.testing.assert_allclose([one.beta, two.beta], [misses[0][1], min(misses)[1]], rtol=1e-12)
    covariance = recover.bound_at(problem)
    truth = identifiable(*map(np.asarray, problem.truth))
    at = lambda p: np.asarray(recover._exact(
        recover.field_of(recover.Truth(jnp.asarray(1.0), jnp.asarray(p[:9].reshape(3, 3)),
                                         jnp.asarray(p[9:].reshape(3, 3)))), problem.x0))[1:].ravel()  # fmt: skip
    slopes = np.stack([(at(truth + 1e-4 * e) - at(truth - 1e-4 * e)) / 2e-4 for e in np.eye(IDENTIFIABLE)], axis=1)
    np.testing.assert_allclose(np.diag(covariance), np.diag(np.linalg.inv(slopes.T @ slopes)), rtol=1e-2)


def test_guesses_go_on_until_the_least_residual_is_found_twice(monkeypatch):
    """Without noise guesses go on until the residual is zero; a fit that did not converge does not end the search."""
    ends = iter(())

    def fit(guess, seen, ts, **options):
        residual, converged = next(ends)
        return SimpleNamespace(residual=residual, converged=converged, steps=1, parameters=19)

    monkeypatch.setattr(recover.design, "recover", fit)

    def of(noise, *residuals):
        nonlocal ends
        left = [(r, True) if np.isscalar(r) else r for r in residuals]
        ends = iter(left)
        with as_a_user():  # the made-up fit is no Recovery
            found, runs = recover.from_several(jax.random.key(0), None, noise, {})
        return found.residual, runs // 40, len(list(ends))

    assert of(1.0, 1.0, 1.0, 0.5) == (1.0, 2, 1)
    assert of(1.0, 1.0, 0.9, 1.0, 0.9 * (1 + 5e-5), 0.1) == (0.9, 4, 1)
    assert of(1.0, np.nan, 1.0, 2.0, 1.0) == (1.0, 4, 0)
    assert of(1.0, (1.0, False), (1.0, False), 0.5, 0.5) == (0.5, 4, 0)
    assert of(2.0, *np.linspace(2, 1, recover.ATTEMPTS), 1.0) == (1.0, recover.ATTEMPTS, 1)
    assert of(0.5, 1.0, 1.0, 0.5, 0.5, 0.1) == (0.5, 4, 1), "the first minimum is beyond what the noise explains"
    assert of(0.1, *[1.0] * recover.ATTEMPTS) == (1.0, recover.ATTEMPTS, 0)
    assert of(0.0, 1.0, 1.0, 1e-7, 1e-9) == (1e-7, 3, 1)
