"""Cases of `clusterjax.probe`: networks, batches, surveys, spectra, training, on an ALBERT of four dimensions."""

import functools
from types import SimpleNamespace

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from flax import nnx
from jax import lax

from clusterjax import SinkMask, probe, transformer
from clusterjax.probe.measures.survey import average_of
from clusterjax.probe.networks.bundled import BUNDLED
from tests.causal_cases import causal_model
from tests.doors.cases import Case, case
from tests.doors.rules import (
    ANY_TEXT,
    ARRAY,
    CLASS_OF_FLOATS,
    COUNT,
    EMPTY,
    LIST,
    LONG,
    NONE,
    NUMBER,
    PATH,
    POSITIVE,
    SIZE,
    TRACED,
    Rule,
    rule,
)


WORDS, D, N = 4096, 4, 4  # of the tokenizer of the package
IDS = np.array([[2, 5, 6, 3], [2, 7, 3, 0]], np.int32)
MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 0]], bool)
KEY = jr.key(0)
TEXTS = ["a b", "c"]

SENTENCES = rule("list of text", "texts")
STRINGS = rule("text array", "the strings of NumPy are strings")
NO_NAMES = EMPTY | rule("empty dict", "of none there is none")
FROM_THE_END = COUNT | rule("minus one", "counted from the end")
COSINE = rule("minus one, zero", "a cosine")
PADDING = rule("nan array, inf array", "the last token is padding, which is not looked at")
# A batch is made of integers, which those of these labels are not.
BATCHES = ARRAY | rule("other shape", "any number of texts and tokens")
FILE = NONE | PATH
DAYS = Rule(frozenset({"none"}), "the recipe of the network of the package, which trains for hours", endless=True)


@functools.cache
def sizes():
    return probe.AlbertSizes(WORDS, D, D, 2, D, 1, max_positions=8)


@functools.cache
def t5_sizes():
    return probe.T5Sizes(8, D, 2, 2, D, 1, num_buckets=4)


@functools.cache
def llama_sizes():
    return probe.LlamaSizes(8, D, 2, 1, 2, D, 1, window=2, sliding=(True,))


@functools.cache
def albert():
    return probe.Albert(sizes(), nnx.Rngs(0), pooler=True, head=True)


@functools.cache
def t5():
    return probe.T5Encoder(t5_sizes(), nnx.Rngs(0))


@functools.cache
def llama():
    return probe.Llama(llama_sizes(), nnx.Rngs(0), head=True)


def bert_sizes():
    return probe.BertSizes(8, D, 2, D, 1, max_positions=8)


@functools.cache
def bert():
    return probe.Bert(bert_sizes(), nnx.Rngs(0), pooler=True, head=True)


@functools.cache
def gpt2_sizes():
    return probe.GPT2Sizes(8, D, 2, D, 1, max_positions=8)


@functools.cache
def gpt2():
    return probe.GPT2(gpt2_sizes(), nnx.Rngs(0))


@functools.cache
def model():
    """With the tokenizer of the package, whose words it has."""
    return probe.Model(albert(), SimpleNamespace(pad_token_id=0), "tiny", BUNDLED)


@functools.cache
def texts():
    return probe.Encoded(IDS, MASK)


@functools.cache
def measure():
    return probe.Measure(lambda hidden, mask: {"sum": jnp.sum(hidden, axis=(1, 2))})


@functools.cache
def one_bridge():
    curve = average_of(np.array([[0.1, 0.2], [0.2, 0.4]]))
    return probe.Bridge(curve, {"fitted": curve}, 1.0, 1.0, np.zeros(0), 1.0)


@functools.cache
def one_first():
    return probe.FirstToken(*[average_of(np.array([[19.0, 20.0], [21.0, 20.5]]))] * 5)


@functools.cache
def one_position():
    found = {"self": average_of(np.array([[[0.1, 0.2]], [[0.2, 0.4]]]))}
    return probe.PositionHeads(found, found, found)


@functools.cache
def controlled():
    found = SimpleNamespace(cosine=average_of(np.array([[0.1, 0.2], [0.2, 0.4]])))
    other = SimpleNamespace(cosine=average_of(np.array([[0.1, 0.1], [0.1, 0.3]])))
    nothing = probe.Comparison(np.zeros(2), np.ones(2), np.zeros(2), 1.0)
    return probe.Controls(found, other, (other, found), nothing, nothing, -1, 2.0)


def some_texts(**more):
    return lambda: {"model": model(), "texts": texts(), "say": lambda line: None, **more}


