"""Faults of masks, spaces, fields, hardmax, observables, seeds and stores."""

from tests.mutants.mutant import Mutant


_MASK, _SPACE = ("tests/model/test_mask.py",), ("tests/model/test_space.py",)
_FIELD = ("tests/model/test_attention_field.py",)
_RETRACT = ("tests/dynamics/test_solver.py",)
_SIMULATE = ("tests/dynamics/test_simulate.py",)
_TRAIN = ("tests/training/test_training_loop.py",)
_SWEEP = ("tests/sweep/test_run.py", "tests/sweep/test_store.py")
_HARDMAX = ("tests/hardmax/test_layer.py", "tests/hardmax/test_theorem.py", "tests/hardmax/test_limit.py")
_TRANSPORT, _COLLAPSE = ("tests/observables/test_transport.py",), ("tests/observables/test_neural_collapse.py",)
_CLUSTERS = ("tests/observables/test_clusters.py",)
_CONTROLS = ("tests/probe/test_controls.py",)

PARTS = (
    # Errors over independent units, and random weights as before training
    Mutant(
        "clustered-error-without-its-factor",
        "clusterjax/probe/measures/survey.py",
        "np.sqrt(counts / (counts - 1) * np.sum(sums**2, axis=0)) / many",
        "np.sqrt(np.sum(sums**2, axis=0)) / many",
        _CONTROLS,
    ),
    Mutant(
        "spread-of-a-gguf-file-falls-back-to-the-default",
        "clusterjax/probe/networks/load.py",
        "sizes_of(config, file)._replace(spread=SPREADS.get(file.name))",
        "sizes_of(config, file)",
        _CONTROLS,
    ),
    Mutant(
        "spread-that-is-given-is-not-drawn-with",
        "clusterjax/probe/measures/controls.py",
        "        return sizes._replace(spread=spread)\n",
        "        return sizes\n",
        _CONTROLS,
    ),
    # Masks
    Mutant(
        "causal-mask-leaves-itself-out",
        "clusterjax/_model/mask.py",
        "        return j <= i\n\n    def reaches",
        "        return j < i\n\n    def reaches",
        _MASK,
    ),
    Mutant(
        "causal-block-skipped-too-early",
        "clusterjax/_model/mask.py",
        "        return first_j <= last_i\n",
        "        return last_j <= last_i\n",
        _MASK,
    ),
    Mutant(
        "causal-block-covered-too-early",
        "clusterjax/_model/mask.py",
        "        return last_j <= first_i\n",
        "        return first_j <= first_i\n",
        _MASK,
    ),
    Mutant(
        "window-one-too-wide",
        "clusterjax/_model/mask.py",
        "near = (j > i - self.width) & (j < i + self.width)",
        "near = (j >= i - self.width) & (j < i + self.width)",
        _MASK,
    ),
    Mutant(
        "window-block-skipped-too-early",
        "clusterjax/_model/mask.py",
        "return (last_j > first_i - self.width) & (first_j <= last_i + ahead)",
        "return (first_j > first_i - self.width) & (first_j <= last_i + ahead)",
        _MASK,
    ),
    Mutant(
        "window-mass-of-one-side",
        "clusterjax/_model/mask.py",
        "padded = jnp.pad(masses, (back, 0 if causal else back))",
        "padded = jnp.pad(masses, (back, 0))",
        _MASK,
    ),
    Mutant(
        "sink-block-skipped-though-kept",
        "clusterjax/_model/mask.py",
        "return ((last_j > first_i - self.width) | (first_j < self.kept)) & (first_j <= last_i)",
        "return (last_j > first_i - self.width) & (first_j <= last_i)",
        _MASK,
    ),
    Mutant(
        "sink-mass-counts-the-kept-twice",
        "clusterjax/_model/mask.py",
        "start = jnp.clip(jnp.arange(masses.shape[0]) - self.width + 1, 0, kept)",
        "start = jnp.clip(jnp.arange(masses.shape[0]) + 1, 0, kept)",
        _MASK,
    ),
    # Spaces, retraction, fields
    Mutant(
        "sphere-retracts-by-the-square",
        "clusterjax/_base/numerics.py",
        '    return y / jnp.sqrt(_over_coordinates("sum", y * y))',
        '    return y / _over_coordinates("sum", y * y)',
        _SPACE,
    ),
    Mutant(
        "projector-without-the-norm",
        "clusterjax/_model/space.py",
        "along = jnp.sum(x * v, axis=-1, keepdims=True) / jnp.sum(x * x, axis=-1, keepdims=True)",
        "along = jnp.sum(x * v, axis=-1, keepdims=True)",
        _SPACE,
    ),
    Mutant(
        "retract-keeps-the-last-evaluation",
        "clusterjax/_dynamics/retract.py",
        "terms, t0, t1, y0, args, solver_state, made_jump=True",
        "terms, t0, t1, y0, args, solver_state, made_jump",
        _RETRACT,
    ),
    Mutant(
        "retract-leaves-the-step-off-the-sphere",
        "clusterjax/_dynamics/retract.py",
        "        return _retract(self.space, y1), error, dense_info, solver_state, result",
        "        return y1, error, dense_info, solver_state, result",
        _RETRACT,
    ),
    Mutant(
        "value-transposed",
        "clusterjax/_model/field.py",
        "matmul(average, value.T)",
        "matmul(average, value)",
        _FIELD,
    ),
    Mutant(
        "field-drops-the-masses",
        "clusterjax/_model/field.py",
        "self.attention.average(y, None, t, at_time(self.masses, t, y.dtype))",
        "self.attention.average(y, None, t, None)",
        _FIELD,
    ),
    Mutant(
        "query-key-transposed",
        "clusterjax/_model/attention.py",
        "        return x if form is None else matmul(x, form)",
        "        return x if form is None else matmul(x, form.T)",
        ("tests/model/test_average.py",),
    ),
    Mutant(
        "saved-tokens-are-not-retracted",
        "clusterjax/_dynamics/integrate.py",
        "WHAT, t, self.space.retract(y), args)",
        "WHAT, t, y, args)",
        _SIMULATE,
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
        "    held = limit.settled and farthest <= zero",
        "    held = farthest <= zero",
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
        "clusterjax/_training/loop.py",
        'batches, jr.fold_in(key, progress["epoch"])',
        "batches, jr.fold_in(key, 0)",
        _TRAIN,
    ),
    Mutant(
        "a-resumed-run-forgets-its-optimiser",
        "clusterjax/_training/loop.py",
        "    return restored, progress",
        '    return _State(restored.params, state.optimiser, restored.best), header["progress"]',
        _TRAIN,
    ),
    Mutant(
        "every-point-has-the-same-key",
        "clusterjax/sweep/_run.py",
        'key = {"key": jr.fold_in(root, index)} if self.takes_key else {}',
        'key = {"key": jr.fold_in(root, 0)} if self.takes_key else {}',
        _SWEEP,
    ),
    Mutant(
        "a-point-that-is-not-finite-counts-as-finished",
        "clusterjax/sweep/_run.py",
        "            status[k] = NOT_FINITE",
        "            status[k] = FINISHED",
        _SWEEP,
    ),
    Mutant(
        "a-store-of-another-sweep-is-taken",
        "clusterjax/sweep/_run.py",
        "                result_store.refuse_another(identity)\n",
        "",
        _SWEEP,
    ),
    Mutant(
        "a-damaged-batch-of-a-sweep-counts-as-finished",
        "clusterjax/sweep/_store.py",
        "        marks[damaged] = _UNMARKED\n",
        "",
        _SWEEP,
    ),
    Mutant(
        "a-store-does-not-ask-for-the-version-of-a-sweep",
        "clusterjax/sweep/_run.py",
        '    options = {"version": version, ',
        "    options = {",
        _SWEEP,
    ),
    # Transport, neural collapse
    Mutant(
        "transport-never-takes-mass-back",
        "clusterjax/_observables/transport.py",
        "for row in np.flatnonzero((coupling[:, nearest] > 0).any(axis=1) & np.isinf(to_row)):",
        "for row in np.flatnonzero((coupling[:, nearest] < 0).any(axis=1) & np.isinf(to_row)):",
        _TRANSPORT,
    ),
    Mutant(
        "transport-potentials-of-rows-stay",
        "clusterjax/_observables/transport.py",
        "u[reached] += at - to_row[reached]",
        "u[reached] += 0 * to_row[reached]",
        _TRANSPORT,
    ),
    Mutant(
        "transport-in-units-of-the-largest-distance",
        "clusterjax/_observables/transport.py",
        "        if largest >= unit / 2:\n",
        "        if True:\n",
        _TRANSPORT,
    ),
    Mutant(
        "transport-carries-rounding",
        "clusterjax/_observables/transport.py",
        "return (len(first) + len(second)) * np.finfo(float).eps * first.sum()",
        "return 0.0",
        _TRANSPORT,
    ),
    Mutant(
        "transport-ignores-a-little-mass",
        "clusterjax/_observables/transport.py",
        "return (len(first) + len(second)) * np.finfo(float).eps * first.sum()",
        "return 1e-9 * first.sum()",
        _TRANSPORT,
    ),
    Mutant(
        "collapse-inverts-what-rounding-left",
        "clusterjax/_observables/neural_collapse.py",
        "axes = jnp.where(sizes > rounding.astype(sizes.dtype), axes, 0)",
        "axes = jnp.where(sizes > 0, axes, 0)",
        _COLLAPSE,
    ),
    Mutant(
        "collapse-of-sums-with-the-offset",
        "clusterjax/_observables/neural_collapse.py",
        "features = features - features[:1]",
        "features = features - 0",
        _COLLAPSE,
    ),
    # Certificates
    Mutant(
        "a-layer-of-wide-ties-is-certified",
        "clusterjax/hardmax/_certificate.py",
        "    if layer.tie_tolerance is not None and layer.tie_tolerance > most:",
        "    if layer.tie_tolerance is not None and layer.tie_tolerance > 1:",
        ("tests/hardmax/test_limit.py::test_bad_input_is_refused",),
    ),
)
