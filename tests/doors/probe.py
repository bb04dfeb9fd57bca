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


WORDS, D, N = 4096, 4, 4  # of the tokenizer of the package
IDS = np.array([[2, 5, 6, 3], [2, 7, 3, 0]], np.int32)
MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 0]], bool)
KEY = jr.key(0)
TEXTS = ["a b", "c"]
sizes = functools.cache(lambda: probe.AlbertSizes(WORDS, D, D, 2, D, 1, max_positions=8))
t5_sizes = functools.cache(lambda: probe.T5Sizes(8, D, 2, 2, D, 1, num_buckets=4))
llama_sizes = functools.cache(lambda: probe.LlamaSizes(8, D, 2, 1, 2, D, 1, window=2, sliding=(True,)))
albert = functools.cache(lambda: probe.Albert(sizes(), nnx.Rngs(0), pooler=True, head=True))
t5 = functools.cache(lambda: probe.T5Encoder(t5_sizes(), nnx.Rngs(0)))
llama = functools.cache(lambda: probe.Llama(llama_sizes(), nnx.Rngs(0), head=True))
bert_sizes = lambda: probe.BertSizes(8, D, 2, D, 1, max_positions=8)
bert = functools.cache(lambda: probe.Bert(bert_sizes(), nnx.Rngs(0), pooler=True, head=True))
gpt2_sizes = functools.cache(lambda: probe.GPT2Sizes(8, D, 2, D, 1, max_positions=8))
gpt2 = functools.cache(lambda: probe.GPT2(gpt2_sizes(), nnx.Rngs(0)))
model = functools.cache(lambda: probe.Model(albert(), SimpleNamespace(pad_token_id=0), "tiny", BUNDLED))
texts = functools.cache(lambda: probe.Encoded(IDS, MASK))
measure = functools.cache(lambda: probe.Measure(lambda hidden, mask: {"sum": jnp.sum(hidden, axis=(1, 2))}))


@functools.cache
def one_bridge():
    curve = average_of(np.array([[0.1, 0.2], [0.2, 0.4]]))
    return probe.Bridge(curve, {"fitted": curve}, 1.0, 1.0, np.zeros(0), 1.0)


one_first = functools.cache(lambda: probe.FirstToken(*[average_of(np.array([[19.0, 20.0], [21.0, 20.5]]))] * 5))


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


some_texts = lambda **more: lambda: {"model": model(), "texts": texts(), "say": lambda line: None, **more}


def _networks() -> dict[str, Case]:
    ids = {"token_ids": IDS, "mask": MASK}
    whole = {"depth": 1, "dtype": "float32", "precision": lax.Precision.HIGHEST}
    network = lambda sizes, **more: case(lambda: {"sizes": sizes(), "rngs": nnx.Rngs(0), **whole, **more})
    return {
        "Albert": network(sizes, heads=2),
        "T5Encoder": network(t5_sizes),
        "Llama": network(llama_sizes, head=True),
        "Bert": network(bert_sizes, heads=2),
        "GPT2": network(gpt2_sizes, heads=2),
        "AlbertSizes": case(lambda: sizes()._asdict()),
        "T5Sizes": case(lambda: t5_sizes()._asdict()),
        "LlamaSizes": case(lambda: llama_sizes()._asdict()),
        "BertSizes": case(lambda: bert_sizes()._asdict()),
        "GPT2Sizes": case(lambda: gpt2_sizes()._asdict()),
        "Albert.__call__": case(ids | {"token_types": 0 * IDS, "position_ids": np.tile(np.arange(N), (2, 1))}, albert),
        "T5Encoder.__call__": case({"token_ids": IDS % 8, "mask": MASK}, t5),
        "Llama.__call__": case({"token_ids": IDS % 8, "mask": MASK}, llama),
        "Llama.logits": case({"hidden": jnp.ones((1, 2, D))}, llama),
        "Bert.__call__": case({"token_ids": IDS % 8, "mask": MASK, "token_types": 0 * IDS}, bert),
        "GPT2.__call__": case({"token_ids": IDS % 8, "mask": MASK}, gpt2),
        "Bert.logits": case({"hidden": jnp.ones((1, 2, D))}, bert),
        "GPT2.logits": case({"hidden": jnp.ones((1, 2, D))}, gpt2),
        "Albert.logits": case({"hidden": jnp.ones((1, 2, D))}, albert),
        "Model.logits": case({"hidden": jnp.ones((1, 2, D))}, model),
        "load": case({"depth": 1, "heads": 8, "dtype": "float32"}),
        "bundled_start": case({"key": KEY}),
        "bundled_texts": case(),
        "bundled_training": case(finite=False),
        "tensors": case(lambda: {"network": albert()}),
        "head_matrices": case(lambda: {"model": model()}),
        "deeper": case(lambda: {"model": model(), "times": 2}),
        "on_sphere": case(lambda: {"model": model(), "radius": 1.0}),
        "without_feed_forward": case(lambda: {"model": model()}),
        "without_norms": case(lambda: {"model": model()}),
        "without": case(lambda: {"model": model(), "part": "attention", "layer": 0, "head": [0], "token": 1}),
        "from_language_model": case(
            lambda: {"model": transformer.LanguageModel.random(KEY, 5, D, 2, 6, 1), "name": "ours"}
        ),
        "with_mask": case(lambda: {"model": model(), "mask": SinkMask(2, 1)}),
        "Model.text_view": case({}, model),
        "randomise": case(lambda: {"model": model(), "key": KEY, "initial": lambda key: albert(), "spread": None}),
    }


