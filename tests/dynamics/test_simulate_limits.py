"""The function `simulate` at its limits: long runs, huge beta, tiny clouds, and bad input."""

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax import (
    AttentionField,
    Blocked,
    CausalMask,
    Dense,
    HardmaxAttention,
    MatrixMask,
    SoftmaxAttention,
    UnnormalisedAttention,
    num_clusters,
    simulate,
)
from tests import oracles
from tests.helpers import as_a_user
from tests.solving import gram


X0 = oracles.unit_tokens(1, 6, 3)
FIELD = AttentionField(SoftmaxAttention(1.0))


@pytest.mark.exhaustive_cases("float32", "float64")
@pytest.mark.parametrize("dtype", (jnp.float32, jnp.float64))
def test_long_runs_stay_on_the_sphere(dtype):
    """In float32, norms are within 1e-6 of one to t = 1000 for V = I and V = -I. Tokens inside diffrax are never
    retracted; their norms wander by the errors of the steps, and are not driven away from one.
    """
    x0, ts = jnp.asarray(oracles.unit_tokens(2, 16, 3), dtype), jnp.linspace(0, 1000, 5, dtype=dtype)

    def run(sign):
        field = AttentionField(SoftmaxAttention(1.0), sign * jnp.eye(3))
        controller = dfx.PIDController(rtol=1e-6, atol=1e-8)
        carried = dfx.diffeqsolve(
            dfx.ODETerm(field), dfx.Tsit5(), ts[0], ts[-1], None, x0, stepsize_controller=controller, max_steps=100_000
        )
        return simulate(field, x0, ts, max_steps=100_000).xs, carried.ys[-1]

    saved, carried = (np.asarray(x) for x in eqx.filter_vmap(run)(jnp.asarray([1.0, -1.0])))
    assert saved.dtype == carried.dtype == dtype
    radii = [np.abs(np.linalg.norm(x.astype(np.float64), axis=-1) - 1).max() for x in (saved, carried)]
    assert radii[0] < (1e-6 if dtype == jnp.float32 else 1e-14)
    assert radii[1] < (1e-4 if dtype == jnp.float32 else 1e-6)
    assert gram(saved[0, -1]).min() > 1 - 1e-5
    assert gram(saved[1, -1]).min() < -0.3


@pytest.mark.exhaustive
@pytest.mark.parametrize("summation", (Dense(), Blocked(4, 4)), ids=("dense", "blocked"))
@pytest.mark.parametrize("mask", (None, CausalMask()), ids=("full", "causal"))
def test_huge_beta_in_single_precision(summation, mask):
    """At beta = 1e4 in float32 weights, velocities, derivatives and partition functions are finite."""
    x = jnp.asarray(oracles.unit_tokens(3, 12, 3), jnp.float32)
    options = {"summation": summation} | ({} if mask is None else {"mask": mask})
    softmax = SoftmaxAttention(1e4, **options)
    fields = [AttentionField(softmax), AttentionField(UnnormalisedAttention(1e4, offset=1e4, **options))]
    fields.append(AttentionField(HardmaxAttention(**options)))
    for field in fields:
        velocity, pull = jax.jit(lambda y, field=field: (field(0.0, y), jax.grad(lambda z: field(0.0, z).sum())(y)))(x)
        assert velocity.dtype == jnp.float32
        assert np.all(np.isfinite(velocity)) and np.all(np.isfinite(pull))
    assert np.all(np.isfinite(softmax.log_partition(x)))
    np.testing.assert_allclose(np.sum(softmax.weights(x), axis=1), 1.0, rtol=1e-6)


@pytest.mark.exhaustive
def test_run_at_huge_beta_in_single_precision():
    """For beta = 1e4 and -1e4 to t = 3 in float32 norms are one, although tokens that chatter need many small steps."""
    x0 = jnp.asarray(oracles.unit_tokens(3, 12, 3), jnp.float32)
    solve = lambda beta: simulate(
        AttentionField(SoftmaxAttention(beta)), x0, jnp.asarray([0.0, 1.0, 3.0]), max_steps=200_000
    )
    traj = eqx.filter_vmap(solve)(jnp.asarray([1e4, -1e4]))
    np.testing.assert_allclose(np.linalg.norm(traj.xs, axis=-1), 1.0, rtol=0, atol=1e-6)


