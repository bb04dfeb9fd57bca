"""Implicit steps of `coarsen`: their order, and runs that explicit steps follow slowly or not at all."""

import numpy as np
import pytest

from clusterjax._coarsen import bound, clouds, run, steps, velocity as laws
from clusterjax._coarsen.coarsen import MergeTree
from tests.coarsen_cases import gradient_of_time, sphere


def random_form(seed, *more):
    rng = np.random.default_rng([seed, *more])
    return rng.normal(size=(3, 3)).T @ rng.normal(size=(3, 3))


def stiff_run(seed):
    """A run of four causal tokens with a random form, some of which contract onto a curve and hardly move along it."""
    flow, x = laws.Law(6.0, random_form(seed, 7), None, 1.0, True, True, 0.0), sphere(4, 3, seed)
    return flow, run.run(flow, x, np.ones(4), 1e300, 0.1, 3e-4, 3000)


@pytest.mark.parametrize("causal", [False, True])
def test_an_implicit_step_is_of_order_five(causal):
    flow, x = laws.Law(4.0, random_form(1), None, 1.3, True, causal, 0.0), sphere(5, 3, seed=1)
    cloud = clouds.start(flow, x, np.ones(5))
    now, linear = laws.moves(flow, x, cloud.attended), steps.Linear.at(flow, x, cloud.attended)
    spans, errors, within = np.array([0.08, 0.04, 0.02]), [], []
    for span in spans:
        exact = {share: _exactly(flow, cloud, share * span) for share in (0.5, 1.0)}
        done = steps.implicit_step(flow, cloud.attended, x, 2.0, span, now, linear)
        inside = steps.between(flow, cloud.attended, done)
        errors.append(np.abs(done.y1 - exact[1.0]).max())
        within.append(np.abs(inside.clusters(0.5) - exact[0.5]).max())
        assert done.span == span and inside.time(0.25) == 2.0 + 0.25 * span
        np.testing.assert_allclose(inside.clusters(1.0), done.y1, atol=1e-15)
        assert np.linalg.norm(done.error) > 0.1 * errors[-1]
    assert np.polyfit(np.log(spans), np.log(errors), 1)[0] > 5.5
    assert np.polyfit(np.log(spans), np.log(within), 1)[0] > 4.5


def _exactly(flow, cloud, span):
    from scipy.integrate import solve_ivp

    rate = lambda t, y: laws.moves(flow, y.reshape(cloud.y.shape), cloud.attended).velocity.ravel()
    return solve_ivp(rate, (0, span), cloud.y.ravel(), "DOP853", rtol=1e-13, atol=1e-15).y[:, -1].reshape(cloud.y.shape)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [51, pytest.param(12, marks=pytest.mark.exhaustive)])
def test_implicit_steps_lead_where_explicit_ones_do(monkeypatch, seed):
    flow, mixed = stiff_run(seed)
    used = [leg for leg in mixed.legs if leg.implicit]
    monkeypatch.setattr(steps, "_STIFF", 10**9)
    _, slow = stiff_run(seed)
    assert len(used) > 15 and len(slow.legs) > len(mixed.legs) + 80 and not any(leg.implicit for leg in slow.legs)
    found, exact = (np.array([merger.time for merger in one.mergers]) for one in (mixed, slow))
    assert len(found) == 3 and np.all(np.abs(found / exact - 1) <= bound.relative_errors(mixed))
    np.testing.assert_allclose(found, exact, rtol=1e-9)
    # Tokens agree within the longest steps too.
    trees = [MergeTree._of(one, np.dtype(float)) for one in (mixed, slow)]
    for leg in sorted(used, key=lambda leg: -leg.span)[:4]:
        assert leg.span * steps.Linear.at(flow, leg.y0, leg.cloud.attended).fastest > 10
        np.testing.assert_allclose(leg.again(flow).y1, leg.y1, rtol=0, atol=1e-15)
        at = [tree.at(leg.t + 0.4 * leg.span) for tree in trees]
        np.testing.assert_allclose(*at, atol=1e-7)


def test_after_an_implicit_step_in_vain_none_is_tried_for_some_steps():
    """An implicit step costs a factorisation: another is tried only after explicit steps were short for long again."""
    flow, x = laws.Law(4.0, None, None, 1.0, True, False, 0.0), sphere(5, 3, seed=1)
    cloud = clouds.start(flow, x, np.ones(5))
    now = laws.moves(flow, x, cloud.attended)
    # Explicit steps take this span as easily.
    short = steps.Pace(0.01, span=1e-3)
    done, after, tries = steps.advance(flow, cloud, 0.0, now, steps.slope_of(now, cloud.attended), np.inf, short, 100)
    assert done.inner is None and tries == 2 and after.span == 0
    assert after.stiff == 1 - steps._STIFF


def test_gradients_go_through_implicit_steps():
    """The gradient of the last merger's time at the first implicit step agrees with differences of runs from there."""
    flow, monitored = stiff_run(7)
    first = next(k for k, leg in enumerate(monitored.legs) if leg.implicit)
    merger = monitored.mergers[-1]
    assert merger.index > first + 15
    gradient = gradient_of_time(flow, monitored, merger, first)
    leg = monitored.legs[first]
    assert len(leg.cloud.first) == 4
    for seed in range(3):
        step = np.random.default_rng(seed).normal(scale=1e-6, size=leg.y0.shape)
        times = []
        for sign in (1, -1):
            x = leg.y0 + sign * step
            one = run.run(flow, x / np.linalg.norm(x, axis=1)[:, None], np.ones(4), 1e300, 0.1, 3e-4, 3000)
            times.append(one.mergers[-1].time)
        expected = times[0] - times[1]
        np.testing.assert_allclose(2 * merger.time * np.sum(gradient * step), expected, rtol=2e-2)
