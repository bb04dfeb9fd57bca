"""The function `simulate`: its results for each option, and how often it compiles."""

import re

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
import pytest
from scipy.integrate import solve_ivp

from clusterjax import (
    AbstractField,
    AttentionField,
    Interpolated,
    PiecewiseConstant,
    SoftmaxAttention,
    Sphere,
    simulate,
)
from tests import oracles


TS = np.array([0.0, 1.0, 2.5, 4.0])
X0 = oracles.unit_tokens(1, 6, 3)
ACCURATE = {"solver": dfx.Dopri8(), "stepsize_controller": dfx.PIDController(rtol=1e-12, atol=1e-14)}


def run(field, x0=X0, ts=TS, **options):
    return simulate(field, jnp.asarray(x0), jnp.asarray(ts), **options)


def softmax_field(beta, **options):
    return AttentionField(SoftmaxAttention(beta, **options))


def integrate_in_numpy(velocity, ts=TS):
    """SciPy's solution for `velocity(t, x)`, which is made tangent and evaluated at normalised tokens."""

    def rate(t, y):
        x = y.reshape(X0.shape)
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
        v = velocity(t, x)
        return (v - np.sum(x * v, axis=1, keepdims=True) * x).ravel()

    solution = solve_ivp(rate, (ts[0], ts[-1]), X0.ravel(), t_eval=ts, method="DOP853", rtol=1e-12, atol=1e-13)
    return solution.y.T.reshape(-1, *X0.shape)


def softmax_average(x, beta, form=None):
    weights = np.exp(beta * x @ (np.eye(3) if form is None else form) @ x.T)
    return weights / weights.sum(axis=1, keepdims=True) @ x


def test_what_comes_back():
    """A run returns times, tokens of unit norm, counts, a verdict, and the end."""
    traj = run(softmax_field(1.0))
    np.testing.assert_array_equal(traj.ts, TS)
    assert traj.xs.shape == (4, 6, 3)
    np.testing.assert_allclose(traj.xs[0], X0, rtol=0, atol=1e-15)
    np.testing.assert_allclose(np.linalg.norm(traj.xs, axis=-1), 1.0, rtol=0, atol=1e-15)
    np.testing.assert_allclose(traj.x1, traj.xs[-1], rtol=0, atol=1e-12)
    assert traj.t1 == 4.0
    assert traj.stats["summation"] == "Dense"
    assert traj.stats["num_steps"] == traj.stats["num_accepted_steps"] + traj.stats["num_rejected_steps"] < 40
    assert bool(dfx.is_successful(traj.result))
    expected = integrate_in_numpy(lambda t, x: softmax_average(x, 1.0))
    np.testing.assert_allclose(traj.xs, expected, rtol=0, atol=1e-5)


def test_start_is_retracted():
    scaled = run(softmax_field(1.0), X0 * np.linspace(0.1, 7.0, 6)[:, None])
    np.testing.assert_allclose(scaled.xs, run(softmax_field(1.0)).xs, rtol=0, atol=1e-12)


@pytest.mark.exhaustive
def test_dtype_follows_the_tokens():
    """With x64 on, float32 tokens give a float32 run, whatever the dtype of the parameters and the times."""
    traj = simulate(softmax_field(1.0), jnp.asarray(X0, jnp.float32), jnp.asarray(TS))
    assert {leaf.dtype for leaf in (traj.xs, traj.ts, traj.t1, traj.x1, traj.at(0.7))} == {jnp.dtype(jnp.float32)}
    counts = [count for name, count in traj.stats.items() if name != "summation"]
    assert all(not jnp.issubdtype(jnp.asarray(count).dtype, jnp.inexact) for count in counts)
    np.testing.assert_allclose(traj.xs, run(softmax_field(1.0)).xs, rtol=0, atol=1e-5)


DOUBLE = r"tensor<\d[\dx]*xf64>"


def test_single_precision_has_no_double_arrays():
    """In the compiled float32 run no array of more than one number is float64."""
    solve = lambda x0, beta, ts: simulate(softmax_field(beta), x0, ts).xs
    lowered = jax.jit(solve).lower(jnp.asarray(X0, jnp.float32), np.float32(1.0), TS.astype(np.float32)).as_text()
    assert "xf32" in lowered and not re.search(DOUBLE, lowered)
    assert re.search(DOUBLE, jax.jit(lambda x: 2 * x).lower(X0).as_text())


