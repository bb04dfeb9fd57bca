"""The atlas: the frame that turns, rests that attract, what certifies a cell, heads of networks."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

import clusterjax as cjx
from clusterjax import probe
from clusterjax._limits.result import ONE, OPPOSITE
from clusterjax.experiments.figures.atlas import (
    APART,
    BEFORE,
    BETAS,
    CAUSAL,
    CLUSTERS,
    DOUBLE,
    EARLY,
    FULL,
    IDENTITY,
    MASKS,
    NEGATIVE,
    NOTHING,
    PAIR,
    REPULSIVE,
    REST,
    ROWS,
    SEEN,
    SIMPLE,
    THEOREM,
    Heads,
    Parameters,
    cell_of,
    certificate,
    derivatives,
    heads_of,
    judged_field,
    kind_of,
    labels_of,
    nearest,
    permitted,
    read_heads,
    rest_of,
    settled,
    sorted_cosines,
    symmetries,
    to_axis,
    turning_field,
    values_of,
)
from clusterjax.experiments.figures.repulsion import exact_rate
from clusterjax.experiments.framework.experiment import Settings
from clusterjax.experiments.shared.ensemble import draw_starts
from tests.helpers import sphere_tokens
from tests.network_cases import checkpoint


VALUES = values_of(0.5, 1.0)
E1, E2, E3 = np.eye(3)


def resting(x, value, beta, mask=FULL, generators=None):
    """`rest_of` of one cloud."""
    x = np.asarray(x, float)
    given = (jnp.asarray(beta), jnp.asarray(value), jnp.asarray(permitted(mask, len(x))))
    velocity, jacobian = (np.asarray(one)[0] for one in derivatives(jnp.asarray(x[None]), *given))
    return rest_of(x, velocity, jacobian, symmetries(value) if generators is None else generators)


def plain_velocity(x, value, beta, mask):
    """Attention on the sphere by loops."""
    n = len(x)
    out = np.zeros_like(x)
    for i in range(n):
        total = 0.0
        for j in range(i + 1 if mask == CAUSAL else n):
            weight = np.exp(beta * (x[i] @ x[j]))
            out[i] += weight * (value @ x[j])
            total += weight
        out[i] /= total
        out[i] -= (out[i] @ x[i]) * x[i]
    return out


@pytest.mark.parametrize("mask", MASKS)
def test_the_frame_that_turns_has_the_field_of_the_plain_one(mask):
    """y = e^(-tK) x: its velocity is e^(-tK) (f(x) - K x), and does not depend on t."""
    value = values_of(0.5, 2.0)[PAIR]
    skew = (value - value.T) / 2
    y = np.asarray(sphere_tokens(3, 5, 3))
    field = turning_field(jnp.asarray(value), 3.0, cjx.MatrixMask(jnp.asarray(permitted(mask, 5))))
    for t in (0.0, 0.7):
        back = expm(-t * skew)
        x = y @ back  # rows: e^(tK) y
        wanted = (plain_velocity(x, value, 3.0, mask) - x @ skew.T) @ back.T
        np.testing.assert_allclose(field(t, jnp.asarray(y)), wanted, atol=1e-12)
    np.testing.assert_allclose(judged_field(PAIR, value, 3.0, mask)(0.0, jnp.asarray(y)), wanted, atol=1e-12)


@pytest.mark.parametrize("row", (IDENTITY, SIMPLE, NEGATIVE))
def test_what_is_judged_is_what_was_run(row):
    """Theorems ask for attention alone, with a mask of its own; runs have a matrix of who attends."""
    y = jnp.asarray(sphere_tokens(4, 5, 3))
    for mask in MASKS:
        field = judged_field(row, VALUES[row], 3.0, mask)
        assert isinstance(field, cjx.AttentionField)
        run = turning_field(jnp.asarray(VALUES[row]), 3.0, cjx.MatrixMask(jnp.asarray(permitted(mask, 5))))
        np.testing.assert_allclose(field(0.0, y), run(0.0, y), atol=1e-12)
        np.testing.assert_allclose(run(0.0, y), plain_velocity(np.asarray(y), VALUES[row], 3.0, mask), atol=1e-12)


def test_rows_have_the_eigenvalues_that_they_name():
    values, labels = values_of(0.25, 2.0), labels_of(0.25, 2.0)
    assert tuple(values) == tuple(labels) == ROWS
    for row, value in values.items():
        np.testing.assert_allclose(value @ value.T, value.T @ value, atol=1e-15)
        words = labels[row].replace("±", "").replace(" ", "")
        found = sorted(np.linalg.eigvals(value), key=lambda one: (-one.real, one.imag))
        if row == PAIR:
            assert words == "12i,0"
            np.testing.assert_allclose(found, [1 - 2j, 1 + 2j, 0])
        else:
            np.testing.assert_allclose(found, [float(one) for one in words.split(",")])
    assert labels_of(0.5, 1.0)[PAIR] == "1 ± i, 0"


@pytest.mark.parametrize(
    ("row", "count"), ((IDENTITY, 3), (DOUBLE, 1), (SIMPLE, 0), (PAIR, 1), (NEGATIVE, 1), (REPULSIVE, 3))
)
def test_symmetries_commute_with_v_and_are_all_that_do(row, count):
    found = symmetries(VALUES[row])
    assert found.shape == (count, 3, 3)
    for one in found:
        np.testing.assert_allclose(one, -one.T, atol=1e-15)
        np.testing.assert_allclose(one @ VALUES[row], VALUES[row] @ one, atol=1e-14)
    if count:
        assert np.linalg.matrix_rank(found.reshape(count, -1)) == count
    # Two equal eigenvalues by chance have a rotation of their own.
    assert len(symmetries(np.diag([1.0, -0.5, -0.5]))) == 1
    assert symmetries(np.diag([1.0, 2.0])).shape == (0, 2, 2) and symmetries(np.eye(2)).shape == (1, 2, 2)


@pytest.mark.parametrize(("mask", "rate"), ((FULL, 1.0), (CAUSAL, 0.5)))
@pytest.mark.parametrize("beta", (0.5, 9.0))
def test_one_point_attracts_at_the_known_rate(mask, rate, beta):
    """Of V = I it is the same for every beta and number of tokens: oracle C3, and its companion of a full mask."""
    point = np.asarray(sphere_tokens(2, 1, 3))[0]
    found = resting(np.tile(point, (3, 1)), np.eye(3), beta, mask)
    assert found.rate == pytest.approx(rate, abs=1e-10) and found.distance < 1e-14 and found.stable(1e-3, 1e12)
    near = np.tile(point, (3, 1)) + 1e-4 * np.asarray(sphere_tokens(3, 3, 3))
    found = resting(near / np.linalg.norm(near, axis=1, keepdims=True), np.eye(3), beta, mask)
    assert 1e-5 < found.distance < 5e-4 and found.stable(1e-3, 1e12) and not found.stable(1e-6, 1e12)


@pytest.mark.parametrize("beta", (0.4, 1.0, 3.0))
def test_opposite_points_attract_if_the_gap_is_wide_enough(beta):
    """With eigenvalues 1, s, ... the slowest rate of a token at either end is tanh(beta) - s."""
    found = resting([E1, -E1], VALUES[SIMPLE], beta)
    assert found.rate == pytest.approx(np.tanh(beta) - 0.5, abs=1e-12)
    assert found.stable(1e-3, 1e12) is (beta > 0.55)
    # With V = I they never do.
    assert resting([E1, -E1], np.eye(3), beta).rate < 0


@pytest.mark.parametrize("mask", MASKS)
def test_a_slow_flow_is_no_rest(mask):
    """Repelled tokens at beta = 9 move by 1e-8: `limit_shape` takes that for rest, Newton's step does not."""
    there = resting([E1, -E1], -np.eye(3), 9.0, mask)
    assert there.rate == pytest.approx(exact_rate(mask, 9.0), rel=1e-6) and there.stable(1e-3, 1e12)
    turned = np.array([E1, np.cos(2.6) * E1 + np.sin(2.6) * E2])
    field = judged_field(REPULSIVE, VALUES[REPULSIVE], 9.0, mask)
    shape = cjx.limit_shape(jnp.asarray(turned), field)
    assert shape.fits and not shape.certified
    away = resting(turned, -np.eye(3), 9.0, mask)
    assert away.distance > 0.05 and not away.stable(1e-3, 1e12)


