"""`Fused`, interpreted on a CPU: sums and derivatives, batches, compilation for a card, and the guard.

Degenerate clouds, and scores of any size, are in `test_degenerate_sums.py`.
"""

import functools
import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax._model.position import LogWeights
from clusterjax._summation import fused, kernels
from tests.attention_cases import masks_of
from tests.helpers import as_a_user, assert_close, normal, sphere_tokens
from tests.summation.test_sums import FEW, MANY, compiled, data_of, expected, shiftless


FUSED = cjx.Fused(interpret=True)
KINDS = [(name, heavy) for name in ("full", "causal", "window", "causal window", "sink", "matrix")
         for heavy in (False, True)]  # fmt: skip
DTYPE = np.float32


def cases(usual, every):
    """The cases of a test: those of `make test`, and the others, which are exhaustive."""
    rest = [(first, *others) if isinstance(others, tuple) else (first, others) for first, others in every]
    dear = [pytest.param(*case, marks=pytest.mark.exhaustive) for case in rest if case not in usual]
    return [*(pytest.param(*case) for case in usual), *dear]


# --- values


@pytest.mark.parametrize(
    ("n", "d", "k"), cases(((33, *MANY),), itertools.product((1, 33, 64, 129), (FEW, MANY, (140, 3))))
)
def test_sums_are_the_double_loop(n, d, k):
    """Every mask, with and without masses, equals the loop; 33 is no multiple of a block, and 129 exceeds a block."""
    data = data_of(n, d, k, DTYPE)
    for (_, name, heavy), found in compiled(FUSED, [("exponential", *kind) for kind in KINDS], n)(*data).items():
        first, second = expected("exponential", name, heavy, n, d, k)
        empty = np.isinf(first)
        log_sum, mean = map(np.asarray, shiftless(found))
        assert log_sum.dtype == mean.dtype == DTYPE
        assert_close(log_sum[~empty], first[~empty])
        assert_close(mean, second)
        assert not np.any(np.asarray(found.normaliser)[empty]) and not np.any(np.asarray(found.total)[empty])
        # The largest weight of a row is a mass, so that no normaliser is near zero.
        masses = np.asarray(data[3]) if heavy else np.ones(n)
        assert np.all(np.asarray(found.normaliser)[~empty] >= 0.999 * masses[masses > 0].min())


# --- derivatives


def data_to_differentiate(n, d, k):
    """Queries, tokens, values, masses, of which a third is zero, and a slope; values are absent for k = 0."""
    queries, tokens = (np.asarray(normal(seed, n, d)) / np.sqrt(d) for seed in (1, 2))
    values = np.asarray(normal(3, n, k)) if k else None
    return queries, tokens, values, np.where(np.arange(n) % 3 == 1, 0, 0.5 + np.arange(n) / n), np.asarray(4 / n)


def outcome(mask, summation, *data):
    """The log sums and averages, which do not depend on the shift; a fifth operand is a slope."""
    log_weights = [LogWeights(slope=slope) for slope in data[4:]]
    return shiftless(summation.exponential(*data[:4], mask, *log_weights))


@functools.cache
def derivatives(summation, name, n, d, k, sloped, dtype):
    """Derivatives by all operands: reverse mode, forward mode, forward over reverse and reverse over reverse."""
    data = data_to_differentiate(n, d, k)[: 5 if sloped else 4]
    given = tuple(None if part is None else part.astype(dtype) for part in data)
    along = jax.tree.map(lambda a: np.cos(3 * a), given)
    compute = functools.partial(outcome, masks_of(n)[name][0], summation)

    @jax.jit
    def run(given, along):
        def loss(given):
            first, second = compute(*given)
            return jnp.sum(jnp.sin(first)) + jnp.sum(jnp.cos(second))

        tilt = lambda given: sum(jax.tree.leaves(jax.tree.map(jnp.vdot, jax.grad(loss)(given), along)))
        forward = jax.jvp(lambda given: compute(*given), (given,), (along,))[1]
        twice = jax.jvp(jax.grad(loss), (given,), (along,))[1]
        return {"reverse": jax.grad(loss)(given), "forward": forward, "twice": twice, "tilt": jax.grad(tilt)(given)}

    return jax.tree.map(np.asarray, run(given, along))


