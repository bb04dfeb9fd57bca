"""`Rodas5P`: order, long times, exact merging times, saddles, batches, derivatives, and what it refuses."""

import functools

import diffrax as dfx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad

import clusterjax as cjx
from clusterjax._events import Bracket
from clusterjax._field.jacobian import has_velocity_jacobian
from clusterjax._solver.tangent import Equation, linearise

from .reference import schemes as reference


CONSTANT = dfx.ConstantStepSize()
PRECISE = dfx.PIDController(rtol=1e-11, atol=1e-13)
VALUE = np.array([[0.8, -0.3, 0.1], [0.4, 0.5, -0.7], [-0.2, 0.6, -0.4]])
FORM = np.array([[0.5, 0.2, -0.1], [0.0, 0.9, 0.3], [0.4, -0.2, 0.7]])
MASSES = np.array([1.0, 2.0, 0.0, 0.5, 1.0, 3.0])


def tokens(n=6, d=3, seed=0):
    x = np.random.default_rng(seed).normal(size=(n, d))
    return jnp.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def softmax(beta=9.0, causal=False, **options):
    return cjx.SoftmaxAttention(beta, mask=cjx.CausalMask() if causal else cjx.FullMask(), **options)


def flow(beta=9.0, causal=False):
    return cjx.AttentionField(softmax(beta, causal))


def rotation_schedule():
    return cjx.Interpolated([0.0, 2.0], [VALUE, -VALUE])


FIELDS = {
    "full": lambda: flow(4.0),
    "causal": lambda: cjx.AttentionField(softmax(4.0, True, query_key=FORM), VALUE),
    "masses": lambda: cjx.AttentionField(softmax(4.0, query_key=FORM), VALUE, masses=MASSES),
    "repulsive": lambda: cjx.AttentionField(softmax(4.0), -np.eye(3)),
    "unnormalised": lambda: cjx.AttentionField(cjx.UnnormalisedAttention(1.0, query_key=FORM), VALUE, masses=MASSES),
    "unnormalised causal": lambda: cjx.AttentionField(cjx.UnnormalisedAttention(1.0, mask=cjx.CausalMask())),
    "sum": lambda: flow(2.0) + 0.5 * cjx.AttentionField(softmax(3.0), VALUE),
    "heads": lambda: cjx.MultiHeadField(jnp.array([1.0, 4.0]), jnp.stack([FORM, FORM.T]), jnp.stack([VALUE, -VALUE])),
    "euclidean": lambda: cjx.AttentionField(softmax(1.0), -VALUE, cjx.Euclidean()),
    "time": lambda: cjx.AttentionField(softmax(4.0), rotation_schedule()),
    "jumps": lambda: cjx.AttentionField(softmax(cjx.PiecewiseConstant([0.0, 0.7], [2.0, 6.0]))),
    "function": lambda: cjx.FunctionField(lambda t, x, args: jnp.cumsum(jnp.tanh(2 * x), axis=0), cjx.Sphere()),
}
CLOSED = {"full", "causal", "masses", "repulsive", "unnormalised", "unnormalised causal", "sum", "time", "jumps"}
CLOUDS = {
    "generic": tokens(),
    "repeats": tokens()[jnp.array([0, 0, 1, 1, 1, 2])],
    "line and antipodes": jnp.asarray(
        np.array([[1, 0, 0], [-1, 0, 0], [1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, -1.0]])
    ),
    "off the sphere": tokens() * jnp.linspace(0.5, 2.0, 6)[:, None],
}


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("name", FIELDS)
def test_linearised_field_is_that_of_central_differences(name, cloud):
    """Of a velocity in the tangent space, along the tangent space and along time; closed forms where they are meant."""
    field, x, t = FIELDS[name](), CLOUDS[cloud], jnp.asarray(0.4)
    assert has_velocity_jacobian(field) == (name in CLOSED | {"euclidean"})
    equation = Equation(dfx.ODETerm(field))
    linear = jax.jit(lambda x: linearise(equation, t, x, None))(x)
    rng, h = np.random.default_rng(1), 1e-5
    u = rng.normal(size=linear.jacobian.shape[0])
    v = linear.vector(jnp.asarray(u))
    if name != "euclidean":
        np.testing.assert_allclose(jnp.sum(v * x, axis=1), 0, atol=1e-12)
    difference = (equation(t, x + h * v, None) - equation(t, x - h * v, None)) / (2 * h)
    np.testing.assert_allclose(linear.jacobian @ u, linear.coordinates(difference), rtol=0, atol=2e-8)
    by_time = (equation(t + h, x, None) - equation(t - h, x, None)) / (2 * h)
    np.testing.assert_allclose(linear.by_time, by_time, rtol=0, atol=2e-8)
    # (I - c J) k = r for r with a part along the tokens too, J by differences in all directions.
    c, r = 0.3, jnp.asarray(rng.normal(size=x.shape))
    k = linear.solver(c)[0](r)
    push = (equation(t, x + h * k, None) - equation(t, x - h * k, None)) / (2 * h)
    np.testing.assert_allclose(k - c * push, r, rtol=0, atol=5e-8)


