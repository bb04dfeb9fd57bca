"""Faults of the solver for long times, of the Jacobian that it solves with, and of lifetimes."""

from tests.mutants.mutant import Mutant


_STEP = ("tests/dynamics/test_rodas5p.py",)
_NUMBERS = ("tests/dynamics/test_rodas5p_coefficients.py",)
_RUNS = ("tests/dynamics/test_rodas5p_runs.py",)
_LIVES = ("tests/observables/test_lifetimes.py",)
_PASSES = ("tests/coarsen/test_coarsen_passes.py",)
_WAITS = (
    "tests/coarsen/test_coarsen.py::test_two_tokens_merge_at_any_time_that_float64_holds",
    "tests/coarsen/test_coarsen.py::test_bounds_of_long_waits_are_numbers",
    "tests/coarsen/test_coarsen.py::test_mergers_before_all_times_of_float64_are_refused_and_an_offset_mends_it",
    "tests/coarsen/test_coarsen.py::test_a_bound_that_is_no_number_is_infinite",
)
_ENDS = (
    "tests/limits/test_sphere.py::test_what_is_metastable_says_when_its_next_merger_is",
    "tests/limits/test_sphere.py::test_only_tokens_that_are_opposite_bit_by_bit_are_certified_to_stay",
    "tests/limits/test_sphere.py::test_metastable_points_are_not_certified_where_the_theorem_says_one",
    "tests/limits/test_splitting.py::test_eigenvalues_that_nearly_coincide_are_neither_one_nor_two",
    "tests/limits/test_space.py::test_nearly_equal_is_not_equal_and_certifies_nothing",
    "tests/limits/test_space.py::test_without_its_hypotheses_a_shape_that_fits_is_not_certified",
)
_SHAPES, _HYPOTHESES = "clusterjax/_limits/sphere.py", "clusterjax/_limits/hypotheses.py"
_TOUCHES = _COARSE_RUN = "clusterjax/_coarsen/run.py"
_LAW, _COARSE_STEPS = "clusterjax/_coarsen/velocity.py", "clusterjax/_coarsen/steps.py"
_ADJOINT = _BOUND = "clusterjax/_coarsen/bound.py"
_SOLVER = _TANGENT = _SUITS = _FIELD = "clusterjax/_dynamics/rodas5p.py"
_SPELLS = "clusterjax/_observables/lifetimes.py"

