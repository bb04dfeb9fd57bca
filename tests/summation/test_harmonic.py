import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax._summation import ratio
from clusterjax._summation.harmonic import summation as expand
from clusterjax._summation.harmonic.series import largest_length, tail
from tests.helpers import CountTraces, sphere_tokens, temporary_bytes
from tests.oracles import unit_tokens
from tests.reference import attention as reference


N = 150  # one chunk of the causal sums on the circle and a part of the next
MASKS = {"full": (cjx.FullMask(), reference.full), "causal": (cjx.CausalMask(), reference.causal)}
both_masks = pytest.mark.parametrize("mask", MASKS)


def clustered_tokens(seed, n, d):
    """Two tight clusters at right angles, and every 29th token far from both, so that sums cancel."""
    x = np.repeat(np.eye(d)[:2], n // 2, axis=0)
    x = x[np.random.default_rng(seed).permutation(n)] + 0.02 * unit_tokens(seed, n, d)
    x[::29] = -np.ones(d)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


CLOUDS = {"uniform": unit_tokens, "clustered": clustered_tokens}
FORMS = {
    "identity": np.eye(2),
    "rotation": np.asarray([[0.6, 0.8], [-0.8, 0.6]]),
    "general": np.asarray([[1.0, 0.3], [0.0, 0.7]]),
}


@functools.cache
def program(mask, kind):
    """Compiles the sums once for each mask and kind of values, and for one of them the certified rows."""
    harmonic, rule = cjx.Harmonic(), MASKS[mask][0]

    @jax.jit
    @CountTraces
    def compute(queries, tokens, values, masses):
        found = harmonic.exponential(queries, tokens, values if kind == "values" else None, masses, rule)
        mean = ratio(found.total, found.normaliser)
        good = harmonic.certified(queries, tokens, masses, rule) if (mask, kind) == ("full", "tokens") else None
        return found.shift + jnp.log(found.normaliser), mean, good

    return compute


def data_of(cloud, form, beta, dtype):
    x = CLOUDS[cloud](1, N, 2)
    index = np.arange(N)  # the first row attends to nothing, causally; the isolated tokens weigh next to nothing
    masses = np.where(index % 5 == 0, 0, np.where(index % 29 == 0, 1e-4, 0.5 + index / N))
    data = (beta * x @ FORMS[form], x, unit_tokens(2, N, 3), masses)
    return tuple(jnp.asarray(a.astype(dtype)) for a in data)


@functools.cache
def expected(mask, kind, *case):
    queries, tokens, values, masses = (np.asarray(a, float) for a in data_of(*case))
    values = values if kind == "values" else tokens
    return reference.exponential_sums(queries, tokens, values, masses, MASKS[mask][1])


def promised(dtype):
    return 2e-3 if dtype == np.float32 else 1e-10


# --- definition


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("mask", "kind", "dtype", "cases"),
    (
        ("full", "tokens", np.float32, (("uniform", "rotation", 9.0), ("clustered", "identity", 25.0),
                                        ("clustered", "rotation", 81.0), ("clustered", "general", 81.0),
                                        ("uniform", "identity", -25.0), ("uniform", "identity", 0.0))),
        ("causal", "values", np.float32, (("uniform", "general", 9.0), ("clustered", "identity", 81.0),
                                          ("clustered", "identity", 1000.0))),
        ("causal", "tokens", np.float64, (("uniform", "rotation", 9.0), ("clustered", "general", 81.0),
                                          ("clustered", "identity", 1000.0))),
    ),
)  # fmt: skip
def test_sums_are_the_double_loop(mask, kind, dtype, cases):
    """Errors are within the promised tolerance, and far within it for uniform tokens; no case compiles anew."""
    compute = program(mask, kind)
    for case in cases:
        log_sum, mean, good = jax.tree.map(np.asarray, compute(*data_of(*case, dtype)))
        wanted_log, wanted = expected(mask, kind, *case, dtype)
        assert log_sum.dtype == mean.dtype == dtype
        some = np.isfinite(wanted_log)
        np.testing.assert_allclose(log_sum[some], wanted_log[some], rtol=1e-6, atol=promised(dtype))
        assert np.abs(mean - wanted).max() <= promised(dtype)
        assert np.all(mean[~some] == 0) and np.all(log_sum[~some] == -np.inf)
        if case[0] == "uniform":
            assert good is None or good.all()
            assert np.abs(mean - wanted).max() <= (5e-6 if dtype == np.float32 else 1e-13)
    assert compute.__wrapped__.traces == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize(("d", "mask"), ((3, "causal"), (4, "full")))
