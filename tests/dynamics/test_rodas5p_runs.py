"""Runs by `Rodas5P`: long times, exact merging times, saddles, fields of all kinds, and refusals."""

import functools

import diffrax as dfx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax._dynamics.events import Bracket
from clusterjax._dynamics.rodas5p import check_suits
from tests.reference.coarsening import integral
from tests.rodas5p_cases import FIELDS, FORM, PRECISE, flow, perceptron, softmax, tokens


def growing(factor):
    """A schedule that goes from 1 to `factor`, entry by entry, and is there at t = 1e3."""
    return cjx.FunctionSchedule(lambda t: 1 + (factor - 1) * jnp.tanh(t / 100))


TURN = np.array([[0.3, -1.0, 0.0], [1.0, 0.3, 0.0], [0.0, 0.0, 0.1]])

# The field, the end, and the largest allowed difference between tokens and those of an explicit solver.
LONG = {
    "full": (lambda: flow(9.0), 1e3, 1e-5),
    "causal": (lambda: flow(9.0, True), 1e3, 1e-5),
    "repulsive": (lambda: cjx.AttentionField(softmax(4.0), -np.eye(3)), 1e3, 1e-5),
    "turning": (lambda: cjx.AttentionField(softmax(4.0), TURN), 300.0, 1e-4),
    "heads": (
        lambda: cjx.MultiHeadField(
            jnp.array([1.0, 4.0]), jnp.stack([FORM, FORM.T]), jnp.stack([np.eye(3), -0.3 * TURN])
        ),
        300.0,
        1e-4,
    ),
    "V(t)": (lambda: cjx.AttentionField(softmax(4.0), growing(np.diag([2.0, 1.5, 0.5]))), 1e3, 1e-5),
    "beta(t)": (lambda: cjx.AttentionField(cjx.SoftmaxAttention(growing(6.0))), 1e3, 1e-5),
    "unnormalised": (lambda: cjx.AttentionField(cjx.UnnormalisedAttention(3.0)), 1e3, 2e-5),
    "masses": (lambda: cjx.AttentionField(softmax(9.0), masses=np.array([1.0, 2.0, 0.0, 0.5, 1.0, 3.0])), 1e3, 1e-5),
    "perceptron": (lambda: flow(4.0) + 0.1 * perceptron(), 1e3, 1e-5),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LONG)
def test_agrees_with_the_explicit_solver(name):
    """Phases agree too where V rotates the tokens for ever."""
    make, end, allowed = LONG[name]
    ts = jnp.array([0.0, 1.0, 10.0, end])
    implicit = cjx.simulate(make(), tokens(), ts, solver=cjx.Rodas5P())
    explicit = cjx.simulate(make(), tokens(), ts, stepsize_controller=PRECISE, solver=dfx.Dopri8(), max_steps=200_000)
    np.testing.assert_allclose(implicit.xs, explicit.xs, rtol=0, atol=allowed)
    np.testing.assert_allclose(jnp.linalg.norm(implicit.xs, axis=2), 1, rtol=0, atol=1e-14)


def merging_time(angle, beta, first):
    """The time from `angle` (from pi - `angle` if below 1e-2) until the cosine is .99, by the law of two clusters."""
    second = 1 - first

    def speed(sine, cosine):
        back = np.exp(beta * (cosine - 1))
        return sine * (second / (first + second * back) + first / (second + first * back)) * back

    # The variable is the logarithm of the angle, or beyond pi / 2 of the distance to the antipode, whose sine is exact.
    slowness = lambda s, sign: np.exp(s) / speed(np.sin(np.exp(s)), sign * np.cos(np.exp(s)))
    over = lambda sign, low, high: integral(lambda s: slowness(s, sign), np.linspace(np.log(low), np.log(high), 400))
    end = np.arccos(0.99)
    return over(1, end, angle) if angle > 1e-2 else over(-1, angle, np.pi / 2) + over(1, end, np.pi / 2)


@functools.partial(jax.jit, static_argnames=("solver",))
def time_of_merging(x0, beta, masses, end, solver):
    cosine = lambda y: jnp.vdot(y[0], y[-1]) / jnp.linalg.norm(y[0]) / jnp.linalg.norm(y[-1])
    event = dfx.Event(lambda t, y, args, **kwargs: 0.99 - cosine(y), root_finder=Bracket())
    field = cjx.AttentionField(softmax(beta), masses=masses)
    run = cjx.simulate(field, x0, jnp.stack([0 * end, end]), solver=solver, event=event, throw=False)
    return run.t1, run.stats["num_steps"]


