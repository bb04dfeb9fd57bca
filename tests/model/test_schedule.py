import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax._model.schedule import at_time
from tests.helpers import DTYPES, CountTraces, as_a_user, assert_close, assert_derivatives, assert_same, name_of, normal
from tests.model.derivatives_and_maps import assert_maps


TS = np.array([0.5, 1.0, 3.0, 7.0])
SHAPES = ((), (2, 2))

at = eqx.filter_jit(lambda schedule, t: schedule(t))
at_each = eqx.filter_jit(lambda schedule, ts: jax.vmap(schedule)(ts))


def layer(t, ts, values):
    """Returns the value of the last layer that begins at `t` or before, and of the first layer if none does."""
    found = values[0]
    for start, value in zip(ts, values, strict=False):
        if t >= start:
            found = value
    return found


# --- definition


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layers", (4, 3), ids=("starts", "edges"))
def test_piecewise_constant_is_the_value_of_its_layer(shape, layers):
    """Each time begins a layer; if there is one value less, the times are edges. The schedule is right-continuous."""
    values = np.asarray(normal(1, layers, *shape))
    schedule = cjx.PiecewiseConstant(TS, values)
    ts = np.sort(np.concatenate([TS, np.nextafter(TS, -np.inf), np.nextafter(TS, np.inf), [-3.0, 0.0, 2.0, 6.9, 1e9]]))
    found = at_each(schedule, ts)
    assert_same(found, np.array([layer(t, TS, values) for t in ts]))


@pytest.mark.parametrize("layers", (4, 3), ids=("starts", "edges"))
def test_piecewise_constant_jumps_where_it_changes(layers):
    values = np.arange(1.0, 1.0 + layers)
    schedule = cjx.PiecewiseConstant(TS, values)
    jumps = np.asarray(schedule.jumps())
    assert_same(jumps, TS[1:layers])
    assert float(at(schedule, jumps[0])) - float(at(schedule, np.nextafter(jumps[0], 0.0))) == 1.0


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_interpolated_is_a_polygon(shape):
    values = np.asarray(normal(1, 4, *shape))
    ts = np.concatenate([np.linspace(0.5, 7.0, 27), [-3.0, 0.49, 7.01, 1e9]])
    found = np.asarray(at_each(cjx.Interpolated(TS, values), ts))
    expected = np.array([np.interp(ts, TS, column) for column in values.reshape(4, -1).T]).T
    assert_close(found.reshape(len(ts), -1), expected)


def test_interpolated_goes_through_its_knots():
    values = np.asarray(normal(1, 4, 2, 2))
    schedule = cjx.Interpolated(TS, values)
    assert_same(at_each(schedule, TS), values)
    assert_same(schedule.jumps(), TS)


def test_combined_is_the_function_of_its_parts():
    left, right = cjx.PiecewiseConstant(TS, normal(1, 4, 2, 2)), cjx.Interpolated(TS, normal(2, 4, 2, 2))
    both = cjx.Combined(lambda a, b, c: a @ b + c, (left, right, jnp.eye(2)))
    for t in map(np.asarray, (0.0, 1.0, 2.5)):
        assert_close(at(both, t), np.asarray(at(left, t)) @ np.asarray(at(right, t)) + np.eye(2))


def test_combined_jumps_where_any_part_does():
    first = cjx.PiecewiseConstant([0.0, 2.0, 5.0], [1.0, 2.0, 3.0])
    second = cjx.PiecewiseConstant([0.0, 1.0, 3.0], [1.0, 2.0])
    both = cjx.Combined(lambda *parts: sum(parts), (first, jnp.asarray(1.0), second, cjx.Interpolated([0.0], [1.0])))
    assert_same(both.jumps(), [1.0, 2.0, 5.0])
    assert cjx.Combined(lambda a: a, (jnp.asarray(1.0),)).jumps() is None


# --- limits


def test_one_value_is_a_constant():
    for schedule in (cjx.PiecewiseConstant([2.0], [5.0]), cjx.Interpolated([2.0], [5.0])):
        assert_same(at_each(schedule, np.array([-1.0, 2.0, 9.0])), [5.0, 5.0, 5.0])
    assert cjx.PiecewiseConstant([2.0], [5.0]).jumps().size == 0
    assert cjx.PiecewiseConstant([2.0, 4.0], [5.0]).jumps().size == 0


# --- contract


def test_whole_numbers_become_floats():
    for kind in (cjx.PiecewiseConstant, cjx.Interpolated):
        schedule = kind([0, 2], [1, 2])
        assert schedule.ts.dtype == schedule(1.0).dtype == jnp.float64


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("kind", (cjx.PiecewiseConstant, cjx.Interpolated), ids=name_of)
def test_dtype_is_that_of_the_values_and_time_may_be_of_any(kind, dtype):
    schedule = kind(TS, normal(1, 4, dtype=dtype))
    for t in (2.0, 2, jnp.asarray(2.0, jnp.float32), jnp.asarray(2.0), jnp.asarray(2)):
        assert jax.eval_shape(lambda t=t: schedule(t)).dtype == dtype
    assert jax.eval_shape(lambda: at_time(schedule, 2.0, jnp.float32)).dtype == jnp.float32


def test_one_trace_for_any_values():
    """Values and times are arrays, so that new numbers do not compile again."""
    body = CountTraces(lambda schedule, t: schedule(t))
    compiled = eqx.filter_jit(body)
    found = [compiled(cjx.PiecewiseConstant(TS + k, k + np.arange(4.0)), jnp.asarray(2.0)) for k in range(5)]
    assert_same(found, [1.0, 2.0, 2.0, 3.0, 4.0])
    assert body.traces == 1