def test_spheres_of_three_and_four_dimensions(d, mask):
    """Sums equal the double loop for queries of one norm and of any, in one program; the series serves every row."""
    x, form = unit_tokens(3, N, d), np.eye(d) + 0.3 * unit_tokens(4, d, d)
    harmonic, rule = cjx.Harmonic(), MASKS[mask][0]

    @jax.jit
    def compute(queries, tokens):
        sums = harmonic.exponential(queries, tokens, None, None, rule)
        return ratio(sums.total, sums.normaliser), harmonic.certified(queries, tokens, None, rule)

    for queries in (6 * x, 6 * x @ form):
        mean, good = compute(jnp.asarray(queries, jnp.float32), jnp.asarray(x, jnp.float32))
        wanted = reference.exponential_sums(queries, x, x, np.ones(N), MASKS[mask][1])[1]
        assert np.all(good)
        assert np.abs(np.asarray(mean) - wanted).max() <= 2e-6


@pytest.mark.exhaustive
def test_rows_that_cancel_go_to_pairs_and_the_others_do_not():
    """In float32 at beta = 81 the isolated tokens of a clustered cloud have sums that are lost in the rounding."""
    good = np.asarray(program("full", "tokens")(*data_of("clustered", "identity", 81.0, np.float32))[2])
    assert 0 < np.sum(~good) < N / 2
    raw = raw_series(*data_of("clustered", "identity", 81.0, np.float32))
    wanted = expected("full", "tokens", "clustered", "identity", 81.0, np.float32)[1]
    error = np.abs(raw - wanted).max(axis=1)
    assert np.nanmax(error[~good]) > promised(np.float32)
    assert np.max(error[good]) <= promised(np.float32)


@pytest.mark.exhaustive
def test_certified_rows_are_the_rows_that_sums_leave_to_the_series(monkeypatch):
    """Averages of tokens have a smaller bound than averages of other values, and `certified` uses the smaller bound."""
    pairs, x = [], jnp.asarray(sphere_tokens(0, 400, 2), jnp.float32)
    x = jnp.abs(x)  # the tokens of a quarter of the circle, whose opposite queries cancel
    sum_rows = expand._sum_uncertified_rows

    def recorded(shift, sums, certified, *rest):
        pairs.append(np.asarray(certified))
        return sum_rows(shift, sums, certified, *rest)

    monkeypatch.setattr(expand, "_sum_uncertified_rows", recorded)
    with jax.disable_jit():
        for values in (None, jnp.asarray(np.asarray(x))):
            cjx.Harmonic().exponential(-3.0 * x, x, values, None, cjx.FullMask())
    rows = np.asarray(cjx.Harmonic().certified(-3.0 * x, x))
    np.testing.assert_array_equal(rows, pairs[0])
    assert pairs[1].sum() < rows.sum() < len(x)


def raw_series(queries, tokens, values, masses):
    """The averages of the series, without a certificate."""
    from clusterjax._summation.harmonic.circle import CircleSeries

    series = CircleSeries(62, True)

    @jax.jit
    def averages(queries, tokens, masses):
        known = series.coefficients(series.moments(tokens, masses), jnp.asarray(81.0, tokens.dtype))
        first, second = series.evaluate(queries, known)
        return second / first[:, None]

    return np.asarray(averages(queries, tokens, masses))