@functools.cache
def exact(name):
    """The tokens at t = 0.3 and 0.6 to eleven digits, by an explicit solver."""
    ts = jnp.array([0.0, 0.3, 0.6])
    return np.asarray(cjx.simulate(FIELDS[name](), tokens(), ts, solver=dfx.Dopri8(), stepsize_controller=PRECISE).xs)


@pytest.mark.parametrize("name", ("causal", "time", "euclidean", "function"))
def test_order_five_and_interpolant_of_order_four(name):
    errors, between = [], []
    for steps in (4, 8, 16):
        options = {"solver": cjx.Rodas5P(None), "stepsize_controller": CONSTANT, "dt0": 0.6 / steps}
        run = cjx.simulate(FIELDS[name](), tokens(), jnp.array([0.0, 0.6]), dense=True, max_steps=17, **options)
        errors.append(np.max(np.abs(run.xs[-1] - exact(name)[-1])))
        middle = exact_at(name, 0.6 / steps * 1.5)
        between.append(np.max(np.abs(run.at(0.6 / steps * 1.5) - middle)))
    slopes = np.log2(np.array(errors[:-1]) / np.array(errors[1:]))
    assert np.all(slopes > 4.4) or errors[-1] < 1e-11, (errors, slopes)
    slopes = np.log2(np.array(between[:-1]) / np.array(between[1:]))
    assert np.all(slopes > 4.0) or between[-1] < 1e-11, (between, slopes)


@functools.cache
def exact_at(name, t):
    run = cjx.simulate(FIELDS[name](), tokens(), jnp.array([0.0, t]), solver=dfx.Dopri8(), stepsize_controller=PRECISE)
    return np.asarray(run.xs[-1])


def test_one_step_is_that_of_a_numpy_loop():
    x = np.asarray(tokens(4))
    run = cjx.simulate(
        flow(4.0), jnp.asarray(x), jnp.array([0.0, 0.5]), solver=cjx.Rodas5P(), stepsize_controller=CONSTANT, dt0=0.5
    )
    velocity = lambda y: np.asarray(flow(4.0)(0.0, jnp.asarray(y.reshape(x.shape)))).reshape(-1)
    y = reference.rodas5p_step(velocity, x.reshape(-1), 0.5).reshape(x.shape)
    np.testing.assert_allclose(run.xs[-1], y / np.linalg.norm(y, axis=1, keepdims=True), rtol=0, atol=1e-7)


@pytest.mark.parametrize("beta", (1.0, 4.0, 9.0))
@pytest.mark.parametrize("causal", (False, True), ids=("full", "causal"))
def test_agrees_with_the_explicit_solver(beta, causal):
    x, ts = tokens(16, seed=int(beta)), jnp.array([0.0, 3.0, 30.0, 300.0])
    implicit = cjx.simulate(flow(beta, causal), x, ts, solver=cjx.Rodas5P())
    precise = dfx.PIDController(rtol=1e-9, atol=1e-11)
    explicit = cjx.simulate(flow(beta, causal), x, ts, stepsize_controller=precise)
    np.testing.assert_allclose(implicit.xs, explicit.xs, rtol=0, atol=2e-5)
    np.testing.assert_allclose(jnp.linalg.norm(implicit.xs, axis=2), 1, rtol=0, atol=1e-14)


