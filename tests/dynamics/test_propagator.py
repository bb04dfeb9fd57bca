"""`propagator` against differences of runs, the exponential of the Jacobian, and the rules of composition."""

import diffrax as dfx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import clusterjax as cjx
from tests.attention_cases import FORM, MASSES, D, N, X
from tests.helpers import normal, sphere_tokens
from tests.oracles import circle_tokens
from tests.reference.attention import softmax_weights
from tests.reference.jacobians import jacobian


FINE = dfx.PIDController(rtol=1e-11, atol=1e-13)
VALUE = normal(11, D, D)


@pytest.mark.exhaustive
def test_differences_of_runs_and_composition():
    field = cjx.AttentionField(cjx.SoftmaxAttention(2.0, query_key=FORM, mask=cjx.CausalMask()), VALUE, masses=MASSES)
    ts = jnp.asarray([0.0, 0.5, 1.5])
    first, half, whole = np.asarray(cjx.propagator(field, X, ts, stepsize_controller=FINE))
    x = np.asarray(X)
    radial = np.einsum("ia,ib,ij->iajb", x, x, np.eye(N)).reshape(N * D, N * D)
    np.testing.assert_allclose(first, np.eye(N * D) - radial, atol=1e-12)
    run = jax.jit(lambda x: cjx.simulate(field, x, ts, stepsize_controller=FINE).xs)
    xs = run(X)
    # M u is tangent at the tokens of its time, and zero for a radial u.
    np.testing.assert_allclose(np.einsum("ia,iak->ik", xs[-1], whole.reshape(N, D, -1)), 0, atol=1e-10)
    np.testing.assert_allclose(whole @ radial, 0, atol=1e-10)
    for seed in (0, 1):
        u = normal(seed, N, D)
        difference = (run(X + 1e-5 * u)[-1] - run(X - 1e-5 * u)[-1]) / 2e-5
        np.testing.assert_allclose(whole @ np.asarray(u).reshape(-1), np.asarray(difference).reshape(-1), atol=1e-7)
    rest = np.asarray(cjx.propagator(field, xs[1], ts[1:], stepsize_controller=FINE))[-1]
    np.testing.assert_allclose(rest @ half, whole, atol=1e-9)
    # Under a causal mask no token moves its predecessors.
    blocks = whole.reshape(N, D, N, D)
    assert all(np.all(blocks[i, :, j] == 0) for i in range(N) for j in range(i + 1, N))
    moved = cjx.propagator(field, X, ts)
    np.testing.assert_allclose(moved[-1], whole, atol=1e-4)


def test_at_rest_it_is_the_exponential_of_the_jacobian():
    x, beta, n = circle_tokens(2 * np.pi * np.arange(5) / 5), 3.0, 5
    field = cjx.AttentionField(cjx.SoftmaxAttention(beta))
    found = cjx.propagator(field, jnp.asarray(x), jnp.asarray([0.0, 2.0]), stepsize_controller=FINE)[-1]
    matrix = jacobian(x, softmax_weights(x, beta), beta).reshape(2 * n, 2 * n)
    radial = np.einsum("ia,ib,ij->iajb", x, x, np.eye(n)).reshape(2 * n, 2 * n)
    # The exponential keeps radial vectors, and the propagator removes them.
    np.testing.assert_allclose(found, scipy.linalg.expm(2 * matrix) - radial, atol=1e-8)


def test_volumes():
    """The attention of one token in R^d is linear, so that M = e^(t V), and det M = e^(t tr V) (Liouville)."""
    field = cjx.AttentionField(cjx.SoftmaxAttention(1.0), VALUE, cjx.Euclidean())
    found = cjx.propagator(field, X[:1], jnp.asarray([0.0, 0.7]), stepsize_controller=FINE)[-1]
    np.testing.assert_allclose(found, scipy.linalg.expm(0.7 * np.asarray(VALUE)), atol=1e-9)


@pytest.mark.exhaustive_cases("float64")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_transformations(dtype):
    ts, x = jnp.asarray([0.0, 1.0], dtype), sphere_tokens(3, 3, 2).astype(dtype)
    options = {"solver": dfx.Heun(), "stepsize_controller": dfx.ConstantStepSize(), "dt0": 0.1}
    of = lambda beta, x: cjx.propagator(cjx.AttentionField(cjx.SoftmaxAttention(beta)), x, ts, **options)
    beta = jnp.asarray(2.0, dtype)
    plain = of(beta, x)
    assert plain.dtype == dtype and plain.shape == (2, 6, 6)
    atol = 1e-5 if dtype == jnp.float32 else 1e-12
    if dtype == jnp.float32:
        np.testing.assert_allclose(jax.jit(of)(beta, x), plain, atol=atol)
    else:
        np.testing.assert_allclose(jax.vmap(of, (None, 0))(beta, x[None])[0], plain, atol=atol)
        slope = jax.grad(lambda beta: of(beta, x)[-1, 0, 2])(beta)
        np.testing.assert_allclose(slope, (of(beta + 1e-5, x) - of(beta - 1e-5, x))[-1, 0, 2] / 2e-5, atol=1e-8)


def test_bad_input():
    field = cjx.AttentionField(cjx.SoftmaxAttention(2.0))
    with pytest.raises(ValueError, match="x0 must leave room in memory, but it is 1000000"):
        cjx.propagator(field, jnp.ones((10**6, 3)), jnp.asarray([0.0, 1.0]))
    with pytest.raises(ValueError, match="ts must be"):
        cjx.propagator(field, X, jnp.asarray([1.0]))
