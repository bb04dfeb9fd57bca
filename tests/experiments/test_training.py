"""What the figure of the training says of curves that grow, and of curves that do not."""

from dataclasses import replace

import numpy as np
import pytest

from clusterjax import transformer
from clusterjax.experiments.figures import language_training as language
from clusterjax.experiments.figures.albert_training import Results, gathers, gathers_words, grows, learnt, same
from clusterjax.experiments.shared.controls import STARTS, keys_of, seed_of, starts_of
from clusterjax.probe.measures.survey import clustered_error


STEPS = np.array([0, 100, 200, 400])
REPORT = {"report": {"held-out loss": 3.0, "unigram loss": 5.0}}


def last(cosine, shuffled, error=0.01):
    return {
        "cosine": np.array(cosine), "cosine error": np.full(4, error), "near_mass": np.array([0.1, 0.2, 0.3, 0.4]),
        "shuffled cosine": np.array(shuffled), "shuffled cosine error": np.full(4, error),
    }  # fmt: skip


TEXTS = 0.01 * np.linspace(-1, 1, 5)[:, None]


def starts(trained, *others):
    """A trained network whose texts have this mean at the last level, and others as it might have started."""
    texts = lambda mean, turn: np.array([0.1, mean]) + turn * TEXTS
    return starts_of(texts(trained, 1), [texts(mean, -1) for mean in others])


def test_starts_are_compared_by_texts_and_by_networks():
    """By hand: differences of texts, and the spread of the means of networks, whose two degrees of freedom decide."""
    found = starts(0.6, 0.4, 0.5, 0.3)
    np.testing.assert_allclose(found.each, [[0.1, 0.4], [0.1, 0.5], [0.1, 0.3]])
    assert found.mean[-1] == pytest.approx(0.4) and found.error[-1] == pytest.approx(0.1 / np.sqrt(3))
    of_texts = (2 * TEXTS).std(ddof=1) / np.sqrt(5)
    assert found.beyond.difference[-1] == pytest.approx(0.2)
    assert found.beyond.error[-1] == pytest.approx(np.hypot(0.1 / np.sqrt(3), of_texts))
    assert found.beyond.z[-1] > 2 and not found.exceeds(), "with three networks two errors are not enough"
    assert starts(0.6, 0.4, 0.41, 0.39).exceeds() and not starts(0.4, 0.6, 0.61, 0.59).exceeds()
    assert found.words() == "0.400 ± 0.058 over 3 random starts (0.400, 0.500, 0.300)"


def test_starts_are_of_as_many_seeds():
    seeds = {seed_of(key) for seed in (0, 1) for key in keys_of(seed)}
    assert len(keys_of(0)) == STARTS == 3 and len(seeds) == 6 and all(seed >= 0 for seed in seeds)


REPORT_OF_LANGUAGE = {"held-out loss": 4.0, "unigram loss": 6.0, "bigram loss": 4.5}


@pytest.mark.parametrize(("strongest", "holds"), [(0.2, True), (0.02, False)])
def test_claims_of_the_language_model_say_what_it_is(strongest, holds):
    """The sink is claimed of a causal model whose texts begin anywhere, and gathering beside three starts."""
    final = {"loss": [9.0, 5.0, 4.0], "cosine": [0.1, 0.3]}
    results = language.Results(
        language.Parameters(), {"report": REPORT_OF_LANGUAGE, "snapshots": [final]}, STEPS,
        last((0.1, 0.2, 0.3, 0.3), (0.1, 0.2, 0.3, 0.2)), (0, 0), np.array([0.0, strongest]), np.array([0.0, 0.01]),
        np.array([0.1, 0.3]) + TEXTS, np.array([0.1, 0.2]) - 5 * TEXTS, starts(0.3, 0.1, 0.11, 0.09),
        np.array([0.001, 0.002, 0.003]), np.arange(len(TEXTS)),
    )  # fmt: skip
    sink, gathers, paired = language.sink(results), language.gathers(results), language.beyond_shuffled(results)
    assert sink.holds == holds and sink.value == strongest
    assert "0.002 ± 0.001 before training over 3 random starts" in sink.measured
    error = clustered_error(6 * TEXTS).error[0]
    assert paired.holds and paired.value == pytest.approx(0.1) and paired.error == pytest.approx(error)
    # The difference of texts of two articles is not significant.
    assert not language.beyond_shuffled(replace(results, articles=np.arange(len(TEXTS)) // 3)).holds
    assert gathers.holds and gathers.value == pytest.approx(0.2)


@pytest.mark.exhaustive
def test_a_start_of_the_language_model_is_that_of_its_recipe():
    """Before training its tokens had a mean cosine of 0.093 and its heads no sink, with this seed; others are near."""
    training = transformer.bundled_training()
    recipe = transformer.LanguageRecipe(**training["report"]["recipe"])
    ids, there = language.passages(recipe.length)
    for seed in (0, 1):
        found = transformer.depth_profile(recipe.model(seed), ids[:8], there[:8])
        assert found.cosine[:, -1].mean() == pytest.approx(training["snapshots"][0]["cosine"][-1], abs=0.05)
        assert abs(found.sink.mean(axis=0)).max() < 0.01


@pytest.mark.parametrize(
    ("cosine", "rise", "fall", "holds"),
    [
        ((0.2, 0.3, 0.5, 0.6), 0.4, 0.0, [True, True, True]),
        ((0.2, 0.9, 0.4, 0.6), 0.4, 0.5, [True, True, False]),
        ((0.6, 0.5, 0.4, 0.2), -0.4, 0.4, [True, False, False]),
        ((0.50, 0.51, 0.50, 0.52), 0.02, 0.01, [True, False, True]),
    ],
)
def test_rise_and_fall_are_those_of_the_curve(cosine, rise, fall, holds):
    before = starts(cosine[-1], *(cosine[0] + shift for shift in (-0.01, 0.0, 0.01)))
    words = starts(cosine[-1] + 0.1, *(cosine[0] + shift for shift in (0.09, 0.1, 0.11)))
    shuffled = np.array([0.1, cosine[-1]]) + TEXTS
    results = Results(REPORT, STEPS, last(cosine, cosine), 2e-7, before, words, shuffled, np.arange(5))
    claims = learnt(results), gathers(results), grows(results)
    assert [claim.holds for claim in claims] == holds and same(results).holds
    assert gathers_words(results).holds == (rise > 0.1) or rise == 0.02
    assert gathers_words(results).value == pytest.approx(rise)
    assert results.of_words[-1] == pytest.approx(cosine[-1] + 0.1) and claims[0].value == pytest.approx(2.0)
    of_texts = (2 * TEXTS).std(ddof=1) / np.sqrt(5)
    assert claims[1].value == pytest.approx(rise)
    assert claims[1].error == pytest.approx(np.hypot(0.01 / np.sqrt(3), of_texts))
    assert claims[2].value == pytest.approx(fall) and claims[2].error == pytest.approx(0.01 * np.sqrt(2))
    assert not same(replace(results, off=1e-2)).holds
