"""The shapes of R^d against plain loops, on generic and degenerate clouds; no shape is certified wrongly."""

import diffrax as dfx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from tests import clouds
from tests.helpers import normal, rotation
from tests.limits.cases import run_of
from tests.reference import fields as fields_reference, limits as reference


TOLERANCE = 1e-3
FORM = np.array([[1.0, 0.3, 0.1], [0.3, 0.6, 0.0], [0.1, 0.0, 0.4]])
BASIS = np.array([[1.0, 0.4, -0.2], [0.1, 1.0, 0.3], [-0.3, 0.2, 1.0]])


def field_of(value, form=None, **options):
    value = None if value is None else jnp.asarray(value)
    return cjx.RescaledField(cjx.SoftmaxAttention(1.0, query_key=form, **options), value)


# V by the number of dimensions of F, in a basis that is not orthonormal.
VALUES = {r: BASIS @ np.diag([1.0] * r + [0.4, -0.7, 0.2][r:]) @ np.linalg.inv(BASIS) for r in (1, 2, 3)}
SQUARE = np.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])
KINDS = {1: "hyperplanes", 2: "polytope x subspace", 3: "polytope"}


def parts_of(shape):
    """The coordinates of F along G in the frame of the shape, from the known basis, and the form in this frame."""
    frame, r = shape.frame, shape.frame.shape[1]
    inside = BASIS[:, :r] @ np.linalg.inv(BASIS)[:r]
    return frame.T @ inside, frame.T @ FORM @ frame


@pytest.mark.parametrize("name", clouds.CLOUDS)
def test_residuals_are_those_of_the_double_loop(name):
    """A cloud is certified if and only if the loop finds every residual within the tolerance."""
    for r, value in VALUES.items():
        field = field_of(value, jnp.asarray(FORM))
        for seed in range(2):
            z = clouds.cloud(name, 9, 3, seed=seed)
            shape = cjx.limit_shape(jnp.asarray(z), field, tolerance=TOLERANCE)
            assert shape.kind == KINDS[r] and shape.applies and np.isinf(shape.t)
            expected = reference.residuals(z, *parts_of(shape))
            np.testing.assert_allclose(shape.residuals, expected, rtol=0, atol=1e-9)
            if abs(expected.max() - TOLERANCE) > 1e-9:
                assert shape.certified == (expected.max() <= TOLERANCE)


@pytest.mark.parametrize("seeds", (range(20), pytest.param(range(20, 1000), marks=pytest.mark.exhaustive)))
@pytest.mark.parametrize("name", clouds.CLOUDS)
def test_what_is_not_in_the_set_is_never_certified(name, seeds):
    """In the plane, V = I, none of thousands of clouds is certified wrongly, at tolerances from 1e-8 to a tenth."""
    field = field_of(None)
    found = []
    for seed in seeds:
        z = clouds.cloud(name, 6, 2, seed=seed)
        tolerance = 10.0 ** -(1 + seed % 8)
        shape = cjx.limit_shape(jnp.asarray(z), field, tolerance=tolerance)
        exact = reference.residuals(z, np.eye(2), np.eye(2)).max()
        assert not (shape.certified and exact > tolerance), (name, seed)
        assert shape.certified or exact > tolerance - 1e-12
        found.append(shape.certified)
    if name in ("generic", "nearly heaps"):
        assert not all(found)


@pytest.mark.parametrize("corners", (3, 4, 5, 8))
def test_points_of_the_set_are_certified_and_points_beside_are_not(corners):
    """Corners, projections of the origin onto the sides, and the origin are certified, for a form A^2 too; they are not
    if one of them is moved inwards or along a side by three tolerances."""
    angles = 2 * np.pi * (np.arange(corners) + 0.3) / corners
    ring = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    root = np.array([[1.2, 0.3], [0.3, 0.7]])
    middles = (ring + np.roll(ring, -1, axis=0)) / 2
    at_root = np.concatenate([ring, ring[:2], middles[:2], np.zeros((1, 2))])
    # In coordinates A z the form is the identity.
    z, form = at_root @ np.linalg.inv(root).T, root @ root
    shape = cjx.limit_shape(jnp.asarray(z), field_of(None, jnp.asarray(form)))
    assert shape.certified and len(shape.points) == corners
    assert shape.labels.tolist()[corners:] == [*shape.labels[:2].tolist(), -1, -1, -1]
    scale = np.linalg.norm(z, axis=1).max()
    for i in range(corners, len(z)):
        # A copy of a corner, a middle or the origin is moved into the polytope, and along the side.
        for step in (-0.7 * z[i] + 0.1, np.array([-z[i][1], z[i][0]]) * 0.3 + 0.01):
            moved = z.copy()
            moved[i] = 0.5 * moved[i] + 0.05 * step / np.linalg.norm(step)
            again = cjx.limit_shape(jnp.asarray(moved), field_of(None, jnp.asarray(form)))
            exact = reference.residuals(moved, np.eye(2), form).max()
            assert exact > 3 * TOLERANCE * min(scale, 1) and not again.certified


