"""Masks, summations and the bias of the field whose heads are in factors."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax import probe
from tests.helpers import as_a_user, sphere_tokens


@pytest.mark.exhaustive
def test_masks_summations_and_the_bias_of_the_factored_field():
    """Under a causal mask each summation gives the sums of `MultiHeadField`; a bias of zero changes nothing, and one of
    -1e9 above the diagonal is that mask. With a bias no summation but the dense one serves."""
    rng = np.random.default_rng(1)
    query, key, value = (jnp.asarray(rng.normal(size=(2, 5, 3))) for _ in range(3))
    output, x = jnp.asarray(rng.normal(size=(2, 3, 5))), sphere_tokens(2, 6, 5)
    forms, values = jnp.einsum("hdk,hek->hde", query, key), jnp.einsum("hdk,hke->hed", value, output)
    make = functools.partial(cjx.MultiHeadField.factored, 1.5, query, key, value, output)
    # The former name still works, and says the new one.
    with pytest.warns(DeprecationWarning, match="call clusterjax.MultiHeadField.factored"):
        former = probe.FactoredHeadsField(1.5, query, key, value, output)
    np.testing.assert_array_equal(former(0.0, x, None), make()(0.0, x, None))
    expected = cjx.MultiHeadField(1.5, forms, values, mask=cjx.CausalMask())(0.0, x, None)
    later = np.where(np.arange(6)[:, None] < np.arange(6), -1e9, 0.0) * np.ones((2, 1, 1))
    for field in (
        make(mask=cjx.CausalMask()),
        make(mask=cjx.CausalMask(), summation=cjx.Blocked(2, 2)),
        make(mask=cjx.CausalMask(), bias=jnp.zeros((2, 6, 6))),
        make(bias=jnp.asarray(later)),
    ):
        np.testing.assert_allclose(field(0.0, x, None), expected, rtol=0, atol=1e-12)
    with as_a_user(), pytest.raises(ValueError, match="summation must be Auto or Dense where there is a bias"):
        make(bias=jnp.zeros((2, 6, 6)), summation=cjx.Blocked(2))
