"""Controls by random weights and shuffled tokens: the properties that they keep, and a verdict with an error bar."""

import functools

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from flax import nnx
from scipy import stats

from clusterjax import probe
from clusterjax.probe.measures.survey import average_of, clustered_error
from tests.helpers import as_a_user
from tests.probe.test_encode import add_tokenizer
from tests.probe_cases import BERT, GPT2, LLAMA, SHARED, T5, many_texts, tensors_of, write


TEXTS = many_texts(6, 12)
measure = functools.partial(probe.similarity_histograms, bins=20, rank=False, batch_size=6)


def load(config, folder):
    return probe.load(write(folder, config, tensors_of(config)), dtype=jnp.float64)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load(SHARED, tmp_path_factory.mktemp("m"))


@pytest.mark.exhaustive
def test_the_three_runs_and_their_differences(model):
    """Each run equals a call of the measure; differences are paired by text, and random weights add a spread."""
    found = probe.controls(measure, model, TEXTS, key=jr.key(0), draws=2)
    np.testing.assert_array_equal(found.trained.cosine.values, measure(model, TEXTS).cosine.values)
    trained, shuffled = found.trained.cosine.values, found.shuffled.cosine.values
    difference = trained - shuffled
    np.testing.assert_allclose(found.beyond_shuffled.difference, difference.mean(axis=0), rtol=0, atol=1e-14)
    np.testing.assert_allclose(
        found.beyond_shuffled.error, difference.std(axis=0, ddof=1) / np.sqrt(6), rtol=1e-9, atol=1e-15
    )
    draws = np.stack([run.cosine.values for run in found.random])
    assert (draws[0] != draws[1]).any()
    paired = (trained - draws.mean(axis=0)).std(axis=0, ddof=1) / np.sqrt(6)
    between = draws.mean(axis=1).std(axis=0, ddof=1) / np.sqrt(2)
    np.testing.assert_allclose(found.beyond_random.error, np.hypot(paired, between), rtol=1e-9)
    welch = (paired**2 + between**2) ** 2 / (paired**4 / 5 + between**4 / 1)
    np.testing.assert_allclose(found.beyond_random.freedom, welch, rtol=1e-9)
    np.testing.assert_allclose(found.beyond_shuffled.freedom, 5, rtol=1e-12)
    assert found.z == min(found.beyond_shuffled.z[-1], found.beyond_random.z[-1])
    chances = [stats.t.sf(one.z[-1], one.freedom[-1]) for one in (found.beyond_shuffled, found.beyond_random)]
    sigmas = float(stats.norm.isf(max(chances)))  # equally unlikely under a normal distribution
    assert found.clusters_beyond_controls == (sigmas > 2)
    assert found._replace(sigmas=sigmas - 1e-6).clusters_beyond_controls
    assert not found._replace(sigmas=sigmas + 1e-6).clusters_beyond_controls