def test_levels_are_the_largest_the_smallest_and_zero():
    """A token between levels is on none; if all coordinates are positive, the smallest is no level."""
    field = field_of(np.diag([1.0, 0.5]))
    z = np.array([[2.0, 7.0], [2.0, -1.0], [0.0, 3.0], [-1.0, 0.0], [-1.0, 9.0]])
    shape = cjx.limit_shape(jnp.asarray(z), field)
    # phi_1 is known up to its sign.
    levels = shape.points.ravel() * np.sign(shape.frame[0, 0])
    assert shape.certified and sorted(levels) == pytest.approx([-1, 0, 2]) and (shape.labels >= 0).all()
    assert shape.labels[0] == shape.labels[1] != shape.labels[2] != shape.labels[3] == shape.labels[4]
    assert not cjx.limit_shape(jnp.asarray(z).at[2, 0].set(0.5), field).certified
    above = cjx.limit_shape(jnp.asarray([[2.0, 0.0], [1.0, 0.0]]), field)
    assert not above.certified and above.labels.tolist().count(-1) == 1
    nothing = cjx.limit_shape(jnp.asarray([[0.0, 1.0], [0.0, 2.0]]), field)
    assert nothing.certified and nothing.points.tolist() == [[0.0]]


@pytest.mark.exhaustive_cases("5")
@pytest.mark.parametrize("many", [5, pytest.param(16, marks=pytest.mark.exhaustive)])
def test_runs_come_to_their_shapes_and_what_is_certified_stays(many):
    """Many runs are certified, and tokens that are certified at some time are nearly at the same place at the end."""
    ts, starts = jnp.asarray([0.0, 2.0, 5.0, 9.0, 15.0]), normal(5, many, 6, 3)
    # Steps are fixed, since an adaptive solver would take endless steps beside the edge between two cells.
    steps = dict(solver=dfx.Heun(), stepsize_controller=dfx.ConstantStepSize(), dt0=0.05)
    run = jax.jit(jax.vmap(lambda x, value: cjx.simulate(field_of(value), x, ts, **steps).xs, (0, None)))
    for value in (np.eye(3), np.diag([1.0, 1.0, 0.3]), np.diag([1.0, 0.3, -0.5])):
        field, xs = field_of(value), np.asarray(run(starts, jnp.asarray(value)))
        certified = 0
        for z in xs:
            for k, t in enumerate(ts.tolist()):
                shape = cjx.limit_shape(jnp.asarray(z[k]), field, t=t)
                certified += shape.certified
                if k == 0:
                    assert not shape.certified
                elif shape.certified:
                    moved = np.linalg.norm((z[-1] - z[k]) @ shape.frame, axis=1).max()
                    assert moved <= 10 * TOLERANCE * np.linalg.norm(shape.coordinates, axis=1).max()
        assert certified > many


@pytest.mark.parametrize("name", clouds.CLOUDS)
def test_rows_of_attention_are_those_of_the_double_loop(name):
    """In one dimension residuals are distances of rows from Boolean ones; they must be small at all but one place."""
    field = field_of(None)
    for seed, t in ((0, 0.0), (1, 0.7), (2, 2.0), (3, 4.0)):
        z = clouds.cloud(name, 7, 1, seed=seed)
        shape = cjx.limit_shape(jnp.asarray(z), field, t=t)
        expected, weights = reference.boolean_rows(z[:, 0].tolist(), t)
        np.testing.assert_allclose(shape.residuals, expected, rtol=0, atol=1e-9)
        rows = shape.clauses[0]
        worst = int(np.argmax(shape.residuals))
        others = expected[np.abs(z[:, 0] - z[worst, 0]) > 2e-15 * np.abs(z).max()]
        assert rows.residual == pytest.approx(others.max(initial=0.0), abs=1e-9)
        values = np.linalg.svd(weights, compute_uv=False)
        assert rows.measured.endswith(f"the rank of attention is {int((values > TOLERANCE * values[0]).sum())}")
        velocity = fields_reference.rescaled(t, z, lambda x, w=weights: w, np.eye(1))
        rest = np.abs(velocity).max() / max(np.abs(z).max(), 1e-300)
        assert shape.certified == (max(rows.residual, rest) + 1e-12 <= TOLERANCE)