def merging_time(angle, beta, first):
    """From `angle` (or pi less it, if below 1e-2) until the cosine is .99, by the law of two clusters."""
    second = 1 - first

    def speed(sine, cosine):
        back = np.exp(beta * (cosine - 1))
        return sine * (second / (first + second * back) + first / (second + first * back)) * back

    # In the logarithm of the angle, on the far side of the distance to the antipode, whose sine is then exact.
    over = lambda sign, low, high: quad(
        lambda s: np.exp(s) / speed(np.sin(np.exp(s)), sign * np.cos(np.exp(s))),
        *(np.log(low), np.log(high)),
        epsabs=0,
        epsrel=1e-9,
        limit=500,
    )[0]
    end = np.arccos(0.99)
    return over(1, end, angle) if angle > 1e-2 else over(-1, angle, np.pi / 2) + over(1, end, np.pi / 2)


@functools.partial(jax.jit, static_argnames=("solver", "counts"))
def time_of_merging(x0, beta, end, solver, counts):
    cosine = lambda y: jnp.vdot(y[0], y[-1]) / jnp.linalg.norm(y[0]) / jnp.linalg.norm(y[-1])
    event = dfx.Event(lambda t, y, args, **kwargs: 0.99 - cosine(y), root_finder=Bracket())
    run = cjx.simulate(flow(beta), x0, jnp.stack([0 * end, end]), solver=solver, event=event, throw=False)
    return run.t1, run.stats["num_steps"]


CLUSTERS = (
    # tokens of each cluster, beta, angle
    ((1, 1), 9.0, 2 * np.pi / 3),
    ((1, 1), 20.0, np.pi / 2),
    ((2, 2), 40.0, np.pi / 3),
    ((4, 1), 40.0, np.pi / 3),
    ((1, 1), 9.0, 1e-3),
    ((1, 1), 9.0, 1e-10),
)


@pytest.mark.parametrize(("counts", "beta", "angle"), CLUSTERS)
def test_two_clusters_merge_when_the_law_says(counts, beta, angle):
    """To a relative 1e-4 at the default tolerances, up to 7e8; from 1e-10 beside the antipode too, a slow saddle."""
    expected = merging_time(angle, beta, counts[0] / sum(counts))
    theta = angle if angle > 1e-2 else np.pi - angle
    # The sine of a rounded pi - 1e-10 would have lost digits.
    far = [np.cos(theta), np.sin(angle), 0.0]
    x0 = jnp.asarray([[1.0, 0.0, 0.0]] * counts[0] + [far] * counts[1])
    t, steps = time_of_merging(x0, beta, jnp.asarray(20 * expected), cjx.Rodas5P(), counts)
    np.testing.assert_allclose(t, expected, rtol=1e-4)
    assert steps < 500


def test_known_merging_times():
    """The oracles of the theory, so that the law above is not only compared with itself."""
    np.testing.assert_allclose(merging_time(2 * np.pi / 3, 9.0, 0.5), 48743.6153, rtol=1e-8)
    np.testing.assert_allclose(merging_time(np.pi / 2, 20.0, 0.5), 12191759, rtol=1e-7)
    np.testing.assert_allclose(merging_time(np.pi / 3, 40.0, 0.8), 3949560.9, rtol=1e-7)


def test_without_the_bound_a_saddle_is_left_at_a_wrong_time():
    """What `max_growth` is for: the same start, within the tolerance of the antipode."""
    x0 = jnp.asarray([[1.0, 0.0, 0.0], [-1.0, 1e-10, 0.0]])
    expected = merging_time(1e-10, 9.0, 0.5)
    t, _ = time_of_merging(x0, 9.0, jnp.asarray(20 * expected), cjx.Rodas5P(max_growth=None), (1, 1))
    assert abs(t / expected - 1) > 0.01


