"""`StoredStages`: steps, dense output and gradients are those of `diffrax.Tsit5`, with as few evaluations."""

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax._dynamics.retract import StoredStages, stored_stages
from tests.helpers import sphere_tokens


class Plain(dfx.Tsit5):
    """The solver of diffrax, of another type than the solver that is replaced."""


TIGHT = dfx.PIDController(rtol=1e-6, atol=1e-8)
VALUE = np.array([[0.8, -0.3, 0.1], [0.4, 0.5, -0.7], [-0.2, 0.6, -0.4]])
JUMPING = cjx.PiecewiseConstant(np.array([0.0, 0.7, 2.0]), np.array([3.0, 0.5, 6.0]))


X0, WEIGHTS = sphere_tokens(0, 8, 3), sphere_tokens(1, 8, 3)


def field(beta=4.0, value=VALUE):
    return cjx.AttentionField(cjx.SoftmaxAttention(beta), jnp.asarray(value))


def in_time(t, x, args):
    """A velocity that depends on time, so that every stage must be at its own time."""
    return jnp.cos(3 * x + args * t) - 0.2 * x[::-1]


@eqx.filter_jit
def solved(solver, velocity, y0, args, controller, dt0=None):
    """The counts of a run to t = 3, and the tokens at its end and at three times within steps."""
    saved, ts = dfx.SaveAt(t1=True, dense=True), jnp.asarray([0.0, 3.0, 0.03, 1.1, 2.9], y0.dtype)
    term = dfx.ODETerm(velocity)
    run = dfx.diffeqsolve(term, solver, ts[0], ts[1], dt0, y0, args, stepsize_controller=controller, saveat=saved)
    return run.stats, jnp.concatenate([run.ys, jax.vmap(run.evaluate)(ts[2:])])


@pytest.mark.exhaustive_cases("adaptive-float32", "constant-float32", "constant-float64", "adaptive-float64")
@pytest.mark.parametrize("dtype", (jnp.float32, jnp.float64))
@pytest.mark.parametrize("constant", (False, True), ids=("adaptive", "constant"))
def test_steps_and_interpolants_are_those_of_diffrax(constant, dtype):
    controller = dfx.ConstantStepSize() if constant else dfx.PIDController(rtol=1e-5, atol=1e-6)
    data = (in_time, X0.astype(dtype), jnp.asarray(2.0, dtype), controller, jnp.asarray(0.1, dtype))
    (counts, ours), (expected, theirs) = (solved(solver, *data) for solver in (StoredStages(), Plain()))
    assert ours.dtype == dtype
    for name in ("num_steps", "num_rejected_steps"):
        assert counts[name] == expected[name]
    # A rejected step must not hand on its last evaluation.
    assert constant or counts["num_rejected_steps"] > 0
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-13 if dtype == jnp.float64 else 2e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("beta", (4.0, JUMPING), ids=("smooth", "jumps"))
def test_gradients_are_those_of_diffrax(beta):
    """Gradients with respect to V and tokens agree, also after jumps, where the last evaluation is of another layer."""

    @eqx.filter_jit
    def slopes(solver, value, x0):
        def loss(value, x0):
            run = cjx.simulate(field(beta, value), x0, jnp.array([0.0, 1.0, 3.0]), solver=solver, throw=False)
            return jnp.sum(WEIGHTS * run.xs[1]) + jnp.sum(WEIGHTS[::-1] * run.x1)

        return jax.value_and_grad(loss, (0, 1))(value, x0)

    for x0 in (X0, X0.at[3].set(X0[2])):
        (value, ours), (expected, theirs) = (slopes(solver, jnp.asarray(VALUE), x0) for solver in (None, Plain()))
        np.testing.assert_allclose(value, expected, rtol=0, atol=1e-13)
        for found, wanted in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-10)


@pytest.mark.exhaustive
def test_gradients_of_a_batch_are_each_their_own():
    """Runs differ in length, some reject steps that others accept, and some are stopped by an event."""
    betas = jnp.array([0.3, 2.0, 9.0])

    def loss(solver, beta):
        traj = cjx.simulate(field(beta), X0, jnp.array([0.0, 6.0]), solver=solver, event=cjx.clustered_event(0.3))
        return jnp.sum(traj.x1[:, 0]) + traj.t1

    ours, theirs = (
        jax.vmap(jax.value_and_grad(lambda beta, solver=solver: loss(solver, beta)))(betas)
        for solver in (None, Plain())
    )
    np.testing.assert_allclose(ours[0], theirs[0], rtol=0, atol=1e-11)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=0, atol=1e-9)
    alone = jnp.stack([jax.grad(lambda beta: loss(None, beta))(beta) for beta in betas])
    np.testing.assert_allclose(ours[1], alone, rtol=0, atol=1e-9)


@pytest.mark.exhaustive
def test_six_evaluations_a_step_and_one_more_at_the_start_and_after_jumps():
    counted = []

    def velocity(t, x, args):
        jax.debug.callback(lambda: counted.append(1))
        return -x * (1 + t)

    def evaluations(controller, dt0=None):
        counted.clear()
        steps = int(solved(StoredStages(), velocity, X0, None, controller, dt0)[0]["num_steps"])
        jax.effects_barrier()
        return len(counted), steps

    assert evaluations(dfx.ConstantStepSize(), 0.1) == (6 * 30 + 1, 30)
    found, steps = evaluations(dfx.ClipStepSizeController(TIGHT, jump_ts=jnp.array([0.7, 2.0])))
    assert found > 6 * steps + 2


def test_what_it_stands_for():
    """Only Tsit5 with its defaults is replaced, for few tokens without noise in reverse mode; other solvers stay."""
    term, reverse, x0 = dfx.ODETerm(in_time), dfx.RecursiveCheckpointAdjoint(), X0
    for few in (x0, jnp.zeros((64, 3))):
        assert type(stored_stages(dfx.Tsit5(), term, few, reverse)) is StoredStages
    noisy = dfx.MultiTerm(term, term)
    others = (
        (dfx.Dopri5(), term, x0, reverse),
        (Plain(), term, x0, reverse),
        (cjx.Retract(dfx.Tsit5()), term, x0, reverse),
        (dfx.Tsit5(scan_kind="bounded"), term, x0, reverse),
        (dfx.Tsit5(), noisy, x0, reverse),
        (dfx.Tsit5(), term, jnp.zeros((65, 3)), reverse),
        (dfx.Tsit5(), term, x0, dfx.ForwardMode()),
        (dfx.Tsit5(), term, x0, dfx.DirectAdjoint()),
    )
    for solver, *rest in others:
        assert stored_stages(solver, *rest) is solver
