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
from tests.doors.lower import ARGS, OPTIONAL, PARAMETER, SCALAR, TIME, TOKENS, T
from tests.doors.rules import (
    ANY_TEXT,
    ARRAY,
    BATCH,
    CALLABLE,
    CLASS_OF_FLOATS,
    COUNT,
    LIST,
    LONG,
    NONE,
    NUMBER,
    PATH,
    POSITIVE,
    SIZE,
    TRACED,
    rule,
)


N, D, HEADS, WORDS, LONGEST, NEURONS = 2, 4, 2, 5, 6, 3
K = D // HEADS


def _normal(seed: int, *shape: int):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


KEY, X = jr.key(0), _normal(0, N, D)
GAIN, PRESENT = jnp.ones(D), jnp.ones(N, bool)
INTO, OUT = _normal(1, HEADS, D, K), _normal(2, HEADS, K, D)
W_IN, W_OUT, EMBEDDING = _normal(3, D, NEURONS), _normal(4, NEURONS, D), _normal(5, WORDS, D)
IDS, TEXTS = jnp.asarray([1, 2]), np.asarray([[1, 2], [3, 0]])
DTYPE = NONE | CLASS_OF_FLOATS
SCALE = COUNT | POSITIVE | TRACED | NONE
TEMPERATURE = POSITIVE | TRACED
# A text may be of any length, and numbers of one kind or another be its words; what is no integer is refused.
PLACES = NONE | ARRAY
POINTS = ARRAY | BATCH
JSON = (
    rule("minus one, zero, one and a half, true, nan, inf, huge number, ragged", "a value of JSON")
    | NONE | ANY_TEXT | LIST | LONG | rule("empty list, empty dict, list of text, list of none", "a value of JSON")
)  # fmt: skip

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
head = functools.cache(lambda: transformer.LanguageModelHead(EMBEDDING))
average = functools.cache(lambda: cjx.SoftmaxAttention(1.0))
flow = functools.cache(lambda: transformer.NormalisationField(average()))
field = functools.cache(lambda: cjx.AttentionField(average(), space=cjx.Euclidean()))
normed = functools.cache(lambda: transformer.NormedField(field(), norm()))
recipe = functools.cache(lambda: transformer.LanguageRecipe(words=16, d=D, heads=HEADS, hidden=NEURONS, layers=1))


def _parts() -> dict[str, Case]:
    drawn = {"key": TRACED, "scale": SCALE, "dtype": DTYPE}
    use = {"x": X, "present": PRESENT}
    read = {"x": TOKENS, "present": PLACES}
    found = {
        "MultiHeadAttention": case(
            lambda: {"query": INTO, "key": INTO, "value": INTO, "output": OUT, "beta": T, "relative": relative()},
            beta=NONE | SCALAR | ARRAY, relative=NONE,
        ),
        "MultiHeadAttention.random": case(
            lambda: {"key": KEY, "d": D, "heads": HEADS, "scale": 0.5, "relative": relative()}, dear=True, **drawn,
            relative=NONE,
        ),
        "FeedForward": case(
            {"w_in": W_IN, "w_out": W_OUT, "bias_in": jnp.ones(NEURONS), "bias_out": jnp.ones(D)},
            bias_in=OPTIONAL, bias_out=OPTIONAL, activation=CALLABLE,
        ),
        "FeedForward.random": case(
            {"key": KEY, "d": D, "hidden": NEURONS, "scale": 0.5}, dear=True, **drawn, activation=CALLABLE
        ),
        "LayerNorm": case(
            {"gain": GAIN, "bias": GAIN, "epsilon": 1e-5}, gain=ARRAY, bias=OPTIONAL, epsilon=COUNT | POSITIVE
        ),
        "LayerNorm.identity": case({"d": D, "epsilon": 1e-5}, epsilon=COUNT | POSITIVE, dtype=DTYPE),
        "LayerNorm.__call__": case({"x": X}, norm, dear=True, x=POINTS),
        "Block": case(
            lambda: {"attention": attention(), "feed_forward": forward(), "norms": (norm(), norm())},
        ),
        "Block.random": case(
            lambda: {
                "key": KEY, "d": D, "heads": HEADS, "hidden": NEURONS, "relative": relative(), "epsilon": 1e-5,
                "scale": 0.5,
            },
            dear=True, **drawn, activation=CALLABLE, relative=NONE, epsilon=COUNT | POSITIVE,
        ),
        "Block.__call__": case(use, block, dear=True, **read),
        "Transformer": case(lambda: {"blocks": block(), "depth": 1, "norm": norm()}, norm=NONE),
        "Transformer.of": case(lambda: {"blocks": [block(), block()], "norm": norm()}, norm=NONE),
        "Transformer.random": case(
            {"key": KEY, "d": D, "heads": HEADS, "hidden": NEURONS, "layers": 1}, dear=True, key=TRACED, dtype=DTYPE
        ),
        "Transformer.block": case({"layer": 0}, stack, layer=COUNT | rule("minus one", "the last layer")),
        "Transformer.__call__": case(use, stack, dear=True, **read),
        "Transformer.levels": case(use, stack, dear=True, **read),
    }  # fmt: skip
    for name in ("weights", "heads", "__call__"):
        found[f"MultiHeadAttention.{name}"] = case(use, attention, dear=True, **read)
    for name in ("scores", "activations", "__call__"):
        found[f"FeedForward.{name}"] = case({"x": X}, forward, dear=True, x=POINTS)
    return found


