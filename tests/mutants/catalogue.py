"""The faults, by what they would break; `tests/test_mutants.py` holds that each still has its line."""

from pathlib import Path
from typing import NamedTuple


ROOT = Path(__file__).resolve().parents[2]


class Mutant(NamedTuple):
    """A one-line fault.

    `line` stands exactly once in `file`, and is replaced by `fault`; one of `tests`, arguments of pytest, must fail.
    """

    name: str
    file: str
    line: str
    fault: str
    tests: tuple[str, ...]


def planted(mutant: Mutant, text: str) -> str:
    """`text` with the fault in it, or a ValueError if its line does not stand there exactly once."""
    found = text.count(mutant.line)
    if found != 1:
        raise ValueError(f"{mutant.name}: {mutant.file} must hold the line once, but holds it {found} times.")
    return text.replace(mutant.line, mutant.fault)


_MASK, _SPACE = ("tests/test_mask.py",), ("tests/test_space.py",)
_SUMS = ("tests/test_summation.py",)
_FIELD = ("tests/test_field.py",)
_RETRACT = ("tests/test_solver.py",)
_SIMULATE = ("tests/test_simulate.py",)
_HULL = ("tests/test_hull.py",)
_HARMONIC = ("tests/test_harmonic.py",)
_CERTIFICATE = ("tests/test_harmonic_certificate.py",)
_TRAIN = ("tests/test_training.py",)
_SWEEP = ("tests/test_sweep_run.py", "tests/test_sweep_store.py")
_HARDMAX = ("tests/test_hardmax_layer.py", "tests/test_hardmax_theorem.py", "tests/test_hardmax_limit.py")
_CLUSTERS = ("tests/test_observables_clusters.py",)

