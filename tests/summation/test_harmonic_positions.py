"""`Harmonic` with weights that decay: moments that are multiplied from chunk to chunk, and their certificate."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax._model.position import LogWeights
from clusterjax._summation.harmonic.certificate import Expansion, Rounding, chunk_size, decaying_sums
from clusterjax._summation.harmonic.circle import CircleSeries
from clusterjax._summation.harmonic.summation import _expand
from tests import clouds
from tests.helpers import normal, sphere_tokens


# Several chunks of the circle (128 tokens) and of the spheres, the last one not full.
N, BETA = 700, 4.0
SLOPES = (0.0, 1e-6, 1e-3, 0.1, 3.0, 50.0, 1e30)
MASKS = {"causal": cjx.CausalMask(), "full": cjx.FullMask()}
MASSES = {
    "ones": np.ones(N),
    "some zero": clouds.masses("some zero", N, seed=1),
    "one far": np.where(np.arange(N) == 3, 1.0, 0.0),
    "rising": np.exp(np.linspace(-20, 20, N)),
}


def exact(x, masses, slope, mask):
    """The averages of tokens in float64, by all pairs at once, with shifted exponents."""
    x, masses = np.asarray(x, float), np.asarray(masses, float)
    far = np.abs(np.subtract.outer(np.arange(N), np.arange(N)))
    exponents = BETA * x @ x.T - float(slope) * far
    attended = (masses > 0)[None, :] & ((np.tri(N) > 0) | (mask == "full"))
    top = np.max(np.where(attended, exponents, -np.inf), axis=1, keepdims=True)
    weights = np.where(attended, np.exp(np.where(attended, exponents - np.where(np.isfinite(top), top, 0), -np.inf)), 0)
    weights = weights * masses[None, :]
    total = weights.sum(axis=1, keepdims=True)
    return weights @ x / np.where(total > 0, total, 1), attended.any(axis=1)


@functools.cache
def programs(mask, tolerance):
    """Compiles the sums and bounds of a series alone, and averages in which the rows not certified sum all pairs."""

    @jax.jit
    def alone(x, masses, slope):
        return _expand(jnp.asarray(BETA, x.dtype) * x, x, None, masses, MASKS[mask], tolerance, LogWeights(slope=slope))

    @jax.jit
    def whole(x, masses, slope):
        attention = cjx.SoftmaxAttention(
            BETA, mask=MASKS[mask], position=cjx.ALiBi(slope), summation=cjx.Harmonic(tolerance)
        )
        return attention.average(x, None, masses=masses)

    return alone, whole


@pytest.mark.exhaustive_cases(
    "3-float64-causal", "3-float64-full", "2-float64-full", "2-float32-causal", "2-float32-full"
)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("d", "dtype"), [(2, jnp.float64), (2, jnp.float32), (3, jnp.float64)])
def test_errors_are_within_the_certificate(d, dtype, mask):
    """Certified errors hold on degenerate clouds, for slopes from 0 until all factors underflow, and all masses."""
    tolerance = 1e-10 if dtype == jnp.float64 else 2e-3
    alone, whole = programs(mask, tolerance)
    for index, name in enumerate(clouds.CLOUDS):
        x = jnp.asarray(clouds.cloud(name, N, d, seed=2, sphere=True), dtype)
        for which, slope in enumerate(SLOPES):
            masses = jnp.asarray(list(MASSES.values())[(index + which) % len(MASSES)], dtype)
            wanted, attended = exact(x, masses, np.asarray(slope, dtype), mask)
            sums, bound = (np.asarray(part, float) for part in alone(x, masses, jnp.asarray(slope, dtype)))
            certified = bound <= tolerance
            # A row without mass is exact; a row whose mass has decayed to zero is not certified.
            assert not np.any(sums[~attended]) and certified[~attended].all()
            rows = certified & attended
            found = sums[rows, 1:] / sums[rows, :1]
            assert np.all(np.abs(found - wanted[rows]).max(axis=1) <= bound[rows]), (name, slope)
            average = np.asarray(whole(x, masses, jnp.asarray(slope, dtype)), float)
            assert np.abs(average - wanted).max() < tolerance, (name, slope)


@pytest.mark.parametrize("slope", (0.0, 1e-3, 0.02))
def test_the_bound_counts_the_units_of_every_factor(slope, monkeypatch):
    """The bound equals a double loop: x + 3 units for a factor e^{-x} in either chunk, 8 x for a chunk in between.

    The measured errors are far below the bound, so that they would not show whether the bound has this part.
    """
    monkeypatch.setattr(Rounding, "error", lambda self, lengths, mass, evaluation: 0 * lengths)
    series, x, masses = CircleSeries(23, True), sphere_tokens(1, N, 2), jnp.asarray(MASSES["some zero"])
    none = Rounding(0.0, 0.0, 0.0, 0.0, 2)
    expansion = Expansion(series, jnp.asarray(BETA), False, jnp.ones(1), none)
    bound = jax.jit(lambda slope: decaying_sums(expansion, BETA * x, x, masses[:, None], slope, True)[1])(slope)
    size = chunk_size(series, N, x.dtype, True)
    assert 2 * size < N
    units = np.zeros(N)
    for i in range(N):
        for j in range(i - i % size):
            between = i // size - j // size - 1
            of_term = (slope * (size - j % size) + 3) + (slope * (i % size) + 3) + 8 * slope * size * between
            units[i] += MASSES["some zero"][j] * np.exp(-slope * (i - j)) * of_term
    # The sums of masses and of tokens have this error, in the sine and the cosine alike; one per cent is added.
    np.testing.assert_allclose(bound, 2 * 1.01 * 2**0.5 * 2.0**-53 * units, rtol=1e-9)


@pytest.mark.exhaustive_cases("full")
@pytest.mark.parametrize("mask", MASKS)
def test_uniform_tokens_are_certified(mask):
    for dtype, tolerance in ((jnp.float64, 1e-10), (jnp.float32, 2e-3)):
        x, ones = sphere_tokens(1, N, 2, dtype), jnp.ones(N, dtype)
        for slope in SLOPES:
            assert bool((programs(mask, tolerance)[0](x, ones, jnp.asarray(slope, dtype))[1] <= tolerance).all())


@pytest.mark.exhaustive
def test_rows_with_a_position_are_told_to_be_certified():
    """The bounds of the decaying sums certify the rows; without a position more rows are certified."""
    harmonic, x, mask = cjx.Harmonic(1e-10), sphere_tokens(1, N, 2), MASKS["causal"]
    masses = jnp.asarray(MASSES["one far"])
    rows = harmonic.certified(BETA * x, x, masses, mask, cjx.ALiBi(3.0))
    np.testing.assert_array_equal(rows, programs("causal", 1e-10)[0](x, masses, jnp.asarray(3.0))[1] <= 1e-10)
    assert 0 < rows.sum() < harmonic.certified(BETA * x, x, masses, mask).sum()
    assert harmonic.certified(BETA * x, x, None, mask, cjx.Rotary([0.7])).all()
    with pytest.raises(ValueError, match="^position of Harmonic must be None or Rotary or ALiBi"):
        harmonic.certified(x, x, position=cjx.RelativeBias(np.zeros(3)))


@pytest.mark.exhaustive_cases("full")
@pytest.mark.parametrize("mask", MASKS)
def test_weights_that_grow_are_summed_by_pairs(mask):
    x, masses = sphere_tokens(1, N, 2), MASSES["some zero"]
    alone, whole = programs(mask, 1e-10)
    for slope in (-0.01, -3.0):
        assert not np.isfinite(np.asarray(alone(x, masses, slope)[1])).any()
        average = np.asarray(whole(x, masses, slope))
        assert np.abs(average - exact(x, masses, slope, mask)[0]).max() < 1e-12


@pytest.mark.exhaustive
@pytest.mark.parametrize("mask", MASKS)
def test_derivatives_by_tokens_masses_and_rate(mask):
    """Derivatives equal those of all pairs: causal with tokens as values, full with separate values."""
    x, masses, way = sphere_tokens(4, N, 2), jnp.asarray(MASSES["some zero"]), normal(6, N, 2)
    values = None if mask == "causal" else normal(5, N, 2)

    def total(parts, summation):
        x, masses, values, rate = parts
        x = cjx.Sphere().retract(x)
        attention = cjx.UnnormalisedAttention(1.5, mask=MASKS[mask], position=cjx.Decay(rate), summation=summation)
        return jnp.sum(attention.average(x, values, masses=masses) * way)

    series, pairs = (
        jax.jit(jax.value_and_grad(functools.partial(total, summation=s))) for s in (cjx.Harmonic(1e-10), cjx.Dense())
    )
    for rate in (0.0, 9.0):
        parts = (x, masses, values, jnp.asarray(rate))
        for one, other in zip(jax.tree.leaves(series(parts)), jax.tree.leaves(pairs(parts)), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-9 * (1 + np.abs(np.asarray(other)).max()))
