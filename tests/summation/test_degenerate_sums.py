"""Degenerate clouds through every summation, mask, dtype and kind of attention, against loops over rows.

Averages and their derivatives by tokens, values and masses are compared; one program serves all clouds.
"""

import functools
import itertools

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.sharding import Mesh

import clusterjax as cjx
from tests.clouds import CLOUDS, MASSES, cloud, masses as masses_of
from tests.helpers import tolerance
from tests.reference import sums as reference


N, D, K = 150, 2, 3
BETA, OFFSET = 2.5, 0.75
FORM = np.array([[1.25, -0.5], [0.5, 0.75]])
GRAPH = np.random.default_rng(5).random((N, N)) < 0.3
np.fill_diagonal(GRAPH, True)
INDEX = np.arange(N)

MASKS = {
    "full": (cjx.FullMask(), lambda i: np.ones(N, bool)),
    "causal": (cjx.CausalMask(), lambda i: INDEX <= i),
    "window": (cjx.WindowMask(20, causal=True), lambda i: (INDEX <= i) & (INDEX > i - 20)),
    "matrix": (cjx.MatrixMask(GRAPH), lambda i: GRAPH[i]),
}
KINDS = ("softmax", "unnormalised", "hardmax")
BLOCKED = cjx.Blocked(32, 48)  # neither divides the tokens


def sharded(inner):
    return cjx.Sharded(inner, "tokens", Mesh(np.array(jax.devices()[:1]), ("tokens",)))


SUMMATIONS = {
    "Dense": lambda: cjx.Dense(),
    "Blocked": lambda: BLOCKED,
    "Harmonic": lambda: cjx.Harmonic(),
    "Hull": lambda: cjx.Hull(),
    "Fused": lambda: cjx.Fused(interpret=True),
    "Sharded": lambda: sharded(BLOCKED),
    "Sharded Harmonic": lambda: sharded(cjx.Harmonic()),
    "Auto": lambda: cjx.Auto(),
}

# The masks and kinds that some summations serve; the other summations serve all.
TWO = "full", "causal"
SERVES = {"Harmonic": (TWO, KINDS[:1]), "Sharded Harmonic": (TWO, KINDS[:1]), "Hull": (TWO, KINDS[2:])}
SERVES |= {"Fused": (MASKS, KINDS[:2])}
DTYPES = {"Fused": ("float32",)}
USUAL = (("Dense", "matrix", "float64"), ("Fused", "causal", "float32"))
CASES = [
    pytest.param(*case, kinds, marks=() if case in USUAL else pytest.mark.exhaustive)
    for summation in SUMMATIONS
    for masks, kinds in [SERVES.get(summation, (MASKS, KINDS))]
    for case in itertools.product((summation,), masks, DTYPES.get(summation, ("float32", "float64")))
]


@functools.cache
def data_of(shape, dtype):
    """Tokens, values, masses and the cotangent of each average, as NumPy arrays of the dtype."""
    which = list(CLOUDS).index(shape)
    rng = np.random.default_rng(which)
    x = cloud(shape, N, D, seed=which, sphere=True)
    masses = masses_of(MASSES[which % len(MASSES)], N, seed=which)
    data = x, rng.normal(size=(N, K)), masses, rng.normal(size=(3, N, K))
    return tuple(a.astype(dtype) for a in data)


@functools.cache
def expected(shape, mask, dtype):
    """Averages and derivatives by tokens, values and masses of each kind, and the rows that rounding decides."""
    x, values, masses, by = (a.astype(np.float64) for a in data_of(shape, dtype))
    seen, eps, none = MASKS[mask][1], float(np.finfo(dtype).eps), np.zeros(N)
    queries = x @ FORM

    def as_of_tokens(owed, beta):
        by_tokens = beta * owed[0] @ FORM.T + owed[1]
        return by_tokens - np.sum(by_tokens * x, axis=1, keepdims=True) * x, owed[2], owed[3]

    mean, log_sum, owed = reference.softmax(BETA * queries, x, values, masses, seen, by[0], none)
    total, paid = reference.unnormalised(BETA * queries, x, values, masses, seen, by[1], OFFSET)
    bounds = 64 * eps, 16 * eps
    unsure = reference.hardmax(queries, x, values, masses, seen, by[2], *bounds)[1]
    sure = np.where(unsure[:, None], 0, by[2])
    hard, _, by_hard = reference.hardmax(queries, x, values, masses, seen, sure, *bounds)
    return {
        "softmax": (mean, as_of_tokens(owed, BETA)),
        "unnormalised": (total, as_of_tokens(paid, BETA)),
        "hardmax": (hard, as_of_tokens(by_hard, 0.0)),
        "log": log_sum,
        "unsure": unsure,
    }


