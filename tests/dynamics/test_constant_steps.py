"""Constant steps at the jumps of schedules: a run is the composition of the runs of its layers."""

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax._dynamics.retract import StepsByLayer, neighbour
from clusterjax._model.schedule import AbstractSchedule
from tests import oracles


X0 = oracles.unit_tokens(1, 6, 3)
KNOTS, BETAS = np.array([0.0, 1.0, 2.3, 3.1]), np.array([0.5, 4.0, -1.0, 6.0])
END = 4.0
CONSTANT = dfx.ConstantStepSize()


def field_of(beta):
    return cjx.AttentionField(cjx.SoftmaxAttention(beta))


def by_layers(knots=KNOTS, betas=BETAS):
    return cjx.PiecewiseConstant(jnp.asarray(knots), jnp.asarray(betas))


def run(beta, dt0, end=END, x0=X0, start=0.0, **options):
    # Tokens are on the sphere after each step: otherwise runs of single layers retract them more often than one run.
    options = {"stepsize_controller": CONSTANT, "dt0": dt0, "solver": cjx.Retract(dfx.Tsit5())} | options
    x0 = jnp.asarray(x0)
    return cjx.simulate(field_of(beta), x0, jnp.asarray([start, end], x0.dtype), **options)


def composed(dt0, knots=KNOTS, betas=BETAS, end=END, **options):
    """Runs the layers one by one, so that no run has a jump; returns the tokens and the number of steps."""
    x, steps = X0, 0
    for start, stop, beta in zip(knots, [*knots[1:], end], betas, strict=True):
        # The steps are equal, and as few as possible without being longer than dt0, except for rounding.
        step = dt0 and (stop - start) / np.ceil((stop - start) / dt0 - 1e-5) * (1 + 1e-13)
        piece = run(float(beta), step, stop, x, start, **options)
        x, steps = np.asarray(piece.x1), steps + int(piece.stats["num_steps"])
    return x, steps


ACCURATE = {"solver": dfx.Dopri8(), "stepsize_controller": dfx.PIDController(rtol=1e-13, atol=1e-14)}


@pytest.fixture(scope="module")
def exact():
    return composed(None, **ACCURATE)[0]


@pytest.mark.exhaustive
# Jumps are on the grid of steps and off it, and some layers are shorter than a step.
@pytest.mark.exhaustive_cases("0.07", "0.1", "0.9")
@pytest.mark.parametrize("dt0", (0.1, 0.07, 0.9, 2.0))
def test_a_run_is_the_composition_of_the_runs_of_its_layers(dt0):
    found = run(by_layers(), dt0)
    wanted, steps = composed(dt0)
    np.testing.assert_allclose(found.x1, wanted, rtol=0, atol=1e-13)
    assert found.stats["num_steps"] == steps == sum(np.ceil(np.diff([*KNOTS, END]) / dt0 - 1e-9))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("solver", "order"), [
    (dfx.Tsit5(), 5), (cjx.Rodas5P(), 5), (dfx.Euler(), 1), (cjx.Retract(dfx.Tsit5()), 5),
], ids=("Tsit5", "Rodas5P", "Euler", "Retract"))  # fmt: skip
def test_the_order_is_that_of_the_solver_through_jumps_on_and_off_the_grid(solver, order, exact):
    errors = [float(jnp.max(jnp.abs(run(by_layers(), dt0, solver=solver).x1 - exact))) for dt0 in (0.2, 0.1, 0.05)]
    slopes = np.log2(np.array(errors[:-1]) / errors[1:])
    assert slopes[-1] > order - 0.45 and errors[-1] < {1: 0.1, 5: 1e-7}[order]


@pytest.mark.exhaustive_cases("adaptive", "constant")
@pytest.mark.parametrize(
    ("end", "options"),
    ((1.0, {"dt0": 0.05}), (2.3, {"dt0": None, "stepsize_controller": None})),
    ids=("constant", "adaptive"),
)
def test_a_run_that_ends_at_a_jump_sees_nothing_of_the_next_layer(end, options):
    """The end is the same to the last bit, whatever layer begins there."""
    ends = [run(by_layers(betas=[0.5, 4.0, last, last] if end == 2.3 else [0.5, last, last, last]), end=end, **options)
            for last in (4.0, 300.0)]  # fmt: skip
    np.testing.assert_array_equal(ends[0].x1, ends[1].x1)
    assert ends[0].stats["num_steps"] == ends[1].stats["num_steps"]
    # Tokens between the save times do not see the next layer either, but they see the layer before.
    at = [np.asarray(one.at(1.0)) for one in ends]
    np.testing.assert_array_equal(*at)
    assert np.max(np.abs(run(by_layers(betas=[0.6, 4.0, 4.0, 4.0]), end=end, **options).x1 - ends[0].x1)) > 1e-3


