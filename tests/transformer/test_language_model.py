"""Positions, the head and the language model: numbers of the slides, continuation, the logit lens, bad input."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax import transformer
from tests.helpers import as_a_user, assert_close, assert_same, normal
from tests.reference import transformer as reference
from tests.transformer_cases import BASE, FARTHEST, K, N, block_of, language_model


WORDS, D, LONGEST = 17, 8, 12
IDS = jnp.array([3, 1, 4, 1, 5, 9])


def model_of(**options):
    return language_model(WORDS, D, 2, 16, 3, **({"positions": LONGEST} | options))


call = eqx.filter_jit(lambda model, *args: model(*args))


def test_sinusoidal_positions_are_those_of_the_slides():
    """Slide 25: PE(1) with d = 4, and the sum with the embedding of "cat"."""
    table = transformer.sinusoidal_positions(3, 4)
    np.testing.assert_allclose(table[1], [0.841, 0.540, 0.010, 1.000], atol=5e-4)
    np.testing.assert_allclose(table[1] + jnp.array([0.5, 0.3, -0.2, 0.8]), [1.341, 0.840, -0.190, 1.800], atol=5e-4)
    for d in (5, 8):
        expected = np.stack([reference.sinusoid(p, d) for p in range(40)])
        assert_close(transformer.sinusoidal_positions(40, d), expected)
    far = transformer.sinusoidal_positions(100_000, 2, dtype=jnp.float32)[-1]
    np.testing.assert_allclose(far, reference.sinusoid(99_999, 2), atol=1e-7)


def test_relative_positions_are_clipped_and_do_not_move_with_the_text():
    relative = transformer.RelativePositions.random(jr.key(0), FARTHEST, K)
    rows = relative.rows(5)
    assert rows[0].tolist() == [2, 3, 4, 4, 4] and rows[4].tolist() == [0, 0, 0, 1, 2]
    block = block_of("pre", "causal", "gelu", True)
    long = normal(3, 9, D)
    window = eqx.tree_at(lambda b: b.attention.mask, block, cjx.WindowMask(3, causal=True), is_leaf=_is_mask)
    assert_close(call(window, long)[4:][2:], call(window, long[4:])[2:], "composed")


def test_rotary_positions_turn_each_pair_by_the_angle_of_its_place():
    """RoFormer, eq. (34), by a loop: the first word is not turned, nor is a vector of zeros."""
    turn = transformer.RotaryPositions(K, BASE)
    x = np.array(normal(4, 2, 7, K))
    x[1, 3] = 0
    expected = [[reference.turned(row, place, BASE) for place, row in enumerate(text)] for text in x]
    for dtype, allowed in ((jnp.float64, 1e-14), (jnp.float32, 1e-6), (jnp.bfloat16, 0.04)):
        found = call(turn, jnp.asarray(x, dtype))
        assert found.dtype == dtype
        np.testing.assert_allclose(np.asarray(found, float), expected, atol=allowed)
    assert_same(call(turn, jnp.asarray(x))[:, 0], x[:, 0])


def test_rotary_positions_keep_lengths_and_know_distances_alone():
    turn = transformer.RotaryPositions(K, BASE)
    same = [np.tile(normal(seed, K), (9, 1)) for seed in (5, 6)]
    queries, keys = (np.asarray(call(turn, jnp.asarray(rows))) for rows in same)
    assert_close(np.linalg.norm(queries, axis=1), np.linalg.norm(same[0], axis=1), "composed")
    scores = queries @ keys.T
    for distance in range(-8, 9):
        np.testing.assert_allclose(np.ptp(np.diagonal(scores, distance)), 0, atol=1e-12)
    # A layer whose window ends three words back does not notice that a text has lost its beginning.
    block, long = block_of("pre", "causal", "gelu", "rotary"), normal(3, 9, D)
    window = eqx.tree_at(lambda b: b.attention.mask, block, cjx.WindowMask(3, causal=True), is_leaf=_is_mask)
    assert_close(call(window, long)[6:], call(window, long[4:])[2:], "composed")
    exchanged = call(window, long[np.array([0, 1, 2, 3, 4, 5, 7, 6, 8])])
    assert np.abs(exchanged[8] - call(window, long)[8]).max() > 1e-3, "but places count"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: transformer.RotaryPositions(3), "k must be even, .* but it is 3; "),
        (lambda: transformer.RotaryPositions(4, 0.0), "base must be "),
        (lambda: transformer.RotaryPositions(4)(jnp.ones((2, 3))), r"x must be tokens of dimension 4, .* \(2, 3\)"),
        (
            lambda: transformer.MultiHeadAttention.random(jr.key(0), 8, 2, relative=transformer.RotaryPositions(8)),
            r"relative must be of the dimension of the keys, 4, but its k is 8; pass RotaryPositions\(4\)",
        ),
        (
            lambda: transformer.MultiHeadAttention.random(jr.key(0), 8, 2, relative=transformer.SinusoidalPositions(4)),
            "relative must be RelativePositions, RotaryPositions or None",
        ),
    ],
)
def test_rotary_positions_that_do_not_fit_are_refused(wrong, message):
    with as_a_user(), pytest.raises(ValueError, match=message):
        wrong()


def _is_mask(leaf):
    return isinstance(leaf, cjx.CausalMask)


@pytest.mark.exhaustive
def test_logits_are_products_with_the_embedding():
    model = model_of()
    levels = [model.embedding[IDS] + model.positions.table[:N]]
    for layer in range(3):
        levels.append(model.stack.block(layer)(levels[-1]))
    x = model.stack.norm(levels[-1])
    assert_close(call(model, IDS), x @ model.embedding.T, "composed")
    lens = eqx.filter_jit(type(model).logit_lens)(model, IDS)
    assert lens.shape == (4, N, WORDS)
    assert_close(lens[-1], call(model, IDS), "identity")
    assert_close(lens[1], model.stack.norm(levels[1]) @ model.embedding.T, "composed")
    own = model_of(tied=False)
    assert own.head.unembedding is not None
    assert_close(call(own, IDS)[0], own.stack(own.embed(IDS))[0] @ own.head.unembedding.T, "composed")


def test_the_distribution_of_the_next_word():
    model = model_of()
    found = eqx.filter_jit(type(model).next_token)(model, IDS, 0.7)
    logits = np.asarray(call(model, IDS)[-1]) / 0.7
    assert_close(found, np.exp(logits) / np.exp(logits).sum(), "composed")
    assert float(found.sum()) == pytest.approx(1)


def test_cross_entropy_is_the_mean_surprise():
    logits, targets = normal(0, 4, WORDS), np.array([0, 5, 2, 16])
    each = [-np.log(np.exp(row[t]) / np.exp(row).sum()) for row, t in zip(np.asarray(logits), targets, strict=True)]
    surprise = jax.jit(transformer.cross_entropy)
    assert_close(surprise(logits, targets), np.mean(each), "composed")
    present = np.array([True, False, True, False])
    assert_close(surprise(logits, targets, present), np.mean([each[0], each[2]]), "composed")
    assert float(surprise(logits, targets, np.zeros(4, bool))) == 0
    with as_a_user(), pytest.raises(ValueError, match=r"the shapes are \(4,\) and \(3, 17\)"):
        transformer.cross_entropy(logits[1:], jnp.asarray(targets))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("options", "longest"),
    (
        ({}, LONGEST),
        ({"residual": transformer.PostNorm()}, LONGEST),
        ({"positions": None, "relative": transformer.RotaryPositions(4)}, 100),
    ),
    ids=("pre", "post", "rotary"),
)
def test_the_likeliest_continuation_is_taken_word_by_word(options, longest):
    """The continuation equals a loop that runs the whole model on as much of the text as the positions hold."""
    model = model_of(**options)
    text = IDS.tolist()
    for _ in range(10):
        text.append(int(jnp.argmax(call(model, jnp.asarray(text[-longest:]))[-1])))
    assert model.extend(IDS, 10).tolist() == text
    assert model.extend(IDS, 0).tolist() == IDS.tolist()


def test_drawn_words_follow_the_distribution():
    model = model_of()
    drawn = jax.vmap(lambda key: model.extend(IDS, 1, key=key, temperature=2.0)[-1])(jr.split(jr.key(3), 4000))
    share = np.bincount(np.asarray(drawn), minlength=WORDS) / 4000
    scores = np.exp(np.asarray(call(model, IDS)[-1]) / 2.0)
    expected = scores / scores.sum()
    error = np.sqrt(expected * (1 - expected) / 4000)
    assert (np.abs(share - expected) < 4.5 * error + 1e-9).all()


@pytest.mark.exhaustive
def test_mixed_precision_rounds_the_stream_and_not_the_weights():
    model = model_of(dtype=jnp.float32)
    mixed = model_of(dtype=jnp.float32, stream_dtype=jnp.bfloat16)
    assert mixed.embed(IDS).dtype == jnp.bfloat16
    found, expected = call(mixed, IDS), call(model, IDS)
    assert found.dtype == jnp.float32
    assert 0 < np.abs(found - expected).max() < 0.05 * np.abs(expected).max()
    slope = eqx.filter_grad(lambda m: transformer.cross_entropy(m(IDS[:-1]), IDS[1:]))(mixed)
    assert slope.embedding.dtype == jnp.float32 and np.isfinite(slope.embedding).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: model_of()(jnp.arange(13)), "at most 12 tokens, as many as there are positions, but it has 13"),
        (lambda: model_of()(jnp.array([0, 17])), "ids must be from 0 to 16, but one is 17"),
        (lambda: model_of()(jnp.array([-1, 2])), "ids must be from 0 to 16, but one is -1"),
        (lambda: model_of()(jnp.array([0.0])), "ids must be a vector of integers"),
        (lambda: model_of().extend(IDS, -1), "steps must be an integer of at least 0, but it is -1"),
        (lambda: transformer.LanguageModelHead()(normal(0, 2, D)), "embedding must be given to a head that is tied"),
        (
            lambda: transformer.LanguageModelHead(normal(0, WORDS, 5))(normal(0, 2, D)),
            r"x must be tokens of dimension 5, .* \(2, 8\)",
        ),
        (lambda: transformer.LanguageModelHead(normal(0, WORDS)), r"unembedding must have 2 axes, .* \(17,\)"),
        (
            lambda: transformer.LanguageModel(normal(0, WORDS, 5), model_of().stack),
            r"embedding must be of the dimension of the stack, 8, but its shape is \(17, 5\)",
        ),
        (lambda: transformer.LearnedPositions(normal(0, 3)), r"table must have 2 axes, .* \(3,\)"),
        (
            lambda: transformer.LanguageModel(
                normal(0, WORDS, D), model_of().stack, transformer.LearnedPositions(normal(0, LONGEST, 5))
            ),
            r"positions must be of the dimension of the embedding, 8, but their table is \(12, 5\)",
        ),
        (lambda: transformer.LanguageModel.random(jr.key(0), 2**31, 2**31, 1, 1, 1), "words must be small enough for"),
        (lambda: transformer.RelativePositions(normal(0, 4, 3)), r"its shape is \(4, 3\); pass \(2 m \+ 1, k\)"),
        (lambda: transformer.RelativePositions(normal(0, 3, 3), normal(0, 5, 3)), "must be of one shape"),
        (lambda: transformer.sinusoidal_positions(0, 4), "n must be a positive integer, but it is 0"),
        (lambda: transformer.sinusoidal_positions(4, 4, base=0.0), "base must be .* above 0, but it is 0.0"),
    ],
)
def test_bad_input_is_met_at_the_door(make, message):
    with as_a_user(), pytest.raises(ValueError, match=message):
        make()


def test_sizes_that_no_memory_holds_are_refused():
    """The sizes are refused by name before XLA sees them, since XLA would end the interpreter."""
    make = lambda words=11, **options: transformer.LanguageModel.random(jr.key(0), words, 8, 2, 16, 1, **options)
    for name, call in (
        ("positions", lambda: make(positions=2**31)),
        ("positions", lambda: make(positions=2**31 - 1)),
        ("words", lambda: make(2**33)),
        ("farthest", lambda: transformer.RelativePositions.random(jr.key(0), 2**31, 4)),
    ):
        with pytest.raises(ValueError, match=f"^{name} must (make no axis longer|leave room in memory)"):
            call()


def test_sinusoids_turn_by_the_distance_alone():
    """Section 3.5 of 1706.03762: PE(p + k) is a rotation of PE(p) that does not depend on p."""
    table = np.asarray(transformer.sinusoidal_positions(30, 6))
    inner = table @ table.T
    for distance in range(5):
        np.testing.assert_allclose(np.ptp(np.diagonal(inner, distance)), 0, atol=1e-12)