def test_the_exceptional_row_is_excepted_once():
    """The middle row of (-u, 0, u) stays (1/3, 1/3, 1/3), at hardmax too; a second row is not excepted."""
    shape = cjx.limit_shape(jnp.asarray([[-1.0], [0.0], [1.0], [0.0]]), field_of(None))
    assert shape.certified and shape.kind == "Boolean" and "token 1 is excepted" in shape.summary()
    assert "the rank of attention is 3" in shape.summary()
    two = cjx.limit_shape(jnp.asarray([[-1.0], [0.0], [1.0], [0.1]]), field_of(None), t=0.0)
    assert not two.certified


def test_a_run_is_judged_by_its_hulls_too():
    """The saved hulls are nested; a run whose hull grows is not certified, though it ends well."""
    field, ts, square = field_of(None), jnp.asarray([0.0, 3.0, 12.0]), jnp.asarray(SQUARE)
    xs = jnp.stack(
        [jnp.concatenate([square, token]) for token in jnp.asarray([[[0.5, 0.4]], [[0.9, 0.8]], [[1.0, 1.0]]])]
    )
    shape = cjx.limit_shape(run_of(ts, xs), field)
    assert shape.certified and shape.t == 12.0 and shape.clauses[0].says.startswith("The hull")
    assert shape.history.shape == (3,) and shape.history[0] > 0.1 > shape.history[-1]
    np.testing.assert_allclose(shape.history[-1], shape.residuals.max())
    again = cjx.limit_shape(run_of(ts, xs.at[0].multiply(0.5)), field)
    assert not again.certified and not again.clauses[0].held and all(clause.held for clause in again.clauses[1:])


def test_unscaled_tokens_are_judged_by_their_rescaled_ones():
    plain = cjx.AttentionField(cjx.SoftmaxAttention(1.0), 1.5 * jnp.eye(2), space=cjx.Euclidean())
    z = jnp.asarray(SQUARE)
    shape = cjx.limit_shape(z * jnp.exp(1.5 * 4.0), plain, t=4.0)
    assert shape.certified and shape.kind == "polytope"
    np.testing.assert_allclose(np.abs(shape.points), 1.0)
    with pytest.raises(ValueError, match=r"^t must be given with tokens that are not rescaled, but it is None; "):
        cjx.limit_shape(z, plain)


def test_tokens_without_mass_are_attended_to_by_nobody():
    # The last token would attend to the third one if this had a mass.
    z = jnp.asarray([[1.0, 0.0], [-1.0, 0.0], [0.0, 5.0], [1.0, 0.0], [0.5, 0.4]])
    masses = jnp.asarray([1.0, 1.0, 0.0, 1.0, 1.0])
    field = cjx.RescaledField(cjx.SoftmaxAttention(1.0), masses=masses)
    shape = cjx.limit_shape(z, field)
    expected = reference.residuals(np.asarray(z), np.eye(2), np.eye(2), present=(0, 1, 3, 4))
    np.testing.assert_allclose(shape.residuals, expected, atol=1e-12)
    assert not shape.applies and len(shape.points) == 3 and shape.present.tolist() == [True, True, False, True, True]


