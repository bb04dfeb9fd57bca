import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from tests.attention_cases import FORM, KERNEL, KINDS, MASKS, MASSES, D, N, X, kinds
from tests.helpers import (
    DTYPES,
    CountTraces,
    assert_close,
    assert_same,
    name_of,
    normal,
    rotation,
    sphere_tokens,
)
from tests.model.derivatives_and_maps import assert_slopes
from tests.reference import fields as reference


VALUE = normal(11, D, D)
# These tokens are off the sphere: a field on the sphere is that of the retracted tokens.
OFF = jnp.asarray(np.asarray(X) * np.linspace(0.3, 3.0, N)[:, None], float)
SPHERE, EUCLIDEAN = cjx.Sphere(), cjx.Euclidean()

velocity = eqx.filter_jit(lambda field, x, t=0.0, args=None: field(t, x, args))

CASES = {
    "SA": ("softmax", "full", None, None, None, SPHERE),
    "SA with V and B": ("softmax", "full", FORM, VALUE, None, SPHERE),
    "SA with masses": ("softmax", "window", FORM, VALUE, MASSES, SPHERE),
    "CSA": ("softmax", "causal", FORM, VALUE, None, SPHERE),
    "CSA, some rows of which see no mass": ("softmax", "causal", FORM, VALUE, MASSES, SPHERE),
    "USA": ("unnormalised", "full", FORM, VALUE, None, SPHERE),
    "causal USA with masses": ("unnormalised", "causal", None, VALUE, MASSES, SPHERE),
    "hardmax": ("hardmax", "full", FORM, VALUE, MASSES, SPHERE),
    "SA in space": ("softmax", "full", FORM, VALUE, MASSES, EUCLIDEAN),
    "causal USA in space": ("unnormalised", "causal", FORM, None, None, EUCLIDEAN),
    "hardmax in space": ("hardmax", "matrix", None, VALUE, None, EUCLIDEAN),
}
# The kind, mask and space of these cases also occur in other cases, with more parameters.
SECOND = "CSA", "SA", "hardmax in space"
marked = {case: pytest.param(case, marks=pytest.mark.exhaustive if case in SECOND else ()) for case in CASES}
cases = pytest.mark.parametrize("case", marked.values())
on_the_sphere = pytest.mark.parametrize("case", [marked[case] for case, how in CASES.items() if how[-1] == SPHERE])


def field_of(case, turn=None):
    kind, mask, form, value, masses, space = CASES[case]
    if turn is not None:
        form, value = (None if matrix is None else turn @ matrix @ turn.T for matrix in (form, value))
    attention = KINDS[kind][0](query_key=form, mask=MASKS[mask][0])
    return cjx.AttentionField(attention, value, space, masses=masses)


def as_numpy(array):
    return None if array is None else np.asarray(array)


# --- definition


@cases
def test_velocity_is_the_double_sum(case):
    kind, mask, form, value, masses, space = CASES[case]

    def weights(points):
        return KINDS[kind][1](points, as_numpy(form), MASKS[mask][1], as_numpy(masses))

    expected = reference.velocity(np.asarray(OFF), weights, as_numpy(value), sphere=space == SPHERE)
    assert_close(velocity(field_of(case), OFF), expected)


@on_the_sphere
def test_velocity_is_tangent(case):
    found = np.asarray(velocity(field_of(case), OFF))
    size = max(1.0, np.abs(found).max())
    assert np.max(np.abs((np.asarray(X) * found).sum(axis=1))) <= 1e-15 * size


@on_the_sphere
def test_velocity_is_that_of_the_retracted_tokens(case):
    """Doubling the tokens does not round and changes no bit of the velocity; other norms change it by rounding only."""
    field = field_of(case)
    assert_same(velocity(field, 2 * np.asarray(OFF)), velocity(field, OFF))
    assert_close(velocity(field, OFF), velocity(field, X), "identity")


