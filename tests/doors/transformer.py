"""Cases of `clusterjax.transformer`: layers, blocks, stacks, language models, their folders and their training."""

import functools
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import jax.numpy as jnp
import jax.random as jr
import numpy as np

import clusterjax as cjx
from clusterjax import transformer
from clusterjax._training.corpus import read_texts
from clusterjax.transformer import _train
from tests.doors.cases import Case, case
from tests.doors.lower import T


N, D, HEADS, WORDS, LONGEST, NEURONS = 2, 4, 2, 5, 6, 3
K = D // HEADS


def _normal(seed: int, *shape: int):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


KEY, X = jr.key(0), _normal(0, N, D)
GAIN, PRESENT = jnp.ones(D), jnp.ones(N, bool)
INTO, OUT = _normal(1, HEADS, D, K), _normal(2, HEADS, K, D)
W_IN, W_OUT, EMBEDDING = _normal(3, D, NEURONS), _normal(4, NEURONS, D), _normal(5, WORDS, D)
IDS, TEXTS = jnp.asarray([1, 2]), np.asarray([[1, 2], [3, 0]])

attention = functools.cache(lambda: transformer.MultiHeadAttention(INTO, INTO, INTO, OUT))
forward = functools.cache(lambda: transformer.FeedForward(W_IN, W_OUT))
norm = functools.cache(lambda: transformer.LayerNorm(GAIN, 0 * GAIN))
free = functools.cache(lambda: transformer.Block(attention(), forward(), residual=transformer.NoNorm()))
block = functools.cache(lambda: transformer.Block(attention(), forward(), (norm(), norm())))
stack = functools.cache(lambda: transformer.Transformer(block(), 1))
table = functools.cache(lambda: transformer.LearnedPositions(_normal(6, LONGEST, D)))
relative = functools.cache(lambda: transformer.RelativePositions(_normal(7, 3, K), _normal(8, 3, K)))
model = functools.cache(lambda: transformer.LanguageModel(EMBEDDING, stack(), table()))
lstm = functools.cache(lambda: transformer.LSTMLanguageModel.random(KEY, WORDS, D, NEURONS))
average = functools.cache(lambda: cjx.SoftmaxAttention(1.0))
flow = functools.cache(lambda: transformer.NormalisationField(average()))
field = functools.cache(lambda: cjx.AttentionField(average(), space=cjx.Euclidean()))
normed = functools.cache(lambda: transformer.NormedField(field(), norm()))
recipe = functools.cache(lambda: transformer.LanguageRecipe(words=16, d=D, heads=HEADS, hidden=NEURONS, layers=1))


def _parts() -> dict[str, Case]:
    use = {"x": X, "present": PRESENT}
    found = {
        "MultiHeadAttention": case(
            lambda: {"query": INTO, "key": INTO, "value": INTO, "output": OUT, "beta": T, "relative": relative()}
        ),
        "MultiHeadAttention.random": case(
            lambda: {"key": KEY, "d": D, "heads": HEADS, "scale": 0.5, "relative": relative()}
        ),
        "FeedForward": case({"w_in": W_IN, "w_out": W_OUT, "bias_in": jnp.ones(NEURONS), "bias_out": jnp.ones(D)}),
        "FeedForward.random": case({"key": KEY, "d": D, "hidden": NEURONS, "scale": 0.5}),
        "LayerNorm": case({"gain": GAIN, "bias": GAIN, "epsilon": 1e-5}),
        "LayerNorm.identity": case({"d": D, "epsilon": 1e-5}),
        "LayerNorm.__call__": case({"x": X}, norm),
        "Block": case(lambda: {"attention": attention(), "feed_forward": forward(), "norms": (norm(), norm())}),
        "Block.random": case(
            lambda: dict(key=KEY, d=D, heads=HEADS, hidden=NEURONS, relative=relative(), epsilon=1e-5, scale=0.5)
        ),
        "Block.__call__": case(use, block),
        "Transformer": case(lambda: {"blocks": block(), "depth": 1, "norm": norm()}),
        "Transformer.of": case(lambda: {"blocks": [block(), block()], "norm": norm()}),
        "Transformer.random": case({"key": KEY, "d": D, "heads": HEADS, "hidden": NEURONS, "layers": 1}),
        "Transformer.block": case({"layer": 0}, stack),
        "Transformer.__call__": case(use, stack),
        "Transformer.levels": case(use, stack),
    }
    for name in ("weights", "heads", "__call__"):
        found[f"MultiHeadAttention.{name}"] = case(use, attention)
    for name in ("scores", "activations", "__call__"):
        found[f"FeedForward.{name}"] = case({"x": X}, forward)
    return found


