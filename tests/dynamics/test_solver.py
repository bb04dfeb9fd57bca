import functools

import diffrax as dfx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from clusterjax import (
    AttentionField,
    CausalMask,
    Euclidean,
    FullMask,
    RescaledField,
    Retract,
    SoftmaxAttention,
    Sphere,
    simulate,
)
from tests.helpers import as_a_user
from tests.oracles import unit_tokens
from tests.reference import attention, coarsening, fields


VALUE = np.array([[0.8, -0.3, 0.1], [0.4, 0.5, -0.7], [-0.2, 0.6, -0.4]])
CONSTANT = dfx.ConstantStepSize()


X0 = unit_tokens(0, 8, 3)


def make_field(beta=4.0, value=VALUE, space=Sphere(), causal=False):
    attention = SoftmaxAttention(beta, mask=CausalMask() if causal else FullMask())
    return AttentionField(attention, jnp.asarray(value), space)


def run(field, ts, solver, **options):
    return simulate(field, jnp.asarray(X0), jnp.asarray(ts), solver=solver, **options)


@functools.cache
def exact():
    """The tokens at t = 0, 1 and 3 of the tangent field, by SciPy."""
    unit = lambda y: y.reshape(8, 3) / np.linalg.norm(y.reshape(8, 3), axis=1, keepdims=True)
    rate = lambda t, y: coarsening.fast_velocity(unit(y), 4.0, value=VALUE).ravel()
    found = solve_ivp(rate, (0, 3), X0.ravel(), "DOP853", t_eval=(0, 1, 3), rtol=1e-11, atol=1e-12)
    return found.y.T.reshape(3, 8, 3)


def slopes(errors):
    return np.log2(np.array(errors[:-1]) / np.array(errors[1:]))


@pytest.mark.exhaustive_cases("plain-full", "tangent-causal", "tangent-full")
@pytest.mark.parametrize("causal", (False, True), ids=("full", "causal"))
@pytest.mark.parametrize("tangent", (False, True), ids=("plain", "tangent"))
def test_euler_is_the_scheme_of_the_papers(causal, tangent):
    """The run is 50 steps of x <- normalise(x + dt v), with and without tangent projection."""
    mask = attention.causal if causal else attention.full
    for beta in (1.0, 9.0):
        for value in (np.eye(3), VALUE):
            field = make_field(beta, value, Sphere() if tangent else Euclidean(), causal)
            xs = run(field, np.linspace(0, 5, 51), Retract(dfx.Euler()), stepsize_controller=CONSTANT, dt0=0.1)
            weights = lambda x, beta=beta: attention.softmax_weights(x, beta, None, mask)
            velocity = lambda t, x, value=value, w=weights: fields.velocity(x, w, value, tangent)
            expected = fields.layers(X0, velocity, 0.1, 50)
            assert int(xs.stats["num_steps"]) == 50
            np.testing.assert_allclose(xs.xs, expected, rtol=0, atol=1e-12)


@pytest.mark.exhaustive
def test_rescaled_field_is_the_scheme_of_its_paper():
    """The run is Euler's method with constant steps for the rescaled dynamics, whose attention is that of e^{tV} z."""
    weights = lambda x: attention.softmax_weights(x, 1.0)
    for value in (np.eye(3), VALUE, (VALUE + VALUE.T) / 2):
        field = RescaledField(SoftmaxAttention(1.0), jnp.asarray(value))
        zs = run(field, np.linspace(0, 5, 51), dfx.Euler(), stepsize_controller=CONSTANT, dt0=0.1)
        velocity = lambda t, z, value=value: fields.rescaled(t, z, weights, value)
        expected = fields.layers(X0, velocity, 0.1, 50, sphere=False)
        np.testing.assert_allclose(zs.xs, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("solver", "space", "order"),
    (
        (dfx.Euler(), Sphere(), 1),
        (dfx.Euler(), Euclidean(), 1),
        (dfx.Heun(), Sphere(), 2),
        (dfx.Heun(), Euclidean(), 1),
    ),
    ids=lambda case: type(case).__name__,
)
def test_order(solver, space, order):
    """The order is that of the wrapped solver if the field is tangent; else its tangent part is followed to order 1."""
    errors = []
    for step in (0.05, 0.025, 0.0125):
        xs = run(make_field(space=space), [0.0, 1.0], Retract(solver), stepsize_controller=CONSTANT, dt0=step).xs
        errors.append(np.abs(xs[-1] - exact()[1]).max())
    np.testing.assert_allclose(slopes(errors), order, atol=0.2)


@pytest.mark.exhaustive_cases("Kvaerno3")
@pytest.mark.parametrize("solver", (dfx.Tsit5(), dfx.Kvaerno3()), ids=lambda s: type(s).__name__)
def test_adaptive_solvers_agree_with_the_plain_solve(solver):
    """One solver reuses its last evaluation and estimates its error, the other finds a root in each stage."""
    controller = dfx.PIDController(rtol=1e-8, atol=1e-8)
    wrapped = run(make_field(), [0.0, 1.0, 3.0], Retract(solver), stepsize_controller=controller)
    np.testing.assert_allclose(wrapped.xs, exact(), rtol=0, atol=1e-6)