def _positions() -> dict[str, Case]:
    sinusoidal = lambda: transformer.SinusoidalPositions(D)
    drawn = {"key": TRACED, "scale": SCALE, "dtype": DTYPE}
    return {
        "LearnedPositions": case({"table": EMBEDDING}, table=ARRAY | SIZE),
        "LearnedPositions.random": case({"key": KEY, "positions": LONGEST, "d": D, "scale": 0.5}, dear=True, **drawn),
        "LearnedPositions.__call__": case({"n": N, "dtype": jnp.float32}, table, dtype=DTYPE),
        "RelativePositions": case({"keys": _normal(7, 3, K), "values": _normal(8, 3, K)}, values=OPTIONAL),
        "RelativePositions.random": case(
            {"key": KEY, "farthest": 1, "k": K, "scale": 0.5}, dear=True, **drawn, farthest=COUNT
        ),
        "RelativePositions.rows": case({"n": N}, relative),
        "RotaryPositions": case({"k": K, "base": 100.0}, k=rule("one", "two entries are turned as a pair")),
        "RotaryPositions.__call__": case({"x": _normal(9, N, K)}, lambda: transformer.RotaryPositions(K), x=POINTS),
        "SinusoidalPositions": case({"d": D, "base": 100.0}),
        "SinusoidalPositions.__call__": case({"n": N, "dtype": jnp.float32}, sinusoidal, dtype=DTYPE),
        "sinusoidal_positions": case({"n": N, "d": D, "base": 100.0}, dtype=DTYPE),
    }


def _flows() -> dict[str, Case]:
    call = lambda made: case({"t": T, "x": X}, made, dear=True, t=TIME, x=TOKENS, args=ARGS)
    found = {name: case() for name in ("PostLN", "PreLN", "PeriLN", "RootScaled", "PostNorm", "PreNorm", "NoNorm")}
    return found | {
        "NormalisedGPT": case({"alpha": T}, alpha=SCALAR),
        "NormalisationField": case(lambda: {"attention": average(), "value": jnp.eye(D)}, value=PARAMETER),
        "NormalisationField.__call__": call(flow),
        "NormedField": case(lambda: {"field": field(), "norm": norm()}),
        "NormedField.__call__": call(normed),
        "Standardised": case(),
        "Standardised.sample": case(
            {"key": KEY, "n": N, "d": D}, transformer.Standardised, dear=True, key=TRACED, dtype=DTYPE
        ),
        "as_field": case(lambda: {"block": free(), "space": cjx.Euclidean()}, dear=True, space=NONE),
        "as_layer": case(lambda: {"field": field(), "step": T}, step=SCALAR),
        "query_key_forms": case(lambda: {"attention": attention()}),
        "value_matrices": case(lambda: {"attention": attention()}),
    }


