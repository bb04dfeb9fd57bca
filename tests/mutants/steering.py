"""Faults of tokens that are led to targets, and of the experiment that measures it."""

from tests.mutants.mutant import Mutant


_STEER = "clusterjax/design/_steer.py"
_FIGURE = "clusterjax/experiments/figures/design_steer.py"
_STEERED = "tests/design/test_steer.py::"
_MEASURED = "tests/experiments/test_design_steer.py::"

STEERING = (
    Mutant(
        "pieces-begin-where-the-coarse-run-ends",
        _STEER,
        "            x = _run_of(self.parameters.with_vector(self.field, fitted.vector), x, "
        "self.knots[piece : piece + 2]).xs[-1]\n",
        "            x = self.field.space.retract(aim + fitted.residual.reshape(x.shape))\n",
        (_STEERED + "test_errors_of_coarse_runs_do_not_add_up",),
    ),
    Mutant(
        "ways-leave-the-space",
        _STEER,
        "point = space.retract(x + share * (goal - x))",
        "point = x + share * (goal - x)",
        (_STEERED + "test_the_way_on_another_space_stays_on_it",),
    ),
    Mutant(
        "no-way-between-antipodes-is-nan",
        _STEER,
        "return jnp.where(jnp.all(jnp.isfinite(point), axis=1, keepdims=True), point, x)",
        "return point",
        (_STEERED + "test_the_way_on_another_space_stays_on_it",),
    ),
    Mutant(
        "targets-off-another-space-pass",
        _STEER,
        "    if off.size:\n        name = type",
        "    if False:\n        name = type",
        (_STEERED + "test_bad_input",),
    ),
    Mutant(
        "a-gain-becomes-a-schedule",
        _STEER,
        "    check_pieces(field, parameters, x0, pieces)\n",
        "",
        (_STEERED + "test_bad_input",),
    ),
    Mutant(
        "derivatives-are-not-counted",
        _FIGURE,
        "return -(-runs * (1 + numbers) // pieces)",
        "return -(-runs * numbers // pieces)",
        (_MEASURED + "test_derivatives_are_counted_as_runs",),
    ),
    Mutant(
        "a-block-that-moves-tokens-by-itself",
        _FIGURE,
        "tuple(jnp.zeros_like(leaf) for leaf in free)",
        "free",
        (_MEASURED + "test_problems_and_fields_are_as_they_say",),
    ),
    Mutant(
        "pieces-needed-from-the-most-down",
        _FIGURE,
        "for pieces in LADDER if lead",
        "for pieces in LADDER[::-1] if lead",
        (_MEASURED + "test_the_least_pieces_are_taken",),
    ),
    Mutant(
        "medians-that-are-not-known-pass",
        _FIGURE,
        "known.all() and slope < 1, slope",
        "slope < 1, slope",
        (_MEASURED + "test_each_claim_can_fail",),
    ),
    Mutant(
        "only-the-sphere-stays-in-its-space",
        _FIGURE,
        "worst = max(float(s.off.max()) for s in m.of.values())",
        "worst = float(m.of[SPHERE.name].off.max())",
        (_MEASURED + "test_each_claim_can_fail",),
    ),
    Mutant(
        "what-no-pieces-solve-is-not-drawn",
        _FIGURE,
        "np.sort(np.where(np.isfinite(needed), needed, top))",
        "np.sort(needed)",
        (_MEASURED + "test_the_picture_has_its_panels",),
    ),
)