def attention_of(kind, mask, summation, form):
    how = {"query_key": form, "mask": MASKS[mask][0], "summation": SUMMATIONS[summation]()}
    if kind == "hardmax":
        return cjx.HardmaxAttention(**how)
    return (
        cjx.SoftmaxAttention(BETA, **how)
        if kind == "softmax"
        else cjx.UnnormalisedAttention(BETA, offset=OFFSET, **how)
    )


@functools.cache
def program(summation, mask, kinds):
    """Computes the averages of each kind, and the derivatives of a loss that depends on all of them."""

    @jax.jit
    def run(form, x, values, masses, by):
        def loss(x, values, masses):
            # Derivatives along the sphere: Harmonic has no others in the tokens that are attended to.
            x = x / jnp.sqrt(jnp.sum(x * x, axis=1, keepdims=True))
            found = {k: attention_of(k, mask, summation, form).average(x, values, 0.0, masses) for k in kinds}
            return sum(jnp.sum(by[KINDS.index(k)] * mean) for k, mean in found.items()), found

        gradients, found = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(x, values, masses)
        if "softmax" in kinds:
            found["log"] = attention_of("softmax", mask, summation, form).log_partition(x, 0.0, masses)
        return found, gradients

    return run


def assert_near(found, wanted, dtype, summation, what):
    """Errors relative to the largest number are within rounding, or for Harmonic within its certified tolerance."""
    allowed = tolerance(dtype, "composed") / (1 if dtype == "float64" else 3)
    if "Harmonic" in summation:
        allowed = {"float32": 5e-4, "float64": 1e-10}[dtype]
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted)
    assert np.all(np.isfinite(found)), what
    size = max(np.abs(wanted).max(), 1.0)
    worst = np.abs(found - wanted).max() / size
    assert worst <= allowed, (what, worst)


@pytest.mark.exhaustive_cases("Fused-causal-float32-kinds25")
@pytest.mark.parametrize(("summation", "mask", "dtype", "kinds"), CASES)
def test_averages_and_derivatives_are_those_of_the_loop(summation, mask, dtype, kinds):
    """Each cloud has masses of another kind; a row that sees nothing has an average of zero."""
    for shape in CLOUDS:
        x, values, masses, by = data_of(shape, dtype)
        wanted = expected(shape, mask, dtype)
        by = by.copy()
        by[2][wanted["unsure"]] = 0
        found, gradients = program(summation, mask, kinds)(FORM.astype(dtype), x, values, masses, by)
        for kind in kinds:
            mean = np.where(wanted["unsure"][:, None] & (kind == "hardmax"), wanted[kind][0], found[kind])
            assert_near(mean, wanted[kind][0], dtype, summation, (shape, kind))
        if "log" in found:
            some = np.isfinite(wanted["log"])
            assert np.all(np.asarray(found["log"])[~some] == -np.inf)
            assert_near(np.asarray(found["log"])[some], wanted["log"][some], dtype, summation, (shape, "log"))
        for k, name in enumerate(("tokens", "values", "masses")):
            paid = sum(wanted[kind][1][k] for kind in kinds)
            assert_near(gradients[k], paid, dtype, summation, (shape, name))


def test_the_clouds_have_ties_repeats_and_rows_that_see_nothing():
    """The comparison needs clouds with ties, repeats and empty rows; rounding decides few rows."""
    unsure, tied, empty = 0, 0, 0
    for shape in CLOUDS:
        wanted = expected(shape, "causal", "float64")
        unsure += wanted["unsure"].sum()
        empty += np.sum(np.isinf(wanted["log"]))
        tied += len(np.unique(data_of(shape, "float64")[0].round(9), axis=0)) < N / 2
    assert unsure < 0.05 * N * len(CLOUDS) and tied >= 6 and empty > N


# --- fields: values of None, masses of None, a batch of heads


HEADS = np.array([[[1.0, 0.25], [-0.5, 1.0]], [[-0.75, 0.0], [0.5, 1.5]]])
VALUES = np.array([[[0.5, 1.0], [0.0, 1.0]], [[1.0, 0.0], [-1.0, 0.25]]])
BETAS = np.array([1.5, 3.0])
T = 0.75


def shares(queries, tokens, seen):
    """The matrix of softmax attention."""
    return reference.softmax(queries, tokens, np.eye(N), np.ones(N), seen, np.zeros((N, N)), np.zeros(N))[0]


