"""The limits of tokens in flat and in high dimensions, and certificates in which a clause fails."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial import ConvexHull

import clusterjax as cjx
from clusterjax._observables.clusters import nearest_in_hull
from clusterjax.hardmax import HardmaxLayer, certificate, limit_set
from clusterjax.hardmax._certificate import make_certificate
from clusterjax.hardmax._limit import facets, outside, run_to_fixed_point, settled_tolerance
from tests.hardmax.cases import N, padded
from tests.helpers import as_a_user, assert_same, normal


LAYER = HardmaxLayer(1.0)


# --- hulls


@pytest.mark.parametrize("d", (1, 2, 3, 5))
def test_vertices_are_those_of_quickhull(d):
    points = np.asarray(normal(d, 30, d))
    far = outside(points)
    expected = [points.argmin(), points.argmax()] if d == 1 else ConvexHull(points).vertices
    assert set(np.flatnonzero(far > 1e-10)) == set(expected)
    edge = np.concatenate([points, points[expected[:2]].mean(axis=0, keepdims=True)])
    assert outside(edge)[-1] < 1e-12


def test_nearest_point_satisfies_its_inequalities():
    """p is nearest to the origin if and only if <p, q - p> >= 0 for every point q; at the origin it is zero."""
    for seed in range(20):
        points = np.asarray(normal(40 + seed, 12, 3)) + 2.0 * (seed % 2)
        nearest = nearest_in_hull(points)
        assert ((points - nearest) @ nearest).min() > -1e-12
    assert np.linalg.norm(nearest_in_hull(np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]))) < 1e-15
    np.testing.assert_allclose(nearest_in_hull(np.array([[3.0, 4.0]])), [3.0, 4.0], rtol=1e-14)


def test_facets_of_a_cube_a_square_a_segment_and_a_point():
    cube = np.array(np.meshgrid([0.0, 1.0], [0.0, 1.0], [0.0, 1.0])).reshape(3, 8).T
    assert facets(cube, 1e-6).shape == (12, 3)
    square = np.pad([[0.0, 0.0], [1.0, 1.0], [1.0, 0.0], [0.0, 1.0]], ((0, 0), (0, 3)))
    edges = facets(square, 1e-6)
    assert edges[:, 1].tolist() == np.roll(edges[:, 0], -1).tolist()
    np.testing.assert_allclose(np.linalg.norm(square[edges[:, 0]] - square[edges[:, 1]], axis=1), 1.0)
    assert sorted(facets(square[:2], 1e-6).ravel()) == [0, 1]
    assert len(facets(square[:1], 1e-6)) == 0


# --- the limit set


def test_line_has_two_ends():
    """In one dimension a cloud has two limits, and so has the same cloud along a line in space."""
    z0 = jnp.asarray([[2.0], [-1.0], [0.5], [-0.25], [1.0], [-0.5], [0.25]])
    limit = limit_set(z0, LAYER)
    assert limit.points.tolist() == [[2.0], [-1.0]] and limit.goes_to.tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert limit.dimension == 1 and sorted(limit.facets.ravel()) == [0, 1]
    laid = limit_set(z0 * jnp.asarray([[1.0, -2.0]]), LAYER)
    assert laid.dimension == 1 and laid.goes_to.tolist() == limit.goes_to.tolist()
    assert repr(laid) == (
        f"LimitSet(7 tokens, 2 leaders, polytope of dimension 1 with 2 vertices, 0 other points; settled after "
        f"{laid.layers} layers)"
    )


def test_plane_in_space_is_the_plane():
    z0, turn = normal(1, N, 2), np.linalg.qr(normal(2, 5, 5))[0][:2]
    flat, laid = limit_set(z0, LAYER), limit_set(z0 @ turn, LAYER)
    assert laid.dimension == flat.dimension == 2
    assert laid.goes_to.tolist() == flat.goes_to.tolist() and laid.is_vertex.tolist() == flat.is_vertex.tolist()
    np.testing.assert_allclose(laid.points, flat.points @ turn, rtol=0, atol=1e-12)
    assert {frozenset(f) for f in laid.facets.tolist()} == {frozenset(f) for f in flat.facets.tolist()}


def test_half_space_cloud_has_one_point():
    """Tokens on one ray all converge to the farthest token: K is a point."""
    proof = certificate(padded([[1.0, 1.0], [3.0, 3.0], [2.0, 2.0]]), LAYER)
    limit = proof.limit
    assert limit.points.tolist() == [[3.0, 3.0]] and limit.dimension == 0 and len(limit.facets) == 0
    assert proof.held and limit.outside.tolist() == [np.inf]


def test_duplicates_make_a_vertex_without_a_leader():
    limit = limit_set(padded([[2.0, 0.0], [2.0, 0.0], [-1.0, 0.0], [0.5, 0.0]]), LAYER)
    assert limit.leaders.indices.tolist() == [2] and limit.goes_to.tolist() == [1, 1, 0, 1, 1, 1, 1]
    np.testing.assert_allclose(limit.vertices, [[-1.0, 0.0], [2.0, 0.0]], rtol=0, atol=1e-13)


def test_padding_is_nowhere():
    z0 = jnp.asarray([[1.0, 1.0], [-1.0, 1.0], [0.0, 0.5], [0.0, 0.25], [0.5, 0.5], [50.0, 50.0], [0.0, 0.0]])
    proof = certificate(z0, HardmaxLayer(1, masses=[1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0]))
    assert proof.limit.goes_to.tolist() == [0, 1, 2, 2, 0, -1, -1] and proof.limit.distance[5:].tolist() == [0.0, 0.0]
    assert proof.held


@pytest.mark.parametrize("alpha", (0.5, 20.0))
def test_tokens_that_merge_with_a_leader_do_not_draw_others_to_it(alpha):
    """Two tokens converge to one corner of a side, none to the other; the token between the corners stays between."""
    z0 = padded([[1.0, 1.0], [1.0, -1.0], [-1.0, 0.5], [0.5, 0.0], [0.5, 0.25], [0.125, 0.5]])
    proof = certificate(z0, HardmaxLayer(alpha))
    assert proof.held and proof.limit.goes_to.tolist() == [0, 1, 2, 3, 0, 0, 0]
    np.testing.assert_allclose(proof.limit.points[3], [1.0, 0.0], rtol=0, atol=1e-12)
    slow = run_to_fixed_point(z0, HardmaxLayer(alpha), jnp.asarray(1000), jnp.asarray(-1.0))
    assert int(slow.layers) == 1000
    np.testing.assert_allclose(slow.x[3], [1.0, 0.0], rtol=0, atol=1e-12)
    assert_same(slow.x[:3], z0[:3])
    assert_same(cjx.iterate(HardmaxLayer(alpha), z0, 200, save_every=200).x1[:3], z0[:3])


def test_tokens_are_where_the_answer_says():
    """Distances are from the end of the run to the named points; each leader goes to itself."""
    z0, layer = normal(3, 60, 3), HardmaxLayer(0.4)
    limit = limit_set(z0, layer)
    end = np.asarray(run_to_fixed_point(z0, layer, jnp.asarray(limit.layers), jnp.asarray(-1.0)).x)
    np.testing.assert_allclose(np.linalg.norm(end - limit.points[limit.goes_to], axis=1), limit.distance, atol=1e-12)
    assert limit.settled and limit.distance.max() < 1e-12
    led = limit.leaders.indices
    assert limit.goes_to[led].tolist() == list(range(len(led)))
    assert_same(limit.points[: len(led)], np.asarray(limit.leaders.points)[led])


def test_single_precision_settles_too():
    z0 = normal(4, N, 2).astype(jnp.float32)
    proof = certificate(z0, LAYER)
    assert proof.held and proof.limit.settled and proof.limit.points.dtype == np.float64
    assert proof.limit.goes_to.tolist() == limit_set(z0.astype(float), LAYER).goes_to.tolist()


@pytest.mark.parametrize("name", ("low rank", "indefinite", "asymmetric"))
def test_any_form_has_an_answer(name):
    """No theorem applies to these forms: tokens settle, or the result says that they do not."""
    form = {"low rank": [[1.0, 2.0], [2.0, 4.0]], "indefinite": [[1.0, 0.0], [0.0, -1.0]],
            "asymmetric": [[1.0, -2.0], [2.0, 1.0]]}[name]  # fmt: skip
    limit = limit_set(normal(5, N, 2), HardmaxLayer(1.0, form), 500)
    assert len(limit.points) >= 1 and limit.goes_to.min() >= 0
    assert limit.settled == (limit.layers < 500)
    if limit.settled:
        assert limit.distance.max() < 1e-10


# --- certificates


def verdicts(end, z0):
    return [clause.held for clause in make_certificate(end, np.asarray(z0), np.ones(len(z0), bool), np.eye(2)).clauses]


def test_margin_of_the_first_clause_is_that_of_cauchy_and_schwarz():
    """For the longest token, (2, 0), against (1.5, 1), <z, z - z'> / |z|^2 = 1/4."""
    proof = certificate(padded([[2.0, 0.0], [1.5, 1.0], [-1.0, 0.0]]), LAYER)
    np.testing.assert_allclose(proof.clauses[0].margin, 0.25, rtol=1e-14)