def _positions() -> dict[str, Case]:
    sinusoidal = lambda: transformer.SinusoidalPositions(D)
    return {
        "LearnedPositions": case({"table": EMBEDDING}),
        "LearnedPositions.random": case({"key": KEY, "positions": LONGEST, "d": D, "scale": 0.5}),
        "LearnedPositions.__call__": case({"n": N, "dtype": jnp.float32}, table),
        "RelativePositions": case({"keys": _normal(7, 3, K), "values": _normal(8, 3, K)}),
        "RelativePositions.random": case({"key": KEY, "farthest": 1, "k": K, "scale": 0.5}),
        "RelativePositions.rows": case({"n": N}, relative),
        "RotaryPositions": case({"k": K, "base": 100.0}),
        "RotaryPositions.__call__": case({"x": _normal(9, N, K)}, lambda: transformer.RotaryPositions(K)),
        "SinusoidalPositions": case({"d": D, "base": 100.0}),
        "SinusoidalPositions.__call__": case({"n": N, "dtype": jnp.float32}, sinusoidal),
        "sinusoidal_positions": case({"n": N, "d": D, "base": 100.0}),
    }


def _flows() -> dict[str, Case]:
    call = lambda made: case({"t": T, "x": X}, made)
    found = {name: case() for name in ("PostLN", "PreLN", "PeriLN", "RootScaled", "PostNorm", "PreNorm", "NoNorm")}
    return found | {
        "NormalisedGPT": case({"alpha": T}),
        "NormalisationField": case(lambda: {"attention": average(), "value": jnp.eye(D)}),
        "NormalisationField.__call__": call(flow),
        "NormedField": case(lambda: {"field": field(), "norm": norm()}),
        "NormedField.__call__": call(normed),
        "Standardised": case(),
        "Standardised.sample": case({"key": KEY, "n": N, "d": D}, transformer.Standardised),
        "as_field": case(lambda: {"block": free(), "space": cjx.Euclidean()}),
        "as_layer": case(lambda: {"field": field(), "step": T}),
        "query_key_forms": case(lambda: {"attention": attention()}),
        "value_matrices": case(lambda: {"attention": attention()}),
    }