def heads_by_hand(x, seen):
    y = x / np.sqrt((x * x).sum(axis=1, keepdims=True))
    parts = zip(BETAS, HEADS, VALUES, strict=True)
    velocity = sum(shares(beta * y @ form, y, seen) @ y @ value.T for beta, form, value in parts)
    return velocity - (velocity * y).sum(axis=1, keepdims=True) * y


def rescaled_by_hand(z, seen):
    x = z @ scipy.linalg.expm(T * VALUES[0]).T
    return (shares(BETA * x @ FORM, x, seen) @ z - z) @ VALUES[0].T


@functools.cache
def expected_fields(shape, mask, dtype):
    """Velocities, and by central differences the derivative of a loss along a direction."""
    x, _, _, by = (a.astype(np.float64) for a in data_of(shape, dtype))
    out, h = [], 1e-5
    along = np.stack([by[1][:, 2], by[2][:, 2]], axis=1)
    for field, paid in ((heads_by_hand, by[0][:, :2]), (rescaled_by_hand, by[1][:, :2])):
        seen = MASKS[mask][1]
        rise = sum(w * np.sum(paid * field(x + s * h * along, seen)) for s, w in ((1, 8), (-1, -8), (2, -1), (-2, 1)))
        out.append((field(x, seen), rise / (12 * h)))
    return out, along


@functools.cache
def field_program(summation, mask, dtype):
    how = {"mask": MASKS[mask][0], "summation": SUMMATIONS[summation]()}
    betas, heads, values, form = (jnp.asarray(a.astype(dtype)) for a in (BETAS, HEADS, VALUES, FORM))
    several = cjx.MultiHeadField(betas, heads, values, **how)
    rescaled = cjx.RescaledField(cjx.SoftmaxAttention(BETA, query_key=form, **how), values[0])

    @jax.jit
    def run(x, by):
        def loss(x):
            found = several(T, x), rescaled(T, x)
            return sum(jnp.sum(by[k][:, :2] * velocity) for k, velocity in enumerate(found)), found

        gradient, found = jax.grad(loss, has_aux=True)(x)
        return found, gradient

    return run


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ("float32", "float64"))
@pytest.mark.parametrize(
    ("summation", "mask"),
    [
        (name, mask)
        for name in SUMMATIONS
        if "Sharded" not in name and name != "Fused" and "softmax" in SERVES.get(name, (MASKS, KINDS))[1]
        for mask in SERVES.get(name, (MASKS, KINDS))[0]
    ],
)
def test_fields_are_those_of_the_loop(summation, mask, dtype):
    for shape in CLOUDS:
        x, _, _, by = data_of(shape, dtype)
        wanted, along = expected_fields(shape, mask, dtype)
        found, gradient = field_program(summation, mask, dtype)(jnp.asarray(x), jnp.asarray(by))
        for velocity, (by_hand, _) in zip(found, wanted, strict=True):
            assert_near(velocity, by_hand, dtype, summation, shape)
        rise, by_hand = np.sum(np.asarray(gradient, np.float64) * along), sum(slope for _, slope in wanted)
        size = np.linalg.norm(gradient) * np.linalg.norm(along)
        allowed = 1e-7 if dtype == "float64" else 1e-3
        assert abs(rise - by_hand) <= allowed * max(size, 1.0), shape


# --- one, two and three tokens


@pytest.mark.exhaustive
@pytest.mark.parametrize("n", (1, 2, 3))
def test_one_to_three_tokens(n):
    """Every summation equals the loop for softmax and hardmax, full and causal, in one program."""
    names = ("Dense", "Blocked", "Harmonic", "Hull")
    masks = {"full": lambda i: np.ones(n, bool), "causal": lambda i: np.arange(n) <= i}

    @jax.jit
    def run(x):
        out = {}
        for name, mask in itertools.product(names, masks):
            if name != "Hull":
                out[name, mask, "softmax"] = attention_of("softmax", mask, name, None).average(x, None)
            if name != "Harmonic":
                out[name, mask, "hardmax"] = attention_of("hardmax", mask, name, None).average(x, None)
        return out

    for shape in ("generic", "antipodes", "one point", "heaps"):
        x = cloud(shape, n, D, sphere=True)
        for (name, mask, kind), found in run(jnp.asarray(x)).items():
            ones, none = np.ones(n), np.zeros((n, D))
            if kind == "softmax":
                wanted = reference.softmax(BETA * x, x, x, ones, masks[mask], none, 0 * ones)[0]
            else:
                wanted = reference.hardmax(x, x, x, ones, masks[mask], none, 1e-14, 0.0)[0]
            assert_near(found, wanted, "float64", name, (shape, mask, kind))


