import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from tests.summation.test_sums import FEW, data_of


@pytest.mark.parametrize("summation", (cjx.Dense(), cjx.Blocked(7, 10), cjx.Blocked(33, 33)), ids=repr)
def test_second_derivatives_are_those_of_differences(summation):
    """Reverse over reverse, through loops and checkpoints, which forget rules for derivatives."""
    queries, tokens, values, masses = data_of(33, *FEW)
    away = 0.1 * jnp.asarray(np.random.default_rng(8).normal(size=queries.shape))

    def loss(t):
        found = summation.exponential(queries + t * away, tokens - t * away, values, masses, cjx.FullMask())
        logs = found.shift + jnp.log(found.normaliser)
        return jnp.sum(jnp.sin(found.total / found.normaliser[:, None])) + jnp.sum(jnp.cos(logs))

    slope = jax.jit(jax.grad(loss))
    curvature, step = jax.jit(jax.grad(jax.grad(loss)))(0.3), 1e-5
    assert abs(curvature - (slope(0.3 + step) - slope(0.3 - step)) / (2 * step)) < 1e-6 * max(1.0, abs(curvature))