@pytest.mark.parametrize(
    ("field", "lacks"),
    (
        (field_of(np.array([[1.0, 1.0], [0.0, 1.0]])), "It is simple"),
        (field_of(np.array([[0.0, -1.0], [1.0, 0.0]])), "V's leading"),
        (field_of(-np.eye(2)), "V's leading"),
        (field_of(np.diag([1.0, -1.0])), "It is simple"),
        (field_of(np.diag([1.0, 0.5]), -np.eye(2)), "<Q phi_1"),
        (field_of(None, np.diag([1.0, 0.0])), "Q^T K is symmetric"),
        (field_of(None, np.array([[1.0, 0.2], [0.0, 1.0]])), "Q^T K is symmetric"),
        (field_of(None, mask=cjx.CausalMask()), "Every token attends"),
        (cjx.RescaledField(cjx.HardmaxAttention()), "Attention is a softmax"),
        (cjx.RescaledField(cjx.SoftmaxAttention(lambda t: 1.0 + t)), "beta, Q, K"),
        (cjx.RescaledField(cjx.SoftmaxAttention(0.0)), "Q^T K is symmetric"),
        (cjx.RescaledField(cjx.SoftmaxAttention(1.0), masses=jnp.asarray([1.0, 1.0, 2.0])), "All masses"),
    ),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_without_a_hypothesis_no_theorem_applies_and_that_is_said(field, lacks):
    z = jnp.asarray([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    shape = cjx.limit_shape(z, field)
    assert not shape.applies and not shape.theorem and "no theorem applies" in shape.summary()
    missing = [hypothesis.says for hypothesis in shape.hypotheses if not hypothesis.held]
    assert any(says.startswith(lacks) for says in missing), missing


@pytest.mark.parametrize("gap", [1e-13, 1e-12, 1e-10, 1e-8, 1e-6])
def test_nearly_equal_is_not_equal_and_certifies_nothing(gap):
    """Nothing is certified for V near the identity, Q^T K near a symmetric one, or Q^T K near a definite one."""
    z = jnp.asarray(SQUARE)
    eye, skew = np.eye(2), np.array([[0.0, 1.0], [-1.0, 0.0]])
    assert cjx.limit_shape(z, field_of(eye)).certified
    for seed in range(3):
        turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(2, 2)))[0]
        nearly = turn @ np.diag([1.0, 1.0 - gap]) @ turn.T
        shape = cjx.limit_shape(z, field_of(nearly))
        assert shape.kind != "polytope" or not (shape.certified or shape.applies)
        assert not cjx.limit_shape(z, field_of(None, turn + 3 * np.eye(2) + gap * skew)).certified
        assert not cjx.limit_shape(z, field_of(None, eye + gap * skew)).certified
        assert not cjx.limit_shape(z, field_of(None, turn @ np.diag([1.0, -gap]) @ turn.T)).certified
    # V = diag(1, 1 - 1e-12) is neither I nor a matrix with a simple leading eigenvalue.
    if gap <= 1e-10:
        assert cjx.limit_shape(z, field_of(np.diag([1.0, 1.0 - gap]))).kind == "none"


def test_without_its_hypotheses_a_shape_that_fits_is_not_certified():
    z = jnp.asarray(SQUARE)
    for field in (
        field_of(None, mask=cjx.CausalMask()),
        cjx.RescaledField(cjx.SoftmaxAttention(1.0), masses=jnp.arange(1.0, 5)),
    ):
        shape = cjx.limit_shape(z, field)
        assert shape.fits and shape.kind == "polytope" and not shape.certified and not shape.proof


def test_a_form_that_couples_the_two_parts_is_remarked():
    value = np.diag([1.0, 1.0, 0.2])
    z = normal(3, 5, 3)
    assert cjx.limit_shape(z, field_of(value)).remark == ""
    assert "couples F and G" in cjx.limit_shape(z, field_of(value, jnp.asarray(FORM))).remark


def test_shapes_turn_with_the_tokens():
    turn, z = rotation(2, 3), normal(7, 9, 3)
    for value in VALUES.values():
        one = cjx.limit_shape(z, field_of(value, jnp.asarray(FORM)))
        two = cjx.limit_shape(z @ turn.T, field_of(turn @ value @ turn.T, turn @ FORM @ turn.T))
        np.testing.assert_allclose(two.residuals, one.residuals, atol=1e-12)


@pytest.mark.parametrize("dtype", (jnp.float32, jnp.float64))
def test_rounding_counts_against_a_clause(dtype):
    """An exact shape is certified at a tolerance above its rounding, and not at one below."""
    z = jnp.asarray([[1.0, 0.0], [-0.5, 0.75], [-0.5, -0.75]], dtype)
    field = field_of(jnp.eye(2, dtype=dtype))
    assert cjx.limit_shape(z, field, tolerance=1e-9).certified
    assert not cjx.limit_shape(z, field, tolerance=1e-16).certified


def test_one_token_is_every_shape():
    for value in (np.eye(2), np.diag([1.0, 0.5])):
        shape = cjx.limit_shape(jnp.asarray([[0.3, 0.4]]), field_of(value), t=1.0)
        assert shape.certified and (shape.labels >= 0).all()
    assert cjx.limit_shape(jnp.zeros((1, 2)), field_of(None)).certified


def test_outlines_are_the_edges_and_levels_in_the_plane_and_in_space():
    square = jnp.asarray([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [0.0, 0.0]])
    edges = cjx.limit_shape(square, field_of(None)).outline(2.0)
    assert len(edges) == 4 and all(np.linalg.norm(np.diff(edge, axis=0)) == pytest.approx(2.0) for edge in edges)
    lines = cjx.limit_shape(square, field_of(np.diag([1.0, 0.5]))).outline(2.0)
    assert sorted({round(float(line[0, 0]), 9) for line in lines}) == [-1.0, 0.0, 1.0]
    assert all(np.ptp(line[:, 0]) < 1e-12 and np.ptp(line[:, 1]) == pytest.approx(4.0) for line in lines)
    prism = cjx.limit_shape(jnp.pad(square, ((0, 0), (0, 1))), field_of(np.diag([1.0, 1.0, 0.5]))).outline(2.0)
    assert len(prism) == 8 and all(line.shape == (2, 3) for line in prism)
    cube = jnp.asarray([[x, y, z] for x in (-1.0, 1.0) for y in (-1.0, 1.0) for z in (-1.0, 1.0)])
    assert {line.shape for line in cjx.limit_shape(cube, field_of(None)).outline(1.0)} == {(2, 3)}
    planes = cjx.limit_shape(cube, field_of(np.diag([1.0, 0.5, 0.5]))).outline(1.0)
    assert len(planes) == 3 and all(line.shape == (5, 3) for line in planes)