MUTANTS = (
    # Masks
    Mutant(
        "causal-mask-leaves-itself-out",
        "clusterjax/_mask.py",
        "        return j <= i\n\n    def reaches",
        "        return j < i\n\n    def reaches",
        _MASK,
    ),
    Mutant(
        "causal-block-skipped-too-early",
        "clusterjax/_mask.py",
        "        return first_j <= last_i\n",
        "        return last_j <= last_i\n",
        _MASK,
    ),
    Mutant(
        "causal-block-covered-too-early",
        "clusterjax/_mask.py",
        "        return last_j <= first_i\n",
        "        return first_j <= first_i\n",
        _MASK,
    ),
    Mutant(
        "window-one-too-wide",
        "clusterjax/_mask.py",
        "near = (j > i - self.width) & (j < i + self.width)",
        "near = (j >= i - self.width) & (j < i + self.width)",
        _MASK,
    ),
    Mutant(
        "window-block-skipped-too-early",
        "clusterjax/_mask.py",
        "return (last_j > first_i - self.width) & (first_j <= last_i + ahead)",
        "return (first_j > first_i - self.width) & (first_j <= last_i + ahead)",
        _MASK,
    ),
    Mutant(
        "window-mass-of-one-side",
        "clusterjax/_mask.py",
        "padded = jnp.pad(masses, (back, 0 if self.causal else back))",
        "padded = jnp.pad(masses, (back, 0))",
        _MASK,
    ),
    # Spaces, retraction, fields
    Mutant(
        "sphere-retracts-by-the-square",
        "clusterjax/_misc.py",
        "    return y / jnp.sqrt(jnp.sum(y * y, axis=-1, keepdims=True))",
        "    return y / jnp.sum(y * y, axis=-1, keepdims=True)",
        _SPACE,
    ),
    Mutant(
        "projector-without-the-norm",
        "clusterjax/_space.py",
        "along = jnp.sum(x * v, axis=-1, keepdims=True) / jnp.sum(x * x, axis=-1, keepdims=True)",
        "along = jnp.sum(x * v, axis=-1, keepdims=True)",
        _SPACE,
    ),
    Mutant(
        "retract-keeps-the-last-evaluation",
        "clusterjax/_solver/retract.py",
        "terms, t0, t1, y0, args, solver_state, made_jump=True",
        "terms, t0, t1, y0, args, solver_state, made_jump",
        _RETRACT,
    ),
    Mutant(
        "retract-leaves-the-step-off-the-sphere",
        "clusterjax/_solver/retract.py",
        "        return _retract(self.space, y1), error, dense_info, solver_state, result",
        "        return y1, error, dense_info, solver_state, result",
        _RETRACT,
    ),
    Mutant(
        "value-transposed",
        "clusterjax/_field/attention.py",
        "matmul(average, value.T)",
        "matmul(average, value)",
        _FIELD,
    ),
    Mutant(
        "field-drops-the-masses",
        "clusterjax/_field/attention.py",
        "self.attention.average(y, None, t, at_time(self.masses, t, y.dtype))",
        "self.attention.average(y, None, t, None)",
        _FIELD,
    ),
    Mutant(
        "query-key-transposed",
        "clusterjax/_attention/base.py",
        "        return x if form is None else matmul(x, form)",
        "        return x if form is None else matmul(x, form.T)",
        ("tests/test_attention.py",),
    ),
    Mutant(
        "saved-tokens-are-not-retracted",
        "clusterjax/_saved.py",
        "self.save(t, self.space.retract(y), args)",
        "self.save(t, y, args)",
        _SIMULATE,
    ),
    # Sums: chunk edges, ties, adjoints
    Mutant(
        "last-block-counts-its-filling",
        "clusterjax/_summation/rows.py",
        "    there = jnp.arange(blocks * size).reshape(blocks, size) < n",
        "    there = jnp.arange(blocks * size).reshape(blocks, size) <= n",
        _SUMS,
    ),
    Mutant(
        "blocks-of-masses-of-zero-are-present",
        "clusterjax/_summation/rows.py",
        "        present = cut(masses > 0) & there",
        "        present = cut(masses >= 0) & there",
        _SUMS + ("tests/test_attention_limits.py",),
    ),
    Mutant(
        "ties-are-broken",
        "clusterjax/_summation/rows.py",
        "            chosen = (scores >= least[:, None]) & (scores > -jnp.inf)",
        "            chosen = (scores > least[:, None]) & (scores > -jnp.inf)",
        _SUMS,
    ),
    Mutant(
        "tie-slack-forgets-the-query",
        "clusterjax/_summation/rows.py",
        "    return lax.stop_gradient(tie_tolerance * _lengths(queries) * longest)",
        "    return lax.stop_gradient(tie_tolerance * longest)",
        _SUMS + _HARDMAX + ("tests/test_attention_limits.py",),
    ),
    Mutant(
        "causal-chunk-sees-the-next-token",
        "clusterjax/_summation/chunks.py",
        "    below = jnp.tril(jnp.ones((size, size), bool))",
        "    below = jnp.tril(jnp.ones((size, size), bool), 1)",
        _HARMONIC,
    ),
    Mutant(
        "causal-chunk-counts-itself-twice",
        "clusterjax/_summation/chunks.py",
        "        before, error = expansion.sums(queries, expansion.coefficients(_total(moments)))",
        "        moments = _add(moments, expansion.moments(tokens, masses))\n"
        "        before, error = expansion.sums(queries, expansion.coefficients(_total(moments)))",
        _HARMONIC,
    ),
    Mutant(
        "ring-adjoint-drops-the-blocks",
        "clusterjax/_summation/ring.py",
        "        return back + of_queries, (block, jax.tree.map(jnp.add, owed, of_block))",
        "        return back + of_queries, (block, owed)",
        ("tests/test_sharded.py",),
    ),
    Mutant(
        "ring-numbers-the-columns-of-the-receiver",
        "clusterjax/_summation/ring.py",
        "columns.first + source * block.tokens.shape[0]",
        "columns.first + lax.axis_index(self.across.axis) * block.tokens.shape[0]",
        ("tests/test_sharded.py",),
    ),
    # What Harmonic certifies
    Mutant(
        "series-without-rounding",
        "clusterjax/_summation/certificate.py",
        "return float(jnp.finfo(dtype).eps) / 2",
        "return 0.0",
        _CERTIFICATE,
    ),
    Mutant(
        "series-rounds-as-float64",
        "clusterjax/_summation/certificate.py",
        "return float(jnp.finfo(dtype).eps) / 2",
        "return float(jnp.finfo(jnp.float64).eps) / 2",
        _CERTIFICATE,
    ),
    Mutant(
        "series-without-its-tail",
        "clusterjax/_summation/certificate.py",
        " + self.tail * mass)",
        ")",
        _CERTIFICATE,
    ),
    Mutant(
        "series-without-growth-by-degree",
        "clusterjax/_summation/certificate.py",
        "self.units + self.growth * jnp.sqrt((self.d - 1) * lengths)",
        "self.units",
        _CERTIFICATE,
    ),
    Mutant(
        "series-without-the-order-of-a-block",
        "clusterjax/_summation/certificate.py",
        "else series.block + 1",
        "else 1",
        _CERTIFICATE,
    ),
    Mutant(
        "series-of-one-device",
        "clusterjax/_summation/certificate.py",
        " + (devices - 1)",
        "",
        _CERTIFICATE,
    ),
    Mutant(
        "series-errors-of-one-sum-alone",
        "clusterjax/_summation/certificate.py",
        "+ 2 * relative",
        "+ relative",
        _CERTIFICATE,
    ),
    Mutant(
        "series-certifies-what-is-not-a-number",
        "clusterjax/_summation/certificate.py",
        "jnp.all(jnp.isfinite(sums), axis=1) & (whole > 0) & (found < jnp.inf)",
        "(whole > 0) & ~(found >= jnp.inf)",
        _CERTIFICATE,
    ),
    Mutant(
        "series-forgets-tokens-off-the-sphere",
        "clusterjax/_summation/certificate.py",
        "(off / 2 + (ANGLES",
        "(0 * off + (ANGLES",
        _CERTIFICATE,
    ),
    Mutant(
        "series-forgets-pairs-of-a-chunk",
        "clusterjax/_summation/certificate.py",
        "if pairs else 0.0",
        "if pairs < 0 else 0.0",
        _CERTIFICATE,
    ),
    Mutant(
        "series-forgets-what-underflows",
        "clusterjax/_summation/chunks.py",
        "error + expansion.lost(masses)",
        "error",
        _CERTIFICATE,
    ),
    Mutant(
        "series-forgets-the-error-of-masses",
        "clusterjax/_summation/chunks.py",
        "relative[0] + jnp.max(relative[1:]",
        "0 * relative[0] + jnp.max(relative[1:]",
        _CERTIFICATE,
    ),
    Mutant(
        "series-carries-nothing-over-chunks",
        "clusterjax/_summation/chunks.py",
        "lax.stop_gradient(jax.tree.map(lost",
        "jax.tree.map(jnp.zeros_like, jax.tree.map(lost",
        _CERTIFICATE,
    ),
    Mutant(
        "series-measures-values-of-no-mass",
        "clusterjax/_summation/expand.py",
        "jnp.where((masses > 0)[:, None], jnp.abs(values), 0)",
        "jnp.abs(values)",
        _CERTIFICATE,
    ),
    Mutant(
        "series-reaches-one-degree-further",
        "clusterjax/_summation/expand.py",
        "largest_length(degree, d, share)",
        "largest_length(degree + 1, d, share)",
        _CERTIFICATE,
    ),
    Mutant(
        "series-with-exact-coefficients",
        "clusterjax/_summation/_series/rounding.py",
        "return 8 + 4.0 * np.arange(degree + 1) + 0.65 * degree",
        "return 0.0 * np.arange(degree + 1)",
        _CERTIFICATE,
    ),
    # Hardmax and its certificate
    Mutant(
        "arrived-tokens-follow-the-mean",
        "clusterjax/hardmax/_layer.py",
        "    return moved + lax.stop_gradient(jnp.where(arrived[:, None], x - moved, 0))",
        "    return moved",
        _HARDMAX,
    ),
    Mutant(
        "certificate-of-unsettled-tokens",
        "clusterjax/hardmax/_certificate.py",
        "    held = limit.settled and rest <= zero",
        "    held = rest <= zero",
        _HARDMAX,
    ),
    Mutant(
        "certificate-ignores-vertices-that-no-leader-holds",
        "clusterjax/hardmax/_certificate.py",
        "    held = moved <= zero and bool(limit.is_vertex[: led.size].all()) and others == 0",
        "    held = moved <= zero and bool(limit.is_vertex[: led.size].all())",
        _HARDMAX,
    ),
    Mutant(
        "certificate-takes-equal-tokens",
        "clusterjax/hardmax/_certificate.py",
        "    same = np.flatnonzero((z0[order[1:]] == z0[order[:-1]]).all(axis=1))",
        "    same = np.flatnonzero((z0[order[1:]] == z0[order[:-1]]).all(axis=1))[:0]",
        _HARDMAX,
    ),
    # Observables
    Mutant(
        "clusters-of-twice-the-radius",
        "clusterjax/_observables/clusters.py",
        "        return scaled_square_distances(rows, x, 1 / radius) <= 1",
        "        return scaled_square_distances(rows, x, 1 / radius) <= 4",
        _CLUSTERS,
    ),
    Mutant(
        "labels-stop-after-one-round",
        "clusterjax/_observables/clusters.py",
        "        return jumped, jnp.any(jumped != parents)",
        "        return jumped, jnp.any(jumped != parents) & False",
        _CLUSTERS,
    ),
    # Seeds and stores
    Mutant(
        "every-epoch-in-the-same-order",
        "clusterjax/_training.py",
        'batches, jr.fold_in(key, progress["epoch"])',
        "batches, jr.fold_in(key, 0)",
        _TRAIN,
    ),
    Mutant(
        "a-resumed-run-forgets-its-optimiser",
        "clusterjax/_training.py",
        '    return found, header["progress"]',
        '    return _State(found.params, state.optimiser, found.best), header["progress"]',
        _TRAIN,
    ),
    Mutant(
        "every-point-has-the-same-key",
        "clusterjax/sweep/_evaluate.py",
        'key = {"key": jr.fold_in(root, index)} if self.takes_key else {}',
        'key = {"key": jr.fold_in(root, 0)} if self.takes_key else {}',
        _SWEEP,
    ),
    Mutant(
        "a-point-that-is-not-finite-counts-as-finished",
        "clusterjax/sweep/_evaluate.py",
        "            status[k] = NOT_FINITE",
        "            status[k] = FINISHED",
        _SWEEP,
    ),
    Mutant(
        "a-store-of-another-sweep-is-taken",
        "clusterjax/sweep/_run.py",
        "                kept.refuse_another(identity)\n",
        "",
        _SWEEP,
    ),
)
