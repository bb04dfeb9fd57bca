"""Oracles H1 to H11 of the hardmax dynamics: dyadic data, on which double precision is exact, and counterexamples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax.hardmax import HardmaxLayer, SoftmaxTwin, certificate, leaders, limit_set
from clusterjax.hardmax._limit import run_to_fixed_point
from tests.hardmax.cases import DEEP, N, padded, path
from tests.helpers import assert_same, normal


SQUARE = [[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]
LATE = [[1.0, 0.0], [-1.0, 2.0], [-2.0, 2.0], [1.0, 1.0], [0.0, 2.0]]


@pytest.mark.parametrize("alpha", (1, 3, 7))
def test_a_layer_contracts_by_one_over_one_plus_alpha(alpha):
    """H1: as long as C_i does not change, distances to a leader and to a mean of two contract to the last bit."""
    xs = path([[4.0, 0.0], [1.0, 0.5], [-3.0, 2.0], [-3.0, -2.0], [-1.0, 0.0]], 6, alpha)
    shrunk = float(1 + alpha) ** -np.arange(7)[:, None]
    assert_same(xs[:, 1] - [4.0, 0.0], shrunk * [-3.0, 0.5])
    assert_same(xs[:, 4] - [-3.0, 0.0], shrunk * [2.0, 0.0])


@pytest.mark.parametrize(
    ("alpha", "heights"),
    ((1, [1 / 2, 3 / 4, 7 / 8, 15 / 16]), (3, [1 / 2, 7 / 8, 31 / 32, 127 / 128])),
)
def test_token_between_two_leaders_comes_to_the_projection_of_the_origin(alpha, heights):
    """H2: (0, 1 - (1 + alpha)^{-k} / 2) tends to (0, 1), which is no vertex."""
    z0 = [[1.0, 1.0], [-1.0, 1.0], [0.0, 0.5]]
    assert_same(path(z0, 3, alpha)[:, 2], np.stack([np.zeros(4), heights], axis=1))
    proof = certificate(padded(z0), HardmaxLayer(alpha))
    limit = proof.limit
    assert limit.leaders.indices.tolist() == [0, 1] and limit.is_vertex.tolist() == [True, True, False]
    np.testing.assert_allclose(limit.points[2], [0.0, 1.0], rtol=0, atol=1e-13)
    assert proof.held and limit.goes_to[:3].tolist() == [0, 1, 2]


def test_square():
    """H3: (1/2, 0) moves to the middle of a side, as (1 - 2^{-k-1}, 0), and (1/2, 1/4) to a corner."""
    z0 = [*SQUARE, [0.5, 0.0], [0.5, 0.25]]
    assert_same(path(z0)[:, 4], np.stack([1 - 2.0 ** -(np.arange(DEEP + 1) + 1), np.zeros(DEEP + 1)], axis=1))
    limit = limit_set(padded(z0), HardmaxLayer(1))
    assert limit.goes_to[:6].tolist() == [0, 1, 2, 3, 4, 0]
    np.testing.assert_allclose(limit.points[4], [1.0, 0.0], rtol=0, atol=1e-13)
    assert limit.vertices.tolist() == SQUARE and limit.dimension == 2 and len(limit.facets) == 4


def test_projection_of_the_origin_need_not_hold_a_token():
    """H4: for A = diag(1, 2), (0, 1) is the A-projection of the origin on the face, but not the mean of its corners, so
    that the token which passes it goes to a corner.
    """
    z0, form = [[2.0, 1.0], [-1.0, 1.0], [0.0, 0.5]], np.diag([1.0, 2.0])
    assert_same(path(z0, 3, 1, form)[1:, 2], [[1 / 4, 3 / 4], [9 / 8, 7 / 8], [25 / 16, 15 / 16]])
    proof = certificate(padded(z0), HardmaxLayer(1, form))
    assert proof.held and proof.limit.goes_to[:3].tolist() == [0, 1, 0] and len(proof.limit.points) == 2


def test_mean_that_is_the_projection_does_hold_one():
    """H4, conversely: (1, 1) and (-1, 1) have their mean where diag(1, 2) projects the origin."""
    proof = certificate(padded([[1.0, 1.0], [-1.0, 1.0], [0.0, 0.5]]), HardmaxLayer(1, np.diag([1.0, 2.0])))
    assert proof.held and proof.limit.goes_to[:3].tolist() == [0, 1, 2]


def test_late_leader():
    """H5: token 0 leads from layer 3 on, at (13/16, 47/64); the first leaders are not the corners of the first hull."""
    limit = limit_set(padded(LATE), HardmaxLayer(1))
    assert limit.leaders.first.tolist() == [3, -1, 0, -1, -1, -1, -1]
    assert_same(np.asarray(limit.leaders.points)[[0, 2]], [[13 / 16, 47 / 64], [-2.0, 2.0]])
    assert_same(path(LATE, 8)[3:, 0], np.broadcast_to([13 / 16, 47 / 64], (6, 2)))
    assert limit.points.tolist() == [[13 / 16, 47 / 64], [-2.0, 2.0]]
    assert limit.goes_to[:5].tolist() == [0, 1, 1, 1, 1]


def test_token_of_largest_norm_leads_from_the_start():
    """H6: by Cauchy and Schwarz the token of largest A-norm leads, and it does not move."""
    for seed in range(20):
        z0, root = np.asarray(normal(seed, N, 2)), np.asarray(normal(100 + seed, 2, 2))
        form = root @ root.T
        longest = int(np.argmax(np.einsum("ia,ab,ib->i", z0, form, z0)))
        assert int(leaders(jnp.asarray(z0), HardmaxLayer(1.0, form), DEEP).first[longest]) == 0
        np.testing.assert_allclose(path(z0, form=form)[-1, longest], z0[longest], rtol=0, atol=1e-12)


POLYGON = np.array([[2.0, 0.0], [0.5, 1.75], [-1.5, 1.5], [-1.75, -1.0], [0.25, -2.0]])
INSIDE = np.array([[0.5, 0.25], [-0.25, 0.75], [-0.5, -0.5], [0.125, -0.5], [0.75, -0.5]])


def test_tokens_in_cells_go_straight_to_their_vertex():
    """H8: x^t = prod (1 - gamma) x^0 + (1 - prod (1 - gamma)) v, where a vertex owns its cell: <A v, w - v> < 0."""
    z0, form = np.concatenate([POLYGON, INSIDE]), np.array([[1.0, 0.25], [0.25, 1.0]])
    cells = np.einsum("ia,ab,ijb->ij", POLYGON, form, POLYGON[None] - POLYGON[:, None])
    assert np.all(cells[~np.eye(5, dtype=bool)] < 0)
    target = np.argmax(INSIDE @ form @ POLYGON.T, axis=1)
    assert len(set(target)) > 2
    gammas = np.array([0.5, 0.75, 0.25, 0.5, 0.125])
    layer = HardmaxLayer(cjx.PiecewiseConstant(np.arange(5.0), gammas / (1 - gammas)), form)
    xs = np.asarray(cjx.iterate(layer, jnp.asarray(z0), 5).xs)
    kept = np.concatenate([[1.0], np.cumprod(1 - gammas)])[:, None, None]
    expected = kept * INSIDE + (1 - kept) * POLYGON[target]
    np.testing.assert_allclose(xs[:, 5:], expected, rtol=0, atol=1e-15)
    assert_same(xs[:, :5], np.broadcast_to(POLYGON, (6, 5, 2)))


def test_vertex_leads_at_once_if_and_only_if_it_owns_its_cell():
    """H8 holds for random polygons, some of which have vertices that do not own their cells."""
    owned = []
    for seed in range(40):
        polygon = np.asarray(normal(300 + seed, 5, 2))
        slack = np.einsum("ia,ija->ij", polygon, polygon[None] - polygon[:, None])
        owns = np.all(slack[~np.eye(5, dtype=bool)].reshape(5, 4) < 0, axis=1)
        assert_same(leaders(padded(polygon), HardmaxLayer(1.0, np.eye(2)), DEEP).first[:5] == 0, owns)
        owned.append(owns.all())
    assert 0 < sum(owned) < 40


def test_steps_that_sum_up_do_not_arrive():
    """H8: with gamma_k = 2^{-k-1} the product of 1 - gamma_k is 0.2887880951, and the token stops on the way."""
    gammas = 2.0 ** -(np.arange(60) + 1)
    layer = HardmaxLayer(cjx.PiecewiseConstant(np.arange(60.0), gammas / (1 - gammas)))
    end = cjx.iterate(layer, jnp.asarray([[2.0, 0.0], [1.0, 0.0]]), 60, save_every=60).x1
    np.testing.assert_allclose(end[1, 0], 2 - 0.288788095086602, rtol=0, atol=1e-14)


@pytest.mark.exhaustive
def test_merged_tokens_are_not_counted():
    """H7: the strict argmax of the last layer counts more tokens than there are limits; `leaders` does not."""
    counts = []
    for seed in range(12):
        z0 = normal(200 + seed, 100, 8) * jnp.asarray([[4.0, 3.0, 1.0, 1.0, 0.3, 0.3, 0.1, 0.1]])
        end = np.asarray(cjx.iterate(HardmaxLayer(1.0, tie_tolerance=0.0), z0, 300, save_every=300).x1)
        scores = end @ end.T
        naive = int(np.sum(np.argmax(scores, axis=1) == np.arange(100)))
        limits = len(np.unique(np.round(end, 6), axis=0))
        assert int(leaders(z0, HardmaxLayer(1.0), 300).count) == limits
        counts.append(naive - limits)
    assert max(counts) > 0


def test_small_steps_follow_the_flow():
    """H8: the error to x(t) = e^{-t} x_0 + (1 - e^{-t}) v is of first order in the step."""
    inside, errors = INSIDE[: N - 5], []
    target = POLYGON[np.argmax(inside @ POLYGON.T, axis=1)]
    exact = np.exp(-1.0) * inside + (1 - np.exp(-1.0)) * target
    for depth in (20, 40, 80):
        layer = HardmaxLayer(1 / (depth - 1))
        z0 = jnp.asarray(np.concatenate([POLYGON, inside]))
        end = run_to_fixed_point(z0, layer, jnp.asarray(depth), jnp.asarray(-1.0)).x
        errors.append(np.abs(np.asarray(end)[5:] - exact).max())
    np.testing.assert_allclose(np.log2(np.array(errors[:-1]) / errors[1:]), 1.0, atol=0.05)


def test_negative_form_does_not_bring_tokens_to_the_origin():
    """H9: d = 1, A = -1, gamma_t = 2 / (t + 2), from t = 1: 1/3 + 8 / (t (t + 1)) tends to 1/3, not to 0.

    The step at t = 0 has gamma = 1, that is alpha infinite, and only exchanges 3 and -1.
    """
    ts = np.arange(1.0, 9.0)
    printed = [[5 / 3, 1 / 3], [1, 1 / 3], [11 / 15, 1 / 3], [3 / 5, 1 / 3], [11 / 21, 1 / 3], [10 / 21, 1 / 3],
               [4 / 9, 1 / 3]]  # fmt: skip
    layer = HardmaxLayer(cjx.PiecewiseConstant(np.arange(8.0), 2 / ts), -jnp.eye(1))
    xs = np.asarray(cjx.iterate(layer, jnp.asarray([[-1.0], [3.0]]), 7).xs)[..., 0]
    np.testing.assert_allclose(xs[1:], printed, rtol=0, atol=1e-15)
    np.testing.assert_allclose(xs[1:, 0], 1 / 3 + 8 / ((ts[:-1] + 1) * (ts[:-1] + 2)), rtol=0, atol=1e-15)


def test_negative_form_may_never_settle():
    """H9: if steps do not shrink, two tokens on a line exchange their places for ever, and the result says so."""
    limit = limit_set(jnp.asarray([[3.0], [-3.0]]), HardmaxLayer(1e9, -jnp.eye(1)), 50)
    assert not limit.settled and limit.layers == 50
    assert repr(limit).endswith("not settled after 50 layers)")


@pytest.mark.exhaustive_cases("identity")
@pytest.mark.parametrize("form", (None, "asymmetric"), ids=("identity", "asymmetric"))
def test_softmax_layers_come_to_hardmax_at_the_rate_of_the_gap(form):
    """H10: 1 - w_max <= (n - 1) e^{-beta gap}; one layer differs by no more than this times share and diameter, and
    after several layers the error falls like e^{-beta gap} with the least gap of the run.
    """
    n, depth, form = 12, 4, None if form is None else np.array([[1.0, 0.5], [-0.5, 1.0]])
    z0 = np.asarray(normal(31, n, 2))
    hard = HardmaxLayer(1.0, form)
    xs = np.asarray(cjx.iterate(hard, jnp.asarray(z0), depth).xs)
    gap = min(float(gaps(x, form).min()) for x in xs[:-1])
    diameter = np.max(np.linalg.norm(z0[:, None] - z0[None], axis=-1))
    query_key = None if form is None else form.T
    weights_of = jax.jit(lambda b: cjx.SoftmaxAttention(b, query_key=query_key).weights(jnp.asarray(z0)))
    betas, errors = np.array([6.0, 9.0, 12.0]) / gap, []
    for beta in betas:
        weights = weights_of(beta)
        assert np.all(1 - weights.max(axis=1) <= (n - 1) * np.exp(-beta * gaps(z0, form)) + 1e-15)
        soft = np.asarray(cjx.iterate(SoftmaxTwin(hard, beta), jnp.asarray(z0), depth).xs)
        one = np.linalg.norm(soft[1] - xs[1], axis=1)
        assert np.all(one <= 0.5 * diameter * (n - 1) * np.exp(-beta * gaps(z0, form)) + 1e-14)
        errors.append(np.abs(soft[-1] - xs[-1]).max())
    rates = -np.diff(np.log(errors)) / np.diff(betas)
    np.testing.assert_allclose(rates, gap, rtol=0.1)


def test_softmax_layers_stay_at_the_vertices_for_a_time_exponential_in_beta():
    """H11: tokens at -z and z go to z (1 - c + c tanh(beta z^2)), c = alpha / (1 + alpha); the layers until z < 0.95
    grow in number between e^{2 beta 0.95^2} and e^{2 beta}, but a token between arrives in a few, for any beta.
    """
    betas, depth, stays = [2.0, 2.5, 3.0, 3.5], 100, []
    for beta in betas:
        twin = SoftmaxTwin(HardmaxLayer(1.0), beta)
        xs = np.asarray(cjx.iterate(twin, jnp.asarray([[1.0], [-1.0]]), depth).xs)[..., 0]
        z = [1.0]
        for _ in range(depth):
            z.append(z[-1] * (0.5 + 0.5 * np.tanh(beta * z[-1] ** 2)))
        np.testing.assert_allclose(xs, np.stack([z, np.negative(z)], axis=1), rtol=0, atol=1e-13)
        stays.append(np.argmax(np.array(z) < 0.95))
    growth = np.diff(np.log(stays)) / np.diff(betas)
    assert np.all(np.array(stays) > 1) and 2 * 0.95**2 - 0.3 < growth.mean() < 2.3
    for beta in (60.0, 1000.0):
        end = cjx.iterate(SoftmaxTwin(HardmaxLayer(1.0), beta), jnp.asarray([[1.0], [-1.0], [0.5]]), 8).x1
        assert abs(float(end[2, 0]) - 1) < 0.02 and abs(float(end[0, 0]) - 1) < 0.02


def gaps(x, form):
    """The difference between the best score of each token and its second best."""
    scores = np.sort(np.asarray((x if form is None else x @ form.T) @ x.T), axis=1)
    return scores[:, -1] - scores[:, -2]
