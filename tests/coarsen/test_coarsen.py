"""`coarsen`: waiting times to 1e68 against quadrature, small clouds against loops, and refusals."""

import diffrax as dfx
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from tests.clouds import CLOUDS, cloud
from tests.coarsen_cases import agrees, coarsen, field, on_the_circle, sphere
from tests.reference import coarsening as reference


NEAR = np.sqrt(2 - 2 * 0.99)
FORM = np.array([[0.9, 0.3, -0.2], [0.0, 0.7, 0.4], [0.3, -0.1, 0.8]])
VALUE = np.array([[1.2, 0.3, 0.0], [-0.2, 0.9, 0.1], [0.1, 0.0, 0.4]])


# --- two clusters: exact laws


@pytest.mark.parametrize(
    ("beta", "c0", "masses", "time"),
    [
        (20.0, 0.0, (0.5, 0.5), 12191759),
        (40.0, 0.5, (0.8, 0.2), 3949560.9),
        (80.0, 0.0, (0.7, 0.3), 2.5083944e32),
        (1.0, -0.5, (1, 1), 4.370241049),
    ],
)
def test_two_clusters_merge_when_the_oracle_says(beta, c0, masses, time):
    x0 = on_the_circle(0.0, np.arccos(c0))
    tree = coarsen(field(beta, masses=np.array(masses)), x0, 1e300, tolerance=NEAR)
    np.testing.assert_allclose(tree.times, time, rtol=5e-8)
    exact = reference.two_cluster_time(c0, 0.99, beta, *np.array(masses) / sum(masses))
    assert abs(tree.times[0] / exact - 1) < min(tree.bound[0], 1e-8)
    assert tree.pairs.tolist() == [[0, 1]]
    # The point of the merged cluster is on the sphere.
    middle = tree.points[0]
    np.testing.assert_allclose(np.linalg.norm(middle), 1)


@pytest.mark.parametrize("beta", [150.0, 345.0])
def test_waits_of_a_hundred_orders_of_magnitude(beta):
    x0 = on_the_circle(0.0, 2.0)
    tree = coarsen(field(beta), x0, 1e300, tolerance=NEAR)
    exact = reference.two_cluster_time(np.cos(2.0), 0.99, beta, 0.5, 0.5)
    assert exact > 1e80
    np.testing.assert_allclose(tree.times, exact, rtol=1e-7)


@pytest.mark.exhaustive_cases(
    "1.0-SA-full-float32", "30.0-USA-causal-float64", "300.0-offset-full-float32", "400.0-SA-full-float32"
)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    ("normalised", "offset"), [(True, 0.0), (False, 0.0), (False, 1.0)], ids=["SA", "USA", "offset"]
)
@pytest.mark.parametrize("beta", [1.0, 30.0, 300.0, 400.0, 1000.0])
def test_two_tokens_merge_at_any_time_that_float64_holds(beta, normalised, offset, causal, dtype):
    """At times from e^-700 to e^709 a merger is that of the quadrature of logarithms, within the bound; later mergers
    are left out, and earlier ones are refused."""
    flow = field(beta, causal=causal, normalised=normalised, **({} if normalised else {"offset": offset * beta}))
    merged = 0
    for angle in (0.3, 1.0, 2.781):
        x0 = jnp.asarray(on_the_circle(0.0, angle), dtype)
        start = float(np.arctan2(*np.asarray(x0, float)[1, ::-1]))
        law = {"normalised": normalised, "causal": causal, "offset": offset * beta}
        expected = reference.log_time_of_two(start, NEAR, beta, **law)
        if expected < -705:
            with pytest.raises(ValueError, match="^offset must let float64 hold .* pass offset=beta"):
                coarsen(flow, x0, 1e300, tolerance=NEAR)
            continue
        tree = coarsen(flow, x0, 1.7e308, tolerance=NEAR)
        if expected > 709.7:
            assert len(tree) == 0 and np.all(tree.at(1.7e308) == x0)
            continue
        merged += 1
        error = abs(np.expm1(np.log(tree.times[0]) - expected))
        # Rounding a logarithm of 700 changes its exponential by some 1e-13 of itself.
        assert error <= tree.bound[0] + 1e-11 and tree.bound[0] < 1e-7
        # At half of the time half of the time is left.
        apart = np.linalg.norm(np.subtract(*np.asarray(tree.at(tree.times[0] / 2), float)))
        left = reference.log_time_of_two(2 * np.arcsin(apart / 2), NEAR, beta, **law)
        assert left == pytest.approx(expected - np.log(2), abs=1e-2 if dtype == jnp.float32 else 1e-6)
    assert merged


