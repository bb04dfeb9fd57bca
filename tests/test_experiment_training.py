"""What the figure of the training says of curves that grow, and of curves that do not."""

import numpy as np
import pytest

from clusterjax.experiments._albert_training import _claims, _verdict, _way


STEPS = np.array([0, 100, 200, 400])
REPORT = {"report": {"held-out loss": 3.0, "unigram loss": 5.0}}


def last(cosine, shuffled, error=0.01):
    return {
        "cosine": np.array(cosine), "cosine error": np.full(4, error), "near_mass": np.array([0.1, 0.2, 0.3, 0.4]),
        "shuffled cosine": np.array(shuffled), "shuffled cosine error": np.full(4, error),
    }  # fmt: skip


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
    claims = _claims(REPORT, STEPS, last(cosine, cosine), 2e-7)
    assert [claim.holds for claim in claims[:3]] == holds and claims[3].holds
    assert claims[0].value == pytest.approx(2.0)
    assert claims[1].value == pytest.approx(rise) and claims[1].error == pytest.approx(0.01 * np.sqrt(2))
    assert claims[2].value == pytest.approx(fall) and claims[2].error == pytest.approx(0.01 * np.sqrt(2))
    assert not _claims(REPORT, STEPS, last(cosine, cosine), 1e-2)[3].holds


def test_the_caption_says_which_way_it_went():
    assert _way(STEPS, np.array([0.2, 0.9, 0.4, 0.6])) == (
        "0.20 before training, 0.90 at step 100, 0.40 at step 200, 0.60 at the end"
    )
    assert _way(STEPS, np.array([0.2, 0.3, 0.5, 0.6])) == "0.20 before training, 0.60 at the end"
    for shuffled, word in ((0.5, "above"), (0.6, "at"), (0.7, "below")):
        assert f"it ends {word} that of shuffled" in _verdict(STEPS, last((0.2, 0.3, 0.5, 0.6), (0, 0, 0, shuffled)))
