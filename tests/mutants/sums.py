"""Faults of the sums: chunk edges, ties, adjoints, exponents, and what `Harmonic` certifies."""

from tests.mutants.mutant import Mutant


_SUMS = ("tests/summation/test_sums.py",)
_HARMONIC = ("tests/summation/test_harmonic.py",)
_CERTIFICATE = ("tests/summation/test_harmonic_certificate.py",)
_HARDMAX = ("tests/hardmax/test_layer.py", "tests/hardmax/test_theorem.py", "tests/hardmax/test_limit.py")
_TWICE = ("tests/summation/test_sums.py::test_second_derivatives_are_those_of_differences",)
_MASSES = ("tests/summation/test_degenerate_sums.py",)
_LARGE = ("tests/summation/test_degenerate_sums.py::test_any_score_that_the_dtype_holds_gives_its_row",)

SUMS = (
    # Sums: chunk edges, ties, adjoints
    Mutant(
        "the-largest-score-has-no-derivative",
        "clusterjax/_base/numerics.py",
        "jnp.where(reached, largest - jax.lax.stop_gradient(largest), excess)",
        "jnp.where(reached, 0.0, excess)",
        _TWICE,
    ),
    Mutant(
        "the-largest-score-is-rounded-twice",
        "clusterjax/_base/numerics.py",
        "    counted = jnp.where(reached, largest - jax.lax.stop_gradient(largest), excess)",
        "    counted = excess",
        _LARGE,
    ),
    Mutant(
        "last-block-counts-its-filling",
        "clusterjax/_summation/blocked.py",
        "    in_range = jnp.arange(blocks * size).reshape(blocks, size) < n",
        "    in_range = jnp.arange(blocks * size).reshape(blocks, size) <= n",
        _SUMS,
    ),
    Mutant(
        "steps-go-over-kinks",
        "clusterjax/_model/schedule.py",
        "        return jax.lax.stop_gradient(self.ts) if self.ts.shape[0] > 1 else None",
        "        return None",
        ("tests/model/test_schedule.py",),
    ),
    Mutant(
        "noise-is-interpolated-between-steps",
        "clusterjax/_dynamics/simulate.py",
        "    stops = None if noise is None else ts",
        "    stops = None",
        ("tests/dynamics/test_noise.py",),
    ),
    Mutant(
        "noise-of-short-steps-is-not-resolved",
        "clusterjax/_dynamics/noise.py",
        "tol = jax.ShapeDtypeStruct(x0.shape, x0.dtype), shortest_step(ts, jumps, dt0) / 2",
        "tol = jax.ShapeDtypeStruct(x0.shape, x0.dtype), dt0 / 2",
        ("tests/dynamics/test_noise.py",),
    ),
    Mutant(
        "padding-sets-the-shift",
        "clusterjax/_summation/blocked.py",
        "    top, met = largest(jnp.where(has_mass, scores, -jnp.inf))",
        "    top, met = largest(scores)",
        _MASSES,
    ),
    Mutant(
        "padding-has-no-derivative-by-its-mass",
        "clusterjax/_base/numerics.py",
        "    return jnp.where(has_mass, counted, bounded(excess))",
        "    return jnp.where(has_mass, counted, -jnp.inf)",
        _MASSES,
    ),
    Mutant(
        "the-first-block-of-padding-is-forgotten",
        "clusterjax/_summation/blocked.py",
        "jnp.where(met | (top == -jnp.inf), jnp.maximum(shift, jnp.where(met, top, largest(scores))), top)",
        "jnp.maximum(shift, top)",
        _MASSES,
    ),
    Mutant(
        "exponents-of-padding-overflow",
        "clusterjax/_base/numerics.py",
        "    return jnp.where(exponents < most, exponents, most)",
        "    return exponents",
        _MASSES,
    ),
    Mutant(
        "ties-are-broken",
        "clusterjax/_summation/blocked.py",
        "            chosen = (scores >= least[:, None]) & (scores > -jnp.inf)",
        "            chosen = (scores > least[:, None]) & (scores > -jnp.inf)",
        _SUMS,
    ),
    Mutant(
        "tie-slack-forgets-the-query",
        "clusterjax/_summation/blocked.py",
        "    return lax.stop_gradient(tie_tolerance * _lengths(queries) * longest)",
        "    return lax.stop_gradient(tie_tolerance * longest)",
        _SUMS + _HARDMAX + ("tests/model/test_limits.py",),
    ),
    Mutant(
        "causal-chunk-sees-the-next-token",
        "clusterjax/_summation/harmonic/certificate.py",
        "    causal = jnp.tril(jnp.ones((size, size), bool))",
        "    causal = jnp.tril(jnp.ones((size, size), bool), 1)",
        _HARMONIC,
    ),
    Mutant(
        "causal-chunk-counts-itself-twice",
        "clusterjax/_summation/harmonic/certificate.py",
        "        earlier, error = expansion.sums(queries, expansion.coefficients(_compensated_total(moments)))",
        "        moments = _compensated_add(moments, expansion.moments(tokens, weights))\n"
        "        earlier, error = expansion.sums(queries, expansion.coefficients(_compensated_total(moments)))",
        _HARMONIC,
    ),
    Mutant(
        "ring-adjoint-drops-the-blocks",
        "clusterjax/_summation/devices.py",
        "        return of_queries + more_of_queries, (block, jax.tree.map(jnp.add, of_block, more_of_block))",
        "        return of_queries + more_of_queries, (block, of_block)",
        ("tests/summation/test_sharded.py",),
    ),
    Mutant(
        "ring-numbers-the-columns-of-the-receiver",
        "clusterjax/_summation/devices.py",
        "columns.first + source * block.tokens.shape[0]",
        "columns.first + self.collectives.device_index * block.tokens.shape[0]",
        ("tests/summation/test_sharded.py",),
    ),
    # What Harmonic certifies
    Mutant(
        "series-without-rounding",
        "clusterjax/_summation/harmonic/certificate.py",
        "return float(jnp.finfo(dtype).eps) / 2",
        "return 0.0",
        _CERTIFICATE,
    ),
    Mutant(
        "series-rounds-as-float64",
        "clusterjax/_summation/harmonic/certificate.py",
        "return float(jnp.finfo(dtype).eps) / 2",
        "return float(jnp.finfo(jnp.float64).eps) / 2",
        _CERTIFICATE,
    ),
    Mutant(
        "series-without-its-tail",
        "clusterjax/_summation/harmonic/certificate.py",
        " + self.tail * mass)",
        ")",
        _CERTIFICATE,
    ),
    Mutant(
        "series-without-growth-by-degree",
        "clusterjax/_summation/harmonic/certificate.py",
        "self.units + self.growth * jnp.sqrt((self.d - 1) * lengths)",
        "self.units",
        _CERTIFICATE,
    ),
    Mutant(
        "series-without-the-order-of-a-block",
        "clusterjax/_summation/harmonic/certificate.py",
        "else series.block + 1",
        "else 1",
        _CERTIFICATE,
    ),
    Mutant(
        "series-of-one-device",
        "clusterjax/_summation/harmonic/certificate.py",
        " + (devices - 1)",
        "",
        _CERTIFICATE,
    ),
    Mutant(
        "series-errors-of-one-sum-alone",
        "clusterjax/_summation/harmonic/certificate.py",
        "+ 2 * relative",
        "+ relative",
        _CERTIFICATE,
    ),
    Mutant(
        "series-certifies-what-is-not-a-number",
        "clusterjax/_summation/harmonic/certificate.py",
        "jnp.all(jnp.isfinite(sums), axis=1) & (normaliser > 0) & (bound < jnp.inf)",
        "(normaliser > 0) & ~(bound >= jnp.inf)",
        _CERTIFICATE,
    ),
    Mutant(
        "series-forgets-tokens-off-the-sphere",
        "clusterjax/_summation/harmonic/certificate.py",
        "(norm_error / 2 + (ANGLES",
        "(0 * norm_error + (ANGLES",
        _CERTIFICATE,
    ),
    Mutant(
        "series-forgets-pairs-of-a-chunk",
        "clusterjax/_summation/harmonic/certificate.py",
        "if pairs else 0.0",
        "if pairs < 0 else 0.0",
        _CERTIFICATE,
    ),
    Mutant(
        "series-forgets-what-underflows",
        "clusterjax/_summation/harmonic/certificate.py",
        "error + expansion.underflow(weights)",
        "error",
        _CERTIFICATE,
    ),
    Mutant(
        "series-forgets-the-error-of-masses",
        "clusterjax/_summation/harmonic/certificate.py",
        "relative[0] + jnp.max(relative[1:]",
        "0 * relative[0] + jnp.max(relative[1:]",
        _CERTIFICATE,
    ),
    Mutant(
        "series-carries-nothing-over-chunks",
        "clusterjax/_summation/harmonic/certificate.py",
        "lax.stop_gradient(jax.tree.map(rounding_error",
        "jax.tree.map(jnp.zeros_like, jax.tree.map(rounding_error",
        _CERTIFICATE,
    ),
    Mutant(
        "series-measures-values-of-no-mass",
        "clusterjax/_summation/harmonic/summation.py",
        "jnp.where((masses > 0)[:, None], jnp.abs(values), 0)",
        "jnp.abs(values)",
        _CERTIFICATE,
    ),
    Mutant(
        "series-reaches-one-degree-further",
        "clusterjax/_summation/harmonic/summation.py",
        "largest_length(degree, d, share)",
        "largest_length(degree + 1, d, share)",
        _CERTIFICATE,
    ),
    Mutant(
        "series-with-exact-coefficients",
        "clusterjax/_summation/harmonic/series.py",
        "return 8 + 4.0 * np.arange(degree + 1) + 0.65 * degree",
        "return 0.0 * np.arange(degree + 1)",
        _CERTIFICATE,
    ),
)
