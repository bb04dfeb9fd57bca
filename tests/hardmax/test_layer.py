"""Layers of the hardmax dynamics, and their leaders, against fractions, in which nothing is rounded."""

from fractions import Fraction

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax.hardmax import HardmaxLayer, SoftmaxTwin, leaders
from clusterjax.hardmax._limit import run_to_fixed_point
from tests.hardmax.cases import padded
from tests.helpers import CountTraces, as_a_user, assert_close, assert_derivatives, assert_same, normal
from tests.reference import hardmax as reference


DEPTH, N = 6, 7  # the same in most tests, so that tests share compiled programs
FORMS = {
    "identity": None,
    "definite": [[2, 1], [1, 3]],
    "asymmetric": [[1, 2], [-1, 1]],
    "indefinite": [[1, 0], [0, -2]],
    "low rank": [[1, 2], [2, 4]],
}
forms = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def dyadic(seed, n, d, scale=8):
    """Small multiples of 1 / `scale`: a few layers are exact, and ties are frequent."""
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.integers(-2 * scale, 2 * scale + 1, (n, d)) / scale, float)


def matrix(form):
    return None if form is None else np.asarray(form, float)


def states(layer, z0):
    return np.asarray(cjx.iterate(layer, jnp.asarray(z0, z0.dtype), DEPTH).xs)


# --- definition


@forms
@pytest.mark.parametrize("alpha", (1, 3), ids=("alpha 1", "alpha 3"))
def test_layers_are_those_of_fractions(form, alpha):
    """Layers are exact where every mean is over one, two or four tokens, and right to rounding elsewhere."""
    for seed in range(5):
        z0 = dyadic(seed, N, 2)
        exact = reference.layers(reference.exact(z0), alpha, DEPTH, form)
        expected = np.stack([reference.floats(z) for z in exact])
        pairs = all(len(c) in (1, 2, 4) for z in exact for c in reference.attended(z, form))
        actual = states(HardmaxLayer(alpha, matrix(form)), z0)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=0 if pairs else 1e-13)


def test_masses_weigh_the_mean_and_padding_neither_moves_nor_is_seen():
    z0 = jnp.asarray([[1.0, 1.0], [1.0, -1.0], [0.5, 0.0], [9.0, 9.0], [0.25, 0.125], [-0.5, 0.25], [0.0, 0.5]])
    layer = HardmaxLayer(1, masses=[3.0, 1.0, 1.0, 0.0, 2.0, 1.0, 1.0])
    exact, masses = reference.exact(z0), layer.masses.tolist()
    xs = states(layer, z0)
    assert_same(xs, np.stack([reference.floats(z) for z in reference.layers(exact, 1, DEPTH, masses=masses)]))
    assert_same(xs[:, 3], np.broadcast_to(z0[3], (DEPTH + 1, 2)))
    assert_same(xs[1, 2], [0.75, 0.25])
    assert_same(leaders(z0, layer, 5).first, reference.first_alone(exact, 1, 5, masses=masses))


def test_mask_says_who_may_be_attended_to():
    z0, layer = dyadic(3, N, 2), HardmaxLayer(1, mask=cjx.CausalMask())
    expected = reference.layers(reference.exact(z0), 1, DEPTH, allowed=lambda i, j: j <= i)
    np.testing.assert_allclose(states(layer, z0), np.stack([reference.floats(z) for z in expected]), rtol=0, atol=1e-14)
    assert int(leaders(z0, layer, 5).first[0]) == 0


def test_parameters_that_depend_on_the_layer():
    """Layer k has the k-th alpha and the k-th A."""
    z0, alphas = dyadic(4, N, 2), [1.0, 3.0, 1.0, 7.0]
    swap, plain = [[0, 1], [1, 0]], [[1, 0], [0, 1]]
    forms = [plain, swap, swap, plain]
    ks = np.arange(4.0)
    layer = HardmaxLayer(cjx.PiecewiseConstant(ks, alphas), cjx.PiecewiseConstant(ks, np.asarray(forms, float)))
    z = reference.exact(z0)
    for k, x in enumerate(states(layer, z0)):
        np.testing.assert_allclose(x, reference.floats(z), rtol=0, atol=1e-14)
        z = reference.layer(z, Fraction(alphas[min(k, 3)]), forms[min(k, 3)])


# --- leaders