# --- scores of any size


# Sizes are powers of two, so that scores are exact and a tie is a tie.
SIZES = {"float32": (2.0**13, 2.0**24, 2.0**33, 2.0**66, 2.0**119), "float64": (2.0**13, 2.0**53, 2.0**332, 2.0**996)}


@pytest.mark.exhaustive_cases("float32-1", "float32-20", "float64-1", "float64-2")
@pytest.mark.parametrize("d", (1, 2, 20))
@pytest.mark.parametrize("dtype", SIZES)
def test_any_score_that_the_dtype_holds_gives_its_row(dtype, d):
    """In one dimension a compiler fuses product and shift; in twenty, scores are a matrix product."""
    n = 40
    x = (np.round(8 * np.random.default_rng(7).normal(size=(n, d))) / 8).astype(dtype)
    seen = (lambda i: np.ones(n, bool), lambda i: np.arange(n) <= i)
    sums = (cjx.Dense(), cjx.Blocked(7, 12), *((cjx.Fused(interpret=True),) if dtype == "float32" else ()))

    @eqx.filter_jit
    def run(beta, x):
        how = itertools.product((cjx.FullMask(), cjx.CausalMask()), sums)
        each = [cjx.SoftmaxAttention(beta, mask=mask, summation=summation) for mask, summation in how]
        return [(a.average(x, None), a.weights(x) @ x, a.log_partition(x)) for a in each]

    for size in SIZES[dtype]:
        for beta in (np.asarray(size, dtype), np.asarray(-size, dtype)):
            for k, (average, weighted, log_sum) in enumerate(run(jnp.asarray(beta), jnp.asarray(x))):
                wide, none = x.astype(np.float64), np.zeros((n, d))
                mean, logs, _ = reference.softmax(
                    float(beta) * wide, wide, wide, np.ones(n), seen[k // len(sums)], none, np.zeros(n)
                )
                for found in (average, weighted):
                    assert_near(found, mean, dtype, "", (size, k))
                assert_near(log_sum / size, logs / size, dtype, "", (size, k))


def test_scores_beyond_the_dtype_are_not_a_number():
    """Rows whose scores are infinite, of either sign, have no average."""
    x = jnp.asarray([[1e30, 0.0], [2e30, 0.0]], jnp.float32)
    for beta in (1.0, -1.0):
        for summation in (cjx.Dense(), cjx.Blocked(1, 1), cjx.Fused(interpret=True)):
            assert np.all(np.isnan(cjx.SoftmaxAttention(beta, summation=summation).average(x, None)))


# --- a mass of zero


@functools.partial(jax.jit, static_argnums=0)
def both_ways(fn, masses, along):
    """Returns the one-sided derivative of `fn`, extrapolated, since masses may not be negative; the derivative by
    forward mode; and products with weights by reverse and by forward mode."""
    h = 1e-5
    at, tangent = jax.vmap(lambda k: fn(masses + k * h * along))(jnp.arange(3.0)), jax.jvp(fn, (masses,), (along,))[1]
    weights = jnp.cos(jnp.arange(tangent.size, dtype=tangent.dtype)).reshape(tangent.shape)
    paid = jax.vjp(fn, masses)[1](weights)[0] @ along
    return (4 * at[1] - 3 * at[0] - at[2]) / (2 * h), tangent, paid, jnp.sum(weights * tangent)


def assert_one_sided(fn, masses, along):
    wanted, tangent, paid, due = both_ways(fn, masses, along)
    np.testing.assert_allclose(tangent, wanted, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(paid, due, rtol=1e-10)
    return wanted


def left_padded(n, d):
    """Tokens, masses that are zero for the first half of them, and positive changes of all masses."""
    x = cloud("generic", n, d, seed=3, sphere=True)
    masses = np.where(np.arange(n) < n // 2, 0.0, 0.5 + np.arange(n) / n)
    return tuple(jnp.asarray(a, float) for a in (x, masses, np.linspace(1.0, 2.0, n)))


@pytest.mark.exhaustive_cases("softmax-mask0-3", "unnormalised-mask1-6")
@pytest.mark.parametrize("d", (3, 6))
@pytest.mark.parametrize("mask", (cjx.FullMask(), cjx.CausalMask()))
@pytest.mark.parametrize("kind", ("softmax", "unnormalised", "kernel"))
def test_a_mass_of_zero_has_its_one_sided_derivative_in_a_batch_and_as_weights(kind, mask, d):
    """Few dimensions place the batch last, more take matrix products; a block of padding precedes the first token."""
    n, systems = 12, 20
    x, masses, along = left_padded(n, d)
    rng = np.random.default_rng(0)
    batch = jnp.asarray(np.stack([np.asarray(x)[rng.permutation(n)] for _ in range(systems)]), float)
    attention = {
        "softmax": cjx.SoftmaxAttention(4.0, mask=mask),
        "unnormalised": cjx.UnnormalisedAttention(2.0, mask=mask),
        "kernel": cjx.KernelAttention(lambda s: 1 / (1.5 - s), mask=mask),
    }[kind]
    of_batch = jax.vmap(lambda x, m: attention.average(x, None, 0.0, m)[n // 2 :], (0, None))
    for fn in (lambda m: of_batch(batch, m), lambda m: attention.weights(x, 0.0, m)[n // 2 :]):
        assert_one_sided(fn, masses, along)
        assert np.abs(assert_one_sided(fn, masses, np.where(masses > 0, 0, along))).max() > 0.01


@pytest.mark.exhaustive_cases("float32-1e+38-summation2", "float32-30.0-summation0", "float64-1e+200-summation0")
@pytest.mark.parametrize("summation", (cjx.Dense(), cjx.Blocked(3, 3), cjx.Blocked(1, 1)))
@pytest.mark.parametrize(
    ("dtype", "size"), (("float32", 30.0), ("float32", 1e3), ("float32", 1e38), ("float64", 1e200))
)
def test_a_token_without_mass_that_scores_far_above_the_others_changes_no_value(summation, dtype, size):
    """The derivative by its mass is e^{s_ij} (v_j - mean) / Z, or a finite number where this exceeds the dtype."""
    x = np.array([[size, size], [0.0, 1.0], [1.0, 0.0]], dtype)
    queries = np.array([[-1.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype)
    masses = np.array([0.0, 1.0, 1.0], dtype)
    attention = cjx.SoftmaxAttention(1.0, summation=summation)

    @jax.jit
    def compute(queries, x, masses):
        mean = lambda q, x, m: attention.between(q, x, x[:, :1] / size, 0.0, m)[:, 0]
        gradients = jax.grad(lambda *parts: jnp.sum(mean(*parts)), argnums=(0, 1, 2))(queries, x, masses)
        by_mass = jax.grad(lambda m: mean(queries, x, m)[1])(masses)[0]
        return mean(queries, x, masses), gradients, by_mass

    found, gradients, by_mass = compute(queries, x, masses)
    np.testing.assert_allclose(found, compute(queries, np.where(masses[:, None] > 0, x, 0), masses)[0])
    assert all(np.all(np.isfinite(g)) for g in gradients)
    if size == 30.0:
        partition, exact = 1 + np.e, np.e / (1 + np.e) / size
        np.testing.assert_allclose(by_mass, np.exp(size) * (1 - exact) / partition, rtol=1e-4)


@pytest.mark.exhaustive_cases("summation0")
@pytest.mark.parametrize("summation", (cjx.Dense(), cjx.Blocked(4, 3)))
def test_blocks_of_padding_before_the_first_token_have_derivatives_by_their_masses(summation):
    n = 40
    x, masses, along = left_padded(n, 3)
    average = lambda m: cjx.SoftmaxAttention(3.0, summation=summation).average(x, None, 0.0, m)
    assert_one_sided(average, masses, np.where(masses > 0, 0, along))


@pytest.mark.exhaustive
@pytest.mark.parametrize("attention", (cjx.SoftmaxAttention(2.0), cjx.UnnormalisedAttention(1.0)))
def test_a_run_has_the_one_sided_derivative_by_a_mass_of_zero(attention):
    x, masses, along = left_padded(8, 3)

    def end(m, adjoint=None):
        exact = dfx.PIDController(rtol=1e-11, atol=1e-12)
        field = cjx.AttentionField(attention, masses=m)
        return cjx.simulate(field, x, jnp.array([0.0, 1.0]), stepsize_controller=exact, adjoint=adjoint).x1

    h = 1e-5
    at = [np.asarray(end(masses + k * h * along)) for k in range(3)]
    wanted = (4 * at[1] - 3 * at[0] - at[2]) / (2 * h)
    forward = jax.jvp(lambda m: end(m, dfx.ForwardMode()), (masses,), (along,))[1]
    np.testing.assert_allclose(forward, wanted, atol=1e-6)
    paid = jax.grad(lambda m: jnp.sum(end(m) * x[::-1]))(masses)
    np.testing.assert_allclose(paid @ along, np.sum(wanted * x[::-1]), atol=1e-5)
