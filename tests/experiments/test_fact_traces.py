"""Causal traces of facts: verdicts on made-up effects, classes of tokens, and noise against `causal_trace`."""

import jax.random as jr
import numpy as np
import pytest

from clusterjax import probe
from clusterjax.experiments.figures import fact_traces as file
from clusterjax.experiments.shared.known_facts import Facts
from tests.causal_cases import causal_model


RELATIONS = np.repeat(list("abcdefgh"), 3)
NOISE = 1e-3 * np.random.default_rng(0).normal(size=(24, 1, 1))
# Effects in nats by level, 7 in all, and class: the subject's last token matters early, the last token late.
EFFECT = np.array([[0.1, 3, 0.2, 0], [0.1, 3, 0.2, 0], [0.1, 2, 0.2, 1], [0.1, 1, 0.2, 2], [0, 1, 0, 3], [0, 0, 0, 4],
                   [0, 0, 0, 5]])  # fmt: skip
LOG_P = np.array([-0.5, -6.0, -1.0])
NO_TRACE = probe.CausalTrace(*[None] * len(probe.CausalTrace._fields))


def results(effect=EFFECT, log_p=LOG_P, own=False, off=0.0):
    many = np.ones(24, int)
    facts = Facts(
        RELATIONS, np.zeros((24, 5), int), 5 * many, many, 2 * many, np.zeros((24, 2), int), many > 0, RELATIONS
    )
    return file.Results(
        file.Parameters(), own, 30, facts, effect + NOISE, log_p + NOISE[:, 0] * [0, 1, -1], off, (NO_TRACE, ())
    )


def changed(**entries):
    effect = EFFECT.astype(float).copy()
    for name, value in entries.items():
        effect[int(name[1:]), file.SUBJECT] = value
    return results(effect)


def test_each_claim_holds_and_fails_on_its_own_number():
    m = results()
    for claim in (file.subject_noise, file.site, file.early, file.taken_over, file.restored):
        assert claim(m).holds, claim.says
    assert file.chosen(m) == 1 and file.site(m).value == pytest.approx(2.8)
    assert file.early(m).value == pytest.approx(2.5 - 1.0)
    assert file.taken_over(m).value == pytest.approx(4.0 - 0.0 if len(m.thirds[-1]) == 1 else 3.0)
    assert not file.subject_noise(results(log_p=np.array([-0.5, -1.0, -6.0]))).holds
    assert not file.site(changed(l1=0.15, l2=0.15, l3=0.1, l4=0.1, l5=0.0)).holds
    assert not file.early(changed(l3=9.0, l4=9.0)).holds
    assert not file.taken_over(changed(l5=9.0, l4=9.0)).holds
    assert not file.restored(results(off=2e-3)).holds
    assert file.site(results(own=True)) == ()


def test_effects_are_means_over_the_tokens_of_a_class():
    effect = np.arange(14.0).reshape(2, 7)
    found = file.by_class(effect, 1, 3, 7)
    np.testing.assert_array_equal(found, [[1.5, 3, 4.5, 6], [8.5, 10, 11.5, 13]])
    assert np.isnan(file.by_class(effect, 1, 1, 3)[:, [0, 2]]).all()


def test_noise_on_other_tokens_is_that_of_a_causal_trace():
    """The mean of log P over draws agrees with `causal_trace`, whose default is the same size of noise."""
    model = causal_model()
    text = probe.Encoded(np.array([[3, 4, 5, 6, 7]], np.int32), np.ones((1, 5), bool))
    key = jr.key(0)
    found = file.corrupted(model, text, 2, [1, 2], key, 2)
    trace = probe.causal_trace(model, text, 2, tokens=[1, 2], key=key, draws=2)
    assert found == pytest.approx(trace.corrupted, abs=2e-4) and abs(found - trace.clean) > 1e-3