@pytest.mark.exhaustive
def test_errors_are_over_the_units_of_texts(model):
    """For six texts from three articles errors are clustered, and shuffled tokens give two degrees of freedom."""
    articles = np.array([5, 5, 3, 3, 8, 8])
    found = probe.controls(measure, model, TEXTS, key=jr.key(0), draws=2, units=articles)
    apart = found.trained.cosine.values - found.shuffled.cosine.values
    for shuffled, random in ((found.beyond_shuffled, found.beyond_random), found.compare("cosine")):
        np.testing.assert_allclose(shuffled.error, clustered_error(apart, articles).error, rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(shuffled.freedom, 2, rtol=1e-12)
        drawn = np.stack([run.cosine.values for run in found.random])
        within = clustered_error(found.trained.cosine.values - drawn.mean(axis=0), articles).error
        between = drawn.mean(axis=1).std(axis=0, ddof=1) / np.sqrt(2)
        np.testing.assert_allclose(random.error, np.hypot(within, between), rtol=1e-9)
    with pytest.raises(ValueError, match=r"^units must .*; pass an integer for each text, the same for passages of"):
        probe.controls(measure, model, TEXTS, key=jr.key(0), units=articles[:5])


def test_few_draws_need_more():
    """By Student's table, 2 sigmas are 14 errors for two texts and 2 for many; every head must exceed its threshold."""
    one = probe.Comparison(np.zeros(4), np.ones(4), np.array([2.01, 13.9, 14.0, 1.99]), np.array([np.inf, 1, 1, 1e9]))
    assert one.exceeds(2.0).tolist() == [True, False, True, False]
    heads = one._replace(z=np.array([[3.0, 3.0], [3.0, 1.0]]), freedom=np.inf)
    found = probe.Controls(None, None, (), heads, heads, 0, 2.0)
    assert found.clusters_beyond_controls and found.z == 3
    assert not found._replace(level=1).clusters_beyond_controls and found._replace(level=1).z == 1


@pytest.mark.exhaustive
def test_one_network_proves_nothing(model):
    """The spread of random networks is unknown from one network: the comparison has no error and no verdict."""
    apart = iter((9.0, 1.0, 1.0))
    made = lambda mean: np.linspace(mean, mean + 1e-3, 18).reshape(6, 3) ** 2
    far = lambda model, texts: (lambda rows: probe.Average(rows[0], rows[0], 6, rows))(made(next(apart)))
    found = probe.controls(far, model, TEXTS, key=jr.key(0), statistic=lambda average: average, draws=1)
    assert found.beyond_shuffled.exceeds().all() and (found.beyond_random.difference > 60).all()
    assert np.isnan(found.beyond_random.error).all() and not found.clusters_beyond_controls


@pytest.mark.exhaustive_cases("t5")
@pytest.mark.parametrize("config", (SHARED, T5), ids=("albert", "t5"))
def test_what_was_removed_stays_removed(config, tmp_path):
    """Drawing random weights and removing a part of the network commute."""
    model = load(config, tmp_path)
    for part in (probe.without_norms, probe.without_feed_forward, lambda model: probe.on_sphere(model, 2.0)):
        one, other = probe.randomise(part(model), jr.key(1)), part(probe.randomise(model, jr.key(1)))
        np.testing.assert_array_equal(*(probe.trace(m, TEXTS.token_ids[:2]).hidden for m in (one, other)))
        assert " with random weights" in one.name
    assert probe.randomise(probe.deeper(model, 2), jr.key(1)).num_layers == 2 * model.num_layers
    tensors = tensors_of(config)
    name = next(name for name in tensors if name.endswith(("attention.dense.weight", "SelfAttention.o.weight")))
    model = probe.load(write(tmp_path / "zero", config, tensors | {name: 0 * tensors[name]}), dtype=jnp.float64)
    assert not probe.tensors(probe.randomise(model, jr.key(1)).network)[name].any()


def test_a_start_of_ones_own(model):
    """The weights of the user's own initialiser are used, in the model's precision; other sizes are refused."""
    sizes = model.network.sizes
    mine = lambda key: probe.Network(sizes._replace(spread=0.5), nnx.Rngs(key), head=True)
    found = probe.tensors(probe.randomise(model, jr.key(2), initial=mine).network)
    for name, array in probe.tensors(mine(jr.key(2))).items():
        assert name.startswith("predictions.") or (found[name].dtype == np.float64 and (found[name] == array).all())
    wide = lambda key: probe.Network(sizes._replace(intermediate_size=24), nnx.Rngs(key))
    with (
        as_a_user(),
        pytest.raises(ValueError, match=r"initial must return .* whose layers/.*feed_forward/into/bias is of shape"),
    ):
        probe.randomise(model, jr.key(2), initial=wide)


def test_tokens_are_shuffled_within_their_text():
    """Each text keeps its words, with special tokens and padding in place; another key gives another order."""
    shuffled = probe.shuffle_tokens(TEXTS, jr.key(1), fixed=(int(TEXTS.token_ids[2, 4]),))
    stays = ~TEXTS.mask | (TEXTS.token_ids == TEXTS.token_ids[2, 4])
    np.testing.assert_array_equal(shuffled.token_ids[stays], TEXTS.token_ids[stays])
    np.testing.assert_array_equal(np.sort(shuffled.token_ids, axis=1), np.sort(TEXTS.token_ids, axis=1))
    np.testing.assert_array_equal(shuffled.mask, TEXTS.mask)
    assert (shuffled.token_ids != TEXTS.token_ids).any()
    again, other = (probe.shuffle_tokens(TEXTS, jr.key(seed)).token_ids for seed in (1, 2))
    assert (again != other).any()


def test_all_orders_are_equally_likely():
    """In 600 shuffles of three words each of the six orders occurs 100 times, up to chance."""
    texts = probe.Encoded(np.tile(np.array([[1, 2, 3]], np.int32), (600, 1)), np.ones((600, 3), bool))
    counts = np.unique(probe.shuffle_tokens(texts, jr.key(3)).token_ids, axis=0, return_counts=True)[1]
    assert len(counts) == 6 and np.abs(counts - 100).max() < 4 * np.sqrt(100 * 5 / 6)


def test_special_tokens_of_the_tokenizer_stay(tmp_path):
    model = probe.load(add_tokenizer(write(tmp_path, SHARED, tensors_of(SHARED))))
    model.tokenizer.add_special_tokens({"cls_token": "[CLS]", "sep_token": "[SEP]"})
    seen = []
    constant = probe.Average(np.zeros(3), np.zeros(3), 2, np.zeros((2, 3)))
    found = probe.controls(
        lambda model, texts: seen.append(texts),
        model,
        ["a b c d e f", "g h i"],
        key=jr.key(0),
        statistic=lambda found: constant,
        draws=1,
    )
    plain, shuffled, random = (texts.token_ids for texts in seen)
    np.testing.assert_array_equal(plain, random)
    np.testing.assert_array_equal(plain[:, 0], shuffled[:, 0])
    assert (shuffled != plain).any() and shuffled[0, 7] == plain[0, 7] == 2 == shuffled[1, 4]
    assert np.isnan(found.z) and not found.clusters_beyond_controls  # without any difference there is no evidence


def spread_of(name, sizes):
    """The standard deviation with which `transformers` draws a matrix, which in T5 depends on its number of inputs."""
    if sizes.family == "albert":
        return sizes.spread
    d, k, heads, wide = sizes.hidden_size, sizes.head_size, sizes.num_heads, sizes.intermediate_size
    attention = {"q": (d * k) ** -0.5, "k": d**-0.5, "v": d**-0.5, "o": (heads * k) ** -0.5}
    others = {"shared": 1.0, "relative_attention_bias": d**-0.5, "wi_0": d**-0.5, "wi_1": d**-0.5, "wo": wide**-0.5}
    return sizes.factor * (attention | others)[name.split(".")[-2]]


def test_the_spread_of_random_weights_is_named_and_can_be_given(model):
    """The matrices have the given deviation, the result and the name report it, and it cannot be given twice."""
    rows = np.linspace(0, 1, 18).reshape(6, 3)
    constant, options = lambda model, texts: probe.Average(rows[0], rows[0], 6, rows), {"statistic": lambda it: it}
    for spread in (None, 0.3):
        drawn = probe.randomise(model, jr.key(3), spread=spread)
        words = probe.tensors(drawn.network)["embeddings.word_embeddings.weight"]
        used = spread or 0.02
        assert (
            0.75 * used < words.std() < 1.3 * used
            and drawn.name == f"{model.name} with random weights of spread {used}"
        )
        found = probe.controls(constant, model, TEXTS, key=jr.key(0), draws=2, spread=spread, **options)
        assert found.spread == used and f"random weights of spread {used}: " in found.summary()
    own = probe.controls(constant, model, TEXTS, key=jr.key(0), draws=2, initial=lambda key: model.network, **options)
    assert own.spread is None and "random weights: " in own.summary()
    with pytest.raises(ValueError, match="spread must be None beside initial"):
        probe.controls(measure, model, TEXTS, key=jr.key(0), initial=lambda key: model.network, spread=0.3)


def test_a_spread_that_no_file_says_is_asked_for(tmp_path):
    """A GGUF file has no spread, and a T5 has one for each matrix: neither uses the default of transformers."""
    pytest.importorskip("gguf", reason="needs gguf: pip install 'clusterjax[smollm2]'")
    from clusterjax.probe.networks.gguf import SMOLLM2
    from tests.gguf_cases import tiny_gguf

    # The published configuration of SmolLM2 has the spread 576^(-1/2).
    assert probe.load(tiny_gguf(tmp_path / SMOLLM2)).network.sizes.spread == pytest.approx(576**-0.5, rel=1e-15)
    model = probe.load(tiny_gguf(tmp_path / "net.gguf"))
    assert model.network.sizes.spread is None
    texts = probe.Encoded(*rows_of_ids())
    for call in (
        lambda **how: probe.randomise(model, jr.key(0), **how),
        lambda **how: probe.controls(measure, model, texts, key=jr.key(0), draws=2, **how),
    ):
        with pytest.raises(ValueError, match="spread must be given .*None.*pass the standard deviation"):
            call()
    probe.randomise(model, jr.key(0), spread=0.1)
    with pytest.raises(ValueError, match="spread must be None where matrices have no common spread"):
        probe.randomise(load(T5, tmp_path / "t5"), jr.key(0), spread=0.1)


def test_errors_of_clustered_numbers():
    """Errors equal a double loop, and the textbook if each number is a unit; copies within units change no error."""
    rng = np.random.default_rng(0)
    values, units = rng.normal(size=(11, 3)), np.array(list("aabbbcddeef"))
    values[2, 1] = np.nan
    found = clustered_error(values, units)
    for column in range(3):
        there = [(unit, x) for unit, x in zip(units, values[:, column], strict=True) if not np.isnan(x)]
        mean = sum(x for _, x in there) / len(there)
        squares = sum(sum(x - mean for unit, x in there if unit == name) ** 2 for name in set(units))
        assert found.mean[column] == pytest.approx(mean, rel=1e-13)
        assert found.error[column] == pytest.approx((6 / 5 * squares) ** 0.5 / len(there), rel=1e-13)
    assert found.units == 6
    alone = clustered_error(values[:, 0])
    assert alone.units == 11 and alone.error == pytest.approx(stats.sem(values[:, 0]), rel=1e-13)
    copied = clustered_error(np.tile(values[:, 0], 4), np.tile(np.arange(11), 4))
    assert copied.error == pytest.approx(alone.error, rel=1e-13) and copied.units == 11
    assert np.isnan(clustered_error(values, np.zeros(11)).error).all()
    average = average_of(values[:, 0], units)
    assert average.error == pytest.approx(found.error[0], rel=1e-13) and average.texts == 11


def test_few_units_need_more_errors():
    """A mean 2.1 errors above zero is significant for 1,000 units and not for three; the sign can be reversed."""
    for many, surely in ((1000, True), (3, False)):
        rising = np.linspace(-1, 1, many)
        values = rising + 2.1 * clustered_error(rising).error
        assert clustered_error(values).above() == surely and clustered_error(-values).below() == surely
        assert not clustered_error(values).below() and not clustered_error(-values).above()


def rows_of_ids():
    return (np.arange(12).reshape(2, 6) % 7).astype(np.int32), np.ones((2, 6), bool)


WIDE_T5 = T5 | {"d_model": 40, "d_ff": 50, "d_kv": 16, "num_heads": 4, "relative_attention_num_buckets": 32}


@pytest.mark.exhaustive_cases("albert", "t5", "t5 times 3")
@pytest.mark.parametrize(
    "config",
    (SHARED, SHARED | {"initializer_range": 0.07}, WIDE_T5, WIDE_T5 | {"initializer_factor": 3.0}),
    ids=("albert", "albert of another spread", "t5", "t5 times 3"),
)
def test_random_weights_are_those_before_training(config, tmp_path):
    """Sizes, depth and heads stay; each matrix has the spread of the initialiser, biases are 0 and scales 1."""
    model = load(config, tmp_path)
    network = probe.randomise(model, jr.key(4)).network
    old = model.network
    assert (network.sizes, network.depth, network.num_heads) == (old.sizes, old.depth, old.num_heads)
    for name, array in probe.tensors(network).items():
        assert array.shape == probe.tensors(old)[name].shape and array.dtype == np.float64
        norm = "norm" in name.lower() and name.endswith("weight")
        assert not name.endswith("bias") or not array.any() or "relative" in name
        assert not norm or (array == (network.sizes.factor or 1)).all()
        if array.ndim == 2 and array.size > 50:
            spread = spread_of(name, network.sizes)
            assert 0.75 * spread < array.std() < 1.3 * spread, name
    first, again, other = (probe.tensors(probe.randomise(model, jr.key(k)).network) for k in (4, 4, 5))
    assert all((first[name] == again[name]).all() for name in first)
    assert any((first[name] != other[name]).any() for name in first)


@pytest.mark.parametrize("config", (SHARED, BERT, GPT2, LLAMA), ids=lambda config: config["model_type"])
def test_a_configuration_says_how_its_network_was_drawn(config, tmp_path):
    assert load(config | {"initializer_range": 0.07}, tmp_path).network.sizes.spread == 0.07


@pytest.mark.exhaustive
def test_a_store_for_each_run(tmp_path, model):
    runs = [probe.controls(measure, model, TEXTS, key=jr.key(0), draws=1, store=tmp_path / "runs") for _ in range(2)]
    assert sorted(path.stem for path in (tmp_path / "runs").iterdir()) == ["random-0", "shuffled", "trained"]
    np.testing.assert_array_equal(runs[0].beyond_random.z, runs[1].beyond_random.z)


def test_one_text_proves_nothing(model):
    """However different the runs are, one text has no error bar and gives no verdict."""
    one, runs = probe.Encoded(*(array[:1] for array in TEXTS)), iter((9.0, 1.0, 1.0))
    far = lambda model, texts: probe.Average(np.zeros(3), np.zeros(3), 1, np.full((1, 3), next(runs)))
    found = probe.controls(far, model, one, key=jr.key(0), statistic=lambda average: average, draws=1)
    assert (found.beyond_random.difference == 8).all() and not found.clusters_beyond_controls
