import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax._summation import ratio
from clusterjax._summation.harmonic import summation as expand
from clusterjax._summation.harmonic.series import largest_length, tail, truncation
from tests.helpers import CountTraces, as_a_user, sphere_tokens, temporary_bytes
from tests.oracles import unit_tokens
from tests.reference import attention as reference


N = 150  # one chunk and a part of one, of the causal sums on the circle
MASKS = {"full": (cjx.FullMask(), reference.full), "causal": (cjx.CausalMask(), reference.causal)}
both_masks = pytest.mark.parametrize("mask", MASKS)


def clustered_tokens(seed, n, d):
    """Two tight clusters at right angles, and every 29th token far from both: sums that cancel."""
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
    """Compiled once for each mask and kind of values: the sums, and of one of them which rows are certified."""
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


@pytest.mark.exhaustive_cases("causal-values-float32-cases1", "full-tokens-float32-cases0")
@pytest.mark.parametrize(
    ("mask", "kind", "dtype", "cases"),
    (
        ("full", "tokens", np.float32, (("uniform", "rotation", 9.0), ("clustered", "identity", 25.0),
                                        ("clustered", "rotation", 81.0), ("clustered", "general", 81.0),
                                        ("uniform", "identity", -25.0), ("uniform", "identity", 0.0))),
        ("causal", "values", np.float32, (("uniform", "general", 9.0), ("clustered", "identity", 81.0),
                                          ("clustered", "identity", 1000.0))),
        pytest.param("causal", "tokens", np.float64, (("uniform", "rotation", 9.0), ("clustered", "general", 81.0),
                                                      ("clustered", "identity", 1000.0)),
                     marks=pytest.mark.exhaustive),
    ),
)  # fmt: skip
def test_sums_are_the_double_loop(mask, kind, dtype, cases):
    """Within the promised tolerance everywhere, and far within it where the series serves; no case compiles anew."""
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


@pytest.mark.exhaustive_cases("3-causal", "4-full")
@pytest.mark.parametrize(("d", "mask"), ((3, "causal"), (4, "full")))
def test_spheres_of_three_and_four_dimensions(d, mask):
    """The double loop, for queries of one length and of any, in one program; every row by the series."""
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


def raw_series(queries, tokens, values, masses):
    """What the series says, without a certificate."""
    from clusterjax._summation.harmonic.circle import CircleSeries

    series = CircleSeries(62)

    @jax.jit
    def averages(queries, tokens, masses):
        known = series.coefficients(series.moments(tokens, masses), jnp.asarray(81.0, tokens.dtype))
        first, second = series.evaluate(queries, known)
        return second / first[:, None]

    return np.asarray(averages(queries, tokens, masses))


@pytest.mark.parametrize("spoil", ("a token that is not a number", "a query that is not a number", "no unit length"))
def test_what_a_series_cannot_serve_is_not_certified(spoil):
    queries, tokens, values, masses = data_of("uniform", "rotation", 9.0, np.float32)
    if spoil == "no unit length":
        tokens = tokens.at[7].multiply(1.1)
    elif spoil.startswith("a token"):
        tokens = tokens.at[140].set(jnp.nan)
    else:
        queries = queries.at[140].set(jnp.nan)
    assert not np.any(program("full", "tokens")(queries, tokens, values, masses)[2])
    if spoil == "no unit length":
        mean = program("full", "tokens")(queries, tokens, values, masses)[1]
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


# --- attention


@pytest.mark.exhaustive
def test_attentions_and_log_partition_are_those_of_dense(few_programs):
    x = sphere_tokens(3, 40, 2)

    @jax.jit
    def compute(x, beta):
        out = []
        for summation in (cjx.Harmonic(), cjx.Dense()):
            soft = cjx.SoftmaxAttention(beta, summation=summation)
            raw = cjx.UnnormalisedAttention(beta, summation=summation)
            out.append((soft.log_partition(x), raw.average(x, None)))
        return out

    for one, two in zip(*compute(x, jnp.asarray(3.0)), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-12)


@pytest.fixture
def few_programs(monkeypatch):
    """One degree in place of several, where it is not degrees that are tested."""
    monkeypatch.setitem(expand.DEGREES, (2, 8), ((28,), (28,)))
    monkeypatch.setitem(expand.DEGREES, (2, 4), ((23,), (23,)))


@pytest.mark.exhaustive
def test_a_batch_goes_one_way_together(few_programs):
    """A mapped sum is a loop over the batch: of queries of one length, of several, and of any too long for a series."""
    forms, betas = ("rotation", "general", "identity"), (1.0, 9.0, 1000.0)
    batch = [data_of("uniform", form, beta, np.float32) for form, beta in zip(forms, betas, strict=True)]
    stacked = [jnp.stack([data[k][:60] for data in batch]) for k in (0, 1, 3)]
    one = lambda q, y, m: ratio_of(cjx.Harmonic().exponential(q, y, None, m, cjx.FullMask()))
    mapped = jax.jit(jax.vmap(one))
    for size in (1, 2, 3):  # the others repeat the first
        found = mapped(*(a[jnp.arange(3) % size] for a in stacked))
        for k in range(size):
            queries, tokens, masses = (np.asarray(a[k], float) for a in stacked)
            wanted = reference.exponential_sums(queries, tokens, tokens, masses)[1]
            np.testing.assert_allclose(found[k], wanted, rtol=0, atol=5e-6)