def _batches() -> dict[str, Case]:
    run = lambda: {"model": model(), "token_ids": IDS, "mask": MASK, "token_types": 0 * IDS}
    return {
        "read_texts": case(lambda: {"paths": [BUNDLED / "texts.txt"], "most_bytes": 10**9, "most_texts": 10**4}),
        "Encoded": case({"token_ids": IDS, "mask": MASK}),
        "encode": case(lambda: {"model": model(), "texts": TEXTS, "length": 6}),
        "Measure": case(lambda: {"level": measure().level, "layer": lambda hidden, attention, mask: {}}),
        "stream": case(lambda: run() | {"measure": measure()}),
        "trace": case(run),
        "token_activation": case(lambda: {"model": model(), "text": "a b", "length": 6}),
        "shuffle_tokens": case(lambda: {"texts": texts(), "key": KEY, "fixed": (2, 3)}),
    }


def _surveys() -> dict[str, Case]:
    counts = np.ones((2, 2), np.int32)
    similar = {"bins": 4, "near": 0.5, "quantiles": (0.25, 0.5), "rank": True}
    left = {"leave_out": (), "without_first": True}
    return {
        "survey": case(
            some_texts(
                measure=measure(), length=4, keep=("sum",), resample=("sum",), replicates=counts, settings={"a": 1}
            )
        ),
        "bootstrap_counts": case({"key": KEY, "replicates": 2, "texts": 3}),
        "similarity_histograms": case(some_texts(**similar, **left)),
        "first_token": case(some_texts()),
        "FirstToken.apart": case({"times": 10.0, "sigmas": 2.0}, one_first),
        "position_heads": case(some_texts(separators={"[SEP]": (3,)})),
        "PositionHeads.strongest": case({"target": "self"}, one_position),
        "special_ids": case(lambda: {"model": model()}),
        "token_losses": case(
            lambda: {"model": causal_model(), "texts": texts(), "length": 4, "say": lambda line: None}
        ),
        "similarity_of_hidden": case(
            {"hidden": np.random.default_rng(0).normal(size=(2, 2, N, D)), "mask": MASK, **similar}
        ),
        "attention_sinks": case(some_texts(special={"[CLS]": 2})),
        "head_correlations": case(some_texts(clusters=1, replicates=2, key=KEY)),
        "bridge": case(some_texts(fit_on=texts(), fit_steps=1, steps_per_layer=1), seconds=60),
        "controls": case(
            lambda: dict(
                measure=lambda model, texts, store=None: controlled().trained,
                model=model(),
                texts=texts(),
                key=KEY,
                statistic="cosine",
                draws=1,
                initial=lambda key: albert(),
                spread=None,
                fixed=(2, 3),
                length=4,
            ),
            finite=False,
        ),
        "Bridge.correlation": case({"name": "fitted"}, one_bridge),
        "Bridge.difference": case({"name": "fitted"}, one_bridge),
        "Bridge.rmse": case({"name": "fitted"}, one_bridge),
        "Comparison.exceeds": case({"sigmas": 2.0}, lambda: controlled().beyond_random),
        "Controls.compare": case({"statistic": "cosine"}, controlled),
    }


def _heads() -> dict[str, Case]:
    correlation = np.full((1, 2, 2), 0.5) + 0.5 * np.eye(2)
    labels = np.array([0, 0, 1])
    grouped = lambda: probe.head_clusters(correlation, correlation[None], 1)
    return {
        "HeadClusters.groups": case({"layer": 0}, grouped),
        "HeadCorrelations.between": case(),
        "adjusted_rand": case({"first": labels, "second": labels}),
        "head_clusters": case({"correlation": correlation, "resampled": correlation[None], "clusters": 1}),
        "particle_field": case(lambda: {"model": model(), "radius": 1.0, "beta": 1.0, "n": 3}),
        "value_directions": case(lambda: {"model": model(), "head": 0, "block": 0, "top": 1}),
        "head_signs": case(lambda: {"model": model()}),
        "HeadSigns.count": case({"case": "attractive"}, lambda: probe.head_signs(model())),
        "value_spectra": case(lambda: {"model": model()}),
        "parameter_counts": case(lambda: {"model": model()}),
        "nearest_words": case(lambda: {"model": model(), "vectors": np.ones((1, D)), "top": 2}),
    }


def _continuations() -> dict[str, Case]:
    return {
        "next_words": case(lambda: {"model": causal_model(), "text": "cd", "top": 2}),
        "continuation_log_prob": case(lambda: {"model": causal_model(), "text": "cd", "continuation": "e"}),
        "generate": case(
            lambda: dict(model=causal_model(), texts=["cd", "e"], num_tokens=2, temperature=1.0, top_k=3, key=KEY)
        ),
    }


def _training() -> dict[str, Case]:
    recipe = lambda: probe.AlbertRecipe(
        200, 4, 4, 1, 4, 1, length=8, batch_size=2, steps=1, epoch_steps=1, stages=(), held_out=0.5
    )
    return {
        "AlbertRecipe": case({"stages": ((1, 16, 0.4),)}),
        "AlbertRecipe.steps_until": case({"epoch": 1}, recipe),
        "train_albert": case(
            lambda: dict(
                out="run", paths=[BUNDLED / "texts.txt"], recipe=recipe(), seed=0, snapshots=1, say=lambda line: None
            ),
            seconds=100,
        ),
    }


_CASES = _networks() | _batches() | _surveys() | _heads() | _continuations() | _training()
CASES = {f"probe.{name}": found for name, found in _CASES.items()}
