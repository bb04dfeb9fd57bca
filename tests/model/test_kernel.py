"""A kernel of one's own: that of softmax is softmax, blocks are the whole, and pairs that are masked count nowhere."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax._model import attention as module
from tests.attention_cases import BETA, FORM, GRAPH, KERNEL, MASSES, VALUES, D, N, X
from tests.helpers import DTYPES, as_a_user, assert_close, name_of
from tests.reference import attention as reference


MASKS = (cjx.FullMask(), cjx.CausalMask(), cjx.MatrixMask(GRAPH), cjx.SinkMask(3, 1))


@pytest.mark.exhaustive_cases("ones-SinkMask")
@pytest.mark.parametrize("mask", MASKS, ids=name_of)
@pytest.mark.parametrize("masses", (None, MASSES), ids=("ones", "masses"))
def test_an_exponential_is_softmax_and_unnormalised_attention(mask, masses):
    exponential, how = (lambda s: jnp.exp(BETA * s)), {"query_key": FORM, "mask": mask}
    others = (cjx.SoftmaxAttention(BETA, **how), True), (cjx.UnnormalisedAttention(BETA, **how), False)
    for other, normalise in others:
        ours = cjx.KernelAttention(exponential, normalise=normalise, **how)
        assert_close(ours.weights(X, masses=masses), other.weights(X, masses=masses))
        assert_close(ours.average(X, VALUES, masses=masses), other.average(X, VALUES, masses=masses))


class Power(eqx.Module):
    """A kernel with a parameter, (1 + a + s)^2."""

    a: jax.Array

    def __call__(self, s):
        return (1 + self.a + s) ** 2


@pytest.mark.parametrize("normalise", (True, False))
def test_a_parameter_of_the_kernel_is_differentiated(normalise):
    def size(a, x):
        attention = cjx.KernelAttention(Power(a), normalise=normalise, mask=cjx.CausalMask())
        return jnp.sum(attention.average(x, VALUES, masses=MASSES) ** 2)

    a, step = jnp.asarray(0.4), 1e-5
    of_a, of_x = jax.jit(jax.grad(size, argnums=(0, 1)))(a, X)
    assert float(of_a) == pytest.approx(float(size(a + step, X) - size(a - step, X)) / (2 * step), rel=1e-7)
    direction = jnp.cos(jnp.arange(N * D, dtype=X.dtype)).reshape(N, D)
    along = (size(a, X + step * direction) - size(a, X - step * direction)) / (2 * step)
    assert float(jnp.sum(of_x * direction)) == pytest.approx(float(along), rel=1e-7)


@pytest.mark.exhaustive
@pytest.mark.parametrize("normalise", (True, False))
@pytest.mark.parametrize("mask", MASKS, ids=name_of)
def test_blocks_of_rows_are_the_whole(monkeypatch, mask, normalise):
    """Averages, derivatives and second derivatives, with a last block that is not full."""
    attention = cjx.KernelAttention(KERNEL, query_key=FORM, normalise=normalise, mask=mask)
    size = lambda x: jnp.sum(jnp.sin(attention.average(x, None, masses=MASSES)))
    again = lambda x: jnp.sum(jnp.cos(3 * x) * jax.grad(size)(x))
    whole = attention.weights(X, masses=MASSES) @ X, size(X), jax.grad(size)(X), jax.grad(again)(X)
    monkeypatch.setattr(module, "_PAIRS", 4 * N)
    found = attention.average(X, None, masses=MASSES), size(X), jax.grad(size)(X), jax.grad(again)(X)
    for one, two in zip(found, whole, strict=True):
        assert_close(one, two)


def test_what_is_masked_neither_overflows_nor_spoils_a_derivative():
    """The kernel is infinite at the inner product of tokens 0 and 1, of which 1 is seen by none but itself."""
    x = jnp.asarray([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, -0.8]])
    # Infinite at 0.6, the product of 0 and 1, and at 0.8, that of 1 and 2.
    pole = lambda s: 1 / ((s - 0.6) * (s - 0.8)) ** 2
    rule = np.eye(4, dtype=bool) | (np.ones((4, 4), bool) & (np.arange(4) != 1)[None] & (np.arange(4) != 1)[:, None])
    attention = cjx.KernelAttention(pole, mask=cjx.MatrixMask(rule))
    expected = reference.kernel_weights(np.asarray(x), pole, True, None, reference.permitted(rule))
    assert_close(attention.weights(x), expected)
    assert np.isfinite(jax.grad(lambda x: jnp.sum(attention.average(x, None) ** 2))(x)).all()


@pytest.mark.exhaustive_cases("True")
@pytest.mark.parametrize("normalise", (True, False))
def test_a_row_whose_kernel_is_zero_is_zero(normalise):
    """Bounded confidence that excludes a token itself: nobody is near the outlier."""
    x = jnp.asarray([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    attention = cjx.KernelAttention(lambda s: jnp.where(s > 0.5, 1.0, 0.0), query_key=-jnp.eye(2), normalise=normalise)
    expected = np.array([[0, 0, 1], [0, 0, 1], [1, 1, 0]]) / (np.array([[1], [1], [2]]) if normalise else 3)
    assert_close(attention.weights(x), expected)
    lonely = cjx.KernelAttention(lambda s: jnp.where(s > 2, 1.0, 0.0), normalise=normalise)
    assert_close(lonely.average(x, None), np.zeros((3, 2)))
    assert np.isfinite(jax.grad(lambda x: jnp.sum(lonely.average(x, None)))(x)).all()


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_tokens_keep_their_dtype_and_are_simulated(dtype):
    field = cjx.AttentionField(cjx.KernelAttention(KERNEL, mask=cjx.CausalMask()))
    traj = cjx.simulate(field, X.astype(dtype), jnp.array([0.0, 30.0], dtype))
    assert traj.xs.dtype == dtype and int(cjx.num_clusters(traj.xs[-1], 0.1)) == 1
    # The first token attends to itself alone.
    np.testing.assert_allclose(traj.xs[-1, 0], X[0], atol=1e-5)


@pytest.mark.parametrize(
    ("function", "says"),
    (
        (2.0, "function must be a function of inner products"),
        (lambda: 1, "function must be a function of inner products"),
        (lambda s: s.sum(), r"function\(s\) must"),
        (lambda s: None, r"function\(s\) must"),
        (lambda s: jax.lax.complex(s, s), r"function\(s\) must be real"),
    ),
)
def test_what_is_no_kernel_is_refused(function, says):
    with as_a_user(), pytest.raises(ValueError, match=says):
        cjx.KernelAttention(function).weights(X)


def test_it_is_an_attention_in_every_field_and_layer():
    """With an exponential the heads, the rescaled flow and the layers are those of softmax attention."""
    ours, softmax = cjx.KernelAttention(lambda s: jnp.exp(BETA * s)), cjx.SoftmaxAttention(BETA)
    forms = jnp.stack([FORM, -FORM])
    build = lambda beta, query_key, mask, summation: cjx.KernelAttention(
        lambda s: jnp.exp(beta * s), query_key=query_key, mask=mask
    )
    heads = cjx.MultiHeadField(jnp.asarray([1.0, 2.0]), forms, forms, attention=build)
    assert_close(heads(0.0, X), cjx.MultiHeadField(jnp.asarray([1.0, 2.0]), forms, forms)(0.0, X))
    for make in (lambda a: cjx.RescaledField(a, 0.5 * FORM), lambda a: cjx.ResidualLayer(cjx.AttentionField(a), 0.1)):
        assert_close(make(ours)(1.0, X), make(softmax)(1.0, X))
    with as_a_user(), pytest.raises(ValueError, match="^attention must be .* KernelAttention has no beta .*; pass"):
        cjx.MultiHeadField(1.0, forms, forms, attention=cjx.KernelAttention)


@pytest.mark.exhaustive_cases("FullMask-True")
@pytest.mark.parametrize("normalise", (True, False))
@pytest.mark.parametrize("mask", MASKS, ids=name_of)
def test_degenerate_clouds(mask, normalise):
    """Repeats, antipodes, a line and tokens without mass, against the double loop; the derivative is finite."""
    one, n = jnp.asarray([0.6, 0.8, 0.0]), GRAPH.shape[0]
    x = one[None] * jnp.asarray(([1.0, 1.0, -1.0, 2.0, -1.0] * n)[:n])[:, None]
    masses = jnp.asarray(([0.0, 2.0, 1.0] * n)[:n])
    attention = cjx.KernelAttention(KERNEL, normalise=normalise, mask=mask)
    matrix = np.asarray(mask.matrix(n))
    allowed = lambda i, j: bool(matrix[i, j])
    # A row that sees no mass at all is zero; the loop would divide by it.
    some = (matrix * np.asarray(masses)).sum(axis=1) > 0
    full = lambda i, j: allowed(i, j) or not some[i]
    expected = reference.kernel_weights(np.asarray(x), KERNEL, normalise, None, full, np.asarray(masses))
    assert_close(attention.weights(x, masses=masses), np.where(some[:, None], expected, 0))
    assert np.isfinite(jax.grad(lambda x: jnp.sum(attention.average(x, None, masses=masses) ** 2))(x)).all()


def test_a_run_says_what_summed():
    field = cjx.AttentionField(cjx.KernelAttention(KERNEL))
    stats = lambda field: jax.eval_shape(lambda: cjx.simulate(field, X, jnp.asarray([0.0, 1.0])).stats)["summation"]
    assert stats(field) == "KernelAttention"
    assert stats(field + cjx.AttentionField(cjx.SoftmaxAttention(1.0))) == "Dense and KernelAttention"