def _language_models() -> dict[str, Case]:
    use = {"ids": IDS, "present": PRESENT}
    corpus = lambda: {"model": model(), "texts": TEXTS, "present": np.ones((2, 2), bool), "batch_size": 2}
    logits, targets = _normal(9, N, WORDS), jnp.asarray([0, 4])
    stages = transformer.ResidualStream(
        jnp.ones((3, N, D)), X, X[None, None], X[None], X, *(jnp.ones((1, 1, N, N)) for _ in range(3))
    )
    detector = transformer.Detector(np.ones(NEURONS), 1, 0.5, 1, 1.0)
    return {
        "LanguageModel": case(lambda: {"embedding": EMBEDDING, "stack": stack(), "positions": table()}),
        "LanguageModel.random": case(
            dict(key=KEY, words=WORDS, d=D, heads=HEADS, hidden=NEURONS, layers=1, positions=LONGEST, scale=0.5)
        ),
        "LanguageModel.__call__": case(use, model),
        "LanguageModel.logit_lens": case(use, model),
        "LanguageModel.embed": case({"ids": IDS}, model),
        "LanguageModel.next_token": case({"ids": IDS, "temperature": T}, model),
        "LanguageModel.extend": case({"ids": IDS, "steps": 1, "key": KEY, "temperature": T}, model),
        "LSTMLanguageModel": case(lambda: {"embedding": EMBEDDING, "cell": lstm().cell, "output": lstm().output}),
        "LSTMLanguageModel.random": case(
            {"key": KEY, "words": WORDS, "d": D, "hidden": NEURONS, "forget": T, "scale": 0.5}
        ),
        "LSTMLanguageModel.__call__": case(use, lstm),
        "LSTMLanguageModel.states": case(use, lstm),
        "LSTMLanguageModel.next_token": case({"ids": IDS, "temperature": T}, lstm),
        "LSTMLanguageModel.extend": case({"ids": IDS, "steps": 1, "key": KEY, "temperature": T}, lstm),
        "LanguageModelHead": case({"unembedding": EMBEDDING}),
        "LanguageModelHead.__call__": case({"x": X, "embedding": EMBEDDING}, transformer.LanguageModelHead),
        "cross_entropy": case({"logits": logits, "targets": targets, "present": PRESENT}),
        "language_loss": case(lambda: {"model": model(), "rows": jnp.asarray(TEXTS), "key": KEY}),
        "residual_stream": case(lambda: {"model": model(), "tokens": IDS, "present": PRESENT}),
        "logit_lens": case(lambda: {"model": model(), "ids": IDS, "present": PRESENT, "words": IDS}),
        "ResidualStream.shares": case({}, lambda: stages),
        "depth_profile": case(corpus),
        "mean_activations": case(lambda: corpus() | {"layer": 0}),
        "key_value_memory": case(lambda: corpus() | {"layer": 0, "top": 1, "words": 2}),
        "best_detector": case(
            {"activations": np.asarray([[1.0, 2.0], [3.0, 1.0]]), "labels": np.asarray([True, False])}
        ),
        "Detector.predict": case({"activations": np.ones((2, NEURONS))}, lambda: detector),
    }


@functools.cache
def _folder() -> str:
    """A model that was saved."""
    folder = tempfile.mkdtemp()
    transformer.save(free(), folder, note=1)
    return folder


@functools.cache
def _text() -> str:
    file = Path(tempfile.mkdtemp()) / "texts.txt"
    file.write_text("one\ntwo\n")
    return str(file)


def _train_language_model(out, paths, recipe=None, **options):
    """The door alone: what it lets in is read, and nothing is trained."""
    with mock.patch.object(_train, "_train_in", lambda asked: {"texts": len(read_texts(asked.paths))}):
        return transformer.train_language_model(out, paths, recipe, **options)


def _files() -> dict[str, Case]:
    return {
        "bundled_training": case(finite=False),
        "load_tokenizer": case({"folder": None}),
        "load": case(lambda: {"folder": _folder()}),
        "load_further": case(lambda: {"folder": _folder()}),
        "save": case(lambda: {"module": free(), "folder": "model", "note": {"step": 1}}),
        "LanguageRecipe": case(
            dict(
                words=16,
                d=D,
                heads=HEADS,
                hidden=NEURONS,
                layers=1,
                norm="pre",
                length=4,
                batch_size=1,
                steps=2,
                epoch_steps=1,
                learning_rate=0.1,
                embedding_rate=0.1,
                warm_up=1,
                weight_decay=0.1,
                held_out=0.5,
                positions="rotary",
            )
        ),
        "LanguageRecipe.model": case({"seed": 1}, recipe),
        "LanguageRecipe.steps_until": case({"epoch": 1}, recipe),
        "train_language_model": case(
            lambda: {"out": "folder", "paths": [_text()], "recipe": recipe(), "seed": 1, "snapshots": 2},
            lambda: SimpleNamespace(train_language_model=_train_language_model),
        ),
    }


CASES = {
    f"transformer.{name}": case
    for name, case in {**_parts(), **_positions(), **_flows(), **_language_models(), **_files()}.items()
}