@pytest.mark.parametrize(
    ("name", "n", "d", "k", "sloped"),
    cases(
        (("causal", 33, 3, 0, True),),
        itertools.product(
            ("full", "causal", "window", "causal window", "sink", "matrix"),
            ((33, 3, 0, False), (300, 3, 2, False), (30, 6, 2, False), (70, 20, 0, False), (33, 3, 0, True),
             (140, 3, 2, True), (70, 20, 0, True)),
        ),
    ),
)  # fmt: skip
def test_derivatives_of_first_and_second_order(name, n, d, k, sloped):
    """Derivatives equal those of `Dense` in float64, which other tests compare with differences; masses may be 0."""
    found = derivatives(FUSED, name, n, d, k, sloped, "float32")
    wanted = derivatives(cjx.Dense(), name, n, d, k, sloped, "float64")
    for order, allowed in (("reverse", 2e-6), ("forward", 2e-6), ("twice", 1e-5), ("tilt", 1e-5)):
        for a, b in zip(jax.tree.leaves(found[order]), jax.tree.leaves(wanted[order]), strict=True):
            assert a.dtype == DTYPE and np.abs(a - b).max() <= allowed * np.abs(b).max(), order


@pytest.mark.exhaustive
def test_a_derivative_by_some_operands_needs_no_other(monkeypatch):
    """Without a derivative by tokens, values and masses no kernel runs over columns."""
    x = sphere_tokens(1, 20, 3, DTYPE)
    names = []
    launch = kernels._launch
    monkeypatch.setattr(
        kernels, "_launch", lambda kernel, *args: names.append(kernel.__name__) or launch(kernel, *args)
    )
    total = lambda q, y: jnp.sum(FUSED.exponential(q, y, None, None, cjx.FullMask()).total ** 2)
    by_queries = jax.grad(total)(x, x)
    assert "_pull_rows" in names and "_pull_columns" not in names
    names.clear()
    by_tokens = jax.grad(total, 1)(x, x)
    assert "_pull_columns" in names and "_pull_rows" not in names
    dense = lambda q, y: jnp.sum(cjx.Dense().exponential(q, y, None, None, cjx.FullMask()).total ** 2)
    for found, wanted in zip((by_queries, by_tokens), jax.grad(dense, (0, 1))(x, x), strict=True):
        assert_close(found, wanted)


@pytest.mark.exhaustive
def test_a_token_without_mass_that_scores_far_above_the_others_changes_no_value():
    x = np.array([[1e3, 1e3], [0.0, 1.0], [1.0, 0.0]], DTYPE)
    queries, masses = np.array([[-1.0, 1.0], [1.0, 0.0], [1.0, 1.0]], DTYPE), np.array([0.0, 1.0, 1.0], DTYPE)
    attention = cjx.SoftmaxAttention(1.0, summation=FUSED)
    mean = jax.jit(lambda q, x, m: attention.between(q, x, x, 0.0, m))
    np.testing.assert_allclose(mean(queries, x, masses), mean(queries, np.where(masses[:, None] > 0, x, 0), masses))
    gradients = jax.jit(jax.grad(lambda *parts: jnp.sum(mean(*parts)), argnums=(0, 1, 2)))(queries, x, masses)
    assert all(np.all(np.isfinite(gradient)) for gradient in gradients)


# --- batches


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "n", "d"),
    cases((("causal", 7, 2),), itertools.product(("causal", "matrix"), ((7, 2), (70, 3), (9, 6)))),
)
def test_a_batch_of_batches_is_each_system(name, n, d):
    """Small systems share a program; the last program is not full, and all systems may share one operand."""
    rng = np.random.default_rng(0)
    systems = 3 if n > 32 else 45
    x = jnp.asarray(rng.normal(size=(2, systems, n, d)) / np.sqrt(d), DTYPE)
    betas = jnp.asarray(rng.uniform(1, 3, systems), DTYPE)
    mask = masks_of(n)[name][0]

    def compute(summation):
        average = lambda x, beta: cjx.SoftmaxAttention(beta, mask=mask, summation=summation).average(x, None)
        loss = lambda x, beta: jnp.sum(average(x, beta) ** 3)
        of_batch = lambda fn: jax.vmap(jax.vmap(fn, (0, 0)), (0, None))(x, betas)
        shared = jax.vmap(lambda beta: average(x[0, 0], beta))(betas)
        last = jax.vmap(average, (2, None), 1)(jnp.moveaxis(x[0, :3], 0, 2), betas[0])
        nearby = lambda slope: cjx.SoftmaxAttention(2.0, mask=mask, position=cjx.ALiBi(slope), summation=summation)
        by_slope = jax.vmap(jax.value_and_grad(lambda s: jnp.sum(nearby(s).average(x[0, 0], None) ** 3)))(betas / n)
        return of_batch(average), of_batch(jax.grad(loss, (0, 1))), shared, last, by_slope

    found, wanted = jax.jit(compute, static_argnums=0)(FUSED), jax.jit(compute, static_argnums=0)(cjx.Dense())
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max())