@cases
def test_velocities_turn_with_the_tokens(case):
    turn = rotation(7, D)
    turned = velocity(field_of(case, turn), np.asarray(OFF @ turn.T))
    assert_close(turned, np.asarray(velocity(field_of(case), OFF)) @ turn.T)


# --- invariance


@kinds
@pytest.mark.parametrize("mask", ("full", "causal"))
def test_velocities_move_with_a_permutation_unless_causal(kind, mask):
    order = np.random.default_rng(3).permutation(N)
    field = cjx.AttentionField(KINDS[kind][0](query_key=FORM, mask=MASKS[mask][0]), VALUE)
    moved, plain = velocity(field, np.asarray(X)[order]), np.asarray(velocity(field, X))[order]
    if mask == "full":
        assert_close(moved, plain)
    else:
        assert not np.allclose(moved, plain, atol=0.1)


@pytest.mark.parametrize(
    ("kind", "space", "mode"),
    (
        ("softmax", SPHERE, jax.jacrev),
        ("softmax", EUCLIDEAN, jax.jacfwd),
        ("unnormalised", SPHERE, jax.jacfwd),
        ("unnormalised", EUCLIDEAN, jax.jacrev),
    ),
)
def test_causal_jacobian_is_block_triangular(kind, space, mode):
    """The blocks above the diagonal are zero, exactly; those on and below it are not."""
    field = cjx.AttentionField(KINDS[kind][0](query_key=FORM, mask=cjx.CausalMask()), VALUE, space)
    jacobian = np.asarray(jax.jit(mode(lambda x: field(0.0, x)))(X))
    blocks = np.abs(jacobian).max(axis=(1, 3))
    assert_same(np.triu(blocks, 1), np.zeros((N, N)))
    assert np.all(blocks[np.tril_indices(N)] > 0)


# --- limits


@kinds
def test_one_token_stays_with_the_identity_and_flows_by_value_otherwise(kind):
    attention, one = KINDS[kind][0](), np.asarray(X)[:1]
    assert np.max(np.abs(velocity(cjx.AttentionField(attention, np.eye(D)), one))) < 1e-15
    # The weight of a single token, in kinds whose rows do not sum to one.
    factor = {"unnormalised": np.exp(1.7 - 0.4), "kernel, not normalised": KERNEL(1.0)}.get(kind, 1.0)
    expected = reference.tangent(one[0], factor * np.asarray(VALUE) @ one[0])
    assert_close(np.asarray(velocity(cjx.AttentionField(attention, VALUE), one))[0], expected)


@kinds
def test_identical_and_antipodal_tokens_stay(kind):
    """With V = I, and in one dimension with any V, every average is parallel to the token."""
    attention, one = KINDS[kind][0](), np.asarray(X)[:1]
    for x in (np.repeat(one, 3, axis=0), np.concatenate([one, -one, one])):
        assert np.max(np.abs(velocity(cjx.AttentionField(attention), x))) < 4e-15
    line = np.array([[1.0], [-1.0], [1.0]])
    assert_same(velocity(cjx.AttentionField(attention, np.array([[-0.7]])), line), np.zeros((3, 1)))


@pytest.mark.exhaustive_cases("float32")
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_a_row_that_sees_no_mass_is_at_rest(dtype):
    """The first two tokens of the causal model see no mass and are at rest, and every derivative is finite."""
    for kind in KINDS:
        attention = KINDS[kind][0](query_key=FORM, mask=cjx.CausalMask())
        field = cjx.AttentionField(attention, VALUE, masses=MASSES)
        found = np.asarray(velocity(field, np.asarray(X, dtype)))
        assert found.dtype == dtype
        assert_same(found[:2], np.zeros((2, D)))
        assert np.all(np.isfinite(found)) and np.all(np.any(found[2:] != 0, axis=1))
    gradients = eqx.filter_jit(eqx.filter_grad(lambda field: jnp.sum(field(0.0, X.astype(dtype)) ** 2)))(
        cjx.AttentionField(cjx.SoftmaxAttention(1.7, mask=cjx.CausalMask()), VALUE, masses=MASSES)
    )
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradients))