@pytest.mark.parametrize("causal", (False, True), ids=("full", "causal"))
def test_a_batch_to_1e8_is_each_run_alone(causal):
    """At beta = 9; the number of clusters only falls, and the runs of a batch are those alone."""
    starts = jnp.stack([tokens(8, seed=seed) for seed in range(3)])
    ts = jnp.concatenate([jnp.zeros(1), jnp.logspace(0, 8, 9)])
    solve = lambda x0: cjx.simulate(flow(9.0, causal), x0, ts, solver=cjx.Rodas5P())
    batch = jax.jit(jax.vmap(lambda x0: (solve(x0).xs, solve(x0).stats["num_steps"])))(starts)
    alone = solve(starts[1])
    np.testing.assert_allclose(batch[0][1], alone.xs, rtol=0, atol=1e-7)
    assert batch[1].max() < 1200
    counts = np.array([[int(cjx.num_clusters(x, 0.1)) for x in xs] for xs in batch[0]])
    assert np.all(np.diff(counts) <= 0)


def test_derivatives_are_those_of_differences():
    """In forward and reverse mode, by the field and the start, alone and mapped over."""
    x0, ts, h = tokens(5), jnp.array([0.0, 4.0]), 1e-5
    weights = jnp.asarray(np.random.default_rng(3).normal(size=x0.shape))

    def loss(beta, x0, adjoint=None):
        run = cjx.simulate(flow(beta), x0, ts, solver=cjx.Rodas5P(), adjoint=adjoint, max_steps=256)
        return jnp.sum(weights * run.xs[-1])

    beta = jnp.asarray(3.0)
    difference = (loss(beta + h, x0) - loss(beta - h, x0)) / (2 * h)
    reverse = jax.jit(jax.vmap(jax.grad(loss, argnums=(0, 1)), in_axes=(0, None)))(beta[None], x0)
    np.testing.assert_allclose(reverse[0][0], difference, rtol=1e-4)
    tangent = jnp.roll(weights, 1, axis=0)
    forward = jax.jvp(lambda x0: loss(beta, x0, dfx.ForwardMode()), (x0,), (tangent,))[1]
    np.testing.assert_allclose(jnp.sum(reverse[1][0] * tangent), forward, rtol=1e-6)
    moved = (loss(beta, x0 + h * tangent) - loss(beta, x0 - h * tangent)) / (2 * h)
    np.testing.assert_allclose(forward, moved, rtol=1e-4)


def test_the_options_of_simulate_work_with_it():
    """`save`, `TokensAnd`, an event, `at`, dense output, and a wrapper that retracts."""
    x0, ts = tokens(8), jnp.array([0.0, 5.0, 50.0])
    solve = functools.partial(cjx.simulate, flow(), x0, ts, max_steps=512)
    plain = solve(solver=cjx.Rodas5P())
    count = lambda t, x, args: cjx.num_clusters(x, 0.1)
    both = solve(solver=cjx.Rodas5P(), save=cjx.TokensAnd(count))
    np.testing.assert_array_equal(both.xs, plain.xs)
    np.testing.assert_array_equal(both.saved, [count(0.0, x, None) for x in plain.xs])
    dense, retracted = (solve(solver=s, dense=True) for s in (cjx.Rodas5P(), cjx.Retract(cjx.Rodas5P())))
    times = jnp.array([2.5, 20.0])
    np.testing.assert_allclose(dense.at(times), plain.at(times), rtol=0, atol=1e-5)
    np.testing.assert_allclose(retracted.at(times), plain.at(times), rtol=0, atol=1e-5)
    consensus = cjx.simulate(
        flow(1.0), x0, jnp.array([0.0, 1e6]), solver=cjx.Rodas5P(), event=cjx.clustered_event(1e-3)
    )
    explicit = cjx.simulate(flow(1.0), x0, jnp.array([0.0, 1e6]), event=cjx.clustered_event(1e-3))
    np.testing.assert_allclose(consensus.t1, explicit.t1, rtol=1e-4)


