"""Under `jax.vmap` a function with a batching rule of its own has the same values and the same derivatives."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax._base.batching import call_with_rule, cut, join, map_blocks, map_systems_last
from clusterjax._observables.similarity import close_fraction
from clusterjax._summation import ratio
from tests.attention_cases import masks_of
from tests.helpers import assert_close, assert_same, normal, sphere_tokens
from tests.reference import attention as reference, phase


# --- the rule


def square(x, scale):
    return {"y": scale * x**2}


def wrong_on_purpose(batched, x, scale):
    """Returns another value than the square, so that a test sees which of the two functions ran."""
    assert batched == (True, False)
    return {"y": scale * x**2 + 1}


def called(x, scale=jnp.asarray(2.0)):
    return call_with_rule(square, wrong_on_purpose, x, scale)["y"]


def test_a_batch_goes_by_the_rule_and_one_call_by_the_function():
    x = np.arange(3.0)
    assert_same(jax.jit(called)(x), 2 * x**2)
    assert_same(jax.jit(jax.vmap(called, in_axes=1, out_axes=1))(x[None]), 2 * x[None] ** 2 + 1)
    assert_same(jax.jit(jax.vmap(jax.vmap(called)))(x[None]), 2 * x[None] ** 2 + 1)
    assert_same(jax.vmap(called)(jnp.asarray(x)), 2 * x**2 + 1)  # this call is not compiled


def counted(batched, x, scale):
    """The square, and the number of systems that the rule received."""
    x, scale = (part if moved else part[None] for part, moved in zip((x, scale), batched, strict=True))
    y = scale * x**2
    return {"y": y, "count": jnp.full(y.shape, float(y.shape[0]))}


def test_a_batch_of_batches_is_one_batch():
    """This holds whichever arguments each batch has: each array has neither axis, one of the axes or both."""
    plain = lambda x, scale: {"y": scale * x**2, "count": jnp.ones(())}
    call = lambda x, scale: call_with_rule(plain, counted, x, scale, differentiated=plain)
    axes = [(0, None), (None, 0), (0, 0)]
    for outer, inner in [(outer, inner) for outer in axes for inner in axes]:
        shapes = [tuple(k for k, axis in ((2, o), (3, i)) if axis == 0) for o, i in zip(outer, inner, strict=True)]
        x, scale = (np.asarray(normal(seed, *shape)) for seed, shape in enumerate(shapes))
        found = jax.jit(jax.vmap(jax.vmap(call, inner), outer))(x, scale)
        x, scale = (
            part.reshape(2 if o == 0 else 1, 3 if i == 0 else 1)
            for part, o, i in zip((x, scale), outer, inner, strict=True)
        )
        assert_close(found["y"], np.broadcast_to(scale * x**2, (2, 3)))
        assert_same(found["count"], np.full((2, 3), 6.0))


def total(fn):
    return lambda *args: jnp.sum(fn(*args))


def assert_slope_and_curvature(f, x, slope, curvature):
    """First and second derivatives of f, of each entry alone, equal these in either order with `vmap`."""

    @jax.jit
    def derivatives(x):
        gradients = (
            jax.jvp(f, (x,), (jnp.ones(3),))[1],
            jax.grad(total(f))(x),
            jax.vmap(jax.grad(f))(x),
            jax.grad(total(jax.vmap(f)))(x),
            jax.grad(total(jax.checkpoint(jax.vmap(f))))(x),
        )
        hessians = jax.hessian(total(f))(x), jax.hessian(lambda x: jnp.sum(jax.vmap(jax.vmap(f))(x[None])))(x)
        return gradients, jax.vmap(jax.grad(jax.grad(f)))(x), hessians

    gradients, second, hessians = derivatives(x)
    for gradient in gradients:
        assert_same(gradient, slope)
    assert_same(second, curvature)
    for hessian in hessians:
        assert_same(hessian, np.diag(curvature))


def test_derivatives_are_those_of_the_function():
    """Derivatives of the function, also in a loop and in the shared argument, do not use the rule for batches."""
    x = np.arange(1.0, 4.0)
    assert_slope_and_curvature(called, x, 4 * x, np.full(3, 4.0))
    looped = lambda x: jax.lax.scan(lambda c, _: (jnp.sqrt(called(c)), None), x, length=2)[0]
    assert_close(jax.jit(jax.hessian(lambda x: jnp.sum(looped(x) ** 2)))(x), 8 * np.eye(3))
    assert_same(jax.jit(jax.grad(total(called), argnums=1))(x, 2.0), np.sum(x**2))


def test_another_function_may_be_differentiated():
    """The other function is used for every kind of derivative, and never for values."""
    cube = lambda x, scale: {"y": scale * x**3}
    f = lambda x: call_with_rule(square, wrong_on_purpose, x, jnp.asarray(2.0), differentiated=cube)["y"]
    x = np.arange(1.0, 4.0)
    plain, *batches = jax.jit(lambda x: (f(x), jax.vmap(f)(x), jax.vmap(jax.vmap(f))(x[None])[0]))(x)
    assert_same(plain, 2 * x**2)
    for batch_of in batches:
        assert_same(batch_of, 2 * x**2 + 1)
    assert_slope_and_curvature(f, x, 6 * x**2, 12 * x)


# --- blocks


@pytest.mark.parametrize("n", (1, 5, 6, 7))
def test_blocks_are_cut_and_joined(n):
    x, count = np.asarray(normal(0, n, 2)), -(-n // 3)

    @jax.jit
    def everything(x):
        twice = [map_blocks(lambda a, b: a + b, 3, x, x, recompute=recompute) for recompute in (False, True)]
        sizes = map_blocks(lambda a: jnp.full(a.shape[0], a.shape[0]), 3, x)
        return cut(x, 3), join(cut(x, 3), n), join(cut(x, 3, 0.0), 3 * count), twice, sizes

    blocks, joined, filled, twice, sizes = everything(x)
    assert blocks.shape == (count, 3, 2)
    assert_same(joined, x)
    assert_same(blocks[-1, -1], x[-1])
    assert_same(filled[n:], np.zeros((3 * count - n, 2)))
    for doubled in twice:
        assert_same(doubled, 2 * x)
    assert_same(sizes, np.full(n, min(n, 3)))


def test_systems_are_last_in_a_kernel_and_first_outside():
    x = normal(1, 70, 4, 2)

    def kernel(x):
        assert x.shape[:2] == (4, 2)
        return jnp.sum(x, axis=1)

    assert_same(jax.jit(lambda x: map_systems_last(kernel, x, pairs=2**20))(x), jnp.sum(x, axis=2))


# --- the sums of many systems


def batch(systems, n, d, k, dtype=np.float64):
    """Queries, tokens, values and masses (a third are zero); three of the systems are a heap, a line and an outlier."""
    queries, tokens, values = (
        np.array(normal(seed, systems, n, width, dtype=dtype)) for seed, width in ((1, d), (2, d), (3, k))
    )
    tokens[0] = tokens[0, :1]
    tokens[1, :, 1:] = 0
    tokens[2, 0] *= 1e3
    masses = np.where((np.arange(n) % 3 == 0) & (n > 1), 0, 0.25 * (1 + np.arange(n) % 4))
    return tuple(jnp.asarray(part, dtype) for part in (queries, tokens, values, masses))


# The first and the fourth case have several blocks, the last of which is padded.
SIZES = ((600, 33, 2, 2), (70, 5, 3, 1), (16, 1, 2, 2), (200, 40, 6, 5), (130, 20, 2, 9))


@pytest.mark.exhaustive_cases("False-(600, 33, 2, 2)-full")
@pytest.mark.parametrize("mask", ("full", "causal", "window", "matrix"))
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("heavy", (False, True))
def test_a_batch_is_the_double_loop_of_each(sizes, mask, heavy):
    systems, n, d, k = sizes
    queries, tokens, values, masses = batch(*sizes)
    ours, theirs = masks_of(n)[mask]
    weights = masses if heavy else None

    @jax.jit
    @jax.vmap
    def sums_and_averages(*data):
        found = cjx.Dense().exponential(*data, weights, ours)
        return found, ratio(found.total, found.normaliser)

    found, averages = jax.tree.map(np.asarray, sums_and_averages(queries, tokens, values))
    queries, tokens, values, masses = map(np.asarray, (queries, tokens, values, masses))
    for s in (0, 1, 2, systems - 1):
        log_sum, mean = reference.exponential_sums(queries[s], tokens[s], values[s], masses if heavy else None, theirs)
        empty = np.isinf(log_sum)
        shift, normaliser = (part[s][~empty] for part in (found.shift, found.normaliser))
        assert_close(shift + np.log(normaliser), log_sum[~empty])
        assert_close(averages[s][~empty], mean[~empty])
        assert not found.normaliser[s][empty].any()


@pytest.mark.parametrize(("d", "scores"), ((3, "512x16x128"), (8, "64x128x128")))
def test_a_batch_holds_the_scores_of_some_systems_at_a_time(d, scores):
    """2^20 scores are in memory at once: a strip of each of the 512 systems, or all pairs of 64 systems."""
    x = jax.ShapeDtypeStruct((512, 128, d), np.float32)
    lowered = jax.jit(jax.vmap(lambda y: cjx.SoftmaxAttention(2.0).average(y, None))).lower(x)
    assert re.search(f"exponential .*tensor<{scores}xf32>", lowered.as_text())
    memory = lowered.compile().memory_analysis()
    # All scores together take 32 MB.
    assert memory is None or memory.temp_size_in_bytes < 2**23


@pytest.mark.exhaustive_cases("2")
@pytest.mark.parametrize("d", (2, 6))
def test_a_batch_of_masses_or_masks_has_each_its_own(d):
    """The sums equal those of Blocked, in strips and by matrix products, also where systems share other arguments."""
    queries, tokens, _, masses = map(np.asarray, batch(18, 7, d, 2))
    many = np.stack([np.roll(masses, s) for s in range(18)])
    graphs = (np.random.default_rng(0).random((18, 7, 7)) < 0.5) | np.eye(7, dtype=bool)

    def averages(summation, q, y, mass, graph):
        sums = (
            summation.exponential(q, y, None, mass, cjx.CausalMask()),
            summation.exponential(q, y, None, None, cjx.MatrixMask(graph)),
        )
        return [ratio(found.total, found.normaliser) for found in sums]

    together = jax.jit(jax.vmap(functools.partial(averages, cjx.Dense())))(queries, tokens, many, graphs)
    alone = jax.jit(functools.partial(averages, cjx.Blocked(3, 3)))
    for s in (0, 17):
        for found, wanted in zip(together, alone(queries[s], tokens[s], many[s], graphs[s]), strict=True):
            assert_close(np.asarray(found)[s], wanted)


@pytest.mark.parametrize("dtype", (np.float32, np.float64))
@pytest.mark.parametrize("d", (2, 6))
def test_huge_scores_of_a_batch_give_the_nearest(dtype, d):
    """At scores of 1e10 and 1e30 rounding makes no row zero, and the average is the token of the largest score."""
    x = np.tile(np.eye(d, dtype=dtype), (16, 1, 1))
    average = lambda beta, x: cjx.SoftmaxAttention(beta, summation=cjx.Dense()).average(x, None)
    for beta in (1e10, 1e30, -1e30):
        wanted = x[0] if beta > 0 else (1 - x[0]) / (d - 1)
        assert_close(np.asarray(jax.jit(jax.vmap(average, (None, 0)))(beta, x))[3], wanted)


@pytest.mark.exhaustive
def test_derivatives_of_a_batch_are_those_of_each():
    """First and second derivatives of attention, per system and of the sum over a batch, equal those of Blocked."""
    x = jnp.asarray(normal(4, 16, 6, 2))

    def number(summation):
        attention = lambda beta: cjx.SoftmaxAttention(beta, mask=cjx.CausalMask(), summation=summation)
        return lambda beta, x: jnp.sum(jnp.sin(attention(beta).average(x, None)))

    ours, theirs = number(cjx.Dense()), number(cjx.Blocked(3, 3))
    beta = jnp.asarray(1.7)
    for f in (lambda g: jax.grad(g, (0, 1)), lambda g: jax.grad(jax.grad(g)), jax.hessian):
        found, wanted = (jax.jit(jax.vmap(f(g), (None, 0)))(beta, x) for g in (ours, theirs))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), found, wanted)
        summed = lambda g: lambda beta, x: jnp.sum(jax.vmap(g, (None, 0))(beta, x))
        found, wanted = (jax.jit(f(summed(g)))(beta, x) for g in (ours, theirs))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), found, wanted)


@pytest.mark.exhaustive
def test_simulations_of_a_batch_are_those_alone():
    field = cjx.AttentionField(cjx.SoftmaxAttention(4.0))
    x0 = np.asarray(sphere_tokens(0, 16 * 8, 2)).reshape(16, 8, 2)
    run = jax.jit(lambda x: cjx.simulate(field, x, jnp.asarray([0.0, 2.0])).xs[-1])
    many = jax.jit(jax.vmap(run))(x0)
    for s in (0, 15):
        np.testing.assert_allclose(many[s], run(x0[s]), atol=1e-12)


# --- close pairs


@pytest.mark.parametrize(("systems", "n", "d"), ((70, 30, 2), (3, 40, 3), (16, 5, 6), (64, 2, 2)))
def test_close_pairs_of_a_batch_are_counted(systems, n, d):
    """The count is also right where tokens repeat, and is NaN where a coordinate is NaN."""
    x = np.array(normal(6, systems, n, d))
    x /= np.linalg.norm(x, axis=2, keepdims=True)
    x[0] = x[0, :1]
    x[1, 0] = np.nan
    found = np.asarray(jax.jit(jax.vmap(close_fraction, (0, None)))(x, 0.4))
    assert np.isnan(found[1]) and found[0] == 1
    for s in (0, 2, systems - 1):
        assert_close(found[s], phase.close_pairs(x[s], 0.4))
    cosines = np.linspace(-0.9, 0.9, systems)
    each = np.asarray(jax.jit(jax.vmap(close_fraction))(x, cosines))
    assert_close(each[2], phase.close_pairs(x[2], cosines[2]))