@pytest.mark.exhaustive
def test_a_graph_for_each_system():
    n = 6
    x, graphs = sphere_tokens(1, n, 3, DTYPE), np.random.default_rng(0).random((4, n, n)) < 0.4
    graphs |= np.eye(n, dtype=bool)
    attention = lambda graph, summation: cjx.SoftmaxAttention(2.0, mask=cjx.MatrixMask(graph), summation=summation)
    run = lambda summation: jax.vmap(lambda graph: attention(graph, summation).average(x, None))(jnp.asarray(graphs))
    found, wanted = run(FUSED), run(cjx.Dense())
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.exhaustive
def test_a_run_is_that_of_dense():
    x = sphere_tokens(3, 12, 3, DTYPE)
    field = lambda summation: cjx.AttentionField(cjx.SoftmaxAttention(3.0, mask=cjx.CausalMask(), summation=summation))
    found, wanted = (cjx.simulate(field(s), x, jnp.array([0.0, 2.0], DTYPE)) for s in (FUSED, cjx.Dense()))
    assert found.stats["summation"] == "Fused"
    np.testing.assert_allclose(found.x1, wanted.x1, atol=1e-4)


# --- what is compiled for a card


@pytest.mark.exhaustive_cases("causal-1000-3", "sink-40-2")
@pytest.mark.parametrize(
    ("name", "n", "d"),
    cases(
        (("causal", 1000, 3), ("sink", 40, 2), ("matrix", 300, 20)),
        itertools.product(("full", "causal", "window", "sink", "matrix"), ((1000, 3), (40, 2), (300, 20), (300, 200))),
    ),
)
def test_every_kernel_is_compiled_for_nvidia_cards(name, n, d):
    """Kernels compile to Triton without a card: one launch for the sums, one for tangents, two for cotangents."""
    mask = masks_of(n)[name][0]
    shapes = [jax.ShapeDtypeStruct(shape, DTYPE) for shape in ((5, n, d), (5, n, d), (5, n, 2), (5, n), (5,))]

    def total(*data):
        sums = kernels.exponential(*data[:4], mask, data[4], False)
        return jnp.sum(sums.total) + jnp.sum(sums.normaliser)

    reverse = jax.vmap(jax.grad(total, (0, 1, 2, 3, 4)))
    forward = jax.vmap(lambda *data: jax.jvp(total, data, data)[1])
    for function, launches in ((reverse, 3), (forward, 2)):
        lowered = jax.jit(function).trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()
        assert lowered.count("__gpu$xla.gpu.triton") == lowered.count("custom_call @") == launches


def test_no_copy_is_made_for_a_launch():
    """The kernel takes the arrays as they are; XLA only scales the shifts."""
    x = jax.ShapeDtypeStruct((1000, 3), DTYPE)
    sums = lambda x: kernels.exponential(x, x, None, None, cjx.CausalMask(), None, False)
    lowered = jax.jit(sums).trace(x).lower(lowering_platforms=("cuda",)).as_text()
    assert not any(f"stablehlo.{copy}" in lowered for copy in ("pad", "transpose", "gather", "concatenate"))


# --- the guard, and the choice of `Auto`


@pytest.fixture
def card(monkeypatch):
    """Pretends that jax computes on an NVIDIA card, and forgets earlier checks of the kernel before and after."""
    fused.usable.cache_clear()
    for module in (fused, cjx._summation.auto):
        monkeypatch.setattr(module, "on_nvidia", lambda: True)
    yield monkeypatch
    fused.usable.cache_clear()