def test_a_drift_along_a_symmetry_and_a_neutral_place_are_no_rests():
    value = VALUES[PAIR]
    x = np.tile(E1, (3, 1))
    assert resting(x, value, 1.0).stable(1e-3, 1e12), "in the frame that turns the point rests"
    # In the plain frame it turns: nothing but its drift tells.
    n, d = 3, 3
    jacobian = np.zeros((n, d, n, d))
    for i in range(n):
        jacobian[i, :, i] = -np.eye(d)
    turning = rest_of(x, x @ ((value - value.T) / 2).T, jacobian, symmetries(value))
    assert turning.drift > 0.5 and turning.distance < 1e-12 and not turning.stable(1e-3, 1e12)
    none = rest_of(x, 0 * x, 0 * jacobian, symmetries(value))
    assert np.isinf(none.distance) and not none.stable(1e-3, 1e12)
    # Without V's symmetries the rotation of all tokens is a direction that does not attract.
    assert not resting(x, value, 1.0, generators=np.zeros((0, 3, 3))).stable(1e-3, 1e12)


def test_a_rest_must_have_had_the_time_to_attract():
    """Ten relaxation times: a rate of rounding has not, nor one that falls like 1 / t."""
    there = resting([E1, -E1], -np.eye(3), 9.0)
    time = 10 / exact_rate(FULL, 9.0)
    assert there.stable(1e-3, 1.001 * time) and not there.stable(1e-3, 0.999 * time)
    jacobian = np.zeros((2, 3, 2, 3))
    for i in range(2):
        jacobian[i, :, i] = np.diag([0.0, -1.0, -1e-12])
    slow = rest_of(np.array([E1, E1]), np.zeros((2, 3)), jacobian, symmetries(VALUES[SIMPLE]))
    assert slow.rate == pytest.approx(1e-12) and slow.distance == 0
    assert not slow.stable(1e-3, 1e11) and slow.stable(1e-3, 1e14)
    rounding = rest_of(np.array([E1, E1]), np.zeros((2, 3)), 1e-2 * jacobian, symmetries(VALUES[SIMPLE]))
    assert np.isinf(rounding.distance) and not rounding.stable(1e-3, 1e300)