@pytest.mark.exhaustive_cases("a token that is not a number", "no unit length")
@pytest.mark.parametrize("spoil", ("a token that is not a number", "a query that is not a number", "no unit length"))
def test_what_a_series_cannot_serve_is_not_certified(monkeypatch, spoil):
    # One degree compiles faster than several; no other test has 61 tokens, so that jax reuses no program.
    monkeypatch.setitem(expand.DEGREES, (2, 4), ((23,), ()))
    queries, tokens, _, masses = (a[:61] for a in data_of("uniform", "rotation", 9.0, np.float32))
    certified = jax.jit(lambda queries, tokens, masses: cjx.Harmonic().certified(queries, tokens, masses))
    assert np.all(certified(queries, tokens, masses))
    if spoil == "no unit length":
        tokens = tokens.at[7].multiply(1.1)
    elif spoil.startswith("a token"):
        tokens = tokens.at[50].set(jnp.nan)
    else:
        queries = queries.at[50].set(jnp.nan)
    assert not np.any(certified(queries, tokens, masses))
    if spoil == "no unit length":
        mean = ratio_of(cjx.Harmonic().exponential(queries, tokens, None, masses, cjx.FullMask()))
        wanted = reference.exponential_sums(*(np.asarray(a, float) for a in (queries, tokens, tokens, masses)))[1]
        np.testing.assert_allclose(mean, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mask", (cjx.WindowMask(3), cjx.MatrixMask(np.eye(4, dtype=bool))))
def test_other_masks_are_refused(mask):
    x = sphere_tokens(0, 4, 2)
    assert not hasattr(cjx.Harmonic(), "hardmax")
    for call in (
        lambda: cjx.Harmonic().exponential(x, x, None, None, mask),
        lambda: cjx.Harmonic().certified(x, x, None, mask),
    ):
        with pytest.raises(ValueError, match="^mask of Harmonic must be FullMask or CausalMask, but it is a .*; take"):
            call()


@pytest.mark.exhaustive
def test_a_batch_goes_one_way_together():
    """A mapped sum equals a loop over a batch of queries of one norm, of several, and too large for a series."""
    forms, betas = ("rotation", "general", "identity"), (1.0, 9.0, 1000.0)
    batch = [data_of("uniform", form, beta, np.float32) for form, beta in zip(forms, betas, strict=True)]
    stacked = [jnp.stack([data[k][:60] for data in batch]) for k in (0, 1, 3)]
    one = lambda q, y, m: ratio_of(cjx.Harmonic().exponential(q, y, None, m, cjx.FullMask()))
    mapped = jax.jit(jax.vmap(one))
    for size in (1, 2, 3):  # the first `size` systems, repeated
        found = mapped(*(a[jnp.arange(3) % size] for a in stacked))
        for k in range(size):
            queries, tokens, masses = (np.asarray(a[k], float) for a in stacked)
            wanted = reference.exponential_sums(queries, tokens, tokens, masses)[1]
            np.testing.assert_allclose(found[k], wanted, rtol=0, atol=5e-6)


def ratio_of(sums):
    return ratio(sums.total, sums.normaliser)


def test_auto_takes_harmonic_for_many_tokens(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    auto, many = cjx.Auto(), 10**6
    for d in (2, 3, 4):
        for dtype in (np.float32, np.float64):
            for mask in (cjx.FullMask(), cjx.CausalMask()):
                assert isinstance(auto.choose(many, d, dtype, mask), cjx.Harmonic)
                assert isinstance(auto.choose(1500, d, dtype, mask), cjx.Blocked)
    assert isinstance(auto.choose(many, 5), cjx.Blocked)
    assert isinstance(auto.choose(many, 3, np.float32, cjx.WindowMask(9)), cjx.Blocked)
    long = 500 * sphere_tokens(0, 8, 2)
    assert isinstance(auto.choose(many, 2, np.float64, cjx.FullMask(), long), cjx.Blocked)
    assert isinstance(auto.choose(many, 2, np.float64, cjx.FullMask(), long / 50), cjx.Harmonic)


# --- the table of degrees


def truncation(kappa, d, tolerance):
    """The least degree whose truncated series of the kernel errs by at most `tolerance` times its maximum."""
    return next(degree for degree in range(200) if tail(float(kappa), degree, d) <= tolerance)


def test_degrees_are_those_of_the_table():
    """In d = 2, 3, 4 and 8 the kernel is right to 1e-6 or 1e-10 after the degree of the table."""
    table = {
        (1e-6, 1): (7, 7, 7, 8), (1e-6, 9): (16, 17, 17, 19), (1e-6, 81): (44, 47, 50, 55),
        (1e-10, 1): (10, 10, 10, 11), (1e-10, 9): (22, 23, 23, 25), (1e-10, 81): (59, 62, 64, 69),
    }  # fmt: skip
    for (tolerance, beta), degrees in table.items():
        assert tuple(truncation(beta, d, tolerance) for d in (2, 3, 4, 8)) == degrees
    for d, tolerance in itertools.product((2, 3, 4), (1e-6, 1e-14)):
        length = largest_length(30, d, tolerance)
        assert truncation(length, d, tolerance) <= 30 < truncation(1.01 * length, d, tolerance)


# --- at the door


@pytest.mark.parametrize(("tolerance", "dtype", "low"), ((1e-6, "float32", "3.1e-05"), (1e-15, "float64", "5.7e-14")))
def test_a_tolerance_below_rounding_is_refused(tolerance, dtype, low):
    x = sphere_tokens(0, 4, 2, dtype)
    message = rf"^tolerance must be between {low} and 0\.1 in {dtype}, but it is {tolerance}; rounding allows no less"
    with pytest.raises(ValueError, match=message):
        cjx.Harmonic(tolerance).exponential(x, x, None, None, cjx.FullMask())


# --- memory, by what the compiler allots


@pytest.mark.exhaustive
@both_masks
def test_memory_grows_as_n(mask):
    """Memory is a few numbers per token, backwards too: no array has tokens times degree, let alone pairs."""
    n, harmonic = 200_000, cjx.Harmonic()

    def total(x):
        return jnp.sum(ratio_of(harmonic.exponential(9 * x, x, None, None, MASKS[mask][0])) ** 2)

    used = temporary_bytes(jax.grad(total), jax.ShapeDtypeStruct((n, 2), jnp.float32))
    assert used < 300 * n
