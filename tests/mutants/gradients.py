"""Faults of what is differentiated: the stages of a step, and the sums of pairs that stand for the strips."""

from tests.mutants.mutant import Mutant


_STAGES = "clusterjax/_dynamics/retract.py"
_TESTS = "tests/dynamics/test_stages.py::"
_STEPS = (_TESTS + "test_steps_and_interpolants_are_those_of_diffrax",)
_STANDS = (_TESTS + "test_what_it_stands_for",)
_SUMS = "clusterjax/_summation/dense.py"
_LOOP = ("tests/summation/test_degenerate_sums.py::test_averages_and_derivatives_are_those_of_the_loop",)

GRADIENTS = (
    Mutant("stages-are-at-the-start-of-a-step", _STAGES, "t1, t0 + c * (t1 - t0)", "t1, t0", _STEPS),
    Mutant("the-first-stage-has-no-weight", _STAGES, ".at[0].set(terms.prod(last, control))", "", _STEPS),
    Mutant("the-error-is-the-step", _STAGES, "self.tableau.b_error", "self.tableau.b_sol", _STEPS),
    Mutant(
        "what-was-before-a-jump-is-kept",
        _STAGES,
        "unvmap_any(first | made_jump)",
        "unvmap_any(first)",
        (_TESTS + "test_six_evaluations_a_step_and_one_more_at_the_start_and_after_jumps",),
    ),
    Mutant(
        "every-step-is-the-first",
        _STAGES,
        "(False, f1)",
        "(True, f1)",
        (_TESTS + "test_six_evaluations_a_step_and_one_more_at_the_start_and_after_jumps",),
    ),
    Mutant(
        "the-first-stage-is-that-of-the-step-before-last",
        _STAGES,
        "(False, f1)",
        "(False, last)",
        _STEPS,
    ),
    Mutant("any-number-of-tokens-is-few", _STAGES, "y0.shape[0] <= _MOST_TOKENS", "y0.shape[0]", _STANDS),
    Mutant("noise-has-stages-too", _STAGES, " and type(terms) is dfx.ODETerm", "", _STANDS),
    Mutant("forward-mode-has-stages-too", _STAGES, "if plain and reverse and", "if plain and", _STANDS),
    Mutant(
        "the-function-itself-is-differentiated",
        "clusterjax/_base/batching.py",
        "return differentiated(",
        "return plain(",
        ("tests/base/test_batching.py::test_another_function_may_be_differentiated",),
    ),
    Mutant(
        "a-batch-is-differentiated-by-its-rule",
        "clusterjax/_base/batching.py",
        "rule=of_batches, differentiated=of_derivatives",
        "rule=of_batches, differentiated=None",
        ("tests/base/test_batching.py::test_another_function_may_be_differentiated",),
    ),
    Mutant(
        "derivatives-know-no-mask",
        _SUMS,
        "scores = _masked(matmul(tokens, queries.T), jnp.arange(n), block, mask)",
        "scores = matmul(tokens, queries.T)",
        _LOOP,
    ),
    Mutant(
        "masses-of-zero-are-attended-to",
        _SUMS,
        "allowed = allowed if block.present is None else allowed & block.present[:, None]",
        "pass",
        _LOOP,
    ),
    Mutant(
        "derivatives-are-in-the-scores-of-the-other",
        _SUMS,
        "matmul(tokens, queries.T)",
        "matmul(queries, tokens.T)",
        _LOOP,
    ),
)