@pytest.mark.exhaustive_cases("False-400.0-causal", "False-400.0-full", "False-900.0-full")
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(("normalised", "beta"), [(True, 300.0), (False, 400.0), (False, 900.0)])
def test_bounds_of_long_waits_are_numbers(normalised, beta, causal):
    """Clusters have two tokens, whose pull on each other is e^beta in units of the pull between clusters."""
    angles = (0.0, 1e-3, 2.4, 2.401) if beta < 900 else (0.0, 1e-6, 2.0, 2.0 + 1e-6)
    flow = field(beta, causal=causal, normalised=normalised)
    tree = coarsen(flow, on_the_circle(*angles), 1.7e308, tolerance=0.2)
    assert len(tree) == 3 and tree.times[:2].tolist() == [0, 0] and tree.times[2] > 1e120
    assert np.all(tree.bound < 1e-3)


def test_mergers_before_all_times_of_float64_are_refused_and_an_offset_mends_it():
    x0 = on_the_circle(0.0, 0.5)
    with pytest.raises(
        ValueError, match="^offset must let float64 hold .* it is 0: with beta = 1000 .* pass offset=beta"
    ):
        coarsen(field(1000.0, normalised=False), x0, 1e300, tolerance=NEAR)
    tree = coarsen(field(1000.0, normalised=False, offset=1000.0), x0, 1e300, tolerance=NEAR)
    expected = reference.log_time_of_two(0.5, NEAR, 1000.0, normalised=False, offset=1000.0)
    assert np.log(tree.times) == pytest.approx(expected, abs=1e-9)


def test_a_bound_that_is_no_number_is_infinite(monkeypatch):
    from clusterjax._coarsen import bound

    tree = coarsen(field(4.0), on_the_circle(0.0, 1.0), 1e9, tolerance=0.1)
    monkeypatch.setattr(bound, "_later", lambda leg, times: np.full(len(times), np.nan))
    assert tree.bound.tolist() == [np.inf]


@pytest.mark.parametrize(("beta", "time"), [(0.0, 4.549607094), (1.0, 6.526625009), (4.0, 81.968569804)])
def test_two_causal_tokens(beta, time):
    tree = coarsen(field(beta, causal=True), on_the_circle(0.0, 2.0), 1e9, tolerance=np.sqrt(2 - 2 * 0.95))
    np.testing.assert_allclose(tree.times, time, rtol=1e-9)
    # The first token does not move, and the second joins it.
    np.testing.assert_allclose(tree.at(1e8), on_the_circle(0.0, 0.0), atol=1e-7)


def test_an_equiangular_simplex_merges_at_once():
    # For beta = 0, gamma(t) = (1 - e^{-2t}) / (1 + (n - 1) e^{-2t}) from gamma = 0.
    n, gamma = 5, 0.99
    tree = coarsen(field(0.0), np.eye(n), 1e3, tolerance=NEAR)
    time = -np.log((1 - gamma) / (1 + (n - 1) * gamma)) / 2
    np.testing.assert_allclose(tree.times, time, rtol=1e-8)
    assert sorted(tree.pairs[:, 1]) == [1, 2, 3, 4]


# --- small clouds against loops


CASES = {
    "full": {},
    "masses": {"masses": np.array([1.0, 0.0, 2.5, 0.5])},
    "causal": {"causal": True},
    "causal masses": {"causal": True, "masses": np.array([0.0, 1.0, 2.0, 0.5])},
    "unnormalised": {"normalised": False, "offset": 1.5},
    "form": {"form": FORM},
    "value": {"value": VALUE},
    "stretched": {"value": 2.5 * np.eye(3)},
    "causal form": {"causal": True, "form": FORM},
    "causal value": {"causal": True, "value": VALUE},
    "causal unnormalised": {"causal": True, "normalised": False, "form": FORM},
    "unnormalised value": {"normalised": False, "value": VALUE},
}