def test_runs_of_a_batch_are_each_their_own():
    """vmap over tokens and beta equals a loop; with throw=False a run of too few steps leaves the others alone."""
    betas = np.array([1.0, -20.0, 9.0])
    starts = np.stack([oracles.unit_tokens(seed, 6, 3) for seed in (1, 2, 3)])
    solve = lambda beta, x0: run(softmax_field(beta), x0, throw=False, max_steps=16)
    batch = jax.tree.map(np.asarray, eqx.filter_vmap(solve)(jnp.asarray(betas, float), jnp.asarray(starts, float)))
    assert batch.xs.shape == (3, 4, 6, 3)
    for k in (0, 2):
        alone = run(softmax_field(betas[k]), starts[k])
        np.testing.assert_allclose(batch.xs[k], alone.xs, rtol=0, atol=1e-12)
        assert batch.stats["num_steps"][k] == alone.stats["num_steps"]
    np.testing.assert_array_equal(dfx.is_successful(batch.result), [True, False, True])
    np.testing.assert_array_equal(batch.result == dfx.RESULTS.max_steps_reached, [False, True, False])
    reached = np.isfinite(batch.xs).all(axis=(2, 3))
    np.testing.assert_array_equal(reached, [[True] * 4, [True, False, False, False], [True] * 4])
    assert batch.t1[0] == batch.t1[2] == 4.0
    assert 0 < batch.t1[1] < 1.0
    assert np.all(np.isfinite(batch.x1))


def order(t, y, args, **kwargs):
    return jnp.sum(jnp.square(jnp.mean(y, axis=0))) - 0.9


@pytest.mark.exhaustive
def test_event_ends_the_run():
    """After any diffrax event tokens are NaN; the run ends where the condition is met; at() refuses later times."""
    event = dfx.Event(order, optx.Newton(rtol=1e-9, atol=1e-9))
    traj = run(softmax_field(2.0), ts=np.array([0.0, 1.0, 3.0, 30.0]), event=event)
    assert bool(dfx.is_event(traj.result))
    assert 3.0 < traj.t1 < 30.0
    np.testing.assert_array_equal(np.isfinite(traj.xs).all(axis=(1, 2)), [True, True, True, False])
    assert np.all(np.isnan(traj.xs[-1]))
    np.testing.assert_allclose(order(0.0, traj.x1, None), 0.0, rtol=0, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(traj.x1, axis=1), 1.0, rtol=0, atol=1e-15)
    unstopped = run(softmax_field(2.0), ts=np.array([0.0, 1.0, 3.0, float(traj.t1)]), **ACCURATE)
    np.testing.assert_allclose(traj.x1, unstopped.xs[-1], rtol=0, atol=1e-5)
    np.testing.assert_allclose(traj.at(traj.t1), unstopped.xs[-1], rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="t must lie within the run"):
        traj.at(traj.t1 + 0.1)


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")
def test_save_keeps_what_is_asked_for():
    """`save` sees the time, unit tokens and the arguments; integers and trees come back too."""

    def save(t, x, args):
        return {"t": t, "norms": jnp.linalg.norm(x, axis=1), "scaled": args["c"] * x, "count": jnp.sum(x[:, 0] > 0)}

    traj = run(softmax_field(1.0), args={"c": jnp.asarray(3.0)}, save=save)
    plain = run(softmax_field(1.0))
    np.testing.assert_allclose(traj.xs["t"], TS, rtol=0, atol=1e-15)
    np.testing.assert_allclose(traj.xs["norms"], np.ones((4, 6)), rtol=0, atol=1e-15)
    np.testing.assert_allclose(traj.xs["scaled"], 3 * plain.xs, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(traj.xs["count"], np.sum(np.asarray(plain.xs)[:, :, 0] > 0, axis=1))
    np.testing.assert_allclose(traj.x1, plain.x1, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="at needs the tokens between the save times"):
        traj.at(0.5)


@pytest.mark.exhaustive
def test_progress_meter_writes(capfd):
    traj = run(softmax_field(1.0), progress=dfx.TextProgressMeter())
    jax.block_until_ready(traj.xs)
    jax.effects_barrier()
    assert "100.00%" in capfd.readouterr().out


TIMES = np.array([0.0, 0.4, 1.7, 3.9])


@pytest.fixture(scope="module")
def exact():
    return integrate_in_numpy(lambda t, x: softmax_average(x, 2.0), TIMES)


@pytest.mark.exhaustive_cases("resumed")
@pytest.mark.parametrize("dense, accuracy", [(False, 1e-6), (True, 1e-5)], ids=("resumed", "dense"))
def test_tokens_at_any_time(exact, dense, accuracy):
    """at(t) is as accurate as the run, for a time and for a vector of them, ends and save times included."""
    traj = run(softmax_field(2.0), dense=dense)
    np.testing.assert_allclose(traj.at(TIMES), exact, rtol=0, atol=accuracy)
    np.testing.assert_allclose(traj.at(1.7), exact[2], rtol=0, atol=accuracy)
    np.testing.assert_allclose(np.linalg.norm(traj.at(TIMES), axis=-1), 1.0, rtol=0, atol=1e-15)
    np.testing.assert_allclose(traj.at(TS), traj.xs, rtol=0, atol=1e-12)
    for t in (-0.1, 4.1, jnp.asarray([1.0, 5.0]), np.nan):
        with pytest.raises(ValueError, match="t must (lie within the run|be finite)"):
            traj.at(t)
    with pytest.raises(ValueError, match="t must be a time or a vector"):
        traj.at(TIMES[:, None])


@pytest.mark.exhaustive
@pytest.mark.slow
def test_derivative_through_at(exact):
    """Derivatives with respect to beta and t between save times agree with differences of runs and with the field."""
    first = lambda beta, t: jnp.sum(run(softmax_field(beta)).at(t)[:, 0])
    by_beta, by_time = jax.grad(first, argnums=(0, 1))(jnp.asarray(2.0), jnp.asarray(1.7))
    ends = [np.sum(run(softmax_field(2.0 + h), ts=TIMES, **ACCURATE).xs[2][:, 0]) for h in (1e-4, -1e-4)]
    np.testing.assert_allclose(by_beta, (ends[0] - ends[1]) / 2e-4, rtol=1e-4)
    np.testing.assert_allclose(by_time, np.sum(softmax_field(2.0)(0.0, jnp.asarray(exact[2]))[:, 0]), rtol=1e-4)


SCHEDULE = ((0.0, 1.0, 0.0), (1.0, 2.5, 4.0), (2.5, 4.0, -1.0))


@pytest.mark.exhaustive
def test_piecewise_constant_parameters_compose():
    """With beta(t) by layers the run is one run after the other, to 1e-9, and jumps cost at most three steps."""
    x, steps = jnp.asarray(X0), 0
    for start, end, beta in SCHEDULE:
        piece = run(softmax_field(beta), x, np.array([start, end]), **ACCURATE)
        x, steps = piece.xs[-1], steps + piece.stats["num_steps"]
    beta = PiecewiseConstant(jnp.asarray([0.0, 1.0, 2.5]), jnp.asarray([0.0, 4.0, -1.0]))
    traj = run(softmax_field(beta), **ACCURATE)
    np.testing.assert_allclose(traj.xs[-1], x, rtol=0, atol=1e-9)
    assert traj.stats["num_steps"] <= steps + 3


@pytest.mark.exhaustive
def test_interpolated_parameters():
    """Runs with beta(t) and V(t) on straight lines between knots agree with SciPy."""
    knots, betas = np.array([0.0, 2.5, 4.0]), np.array([0.5, 4.0, 1.0])
    values = np.stack([np.eye(3), np.diag([1.0, 0.5, -1.0]), np.diag([0.0, 2.0, 1.0])])
    beta = Interpolated(jnp.asarray(knots), jnp.asarray(betas))
    value = Interpolated(jnp.asarray(knots), jnp.asarray(values))
    traj = run(AttentionField(SoftmaxAttention(beta), value), **ACCURATE)

    def velocity(t, x):
        v = np.array([[np.interp(t, knots, values[:, i, j]) for j in range(3)] for i in range(3)])
        return softmax_average(x, np.interp(t, knots, betas)) @ v.T

    np.testing.assert_allclose(traj.xs, integrate_in_numpy(velocity), rtol=0, atol=1e-7)


class Counting(AbstractField):
    """A field that counts how often it is traced."""

    field: AttentionField
    count: list = eqx.field(static=True)
    space: Sphere = Sphere()

    def __call__(self, t, x, args=None):
        self.count.append(1)
        return self.field(t, x, args)

    def check(self, n, d):
        self.field.check(n, d)


class Tally(list):
    """A list that can be hashed."""

    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]