class Seen(cjx.AbstractField):
    """A field that records the times at which it is evaluated."""

    field: cjx.AttentionField
    times: list = eqx.field(static=True)
    space: cjx.Sphere = cjx.Sphere()

    def __call__(self, t, x, args=None):
        jax.debug.callback(lambda t: self.times.append(float(t)), t)
        return self.field(t, x, args)

    def check(self, n, d):
        self.field.check(n, d)


def test_no_evaluation_is_at_a_jump():
    times: list[float] = []
    field = Seen(field_of(by_layers()), times)
    cjx.simulate(field, jnp.asarray(X0), jnp.asarray([0.0, 3.1]), stepsize_controller=CONSTANT, dt0=0.25)
    jax.effects_barrier()
    for jump in KNOTS[1:3]:
        assert np.nextafter(jump, 0) in times and jump not in times
        assert np.min([t for t in times if t > jump]) == np.nextafter(np.nextafter(np.nextafter(jump, 0), 9), 9)
    # At the end of the run the time is not shifted, since other schedules may depend on it.
    assert 3.1 in times and max(times) == 3.1


def test_without_jumps_constant_steps_are_those_of_diffrax():
    """Where no jump is within the run, all its steps are equal."""
    solver = dfx.Heun()
    outside = run(by_layers([0.0, 7.0, 8.0, 9.0], [2.0, 3.0, 4.0, 5.0]), 0.3, solver=solver)
    plain = run(2.0, END / 14, solver=solver)
    np.testing.assert_allclose(outside.x1, plain.x1, rtol=0, atol=1e-13)
    assert outside.stats["num_steps"] == plain.stats["num_steps"] == 14


@pytest.mark.exhaustive
def test_steps_that_are_listed_stay_as_they_are():
    steps = dfx.StepTo(jnp.asarray([0.0, 0.6, 1.4, END]))
    assert run(by_layers(), None, stepsize_controller=steps).stats["num_steps"] == 3


@pytest.mark.exhaustive
def test_jumps_that_are_equal_or_next_to_each_other_or_outside_the_run():
    knots = jnp.asarray([-1.0, 0.0, 1.0, float(np.nextafter(2.3, 9)), 7.0])
    value = cjx.PiecewiseConstant(knots, jnp.tile(jnp.eye(3)[None], (5, 1, 1)))
    two = cjx.AttentionField(cjx.SoftmaxAttention(by_layers()), value)
    how = {"solver": cjx.Retract(dfx.Tsit5()), "stepsize_controller": CONSTANT, "dt0": 0.1}
    found = cjx.simulate(two, jnp.asarray(X0), jnp.asarray([0.0, END]), **how)
    wanted = run(by_layers(), 0.1)
    np.testing.assert_allclose(found.x1, wanted.x1, rtol=0, atol=1e-12)
    # A jump is at zero, whose neighbour below is one of the smallest numbers.
    early = run(by_layers([-1.0, 0.0, 7.0, 8.0], [1.0, 200.0, 1.0, 1.0]), 0.25, end=1e-9, start=-1.0)
    np.testing.assert_allclose(early.x1, run(1.0, 0.25, end=0.0, start=-1.0).x1, rtol=0, atol=1e-6)


class Switch(AbstractSchedule):
    """A schedule of a user's own, continuous from the left."""

    at: float = 1.0

    def __call__(self, t):
        return jnp.where(jnp.asarray(t) <= self.at, 0.5, 4.0)

    def jumps(self):
        return jnp.asarray([self.at])


@pytest.mark.exhaustive
def test_a_schedule_of_ones_own_that_is_continuous_from_the_left():
    found = run(Switch(), 0.1, end=2.0)
    np.testing.assert_allclose(found.x1, composed(0.1, [0.0, 1.0], [0.5, 4.0], 2.0)[0], rtol=0, atol=1e-12)


