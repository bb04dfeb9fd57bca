"""Faults of tokens under noise: theory and counts of the passages between clouds, and critical temperatures."""

from tests.mutants.mutant import Mutant


_ESCAPE = "clusterjax/experiments/figures/kramers_escape.py"
_TESTS = "tests/experiments/test_kramers_escape.py::"
_TOKENS = "clusterjax/experiments/figures/noise_bifurcation.py"
_BIFURCATION = "tests/experiments/test_noise_bifurcation.py::"

NOISE = (
    Mutant(
        "clouds-of-any-mass-are-alike",
        _ESCAPE,
        "(c * (masses * signs * q).sum(0))",
        "(c * (signs * q).sum(0)) / 2",
        (_TESTS + "test_unequal_clouds_are_at_rest_in_the_wells_of_the_loop",),
    ),
    Mutant(
        "a-cloud-without-a-well-is-at-rest",
        _ESCAPE,
        "if not 0 < edge < len(u) - 1:",
        "if not 0 < edge:",
        (_TESTS + "test_unequal_clouds_are_at_rest_in_the_wells_of_the_loop",),
    ),
    Mutant(
        "one-end-reflects",
        _ESCAPE,
        "constant = along(top * mass)[-1] / rise[-1]",
        "constant = mass[-1]",
        (_TESTS + "test_exit_times_by_differences_and_of_equal_clouds",),
    ),
    Mutant(
        "both-clouds-leave-as-the-first",
        _ESCAPE,
        "in ((own[0], own[1]), (own[1], own[0])):",
        "in ((own[0], own[1]), (own[0], own[1])):",
        (_TESTS + "test_exit_times_by_differences_and_of_equal_clouds",),
    ),
    Mutant(
        "nobody-is-on-the-way-at-first",
        _ESCAPE,
        "total = np.cumsum(np.exp(u.min() - u) * (1 - rise / rise[-1]))",
        "total = np.cumsum(np.exp(u.min() - u) * (x < np.pi / 2))",
        (_TESTS + "test_tokens_at_rest_belong_to_the_middle_where_they_were_last",),
    ),
    Mutant(
        "tokens-at-rest-are-on-one-side",
        _ESCAPE,
        "jr.rademacher(\n        side, drawn.shape, drawn.dtype\n    )",
        "jnp.ones_like(drawn)",
        (_TESTS + "test_tokens_at_rest_have_the_density_of_the_clouds",),
    ),
    Mutant(
        "tokens-stay-members-of-their-first-cloud",
        _ESCAPE,
        "second ^ over",
        "second",
        (_TESTS + "test_what_passes_between_clouds_is_counted",),
    ),
    Mutant(
        "noise-is-that-of-the-first-part-in-each",
        _ESCAPE,
        "place * steps, (place + 1) * steps, go",
        "0, steps, go",
        (_TESTS + "test_the_noise_of_each_part_is_new",),
    ),
    Mutant(
        "clouds-at-the-end-are-left-out",
        _ESCAPE,
        "jnp.concatenate([clouds, clouds_of(state)[None]])",
        "jnp.concatenate([clouds, clouds[-1:]])",
        (_TESTS + "test_what_passes_between_clouds_is_counted",),
    ),
    Mutant(
        "rates-are-those-at-the-beginning-of-a-part",
        _ESCAPE,
        "(rates[1:] + rates[:-1]) / 2 * passages.part",
        "rates[:-1] * passages.part",
        (_TESTS + "test_what_passes_between_clouds_is_counted",),
    ),
    Mutant(
        "parts-without-a-well-count-in-the-time",
        _ESCAPE,
        "self._known[:, :, 0].sum((1, 2))",
        "np.ones_like(self._known[:, :, 0]).sum((1, 2))",
        (_TESTS + "test_counts_of_clouds_are_those_of_a_loop",),
    ),
    Mutant(
        "the-larger-is-taken-for-the-smaller",
        _ESCAPE,
        "np.stack([shares < 0.5, shares > 0.5], axis=2)",
        "np.stack([shares > 0.5, shares < 0.5], axis=2)",
        (_TESTS + "test_counts_of_clouds_are_those_of_a_loop",),
    ),
    Mutant(
        "noise-shortens-a-token-against-itself",
        _TOKENS,
        "1 / n + (squares - 1 / n) * jnp.exp",
        "squares * jnp.exp",
        (_BIFURCATION + "test_the_mean_is_read_in_the_middle_of_the_noise",),
    ),
    Mutant(
        "the-mean-is-read-after-the-noise",
        _TOKENS,
        "jnp.exp((d - 1) * temperature * step)",
        "jnp.exp(0 * temperature * step)",
        (_BIFURCATION + "test_the_mean_is_read_in_the_middle_of_the_noise",),
    ),
    Mutant(
        "t-c-is-averaged-after-its-formula",
        _TOKENS,
        "(1 - 1 / mean + (each - mean) / mean**2)",
        "(1 - 1 / each)",
        (_BIFURCATION + "test_t_c_is_read_from_the_mean_of_all_systems",),
    ),
    Mutant(
        "an-event-is-found-on-a-line-between-noisy-states",
        "clusterjax/_dynamics/simulate.py",
        "_any_of(request.event if noise is None else _at_steps(request.event), watch)",
        "_any_of(request.event, watch)",
        ("tests/dynamics/test_noise.py::test_an_event_ends_a_noisy_run_with_its_step",),
    ),
)
