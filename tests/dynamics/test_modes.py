"""`modes` and `lipschitz` against the product rule in loops, closed forms, and runs."""

import diffrax as dfx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse.linalg
from scipy.special import ive

import clusterjax as cjx
from clusterjax._dynamics import modes as _modes
from tests.attention_cases import BETA, FORM, MASKS, MASSES, D, N, X
from tests.clouds import CLOUDS, cloud
from tests.helpers import as_a_user, normal, sphere_tokens
from tests.oracles import circle_tokens
from tests.reference import attention as attention_reference
from tests.reference.jacobians import jacobian


VALUE = normal(11, D, D)
# Complex eigenvalues of V make complex modes.
TURN = np.asarray(VALUE) / 4 + np.array([[0.0, -2.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
SUMMATIONS = {"full": cjx.Auto(), "causal": cjx.Blocked(4), "window": cjx.Dense()}


def loops(
    x, *, beta=BETA, form=None, value=None, allowed=attention_reference.full, masses=None, softmax=True, **options
):
    """The reference Jacobian, as a matrix of n d rows."""
    x = np.asarray(x, float)
    points = x / np.linalg.norm(x, axis=1, keepdims=True) if options.get("sphere", True) else x
    weigh = attention_reference.softmax_weights if softmax else attention_reference.unnormalised_weights
    weights = weigh(points, beta, form, allowed, masses)
    return jacobian(x, weights, beta, form, value, normalised=softmax, **options).reshape(x.size, x.size)


def assert_modes_of(found, matrix, *, all_of_them=True, atol=1e-12):
    """Each pair is an eigenpair of `matrix`; all values together have its trace and the trace of its square."""
    scale = max(np.abs(matrix).max(), 1e-300)
    k = len(found.values)
    vectors = found.modes.reshape(k, -1)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=atol)
    errors = np.linalg.norm(vectors @ matrix.T - found.values[:, None] * vectors, axis=1)
    np.testing.assert_allclose(errors, 0, atol=20 * atol * scale)
    np.testing.assert_allclose(found.residuals, 0, atol=20 * atol * scale)
    if all_of_them:
        assert k == found.total
        np.testing.assert_allclose(found.values.sum(), np.trace(matrix), atol=20 * atol * scale * k)
        square = np.trace(matrix @ matrix)
        np.testing.assert_allclose((found.values**2).sum(), square, atol=20 * atol * (scale + scale**2) * k**2)


@pytest.mark.parametrize("mask", SUMMATIONS)
@pytest.mark.parametrize("kind", ["softmax", "unnormalised"])
@pytest.mark.parametrize("sphere", [True, False], ids=["sphere", "plane"])
def test_modes_are_those_of_the_product_rule(sphere, kind, mask):
    ours, allowed = MASKS[mask]
    attention = cjx.SoftmaxAttention if kind == "softmax" else cjx.UnnormalisedAttention
    attention = attention(BETA, query_key=FORM, mask=ours, summation=SUMMATIONS[mask])
    space = cjx.Sphere() if sphere else cjx.Euclidean()
    field = cjx.AttentionField(attention, VALUE, space, masses=MASSES)
    # Tokens off the sphere are retracted first.
    x = X * jnp.linspace(0.5, 2.0, N)[:, None]
    matrix = loops(
        x, form=FORM, value=VALUE, allowed=allowed, masses=MASSES, softmax=kind == "softmax", sphere=sphere
    )  # fmt: skip
    found = cjx.modes(field, x, N * (D - 1) if sphere else N * D)
    assert_modes_of(found, matrix)
    assert np.all(np.diff(np.abs(found.values)) > -1e-6)
    assert cjx.lipschitz(field, x) == pytest.approx(np.linalg.norm(matrix, 2), rel=1e-12)


@pytest.mark.parametrize("name", CLOUDS)
def test_degenerate_clouds(name):
    x = cloud(name, 8, 3, sphere=True)
    field = cjx.AttentionField(cjx.SoftmaxAttention(4.0))
    matrix = loops(x, beta=4.0)
    assert_modes_of(cjx.modes(field, jnp.asarray(x), 16, which="growing"), matrix)
    assert cjx.lipschitz(field, jnp.asarray(x)) == pytest.approx(np.linalg.norm(matrix, 2), rel=1e-12)
    single = cjx.modes(field, jnp.asarray(x, jnp.float32), 16)
    assert single.values.dtype == single.modes.dtype == np.complex64 and single.residuals.dtype == np.float32
    assert_modes_of(single, loops(np.asarray(x, np.float32), beta=4.0), atol=1e-5)


def test_the_order():
    field = cjx.AttentionField(cjx.SoftmaxAttention(BETA, query_key=FORM), TURN)
    slowest, fastest, growing = (cjx.modes(field, X, N * (D - 1), which=w) for w in ("slowest", "fastest", "growing"))
    assert np.abs(slowest.values.imag).max() > 0.01
    assert np.all(np.diff(np.abs(slowest.values)) > -1e-6) and np.all(np.diff(np.abs(fastest.values)) < 1e-6)
    assert np.all(np.diff(growing.values.real) < 1e-12)
    few = cjx.modes(field, X, 3, which="growing")
    np.testing.assert_array_equal(few.values, growing.values[:3])
    assert few.total == N * (D - 1) and few.modes.shape == (3, N, D)
    # The first of a conjugate pair has the positive imaginary part, and the largest entry of a mode is positive.
    pairs = growing.values[np.abs(growing.values.imag) > 1e-9]
    assert np.all(pairs[::2].imag > 0) and np.allclose(pairs[::2], pairs[1::2].conj())
    flat = growing.modes.reshape(len(growing.values), -1)
    largest = flat[np.arange(len(flat)), np.abs(flat).argmax(axis=1)]
    assert np.all(largest.real > 0) and np.abs(largest.imag).max() < 1e-12


@pytest.mark.exhaustive_cases(
    "False-float64-slowest", "False-float64-fastest", "True-float32-growing", "False-float64-growing"
)
@pytest.mark.parametrize("which", ["slowest", "fastest", "growing"])
@pytest.mark.parametrize(("moving", "dtype"), [(False, jnp.float64), (True, jnp.float64), (True, jnp.float32)])
def test_many_coordinates_give_what_few_give(which, moving, dtype, monkeypatch):
    """The iteration agrees with the dense decomposition, for complex modes (by V) and repeated modes (by repeats)."""
    x = jnp.asarray(cloud("repeats", 24, 3, sphere=True), dtype)
    # The slowest modes converge where others are much faster, as at clusters.
    attention, value = cjx.SoftmaxAttention(3.0, mask=cjx.WindowMask(9)), TURN
    if which == "slowest":
        attention, value = cjx.SoftmaxAttention(30.0), None
    field = cjx.AttentionField(attention, value)
    dense = cjx.modes(field, x, 6, which=which, moving=moving)
    monkeypatch.setattr(_modes, "_DENSE", 8)
    sparse = cjx.modes(field, x, 6, which=which, moving=moving)
    tolerance = 1e-10 if dtype == jnp.float64 else 2e-4
    np.testing.assert_allclose(sparse.values, dense.values, atol=tolerance)
    np.testing.assert_allclose(sparse.residuals, 0, atol=tolerance)
    assert sparse.total == dense.total == 48 - moving
    # The last term of the tolerance is the error of central differences.
    expected = np.linalg.norm(loops_of(field, x.astype(float)), 2)
    assert cjx.lipschitz(field, x) == pytest.approx(expected, rel=tolerance + 1e-7)


def loops_of(field, x):
    """The Jacobian J of any field, by central differences of its velocity."""
    x = np.asarray(field.space.retract(x), float)
    flat = lambda z: np.asarray(field(0.0, jnp.asarray(z.reshape(x.shape)))).reshape(-1)
    columns = [(flat(x.reshape(-1) + 1e-6 * u) - flat(x.reshape(-1) - 1e-6 * u)) / 2e-6 for u in np.eye(x.size)]
    return np.stack(columns, axis=1) if not isinstance(field.space, cjx.Sphere) else _tangent(x) @ np.stack(columns, 1)


def _tangent(x):
    n, d = x.shape
    return np.eye(n * d) - np.einsum("ia,ib,ij->iajb", x, x, np.eye(n)).reshape(n * d, n * d)


def test_all_copies_of_repeated_eigenvalues_are_found(monkeypatch):
    """Independent equal parts repeat every eigenvalue, and one Krylov space need not contain all copies."""
    monkeypatch.setattr(_modes, "_DENSE", 8)
    rates = jnp.repeat(jnp.arange(1.0, 31.0), 3)
    field = cjx.FunctionField(lambda t, x, args: rates.reshape(x.shape) * x, cjx.Euclidean())
    found = cjx.modes(field, jnp.zeros((30, 3)), 8, which="growing")
    np.testing.assert_allclose(found.values, [30, 30, 30, 29, 29, 29, 28, 28], atol=1e-10)
    found = cjx.modes(field, jnp.zeros((30, 3)), 5, which="slowest")
    np.testing.assert_allclose(found.values, [1, 1, 1, 2, 2], atol=1e-10)


@pytest.mark.parametrize(
    ("which", "others"), (("growing", (-0.99, 0.99)), ("slowest", (1.01, 3.0)), ("fastest", (-0.99, 0.99)))
)
def test_copies_that_a_first_search_cannot_see_are_found(monkeypatch, which, others):
    """A first search that begins without components along three of four copies cannot find these copies."""
    monkeypatch.setattr(_modes, "_DENSE", 8)
    search, calls = scipy.sparse.linalg.eigs, []

    def blind(operator, k, v0, **options):
        calls.append(k)
        assert len(calls) < 20, "each search must find another copy, and the last one none"
        return search(operator, k, v0=np.where(np.arange(300) < (3 if len(calls) == 1 else 0), 0, v0), **options)

    monkeypatch.setattr(scipy.sparse.linalg, "eigs", blind)
    rates = jnp.concatenate([jnp.ones(4), jnp.linspace(*others, 296)])
    four = cjx.FunctionField(lambda t, x, args: rates.reshape(x.shape) * x, cjx.Euclidean())
    np.testing.assert_allclose(cjx.modes(four, jnp.zeros((100, 3)), 4, which=which).values, 1, atol=1e-10)
    assert len(calls) > 3


FIELDS = {
    "heads": cjx.MultiHeadField(jnp.asarray([1.0, 3.0]), jnp.stack([FORM, -FORM]), jnp.stack([VALUE, FORM])),
    "sum": cjx.AttentionField(cjx.SoftmaxAttention(2.0)) + cjx.PerceptronField(VALUE, FORM, jnp.tanh),
    "scaled": -2.0 * cjx.AttentionField(cjx.SoftmaxAttention(2.0)),
    "kernel": cjx.AttentionField(cjx.KernelAttention(lambda s: 1 + s**2)),
    "rescaled": cjx.RescaledField(cjx.SoftmaxAttention(1.0), VALUE / 4),
    "schedule": cjx.AttentionField(cjx.SoftmaxAttention(cjx.Interpolated([0.0, 1.0], [1.0, 3.0]))),
}


@pytest.mark.exhaustive_cases("heads", "kernel", "rescaled")
@pytest.mark.parametrize("name", FIELDS)
def test_any_field(name):
    field = FIELDS[name]
    found = cjx.modes(field, X, N * (D if name == "rescaled" else D - 1), t=0.0)
    matrix = loops_of(field, X)
    np.testing.assert_allclose(found.values.sum(), np.trace(matrix), atol=1e-7)
    flat = found.modes.reshape(len(found.values), -1)
    np.testing.assert_allclose(flat @ matrix.T, found.values[:, None] * flat, atol=1e-7)


def test_time_and_arguments():
    field = cjx.AttentionField(cjx.SoftmaxAttention(cjx.Interpolated([0.0, 1.0], [1.0, 3.0])))
    late = cjx.modes(field, X, 3, 1.0)
    np.testing.assert_allclose(late.values, cjx.modes(cjx.AttentionField(cjx.SoftmaxAttention(3.0)), X, 3).values)
    own = cjx.FunctionField(lambda t, x, args: args * x, cjx.Euclidean())
    np.testing.assert_allclose(cjx.modes(own, X, 2, 0.0, jnp.asarray(-3.0)).values, -3)
    assert cjx.lipschitz(own, X, 0.0, jnp.asarray(-3.0)) == pytest.approx(3)
    assert cjx.lipschitz(field, X, 1.0) == pytest.approx(np.linalg.norm(loops(X, beta=3.0), 2))


# Closed forms.


def polygon_rates(n, beta, softmax):
    """The rates of the regular polygon by Fourier mode, in units of e^beta: oracle 1.5."""
    k, m = np.arange(n)[None, :], np.arange(-20, 21)[:, None]
    series = lambda q: q**2 * ive(np.abs(q), beta) / beta
    rates = np.sum(series(k + m * n) - series(m * n), axis=0)
    return rates / np.sum(ive(np.abs(m * n), beta)) if softmax else rates


@pytest.mark.parametrize("softmax", [True, False])
@pytest.mark.parametrize("beta", [1.0, 5.0, 9.0])
def test_regular_polygon_of_eight_tokens(softmax, beta):
    attention = cjx.SoftmaxAttention(beta) if softmax else cjx.UnnormalisedAttention(beta, offset=beta)
    found = cjx.modes(cjx.AttentionField(attention), jnp.asarray(circle_tokens(2 * np.pi * np.arange(8) / 8)), 8)
    expected = polygon_rates(8, beta, softmax)
    np.testing.assert_allclose(np.sort(found.values.real), np.sort(expected), rtol=0, atol=1e-14)
    assert np.abs(found.values.imag).max() < 1e-14


@pytest.mark.parametrize("n", [100, pytest.param(10_000, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("softmax", [True, False])
def test_regular_polygon_of_many_tokens(n, softmax, monkeypatch):
    """The eigenvalues are pairs, and both values of a pair are found."""
    monkeypatch.setattr(_modes, "_DENSE", 8)
    beta = 9.0
    attention = cjx.SoftmaxAttention(beta) if softmax else cjx.UnnormalisedAttention(beta, offset=beta)
    x = jnp.asarray(circle_tokens(2 * np.pi * np.arange(n) / n))
    found = cjx.modes(cjx.AttentionField(attention), x, 9, which="fastest")
    expected = polygon_rates(n, beta, softmax)
    expected = expected[np.argsort(-np.abs(expected))][:9]
    np.testing.assert_allclose(found.values, expected, rtol=1e-10)
    assert found.residuals.max() < 1e-13
    assert cjx.lipschitz(cjx.AttentionField(attention), x) == pytest.approx(expected[0], rel=1e-10)


@pytest.mark.parametrize("kind", ["softmax", "unnormalised", "causal"])
def test_consensus(kind):
    """The rates of oracles 1.4 and C3 are 0 (d - 1 times) and -1, or -(k - 1)/k for token k, for any Q and K."""
    n, d = 5, 3
    x = jnp.broadcast_to(jnp.asarray([0.6, 0.0, 0.8]), (n, d))
    mask = cjx.CausalMask() if kind == "causal" else cjx.FullMask()
    attention = cjx.SoftmaxAttention(2.0, query_key=normal(3, d, d), mask=mask)
    rates = np.repeat([k / (k + 1) for k in range(n)], 2) if kind == "causal" else np.repeat([0, 1, 1, 1, 1], 2)
    if kind == "unnormalised":
        attention, rates = cjx.UnnormalisedAttention(2.0), np.exp(2.0) * rates
    found = cjx.modes(cjx.AttentionField(attention), x, n * (d - 1), which="growing")
    np.testing.assert_allclose(found.values, -rates, atol=1e-12)


def test_uniform_density():
    """A mean field is linearised like any field: its rates at the uniform density are those of the theory."""
    mean_field = cjx.MeanField(cjx.SoftmaxAttention(4.0), d=2, degree=24)
    uniform = jnp.zeros((25, 2)).at[0, 0].set(1.0)
    found = cjx.modes(mean_field, uniform, 6, which="growing")
    expected = np.sort(np.repeat(np.asarray(cjx.uniform_growth_rates(4.0, 2, max_degree=8)), 2))[::-1]
    np.testing.assert_allclose(found.values, expected[:6], rtol=1e-9)


# The frame that moves with the curve.


def test_the_direction_of_motion_is_removed():
    field = cjx.AttentionField(cjx.SoftmaxAttention(BETA, query_key=FORM), VALUE)
    found = cjx.modes(field, X, N * (D - 1) - 1, moving=True)
    velocity = np.asarray(field(0.0, X)).reshape(-1)
    velocity = velocity / np.linalg.norm(velocity)
    across = np.eye(N * D) - np.outer(velocity, velocity)
    assert_modes_of(found, across @ loops(X, form=FORM, value=VALUE) @ across)
    np.testing.assert_allclose(found.modes.reshape(-1, N * D) @ velocity, 0, atol=1e-12)


def test_rates_across_a_curve_are_those_of_neighbouring_curves():
    """Along a curve in the plane the distance of a neighbour, across the curve, changes at the rate of the one mode."""
    pull = jnp.asarray([[-1.0, 2.0], [0.5, -3.0]])
    field = cjx.FunctionField(lambda t, x, args: x @ pull.T + jnp.sin(x), cjx.Euclidean())
    start = jnp.asarray([[1.0, 0.4]])
    ts = jnp.asarray([0.0, 1e-3])
    (rate,) = cjx.modes(field, start, 1, moving=True).values

    def distance(x, other):
        """The distance of `other` from the curve through x, to first order along the curve."""
        velocity = np.asarray(field(0.0, x))[0]
        gap = np.asarray(other - x)[0]
        return abs(gap @ np.array([-velocity[1], velocity[0]])) / np.linalg.norm(velocity)

    fine = dfx.PIDController(rtol=1e-12, atol=1e-14)
    x, other = (
        cjx.simulate(field, s, ts, stepsize_controller=fine).x1 for s in (start, start + jnp.asarray([[1e-6, -2e-6]]))
    )
    before = distance(start, start + jnp.asarray([[1e-6, -2e-6]]))
    assert np.log(distance(x, other) / before) / 1e-3 == pytest.approx(rate.real, rel=5e-3)


def test_tokens_at_rest_have_no_direction_of_motion():
    field = cjx.AttentionField(cjx.SoftmaxAttention(2.0))
    polygon = jnp.asarray(circle_tokens(2 * np.pi * np.arange(7) / 7))
    with pytest.raises(ValueError, match="moving must be False where tokens rest, but it is True"):
        cjx.modes(field, polygon, 2, moving=True)
    with pytest.raises(ValueError, match="moving must be False where tokens rest"):
        cjx.modes(field, jnp.ones((3, 2), jnp.float32), 2, moving=True)


# Clusters.


def heaps(angles, sizes, beta, width=0.0):
    """The tokens of clusters on the circle, and the field."""
    places = np.repeat(angles, sizes) + width * np.random.default_rng(0).normal(size=sum(sizes))
    order = np.random.default_rng(1).permutation(len(places))
    return jnp.asarray(circle_tokens(places[order])), cjx.AttentionField(cjx.SoftmaxAttention(beta))


@pytest.mark.parametrize("angle", [1.3, 1.4])
@pytest.mark.parametrize("sizes", [(1, 1), (4, 2)])
def test_the_mode_of_two_clusters_and_their_merger(angle, sizes):
    """The rate of the mode in which two clusters approach each other is one over the time to their merger.

    With gap phi the speed is g(phi) = C sin(phi) exp(beta cos(phi)) and the rate of the mode -g' = g h', h = -log g.
    The time to the merger is the integral of 1/g = e^h, by Laplace's method (1/(g h')) (1 + h''/h'^2 + ...), so that
    rate times time is 1 + (beta cos(phi) + 1/sin(phi)^2)/(beta sin(phi) - cot(phi))^2 + ...: one to 1 % at beta = 40.
    """
    x, field = heaps(np.array([0.3, 0.3 + angle, 0.3 + angle + 2.0]), (*sizes, 3), 40.0)
    tree = cjx.coarsen(field, x, 1e300, tolerance=0.01)
    time = tree.times[tree.times > 1.0][0]
    found = cjx.modes(field, x, 3, which="growing")
    rate = found.values[0].real
    assert rate * time == pytest.approx(1, rel=0.01)
    slope = 40 * np.sin(angle) - 1 / np.tan(angle)
    second = (40 * np.cos(angle) + 1 / np.sin(angle) ** 2) / slope**2
    assert rate * time == pytest.approx(1 + second, rel=3e-3)
    # The two clusters approach each other in this mode, and the third cluster rests.
    by_angle = np.einsum("nd,nd->n", found.modes[0].real, np.asarray(x)[:, ::-1] * np.array([-1.0, 1.0]))
    labels = np.asarray(cjx.cluster_labels(x, 0.1))
    means = {label: by_angle[labels == label].mean() for label in set(labels)}
    assert sorted(np.sign(np.round(list(means.values()), 2))) == [-1, 0, 1]


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("width", [0.0, 0.02])
def test_memberships_are_clusters(d, width):
    rng = np.random.default_rng(d)
    centres = np.array([[1.0, 0, 0], [0, 1, 0], [-0.6, -0.8, 0], [0, 0, 1]])[: d + 1, :d]
    x = np.repeat(centres, [5, 2, 1, 4][: d + 1], axis=0)
    x = x[rng.permutation(len(x))] + width * rng.normal(size=x.shape)
    x = cjx.Sphere().retract(jnp.asarray(x))
    labels = np.asarray(cjx.cluster_labels(x, 0.3))
    assert len(set(labels)) == d + 1
    found = cjx.modes(cjx.AttentionField(cjx.SoftmaxAttention(20.0)), x, (d + 1) * (d - 1) + 2)
    assert np.sum(np.abs(found.values) < 0.2) == (d + 1) * (d - 1)
    np.testing.assert_array_equal(found.memberships(0.2), labels)
    assert found.memberships(0.2).dtype.kind == "i"


@pytest.mark.parametrize(("gap", "joined"), [(0.49, True), (0.51, False)])
def test_the_threshold_of_memberships(gap, joined):
    """Tokens are joined where sqrt(n) = 2 times the distance of their rows is at most one."""
    rest = np.sqrt((1 - gap**2 / 2) / 2)
    mode = np.array([[[-gap / 2, 0.0], [gap / 2, 0.0], [0.0, rest], [0.0, -rest]]], complex)
    found = cjx.Modes(np.zeros(1, complex), mode, np.zeros(1), 1)
    assert found.memberships(1.0).tolist() == [0, 0 if joined else 1, 2, 3]


def test_memberships_with_a_rate_that_is_no_threshold():
    x, field = heaps(np.array([0.0, 1.6, 3.9]), (4, 3, 3), 20.0)
    found = cjx.modes(field, x, 4)
    with pytest.raises(ValueError, match="rate must be below the speed of one mode, but it is 9"):
        found.memberships(9.0)
    with pytest.raises(ValueError, match="rate must be at least the speed of one mode, but it is 1e-300"):
        cjx.modes(field, x, 4, which="fastest").memberships(1e-300)
    # With all modes no mode is left out, and every rate is allowed.
    assert len(set(cjx.modes(field, x, 10).memberships(9.0))) == 10


# The local Lipschitz constant.


def test_the_constant_grows_as_the_square_root_where_all_attend_to_one():
    """The order sqrt(n) of 2312.14820 is attained: every output is the first token, and J has n identity blocks."""
    field = cjx.AttentionField(cjx.SoftmaxAttention(4.0), space=cjx.Euclidean())
    for n in (16, 128, 600):
        x = jnp.concatenate([jnp.asarray([[9.0, 0.0]]), jnp.tile(jnp.asarray([1.0, 0.0]), (n - 1, 1))])
        assert cjx.lipschitz(field, x) == pytest.approx(np.sqrt(n), rel=1e-6)


@pytest.mark.exhaustive
def test_the_constant_of_uniform_tokens_does_not_grow():
    field = cjx.AttentionField(cjx.SoftmaxAttention(4.0))
    constants = [cjx.lipschitz(field, sphere_tokens(0, n, 2)) for n in (64, 512)]
    assert max(constants) / min(constants) < 1.3


def test_a_field_without_derivative_of_its_own():
    """A velocity that does not depend on the tokens has J = 0, and zero for all modes."""
    still = cjx.FunctionField(lambda t, x, args: 0 * x, cjx.Euclidean())
    assert np.all(cjx.modes(still, X, 4).values == 0) and cjx.lipschitz(still, X) == 0


# Errors.


def test_bad_input(monkeypatch):
    field = cjx.AttentionField(cjx.SoftmaxAttention(2.0))
    with pytest.raises(ValueError, match="k must be an integer from 1 to 18, but it is 19"):
        cjx.modes(field, X, 19)
    with as_a_user(), pytest.raises(ValueError, match="which must be one of 'slowest', 'fastest', 'growing'"):
        cjx.modes(field, X, 2, which="SM")
    with pytest.raises(ValueError, match="field must have weights that are smooth in the tokens, but it has Hardmax"):
        cjx.modes(cjx.AttentionField(cjx.HardmaxAttention()), X, 2)
    with pytest.raises(ValueError, match="field must have weights that are smooth"):
        heads = cjx.MultiHeadField(
            1.0, FORM[None], FORM[None], attention=lambda beta, **options: cjx.HardmaxAttention(**options)
        )
        cjx.lipschitz(heads, X)
    with pytest.raises(ValueError, match="x must be of float32 or float64"):
        cjx.modes(field, X.astype(jnp.bfloat16), 2)
    with pytest.raises(ValueError, match="x must have a value, but it is traced"):
        jax.jit(lambda x: cjx.lipschitz(field, x))(X)
    with pytest.raises(ValueError, match="x must have at least two dimensions on the sphere"):
        cjx.modes(field, jnp.ones((3, 1)), 1)
    with pytest.raises(ValueError, match="x must have no zero row on the sphere"):
        cjx.modes(field, jnp.zeros((3, 2)), 1)
    monkeypatch.setattr(_modes, "_DENSE", 8)
    monkeypatch.setattr(_modes, "_RESTARTS", 1)
    with pytest.raises(RuntimeError, match="The iteration for 1 mode did not converge in 1 restarts"):
        spread = jnp.linspace(1.0, 1.01, 600).reshape(300, 2)
        cjx.modes(cjx.FunctionField(lambda t, x, args: spread * x, cjx.Euclidean()), spread, 1, which="slowest")