def test_one_trace_for_any_number_of_betas():
    """New values of beta, V, x0 and ts compile nothing."""
    tally, rng = Tally(), np.random.default_rng(3)
    counts = []
    for k, beta in enumerate((0.0, 1.0, 2.5, -1.0, 9.0)):
        field = Counting(AttentionField(SoftmaxAttention(beta), jnp.asarray(rng.normal(size=(3, 3)))), tally)
        options = {"solver": dfx.Euler(), "stepsize_controller": dfx.ConstantStepSize(), "dt0": 0.5}
        run(field, oracles.unit_tokens(k, 6, 3), TS * (1 + k), **options)
        counts.append(len(tally))
    assert counts[0] > 0
    assert counts == counts[:1] * 5


@pytest.mark.exhaustive
def test_minus_the_field_runs_backwards():
    """A short run returns to its start (7.3); a long one would not, since contraction is ill-posed backwards."""
    ts = np.array([0.0, 0.2, 0.7, 1.0])
    forwards = run(softmax_field(2.0), ts=ts, **ACCURATE)
    backwards = run(-softmax_field(2.0), forwards.xs[-1], ts, **ACCURATE)
    assert np.abs(forwards.xs[-1] - X0).max() > 0.1
    np.testing.assert_allclose(backwards.xs[-1], X0, rtol=0, atol=1e-9)


def test_backsolve_runs_the_same():
    """Runs with BacksolveAdjoint, which saves by another path, are the same."""
    traj = run(softmax_field(1.0), adjoint=dfx.BacksolveAdjoint())
    np.testing.assert_allclose(traj.xs, run(softmax_field(1.0)).xs, rtol=0, atol=1e-12)
    np.testing.assert_allclose(traj.x1, traj.xs[-1], rtol=0, atol=1e-12)
    assert traj.t1 == 4.0