CLUSTERS = (
    # tokens of each cluster, masses of their tokens, beta, angle
    ((1, 1), (1.0, 1.0), 9.0, 2 * np.pi / 3),
    ((1, 1), (1.0, 1.0), 20.0, np.pi / 2),
    ((1, 1), (4.0, 1.0), 40.0, np.pi / 3),
    ((1, 1), (1.0, 1.0), 9.0, 1e-3),
    ((1, 1), (1.0, 1.0), 9.0, 1e-10),
    pytest.param((2, 2), (1.0, 1.0), 40.0, np.pi / 3, marks=pytest.mark.exhaustive),
    pytest.param((4, 1), (1.0, 1.0), 40.0, np.pi / 3, marks=pytest.mark.exhaustive),
)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("counts", "masses", "beta", "angle"), CLUSTERS)
def test_two_clusters_merge_when_the_law_says(counts, masses, beta, angle):
    """Times up to 7e8 are right to a relative 1e-4, also for a start 1e-10 beside the antipode, a slow saddle."""
    masses = np.repeat(masses, counts)
    expected = merging_time(angle, beta, masses[: counts[0]].sum() / masses.sum())
    theta = angle if angle > 1e-2 else np.pi - angle
    # The sine of a rounded pi - 1e-10 would have lost digits.
    far = [np.cos(theta), np.sin(angle), 0.0]
    x0 = jnp.asarray([[1.0, 0.0, 0.0]] * counts[0] + [far] * counts[1])
    t, steps = time_of_merging(x0, beta, jnp.asarray(masses), jnp.asarray(20 * expected), cjx.Rodas5P())
    np.testing.assert_allclose(t, expected, rtol=1e-4)
    assert steps < 500


def test_known_merging_times():
    """The law above agrees with the oracles of the theory."""
    np.testing.assert_allclose(merging_time(2 * np.pi / 3, 9.0, 0.5), 48743.6153, rtol=1e-8)
    np.testing.assert_allclose(merging_time(np.pi / 2, 20.0, 0.5), 12191759, rtol=1e-7)
    np.testing.assert_allclose(merging_time(np.pi / 3, 40.0, 0.8), 3949560.9, rtol=1e-7)


@pytest.mark.exhaustive
def test_without_the_bound_a_saddle_is_left_at_a_wrong_time():
    """Without `max_growth` a start within the tolerance of the antipode merges at a wrong time."""
    x0 = jnp.asarray([[1.0, 0.0, 0.0], [-1.0, 1e-10, 0.0]])
    expected = merging_time(1e-10, 9.0, 0.5)
    t, _ = time_of_merging(x0, 9.0, jnp.ones(2), jnp.asarray(20 * expected), cjx.Rodas5P(max_growth=None))
    assert abs(t / expected - 1) > 0.01


@functools.cache
def alone(causal=False):
    """A run to 1e8, whose compiled program other tests use again."""
    return cjx.simulate(flow(9.0, causal), tokens(8, seed=1), TO_1E8, solver=cjx.Rodas5P())


TO_1E8 = jnp.concatenate([jnp.zeros(1), jnp.logspace(0, 8, 9)])


@pytest.mark.exhaustive
@pytest.mark.parametrize("causal", (False, pytest.param(True, marks=pytest.mark.exhaustive)), ids=("full", "causal"))
def test_a_batch_to_1e8_is_each_run_alone(causal):
    """At beta = 9 the number of clusters never rises, and a run of the batch is the run alone."""
    starts = jnp.stack([tokens(8, seed=seed) for seed in range(3)])
    solve = lambda x0: cjx.simulate(flow(9.0, causal), x0, TO_1E8, solver=cjx.Rodas5P(), throw=False)
    xs, steps = jax.jit(jax.vmap(lambda x0: (lambda run: (run.xs, run.stats["num_steps"]))(solve(x0))))(starts)
    np.testing.assert_allclose(xs[1], alone(causal).xs, rtol=0, atol=1e-7)
    assert steps.max() < 1200
    counts = np.array([[int(cjx.num_clusters(x, 0.1)) for x in run] for run in xs])
    assert np.all(np.diff(counts) <= 0) and counts.min() == 1


