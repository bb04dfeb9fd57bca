"""Layers as draws: updates and shares against loops, copies and independent draws, turns, and claims that can fail."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from clusterjax import probe
from clusterjax.experiments.figures import layers_as_draws as file
from clusterjax.experiments.framework.figure import Measured
from clusterjax.experiments.shared.causal import OWN, PASSAGES
from clusterjax.experiments.shared.layer_updates import Shares, shares_at, shares_of, turns_of, updates
from clusterjax.experiments.shared.networks import one_of_each
from tests.probe_cases import IDS, LLAMA, MASK, SHARED, tiny, tiny_tensors
from tests.reference import networks


RNG = np.random.default_rng(0)
TEXTS = probe.Encoded(np.where(MASK, IDS, 0).astype(np.int32)[:2], MASK[:2])
ROPE = LLAMA["rope_parameters"]


def update_of_loops(kind, x, layer, word):
    """The updates of a layer and of its heads for one text, by the loops of the reference."""
    tensors = tiny_tensors(kind)
    heads = 4 if kind == "llama" else 3
    names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    prefix, y, back, scale = f"model.layers.{layer}.", x, None, 6**-0.5
    if kind == "llama":
        y = networks.rms_norm(x, tensors[f"{prefix}input_layernorm.weight"], 1e-6)
        back = 3 if LLAMA["layer_types"][layer] == "sliding_attention" else np.inf
    else:
        prefix, scale = "encoder.albert_layer_groups.0.albert_layers.0.", 0.5
        names = tuple(f"attention.{name}" for name in ("query", "key", "value", "dense"))
    weight = lambda name: tensors[f"{prefix}{name}.weight"]
    bias = lambda name: tensors.get(f"{prefix}{name}.bias")
    query, key, value = (networks.linear(y, weight(name), bias(name)) for name in names[:3])
    size = query.shape[1] // heads
    if kind == "llama":
        query, key = networks.rotated(query, size, ROPE), networks.rotated(key, size, ROPE)
        columns = [h // 2 * size + a for h in range(heads) for a in range(size)]
        key, value = key[:, columns], value[:, columns]
    out, _ = networks.attention(query, key, value, heads, scale, word, back=back)
    of_head = [np.where(np.arange(out.shape[1]) // size == h, out, 0.0) for h in range(heads)]
    return networks.linear(out, weight(names[3]), bias(names[3])), [
        networks.linear(each, weight(names[3])) for each in of_head
    ]


def pairs_of_loops(updates, words, pairs):
    """The mean inner product of pairs over the mean square, for each token that is a word, by loops."""
    found = []
    for token in np.flatnonzero(words):
        products = [updates[k][token] @ updates[m][token] for k, m in pairs]
        squares = [update[token] @ update[token] for update in updates]
        found.append(np.mean(products) / np.mean(squares))
    return np.array(found)


def shares_of_loops(layers, heads, words, fresh):
    count, each = len(layers), len(heads[0])
    of_layers = pairs_of_loops(layers, words, [(k, m) for k in range(count) for m in range(count) if k != m])
    flat = [heads[k][h] for k in range(count) if fresh[k] for h in range(each)]
    owner = [k for k in range(count) if fresh[k] for _ in range(each)]
    every = [(a, b) for a in range(len(flat)) for b in range(len(flat)) if a != b]
    same = [(a, b) for a, b in every if owner[a] == owner[b]]
    tokens = np.flatnonzero(words)
    sums = [sum(layers[k][i] @ layers[m][i] for i in tokens) for k in range(count) for m in range(count) if k != m]
    cosine = lambda k, m: np.mean(
        [layers[k][i] @ layers[m][i] / np.linalg.norm(layers[k][i]) / np.linalg.norm(layers[m][i]) for i in tokens]
    )
    return Shares(
        of_layers.mean(), of_layers[tokens > 0].mean(),
        np.mean(sums) / np.mean([sum(layer[i] @ layer[i] for i in tokens) for layer in layers]),
        pairs_of_loops(flat, words, every).mean(), pairs_of_loops(flat, words, same).mean(),
        np.array([[cosine(k, m) for m in range(count)] for k in range(count)]),
    )  # fmt: skip


def random_updates(layers=4, heads=3, n=5, d=16, mean=0.0, seed=1):
    rng = np.random.default_rng(seed)
    each = rng.normal(size=(layers, heads, n, d)) + mean * rng.normal(size=(1, 1, n, d))
    return each.sum(axis=1), each


@eqx.filter_jit
def of_state(form, state, x, word):
    return updates(nnx.merge(form, state), x[None], word[None])


def compiled(network, x, word):
    return of_state(*nnx.split(network), jnp.asarray(x), jnp.asarray(word))


@pytest.mark.parametrize("kind", ("llama", "shared albert"))
def test_updates_are_those_of_loops_and_heads_add_up(kind):
    """Updates agree in every layer, at a state that no layer has, with padding; the bias of an output is in no head."""
    network, word = tiny(kind).network, MASK[1]
    x = np.where(word[:, None], np.random.default_rng(5).normal(size=(len(word), 12)), 0.0)
    layers, heads = compiled(network, x, word)
    assert layers.shape[0] == heads.shape[0] == network.num_layers
    for k in range(len(layers) if kind == "llama" else 1):
        expected, of_heads = update_of_loops(kind, x, k, word)
        np.testing.assert_allclose(np.asarray(layers)[k, word], expected[word], atol=1e-12)
        np.testing.assert_allclose(np.asarray(heads)[k][:, word], np.array(of_heads)[:, word], atol=1e-12)
    bias = network.layers[0].attention.output.bias
    rest = np.asarray(layers - heads.sum(1))[:, word]
    np.testing.assert_allclose(rest, np.broadcast_to(0.0 if bias is None else bias[...], rest.shape), atol=1e-12)


@pytest.mark.parametrize("fresh", ([True] * 4, [True, False, True, False]))
def test_shares_are_those_of_a_double_loop(fresh):
    layers, heads = random_updates(mean=0.5)
    words = np.array([True, True, True, False, False])
    layers, heads = layers + 0.3, np.where(words[:, None], heads, 7.0)
    found = shares_at(jnp.asarray(layers), jnp.asarray(heads), jnp.asarray(words), np.array(fresh))
    assert_close(found, shares_of_loops(layers, heads, words, fresh))


def with_a_draw_that_turns_nothing(model, seed):
    """Returns a draw that turns nothing and one that turns, so that one compiled program serves several tests."""
    return jax.tree.map(lambda *each: np.concatenate(each), turns_of(model, 0, 0), turns_of(model, 1, seed))


def assert_close(found, expected):
    for name, value, other in zip(Shares._fields, found, expected, strict=True):
        np.testing.assert_allclose(value, other, atol=1e-12, err_msg=name)


def test_a_run_has_the_shares_of_its_states_and_turns():
    """For each text, draw and state, the shares are those of the double loop over updates turned by hand."""
    model = tiny("llama")
    turns = with_a_draw_that_turns_nothing(model, 3)
    found, off = shares_of(model, TEXTS, turns)
    assert off < 1e-12 and found.layers.shape == (2, 2, 3) and found.cosines.shape == (2, 2, 3, 3, 3)
    streams = probe.activations(model, TEXTS.token_ids, TEXTS.mask, place="stream")
    turn = lambda u, k, h: turns.sign[1, k, h] * u[:, turns.order[1, k, h]]
    for text, state in ((0, 0), (1, 2)):
        word, at = TEXTS.mask[text], lambda draw, text=text, state=state: [each[draw, text, state] for each in found]
        layers, heads = map(np.asarray, compiled(model.network, streams[text, state], word))
        assert_close(at(0), shares_of_loops(layers, heads, word, [True] * 3))
        layers = [turn(layers[k], k, 0) for k in range(3)]
        heads = [[turn(heads[k, h], k, 1 + h) for h in range(4)] for k in range(3)]
        assert_close(at(1), shares_of_loops(layers, heads, word, [True] * 3))


def test_layers_that_are_copies_have_the_share_one():
    """A causal network has the share one only after its layers become copies of its first; an ALBERT has it."""
    model = tiny("llama")
    turns = with_a_draw_that_turns_nothing(model, 4)
    assert np.abs(shares_of(model, TEXTS, turns)[0].layers).max() < 0.9
    network = nnx.clone(model.network)
    for block in network.layers[1:]:
        nnx.update(block, nnx.state(network.layers[0]))
    found, _ = shares_of(probe.Model(network, None, "copies"), TEXTS, turns)
    np.testing.assert_allclose(found.layers[0], 1, atol=1e-12)
    np.testing.assert_allclose(found.cosines[0], 1, atol=1e-12)
    # Turns remove the agreement.
    assert np.abs(found.layers[1]).max() < 0.9
    albert, off = shares_of(tiny("shared albert"), TEXTS)
    assert SHARED["num_hidden_layers"] == 4 == albert.layers.shape[2] and off < 1e-12
    np.testing.assert_allclose(albert.layers, 1, atol=1e-12)
    # All heads of an ALBERT belong to one layer.
    np.testing.assert_allclose(albert.heads, albert.same, atol=1e-12)
    assert np.abs(albert.same).max() < 0.9


def test_the_share_of_independent_draws_is_that_of_their_mean():
    """For draws around a mean the share is |E U|^2 / E|U|^2, within its error over states, and 0 without a mean."""
    measured = jax.jit(lambda layers, heads: shares_at(layers, heads, jnp.ones(5, bool), np.ones(4, bool)))
    for mean in (0.0, 0.7):
        values = [measured(*random_updates(mean=mean, seed=seed)) for seed in range(60)]
        # A sum of three heads has three times the variance of a head, and nine times the square of its mean.
        for name, expected in (
            ("layers", 9 * mean**2 / (9 * mean**2 + 3)), ("heads", mean**2 / (mean**2 + 1)),
            ("same", mean**2 / (mean**2 + 1)),
        ):  # fmt: skip
            each = np.array([getattr(value, name) for value in values])
            assert abs(each.mean() - expected) < 4 * each.std(ddof=1) / np.sqrt(60) + 0.02 * mean


def test_turns_are_independent_rotations():
    model = tiny("llama")
    turns = turns_of(model, 400, 0)
    assert turns.order.shape == (400, 3, 5, 12)
    matrices = np.eye(12)[turns.order] * turns.sign[..., None]
    np.testing.assert_array_equal(matrices @ np.swapaxes(matrices, -1, -2), np.broadcast_to(np.eye(12), matrices.shape))
    # Equal updates of all layers no longer agree: products have mean 0 and the variance 1 / d of uniform rotations.
    u = RNG.normal(size=12)
    u /= np.linalg.norm(u)
    products = np.einsum("ki,ki->k", matrices[:, 0, 0] @ u, matrices[:, 1, 0] @ u)
    assert abs(products.mean()) < 4 * (12 * 400) ** -0.5 and np.mean(products**2) == pytest.approx(1 / 12, rel=0.3)
    nothing = turns_of(model, 0, 0)
    assert nothing.order.shape == (1, 3, 5, 12) and (nothing.sign == 1).all()
    np.testing.assert_array_equal(nothing.order[0, 2, 4], np.arange(12))


def test_neighbours_and_orders():
    layers = np.arange(8)
    near = 1 - 0.1 * np.abs(layers[:, None] - layers)
    # Distances 5, 6 and 7 have 6, 4 and 2 ordered pairs.
    assert file.near_of(near) == pytest.approx(0.9 - np.mean([0.5] * 6 + [0.4] * 4 + [0.3] * 2))
    assert file.rarity(near, 999, 0) <= 3 / 1000 < 0.3 < file.rarity(-near, 999, 0)
    assert file.rarity(np.ones((8, 8)), 999, 0) == 1.0
    # An exchangeable matrix is no rarer than chance.
    ranks = [
        file.rarity(np.corrcoef(np.random.default_rng(seed).normal(size=(8, 20))), 999, seed) for seed in range(12)
    ]
    assert 0.3 < np.mean(ranks) < 0.7
    shares = SHARES._replace(cosines=np.broadcast_to(near, (4, 3, 8, 8)))
    np.testing.assert_allclose(file.by_distance(shares), np.tile(1 - 0.1 * layers[1:], (4, 1)))
    assert one_of_each(np.array([5, 5, 2, 9, 9, 2]), 2).tolist() == [2, 3]


SHARES = Shares(*[np.zeros((4, 3))] * 5, np.zeros((4, 3, 8, 8)))
ARTICLES = np.arange(6)


def made(layers=0.2, heads=0.1, slope=0.05, control=0.0, spread=1e-3, off=0.0, shared=False):
    """A network of 8 layers with given numbers and a little noise, and random controls with the share `control`."""
    rng = np.random.default_rng(2)

    def shares(*front, layers, heads, slope):
        noise = lambda: spread * rng.normal(size=(*front, 1))
        apart = np.abs(np.arange(8)[:, None] - np.arange(8))
        cosines = noise()[..., None, None] - (slope + noise()[..., None, None]) * apart
        of = lambda value: value + noise() + np.zeros(3)
        return Shares(of(layers), of(layers), of(layers), of(heads), of(heads), cosines)

    texts = shares(6, layers=layers, heads=heads, slope=slope)
    drawn = {
        file.TURNED: shares(5, 6, layers=0.0, heads=0.0, slope=0.0),
        file.RANDOM: shares(5, 6, layers=control, heads=control, slope=control),
    }
    on = Measured(OWN, PASSAGES, {"texts": 6})
    return file.Compared("a network", on, ARTICLES, texts, np.arange(6), drawn, off, shared)


def results(causal=None, albert=None, rare=1e-4):
    albert = made(layers=1.0, control=1.0, spread=1e-6, shared=True) if albert is None else albert
    return file.Results(file.Parameters(turns=5), True, causal or made(), albert, rare)


def test_each_claim_can_fail():
    good = results()
    assert file.layers_agree(good).holds and file.heads_agree(good).holds and file.same_agree(good).holds
    assert file.mostly_deviations(good).holds and file.neighbours_agree(good).holds and file.own_layer(good).holds
    assert file.turned_away(good).holds and file.one_layer(good).holds
    for control in (0.2, 0.3):
        high = results(made(control=control))
        assert not any(claim(high).holds for claim in (file.layers_agree, file.heads_agree, file.same_agree))
        assert not file.neighbours_agree(high).holds
    assert not file.layers_agree(results(made(layers=-0.1))).holds
    assert not file.mostly_deviations(results(made(layers=0.6))).holds
    assert not file.neighbours_agree(results(made(slope=-0.05))).holds
    assert not file.neighbours_agree(results(rare=2e-3)).holds
    # The draws differ from their mean as much as the network does.
    wide = made(spread=0.1)
    assert (
        not file.layers_agree(results(wide)).holds and not file.mostly_deviations(results(made(0.45, spread=0.1))).holds
    )
    assert (
        not file.own_layer(results(made(off=1e-3))).holds and not file.own_layer(results(albert=made(off=1e-3))).holds
    )
    assert not file.one_layer(results(albert=made(layers=1.0, control=0.9, shared=True))).holds
    assert file.one_layer(results(albert=made())) == ()
    assert not file.albert_heads_agree(good).holds  # the control has the share 1
    assert file.albert_heads_agree(results(albert=made())).holds
    shifted = made()
    turned = shifted.controls[file.TURNED]
    shifted.controls[file.TURNED] = turned._replace(layers=turned.layers + 0.05)
    assert not file.turned_away(results(shifted)).holds


def test_the_network_is_one_draw_of_the_control():
    """The variance of one more draw is that of five draws times 1 + 1 / 5, and adds to the squared error over texts."""
    each = made(spread=0.02)
    drawn = each.controls[file.RANDOM].layers.mean(-1)
    differences = each.trained.layers.mean(-1) - drawn.mean(0)
    error = np.sqrt(differences.var(ddof=1) / 6 + drawn.mean(1).var(ddof=1) * 1.2)
    found = each.beyond(file.LAYERS, file.RANDOM)
    assert found.difference == pytest.approx(differences.mean()) and found.error == pytest.approx(error)


def test_a_network_is_compared_with_its_controls_and_drawn():
    model, p = tiny("llama"), file.Parameters(draws=2, turns=2)
    on, articles = Measured(OWN, PASSAGES, {"texts": 2}), np.array([4, 7])
    random = lambda model, key: probe.randomise(model, key, spread=0.4)
    each = file.compare(p, 0, lambda line: None, "it", on, model, TEXTS, articles, random)
    assert each.rows.tolist() == [0, 1] and not each.shared and each.off < 1e-12
    assert {name: shares.layers.shape for name, shares in each.controls.items()} == dict.fromkeys(
        (file.TURNED, file.RANDOM), (2, 2, 3)
    )
    plain, turned = shares_of(model, TEXTS)[0], shares_of(model, TEXTS, turns_of(model, 2, 0))[0]
    np.testing.assert_array_equal(each.trained.same, plain.same[0])
    np.testing.assert_array_equal(each.controls[file.TURNED].heads, turned.heads)
    drawn = each.controls[file.RANDOM].layers
    assert np.abs(drawn[0] - drawn[1]).min() > 1e-6
    m = file.Results(p, True, each, each, 0.5)
    assert "2 networks of random weights, on 2 texts" in file.caption(m, ())
    table = file.series(m)
    np.testing.assert_allclose(table["share, network"], plain.layers[0].mean(0))
    np.testing.assert_allclose(
        table["share, random weights, error"], np.abs(np.diff(drawn.mean(1), axis=0))[0] / 2**0.5
    )
    assert len(table["cosine_by_distance, turned"]) == 2
    share, cosine, heads = file.draw(m).axes
    np.testing.assert_array_equal(share.lines[0].get_ydata(), table["share, network"])
    np.testing.assert_array_equal(cosine.lines[0].get_xdata(), [1, 2])
    assert [text.get_text() for text in heads.get_xticklabels()] == ["all\nlayers", "same\nlayer", "ALBERT"]