@pytest.mark.exhaustive_cases("causal form", "full", "masses", "unnormalised", "unnormalised value")
@pytest.mark.parametrize("case", CASES)
def test_it_is_the_uncoarsened_run(case):
    tree = agrees(sphere(4, 3, seed=3), 1.5, 25.0, 0.1, CASES[case])
    assert len(tree) and tree.bound.max() < 1e-5


@pytest.mark.parametrize("name", CLOUDS)
def test_degenerate_clouds(name):
    # Tokens have few bits and thus many exact ties; masses are no powers of two.
    x0 = cloud(name, 4, 2, seed=1, sphere=True)
    agrees(x0, 1.0, 12.0, 0.2, {"masses": np.array([1.0, 0.7, 1.3, 0.9])})


@pytest.mark.parametrize("case", CASES)
def test_velocities_without_loops_are_those_of_loops(case):
    x, options = sphere(4, 3, seed=3), CASES[case]
    np.testing.assert_allclose(
        reference.fast_velocity(x, 1.5, **options), reference.velocity(x, 1.5, **options), atol=1e-15
    )


def fair_end(case, t_end):
    """Opposite tokens rest unstably: rounding in the reference grows like e^t, and faster if V stretches."""
    return t_end / 2.5 if case == "stretched" else t_end


@pytest.mark.exhaustive
@pytest.mark.parametrize("block", range(10))
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", CLOUDS)
def test_thousands_of_clouds(name, case, block):
    """Each case has five small clouds, and the bound holds in all of them."""
    for seed in range(5 * block, 5 * block + 5):
        rng = np.random.default_rng([seed, 1])
        n, d = int(rng.integers(3, 7)), int(rng.integers(2, 4))
        options = dict(CASES[case])
        if "masses" in options:
            options["masses"] = rng.permutation([0.0, 1.0, 2.0, 0.5, 1.7, 0.0])[:n]
        options = {key: value[:d, :d] if key in ("form", "value") else value for key, value in options.items()}
        beta = float(rng.choice([0.0, 0.5, 1.0, 2.0, 4.0]))
        agrees(cloud(name, n, d, seed=seed, sphere=True), beta, fair_end(case, 10.0), 0.2, options)


# --- the tree


@pytest.mark.exhaustive
def test_a_tree_of_many_tokens():
    x0 = sphere(24, 3, seed=5)
    tree = coarsen(field(30.0), x0, 1e300, tolerance=0.1)
    assert len(tree) == 23 and np.all(np.diff(tree.times) >= 0) and tree.times[-1] > 1e6
    assert np.all(tree.pairs[:, 0] < tree.pairs[:, 1]) and len(set(tree.pairs[:, 1])) == 23
    assert tree.bound.shape == (23,) and tree.bound.max() < 1e-4
    np.testing.assert_allclose(np.asarray(tree.at(0)), x0, atol=1e-15)
    counts = []
    for k in range(23):
        before, after = (np.asarray(tree.clusters(tree.times[k] * factor)) for factor in (1 - 1e-9, 1 + 1e-9))
        counts.append(len(np.unique(after)))
        # The merger counts from its time on.
        np.testing.assert_array_equal(tree.clusters(tree.times[k]), after)
        assert counts[-1] < len(np.unique(before)) or tree.times[k] == 0
        if not 0 < tree.times[k] < 1e6:
            continue  # later events are within the rounding of t
        # Two tokens, one of each component, are at a distance of the tolerance.
        x = np.asarray(tree.at(tree.times[k]))
        apart = np.linalg.norm(x[:, None] - x[None], axis=2)[before == tree.pairs[k, 0]][:, before == tree.pairs[k, 1]]
        np.testing.assert_allclose(apart.min(), 0.1, rtol=1e-4)
    assert counts[-1] == 1
    assert "23 mergers of 24 tokens" in repr(tree)


@pytest.mark.exhaustive_cases("True")
@pytest.mark.parametrize("causal", [False, True])
def test_steps_are_what_tokens_are_at_their_times(causal):
    x0 = sphere(7, 3, seed=4)
    tree = coarsen(field(6.0, causal=causal), x0, 1e300, tolerance=0.1)
    times, xs = tree.steps()
    assert times.shape == (tree.num_steps + 1,) and xs.shape == (len(times), 7, 3) and np.all(np.diff(times) >= 0)
    np.testing.assert_allclose(xs[0], x0, atol=1e-15)
    for t, x in zip(times[::9], xs[::9], strict=True):
        np.testing.assert_allclose(tree.at(t), x, atol=1e-7)
    np.testing.assert_allclose(tree.at(1e300), xs[-1], atol=1e-15)
    # A single token never moves and takes no step.
    alone = coarsen(field(6.0), on_the_circle(0.5), 1.0, tolerance=0.1)
    assert len(alone.steps()[0]) == alone.num_steps + 1


