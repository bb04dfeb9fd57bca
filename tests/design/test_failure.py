"""A design whose run stops gives the reason in the words of `simulate`."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax import design
from tests.helpers import as_a_user, sphere_tokens


X0 = sphere_tokens(0, 4, 3)
TS = jnp.asarray(np.array([0.0, 1.0]), float)
FIELD = cjx.AttentionField(cjx.UnnormalisedAttention(1000.0))
BETA = {"which": lambda field: field.attention.beta}
ONCE = {"attempts": 1, "most": 1, "key": jr.key(1)} | BETA
FAILS = {
    "hold": lambda x=X0, pieces=1: design.hold(FIELD, x, clusters=2, until=1.0, radius=0.1, pieces=pieces, **ONCE),
    "steer": lambda x=X0, pieces=1: design.steer(
        FIELD, x, jnp.eye(3)[:2], labels=[0, 0, 1, 1], t_end=1.0, pieces=pieces, **ONCE
    ),
    "sensitivity": lambda x=X0: design.sensitivity(FIELD, x, 0.1, until=1.0, **BETA),
    "recover": lambda x=X0: design.recover(FIELD, jnp.stack([x, x]), TS, most=1, **BETA),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FAILS)
def test_a_run_that_stops_is_explained_as_by_simulate(name):
    reason = FAILS[name]().reason
    assert "the velocity of token 0 is not finite at t = 0" in reason and "pass offset=beta" in reason
    assert reason.count("pass") == 1


@pytest.mark.parametrize("pieces", (3 * 10**9, 10**12))
@pytest.mark.parametrize("name", ("hold", "steer"))
def test_parameters_of_too_many_pieces_are_not_made(name, pieces):
    with pytest.raises(ValueError, match=rf"^pieces must .+, but it is {pieces}, and .+; pass fewer pieces"):
        FAILS[name](pieces=pieces)


@pytest.mark.parametrize("run", (*FAILS.values(), lambda x: design.delay(FIELD, x, until=1.0, norm=0.1, **ONCE)))
def test_traced_tokens_are_refused(run):
    with as_a_user(), pytest.raises(ValueError, match="^(x0|observed) must have a value, but it is traced; call"):
        jax.jit(lambda x: len(run(x).names))(X0)