def ratio_of(sums):
    return ratio(sums.total, sums.normaliser)


@pytest.mark.exhaustive
def test_a_run_says_what_summed_it():
    x = sphere_tokens(4, 6, 2)
    field = cjx.AttentionField(cjx.SoftmaxAttention(1.0, summation=cjx.Harmonic()))
    layers = cjx.AttentionField(cjx.SoftmaxAttention(1.0, mask=cjx.WindowMask(2), summation=cjx.Harmonic()))
    assert jax.eval_shape(lambda x: cjx.simulate(field, x, jnp.asarray([0.0, 1.0])), x).stats["summation"] == "Harmonic"
    assert jax.eval_shape(lambda x: cjx.simulate(layers, x, jnp.asarray([0.0, 1.0])), x).stats["summation"] == "Blocked"


@pytest.mark.exhaustive
def test_a_run_whose_queries_are_too_long_for_a_series_is_blocked():
    x, ts = jnp.asarray(sphere_tokens(5, 2048, 2), jnp.float32), jnp.asarray([0.0, 1e-4])
    traj = cjx.simulate(cjx.AttentionField(cjx.SoftmaxAttention(1000.0)), x, ts)
    assert traj.stats["summation"] == "Blocked"
    assert isinstance(cjx.Auto().choose(2048, 2, x.dtype), cjx.Harmonic)


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


def test_degrees_are_those_of_the_table():
    """The degree after which the kernel is right to 1e-6 and to 1e-10, in d = 2, 3, 4 and 8."""
    table = {
        (1e-6, 1): (7, 7, 7, 8), (1e-6, 9): (16, 17, 17, 19), (1e-6, 81): (44, 47, 50, 55),
        (1e-10, 1): (10, 10, 10, 11), (1e-10, 9): (22, 23, 23, 25), (1e-10, 81): (59, 62, 64, 69),
    }  # fmt: skip
    for (tolerance, beta), degrees in table.items():
        assert tuple(truncation(float(beta), d, tolerance) for d in (2, 3, 4, 8)) == degrees


@pytest.mark.parametrize("d", (2, 3, 4))
def test_the_largest_length_is_the_table_read_backwards(d):
    for tolerance in (1e-6, 1e-14):
        length = largest_length(30, d, tolerance)
        assert tail(length, 30, d) <= tolerance < tail(1.01 * length, 30, d)
        assert truncation(length, d, tolerance) <= 30 < truncation(1.01 * length, d, tolerance)
    assert truncation(0.0, d, 1e-12) == 0


# --- at the door


@pytest.mark.parametrize("tolerance", (0.0, -1e-3, 1.5, True, float("nan")))
def test_a_tolerance_is_a_number_between_zero_and_one(tolerance):
    with (
        pytest.raises(ValueError, match=r"^tolerance must be a finite number above 0 and below 1, but it is"),
        as_a_user(),
    ):
        cjx.Harmonic(tolerance)


@pytest.mark.parametrize(("tolerance", "dtype", "low"), ((1e-6, "float32", "3.1e-05"), (1e-15, "float64", "5.7e-14")))
def test_a_tolerance_below_rounding_is_refused(tolerance, dtype, low):
    x = sphere_tokens(0, 4, 2, dtype)
    message = rf"^tolerance must be between {low} and 0\.1 in {dtype}, but it is {tolerance}; rounding allows no less"
    with pytest.raises(ValueError, match=message):
        cjx.Harmonic(tolerance).exponential(x, x, None, None, cjx.FullMask())


@pytest.mark.parametrize("d", (1, 5))
def test_a_dimension_that_is_not_served_is_refused(d):
    x = sphere_tokens(0, 4, d)
    message = rf"^tokens of Harmonic must be of dimension 2 or 3 or 4, but theirs is {d}; take summation=Blocked\(\)"
    with pytest.raises(ValueError, match=message):
        cjx.Harmonic().exponential(x, x, None, None, cjx.FullMask())


# --- memory, by what the compiler allots


@pytest.mark.exhaustive
@both_masks
def test_memory_grows_as_n(mask):
    """A few numbers a token, backwards too: nothing of the size of tokens times degree, let alone of pairs."""
    n, harmonic = 200_000, cjx.Harmonic()

    def total(x):
        return jnp.sum(ratio_of(harmonic.exponential(9 * x, x, None, None, MASKS[mask][0])) ** 2)

    used = temporary_bytes(jax.grad(total), jax.ShapeDtypeStruct((n, 2), jnp.float32))
    assert used < 300 * n
