"""Sums for an accelerator, traced on a CPU: elementwise sums, large blocks, and series for more tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax._summation import blocked as rows
from tests.helpers import assert_close, assert_derivatives, sphere_tokens
from tests.reference import attention as reference
from tests.summation.test_sums import CASES, FEW, compiled, data_of, expected, shiftless


# No other test has these sizes, since jax would reuse the programs that it compiled as for a CPU.
N, BLOCKED = 29, cjx.Blocked(6, 13)


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch):
    """Pretends that the backend is a GPU, and lets blocks of few columns be summed elementwise."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(rows, "_ELEMENTWISE", (1, 13))


def test_sums_are_the_double_loop():
    cases = [case for case in CASES if case[0] == "exponential" and case[2]]
    data = data_of(N, *FEW)
    traced = compiled(BLOCKED, cases, N).trace(*data)
    # There is no product of matrices.
    assert "dot_general" not in str(traced.jaxpr)
    for (kind, name, heavy), found in traced.lower().compile()(*data).items():
        first, second = expected(kind, name, heavy, N, *FEW)
        empty = np.isinf(first) | (first == 0)
        log_sum, mean = shiftless(found)
        assert_close(np.asarray(log_sum)[~empty], first[~empty])
        assert_close(np.asarray(mean)[~empty], second[~empty])
        assert not np.any(np.asarray(found.normaliser)[empty])


def test_many_dimensions_are_matrix_products():
    program = compiled(BLOCKED, CASES[:1], N)
    assert "dot_general" in str(jax.make_jaxpr(program)(*data_of(N, 12, 5)))


@pytest.mark.exhaustive_cases("10000.0")
@pytest.mark.parametrize("size", (1e4, 1e12), ids=str)
def test_long_queries_in_single_precision(size):
    """Scores round by as much as the differences that count, or by more; still the largest weight does not vanish."""
    x = np.asarray(sphere_tokens(3, N, 3, np.float32))
    compute = jax.jit(lambda q, x: BLOCKED.exponential(q, x, None, None, cjx.FullMask()))
    sums = jax.tree.map(np.asarray, compute(np.float32(size) * x, x))
    assert np.all(sums.normaliser > 0.1) and np.all(np.isfinite(sums.total))
    mean = sums.total / sums.normaliser[:, None]
    wanted = reference.exponential_sums(size * x.astype(float), x, x, np.ones(N), reference.full)[1]
    np.testing.assert_allclose(mean, wanted, rtol=0, atol=2e-2)


@pytest.mark.exhaustive_cases("causal")
@pytest.mark.parametrize("mask", (cjx.FullMask(), cjx.CausalMask()), ids=("full", "causal"))
def test_derivatives(mask):
    attention = cjx.SoftmaxAttention(2.0, mask=mask, summation=BLOCKED)
    assert_derivatives(lambda x: attention.average(x, None), sphere_tokens(4, N, 3))


@pytest.mark.parametrize(("sizes", "elementwise"), (((6, 13), True), ((6, 14), False), ((14, 13), False)), ids=str)
def test_blocks_that_are_compiled_for_long_are_matrix_products(sizes, elementwise):
    x = jnp.zeros((28, 3))
    program = jax.make_jaxpr(lambda x: cjx.Blocked(*sizes).exponential(x, x, None, None, cjx.FullMask()))(x)
    assert ("dot_general" in str(program)) is not elementwise


def test_blocks_are_large_unless_they_are_named():
    assert cjx.Blocked().block() == (4096, 4096)
    assert cjx.Blocked(64).block() == (64, 4096) and cjx.Blocked(block_columns=32).block() == (4096, 32)


@pytest.mark.parametrize(
    ("n", "d", "mask", "kind"),
    (
        (1000, 3, cjx.FullMask(), cjx.Dense),
        (10_000, 2, cjx.FullMask(), cjx.Blocked),
        (20_000, 2, cjx.FullMask(), cjx.Harmonic),
        (20_000, 2, cjx.CausalMask(), cjx.Blocked),
        (100_000, 3, cjx.FullMask(), cjx.Blocked),
        (200_000, 3, cjx.FullMask(), cjx.Harmonic),
        (200_000, 4, cjx.FullMask(), cjx.Blocked),
    ),
)
def test_series_are_chosen_for_more_tokens(n, d, mask, kind):
    assert isinstance(cjx.Auto().choose(n, d, mask=mask), kind)


def test_on_a_cpu_all_is_as_it_was(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    assert cjx.Blocked().block() == (512, 512) and isinstance(cjx.Auto().choose(10_000, 2), cjx.Harmonic)
    x = jnp.zeros((N + 1, 3))
    program = jax.make_jaxpr(lambda x: cjx.Blocked(6, 13).exponential(x, x, None, None, cjx.FullMask()))(x)
    assert "dot_general" in str(program)