def test_tokens_have_settled_when_they_stay_at_their_last_places():
    ts = np.array([0.0, 1.0, 2.0, 4.0, 8.0])
    path = lambda *angles: np.stack([[[np.cos(a), np.sin(a)], [1.0, 0.0]] for a in angles])
    assert settled(ts, path(1.0, 0.5, 0.2, 0.01, 0.0)) == 4.0
    assert settled(ts, path(0.0, 0.5, 0.0, 0.01, 0.0)) == 2.0, "a token that passed by had not come"
    assert settled(ts, path(0.0, 0.0, 0.0, 0.0, 0.0)) == 1.0
    assert settled(ts, path(0.0, 0.0, 0.0, 1.0, 0.0)) == 8.0


def test_a_kind_says_whether_tokens_share_points_and_certificates_what_for():
    field = judged_field(REPULSIVE, VALUES[REPULSIVE], 9.0, FULL)
    octahedron = jnp.asarray(np.concatenate([np.eye(3), -np.eye(3)]))
    shape = cjx.limit_shape(octahedron, field)
    assert kind_of(shape, 6) == APART and certificate(shape, True) == REST and certificate(shape, False) == NOTHING
    twice = cjx.limit_shape(jnp.asarray([E1, E1, E2, E3]), field)
    assert kind_of(twice, 3) == CLUSTERS
    point = jnp.asarray(np.tile(E1, (4, 1)))
    one = cjx.limit_shape(point, judged_field(IDENTITY, VALUES[IDENTITY], 1.0, CAUSAL))
    assert kind_of(one, 1) == ONE and certificate(one, False) == THEOREM
    without = cjx.limit_shape(point, judged_field(SIMPLE, VALUES[SIMPLE], 1.0, CAUSAL))
    assert certificate(without, True) == REST and certificate(without, False) == NOTHING
    # What a theorem excludes is certified by nothing, at a rest or not.
    several = cjx.limit_shape(jnp.asarray([E1, E1, -E1]), judged_field(IDENTITY, VALUES[IDENTITY], 1.0, CAUSAL))
    assert several.kind == OPPOSITE and certificate(several, True) == NOTHING