@forms
def test_leaders_are_those_of_fractions(form):
    """A token leads from the first layer with C_i = {i} on; in fractions tokens merge only in the limit."""
    layer = HardmaxLayer(1, matrix(form))
    for seed in range(20):
        z0 = dyadic(100 + seed, N, 2)
        expected = reference.first_alone(reference.exact(z0), 1, 5, form)
        assert leaders(z0, layer, 5).first.tolist() == expected, seed


def test_a_leader_stays_for_ever_where_it_was():
    layer = HardmaxLayer(0.5)
    for seed in range(10):
        z0 = normal(seed, N, 2)
        led, xs = leaders(z0, layer, 5), states(layer, z0)
        for i in led.indices:
            since = int(led.first[i])
            assert_same(xs[since:, i], np.broadcast_to(led.points[i], (DEPTH + 1 - since, 2)))
        assert int(led.count) == len(led.indices) == int(led.mask.sum()) > 0


def test_tokens_that_merged_with_a_leader_do_not_lead():
    """H7: after 200 layers all tokens have arrived, and without a tolerance some of them tie by a hair."""
    z0, layer = normal(8, 100, 8), HardmaxLayer(1.0, tie_tolerance=0.0)
    early, late = (run_to_fixed_point(z0, layer, jnp.asarray(depth), jnp.asarray(-1.0)) for depth in (20, 200))
    assert_same(late.leaders.first, early.leaders.first)
    places = np.unique(np.round(np.asarray(late.x)[np.asarray(late.leaders.mask)], 6), axis=0)
    assert len(places) == int(late.leaders.count)


def test_duplicates_share_a_place_and_neither_leads():
    z0 = padded([[2.0, 0.0], [2.0, 0.0], [0.5, 0.25], [-1.0, 0.0]])
    assert leaders(z0, HardmaxLayer(1), 5).first.tolist() == [-1, -1, -1, 0, -1, -1, -1]


# --- invariance


def test_definite_matrix_is_a_change_of_coordinates():
    """The map z' = A^{1/2} z turns the layer with A into the layer with the identity (sentiment.md)."""
    root = np.array([[1.0, 0.5], [0.5, 2.0]])
    z0 = np.asarray(normal(9, N, 2))
    assert_close(states(HardmaxLayer(0.8, root @ root), z0) @ root, states(HardmaxLayer(0.8), z0 @ root), "composed")


def test_rotation_order_and_scale_do_not_matter():
    z0, turn = np.asarray(normal(10, N, 2)), np.linalg.qr(normal(11, 2, 2))[0]
    layer, order = HardmaxLayer(0.6), np.random.default_rng(12).permutation(N)
    plain = states(layer, z0)
    assert_close(states(layer, z0 @ turn), plain @ turn, "composed")
    assert_same(states(layer, z0[order]), plain[:, order])
    assert_same(states(layer, 4 * z0), 4 * plain)
    assert_same(states(HardmaxLayer(0.6, 3 * np.eye(2)), z0), plain)


def test_norms_never_fall_and_the_hull_never_grows():
    """With a positive definite A, the A-norm of no token falls, and no support function rises."""
    form = np.array([[2.0, 1.0], [1.0, 3.0]])
    for seed in range(10):
        xs = states(HardmaxLayer(0.3, form), normal(seed, N, 2))
        norms = np.einsum("kia,ab,kib->ki", xs, form, xs)
        assert np.diff(norms, axis=0).min() > -1e-12
        reach = (xs @ np.asarray(normal(14, 2, 50))).max(axis=1)
        assert np.diff(reach, axis=0).max() < 1e-14


# --- the softmax twin


def test_twin_is_the_softmax_layer():
    z, form = np.asarray(normal(15, 6, 2)), np.array([[1.0, 2.0], [-1.0, 1.0]])
    twin = SoftmaxTwin(HardmaxLayer(2.0, form, masses=[1.0, 2.0, 0.0, 1.0, 1.0, 1.0]), 1.5)
    weights = np.exp(1.5 * (z @ form.T) @ z.T) * np.array([1.0, 2.0, 0.0, 1.0, 1.0, 1.0])
    weights = weights / weights.sum(axis=1, keepdims=True)
    expected = z + 2 / 3 * (weights @ z - z)
    expected[2] = z[2]
    assert_close(eqx.filter_jit(twin)(0, jnp.asarray(z)), expected)


