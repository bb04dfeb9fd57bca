"""The shapes on the sphere against plain loops, the theorems on one point, and refusals."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax._limits.sphere import components, fit
from tests import clouds
from tests.coarsen_cases import on_the_circle, unit
from tests.helpers import as_a_user, normal, sphere_tokens
from tests.limits.cases import run_of
from tests.reference import limits as reference


TOLERANCE = 1e-3
CAUSAL = cjx.AttentionField(cjx.SoftmaxAttention(9.0, mask=cjx.CausalMask()))
FULL = cjx.AttentionField(cjx.SoftmaxAttention(9.0))
REPELLED = cjx.AttentionField(cjx.SoftmaxAttention(1.0), -np.eye(3))


TS = jnp.asarray(np.array([0.0, 5.0, 200.0]), float)
CALM = cjx.AttentionField(cjx.SoftmaxAttention(1.0))


@pytest.fixture(scope="module")
def run():
    """A run whose tokens come to one point."""
    x = sphere_tokens(0, 8, 3)
    xs = jnp.stack([x, cjx.Sphere().retract(x + x[:1]), jnp.tile(x[:1], (8, 1))])
    return run_of(TS, xs)


def near(x, size, seed=0):
    """Returns the tokens, each moved by at most `size`."""
    step = unit(np.random.default_rng(seed).normal(size=np.shape(x)))
    return unit(np.asarray(x) + 0.5 * size * step)


NORTH = np.array([[0.0, 0.0, 1.0]])
AROUND = np.stack([np.cos(np.arange(7)), np.sin(np.arange(7)), np.zeros(7)], axis=1)
SHAPES = {
    "one point": np.repeat(NORTH, 6, axis=0),
    "opposite points": np.concatenate([np.repeat(NORTH, 4, axis=0), np.repeat(-NORTH, 2, axis=0)]),
    "several points": np.repeat(np.asarray(sphere_tokens(1, 3, 3)), 3, axis=0),
    "circle": AROUND,
}


@pytest.mark.parametrize("kind", SHAPES)
def test_a_shape_is_found_within_the_tolerance_and_not_beyond(kind):
    """Tokens that move by less than the tolerance keep the shape; one that moves far gives another shape, or none."""
    x = SHAPES[kind]
    for seed in range(20):
        found = fit(near(x, TOLERANCE, seed), TOLERANCE, False)
        assert found.kind == kind and found.residuals.max() <= TOLERANCE
        beside = np.array(x)
        beside[seed % len(x)] = unit(x[seed % len(x)] + np.array([0.3, 0.2, -0.4]))
        assert fit(beside, TOLERANCE, False).kind != kind or kind == "several points"


def test_small_circles_and_subspaces_are_found():
    small = unit(AROUND + np.array([0.0, 0.0, 0.7]))
    found = fit(small, TOLERANCE, False)
    assert found.kind == "circle" and "from the origin" in found.found and found.residuals.max() < 1e-12
    shape = cjx.limit_shape(jnp.asarray(small), REPELLED)
    (line,) = shape.outline(1.0)
    assert np.abs(np.linalg.norm(line, axis=1) - 1).max() < 1e-12
    assert all(np.linalg.norm(line - row, axis=1).min() < 0.03 for row in small)
    flat = np.concatenate([sphere_tokens(3, 9, 3), np.zeros((9, 2))], axis=1)
    assert (fit(flat, TOLERANCE, False).kind, fit(flat, TOLERANCE, False).frame.shape) == ("subspace", (5, 3))
    assert fit(np.asarray(sphere_tokens(4, 9, 3)), TOLERANCE, False).kind == "none"


@pytest.mark.parametrize("seeds", (range(20), pytest.param(range(20, 1000), marks=pytest.mark.exhaustive)))
@pytest.mark.parametrize("name", clouds.CLOUDS)
def test_what_does_not_fit_is_never_said_to(name, seeds):
    """In thousands of clouds a loop over the tokens confirms each kind, with the shape that was found."""
    for seed in seeds:
        x, tolerance = clouds.cloud(name, 7, 3, seed=seed, sphere=True), 10.0 ** -(1 + seed % 6)
        found = fit(x, tolerance, False)
        slack = tolerance * (1 + 1e-9)
        if found.kind == "one point":
            assert max(math.dist(row, found.frame[:, 0]) for row in x) <= slack
        elif found.kind == "opposite points":
            axis = found.frame[:, 0]
            assert max(min(math.dist(row, axis), math.dist(row, -axis)) for row in x) <= slack
        elif found.kind == "several points":
            labels = reference.components(x, tolerance)
            assert labels.max() + 1 < len(x)
            for label in set(labels):
                members = x[labels == label]
                assert max(math.dist(row, members.mean(axis=0)) for row in members) <= slack
            np.testing.assert_array_equal(components(x, tolerance), labels)
        elif found.kind == "circle":
            middle = 0 * x[0] if "dimension" in found.found else x.mean(axis=0)
            normal_vector = np.cross(*found.frame.T)
            assert max(abs(reference.dot(row - middle, normal_vector)) for row in x) <= slack
        else:
            assert found.kind == "none"


def test_the_theorem_on_one_point_is_that_of_the_mask():
    x = jnp.asarray(SHAPES["one point"])
    assert cjx.limit_shape(x, CAUSAL).theorem.startswith("2411.04990, Theorem 4.1")
    assert cjx.limit_shape(x, FULL).theorem == "2312.10794, Lemma 6.4"  # tokens at a point are within a hemisphere
    around = jnp.asarray(sphere_tokens(0, 32, 3))
    assert cjx.limit_shape(around, FULL).theorem.startswith("2312.10794, Theorem 6.1")
    form = cjx.AttentionField(cjx.SoftmaxAttention(9.0, query_key=normal(0, 3, 3)))
    assert not cjx.limit_shape(around, form).applies  # for V = I and any Q, K the theorem needs a hemisphere
    assert cjx.limit_shape(x, form).applies
    causal = cjx.AttentionField(cjx.SoftmaxAttention(9.0, query_key=normal(0, 3, 3), mask=cjx.CausalMask()))
    assert cjx.limit_shape(around, causal).applies
    unnormalised = cjx.AttentionField(cjx.UnnormalisedAttention(1.0))
    assert cjx.limit_shape(around, unnormalised).applies
    for field in (REPELLED, cjx.AttentionField(cjx.SoftmaxAttention(1.0), jnp.diag(jnp.asarray([1.0, 1.0, 0.9]))),
                  cjx.AttentionField(cjx.SoftmaxAttention(-1.0)),
                  cjx.AttentionField(cjx.SoftmaxAttention(1.0, mask=cjx.WindowMask(2)))):  # fmt: skip
        shape = cjx.limit_shape(around, field)
        assert not shape.applies and "no theorem applies" in shape.summary()


@pytest.mark.exhaustive
def test_metastable_points_are_not_certified_where_the_theorem_says_one():
    """Since beta is large, three clusters are at rest to the tolerance; the theorem says that they merge."""
    x = jnp.asarray(np.repeat(np.eye(3), 3, axis=0))
    for mask in (cjx.FullMask(), cjx.CausalMask()):
        field = cjx.AttentionField(cjx.SoftmaxAttention(50.0, mask=mask))
        shape = cjx.limit_shape(jnp.concatenate([x, -x[:1]]), field)
        assert (shape.kind, shape.seen) == ("metastable", "several points") and shape.applies and not shape.certified
        assert "metastable" in shape.remark and not shape.clauses[-1].held and shape.clauses[1].held
        quick = cjx.limit_shape(jnp.concatenate([x, -x[:1]]), field, follow=False)
        assert quick.kind == "several points" and np.isinf(quick.until) and not quick.certified
    other = cjx.AttentionField(cjx.SoftmaxAttention(50.0), jnp.diag(jnp.asarray([1.0, 1.0, 1.0 + 1e-9])))
    shape = cjx.limit_shape(jnp.concatenate([x, -x[:1]]), other)
    # For this V `coarsen` is right only to t = 1e10, and the next merger is later.
    assert shape.fits and not shape.certified and shape.kind == "several points" and "no merger to t" in shape.remark


def test_what_is_metastable_says_when_its_next_merger_is():
    """Five tokens of unequal masses, for which no theorem holds, are at three points."""
    x, masses = jnp.asarray(on_the_circle(0.0, 1.5, 3.0, 0.0, 1.5)), jnp.asarray([1.0, 1.0, 1.0, 2.0, 1.0])
    field = cjx.AttentionField(cjx.SoftmaxAttention(60.0), masses=masses)
    tree = cjx.coarsen(field, x, 1e300, tolerance=TOLERANCE)
    later = tree.times[tree.times > 0]
    assert len(later) == 2 and later[-1] > 1e44
    shape = cjx.limit_shape(x, field, t=5.0)
    assert shape.kind == "metastable" and not shape.applies and not shape.certified
    assert shape.until == pytest.approx(5.0 + later[0], rel=1e-12) and f"until t = {shape.until:.4g}" in repr(shape)
    # Tokens of different masses at one point stay one for ever, since they are within a cap.
    point = cjx.limit_shape(jnp.asarray(near(np.repeat(x[:1], 5, axis=0), TOLERANCE / 2)), field)
    assert point.certified and point.kind == "one point" and not point.applies and "cap" in point.proof


@pytest.mark.exhaustive_cases("float32")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_only_tokens_that_are_opposite_bit_by_bit_are_certified_to_stay(dtype):
    x = jnp.asarray(np.concatenate([np.repeat(sphere_tokens(1, 1, 3), 3, axis=0)]), dtype)
    x = x.at[1].multiply(-1)
    for value in (None, jnp.asarray(2.0, dtype) * jnp.eye(3, dtype=dtype), -jnp.eye(3, dtype=dtype)):
        field = cjx.AttentionField(cjx.SoftmaxAttention(jnp.asarray(9.0, dtype)), value)
        shape = cjx.limit_shape(x, field)
        assert shape.certified and shape.kind == "opposite points" and "exactly" in shape.proof
        beside = cjx.limit_shape(x.at[1, 0].set(jnp.nextafter(x[1, 0], jnp.asarray(2.0, dtype))), field)
        assert beside.seen == "opposite points" and not beside.certified
    stretched = cjx.AttentionField(
        cjx.SoftmaxAttention(jnp.asarray(9.0, dtype)), jnp.diag(jnp.arange(1.0, 4, dtype=dtype))
    )
    assert not cjx.limit_shape(x, stretched).certified


@pytest.mark.exhaustive
@pytest.mark.parametrize("seeds", (range(12), pytest.param(range(12, 112), marks=pytest.mark.exhaustive)))
def test_nothing_is_certified_that_coarsen_sees_merge(seeds):
    """Clouds have repeated tokens and masses, on circle and sphere, full and causal, for beta from 1 to 100."""
    kinds = []
    for seed in seeds:
        rng = np.random.default_rng([seed, 7])
        d, count, beta = int(rng.integers(2, 4)), int(rng.integers(2, 5)), 10 ** rng.uniform(0, 2)
        places = unit(rng.normal(size=(count, d)))
        if seed % 4 == 0:
            places[1] = -places[0]
        x = places[np.append(np.arange(count), rng.integers(0, count, 4))]
        masses = rng.choice([0.5, 1.0, 2.0], len(x)) if seed % 3 else None
        mask = cjx.CausalMask() if seed % 2 else cjx.FullMask()
        kind = cjx.UnnormalisedAttention if seed % 5 == 0 else cjx.SoftmaxAttention
        options = {"offset": beta} if seed % 5 == 0 else {}
        field = cjx.AttentionField(kind(beta, mask=mask, **options), masses=masses)
        shape = cjx.limit_shape(jnp.asarray(x), field)
        times = cjx.coarsen(field, jnp.asarray(x), 1e300, tolerance=TOLERANCE).times
        later = times[times > 0]
        if shape.certified and shape.seen != "one point":
            assert not len(later), seed
        if shape.kind == "metastable":
            assert shape.until == later[0]
        elif shape.fits and shape.kind == "several points":
            assert not len(later), seed
        kinds.append((shape.kind, shape.certified))
    assert ("metastable", False) in kinds
    assert ("opposite points", True) in kinds or len(seeds) < 100, "no cloud is opposite bit by bit"


@pytest.mark.parametrize("gap", [1e-13, 1e-12, 1e-10, 1e-9, 1e-6])
def test_a_matrix_that_is_nearly_a_multiple_of_the_identity_is_none_on_the_sphere(gap):
    """No theorem applies if V or Q^T K differs from the identity by more than rounding, in whatever direction."""
    x = jnp.asarray(sphere_tokens(0, 32, 3))
    for seed in range(5):
        beside = np.eye(3) + gap * normal(seed, 3, 3)
        assert not cjx.limit_shape(x, cjx.AttentionField(cjx.SoftmaxAttention(9.0), beside)).applies
        assert not cjx.limit_shape(x, cjx.AttentionField(cjx.SoftmaxAttention(9.0, query_key=beside))).applies
    turn = np.linalg.qr(normal(1, 3, 3))[0]
    assert cjx.limit_shape(x, cjx.AttentionField(cjx.SoftmaxAttention(9.0), turn @ turn.T)).applies


def test_runs_on_the_sphere():
    """V = I leads to one point, and V = -I to a simplex of single tokens; before that tokens move."""
    end = cjx.limit_shape(cjx.simulate(CALM, sphere_tokens(0, 8, 3), TS), CALM)
    assert end.certified and end.kind == "one point" and end.t == 200.0
    assert end.history[0] > 0.5 and end.history[-1] < 1e-6
    traj = cjx.simulate(REPELLED, sphere_tokens(0, 4, 3), TS)
    simplex = cjx.limit_shape(traj, REPELLED)
    assert simplex.fits and simplex.kind == "several points" and len(simplex.points) == 4 and not simplex.applies
    # No bound here shows that the simplex attracts.
    assert not simplex.certified and "must attract tokens that met" in simplex.remark
    assert sorted(simplex.labels.tolist()) == [0, 1, 2, 3]
    early = cjx.limit_shape(traj.xs[1], REPELLED, t=5.0)
    assert not early.certified and (early.kind == "none" or "NOT CONVERGED" in early.summary())


def test_fields_without_a_theorem_are_answered():
    x = sphere_tokens(0, 5, 3)
    neurons = cjx.PerceptronField(jnp.ones((4, 3)), jnp.ones((3, 4)))
    for field in (neurons, FULL + neurons, cjx.FunctionField(lambda t, x, args: 0 * x, cjx.Sphere())):
        shape = cjx.limit_shape(x, field)
        assert not shape.applies and "No theorem is known" in shape.remark
    still = cjx.limit_shape(x, cjx.FunctionField(lambda t, x, args: 0 * x, cjx.Sphere()))
    assert still.fits and not still.certified and still.kind == "several points"
    free = cjx.limit_shape(x, cjx.FunctionField(lambda t, x, args: 0 * x, cjx.Euclidean()))
    assert free.kind == "none" and not free.certified
    later = cjx.AttentionField(cjx.SoftmaxAttention(1.0), lambda t: (1 + t) * jnp.eye(3), space=cjx.Euclidean())
    assert cjx.limit_shape(x, later, t=1.0).kind == "none"


def test_bad_input_is_refused_in_one_sentence(run):
    x = sphere_tokens(0, 5, 3)
    # These runs are as simulate(..., save=...) and jax.vmap leave them.
    saved = eqx.tree_at(lambda run: run.xs, run, run.xs[:, :2])
    named = eqx.tree_at(lambda run: run.xs, run, {"x": run.xs})
    batch = jax.tree.map(lambda leaf: leaf[None] if eqx.is_array(leaf) else leaf, run)
    flat = cjx.RescaledField(cjx.SoftmaxAttention(1.0), jnp.eye(2))
    euclidean = cjx.AttentionField(cjx.SoftmaxAttention(1.0), -jnp.eye(3), space=cjx.Euclidean())
    cases = (
        (lambda: cjx.limit_shape(saved, FULL), "x must be a run that saved its tokens, but it saved"),
        (lambda: cjx.limit_shape(named, FULL), "x must be a run that saved its tokens, but it saved"),
        (lambda: cjx.limit_shape(batch, FULL), r"x must be one run, but its tokens have the shape \(1, 8, 3\)"),
        (lambda: cjx.limit_shape(run, FULL, t=1.0), "t must be None of a run, which knows its times, but it is 1.0"),
        (lambda: cjx.limit_shape(x, flat), "value must act on tokens of dimension 3"),
        (lambda: cjx.limit_shape(0 * x, FULL), "x must have no zero row on the sphere"),
        (lambda: cjx.limit_shape(x, euclidean, t=1e4), "x must be tokens that can be rescaled"),
    )
    for make, words in cases:
        with as_a_user(), pytest.raises(ValueError, match=f"^{words}.*; .*\\.$"):
            make()


def test_a_run_that_stopped_early_is_judged_where_it_stopped(run):
    """An event leaves NaN from its time on and the last tokens beside, by which the run is judged."""
    stopped = eqx.tree_at(lambda run: (run.xs, run.t1), run, (run.xs.at[2].set(jnp.nan), jnp.asarray(120.0)))
    shape = cjx.limit_shape(stopped, CALM)
    assert shape.t == 120.0 and shape.ts.tolist() == [0.0, 5.0, 120.0] and np.all(np.isfinite(shape.history))
    assert shape.certified