def test_mapping_over_schedules_equals_a_loop():
    values = np.asarray(normal(1, 3, 4, 2))
    assert_maps(lambda values: cjx.Interpolated(TS, values)(2.2), values, kind="exact")


@pytest.mark.parametrize("kind", (cjx.PiecewiseConstant, cjx.Interpolated), ids=name_of)
def test_derivatives_in_the_values(kind):
    assert_derivatives(lambda values: jax.vmap(kind(TS, values))(jnp.asarray([0.0, 1.0, 2.2, 8.0])), normal(1, 4, 2))


def test_derivative_in_time_is_the_slope():
    schedule = cjx.Interpolated(TS, [1.0, 2.0, -2.0, 0.0])
    slopes = jax.jit(jax.vmap(jax.grad(schedule)))(np.array([0.0, 0.7, 2.0, 5.0, 8.0]))
    assert_close(slopes, np.array([0.0, 2.0, -2.0, 0.5, 0.0]))


# --- errors


@pytest.mark.parametrize("kind", (cjx.PiecewiseConstant, cjx.Interpolated), ids=name_of)
@pytest.mark.parametrize(
    ("ts", "values", "message"),
    (
        ([0.0, 2.0, 1.0], [1.0, 2.0, 3.0], r"^ts must be finite and strictly increasing, but it is .*; sort it\.$"),
        ([0.0, 1.0, 1.0], [1.0, 2.0, 3.0], r"^ts must be finite and strictly increasing, but it is .*; sort it\.$"),
        ([0.0, np.nan], [1.0, 2.0], r"^ts must be finite and strictly increasing, but it is .*; sort it\.$"),
        ([0.0, np.inf], [1.0, 2.0], r"^ts must be finite and strictly increasing, but it is .*; sort it\.$"),
        ([0.0, 1.0], [1.0, np.nan], r"^values must be finite, but some are not; mend them\.$"),
        ([0.0], [1j], r"^values must be real, but its dtype is complex128; pass its real part\.$"),
        (
            [0.0],
            [[[1, 1j], [0, 1]]],
            r"^values must be real.* each entry a \+ ib of matrices as \[\[a, -b\], \[b, a\]\]\.$",
        ),
        ([], [], r"^ts must be a non-empty vector of times, but its shape is \(0,\); pass one time per value\.$"),
        ([[0.0, 1.0]], [[1.0, 2.0]], r"^ts must be a non-empty vector of times, but its shape is \(1, 2\); pass"),
        ([0.0, 1.0], [1.0, 2.0, 3.0], r"^values must have one entry for each time.* but it has shape \(3,\) and ts"),
        ([0.0, 1.0], 1.0, r"^values must have one entry for each time.* but it has shape \(\) and ts has length 2"),
    ),
)
def test_knots_that_make_no_schedule(kind, ts, values, message):
    with as_a_user(), pytest.raises(ValueError, match=message):
        kind(ts, values)


def test_parts_of_two_dtypes():
    single = cjx.PiecewiseConstant(np.array([0.0, 2.0], np.float32), [1.0, 2.0])
    double = cjx.PiecewiseConstant(np.array([0.0, 1.0]), [1.0, 2.0])
    assert_same(cjx.Combined(lambda *parts: sum(parts), (single, double)).jumps(), [1.0, 2.0])


def test_a_combination_may_be_made_inside_of_jit():
    parts = jnp.asarray(1.0), jnp.asarray(2.0)
    assert float(jax.jit(lambda t: cjx.Combined(jnp.add, parts)(t))(0.5)) == 3.0


# --- kinks


class Inner(eqx.Module):
    """A function of t that holds a schedule."""

    inner: cjx.Interpolated

    def __call__(self, t):
        return self.inner(t)


GROW = cjx.FunctionField(lambda t, x, args: x, cjx.Euclidean())
# Ways to use a schedule in a field that moves each token by x' = beta(t) x; in the last it is passed as an argument.
WAYS = {
    "sum": lambda beta: beta * (2.0 * GROW) + (-1.0) * (beta * GROW),
    "inside a function": lambda beta: cjx.ScaledField(GROW, Inner(beta)),
    "combined": lambda beta: cjx.ScaledField(GROW, cjx.Combined(lambda a, b: a * b, (beta, jnp.asarray(1.0)))),
    "value": lambda beta: cjx.AttentionField(
        cjx.SoftmaxAttention(1.0), cjx.Combined(lambda b: b[None, None], (beta,)), cjx.Euclidean()
    ),
    "arguments": lambda beta: cjx.FunctionField(lambda t, x, args: args(t) * x, cjx.Euclidean()),
}


@pytest.mark.exhaustive_cases("arguments", "combined", "inside a function", "value")
@pytest.mark.parametrize("way", WAYS)
def test_the_gradient_by_the_time_of_a_kink_is_that_of_the_solution(way):
    """From 0 to 3 the integral of the polygon through (0, 2), (tau, 6) and (2, -2) is 2 + 2 tau."""

    @jax.jit
    def end(tau):
        beta = cjx.Interpolated(jnp.stack([jnp.zeros(()), tau, 2 * jnp.ones(())]), [2.0, 6.0, -2.0])
        args, ts = beta if way == "arguments" else None, jnp.asarray([0.0, 3.0])
        return cjx.simulate(WAYS[way](beta), jnp.ones((1, 1)), ts, args, adjoint=dfx.ForwardMode()).x1[0, 0]

    x, slope = jax.jvp(end, (jnp.asarray(0.7),), (jnp.asarray(1.0),))
    np.testing.assert_allclose(x, np.exp(3.4), rtol=1e-3)
    np.testing.assert_allclose(slope, 2 * np.exp(3.4), rtol=1e-3)