@pytest.mark.exhaustive
def test_evaluations_are_not_kept_from_unretracted_tokens():
    """The first stage of each Tsit5 step is evaluated at the end of the last step, on the sphere."""
    field, ts = make_field(space=Euclidean()), [0.0, 0.5, 1.0]
    two = run(field, ts, Retract(dfx.Tsit5()), stepsize_controller=CONSTANT, dt0=0.5).xs
    x = jnp.asarray(X0)
    for k in (1, 2):
        x = simulate(
            field, x, jnp.asarray([0.0, 0.5]), solver=Retract(dfx.Tsit5()), stepsize_controller=CONSTANT, dt0=0.5
        ).x1
        x = Sphere().retract(x)
        np.testing.assert_allclose(two[k], x, rtol=0, atol=1e-13)


@pytest.mark.exhaustive_cases("Euler")
@pytest.mark.parametrize("solver", (dfx.Euler(), dfx.Tsit5()), ids=lambda s: type(s).__name__)
def test_dense_output_is_continuous_and_on_the_sphere(solver):
    field = make_field(space=Euclidean())
    dense = run(field, [0.0, 2.0], Retract(solver), stepsize_controller=CONSTANT, dt0=0.25, dense=True, max_steps=16)
    knots = np.arange(0.25, 2.0, 0.25)
    before, after = dense.at(knots - 1e-10), dense.at(knots + 1e-10)
    np.testing.assert_allclose(before, after, rtol=0, atol=1e-8)
    between = np.linspace(0.0, 2.0, 33)
    np.testing.assert_allclose(np.linalg.norm(dense.at(between), axis=-1), 1, rtol=0, atol=1e-14)


def end(beta, adjoint, solver, space):
    field = AttentionField(SoftmaxAttention(beta), jnp.asarray(VALUE), space)
    xs = run(field, [0.0, 2.0], solver, stepsize_controller=CONSTANT, dt0=0.1, adjoint=adjoint).xs
    return jnp.sum(jnp.asarray(unit_tokens(3, 8, 3)) * xs[-1])


@pytest.mark.exhaustive
def test_gradients_through_unretracted_stages_agree():
    """Forward and reverse mode agree to rounding, and central differences to their own error."""
    beta, shift = jnp.asarray(4.0), 1e-5
    parts = Retract(dfx.Heun()), Euclidean()
    reverse = jax.grad(end)(beta, None, *parts)
    _, forward = jax.jvp(lambda b: end(b, dfx.ForwardMode(), *parts), (beta,), (jnp.ones(()),))
    np.testing.assert_allclose(forward, reverse, rtol=1e-11)
    above, below = end(beta + shift, None, *parts), end(beta - shift, None, *parts)
    np.testing.assert_allclose((above - below) / (2 * shift), reverse, rtol=1e-7)


@pytest.mark.exhaustive_cases("hessian")
@pytest.mark.parametrize("derivative", [jax.hessian, jax.jacfwd])
def test_forward_mode_says_which_adjoint_serves(derivative):
    parts = Retract(dfx.Heun()), Euclidean()
    with pytest.raises(TypeError, match="must be diffrax.ForwardMode.* diffrax.DirectAdjoint.. for jax.hessian"):
        derivative(lambda b: end(b, None, *parts))(jnp.asarray(4.0))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("derivative", "adjoint"),
    [(jax.hessian, dfx.DirectAdjoint()), (lambda f: jax.jacfwd(jax.jacfwd(f)), dfx.ForwardMode())],
)
def test_second_derivatives_are_those_of_differences(derivative, adjoint):
    parts, shift = (Retract(dfx.Heun()), Euclidean()), 1e-5
    first = lambda beta: jax.grad(end)(jnp.asarray(beta), None, *parts)
    found = derivative(lambda beta: end(beta, adjoint, *parts))(jnp.asarray(4.0))
    np.testing.assert_allclose(found, (first(4.0 + shift) - first(4.0 - shift)) / (2 * shift), rtol=1e-7)


@pytest.mark.exhaustive
def test_backsolve_of_a_tangent_field():
    """The continuous adjoint, whose state is a tuple, agrees with the discrete one."""
    beta, parts = jnp.asarray(4.0), (Retract(dfx.Tsit5()), Sphere())
    reverse = jax.grad(end)(beta, None, *parts)
    np.testing.assert_allclose(jax.grad(end)(beta, dfx.BacksolveAdjoint(), *parts), reverse, rtol=1e-6)


def test_kind_and_parts_of_the_wrapped_solver_show_through():
    assert isinstance(Retract(dfx.Kvaerno3()), dfx.AbstractImplicitSolver)
    assert isinstance(Retract(dfx.Tsit5()), dfx.AbstractAdaptiveSolver)
    assert not isinstance(Retract(dfx.Euler()), dfx.AbstractAdaptiveSolver)
    assert Retract(dfx.Heun(scan_kind="lax")).scan_kind == "lax"
    assert Retract(dfx.Kvaerno3()).root_find_max_steps == dfx.Kvaerno3().root_find_max_steps


def test_bad_arguments():
    with as_a_user(), pytest.raises(ValueError, match="solver must be a diffrax solver"):
        Retract(dfx.Euler)
    with as_a_user(), pytest.raises(ValueError, match="space must be a space of clusterjax"):
        Retract(dfx.Euler(), Sphere)