def test_save_times_hold_the_time_at_which_clusters_are_counted():
    for row in (IDENTITY, REPULSIVE):
        for beta in BETAS:
            ts = Parameters().ts(row, beta)
            assert ts[BEFORE] == pytest.approx(EARLY) and (np.diff(ts) > 0).all() and ts[0] == 0
            assert ts[-1] == pytest.approx(SEEN if row == IDENTITY else 1000 * (1 + np.exp(2 * beta)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("mask", MASKS)
def test_a_start_of_v_equal_to_the_identity_is_followed_to_one_point(mask):
    x0 = draw_starts(1, 3, 4, 3)
    cell = cell_of(x0, VALUES[IDENTITY], IDENTITY, 9.0, mask, Parameters().ts(IDENTITY, 9.0))
    assert (cell.kinds == ONE).all() and (cell.by == THEOREM).all() and (cell.points == 1).all()
    assert cell.followed == (3, 0) and (cell.early > 1).all() and (cell.log_times > np.log10(SEEN)).all()
    assert all("2411.04990" in name if mask == CAUSAL else "2312.10794" in name for name in cell.theorems)
    # The last merger of a run from the start, which is not stopped in between, is at the same time.
    trees = [cjx.coarsen(judged_field(IDENTITY, VALUES[IDENTITY], 9.0, mask), x, 1e300, tolerance=0.1) for x in x0]
    np.testing.assert_allclose(cell.log_times, np.log10([tree.times[-1] for tree in trees]), atol=0.1)
    if mask == CAUSAL:
        np.testing.assert_allclose(cell.ends, np.tile(np.asarray(x0[:, :1]), (1, 4, 1)), atol=2e-3)
        assert cell.off < 1e-4


@pytest.mark.exhaustive
def test_cells_without_a_theorem_come_to_rest():
    x0 = draw_starts(1, 4, 4, 3)
    run = lambda row, beta, mask: cell_of(x0, VALUES[row], row, beta, mask, Parameters().ts(row, beta))
    turning = run(PAIR, 3.0, CAUSAL)
    assert (turning.kinds == ONE).all() and (turning.by == REST).all() and turning.theorems == ()
    # In the frame that turns the first token goes to its projection to the plane of the pair, and stays.
    flat = np.asarray(x0[:, 0]) * np.array([1.0, 1.0, 0.0])
    np.testing.assert_allclose(turning.ends[:, 0], flat / np.linalg.norm(flat, axis=1, keepdims=True), atol=1e-3)
    apart = run(REPULSIVE, 1.0, FULL)
    assert (apart.kinds == APART).all() and (apart.by == REST).all() and (apart.points == 4).all()
    np.testing.assert_allclose(sorted_cosines(apart.ends), -1 / 3, atol=2e-3)
    axis = run(SIMPLE, 3.0, FULL)
    assert to_axis(axis).max() < 2e-3 and set(axis.kinds) <= {ONE, OPPOSITE}


@pytest.mark.exhaustive
def test_a_start_that_cannot_be_followed_is_not_certified(monkeypatch):
    def stall(*args, **options):
        raise RuntimeError("steps come to nothing")

    monkeypatch.setattr("clusterjax.experiments.figures.atlas.coarsen", stall)
    cell = cell_of(draw_starts(1, 2, 4, 3), VALUES[IDENTITY], IDENTITY, 9.0, FULL, Parameters().ts(IDENTITY, 9.0))
    assert cell.followed == (2, 2) and (cell.by == NOTHING).all() and (cell.reached == SEEN).all()


def test_heads_are_placed_by_their_case_and_the_nearest_beta():
    assert [nearest(beta) for beta in (0.0, 1.7, 1.8, 5.1, 5.3, 1e4)] == [1.0, 1.0, 3.0, 3.0, 9.0, 9.0]
    cases = np.array(["attractive", "rotating", "repulsive", "neutral", "attractive"])
    heads = Heads(
        "a network", "a network of ours", CAUSAL, np.ones(5, complex), cases, np.array([8.0, 2.0, 1.0, 1.0, 300.0])
    )
    assert heads.counts() == {(SIMPLE, 9.0, CAUSAL): 2, (PAIR, 3.0, CAUSAL): 1, (NEGATIVE, 1.0, CAUSAL): 1}


@pytest.mark.exhaustive
def test_heads_of_a_network_are_read_as_the_spectra_have_them(tmp_path):
    model = probe.load(checkpoint(tmp_path).albert)
    heads, spectra = read_heads("small", "a small network", FULL, model), probe.value_spectra(model)
    np.testing.assert_allclose(heads.beta, spectra.beta.ravel(), rtol=1e-9)
    np.testing.assert_allclose(heads.leading, probe.head_signs(model).leading.ravel())
    assert len(heads.cases) == 4 and heads.mask == FULL


def test_an_albert_of_the_settings_is_placed_beside_that_of_the_package(monkeypatch):
    def model_of(settings):
        return SimpleNamespace(name=str(settings.albert)), f"it is {settings.albert}, cut into {settings.heads}"

    def read(name, network, mask, model):
        return Heads(name, f"{model.name}: {network}", mask, np.ones(1, complex), np.array(["attractive"]), np.ones(1))

    told = lambda heads: [(one.name, one.network, one.mask) for one in heads]
    monkeypatch.setattr("clusterjax.experiments.shared.networks.model_of", model_of)
    monkeypatch.setattr("clusterjax.experiments.shared.causal.smollm2", lambda: SimpleNamespace(name="smollm2"))
    monkeypatch.setattr("clusterjax.experiments.figures.atlas.read_heads", read)
    own = ("ALBERT of the package", "None: it is None, cut into None", FULL)
    found, absent = heads_of(Settings(albert="other", heads=2), print)
    assert told(found[::2]) == [own, ("other", "other: it is other, cut into 2", FULL)] and absent == ""
    assert found[1].name == "SmolLM2-135M-Instruct (Q4_1)" and found[1].mask == CAUSAL
    assert found[1].network.startswith("smollm2: SmolLM2-135M-Instruct in four bits")
    found, absent = heads_of(Settings(quick=True, albert="other"), print)
    assert [one.name for one in found] == ["ALBERT of the package", "other"] and "quick" in absent
    monkeypatch.setattr("clusterjax.experiments.shared.causal.smollm2", lambda: None)
    found, absent = heads_of(Settings(), print)
    assert told(found) == [own] and "clusterjax[smollm2]" in absent