@pytest.mark.exhaustive
def test_a_batch_elsewhere_than_on_a_cpu_is_each_run_alone(monkeypatch):
    """Whole runs with batched decompositions agree with runs alone, although some end early."""
    starts, ts = jnp.stack([tokens(8, seed=seed) for seed in range(3)]), jnp.array([0.0, 50.0, 1e6])
    # No other test has this number of steps, so that the run is traced anew.
    solve = lambda x0: cjx.simulate(flow(), x0, ts, solver=cjx.Rodas5P(), max_steps=3001).xs
    expected = np.stack([solve(x0) for x0 in starts])
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    jax.clear_caches()
    found = jax.vmap(solve)(starts)
    jax.clear_caches()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)


@pytest.mark.exhaustive
def test_derivatives_in_forward_mode():
    x0, ts = tokens(5), jnp.array([0.0, 4.0])
    weights = jnp.asarray(np.random.default_rng(3).normal(size=x0.shape))
    tangent = jnp.roll(weights, 1, axis=0)

    def loss(x0, adjoint=None):
        run = cjx.simulate(flow(3.0), x0, ts, solver=cjx.Rodas5P(), adjoint=adjoint, max_steps=256)
        return jnp.sum(weights * run.xs[-1])

    forward = jax.jvp(lambda x0: loss(x0, dfx.ForwardMode()), (x0,), (tangent,))[1]
    np.testing.assert_allclose(jnp.sum(jax.grad(loss)(x0) * tangent), forward, rtol=1e-6)


@pytest.mark.exhaustive
def test_tokens_between_save_times():
    """A run that keeps the polynomials of its steps evaluates them, and keeps the results of `save` too."""
    x0, ts = tokens(8, seed=1), TO_1E8
    count = lambda t, x, args: jnp.sum(x)
    both = cjx.simulate(flow(), x0, ts, max_steps=512, solver=cjx.Rodas5P(), save=cjx.TokensAnd(count), dense=True)
    np.testing.assert_allclose(both.xs, alone().xs, rtol=0, atol=1e-9)
    np.testing.assert_allclose(np.asarray(both.saved), jnp.sum(both.xs, axis=(1, 2)), rtol=0, atol=1e-12)
    np.testing.assert_allclose(both.at(ts[1:6]), both.xs[1:6], rtol=0, atol=1e-5)


@pytest.mark.exhaustive
def test_the_options_of_simulate_work_with_it():
    """Tokens between save times, with `dense` and without, a wrapper that retracts, and an event all work."""
    x0, ts = tokens(8), jnp.array([0.0, 5.0, 50.0])
    solve = functools.partial(cjx.simulate, flow(), x0, ts, max_steps=512)
    plain = solve(solver=cjx.Rodas5P())
    dense, retracted = (solve(solver=s, dense=True) for s in (cjx.Rodas5P(), cjx.Retract(cjx.Rodas5P())))
    times = jnp.array([2.5, 20.0])
    np.testing.assert_allclose(dense.at(times), plain.at(times), rtol=0, atol=1e-5)
    np.testing.assert_allclose(retracted.at(times), plain.at(times), rtol=0, atol=1e-5)
    consensus = cjx.simulate(
        flow(1.0), x0, jnp.array([0.0, 1e6]), solver=cjx.Rodas5P(), event=cjx.clustered_event(1e-3)
    )
    explicit = cjx.simulate(flow(1.0), x0, jnp.array([0.0, 1e6]), event=cjx.clustered_event(1e-3))
    np.testing.assert_allclose(consensus.t1, explicit.t1, rtol=1e-4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ("full", "time"))
def test_backwards_in_time(name):
    """As a solver of diffrax, Rodas5P runs from 0.5 to 0, also with a schedule, whose time is that of the field."""
    x0, field = tokens(5), FIELDS[name]()
    forward = cjx.simulate(field, x0, jnp.array([0.0, 0.5]), solver=cjx.Rodas5P()).xs[-1]
    controller = dfx.PIDController(rtol=1e-8, atol=1e-10)
    back = dfx.diffeqsolve(
        dfx.ODETerm(field), cjx.Rodas5P(), 0.5, 0.0, None, forward, stepsize_controller=controller
    ).ys[0]
    np.testing.assert_allclose(back, x0, rtol=0, atol=1e-5)