@pytest.mark.exhaustive
def test_tokens_in_between_are_those_of_simulate():
    x0 = sphere(8, 3, seed=2)
    ts, precise = jnp.array([0.0, 0.7, 5.0, 60.0, 2000.0]), dfx.PIDController(rtol=1e-10, atol=1e-12)
    for causal in (False, True):
        flow = field(5.0, causal=causal)
        traj = cjx.simulate(flow, jnp.asarray(x0), ts, solver=cjx.Rodas5P(), stepsize_controller=precise)
        tree = coarsen(flow, x0, 1e4, tolerance=0.1)
        for t, x in zip(ts, traj.xs, strict=True):
            np.testing.assert_allclose(tree.at(t), x, atol=1e-3 if causal else 1e-5)
            if t > 0:
                labels = cjx.cluster_labels(x, 0.1)
                assert len(np.unique(tree.clusters(t))) == len(np.unique(labels))


@pytest.mark.exhaustive
def test_it_does_not_depend_on_rotations_nor_on_the_order():
    x0, rng = sphere(5, 3, seed=8), np.random.default_rng(0)
    turn, order = np.linalg.qr(rng.normal(size=(3, 3)))[0], rng.permutation(5)
    trees = [coarsen(field(20.0), x, 1e300, tolerance=0.05) for x in (x0, x0 @ turn, x0[order])]
    for tree in trees[1:]:
        np.testing.assert_allclose(tree.times, trees[0].times, rtol=1e-7)


def test_earlier_tokens_do_not_know_of_later_ones():
    x0 = sphere(7, 3, seed=9)
    whole, first = (coarsen(field(4.0, causal=True), x, 1e3, tolerance=0.1) for x in (x0, x0[:4]))
    for t in (0.5, 5.0, 50.0):
        np.testing.assert_allclose(whole.at(t)[:4], first.at(t), atol=1e-3)


@pytest.mark.exhaustive_cases("form")
@pytest.mark.parametrize("query_key", [None, np.diag([1.0, 0.7, 1.2])], ids=["plain", "form"])
def test_a_multiple_of_the_identity_is_a_unit_of_time(query_key):
    x0 = sphere(5, 3, seed=1)
    one, three = (
        coarsen(field(9.0, value, query_key=query_key), x0, 1e300, tolerance=0.1) for value in (None, 3 * np.eye(3))
    )
    np.testing.assert_allclose(one.times, 3 * three.times, rtol=1e-9)


def test_an_offset_is_a_unit_of_time():
    x0 = sphere(5, 3, seed=1)
    plain, shifted = (
        coarsen(field(20.0, normalised=False, offset=offset), x0, 1e300, tolerance=0.1) for offset in (0.0, 20.0)
    )
    np.testing.assert_allclose(plain.times * np.exp(20.0), shifted.times, rtol=1e-9)


def test_exact_equilibria_stay():
    for x0 in (on_the_circle(0.0, np.pi), on_the_circle(*np.arange(4) * np.pi / 2), np.eye(3)[:1]):
        tree = coarsen(field(9.0), x0, 1e300, tolerance=0.1)
        assert len(tree) == 0 and "0 mergers" in repr(tree) and tree.bound.shape == (0,)
        np.testing.assert_allclose(tree.at(1e299), x0, atol=1e-15)


def test_pulls_that_cancel_to_rounding_are_rest():
    """Three tokens and three opposite ones at inexact places have a sum of some 1e-17."""
    x0 = cloud("line through zero", 6, 3, seed=40, sphere=True)
    tree = coarsen(field(0.0, VALUE), x0, 10.0, tolerance=0.2)
    assert len(tree) == 4 and np.all(tree.times == 0) and tree.num_steps == 0
    np.testing.assert_allclose(tree.at(10.0), x0, atol=1e-15)