# What all surveys take.
SURVEYED = {"texts": SENTENCES, "length": NONE, "store": FILE}


def _networks() -> dict[str, Case]:
    options = {"depth": NONE, "dtype": CLASS_OF_FLOATS, "precision": NONE}
    ids = {"token_ids": IDS, "mask": MASK}
    return {
        "AlbertSizes": case(lambda: sizes()._asdict()),
        "T5Sizes": case(lambda: t5_sizes()._asdict()),
        "LlamaSizes": case(lambda: llama_sizes()._asdict(), window=NONE, sliding=NONE, spread=NONE | POSITIVE),
        "BertSizes": case(lambda: bert_sizes()._asdict()),
        "GPT2Sizes": case(lambda: gpt2_sizes()._asdict()),
        "Albert": case(
            lambda: {"sizes": sizes(), "rngs": nnx.Rngs(0), "depth": 1, "heads": 2, "dtype": "float32",
                     "precision": lax.Precision.HIGHEST},
            dear=True, heads=NONE, **options,
        ),
        "T5Encoder": case(
            lambda: {"sizes": t5_sizes(), "rngs": nnx.Rngs(0), "depth": 1, "dtype": "float32",
                     "precision": lax.Precision.HIGHEST},
            dear=True, **options,
        ),
        "Llama": case(
            lambda: {"sizes": llama_sizes(), "rngs": nnx.Rngs(0), "depth": 1, "head": True, "dtype": "float32",
                     "precision": lax.Precision.HIGHEST},
            dear=True, **options,
        ),
        "Bert": case(
            lambda: {"sizes": bert_sizes(), "rngs": nnx.Rngs(0), "depth": 1, "heads": 2, "dtype": "float32",
                     "precision": lax.Precision.HIGHEST},
            dear=True, heads=NONE, **options,
        ),
        "GPT2": case(
            lambda: {"sizes": gpt2_sizes(), "rngs": nnx.Rngs(0), "depth": 1, "heads": 2, "dtype": "float32",
                     "precision": lax.Precision.HIGHEST},
            dear=True, heads=NONE, **options,
        ),
        "Albert.__call__": case(
            ids | {"token_types": 0 * IDS, "position_ids": np.tile(np.arange(N), (2, 1))}, albert, dear=True,
            token_ids=BATCHES, mask=NONE | BATCHES, token_types=NONE | BATCHES, position_ids=NONE | BATCHES,
        ),
        "T5Encoder.__call__": case({"token_ids": IDS % 8, "mask": MASK}, t5, dear=True, token_ids=BATCHES,
                                   mask=NONE | BATCHES),
        "Llama.__call__": case({"token_ids": IDS % 8, "mask": MASK}, llama, dear=True, token_ids=BATCHES,
                               mask=NONE | BATCHES),
        "Llama.logits": case({"hidden": jnp.ones((1, 2, D))}, llama, hidden=ARRAY),
        "Bert.__call__": case(
            {"token_ids": IDS % 8, "mask": MASK, "token_types": 0 * IDS}, bert, dear=True, token_ids=BATCHES,
            mask=NONE | BATCHES, token_types=NONE | BATCHES,
        ),
        "GPT2.__call__": case({"token_ids": IDS % 8, "mask": MASK}, gpt2, dear=True, token_ids=BATCHES,
                              mask=NONE | BATCHES),
        "Bert.logits": case({"hidden": jnp.ones((1, 2, D))}, bert, hidden=ARRAY),
        "GPT2.logits": case({"hidden": jnp.ones((1, 2, D))}, gpt2, hidden=ARRAY),
        "Albert.logits": case({"hidden": jnp.ones((1, 2, D))}, albert, hidden=ARRAY),
        "Model.logits": case({"hidden": jnp.ones((1, 2, D))}, model, hidden=ARRAY),
        "load": case({"depth": 1, "heads": 8, "dtype": "float32"}, dear=True, path=NONE, depth=NONE, heads=NONE,
                     dtype=CLASS_OF_FLOATS),
        "bundled_start": case({"key": KEY}, dear=True),
        "bundled_texts": case(),
        "bundled_training": case(finite=False),
        "tensors": case(lambda: {"network": albert()}),
        "head_matrices": case(lambda: {"model": model()}),
        "deeper": case(lambda: {"model": model(), "times": 2}),
        "on_sphere": case(lambda: {"model": model(), "radius": 1.0}),
        "without_feed_forward": case(lambda: {"model": model()}),
        "without_norms": case(lambda: {"model": model()}),
        "without": case(
            lambda: {"model": model(), "part": "attention", "layer": 0, "head": [0], "token": 1}, dear=True,
            layer=NONE | FROM_THE_END | LIST, head=NONE | FROM_THE_END | LIST, neuron=NONE, token=NONE | COUNT | LIST,
        ),
        "from_language_model": case(
            lambda: {"model": transformer.LanguageModel.random(KEY, 5, D, 2, 6, 1), "name": "ours"}, dear=True,
            name=ANY_TEXT,
        ),
        "with_mask": case(lambda: {"model": model(), "mask": SinkMask(2, 1)}),
        "Model.text_view": case({}, model),
        "randomise": case(
            lambda: {"model": model(), "key": KEY, "initial": lambda key: albert(), "spread": None}, initial=NONE,
            spread=NONE,
        ),
    }  # fmt: skip