def _language_models() -> dict[str, Case]:
    read = {"ids": ARRAY, "present": PLACES}
    use = {"ids": IDS, "present": PRESENT}
    texts = {"texts": ARRAY, "present": PLACES}
    corpus = lambda: {"model": model(), "texts": TEXTS, "present": np.ones((2, 2), bool), "batch_size": 2}
    logits, targets = _normal(9, N, WORDS), jnp.asarray([0, 4])
    stages = transformer.ResidualStream(
        jnp.ones((3, N, D)), X, X[None, None], X[None], X, *(jnp.ones((1, 1, N, N)) for _ in range(3))
    )
    detector = transformer.Detector(np.ones(NEURONS), 1, 0.5, 1, 1.0)
    return {
        "LanguageModel": case(
            lambda: {"embedding": EMBEDDING, "stack": stack(), "positions": table()}, positions=NONE, stream_dtype=DTYPE
        ),
        "LanguageModel.random": case(
            {
                "key": KEY, "words": WORDS, "d": D, "heads": HEADS, "hidden": NEURONS, "layers": 1,
                "positions": LONGEST, "scale": 0.5,
            },
            dear=True, key=TRACED, positions=NONE, activation=CALLABLE, scale=COUNT | POSITIVE | TRACED, dtype=DTYPE,
            stream_dtype=DTYPE,
        ),
        "LanguageModel.__call__": case(use, model, dear=True, **read),
        "LanguageModel.logit_lens": case(use, model, dear=True, **read),
        "LanguageModel.embed": case({"ids": IDS}, model, dear=True),
        "LanguageModel.next_token": case(
            {"ids": IDS, "temperature": T}, model, dear=True, temperature=TEMPERATURE
        ),
        "LanguageModel.extend": case(
            {"ids": IDS, "steps": 1, "key": KEY, "temperature": T}, model, dear=True, steps=COUNT, key=NONE | TRACED,
            temperature=TEMPERATURE,
        ),
        "LSTMLanguageModel": case(
            lambda: {"embedding": EMBEDDING, "cell": lstm().cell, "output": lstm().output}, embedding=ARRAY | SIZE
        ),
        "LSTMLanguageModel.random": case(
            {"key": KEY, "words": WORDS, "d": D, "hidden": NEURONS, "forget": T, "scale": 0.5}, dear=True, key=TRACED,
            forget=NUMBER | TRACED, scale=COUNT | POSITIVE | TRACED, dtype=DTYPE,
        ),
        "LSTMLanguageModel.__call__": case(use, lstm, dear=True, **read),
        "LSTMLanguageModel.states": case(use, lstm, dear=True, **read),
        "LSTMLanguageModel.next_token": case(
            {"ids": IDS, "temperature": T}, lstm, dear=True, temperature=TEMPERATURE
        ),
        "LSTMLanguageModel.extend": case(
            {"ids": IDS, "steps": 1, "key": KEY, "temperature": T}, lstm, dear=True, steps=COUNT, key=NONE | TRACED,
            temperature=TEMPERATURE,
        ),
        "LanguageModelHead": case({"unembedding": EMBEDDING}, unembedding=NONE | ARRAY | SIZE),
        "LanguageModelHead.__call__": case(
            {"x": X, "embedding": EMBEDDING}, transformer.LanguageModelHead, dear=True, x=POINTS
        ),
        "cross_entropy": case(
            {"logits": logits, "targets": targets, "present": PRESENT}, dear=True, present=PLACES
        ),
        "language_loss": case(
            lambda: {"model": model(), "rows": jnp.asarray(TEXTS), "key": KEY}, dear=True, key=NONE | TRACED
        ),
        "residual_stream": case(
            lambda: {"model": model(), "tokens": IDS, "present": PRESENT}, dear=True, present=PLACES
        ),
        "logit_lens": case(
            lambda: {"model": model(), "ids": IDS, "present": PRESENT, "words": IDS}, dear=True, present=PLACES,
            words=NONE | SIZE | TRACED,
        ),
        "ResidualStream.shares": case({}, lambda: stages, dear=True),
        "depth_profile": case(corpus, dear=True, **texts),
        "mean_activations": case(lambda: corpus() | {"layer": 0}, dear=True, **texts, layer=_LAYER),
        "key_value_memory": case(
            lambda: corpus() | {"layer": 0, "top": 1, "words": 2}, dear=True, **texts, layer=_LAYER
        ),
        "best_detector": case(
            {"activations": np.asarray([[1.0, 2.0], [3.0, 1.0]]), "labels": np.asarray([True, False])}
        ),
        "Detector.predict": case({"activations": np.ones((2, NEURONS))}, lambda: detector, activations=ARRAY | SIZE),
    }  # fmt: skip


_LAYER = COUNT | rule("minus one", "the last layer")


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
        "load_tokenizer": case({"folder": None}, dear=True),
        "load": case(lambda: {"folder": _folder()}, dear=True, folder=NONE),
        "load_further": case(lambda: {"folder": _folder()}),
        "save": case(lambda: {"module": free(), "folder": "model", "note": {"step": 1}}, folder=PATH, note=JSON),
        "LanguageRecipe": case(
            {
                "words": 16, "d": D, "heads": HEADS, "hidden": NEURONS, "layers": 1, "norm": "pre", "length": 4,
                "batch_size": 1, "steps": 2, "epoch_steps": 1, "learning_rate": 0.1, "embedding_rate": 0.1,
                "warm_up": 1, "weight_decay": 0.1, "held_out": 0.5, "positions": "rotary",
            },
            warm_up=COUNT, weight_decay=COUNT | POSITIVE, held_out=rule("", ""),
        ),
        "LanguageRecipe.model": case({"seed": 1}, recipe, dear=True, seed=COUNT),
        "LanguageRecipe.steps_until": case({"epoch": 1}, recipe, epoch=COUNT),
        "train_language_model": case(
            lambda: {"out": "folder", "paths": [_text()], "recipe": recipe(), "seed": 1, "snapshots": 2},
            lambda: SimpleNamespace(train_language_model=_train_language_model),
            out=PATH, paths=LIST, recipe=NONE, seed=COUNT, snapshots=COUNT, say=CALLABLE,
        ),
    }  # fmt: skip


CASES = {
    f"transformer.{name}": case
    for name, case in {**_parts(), **_positions(), **_flows(), **_language_models(), **_files()}.items()
}