@pytest.fixture
def interpreted(card):
    """Interprets the kernel where it would be compiled."""
    compute = fused._exponential
    card.setattr(fused, "_exponential", lambda *data, interpret: compute(*data, interpret=True))
    return card


def run_of(n, summation=None):
    """Runs `n` tokens; each test has a number of its own, since jax would reuse what another test compiled."""
    how = {} if summation is None else {"summation": summation}
    x = sphere_tokens(3, n, 3, DTYPE)
    return cjx.simulate(cjx.AttentionField(cjx.SoftmaxAttention(3.0, **how)), x, jnp.array([0.0, 0.1], DTYPE))


def test_without_a_card_blocked_sums_and_one_warning_says_so():
    fused.usable.cache_clear()
    with as_a_user(), pytest.warns(UserWarning, match="jax computes on cpu. Blocked sums in its place"):
        assert run_of(6, cjx.Fused()).stats["summation"] == "Blocked"
    with as_a_user(), warnings.catch_warnings(action="error"):
        assert run_of(6, cjx.Fused()).stats["summation"] == "Blocked"
        assert run_of(6).stats["summation"] == "Dense"


@pytest.mark.exhaustive
def test_auto_takes_the_kernel_on_a_card_that_passes(interpreted):
    with as_a_user():
        assert run_of(7).stats["summation"] == run_of(7, cjx.Fused()).stats["summation"] == "Fused"


@pytest.mark.exhaustive
def test_auto_chooses_by_dimension_dtype_and_mask(interpreted):
    choose = cjx.Auto().choose
    assert isinstance(choose(100, 20), cjx.Fused) and isinstance(choose(100_000, 64), cjx.Fused)
    assert isinstance(choose(100, 3, jnp.float64), cjx.Dense) and isinstance(choose(100, 300), cjx.Dense)
    assert isinstance(choose(2000, 3, mask=cjx.FunctionMask(lambda i, j: j <= i)), cjx.Blocked)
    sloped, table = LogWeights(slope=jnp.array(0.1)), LogWeights(table=jnp.zeros(3))
    assert isinstance(choose(100, 3, log_weights=sloped), cjx.Fused)
    assert isinstance(choose(100, 3, log_weights=table), cjx.Dense)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("of", "n"), (("total", 9), ("normaliser", 11)))
def test_a_kernel_that_is_wrong_is_not_used(interpreted, of, n):
    """An error of one part in a hundred, in one row of either sum, is found."""
    compute = fused._exponential

    def wrong(*data, interpret):
        sums = compute(*data, interpret=interpret)
        rows = getattr(sums, of)
        off = jnp.where(jnp.arange(len(rows)) == 77 % len(rows), 1.01, 1.0).astype(rows.dtype)
        parts = {part: getattr(sums, part) for part in ("shift", "normaliser", "total")}
        return type(sums)(**parts | {of: rows * off.reshape(-1, *[1] * (rows.ndim - 1))})

    interpreted.setattr(fused, "_exponential", wrong)
    with as_a_user(), pytest.warns(UserWarning, match="its kernel is wrong here, by .* of the largest number"):
        assert run_of(n).stats["summation"] == "Dense"
        assert run_of(n, cjx.Fused()).stats["summation"] == "Blocked"


def test_a_kernel_that_cannot_be_built_is_not_used(card):
    """On a CPU the kernel for a card cannot be built, as with a driver that is too old."""
    with as_a_user(), pytest.warns(UserWarning, match=r"its kernel cannot be built here \(\w+: .*interpret"):
        assert run_of(10).stats["summation"] == "Dense"


@pytest.mark.parametrize(
    ("mask", "dtype", "words"),
    (
        (cjx.FunctionMask(lambda i, j: j <= i), np.float32, "mask of Fused must be FullMask or CausalMask"),
        (cjx.FullMask(), np.float64, "tokens of Fused must be float32, but they are float64"),
    ),
)
def test_what_the_kernel_does_not_serve_is_refused(mask, dtype, words):
    with pytest.raises(ValueError, match=words):
        cjx.SoftmaxAttention(1.0, mask=mask, summation=FUSED).average(sphere_tokens(1, 5, 3, dtype), None)