def _batches() -> dict[str, Case]:
    run = lambda: {"model": model(), "token_ids": IDS, "mask": MASK, "token_types": 0 * IDS}
    rules = {"token_ids": BATCHES, "mask": NONE | BATCHES, "token_types": NONE | BATCHES}
    return {
        "read_texts": case(lambda: {"paths": [BUNDLED / "texts.txt"], "most_bytes": 10**9, "most_texts": 10**4}),
        "Encoded": case({"token_ids": IDS, "mask": MASK}, token_ids=ARRAY, mask=ARRAY),
        "encode": case(lambda: {"model": model(), "texts": TEXTS, "length": 6}, texts=SENTENCES | STRINGS, length=NONE),
        "Measure": case(lambda: {"level": measure().level, "layer": lambda hidden, attention, mask: {}},
                        level=NONE, layer=NONE),
        "stream": case(lambda: run() | {"measure": measure()}, dear=True, **rules),
        "trace": case(run, dear=True, **rules),
        "token_activation": case(lambda: {"model": model(), "text": "a b", "length": 6}, dear=True, text=ANY_TEXT,
                                 length=NONE),
        "shuffle_tokens": case(lambda: {"texts": texts(), "key": KEY, "fixed": (2, 3)}, fixed=EMPTY),
    }  # fmt: skip


def _surveys() -> dict[str, Case]:
    counts = np.ones((2, 2), np.int32)
    similar = {"bins": 4, "near": 0.5, "quantiles": (0.25, 0.5), "rank": True}
    left = {"leave_out": (), "without_first": True}
    ranges = {"bins": LIST, "near": COSINE, "quantiles": LIST | SIZE | LONG}
    return {
        "survey": case(
            some_texts(measure=measure(), length=4, keep=("sum",), resample=("sum",), replicates=counts,
                       settings={"a": 1}),
            dear=True, replicates=NONE, settings=NONE | NO_NAMES, keep=EMPTY, resample=EMPTY, **SURVEYED,
        ),
        "bootstrap_counts": case({"key": KEY, "replicates": 2, "texts": 3}),
        "similarity_histograms": case(some_texts(**similar, **left), dear=True, leave_out=EMPTY, **ranges, **SURVEYED),
        "first_token": case(some_texts(), dear=True, **SURVEYED),
        "FirstToken.apart": case({"times": 10.0, "sigmas": 2.0}, one_first, times=POSITIVE, sigmas=COUNT | POSITIVE),
        "position_heads": case(
            some_texts(separators={"[SEP]": (3,)}), dear=True, separators=NONE | NO_NAMES, **SURVEYED
        ),
        "PositionHeads.strongest": case({"target": "self"}, one_position),
        "special_ids": case(lambda: {"model": model()}),
        "token_losses": case(
            lambda: {"model": causal_model(), "texts": texts(), "length": 4, "say": lambda line: None}, dear=True,
            texts=SENTENCES, length=NONE,
        ),
        "similarity_of_hidden": case(
            {"hidden": np.random.default_rng(0).normal(size=(2, 2, N, D)), "mask": MASK, **similar}, dear=True,
            hidden=ARRAY | PADDING, mask=NONE | ARRAY, **ranges,
        ),
        "attention_sinks": case(some_texts(special={"[CLS]": 2}), dear=True, special=NONE | NO_NAMES, **SURVEYED),
        "head_correlations": case(some_texts(clusters=1, replicates=2, key=KEY), dear=True, key=NONE, **SURVEYED),
        "bridge": case(
            some_texts(fit_on=texts(), fit_steps=1, steps_per_layer=1), dear=True, seconds=60, fit_on=NONE | SENTENCES,
            fit_steps=COUNT, **SURVEYED,
        ),
        "controls": case(
            lambda: {
                "measure": lambda model, texts, store=None: controlled().trained, "model": model(),
                "texts": texts(), "key": KEY, "statistic": "cosine", "draws": 1, "initial": lambda key: albert(),
                "spread": None,
                "fixed": (2, 3), "length": 4,
            },
            dear=True, texts=SENTENCES, statistic=NONE, initial=NONE, spread=NONE,
            fixed=NONE | EMPTY, length=NONE, store=FILE, level=FROM_THE_END, sigmas=COUNT | POSITIVE, finite=False,
        ),
        "Bridge.correlation": case({"name": "fitted"}, one_bridge),
        "Bridge.difference": case({"name": "fitted"}, one_bridge),
        "Bridge.rmse": case({"name": "fitted"}, one_bridge),
        "Comparison.exceeds": case({"sigmas": 2.0}, lambda: controlled().beyond_random, sigmas=NUMBER),
        "Controls.compare": case({"statistic": "cosine"}, controlled),
    }  # fmt: skip