def test_backwards_in_time_and_without_a_field():
    """As a solver of diffrax: a run from 1 to 0, and the linear equation of Prothero and Robinson, stiff by 1e6."""
    x0 = tokens(5)
    forward = cjx.simulate(flow(1.0), x0, jnp.array([0.0, 0.5]), solver=cjx.Rodas5P()).xs[-1]
    controller = dfx.PIDController(rtol=1e-8, atol=1e-10)
    back = dfx.diffeqsolve(
        dfx.ODETerm(flow(1.0)), cjx.Rodas5P(), 0.5, 0.0, None, forward, stepsize_controller=controller
    ).ys[0]
    np.testing.assert_allclose(back, x0, rtol=0, atol=1e-5)
    term = dfx.ODETerm(lambda t, y, args: -1e6 * (y - jnp.cos(t)) - jnp.sin(t))
    stiff = dfx.diffeqsolve(
        term, cjx.Rodas5P(), 0.0, 3.0, 1e-3, jnp.ones(2), stepsize_controller=controller, max_steps=500
    )
    np.testing.assert_allclose(stiff.ys[0], np.cos(3.0), rtol=0, atol=1e-6)


def test_single_precision_to_where_it_resolves():
    x0, ts = tokens(8), jnp.array([0.0, 10.0, 8000.0])
    single = cjx.simulate(flow(), x0.astype(jnp.float32), ts.astype(jnp.float32), solver=cjx.Rodas5P())
    assert single.xs.dtype == jnp.float32 and single.stats["num_steps"] < 2000
    np.testing.assert_allclose(single.xs, cjx.simulate(flow(), x0, ts, solver=cjx.Rodas5P()).xs, rtol=0, atol=2e-3)
    with pytest.raises(
        ValueError, match=r"^ts must span at most 8.39e\+03 with Rodas5P in float32, but it spans 1e\+08"
    ):
        cjx.simulate(flow(), x0.astype(jnp.float32), jnp.array([0.0, 1e8]), solver=cjx.Rodas5P())


def test_what_it_refuses():
    x0, ts = tokens(5), jnp.array([0.0, 1.0])
    solve = functools.partial(cjx.simulate, x0=x0, ts=ts, solver=cjx.Rodas5P())
    with pytest.raises(ValueError, match="^noise must be None with Rodas5P"):
        solve(flow(), noise=0.1, key=jax.random.key(0), dt0=0.1)
    with pytest.raises(ValueError, match="^adjoint must not be BacksolveAdjoint with Rodas5P"):
        solve(flow(), adjoint=dfx.BacksolveAdjoint())
    hardmax = cjx.AttentionField(cjx.HardmaxAttention())
    for field in (hardmax, 2.0 * hardmax + flow()):
        with pytest.raises(ValueError, match="^solver must not be Rodas5P with HardmaxAttention"):
            solve(field)
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="^max_growth must be"):
            cjx.Rodas5P(wrong)
    with pytest.raises(ValueError, match="^ts must span at most 4.5e"):
        cjx.simulate(flow(), x0, jnp.array([0.0, 1e13]), solver=cjx.Rodas5P())


def test_the_step_limit_names_the_remedy():
    """How far the run came, and `Rodas5P`; of a batch how many runs; under `jit` without the time."""
    x0, ts = tokens(8), jnp.array([0.0, 1.0, 1e8])
    remedy = r"pass solver=Rodas5P\(\), which is implicit, else a larger max_steps"
    with pytest.raises(
        RuntimeError, match=rf"^The run stopped at t = \d.*, before the end 1e\+08, after .*: .*{remedy}"
    ):
        cjx.simulate(flow(), x0, ts, max_steps=40)
    solve = lambda x0: cjx.simulate(flow(), x0, ts, max_steps=40, throw=False)
    alone, batch = solve(x0), jax.vmap(solve)(jnp.stack([x0, x0[:, ::-1]]))
    assert f"t = {float(alone.t1):.6g}, before" in alone.failure
    assert batch.failure.startswith(f"2 of 2 runs stopped at t = {float(batch.t1.min()):.6g}")
    assert cjx.simulate(flow(), x0, ts[:2]).failure == ""
    with pytest.raises(Exception, match=rf"A run stopped before ts\[-1\] after max_steps steps: .*{remedy}"):
        jax.block_until_ready(jax.vmap(lambda x: cjx.simulate(flow(), x, ts, max_steps=40).xs)(x0[None]))
