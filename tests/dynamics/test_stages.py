"""`StoredStages`: steps, dense output and gradients are those of `diffrax.Tsit5`, with as few evaluations."""

import diffrax as dfx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax._dynamics.retract import StoredStages, stored_stages


class Plain(dfx.Tsit5):
    """What diffrax does: of another type than the solver that is replaced."""


TIGHT = dfx.PIDController(rtol=1e-6, atol=1e-8)
VALUE = np.array([[0.8, -0.3, 0.1], [0.4, 0.5, -0.7], [-0.2, 0.6, -0.4]])
JUMPING = cjx.PiecewiseConstant(np.array([0.0, 0.7, 2.0]), np.array([3.0, 0.5, 6.0]))


def tokens(n=8, seed=0):
    x = np.random.default_rng(seed).normal(size=(n, 3))
    return jnp.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def field(beta=4.0, value=VALUE):
    return cjx.AttentionField(cjx.SoftmaxAttention(beta), jnp.asarray(value))


def in_time(t, x, args):
    """A velocity that depends on time, so that every stage has to be at its own."""
    return jnp.cos(3 * x + args * t) - 0.2 * x[::-1]


def solved(solver, velocity, y0, args, controller=TIGHT, dt0=None):
    saved = dfx.SaveAt(t1=True, dense=True)
    term, start, end = dfx.ODETerm(velocity), *jnp.asarray([0.0, 3.0], y0.dtype)
    return dfx.diffeqsolve(term, solver, start, end, dt0, y0, args, stepsize_controller=controller, saveat=saved)


@pytest.mark.exhaustive_cases("constant-float64")
@pytest.mark.parametrize("dtype", (jnp.float32, jnp.float64))
@pytest.mark.parametrize("constant", (False, True), ids=("adaptive", "constant"))
def test_steps_and_interpolants_are_those_of_diffrax(constant, dtype):
    options = (
        (dfx.ConstantStepSize(), jnp.asarray(0.1, dtype))
        if constant
        else (dfx.PIDController(rtol=1e-5, atol=1e-6), None)
    )
    y0, args = tokens().astype(dtype), jnp.asarray(2.0, dtype)
    ours, theirs = (solved(solver, in_time, y0, args, *options) for solver in (StoredStages(), Plain()))
    assert ours.ys.dtype == dtype
    for name in ("num_steps", "num_rejected_steps"):
        assert int(ours.stats[name]) == int(theirs.stats[name])
    limit = 1e-13 if dtype == jnp.float64 else 2e-6
    np.testing.assert_allclose(ours.ys, theirs.ys, rtol=0, atol=limit)
    for t in jnp.asarray([0.03, 1.1, 2.9], dtype):
        np.testing.assert_allclose(ours.evaluate(t), theirs.evaluate(t), rtol=0, atol=limit)


def test_adaptive_runs_reject_steps_here():
    """Otherwise nothing would be seen of the evaluation that a rejected step must not hand on."""
    assert int(solved(StoredStages(), in_time, tokens(), 2.0).stats["num_rejected_steps"]) > 0


@pytest.mark.exhaustive_cases("smooth")
@pytest.mark.parametrize("beta", (4.0, JUMPING), ids=("smooth", "jumps"))
def test_gradients_are_those_of_diffrax(beta):
    """In beta, V and tokens, also after jumps, where the last evaluation is of another layer."""
    ts, weights = jnp.array([0.0, 1.0, 3.0]), tokens(seed=1)

    def loss(solver, value, x0):
        traj = cjx.simulate(field(beta, value), x0, ts, solver=solver)
        return jnp.sum(weights * traj.xs[1]) + jnp.sum(weights[::-1] * traj.x1)

    for x0 in (tokens(), tokens().at[3].set(tokens()[2])):
        ours, theirs = (
            jax.value_and_grad(lambda *given, solver=solver: loss(solver, *given), (0, 1))(jnp.asarray(VALUE), x0)
            for solver in (None, Plain())
        )
        np.testing.assert_allclose(ours[0], theirs[0], rtol=0, atol=1e-13)
        for found, expected in zip(ours[1], theirs[1], strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


@pytest.mark.exhaustive
def test_gradients_of_a_batch_are_each_their_own():
    """Runs of different lengths, some of which reject steps that others accept, some stopped by an event."""
    betas, x0 = jnp.array([0.3, 2.0, 9.0]), tokens()

    def loss(solver, beta):
        traj = cjx.simulate(field(beta), x0, jnp.array([0.0, 6.0]), solver=solver, event=cjx.clustered_event(0.3))
        return jnp.sum(traj.x1[:, 0]) + traj.t1

    ours, theirs = (
        jax.vmap(jax.value_and_grad(lambda beta, solver=solver: loss(solver, beta)))(betas)
        for solver in (None, Plain())
    )
    np.testing.assert_allclose(ours[0], theirs[0], rtol=0, atol=1e-11)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=0, atol=1e-9)
    alone = jnp.stack([jax.grad(lambda beta: loss(None, beta))(beta) for beta in betas])
    np.testing.assert_allclose(ours[1], alone, rtol=0, atol=1e-9)


def test_six_evaluations_a_step_and_one_more_at_the_start_and_after_jumps():
    counted = []

    def velocity(t, x, args):
        jax.debug.callback(lambda: counted.append(1))
        return -x * (1 + t)

    def evaluations(solver, controller, dt0=None):
        counted.clear()
        steps = int(solved(solver, velocity, tokens(), None, controller, dt0).stats["num_steps"])
        jax.effects_barrier()
        return len(counted), steps

    found, steps = evaluations(StoredStages(), dfx.ConstantStepSize(), 0.1)
    assert (found, steps) == (6 * 30 + 1, 30)
    jumping = dfx.ClipStepSizeController(TIGHT, jump_ts=jnp.array([0.7, 2.0]))
    ours, theirs = evaluations(StoredStages(), jumping), evaluations(Plain(), jumping)
    assert ours == theirs
    assert ours[0] > 6 * ours[1] + 2


def test_what_it_stands_for():
    """Tsit5 with its defaults, of few tokens and without noise, in reverse mode; any other solver stays what it is."""
    term, reverse, x0 = dfx.ODETerm(in_time), dfx.RecursiveCheckpointAdjoint(), tokens()
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


def test_the_run_says_what_the_user_passed():
    settings = cjx.simulate(field(), tokens(), jnp.array([0.0, 1.0])).settings()
    assert settings["solver"]["class"] == "Tsit5"