def test_twin_has_a_derivative_with_respect_to_the_form_and_hardmax_has_none():
    z = normal(16, 8, 2)
    end = lambda layer: jnp.sum(layer(0, z)[:, 0])
    hard, soft = lambda A: end(HardmaxLayer(1.0, A)), lambda A: end(SoftmaxTwin(HardmaxLayer(1.0, A), 2.0))
    of_hard, of_soft = jax.jit(lambda A: (jax.grad(hard)(A), jax.grad(soft)(A)))(np.array([[2.0, 1.0], [1.0, 3.0]]))
    assert_same(of_hard, np.zeros((2, 2)))
    assert np.abs(of_soft).max() > 1e-3


# --- contract


def test_dtype_is_that_of_the_tokens():
    z0, layer = dyadic(17, N, 2), HardmaxLayer(1, [[2.0, 1.0], [1.0, 3.0]])
    single = z0.astype(jnp.float32)
    xs = states(layer, single)
    assert xs.dtype == jax.eval_shape(lambda z: leaders(z, layer, 2).points, single).dtype == jnp.float32
    assert jax.eval_shape(lambda z: layer(0, z), single).dtype == jnp.float32
    assert_close(xs, states(layer, z0), "composed")


def test_one_trace_for_all_numbers():
    counted = CountTraces(lambda layer, z: (cjx.iterate(layer, z, 3).x1, leaders(z, layer, 3).first))
    run = eqx.filter_jit(counted)
    for k in (0.5, 1.0, 2.0):
        run(HardmaxLayer(k, k * np.eye(2), masses=np.full(N, k), tie_tolerance=1e-9 * k), dyadic(18, N, 2))
    assert counted.traces == 1
    assert not [leaf for leaf in jtu.tree_leaves(HardmaxLayer(1.0, np.eye(2))) if isinstance(leaf, float)]


def test_mapping_is_a_loop():
    clouds = np.stack([dyadic(s, N, 2) for s in range(3)])
    alphas, masses = np.array([0.5, 1.0, 3.0]), np.array([[1.0] * N, [1.0] * 5 + [0.0] * 2, [2.0] * N])
    run = jax.jit(lambda z, alpha, m: leaders(z, HardmaxLayer(alpha, masses=m), 5))
    together = jax.jit(jax.vmap(run))(clouds, alphas, masses)
    for b in range(3):
        alone = run(clouds[b], alphas[b], masses[b])
        assert_same(np.asarray(together.first)[b], alone.first)
        assert_close(np.asarray(together.points)[b], alone.points, "exact")


def test_derivatives_flow_through_tokens_and_alpha():
    z0 = normal(19, 6, 2)
    packed = jnp.concatenate([z0.ravel(), jnp.asarray([0.8])])
    fn = lambda p: cjx.iterate(HardmaxLayer(p[-1]), p[:-1].reshape(6, 2), 4, save_every=2).xs
    assert_derivatives(fn, packed, step=1e-5)


# --- errors

Z = normal(20, 5, 2)
REFUSED = {
    "alpha falls to zero": (lambda: HardmaxLayer(cjx.Interpolated([0.0, 1.0], [1.0, 0.0])), "^alpha must be positive"),
    "A of another size": (lambda: leaders(Z, HardmaxLayer(1.0, jnp.eye(3)), 1), "^A must act on .* dimension 2"),
    "number of masses": (lambda: leaders(Z, HardmaxLayer(1.0, masses=[1.0]), 1), "^masses must hold one mass"),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused(call, message):
    with as_a_user(), pytest.raises(ValueError, match=message):
        call()


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", (None, "random"), ids=("identity", "random"))
def test_blocks_of_rows_give_the_same(form):
    """The result is that of all pairs if tokens exceed one block of pairs, in layers and in the search of leaders."""
    z0 = normal(5, 1500, 2)
    two_layers = lambda layer: np.asarray(cjx.iterate(layer, z0, 2).xs)
    form = None if form is None else normal(6, 2, 2)
    blocked, dense = (HardmaxLayer(0.7, form, summation=s) for s in (cjx.Blocked(256), cjx.Dense()))
    assert_close(two_layers(blocked), two_layers(dense), "exact")
    first = np.asarray(leaders(z0, blocked, 1).first)
    z0, x1, form = (None if x is None else np.asarray(x) for x in (z0, dense(0, z0), form))
    for i in range(1500):
        strict = [k for k, x in enumerate((z0, x1)) if np.argmax(x @ (x[i] if form is None else form @ x[i])) == i]
        assert first[i] == (strict[0] if strict else -1)


def test_single_token_leads():
    for z0 in (jnp.ones((1, 1)), jnp.zeros((1, 1))):
        assert leaders(z0, HardmaxLayer(1), 2).first.tolist() == [0]
