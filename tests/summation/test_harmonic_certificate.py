"""The certificate of `Harmonic`: no row errs by more than its bound, which has all its parts; and refusals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax._summation.collectives import Collectives
from clusterjax._summation.harmonic import summation as expand
from clusterjax._summation.harmonic.certificate import (
    ANGLES,
    Rounding,
    _compensated_add,
    _compensated_start,
    _compensated_total,
    _pairwise_sum,
    certified_error,
    make_rounding,
    relative_error,
    truncation_share,
)
from clusterjax._summation.harmonic.circle import CircleSeries
from clusterjax._summation.harmonic.series import (
    POWER,
    bessel_units,
    largest_length,
    number_of_harmonics,
    scaled_bessel,
)
from clusterjax._summation.harmonic.sphere import (
    SphereSeries,
    recurrence,
    recurrence_units,
)
from clusterjax._summation.harmonic.summation import _default_tolerance, _expand
from clusterjax._summation.harmonic.three_sphere import ThreeSphereSeries
from tests.oracles import unit_tokens


F32, F64 = np.float32, np.float64


@functools.partial(jax.jit, static_argnames=("causal", "tolerance"))
def found(queries, tokens, values, masses, causal=False, tolerance=0.1):
    return _expand(queries, tokens, values, masses, cjx.CausalMask() if causal else cjx.FullMask(), tolerance)


@pytest.fixture
def one_degree(monkeypatch):
    """Replaces several degrees by one, to compile less."""
    for d, size, degree in ((2, 4, 23), (2, 8, 28), (3, 4, 20), (3, 8, 30), (4, 4, 12), (4, 8, 16)):
        monkeypatch.setitem(expand.DEGREES, (d, size), ((degree,), ()))
    found.clear_cache()
    yield
    found.clear_cache()


def dense(queries, tokens, values, masses, row, seen):
    """Both sums of a row, in float64, divided by e^|q|."""
    q, y, v, m = (np.asarray(a, F64)[seen] for a in (queries, tokens, values, masses))
    q = np.asarray(queries[row], F64)
    weights = m * np.exp(y @ q - np.linalg.norm(q))
    return weights.sum(), weights @ v


def quotient(data, causal=False, rows=None, tolerance=0.1):
    """Returns the largest ratio of a row's error to its certified error, and the certified errors of all rows."""
    queries, tokens, values, masses = data
    sums, error = map(np.asarray, found(*data, causal, tolerance))
    values = tokens if values is None else values
    masses = np.ones(len(tokens)) if masses is None else masses
    largest = 1.0 if values is tokens else np.max(np.abs(values[masses > 0]), axis=0, initial=0)
    worst = 0.0
    for row in range(len(tokens)) if rows is None else rows:
        if not error[row] < 1 or sums[row, 0] == 0:
            continue
        whole, total = dense(queries, tokens, values, masses, row, slice(row + 1) if causal else slice(None))
        one = np.asarray(sums[row], F64)
        errors = np.abs(one[1:] / one[0] - total / whole) / largest
        worst = max(worst, max(errors.max(), abs(one[0] / whole - 1)) / error[row])
    return worst, error


def turned(angle, n=1001, dtype=F32):
    """All tokens are at one point of the circle, except one that is opposite."""
    angles = np.where(np.arange(n) < n - 1, angle, angle + np.pi)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(dtype)


# --- no row errs by more


def test_a_heap_and_its_antipode_turned(one_degree):
    """Equal tokens have equal rounding errors; rows of this cloud were once certified with thirteen times the error."""
    worst, least = 0.0, np.inf
    for angle in np.linspace(0, 2 * np.pi, 60):
        for beta in (1.9, 3.35):
            x = turned(angle)
            share, error = quotient(
                (F32(beta) * x, x, None, None), rows=(0, 1000), tolerance=_default_tolerance(2, F32)
            )
            worst, least = max(worst, share), min(least, error[-1])
    assert 0 < worst <= 1
    assert least > 5e-5  # the bound of the opposite row must not be as small as it once was
    assert error[0] < 1e-4