@pytest.mark.exhaustive
def test_without_a_field():
    """The linear equation of Prothero and Robinson with a stiffness of 1e6 is solved."""
    controller = dfx.PIDController(rtol=1e-8, atol=1e-10)
    term = dfx.ODETerm(lambda t, y, args: -1e6 * (y - jnp.cos(t)) - jnp.sin(t))
    stiff = dfx.diffeqsolve(
        term, cjx.Rodas5P(), 0.0, 3.0, 1e-3, jnp.ones(2), stepsize_controller=controller, max_steps=500
    )
    np.testing.assert_allclose(stiff.ys[0], np.cos(3.0), rtol=0, atol=1e-6)


@pytest.mark.exhaustive
def test_single_precision_to_where_it_resolves():
    ts = jnp.where(TO_1E8 > 8e3, 6000.0 + 1e-5 * TO_1E8, TO_1E8)
    x0 = tokens(8, seed=1)
    single = cjx.simulate(flow(), x0.astype(jnp.float32), ts.astype(jnp.float32), solver=cjx.Rodas5P())
    assert single.xs.dtype == jnp.float32 and single.stats["num_steps"] < 2000
    np.testing.assert_allclose(single.xs, cjx.simulate(flow(), x0, ts, solver=cjx.Rodas5P()).xs, rtol=0, atol=2e-3)
    with pytest.raises(
        ValueError, match=r"^ts must span at most 8.39e\+03 with Rodas5P in float32, but it spans 1e\+08"
    ):
        cjx.simulate(flow(), x0.astype(jnp.float32), TO_1E8, solver=cjx.Rodas5P())


def hardmax_head(beta, query_key, mask, summation):
    return cjx.HardmaxAttention(query_key=query_key, mask=mask)


@pytest.mark.parametrize("wrap", (lambda solver: solver, cjx.Retract), ids=("alone", "wrapped"))
def test_what_it_refuses(wrap):
    x0, ts = tokens(5), jnp.array([0.0, 1.0])
    solve = functools.partial(cjx.simulate, x0=x0, ts=ts, solver=wrap(cjx.Rodas5P()))
    with pytest.raises(ValueError, match="^noise must be None with Rodas5P"):
        solve(flow(), noise=0.1, key=jax.random.key(0), dt0=0.1)
    with pytest.raises(ValueError, match="^adjoint must not be BacksolveAdjoint with Rodas5P"):
        solve(flow(), adjoint=dfx.BacksolveAdjoint())
    hardmax = cjx.AttentionField(cjx.HardmaxAttention())
    heads = cjx.MultiHeadField(jnp.ones(1), None, None, attention=hardmax_head)
    over_time = cjx.MultiHeadField(
        lambda t: jnp.ones(1) + t, lambda t: jnp.eye(3)[None] * t, None, attention=hardmax_head
    )
    for field in (hardmax, 2.0 * hardmax + flow(), heads, over_time):
        with pytest.raises(ValueError, match="^solver must not be Rodas5P with HardmaxAttention"):
            solve(field)
    with pytest.raises(ValueError, match="^solver must not be Rodas5P with RescaledField"):
        solve(cjx.RescaledField(softmax(1.0), np.eye(3)))
    with pytest.raises(ValueError, match="^ts must span at most 4.5e"):
        cjx.simulate(flow(), x0, jnp.array([0.0, 1e13]), solver=wrap(cjx.Rodas5P()))
    with pytest.raises(ValueError, match="^x0 must lie on one device with Rodas5P"):
        check_suits(wrap(cjx.Rodas5P()), flow(), ts, adjoint=None, noise=None, sharded=True)
    soft = cjx.MultiHeadField(lambda t: jnp.ones(2) + t, lambda t: jnp.stack([jnp.eye(3)] * 2) * t, None)
    check_suits(wrap(cjx.Rodas5P()), soft, ts, adjoint=None, noise=None, sharded=False)


def test_max_growth_is_checked():
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="^max_growth must be"):
            cjx.Rodas5P(wrong)


@pytest.mark.exhaustive
def test_a_turning_run_to_the_end_of_its_steps():
    """The error says that steps of Rodas5P stay short, instead of recommending Rodas5P."""
    field = cjx.AttentionField(softmax(4.0), TURN)
    with pytest.raises(RuntimeError, match="steps of Rodas5P stay short where the tokens go on moving"):
        cjx.simulate(field, tokens(), jnp.array([0.0, 1e6]), solver=cjx.Rodas5P(), max_steps=500)
