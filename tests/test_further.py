"""The legs of a run: what their numbers are, step by step, and which call trains a finished run further."""

import numpy as np
import optax
import pytest

from clusterjax._training.loop import Legs, ended_early, later, legs_of


def steps_by_loop(ends, total, each):
    """The steps at each checkpoint, from 0: each leg in pieces of `each`, the last of them shorter."""
    found, made = [0], 0
    for end in (*ends, total):
        while made < end:
            made = min(made + each, end)
            found.append(made)
    return found


@pytest.mark.parametrize("each", (1, 3, 7, 100))
@pytest.mark.parametrize("ends", ((), (17,), (1, 2), (7, 14, 15)))
@pytest.mark.parametrize("more", (1, 6, 30))
def test_checkpoints_are_those_of_a_loop(ends, more, each):
    total = (ends[-1] if ends else 0) + more
    legs, found = Legs(ends, total, each), steps_by_loop(ends, total, each)
    assert [legs.steps_until(k) for k in range(len(found))] == found
    assert legs.epochs == len(found) - 1 and found[legs.start_epoch] == legs.start == (ends[-1] if ends else 0)
    assert legs.settings() == ({"legs": list(ends)} if ends else {})


def asked(stored, total, each=5, over=False):
    is_of = lambda settings, length: settings["name"] == "mine" and settings["steps"] == length
    return legs_of(stored, total, each, is_of, lambda settings: settings.get("steps"), "steps", over)


def of(steps, made, **more):
    return {"name": "mine", "steps": steps, **more}, made, 1


def test_which_leg_a_call_trains():
    assert asked(None, 12) == Legs((), 12, 5)
    assert asked(of(12, 1), 12) == Legs((), 12, 5), "a killed run goes on"
    assert asked(of(12, 3), 20) == Legs((12,), 20, 5), "a finished one is trained further"
    assert asked(of(20, 4, legs=[12]), 20) == Legs((12,), 20, 5), "a leg that was killed goes on"
    assert asked(of(20, 5, legs=[12]), 21) == Legs((12, 20), 21, 5)
    assert asked(of(12, 2), 20, each=1, over=True) == Legs((2,), 20, 1), "one that ended early, from where it did"
    for other in (
        ({"name": "another", "steps": 12}, 3, 1),
        ({"steps": "x"}, 3, 1),
        of(12, 3, legs="x"),
        of(12, 3, legs=[0]),
    ):
        assert asked(other, 20) == Legs((), 20, 5), "refused where settings are compared"


@pytest.mark.parametrize(
    ("stored", "total", "words"),
    [
        (of(12, 2), 20, "steps must be the 12 of the run that is there until that is finished, .* is 20, and 10 are"),
        (of(20, 4, legs=[12]), 30, "must be the 20 .* but it is 30, and 17 are made; finish it first"),
        (of(12, 3), 11, "steps must be at least the 12 of the run that is there, but it is 11; say as many"),
    ],
)
def test_what_cannot_be_trained_further(stored, total, words):
    with pytest.raises(ValueError, match=words):
        asked(stored, total)


def test_patience_of_a_leg():
    assert ended_early(({}, 5, 3), 2) and not ended_early(({}, 5, 3), 3) and not ended_early(({}, 5, 3), None)
    assert not ended_early(({"legs": [4]}, 5, 3), 2) and ended_early(({"legs": [4]}, 6, 3), 2)
    assert not ended_early(({}, 1, -1), 2)


def test_the_rate_of_a_leg_is_that_of_a_run_of_its_own():
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.5, 3, 12)
    counts = np.arange(20, 33)
    np.testing.assert_allclose(
        [later(schedule, 20)(int(k)) for k in counts], [schedule(k) for k in range(13)], rtol=1e-6
    )
    assert later(schedule, 0) is schedule