LONG_TIMES = (
    # Coefficients and the step
    Mutant("rodas-digit-of-gamma", _SOLVER, "0.21193756319429014", "0.21193756391429014", _NUMBERS),
    Mutant("rodas-digits-of-a-stage", _SOLVER, "0.5072464736228206,", "0.5072464736282206,", _NUMBERS),
    Mutant("rodas-sign-of-a-coupling", _SOLVER, "-1.41221402718213,", "1.41221402718213,", _NUMBERS),
    Mutant("rodas-digits-of-a-time", _SOLVER, "0.9769306725060716", "0.9769306725067016", _NUMBERS),
    Mutant("rodas-digits-by-time", _SOLVER, "-0.3384627126235924", "-0.3384627126239524", _NUMBERS),
    Mutant("rodas-digit-of-the-interpolant", _SOLVER, "72.92137995996029", "72.92137955996029", _NUMBERS),
    Mutant("rodas-a-stage-is-missing", _SOLVER, "lax.fori_loop(0, 8, stage", "lax.fori_loop(0, 7, stage", _STEP),
    Mutant("rodas-wrong-error-estimate", _SOLVER, "    error = k[7]\n", "    error = k[6]\n", _STEP),
    Mutant("rodas-no-derivative-by-time", _SOLVER, "velocity + span * by_time[i]", "velocity + 0 * by_time[i]", _STEP),
    Mutant("rodas-stages-at-the-start", _SOLVER, "t1, t0 + times[i] * span)", "t1, t0 + 0 * span)", _STEP),
    Mutant(
        "rodas-wrong-last-weight",
        _SOLVER,
        "constant((*_LAST, 1.0, 1.0, 1.0))",
        "constant((*_LAST, 1.0, 1.0, 0.0))",
        _STEP,
    ),
    Mutant("rodas-radii-drift", _SOLVER, "equation.projected(y0, y0 + ", "(lambda y0, y1: y1)(y0, y0 + ", _STEP),
    Mutant("rodas-growth-is-not-bounded", _SOLVER, "too_long, jnp.inf, error", "too_long, error, error", _STEP),
    Mutant(
        "rodas-growth-of-what-shrinks", _SOLVER, "    rate = sign * matmul(u,", "    rate = -sign * matmul(u,", _STEP
    ),
    Mutant("rodas-rule-skips-the-wrong-runs", _SOLVER, "lax.cond(t0 == t1,", "lax.cond(t0 != t1,", _STEP),
    Mutant("rodas-interpolant-order-of-powers", _SOLVER, "inner = second + share *", "inner = second - share *", _STEP),
    # The Jacobian
    Mutant("tangent-no-diagonal-of-the-projection", _TANGENT, "(blocks - diagonal)", "(blocks - 0 * diagonal)", _STEP),
    Mutant("tangent-no-radii", _TANGENT, " / radii[None, None, :, None]", "", _STEP),
    Mutant(
        "tangent-no-row-along-the-tokens", _TANGENT, "return k + along[:, None]", "return k + 0 * along[:, None]", _STEP
    ),
    Mutant("tangent-slope-of-wrong-sign", _TANGENT, "axis=1) - c * jnp.sum", "axis=1) + c * jnp.sum", _STEP),
    Mutant("tangent-time-of-a-run-backwards", _TANGENT, "t * equation.direction, point", "t, point", _STEP),
    Mutant(
        "tangent-no-projection",
        _TANGENT,
        "return space.tangent(y, self.term",
        "return (lambda y, v: v)(y, self.term",
        _STEP,
    ),
    Mutant("jacobian-no-beta-of-the-others", _FIELD, "others = others + beta *", "others = others +", _STEP),
    Mutant("jacobian-not-centred", _FIELD, "y[None, :, :] - average[:, None, :] if", "y[None, :, :] if", _STEP),
    Mutant("jacobian-keys-of-the-form", _FIELD, "matmul(y, form.T)", "matmul(y, form)", _STEP),
    Mutant("jacobian-value-transposed", _FIELD, '"ab,ibjc->iajc"', '"ba,ibjc->iajc"', _STEP),
    # Refusals
    Mutant("suits-noise", _SUITS, "if noise is not None:", "if noise is not None and False:", _RUNS),
    Mutant("suits-sharded", _SUITS, "    if sharded:", "    if not sharded and False:", _RUNS),
    Mutant("suits-heads-of-hardmax", _SUITS, "part.factors is None:", "part.factors is not None:", _RUNS),
    Mutant(
        "suits-the-end-and-not-the-span", _SUITS, "float(np.ptp(np.asarray(ts)))", "float(np.asarray(ts)[0])", _RUNS
    ),
    # Lifetimes
    Mutant(
        "lifetimes-at-risk-one-too-few",
        _SPELLS,
        "self.durations[None, :] >= ends",
        "self.durations[None, :] > ends",
        _LIVES,
    ),
    Mutant(
        "lifetimes-greenwood-without-the-ended",
        _SPELLS,
        "np.maximum(at_risk - ended, 1)",
        "np.maximum(at_risk, 1)",
        _LIVES,
    ),
    Mutant("lifetimes-greenwood-without-s", _SPELLS, "errors = probabilities * np.sqrt", "errors = np.sqrt", _LIVES),
    Mutant(
        "lifetimes-censored-as-ended",
        _SPELLS,
        "        censored = after == row.size\n",
        "        censored = False\n",
        _LIVES,
    ),
    Mutant(
        "lifetimes-ends-of-censored",
        _SPELLS,
        "np.unique(self.durations[~self.censored])",
        "np.unique(self.durations)",
        _LIVES,
    ),
    Mutant("lifetimes-ties-count-censored", _SPELLS, " & ~self.censored[None, :], axis=1)", ", axis=1)", _LIVES),
    Mutant("lifetimes-curve-before-its-step", _SPELLS, 'side="right"', 'side="left"', _LIVES),
    Mutant("lifetimes-earliest-is-first", _SPELLS, "ts[max(first - 1, 0)]", "ts[first]", _LIVES),
    Mutant(
        "lifetimes-says-beyond", _SPELLS, "return value if t <= self.followed or", "return value if t >= 0 or", _LIVES
    ),
    Mutant(
        "lifetimes-mean-beyond-its-end",
        _SPELLS,
        "before = self.times < horizon",
        "before = self.times <= 2 * horizon",
        _LIVES,
    ),
    # Times of e^-700 to e^709
    Mutant(
        "long-waits-own-term-in-the-shift",
        _LAW,
        "idle is not None and not law.normalised",
        "idle is not None and law.normalised",
        _WAITS,
    ),
    Mutant("long-waits-units-are-times", _LAW, "law.offset - top[:, 0]", "np.exp(law.offset - top[:, 0])", _WAITS),
    Mutant(
        "long-waits-rows-in-other-units", _LAW, "factors = np.exp(unit - units)", "factors = np.exp(0 * units)", _WAITS
    ),
    Mutant("long-waits-clock-is-not-kept", _COARSE_STEPS, "error, last, clock=clock)", "error, last)", _WAITS),
    Mutant("long-waits-half-a-unit", _COARSE_STEPS, "return span * half * half", "return span * half", _WAITS),
    Mutant(
        "long-waits-gradients-of-times",
        _ADJOINT,
        "np.exp(leg.clock - np.log(times))",
        "np.exp(leg.clock) + 0 * times",
        _WAITS,
    ),
    Mutant("long-waits-bound-may-be-nan", _BOUND, "np.where(np.isnan(total), np.inf, 2 * total)", "2 * total", _WAITS),
    Mutant(
        "long-waits-early-mergers-are-at-zero",
        _COARSE_RUN,
        "            raise TooEarly\n",
        "            pass\n",
        _WAITS,
    ),
    # Limits that are none
    Mutant(
        "limits-several-points-have-a-proof",
        _SHAPES,
        "if kind in (ONE, OPPOSITE) and is_at",
        "if kind and not is_at",
        _ENDS,
    ),
    Mutant(
        "limits-nobody-is-metastable", _SHAPES, "shape.kind if np.isinf(until) else METASTABLE", "shape.kind", _ENDS
    ),
    Mutant(
        "limits-mergers-at-the-start-count", _SHAPES, "tree.times[tree.times > 0]", "tree.times[tree.times >= 0]", _ENDS
    ),
    Mutant(
        "limits-opposite-to-rounding",
        _HYPOTHESES,
        "| (x == -x[0]).all(axis=1)",
        "| (abs(x + x[0]) < 1e-6).all(axis=1)",
        _ENDS,
    ),
    Mutant(
        "limits-any-value-keeps-a-cap",
        _HYPOTHESES,
        "return number, off, number > 0 and off <=",
        "return number, off, number > 0 or off <=",
        _ENDS,
    ),
    Mutant(
        "limits-nearly-equal-is-equal",
        "clusterjax/_limits/hypotheses.py",
        "unknown = meets or off > EQUAL * error",
        "unknown = meets",
        _ENDS,
    ),
    Mutant(
        "limits-fit-without-hypotheses",
        "clusterjax/_limits/flat.py",
        "    proof = name if all",
        "    proof = theorem.name if all",
        _ENDS,
    ),
    # Tokens that pass each other within a step
    Mutant("passes-are-not-looked-for", _TOUCHES, "tolerance, others & ~near)", "tolerance, others & near)", _PASSES),
    Mutant("passes-of-those-that-part", _TOUCHES, "(first < 0) & (last > 0)", "(first > 0) & (last < 0)", _PASSES),
    Mutant(
        "passes-count-whatever-the-distance", _TOUCHES, "    met = least <= tolerance", "    met = least >= 0", _PASSES
    ),
    Mutant(
        "passes-nearest-is-farthest",
        _TOUCHES,
        "falls = square(left) > square",
        "falls = square(left) < square",
        _PASSES,
    ),
    Mutant("passes-end-with-the-step", _TOUCHES, "(0.0, ends[met])", "(0.0, 1.0)", _PASSES),
    Mutant("passes-few-sections", _TOUCHES, "(5**0.5 - 1) / 2, 40", "(5**0.5 - 1) / 2, 4", _PASSES),
    Mutant("passes-nobody-is-near", _TOUCHES, "<= distance + far[None, :]", "<= distance - far[None, :]", _PASSES),
    Mutant("passes-tangents-of-one-end", _TOUCHES, "* (end - last - begin) /", "* (end - begin) /", _PASSES),
)
