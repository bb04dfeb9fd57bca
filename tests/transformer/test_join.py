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
from tests.solving import velocity
from tests.transformer_cases import RESIDUALS, D, N, X, attention_of, block_of


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

    @jax.jit
    @jax.vmap
    def of_step(step):
        layer = transformer.as_layer(field, step)(0.0, x)
        return jnp.abs(scaled(block, step)(x) - layer).max(), jnp.abs(layer - x).max()

    gaps, moved = (np.asarray(part) for part in of_step(STEPS))
    slopes = np.diff(np.log(gaps)) / np.diff(np.log(STEPS))
    np.testing.assert_allclose(slopes, 2, atol=0.1)
    assert gaps[0] < 0.2 * moved[0]


def test_the_field_is_attention_plus_perceptron():
    """The field agrees term by term: heads by their forms and values, and the perceptron."""
    block = block_of("none", "causal", "gelu")
    field = transformer.as_field(block)
    summed = eqx.filter_jit(lambda block, x: block.attention(x) + block.feed_forward(x))
    assert_close(velocity(field, X), summed(block, X), "composed")
    forms, values = transformer.query_key_forms(block.attention), transformer.value_matrices(block.attention)
    x, query, key = (np.asarray(part) for part in (X, block.attention.query, block.attention.key))
    scores = np.einsum("nd,hdk,me,hek->hnm", x, query, x, key)
    assert_close(np.einsum("nd,hde,me->hnm", x, np.asarray(forms), x), scores, "composed")
    heads = eqx.filter_jit(type(block.attention).heads)(block.attention, X)
    written = np.einsum("hij,hed,jd->hie", np.asarray(heads.weights), np.asarray(values), x)
    assert_close(written, heads.updates, "composed")
    attention_only = transformer.Block(attention_of(), None, (None, None), transformer.NoNorm())
    assert isinstance(transformer.as_field(attention_only), cjx.MultiHeadField)
    on_sphere = transformer.as_field(block, space=cjx.Sphere())
    assert isinstance(on_sphere.space, cjx.Sphere)
    y = cjx.Sphere().retract(X)
    assert_close(velocity(on_sphere, X), cjx.Sphere().tangent(y, summed(block, y)), "composed")


def test_standardised_tokens_have_mean_zero_and_variance_one():
    space = transformer.Standardised()
    retract = jax.jit(space.retract)
    x, moves, step = np.asarray(X), np.asarray(normal(5, N, D)), 1e-6
    y = np.asarray(retract(x))
    assert_close(y, transformer.LayerNorm(jnp.ones(D), None, 0.0)(X), "identity")
    assert_close(retract(y), y, "identity")
    v = np.asarray(space.tangent(jnp.asarray(y), jnp.asarray(moves)))
    assert np.abs(np.sum(v * y, axis=1)).max() < 1e-13 and np.abs(np.sum(v, axis=1)).max() < 1e-13
    moved = (np.asarray(retract(y + step * moves)) - np.asarray(retract(y - step * moves))) / (2 * step)
    np.testing.assert_allclose(moved, v, atol=1e-8)
    drawn = space.sample(jax.random.key(0), N, D)
    assert_close(retract(drawn), drawn, "identity")
    np.testing.assert_allclose(space.distance(jnp.asarray(y), jnp.asarray(-y)), np.pi, rtol=1e-12)
    assert_close(retract(x * 1e200), y, "identity")


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
