"""A block is a step of the particle system: the slope of the difference, and the space of layer normalisation."""

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax import transformer
from tests.helpers import as_a_user, assert_close, normal
from tests.transformer_cases import EPSILON, RESIDUALS, D, N, X, attention_of, block_of


ON_SPHERE = cjx.AttentionField(cjx.SoftmaxAttention(1.0))
STEPS = np.array([1e-2, 5e-3, 2.5e-3])


def plain(block):
    """The block with norms of gain one and bias zero, which are projections."""
    norm = transformer.LayerNorm(jnp.ones(D), jnp.zeros(D), 0.0)
    return eqx.tree_at(lambda b: b.norms, block, (norm, norm), is_leaf=lambda leaf: leaf is None)


def scaled(block, step):
    """The block whose layers add `step` times as much."""
    parts = lambda b: (b.attention.output, b.feed_forward.w_out, b.feed_forward.bias_out)
    return eqx.tree_at(parts, block, tuple(step * part for part in parts(block)))


@pytest.mark.exhaustive_cases("post")
@pytest.mark.parametrize("where", RESIDUALS)
def test_a_block_is_a_step_of_its_field(where):
    """The difference of block and layer is of second order: halving the step divides it by four."""
    block = block_of(where, "causal", "gelu")
    block = plain(block) if where == "post" else block
    field = transformer.as_field(block)
    x = field.space.retract(X)
    apart = eqx.filter_jit(
        lambda step: jnp.abs(scaled(block, step)(x) - transformer.as_layer(field, step)(0.0, x)).max()
    )
    gaps = np.array([apart(jnp.asarray(step)) for step in STEPS])
    slopes = np.diff(np.log(gaps)) / np.diff(np.log(STEPS))
    np.testing.assert_allclose(slopes, 2, atol=0.1)
    moved = np.abs(transformer.as_layer(field, STEPS[0])(0.0, x) - x).max()
    assert gaps[0] < 0.2 * moved


def test_the_field_is_attention_plus_perceptron():
    """Term by term: heads by their forms and values, and the perceptron."""
    block = block_of("none", "causal", "gelu")
    field = transformer.as_field(block)
    assert_close(field(0.0, X), block.attention(X) + block.feed_forward(X), "composed")
    forms, values = transformer.query_key_forms(block.attention), transformer.value_matrices(block.attention)
    scores = jnp.einsum("nd,hde,me->hnm", X, forms, X)
    keys = jnp.einsum("md,hdk->hmk", X, block.attention.key)
    assert_close(scores, jnp.einsum("nd,hdk,hmk->hnm", X, block.attention.query, keys), "composed")
    weights = block.attention.weights(X)
    assert_close(jnp.einsum("hij,hed,jd->hie", weights, values, X), block.attention.heads(X).updates, "composed")
    attention_only = transformer.Block(attention_of(), None, (None, None), transformer.NoNorm())
    assert isinstance(transformer.as_field(attention_only), cjx.MultiHeadField)
    on_sphere = transformer.as_field(block, space=cjx.Sphere())
    assert isinstance(on_sphere.space, cjx.Sphere)
    y = cjx.Sphere().retract(X)
    assert_close(on_sphere(0.0, X), cjx.Sphere().tangent(y, block.attention(y) + block.feed_forward(y)), "composed")


def test_standardised_tokens_have_mean_zero_and_variance_one():
    space = transformer.Standardised()
    norm = transformer.LayerNorm(jnp.ones(D), None, 0.0)
    y = space.retract(X)
    assert_close(y, norm(X), "identity")
    assert_close(space.retract(y), y, "identity")
    v = space.tangent(y, normal(5, N, D))
    assert np.abs(np.sum(v * y, axis=1)).max() < 1e-13 and np.abs(np.sum(v, axis=1)).max() < 1e-13
    step = 1e-6
    moved = (space.retract(y + step * normal(5, N, D)) - space.retract(y - step * normal(5, N, D))) / (2 * step)
    np.testing.assert_allclose(moved, v, atol=1e-8)
    drawn = space.sample(jax.random.key(0), 4, D)
    assert_close(space.retract(drawn), drawn, "identity")
    np.testing.assert_allclose(space.distance(y, -y), np.pi, rtol=1e-12)
    huge = space.retract(X * 1e200)
    assert_close(huge, y, "identity")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: transformer.as_field(block_of("none"), 1), "layer must be None for a single block, but it is 1"),
        (lambda: transformer.as_field(transformer.load()), "layer must say which layer of the network it is"),
        (lambda: transformer.as_field(transformer.load(), 4), "layer must be an integer from -4 to 3"),
        (lambda: transformer.as_field(block_of("none", relative=True)), "block must be without relative positions"),
        (lambda: transformer.as_field(block_of("post")), r"block.norms\[0\] must have gain 1 and bias 0"),
        (
            lambda: transformer.NormedField(
                cjx.AttentionField(cjx.SoftmaxAttention(1.0)), transformer.LayerNorm(jnp.ones(D))
            ),
            r"field must be on Euclidean\(\), but it is on Sphere",
        ),
        (lambda: transformer.Standardised().sample(jax.random.key(0), 3, 1), "d must be an integer of at least 2"),
    ],
)
def test_what_is_no_velocity_is_refused(make, message):
    with as_a_user(), pytest.raises(ValueError, match=message):
        make()
    assert EPSILON > 0


@pytest.mark.exhaustive_cases("none", "post", "pre")
@pytest.mark.parametrize("where", RESIDUALS)
def test_layers_follow_the_flow_to_first_order(where):
    block = block_of(where, "full", "relu")
    field = transformer.as_field(plain(block) if where == "post" else block)
    x = field.space.retract(X)
    flow = cjx.simulate(field, x, jnp.array([0.0, 0.08]), stepsize_controller=dfx.PIDController(1e-9, 1e-9)).x1
    gaps = [
        float(jnp.abs(cjx.iterate(transformer.as_layer(field, 0.08 / depth), x, depth).x1 - flow).max())
        for depth in (8, 16)
    ]
    assert 1.8 < gaps[0] / gaps[1] < 2.2
