"""The LSTM against a loop over entries and the cell of Equinox: states, gates, logits, continuation, training."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from clusterjax import transformer
from tests.helpers import DTYPES, as_a_user, assert_close, assert_derivatives, assert_same, normal
from tests.reference import transformer as reference
from tests.transformer_cases import in_dtype


WORDS, D, M, N = 11, 4, 5, 7
IDS = jnp.array([3, 1, 4, 1, 5, 9, 2])
GAPS = jnp.array([True, True, False, True, False, False, True])


def model_of(bias=True, **options):
    model = transformer.LSTMLanguageModel.random(jr.key(0), WORDS, D, M, **({"scale": 1.0} | options))
    cell = eqx.nn.LSTMCell(D, M, use_bias=bias, key=jr.key(1))
    return eqx.tree_at(lambda m: m.cell, model, in_dtype(cell, model.embedding.dtype))


states = eqx.filter_jit(lambda model, *args: model.states(*args))


def states_by_loops(model, ids, present):
    bias = np.zeros(4 * M) if model.cell.bias is None else np.asarray(model.cell.bias)
    weights = np.asarray(model.cell.weight_ih, float), np.asarray(model.cell.weight_hh, float)
    return reference.lstm(np.asarray(model.embedding, float)[np.asarray(ids)], *weights, bias, np.asarray(present))


@pytest.mark.exhaustive_cases("all-bias-float32", "all-bias-float64")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", (True, False), ids=("bias", "no bias"))
@pytest.mark.parametrize("present", (None, GAPS, jnp.zeros(N, bool)), ids=("all", "gaps", "none"))
def test_states_and_gates_are_those_of_a_loop(present, bias, dtype):
    model = in_dtype(model_of(bias), dtype)
    found = states(model, IDS, present)
    assert isinstance(found, transformer.LSTMStates)
    expected = states_by_loops(model, IDS, np.ones(N, bool) if present is None else present)
    for part, values in zip(found, expected, strict=True):
        assert part.shape == (N, M) and part.dtype == dtype
        np.testing.assert_allclose(part, values, atol=1e-14 if dtype == jnp.float64 else 1e-6)


def test_logits_are_those_of_the_hidden_state():
    for model in (model_of(), model_of(tied=False)):
        matrix = model.embedding if model.head.unembedding is None else model.head.unembedding
        logits, next_token = eqx.filter_jit(lambda model: (model(IDS), model.next_token(IDS, 0.7)))(model)
        hidden = np.asarray(states(model, IDS, None).hidden)
        assert_close(logits, hidden @ np.asarray(model.output) @ np.asarray(matrix).T, "composed")
        chances = np.exp(np.asarray(logits[-1]) / 0.7)
        assert_close(next_token, chances / chances.sum(), "composed")
    assert model.num_words == WORDS and model.num_units == M


@pytest.mark.exhaustive
def test_a_state_knows_only_what_came_before_and_padding_changes_nothing():
    model = model_of()
    changed = model(IDS.at[4].set(0))
    assert_same(changed[:4], model(IDS)[:4])
    assert bool(jnp.all(changed[4:] != model(IDS)[4:]))
    kept = np.flatnonzero(GAPS)
    assert_close(model(IDS, GAPS)[kept], model(IDS[kept]), "composed")
    assert_close(jax.vmap(model)(jnp.stack([IDS, IDS[::-1]]))[1], model(IDS[::-1]), "composed")


@pytest.mark.exhaustive
def test_the_likeliest_continuation_is_taken_word_by_word():
    model, text = model_of(), IDS.tolist()
    for _ in range(12):
        text.append(int(jnp.argmax(model(jnp.asarray(text))[-1])))
    assert model.extend(IDS, 12).tolist() == text
    assert model.extend(IDS, 0).tolist() == IDS.tolist()
    drawn = model.extend(IDS, 12, key=jr.key(3), temperature=2.0)
    assert_same(drawn, model.extend(IDS, 12, key=jr.key(3), temperature=2.0))
    assert drawn[:N].tolist() == IDS.tolist() and len(set(drawn.tolist())) > 3


def test_the_forget_gate_begins_open_and_a_unit_that_forgets_nothing_adds_up():
    model = transformer.LSTMLanguageModel.random(jr.key(0), WORDS, D, M, forget=2.0)
    np.testing.assert_allclose(model.cell.bias, [0.0] * M + [2.0] * M + [0.0] * 2 * M)
    shut = jnp.zeros(4 * M).at[M : 2 * M].set(1e3)
    open_cell = eqx.tree_at(lambda m: m.cell.bias, model_of(), shut)
    found = states(open_cell, IDS, None)
    assert_close(found.forget_gate, np.ones((N, M)), "identity")
    added = np.asarray(found.input_gate) * np.asarray(found.candidate)
    assert_close(found.cell, np.cumsum(added, axis=0), "composed")


def test_it_has_derivatives_and_one_trace_serves_all_texts():
    model, count = model_of(), []

    @eqx.filter_jit
    def loss(model, ids):
        count.append(1)
        return transformer.language_loss(model, ids[None])[0]

    for shift in range(3):
        loss(model, (np.asarray(IDS) + shift) % WORDS)
    assert len(count) == 1
    of_embedding = lambda e: jnp.sum(jnp.sin(eqx.tree_at(lambda m: m.embedding, model, e)(IDS)))
    assert_derivatives(of_embedding, model.embedding)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: model_of()(jnp.array([WORDS])), "ids must be from 0 to 10, but one is 11"),
        (lambda: model_of().states(IDS, jnp.ones(3, bool)), "present must say of each of 7 tokens"),
        (lambda: model_of().extend(IDS, -1), "steps must be an integer of at least 0"),
        (lambda: model_of().next_token(IDS, 0.0), "temperature must be "),
        (lambda: transformer.LSTMLanguageModel.random(jr.key(0), 0, D, M), "words must be "),
        (
            lambda: transformer.LSTMLanguageModel(normal(0, WORDS, 3), model_of().cell, normal(1, M, 3)),
            "cell must read words of dimension 3, that of embedding, with weights .* its input size is 4; pass",
        ),
        (
            lambda: transformer.LSTMLanguageModel(normal(0, WORDS, D), model_of().cell, normal(1, D, M)),
            r"output must be from the 5 units to dimension 4, but its shape is \(4, 5\); pass \(5, 4\)",
        ),
        (
            lambda: transformer.LSTMLanguageModel(
                normal(0, WORDS, D), model_of().cell, normal(1, M, D), transformer.LanguageModelHead(normal(2, 3, D))
            ),
            r"head must be of the shape of the embedding, \(11, 4\), but its unembedding is \(3, 4\)",
        ),
        (
            lambda: transformer.LanguageRecipe(architecture="lstm", positions="rotary"),
            "positions must be left at 'learned' with the architecture lstm, but it is 'rotary'",
        ),
        (lambda: transformer.LanguageRecipe(architecture="gru"), "architecture must be one of 'transformer', 'lstm'"),
        (lambda: transformer.depth_profile(model_of(), IDS[None]), "model must be "),
    ],
)
def test_bad_input_is_refused(wrong, message):
    with as_a_user(), pytest.raises(ValueError, match=message):
        wrong()
