"""Causal attention with any Q and K: arrivals against a run of all tokens, their law against a solver, refusals."""

import diffrax as dfx
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import clusterjax as cjx
from clusterjax.experiments.figures.any_query_key import Parameters, measure
from clusterjax.experiments.framework.experiment import Settings
from clusterjax.experiments.shared.exact import arrivals_of, log_law
from tests.helpers import sphere_tokens


BETA, FORM = 4.0, np.array([[0.6, -0.8, 0.1], [0.3, 0.5, 0.9], [-0.4, 0.2, 0.7]])


def field():
    return cjx.AttentionField(cjx.SoftmaxAttention(BETA, query_key=jnp.asarray(FORM), mask=cjx.CausalMask()))


@pytest.mark.exhaustive
def test_arrivals_are_those_of_a_run_of_all_tokens():
    x0 = jnp.asarray(sphere_tokens(3, 5, 3))
    tree = cjx.coarsen(field(), x0, 1e300, tolerance=0.1)
    came = arrivals_of(tree, 0.01)
    assert came[0] == 0 and np.isfinite(came).all()
    ts = jnp.linspace(0.0, 1.2 * came.max(), 4001)
    tight = dfx.PIDController(rtol=1e-9, atol=1e-11)
    xs = np.asarray(cjx.simulate(field(), x0, ts, stepsize_controller=tight).xs)
    for token in range(1, 5):
        away = np.linalg.norm(xs[:, token] - xs[:, 0], axis=1) > 0.01
        after = float(ts[np.flatnonzero(away)[-1] + 1])
        # An arrival is exact if the token comes after all earlier tokens, and is rounded up to a step otherwise.
        later = came[token] > came[:token].max()
        assert (abs(came[token] - after) < 2 * float(ts[1]) + 1e-3 * after) if later else came[token] >= after - ts[1]


@pytest.mark.parametrize("before", [1, 4])
def test_the_law_is_the_time_of_the_equation_of_the_token(before):
    """The law is the time that an independent solver finds for one token beside `before` tokens at rest."""
    a, x = np.asarray(sphere_tokens(5, 2, 3))

    def velocity(t, x):
        x = x / np.linalg.norm(x)
        weights, mean = [], np.zeros(3)
        for y in [*[a] * before, x]:
            weights.append(np.exp(BETA * (x @ FORM @ y)))
            mean = mean + weights[-1] * y
        mean = mean / sum(weights)
        return mean - (mean @ x) * x

    there = lambda t, x: np.linalg.norm(x / np.linalg.norm(x) - a) - 0.01
    there.terminal = True
    ran = solve_ivp(velocity, (0.0, 1e6), x, events=there, method="LSODA", rtol=1e-10, atol=1e-12)
    law, barrier = log_law(a, x, BETA * FORM, before, 0.01)
    assert law == pytest.approx(np.log10(ran.t_events[0][0]), abs=1e-4)
    on_the_way = ran.y.T / np.linalg.norm(ran.y.T, axis=1, keepdims=True)
    assert barrier == pytest.approx(max(BETA * (y @ FORM @ (y - a)) for y in on_the_way) / np.log(10), abs=0.02)


def test_a_barrier_beyond_the_floats_is_counted_in_logarithms():
    """By Laplace's method the integral is the exponential of its largest exponent times a power of this exponent."""
    a, x = np.asarray(sphere_tokens(5, 2, 3))
    law, barrier = log_law(a, x, 500 * BETA * FORM, 1, 0.01)
    assert barrier > 400 and -4 < law - barrier < 2


def test_starts_of_which_none_can_be_followed_are_refused(monkeypatch):
    def stall(*args, **options):
        raise RuntimeError("steps come to nothing")

    monkeypatch.setattr("clusterjax.experiments.figures.any_query_key.coarsen", stall)
    with pytest.raises(ValueError, match="of 2 it can follow none; pass more starts, or another seed"):
        measure(Parameters(), Settings(starts=2), lambda line: None)