@eqx.filter_jit
def velocities(x):
    """The velocity of several attentions for V = I and V = -I, and a derivative of each."""
    attentions = (SoftmaxAttention(2.0), UnnormalisedAttention(2.0, mask=CausalMask()), HardmaxAttention())
    fields = [AttentionField(attention, sign * jnp.eye(x.shape[1])) for attention in attentions for sign in (1.0, -1.0)]
    pulls = [jax.grad(lambda y, field=field: jnp.sum(field(0.0, y) ** 2))(x) for field in fields]
    return jnp.stack([field(0.0, x) for field in fields]), jnp.stack(pulls)


@pytest.mark.exhaustive_cases("antipodal", "identical", "one dimension", "one token")
@pytest.mark.parametrize(
    "x0",
    (X0[:1], np.array([[1.0], [-1.0], [1.0]]), np.repeat(X0[:1], 3, axis=0), np.stack([X0[0], -X0[0], X0[0]])),
    ids=("one token", "one dimension", "identical", "antipodal"),
)
def test_clouds_that_do_not_move(x0):
    """One token, tokens in one dimension, identical and antipodal tokens stay in place, for V = I and V = -I."""
    x0 = jnp.asarray(x0, jnp.float32)
    velocity, pull = velocities(x0)
    assert velocity.dtype == jnp.float32
    assert np.abs(velocity).max() < 2e-6
    assert np.all(np.isfinite(pull))
    traj = simulate(FIELD, x0, jnp.asarray([0.0, 1.0, 3.0]))
    np.testing.assert_allclose(traj.xs, np.tile(x0, (3, 1, 1)), rtol=0, atol=1e-5)


def bad(message, *, field=FIELD, x0=X0, ts=(0.0, 1.0), **options):
    """Asserts that the run raises a ValueError of one line that matches `message`."""
    with as_a_user(), pytest.raises(ValueError, match=message) as caught:
        simulate(field, jnp.asarray(x0), jnp.asarray(ts), **options)
    assert "\n" not in str(caught.value)


def test_bad_tokens():
    bad("x0 must have two dimensions", x0=X0[0])
    bad("x0 must have two dimensions", x0=X0[None])
    bad("x0 must hold at least 1 token", x0=X0[:0])
    bad("x0 must hold at least 1 token", x0=X0[:, :0])
    bad("x0 must be real", x0=X0 + 0j)
    for number in (np.nan, np.inf):
        broken = X0.copy()
        broken[2, 1] = number
        bad("x0 must be finite, but row 2", x0=broken)
    bad("x0 must have no zero row on the sphere, but row 4 is zero", x0=np.where(np.arange(6)[:, None] == 4, 0.0, X0))


def test_bad_times():
    bad("ts must be a vector of at least two times", ts=(0.0,))
    bad("ts must be a vector of at least two times", ts=1.0)
    bad("ts must be a vector of at least two times", ts=((0.0, 1.0),))
    bad("ts must be finite and strictly increasing", ts=(0.0, 0.0))
    bad("ts must be finite and strictly increasing", ts=(0.0, 2.0, 1.0))
    bad("ts must be finite and strictly increasing", ts=(0.0, np.nan))
    bad("ts must be finite and strictly increasing", ts=(0.0, np.inf))
    with pytest.raises(ValueError, match="strictly increasing in float32"):
        simulate(FIELD, jnp.asarray(X0, jnp.float32), jnp.asarray([0.0, 1.0, 1.0 + 1e-12]))


def test_bad_fields():
    bad(
        "field must be a field of clusterjax, but it is the function .*; wrap a function of t, x",
        field=lambda t, x, args: x,
    )
    bad("value must act on tokens of dimension 3", field=AttentionField(SoftmaxAttention(1.0), jnp.eye(4)))
    bad("query_key must act on tokens", field=AttentionField(SoftmaxAttention(1.0, query_key=jnp.eye(2))))
    bad("masses must hold one mass", field=AttentionField(SoftmaxAttention(1.0), masses=jnp.ones(5)))
    bad("mask must be of as many tokens", field=AttentionField(SoftmaxAttention(1.0, mask=MatrixMask(np.eye(5) > 0))))


def test_options_that_do_not_fit_together():
    bad("dt0 must be given with ConstantStepSize", stepsize_controller=dfx.ConstantStepSize())
    bad("dense must be False with BacksolveAdjoint", dense=True, adjoint=dfx.BacksolveAdjoint())
    bad("save must be a function of t, x and args", save=num_clusters)
    bad("save must be None with BacksolveAdjoint", save=lambda t, x, args: t, adjoint=dfx.BacksolveAdjoint())