def test_tokens_at_one_point_merge_at_time_zero():
    x0 = np.concatenate([sphere(3, 3)] * 2)
    tree = coarsen(field(30.0), x0, 1e300, tolerance=0.1)
    doubled = coarsen(field(30.0, masses=np.full(3, 2.0)), x0[:3], 1e300, tolerance=0.1)
    assert tree.times[:3].tolist() == [0, 0, 0] and tree.bound[:3].tolist() == [0, 0, 0]
    np.testing.assert_allclose(tree.times[3:], doubled.times, rtol=1e-8)


def test_it_ends_where_it_is_told():
    x0 = on_the_circle(0.0, 1.0, 2.9)
    whole = coarsen(field(20.0), x0, 1e300, tolerance=0.1)
    middle = float(np.sqrt(whole.times[0] * whole.times[1]))
    part = coarsen(field(20.0), x0, middle, tolerance=0.1)
    assert part.times.tolist() == whole.times[:1].tolist() and part.t_end == middle
    np.testing.assert_allclose(part.at(middle), whole.at(middle), atol=1e-9)


def test_float32_tokens_are_followed_in_float64():
    x0 = jnp.asarray(on_the_circle(0.0, np.pi / 2), jnp.float32)
    tree = coarsen(field(jnp.asarray(80.0, jnp.float32)), x0, 1e300, tolerance=0.1)
    assert tree.at(1e10).dtype == jnp.float32 and 1e32 < tree.times[0] < 1e36


# --- refusals


GOOD = {"x0": sphere(3, 3), "t_end": 10.0, "tolerance": 0.1}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"field": field(1.0, -np.eye(3))}, "value must attract tokens that met, but .* is -1"),
        ({"field": field(1.0, -VALUE @ VALUE.T)}, "value must attract"),
        ({"field": cjx.PerceptronField(np.ones((4, 3)), np.ones((3, 4)))}, "field must be an AttentionField"),
        ({"field": cjx.AttentionField(cjx.HardmaxAttention())}, "must be SoftmaxAttention or Unnormalised"),
        ({"field": cjx.AttentionField(cjx.SoftmaxAttention(1.0), space=cjx.Euclidean())}, "must be Sphere"),
        (
            {"field": cjx.AttentionField(cjx.SoftmaxAttention(1.0, mask=cjx.WindowMask(1)))},
            "mask must be FullMask.. or CausalMask..",
        ),
        ({"field": field(lambda t: 1.0 + t)}, "beta must not depend on time"),
        ({"field": field(1.0, lambda t: (1.0 + t) * jnp.eye(3))}, "value must not depend on time"),
        ({"field": field(1.0, VALUE), "t_end": 1e14}, "t_end must be at most .* rounding"),
        ({"t_end": 0.0}, "t_end must"),
        ({"t_end": -1.0}, "t_end must be a finite number above 0"),
        ({"tolerance": 0.0}, "tolerance must"),
        ({"tolerance": 2.0}, "tolerance must"),
        ({"tolerance": 1e-9}, "tolerance must .* float64 can hold"),
        ({"tolerance": 1e-5, "x0": jnp.asarray(sphere(3, 3), jnp.float32)}, "tolerance must .* float32 can hold"),
        ({"x0": np.ones((2, 2)), "field": field(1.0, VALUE)}, "value must act on tokens of dimension 2"),
        ({"max_steps": 0}, "max_steps must"),
    ],
)
def test_bad_input(wrong, message):
    arguments = {"field": field(1.0)} | GOOD | wrong
    with pytest.raises(ValueError, match=message):
        coarsen(arguments.pop("field"), arguments.pop("x0"), arguments.pop("t_end"), **arguments)


def test_masses_that_are_all_zero():
    with pytest.raises(ValueError, match="masses must be .* not all zero"):
        field(1.0, masses=np.zeros(3))


def test_times_outside():
    tree = coarsen(field(1.0), GOOD["x0"], 10.0, tolerance=0.1)
    for method in (tree.at, tree.clusters):
        for t in (-1.0, 10.5, float("nan")):
            with pytest.raises(ValueError, match="t must be a finite number from 0 to 10.0"):
                method(t)


def test_too_few_steps():
    with pytest.raises(RuntimeError, match="coarsen stopped at t = .* after 5 steps"):
        coarsen(field(1.0), GOOD["x0"], 10.0, tolerance=0.1, max_steps=5)