@pytest.mark.exhaustive
def test_gradients_by_the_values_and_by_the_time_of_a_jump():
    """Gradients agree with differences of the same runs: a jump that moves changes the steps on both sides."""
    # No layer is a multiple of a step, so that a slightly longer layer has no other number of steps.
    goal = lambda knots, betas: jnp.sum(run(by_layers(knots, betas), 0.11).x1[:, 0])
    by_knots, by_betas = jax.grad(goal, argnums=(0, 1))(jnp.asarray(KNOTS), jnp.asarray(BETAS))
    h = 1e-5
    for grads, at in ((by_betas, 1), (by_knots, 0)):
        for k in (1, 2):
            moved = [[KNOTS.copy(), BETAS.copy()] for _ in range(2)]
            moved[0][at][k] += h
            moved[1][at][k] -= h
            difference = (goal(*map(jnp.asarray, moved[0])) - goal(*map(jnp.asarray, moved[1]))) / (2 * h)
            np.testing.assert_allclose(grads[k], difference, rtol=1e-5, atol=1e-9)
    # The first knot is the start of the run, which is fixed.
    assert by_knots[0] == 0 and float(jnp.abs(by_knots[1])) > 1e-3


@pytest.mark.exhaustive
@pytest.mark.parametrize("adjoint", (dfx.ForwardMode(), dfx.BacksolveAdjoint()), ids=("forward", "backsolve"))
def test_other_adjoints(adjoint):
    goal = lambda betas, **how: jnp.sum(run(by_layers(betas=betas), 0.05, **how).x1[:, 0])
    wanted = jax.grad(goal)(jnp.asarray(BETAS))
    derivative = jax.jacfwd if isinstance(adjoint, dfx.ForwardMode) else jax.grad
    found = derivative(lambda betas: goal(betas, adjoint=adjoint))(jnp.asarray(BETAS))
    exactly = isinstance(adjoint, dfx.ForwardMode)
    np.testing.assert_allclose(found, wanted, rtol=1e-10 if exactly else 1e-6, atol=1e-12 if exactly else 1e-7)


@pytest.mark.exhaustive
def test_runs_under_vmap_step_by_their_own_layers():
    knots = jnp.asarray([KNOTS, KNOTS + np.array([0, 0.25, 0.1, -0.2])])
    betas = jnp.asarray([BETAS, BETAS[::-1]])
    batch = jax.vmap(lambda knots, betas: run(by_layers(knots, betas), 0.1).x1)(knots, betas)
    for k in range(2):
        np.testing.assert_allclose(batch[k], run(by_layers(knots[k], betas[k]), 0.1).x1, rtol=0, atol=1e-13)


@pytest.mark.exhaustive
@pytest.mark.parametrize("knots", (np.float32, np.float64))
@pytest.mark.parametrize("tokens", (np.float32, np.float64))
def test_both_precisions(tokens, knots):
    """If knots are no binary numbers, or of the other precision, no step sees the next layer."""
    edges = np.array([0.0, 0.1, 0.7, 0.9], knots)
    beta = by_layers(edges, BETAS.astype(tokens))
    found = run(beta, 0.1, end=1.0, x0=X0.astype(tokens))
    wanted, steps = composed(0.1, edges.astype(float), BETAS, 1.0)
    assert found.x1.dtype == tokens and found.stats["num_steps"] == steps == 10
    np.testing.assert_allclose(found.x1, wanted, rtol=0, atol=2e-6 if tokens is np.float32 else 1e-12)


def test_the_neighbours_of_a_number():
    for t in (1.0, -2.5, 0.1, 1e-300):
        assert float(neighbour(jnp.asarray(t), 1)) == np.nextafter(t, 9) and float(neighbour(jnp.asarray(t), -1)) == (
            np.nextafter(t, -9)
        )
    tiny = np.finfo(float).tiny
    assert float(neighbour(jnp.asarray(0.0), 1)) == tiny and float(neighbour(jnp.asarray(0.0), -1)) == -tiny
    # Numbers that some processors take for zero are skipped, in both directions.
    for side in (1, -1):
        assert float(neighbour(jnp.asarray(side * tiny), -side)) == 0.0
        assert float(neighbour(jnp.asarray(-side * tiny), side)) == 0.0
    assert float(jax.grad(lambda t: neighbour(t, -1))(3.0)) == 1.0


def test_the_controller_in_the_other_direction():
    turned = StepsByLayer(jnp.asarray([1.0, 2.0]), jnp.asarray([0.5])).wrap(-1)
    np.testing.assert_array_equal(turned.jumps, [-2.0, -1.0])