@pytest.mark.exhaustive_cases("2-float32-True")
@pytest.mark.parametrize(("d", "dtype", "causal"), ((2, F32, True), (3, F32, False), (4, F64, True)))
def test_values_and_masses_of_very_different_size(one_degree, d, dtype, causal):
    """Each column is measured by its own values, and values without mass do not count."""
    n, length = 300, {2: 9.0, 3: 8.0, 4: 2.0}[d]
    worst = 0.0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        x = unit_tokens(seed, n, d)
        if seed % 2:
            x = np.repeat(x[:3], n // 3, axis=0)[rng.permutation(n)]
        masses = np.where(rng.random(n) < 0.3, 0, 10 ** rng.uniform(-6, 6, n))
        values = rng.normal(size=(n, 3)) * np.asarray([1e-6, 1.0, 1e6])
        values[masses == 0] = 1e12
        data = tuple(a.astype(dtype) for a in (length * x, x, values, masses))
        worst = max(worst, quotient(data, causal, rng.permutation(n)[:20])[0])
    assert 0 < worst <= 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("d", (2, 3, 4))
@pytest.mark.parametrize("dtype", (F32, F64))
@pytest.mark.parametrize("causal", (False, True))
def test_many_clouds(d, dtype, causal):
    """Bounds hold for heaps, antipodes and isolated tokens at all norms that are served, with all degrees."""
    n, worst = 200, 0.0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        x = unit_tokens(seed, n, d)
        if seed % 3:
            few = x[: rng.integers(1, 5)]
            x = np.where(rng.random((n, 1)) < 0.02, -few[:1], few[rng.integers(0, len(few), n)])
        beta = {2: 100.0, 3: 95.0, 4: 8.0}[d] * 10 ** rng.uniform(-3, 0) * rng.choice((-1, 1))
        form = np.eye(d) if seed % 2 else np.diag(10 ** rng.uniform(-2, 0, d))
        data = ((beta * x @ form).astype(dtype), x.astype(dtype), None, None)
        share, _ = quotient(data, causal, rng.permutation(n)[:10], _default_tolerance(d, dtype))
        worst = max(worst, share)
    assert 0 < worst <= 1


@pytest.mark.exhaustive_cases("3-float32-9", "2-float64-9", "3-float64-5")
@pytest.mark.parametrize(("d", "dtype", "beta"), ((2, F32, 9), (3, F32, 9), (2, F64, 9), (3, F64, 5)))
def test_uniform_tokens_are_all_served(one_degree, d, dtype, beta):
    """The bound is useful: at the default tolerance no row of uniform tokens is refused."""
    x, tolerance = unit_tokens(0, 400, d).astype(dtype), _default_tolerance(d, dtype)
    assert np.all(np.asarray(found(dtype(beta) * x, x, None, None, False, tolerance)[1]) <= tolerance)


# --- each part of the bound


def test_errors_of_the_first_kind_are_relative_to_the_mass():
    lengths = jnp.asarray([0.0, 8.0])
    none = Rounding(0.0, 0.0, 0.0, 0.0, 3)
    error = lambda part, mass=5.0, noise=0.0: np.asarray(part.error(lengths, jnp.asarray(mass), jnp.full(2, noise)))
    unit = 1.01 * 2.0**-53
    np.testing.assert_array_equal(error(none), 0)
    np.testing.assert_allclose(error(none._replace(units=7.0)), 35 * unit)
    np.testing.assert_allclose(error(none._replace(growth=2.0)), [0, 40 * unit])  # sqrt(2 * 8) = 4
    np.testing.assert_allclose(error(none._replace(tail=1e-3)), 5.05e-3)
    np.testing.assert_allclose(error(none, noise=3.0), 3 * unit)
    np.testing.assert_allclose(error(none._replace(underflow=1e-9)), 6e-9)
    np.testing.assert_array_equal(error(none._replace(underflow=1e-9), mass=0.0), 0)


def test_how_the_moments_are_summed():
    """Sums are in any order within blocks, in pairs over blocks, compensated over chunks, and plain over devices."""
    make = lambda n=8192, equal=False, devices=1: make_rounding(
        CircleSeries(23, True), 8192, n, 2, F32, 0.0, equal, devices
    )
    assert make().units == pytest.approx(2**0.5 * (4 + 65 + 7 + 4), rel=1e-6)
    assert make(equal=True).units == pytest.approx(2**0.5 * (4 + 33 + 7 + 4), rel=1e-6)
    assert make(devices=4).units - make().units == pytest.approx(2**0.5 * 3, rel=1e-3)
    assert make(n=2**30).units - make().units == pytest.approx(2**0.5 * 2**34 / 2**24, rel=1e-3)
    assert make().growth == POWER and make().underflow >= 8192 * np.finfo(F32).tiny


def test_errors_of_the_second_kind_are_relative_to_the_sum():
    zero, unit = jnp.zeros(1), 2.0**-53
    relative = lambda length, differ=0.0, off=0.0, pairs=0: float(
        relative_error(jnp.full(1, length), zero + differ, jnp.asarray(off), 2, pairs)[0] / 1.01
    )
    np.testing.assert_allclose(relative(0.0), 4 * unit)
    np.testing.assert_allclose(relative(10.0), (10 * (ANGLES[2] + 2) + 4) * unit)
    np.testing.assert_allclose(relative(10.0, differ=0.25), 0.5)  # |t - 1| is up to 2
    np.testing.assert_allclose(relative(10.0, off=0.02), 0.11)
    np.testing.assert_allclose(relative(0.0, pairs=128), (128 + 8 + 4) * unit)


def test_an_average_bears_the_errors_of_both_sums():
    """An average adds the errors of both sums; sums that are NaN, infinite, negative or lost in errors are refused."""
    bad = np.nan, np.inf, -1.0, 0.0
    sums = jnp.asarray([[2.0, 1.0], [0.0, 0.0], *([b, 1.0] for b in bad), [1.0, np.nan], [1.0, 1.0]])
    error = jnp.asarray([0.5, 0, *(0.1 for _ in bad), 0.1, np.nan])
    found = np.asarray(certified_error(sums, error, jnp.full(8, 0.125)))
    np.testing.assert_array_equal(found, [0.5, 0, *(np.inf for _ in range(6))])


def test_columns_bear_their_own_errors_and_that_of_the_masses(one_degree):
    """An added column can only raise the bound, whatever its place; a column of zeros adds no error of its own.

    A column of ones errs as the masses do, so that it doubles the bound of columns of zeros, the error of the masses.
    """
    n = 64
    x = unit_tokens(1, n, 2)
    wave, flat = np.cos(7 * np.arctan2(x[:, 1], x[:, 0])), np.zeros(n)
    bound = lambda *columns: np.asarray(found(2 * x, x, np.stack(columns, axis=1), None)[1])
    one, two, other = bound(wave, flat), bound(flat, flat), bound(flat, wave)
    assert np.all(one > 1.5 * two) and np.all(two > 0)
    np.testing.assert_allclose(bound(np.ones(n), flat), 2 * two, rtol=1e-6)
    np.testing.assert_allclose(one, other, rtol=1e-12)
    np.testing.assert_allclose(bound(1e9 * wave, 1e-9 * wave), one, rtol=1e-9)


def test_a_column_is_measured_by_its_largest_value_that_has_mass():
    x, values = unit_tokens(0, 3, 2), np.asarray([[1.0, -5.0], [1e9, 0.0], [-2.0, 4.0]])
    masses = np.asarray([1.0, 0.0, 3.0])
    columns = lambda *args: tuple(map(np.asarray, expand._weighted_columns(*args, Collectives())))
    weighted, largest = columns(*map(jnp.asarray, (x, values, masses)))
    np.testing.assert_array_equal(largest, [1, 2, 5])
    np.testing.assert_array_equal(weighted, masses[:, None] * np.column_stack([np.ones(3), values]))
    weighted, largest = columns(jnp.asarray(x), None, jnp.asarray(masses))
    np.testing.assert_array_equal(largest, [1])
    np.testing.assert_array_equal(weighted, masses[:, None])


def test_causal_rows_bear_only_what_came_before(one_degree):
    """Heavy tokens after a chunk of 128 tokens do not change its rows; the first rows attend to nothing."""
    n, x = 300, unit_tokens(2, 300, 2)
    masses = np.where(np.arange(n) < 5, 0, 1.0)
    later = np.where(np.arange(n) >= 256, 1e9, masses)
    sums, one = map(np.asarray, found(3 * x, x, None, masses, True))
    other = np.asarray(found(3 * x, x, None, later, True)[1])
    np.testing.assert_array_equal(one[:256], other[:256])
    np.testing.assert_array_equal(one[:5], 0)
    assert np.all(one[128:] > 2 * one[6:128].max() / 3) and np.all(one[5:] > 0)
    for row in (5, 127, 128, 129, 255, 256, 299):
        whole, total = dense(3 * x, x, x, masses, row, slice(row + 1))
        np.testing.assert_allclose(sums[row], [whole, *total], rtol=0, atol=1e-12 * whole)


def test_sums_too_small_for_the_dtype_are_not_certified(one_degree):
    """Queries opposite to a heap have such low scores that all pairs of a chunk underflow, or nearly."""
    x = np.repeat(np.eye(2)[:1], 300, axis=0).astype(F32)
    for length, served in ((1.0, True), (10.0, False)):
        q = (np.where(np.arange(300) < 150, -length, length)[:, None] * x).astype(F32)
        error = np.asarray(found(q, x, None, np.full(300, 1e-28, F32), True)[1])
        assert np.all(np.isfinite(error[:128]) & (error[:128] < 0.1)) == served


@pytest.mark.exhaustive_cases("3-float64")
@pytest.mark.parametrize(("d", "dtype"), ((2, F64), (3, F64)))
def test_the_degree_leaves_the_tail_that_is_counted(monkeypatch, d, dtype):
    """For a token at its query, just within reach, the series lacks the tail, all of which the bound counts."""
    degree = {2: 12, 3: 10}[d]
    monkeypatch.setitem(expand.DEGREES, (d, 8), ((degree,), ()))
    found.clear_cache()
    share = truncation_share(dtype, 0.1)
    reach = largest_length(degree, d, share)
    x = np.eye(d)[:1]
    sums, error = map(np.asarray, found(0.999 * reach * x, x, None, None))
    assert 0.9 * share < abs(sums[0, 0] - 1) < share < error[0] / 2
    assert not np.isfinite(np.asarray(found(1.01 * reach * x, x, None, None)[1])[0])
    found.clear_cache()


@pytest.mark.exhaustive_cases("CircleSeries-2-True", "ThreeSphereSeries-4-True")
@pytest.mark.parametrize("one_length", (True, False))
@pytest.mark.parametrize(("series", "d"), ((CircleSeries, 2), (SphereSeries, 3), (ThreeSphereSeries, 4)))
def test_what_rounds_after_the_moments_follows_them(series, d, one_length):
    """In a heap each degree errs at least by its coefficient, in proportion to the mass; uniform tokens err less."""
    assert series.dimension == d  # the weights of another dimension would satisfy the bounds too
    series, length = series(8, one_length), 2.0
    x, ones = np.repeat(unit_tokens(3, 1, d), 10, axis=0), np.ones(10)

    @functools.partial(jax.jit, static_argnums=2)
    def rounding(tokens, masses, gradients):
        moments = series.moments(tokens, masses)
        noise = series.error_terms(moments, jnp.asarray(length), gradients)
        return series.rounding(noise, jnp.full(3, length))

    numbers = np.asarray([number_of_harmonics(l, d) for l in range(9)])
    least = 10 * np.sum(
        numbers * np.asarray(jax.jit(scaled_bessel, static_argnums=(1, 2))(length, 8, d)) * (8 + 4 * np.arange(9))
    )
    alone, both = np.asarray(rounding(x, ones, False)), np.asarray(rounding(x, ones, True))
    assert np.all(alone >= least) and np.all(alone < 60 * least) and np.all(both >= 0.999 * alone)
    np.testing.assert_allclose(rounding(x, 2 * ones, False), 2 * alone, rtol=1e-10)
    uniform = np.asarray(rounding(unit_tokens(5, 10, d), ones, False))
    assert np.all(uniform < 0.95 * alone) or (d == 2 and not one_length)


def test_the_recurrence_of_the_harmonics_errs_by_no_more_than_is_counted():
    """Rounding errors at the pole, in units: those of all steps, added by absolute values, and 3.5 of the norm."""
    degree = 58
    first, second = (table[0] for table in recurrence(degree)[:2])
    harmonics = np.sqrt(2 * np.arange(degree + 1) + 1)
    errors = np.zeros(degree + 1)
    for j in range(degree + 1):
        rounded = 3 * first[j] * harmonics[j - 1] + 2 * second[j] * harmonics[j - 2] + harmonics[j]
        before, passed = 0.0, rounded if j > 0 else 2.0
        errors[j] += passed
        for l in range(j + 1, degree + 1):
            before, passed = passed, first[l] * passed - second[l] * before
            errors[l] += abs(passed)
    l = np.arange(degree + 1)
    least = errors / harmonics + 3.5 * l * (l + 1) / 2
    assert np.all(recurrence_units(l) >= least) and np.all(recurrence_units(l) < 1.2 * least + 3)


def test_a_degree_is_more_than_the_bound_of_the_bessel_functions_takes_it_for():
    assert bessel_units(10)[0] == pytest.approx(14.5) and bessel_units(10)[10] == pytest.approx(54.5)
    for d, size in expand.DEGREES:
        for degree in {degree for kind in expand.DEGREES[d, size] for degree in kind}:
            share = truncation_share(F32 if size == 4 else F64, 0.1)
            assert largest_length(degree, d, share) < degree**2 / 18


# --- how moments are summed


def test_chunks_are_summed_with_what_they_round_away():
    tree = _compensated_start(jnp.asarray(1.0, jnp.float32))
    step = jax.jit(lambda tree: _compensated_add(tree, jnp.asarray(1e-8, jnp.float32)))
    for _ in range(1000):
        tree = step(tree)
    np.testing.assert_allclose(_compensated_total(tree), 1 + 1e-5, rtol=1e-7)


@pytest.mark.parametrize("count", (1, 2, 3, 7, 8))
def test_sums_in_pairs(count):
    np.testing.assert_array_equal(_pairwise_sum(jnp.asarray(2.0 ** np.arange(count))), 2.0**count - 1)