def _heads() -> dict[str, Case]:
    correlation = np.full((1, 2, 2), 0.5) + 0.5 * np.eye(2)
    labels = np.array([0, 0, 1])
    grouped = lambda: probe.head_clusters(correlation, correlation[None], 1)
    return {
        "HeadClusters.groups": case({"layer": 0}, grouped, layer=FROM_THE_END),
        "HeadCorrelations.between": case(
            on=lambda: probe.HeadCorrelations(average_of(correlation[None]), correlation[None], grouped())
        ),
        "adjusted_rand": case({"first": labels, "second": labels}),
        "head_clusters": case(
            {"correlation": correlation, "resampled": correlation[None], "clusters": 1},
            correlation=ARRAY, resampled=ARRAY,
        ),
        "particle_field": case(lambda: {"model": model(), "radius": 1.0, "beta": 1.0, "n": 3}, beta=NUMBER | TRACED,
                               n=NONE),
        "value_directions": case(lambda: {"model": model(), "head": 0, "block": 0, "top": 1}, head=COUNT, block=COUNT),
        "head_signs": case(lambda: {"model": model()}),
        "HeadSigns.count": case({"case": "attractive"}, lambda: probe.head_signs(model())),
        "value_spectra": case(lambda: {"model": model()}),
        "parameter_counts": case(lambda: {"model": model()}),
        "nearest_words": case(lambda: {"model": model(), "vectors": np.ones((1, D)), "top": 2}, vectors=ARRAY | LIST),
    }  # fmt: skip


def _continuations() -> dict[str, Case]:
    return {
        "next_words": case(lambda: {"model": causal_model(), "text": "cd", "top": 2}, text=ANY_TEXT),
        "continuation_log_prob": case(
            lambda: {"model": causal_model(), "text": "cd", "continuation": "e"},
            text=ANY_TEXT,
            continuation=ANY_TEXT | SENTENCES | STRINGS | SENTENCES | STRINGS,
        ),
        "generate": case(
            lambda: {
                "model": causal_model(),
                "texts": ["cd", "e"],
                "num_tokens": 2,
                "temperature": 1.0,
                "top_k": 3,
                "key": KEY,
            },
            dear=True,
            texts=ANY_TEXT | SENTENCES | STRINGS,
            temperature=COUNT | POSITIVE,
            top_k=NONE,
        ),
    }


def _training() -> dict[str, Case]:
    recipe = lambda: probe.AlbertRecipe(
        200, 4, 4, 1, 4, 1, length=8, batch_size=2, steps=1, epoch_steps=1, stages=(), held_out=0.5
    )
    return {
        "AlbertRecipe": case(
            {"stages": ((1, 16, 0.4),)}, stages=NONE | EMPTY, learning_rate=POSITIVE, weight_decay=COUNT | POSITIVE
        ),
        "AlbertRecipe.steps_until": case({"epoch": 1}, recipe, epoch=COUNT),
        "train_albert": case(
            lambda: {"out": "run", "paths": [BUNDLED / "texts.txt"], "recipe": recipe(), "seed": 0, "snapshots": 1,
                     "say": lambda line: None},
            dear=True, seconds=100, out=PATH, recipe=DAYS, seed=COUNT, snapshots=COUNT,
        ),
    }  # fmt: skip


CASES = {
    f"probe.{name}": found
    for name, found in {
        **_networks(),
        **_batches(),
        **_surveys(),
        **_heads(),
        **_continuations(),
        **_training(),
    }.items()
}