def test_a_token_of_no_mass_moves_none_and_is_moved():
    field = field_of("SA with masses")
    others = np.arange(N) != 7
    moved = np.where(others[:, None], X, -np.asarray(X)[6])
    before, after = np.asarray(velocity(field, X)), np.asarray(velocity(field, moved))
    assert_close(after[others], before[others], "exact")
    assert np.all(np.abs(after[7] - before[7]) > 0)


# --- contract


@pytest.mark.parametrize("case", ("SA with masses", "causal USA in space", "hardmax"))
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_dtype_is_that_of_the_tokens(case, dtype):
    """The velocity has the dtype of the tokens, with float64 parameters and a float32 time."""
    field = field_of(case)
    found = velocity(field, OFF.astype(dtype), jnp.asarray(0.5, jnp.float32))
    assert found.dtype == dtype
    assert_close(found, velocity(field, OFF), "composed")


def test_one_trace_for_any_numbers():
    body = CountTraces(lambda field, t, x: field(t, x))
    compiled = eqx.filter_jit(body)
    for k in (0.5, 1.0, 2.0, -3.0, 9.0):
        attention = cjx.SoftmaxAttention(k, query_key=k * FORM)
        compiled(cjx.AttentionField(attention, k * VALUE, masses=MASSES + abs(k)), jnp.asarray(k), k * X)
    assert body.traces == 1


def test_mapping_over_tokens_and_parameters_equals_a_loop():
    xs, betas = np.stack([X, X[::-1], 0.5 * X]), np.array([0.0, 2.0, -9.0])

    def build(beta):
        return cjx.AttentionField(cjx.SoftmaxAttention(beta, query_key=FORM, mask=cjx.CausalMask()), beta * VALUE)

    together = eqx.filter_jit(eqx.filter_vmap(lambda beta, x: build(beta)(0.0, x)))(betas, xs)
    stacked = eqx.filter_jit(eqx.filter_vmap(build))(betas)
    again = eqx.filter_jit(eqx.filter_vmap(velocity, in_axes=(eqx.if_array(0), 0)))(stacked, xs)
    for b in range(3):
        alone = velocity(build(betas[b]), xs[b])
        assert_close(together[b], alone)
        assert_close(again[b], alone)


@pytest.mark.exhaustive_cases("softmax-space0")
@pytest.mark.parametrize(("kind", "space"), (("softmax", SPHERE), ("unnormalised", EUCLIDEAN)))
def test_derivatives_in_tokens_and_parameters(kind, space):

    def fn(x, form, value, masses, beta):
        attention = KINDS[kind][0](beta, query_key=form, mask=cjx.CausalMask())
        return cjx.AttentionField(attention, value, space, masses=masses)(0.0, x)

    step = 1e-3 if space == SPHERE else 1e-4
    assert_slopes(fn, OFF, FORM, VALUE, MASSES + 1, 1.7, step=step)


def test_parameters_may_depend_on_time():
    values = np.asarray(normal(12, 2, D, D))
    beta = cjx.Interpolated([0.0, 2.0], [1.0, 3.0])
    field = cjx.AttentionField(cjx.SoftmaxAttention(beta), cjx.PiecewiseConstant([0.0, 1.0], values))
    for t, beta_then, value_then in ((0.5, 1.5, values[0]), (1.0, 2.0, values[1]), (8.0, 3.0, values[1])):
        then = cjx.AttentionField(cjx.SoftmaxAttention(beta_then), value_then)
        assert_close(velocity(field, X, jnp.asarray(t)), velocity(then, X))


def test_tokens_of_many_dimensions_take_the_other_kernel():
    x, form, value = sphere_tokens(3, N, 12), normal(4, 12, 12), normal(5, 12, 12)
    field = cjx.AttentionField(cjx.SoftmaxAttention(1.7, query_key=form), value)

    def weights(points):
        return KINDS["softmax"][1](points, np.asarray(form), MASKS["full"][1], None)

    assert_close(velocity(field, x), reference.velocity(np.asarray(x), weights, np.asarray(value)))
