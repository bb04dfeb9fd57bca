"""Everything that is proved of a cloud, for any A, is true: the dynamics in exact fractions is the judge."""

from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import nnls

import clusterjax as cjx
from clusterjax.experiments.figures.hardmax_open_problems import (
    KINDS,
    draw_form,
    proved_leaders,
)
from clusterjax.hardmax import HardmaxLayer, certificate, examine
from clusterjax.hardmax._certificate import in_cone, in_hull, inertia, is_interior, rank_of, rational
from tests.helpers import as_a_user
from tests.reference import hardmax as reference


LAYER, FIRST_AXIS = HardmaxLayer(1.0), HardmaxLayer(1.0, jnp.diag(jnp.array([1.0, 0.0])))
SQUARE = [[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]
CLOUDS = ("normal", "lattice", "repeats", "line", "antipodes", "with zero", "outlier", "one side")


def cloud(rng, kind, n, d=2):
    """Integer coordinates, generic and degenerate."""
    z = np.round(8 * rng.normal(size=(n, d)))
    match kind:
        case "lattice":
            z = rng.integers(-2, 3, (n, d)).astype(float)
        case "repeats":
            z[-1] = z[0]
        case "line":
            z = np.outer(rng.integers(-3, 4, n), rng.integers(-2, 3, d)).astype(float)
        case "antipodes":
            z[n // 2 : 2 * (n // 2)] = -z[: n // 2]
        case "with zero":
            z[0] = 0
        case "outlier":
            z[0] *= 1000
        case "one side":
            z[:, 0] = np.abs(z[:, 0]) + 1
    return z


def judge(z0, form, alpha, found, further=12):
    """Asserts that every verdict on this cloud is true."""
    exact, matrix = reference.exact(z0), reference.exact(form)
    path = reference.layers(exact, alpha, found.layers + further, matrix)
    first = reference.first_alone(exact, alpha, found.layers + further, matrix)
    leaders, vertices, tokens, boundary, projections = (clause.verdict for clause in found.clauses)
    assert leaders != "held" or max(first) >= 0
    if tokens == "open":
        assert {vertices, boundary, projections} == {"open"} and leaders in ("held", "open")
        return
    assert found.limits is not None and tokens == "held" and first == found.first.tolist()
    assert leaders == ("held" if max(first) >= 0 else "failed")
    # Tokens approach their limits by exactly 1 / (1 + alpha) in each layer, so that two layers give the limits.
    kept = 1 / (1 + Fraction(alpha))
    last, before = path[-1], path[-2]
    limits = [tuple((b - kept * a) / (1 - kept) for a, b in zip(*pair, strict=True)) for pair in
              zip(before, last, strict=True)]  # fmt: skip
    np.testing.assert_allclose(found.limits, reference.floats(limits), rtol=1e-15, atol=0)
    for k in range(found.layers, len(path)):
        for now, end, final in zip(path[k], last, limits, strict=True):
            assert all(final[a] - end[a] == kept ** (len(path) - 1 - k) * (final[a] - now[a]) for a in range(2))
    led = {limits[i] for i, k in enumerate(first) if k >= 0}
    outer = reference.corners(limits)
    assert led <= outer and len(led) == sum(k >= 0 for k in first), "a leader stays at a vertex of its own"
    assert vertices == ("held" if outer <= led else "failed") and found.clauses[1].residual == len(outer - led)
    assert boundary == ("failed" if any(reference.inside(s, limits) for s in limits) else "held")
    image = lambda s: reference.image(matrix, s)
    gaps = [max(reference.inner(image(s), v) for v in limits) - reference.inner(image(s), s) for s in limits]
    assert projections == "held" and max(gaps) == 0


def check_many(count, seed):
    """Judges `count` clouds of each kind, for any A, and returns the verdicts that occur."""
    verdicts = set()
    for number in range(count):
        for k, kind in enumerate(KINDS):
            rng = np.random.default_rng([seed, number, k])
            z0 = cloud(rng, CLOUDS[number % len(CLOUDS)], int(rng.integers(1, 6)))
            form, alpha = draw_form(kind, rng, 2, unit=2), float(rng.choice([0.5, 1.0, 3.0]))
            found = examine(jnp.asarray(z0), HardmaxLayer(alpha, jnp.asarray(form)), 25)
            judge(z0, form, alpha, found)
            definite = kind in ("identity", "positive definite")
            allowed = bool(z0.any(axis=1).all()) and len(np.unique(z0, axis=0)) == len(z0)
            assert found.applies == (definite and allowed)
            assert not found.applies or all(clause.verdict != "failed" for clause in found.clauses)
            verdicts |= {(c, clause.verdict) for c, clause in enumerate(found.clauses)}
    return verdicts


def test_nothing_false_is_certified():
    verdicts = check_many(8, 1)
    assert {(0, "held"), (0, "failed"), (1, "held"), (1, "failed"), (2, "open")} <= verdicts


@pytest.mark.exhaustive
def test_nothing_false_is_certified_of_thousands():
    check_many(400, 2)


def test_theorem_of_the_certificate_is_found_again():
    z0 = jnp.asarray([*SQUARE, [0.5, 0.25], [0.5, 0.0]])
    found, certified = examine(z0, LAYER), certificate(z0, LAYER)
    assert found.applies and certified.held and [one.verdict for one in found.clauses] == ["held"] * 5
    assert found.limits is not None and found.limits.dtype == np.float64
    np.testing.assert_allclose(certified.limit.points[certified.limit.goes_to], found.limits, atol=1e-6)
    assert found.first.tolist() == [0, 0, 0, 0, -1, -1]


def test_tokens_that_move_to_their_own_mean_are_frozen_too():
    """Two tokens tie and attend to both, along the line where their scores are equal; another token follows them."""
    found = examine(jnp.asarray([[1.0, 0.0], [1.0, 1.0], [-1.0, 0.0], [0.5, 4.0]]), FIRST_AXIS)
    assert found.limits is not None and found.layers == 0 and found.first.tolist() == [-1, -1, 0, -1]
    np.testing.assert_array_equal(found.limits, [[1.0, 0.5], [1.0, 0.5], [-1.0, 0.0], [1.0, 0.5]])
    assert [clause.verdict for clause in found.clauses] == ["held", "failed", "held", "held", "held"]
    # Two tokens that exchange their means are not frozen.
    exchanged = examine(jnp.asarray([[1.0, 0.0], [-1.0, 0.0]]), HardmaxLayer(3.0, -jnp.diag(jnp.array([1.0, 0.0]))))
    assert exchanged.limits is None


def test_choices_that_change_on_the_way_are_not_frozen():
    """Token 3 moves towards the middle of two tokens, and on the way turns to a third one."""
    z0 = [[1.0, 1.0, 0.0], [-1.0, 1.0, 0.0], [0.0, 1.875, 0.0], [0.0, 0.0, 1.0]]
    form = [[1.0, 0.0, 0.0], [0.0, 1.0, -1.0], [0.0, 0.0, -3.0]]
    found = examine(jnp.asarray(z0), HardmaxLayer(1.0, jnp.asarray(form)))
    assert found.limits is not None and found.limits[3].tolist() == [0.0, 1.875, 0.0]


def test_a_choice_that_changes_on_the_way_alone_is_not_frozen():
    """The scores at both ends of the way would allow freezing, but the scores in between do not."""
    z0, form = np.array([[0.0, 1.0], [2.0, 0.0], [-2.0, -2.0]]), np.array([[2.0, 1.0], [2.0, -2.0]])
    judge(z0, form, 1 / 3, examine(jnp.asarray(z0), HardmaxLayer(1 / 3, jnp.asarray(form))))


def test_zero_token_stays_in_the_interior():
    """The theorem excludes a zero token: it attends to all tokens, and stays at their mean."""
    found = examine(jnp.asarray([*SQUARE, [0.0, 0.0]]), LAYER)
    assert found.violates == ("token 4 is zero",)
    assert [clause.verdict for clause in found.clauses] == ["held", "held", "held", "failed", "held"]
    assert found.clauses[3].residual == 1.0
    lines = repr(found).splitlines()
    assert lines[0] == "Examination(5 tokens, 0 layers): outside the theorem: token 4 is zero"
    assert lines[4] == "  failed  S lies on the boundary of K. (1 point in the interior)"


def test_negative_form_takes_all_to_one_point():
    """H9, 3 and -1 with A = -1 and alpha = 1/3: neither token leads, then one does, and both end at one point."""
    found = examine(jnp.asarray([[3.0], [-1.0]]), HardmaxLayer(1 / 3, -jnp.eye(1)))
    assert found.violates == ("A is negative definite, of signature (0, 1)",) and not found.applies
    assert found.clauses[0].verdict == "held" and max(found.first) > 0
    assert found.limits is not None and np.ptp(found.limits) == 0
    exchanged = examine(jnp.asarray([[3.0], [-3.0]]), HardmaxLayer(3.0, -jnp.eye(1)))
    assert {clause.verdict for clause in exchanged.clauses} == {"open"} and exchanged.limits is None
    assert np.isnan(exchanged.clauses[2].residual) and exchanged.layers == 60


@pytest.mark.parametrize(
    ("form", "words"),
    (
        ([[1.0, 2.0], [0.0, 1.0]], ("A is not symmetric",)),
        ([[0.0, 1.0], [1.0, 0.0]], ("A is indefinite, of signature (1, 1)",)),
        ([[0.0, 0.0], [0.0, -2.0]], ("A is negative semidefinite, of signature (0, 1)", "A is of rank 1")),
        ([[0.0, 0.0], [1.0, 0.0]], ("A is not symmetric", "A is of rank 1")),
        ([[0.0, 0.0], [0.0, 0.0]], ("A is of rank 0",)),
        ([[2.0, 1.0], [1.0, 2.0]], ()),
    ),
)
def test_hypotheses_that_fail_are_named(form, words):
    found = examine(jnp.asarray([[1.0, 2.0], [-3.0, 1.0]]), HardmaxLayer(1.0, jnp.asarray(form)))
    assert found.violates == words
    same = examine(jnp.asarray([[1.0, 2.0], [-3.0, 1.0], [1.0, 2.0]]), HardmaxLayer(1.0, jnp.asarray(form)))
    assert same.violates == (*words, "tokens 0 and 2 are equal")


def test_algebra_is_that_of_floating_point():
    """Signatures, ranks and hulls agree with NumPy and with loops in the plane."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        m = rng.integers(-1, 2, (4, 4)).astype(float)
        values = np.linalg.eigvalsh(m + m.T)
        assert inertia(rational(m + m.T)) == (int(np.sum(values > 1e-9)), int(np.sum(values < -1e-9)))
        assert rank_of(rational(m)) == np.linalg.matrix_rank(m)
        points = rational(rng.integers(-2, 3, (6, 2)))
        cloud = {tuple(point) for point in points}
        outer = reference.corners(list(cloud))
        for point in cloud:
            others = np.array(sorted(cloud - {point}), dtype=object)
            assert in_hull(np.array(point), others) == (point not in outer)
            assert is_interior(np.array(point), points) == reference.inside(point, list(cloud))
    tetrahedron = rational([[0, 0, 0], [4, 0, 0], [0, 4, 0], [0, 0, 4]])
    inner, face, outer = rational([[1, 1, 1], [2, 1, 1], [2, 2, 1]])
    assert is_interior(inner, tetrahedron) and not is_interior(face, tetrahedron)
    assert in_hull(face, tetrahedron) and not in_hull(outer, tetrahedron)


SCHEDULE = cjx.PiecewiseConstant(np.array([0.0]), np.array([1.0]))
BAD = {
    "too many": (lambda: examine(jnp.ones((65, 2)), LAYER), "^z0 must hold 64 tokens at most, but it holds 65; take"),
    "schedule": (lambda: examine(jnp.ones((2, 2)), HardmaxLayer(SCHEDULE)), "^alpha must be one value, but it is a P"),
    "mask": (lambda: examine(jnp.ones((2, 2)), HardmaxLayer(1.0, mask=cjx.CausalMask())), "^layer must have the full "
             "mask and no masses, but it has CausalMask; leave"),
    "masses": (lambda: examine(jnp.ones((2, 2)), HardmaxLayer(1.0, masses=jnp.ones(2))), "^layer must .* masses of"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, words = BAD[name]
    with as_a_user(), pytest.raises(ValueError, match=words):
        call()


def test_leaders_of_rank_one_are_those_of_fractions():
    """The closed answer is right for all clouds of up to three tokens at -1, 0, 1, on two parallel lines."""
    grid = [(a, b) for a in (-1, 0, 1) for b in (0, 1)]
    form = np.diag([1.0, 0.0])
    for i in range(6**3):
        z0 = np.array([grid[i % 6], grid[i // 6 % 6], grid[i // 36]], float)
        first = reference.first_alone(reference.exact(z0), 1, 4, reference.exact(form))
        assert [t for t, k in enumerate(first) if k >= 0] == proved_leaders(z0[:, 0])
        assert max(first) <= 0
    assert proved_leaders(np.array([0.0])) == [0]


def test_cones_of_no_and_of_dependent_generators():
    holds = lambda target, rays: in_cone(rational([target])[0], rational(rays))
    assert not holds([1, 2], np.zeros((0, 2))) and holds([0, 0], np.zeros((0, 2)))
    rays = [[1, 0, 0], [2, 0, 0], [1, 1, 0], [1, 3, 0]]
    assert holds([5, 2, 0], rays) and not holds([5, -1, 0], rays)
    assert not holds([5, 2, 1], rays) and not holds([-1, 0, 0], rays)
    for seed in range(200):
        rng = np.random.default_rng(seed)
        rays, target = rng.integers(-2, 3, (rng.integers(1, 8), 3)), rng.integers(-2, 3, 3)
        assert holds(target, rays) == (nnls(rays.T.astype(float), target.astype(float))[1] < 1e-9)