def test_too_few_layers_are_not_called_convergence():
    proof = certificate(padded([[2.0, 0.0], [0.75, 0.0], [-1.0, 0.0]]), LAYER, 4)
    assert [clause.held for clause in proof.clauses] == [True, True, False, False, False] and not proof.held
    assert proof.clauses[2].margin <= 0 and "not settled" in proof.clauses[2].measured
    assert "FAILED  Every token converges to a point of S." in repr(proof)


@pytest.mark.parametrize("depth", (26, 40))
def test_tokens_that_still_move_have_not_arrived_though_they_are_near(depth):
    """The inner token halves its distance to a corner in each layer: it is near enough after 24, at rest after 45."""
    z0 = padded([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [0.5, 0.25]])
    proof = certificate(z0, LAYER, depth)
    assert [clause.held for clause in proof.clauses] == [True, True, False, True, True]
    assert float(proof.limit.distance.max()) < 1e-7 and "not settled" in proof.clauses[2].measured
    assert certificate(z0, LAYER).held


def test_certificate_sees_what_is_wrong():
    """Runs have one fault each: no leader, a leader that moved, one too many or too few, a token off its point."""
    z0 = padded([[1.0, 1.0], [-1.0, 1.0], [0.0, 0.5], [0.5, -2.0]])
    end = run_to_fixed_point(z0, LAYER, jnp.asarray(200), settled_tolerance(z0.dtype))
    assert verdicts(end, z0) == [True] * 5
    nobody = eqx.tree_at(lambda e: e.leaders.first, end, jnp.full(N, -1))
    assert verdicts(nobody, z0)[:2] == [False, False]
    moved = eqx.tree_at(lambda e: e.x, end, end.x.at[0].add(1e-4))
    assert verdicts(moved, z0)[1:3] == [False, False]
    crowned = eqx.tree_at(lambda e: e.leaders.first, end, end.leaders.first.at[2].set(0))
    assert not verdicts(crowned, z0)[1]
    overlooked = eqx.tree_at(lambda e: e.leaders.first, end, end.leaders.first.at[0].set(-1))
    assert not verdicts(overlooked, z0)[1]
    astray = eqx.tree_at(lambda e: e.x, end, end.x.at[2].set(jnp.asarray([0.25, 1.0])))
    assert verdicts(astray, z0) == [True, True, False, False, False]


def test_masses_do_not_change_the_theorem():
    z0 = normal(6, N, 2)
    proof = certificate(z0, HardmaxLayer(0.8, masses=np.random.default_rng(7).uniform(0.1, 3, N)))
    assert proof.held and proof.limit.goes_to.tolist() == limit_set(z0, HardmaxLayer(0.8)).goes_to.tolist()


Z = normal(8, 5, 2)
SCHEDULE = cjx.PiecewiseConstant(np.array([0.0]), np.eye(2)[None])
REFUSED = {
    "indefinite": (lambda: certificate(Z, HardmaxLayer(1.0, jnp.diag(jnp.asarray([1.0, -2.0])))),
                   "^A must be positive definite by more than rounding can make, but its least eigenvalue is -2;"),
    "asymmetric": (lambda: certificate(Z, HardmaxLayer(1.0, jnp.asarray([[1.0, 0.5], [0.0, 1.0]]))),
                   r"^A must be symmetric, but A - A\^T has an entry of 0.5; the theorem asks"),
    "schedule": (lambda: certificate(Z, HardmaxLayer(1.0, SCHEDULE)), "^A must be one matrix, but it is a Piece"),
    "ties": (
        lambda: certificate(Z, HardmaxLayer(1.0, tie_tolerance=0.1)),
        "^tie_tolerance must be at most 1e-07 for a certificate in float64, but it is 0.1: .*; leave it out, or use",
    ),
    "mask": (lambda: certificate(Z, HardmaxLayer(1.0, mask=cjx.CausalMask())), "^mask must be full, but it is a C.*;"),
    "zero token": (lambda: certificate(Z.at[3].set(0.0), LAYER), "^z0 must hold no zero token, but row 3 is zero"),
    "equal tokens": (lambda: certificate(Z.at[3].set(Z[1]), LAYER), "^z0 must hold distinct tokens, but rows 1 and 3"),
    "half precision": (lambda: limit_set(Z.astype(jnp.bfloat16), LAYER), "^z0 must be of float32 or .* is bfloat16, "),
}  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused(call, message):
    with as_a_user(), pytest.raises(ValueError, match=message):
        call()
