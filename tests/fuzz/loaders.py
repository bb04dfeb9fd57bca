"""Every loader of the package, with a folder that it reads and the content that it returns in plain values."""

import gzip
import importlib.util
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import optax
import pytest
import safetensors.numpy
from flax.serialization import msgpack_serialize
from flax.traverse_util import flatten_dict, unflatten_dict

from clusterjax import probe, sentiment, sweep, transformer
from clusterjax._training.corpus import read_texts, tokenizer_files, train_tokenizer
from clusterjax._training.loop import Batches, train
from clusterjax.experiments.shared.networks import _phonemes, _symbols
from clusterjax.phase._diagram import read_starts
from clusterjax.probe.networks.train import AlbertRecipe, Held, _network, _write
from clusterjax.sentiment import load_imdb, load_released
from clusterjax.transformer._store import save_with
from tests import network_cases, probe_cases, sweep_cases
from tests.sentiment.test_store import fitted_of


class Loader(NamedTuple):
    """A kind of files.

    `make` writes the files into a folder, and `read` returns their content in plain values. Files that are `ours` have
    checksums, so that damage may not change the values; a trial costs `few` times as much as most.
    """

    name: str
    make: Callable[[Path], Any]
    read: Callable[[Path], Any]
    ours: bool
    few: int = 1


def leaves(tree: Any) -> list[Any]:
    return [*map(np.asarray, jtu.tree_leaves(eqx.filter(tree, eqx.is_array))), str(jtu.tree_structure(tree))]


WORDS = "the plot is a bore but the actors are not bad at all and it ends well".split()
TEXTS = [" ".join(WORDS[k : k + 7]) for k in range(9)]


def read_sentiment(folder):
    found = sentiment.load(folder)
    return [
        *leaves(found.model), found.vocabulary.words, found.vocabulary.counts, found.vocabulary.options.record(),
        found.recipe.record(), found.history, found.best_epoch, sentiment.load_report(folder),
    ]  # fmt: skip


def make_released(folder):
    rng = np.random.default_rng(0)
    np.savez(
        folder / "model.npz", E=rng.normal(size=(9, 2)).astype("f4"), w=rng.normal(size=(1, 2)).astype("f4"),
        v=np.float32([0.5]), alpha=np.float32([2.0]), depth=np.int64(8),
    )  # fmt: skip


def language_model():
    return transformer.LanguageModel.random(jr.key(0), 11, 8, 2, 16, 2, positions=6)


def make_language_model(folder):
    tokenizer = train_tokenizer(TEXTS, 40).to_str()
    save_with(language_model(), folder, {"report": {"steps": 3, "loss": 0.5}}, tokenizer)


def read_language_model(folder):
    return [
        *leaves(transformer.load(folder)), transformer.load_further(folder),
        transformer.load_tokenizer(folder).to_str(),
    ]  # fmt: skip


RECIPE = AlbertRecipe(
    vocab_size=40, embedding_size=4, hidden_size=8, num_heads=2, intermediate_size=8, num_layers=2, length=8
)


def make_albert(folder):
    files = tokenizer_files(folder, train_tokenizer(TEXTS, 40), 8)
    _write(folder, RECIPE, Held.of(_network(RECIPE, 0)), files, [], {})


def make_hub(config):
    return lambda folder: probe_cases.write(folder, config, probe_cases.tensors_of(config))


def make_hub_flax(folder):
    tensors = probe_cases.tensors_of(probe_cases.SHARED)
    probe_cases.write_msgpack(folder, probe_cases.SHARED, probe_cases.flax_tree(tensors))


def shard(folder, write, names, file, config, separator="."):
    """Writes the weights in two shards with an index, and the configuration."""
    stem, dot, ending = file.partition(".")
    shards = [f"{stem}-{k}-of-2{dot}{ending}" for k in (1, 2)]
    half = len(names) // 2
    for shard, part in zip(shards, (names[:half], names[half:]), strict=True):
        write(folder / shard, part)
    weight_map = {name.replace(".", separator): shards[k >= half] for k, name in enumerate(names)}
    (folder / f"{file}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(config))


def in_safetensors(folder, config):
    tensors = probe_cases.tensors_of(config)
    save = lambda path, names: safetensors.numpy.save_file({name: tensors[name] for name in names}, path)
    shard(folder, save, sorted(tensors), "model.safetensors", config)


ONE_BLOCK = probe_cases.T5 | {"num_layers": 1}


def make_albert_in_shards(folder):
    in_safetensors(folder, probe_cases.SHARED | {"vocab_size": 40})
    train_tokenizer(TEXTS, 40).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(network_cases.SPECIAL))


def make_t5_in_shards(folder):
    import transformers
    from transformers import T5Tokenizer

    if int(transformers.__version__.split(".")[0]) < 5:
        pytest.skip("transformers before 5 makes a tokenizer of T5 of no list of words")
    in_safetensors(folder, ONE_BLOCK)
    pieces = [(word, -1.0) for word in ("<pad>", "</s>", "<unk>")] + [(f"\u2581{word}", -2.0) for word in set(WORDS)]
    T5Tokenizer(vocab=sorted(pieces, key=lambda piece: (-piece[1], piece)), extra_ids=2).save_pretrained(folder)


def make_flax_in_shards(folder):
    flat = flatten_dict(probe_cases.t5_tree(probe_cases.tensors_of(ONE_BLOCK)), sep=".")

    def save(path, names):
        path.write_bytes(msgpack_serialize(unflatten_dict({name: flat[name] for name in names}, sep=".")))

    shard(folder, save, sorted(flat), "flax_model.msgpack", ONE_BLOCK, "/")


def read_network_and_texts(folder):
    model = probe.load(folder)
    found = [sorted(probe.tensors(model.network).items()), tuple(model.network.sizes)]
    return found if model.tokenizer is None else [*found, *probe.encode(model, TEXTS[:2], length=6)]


def read_network(folder):
    model = probe.load(folder)
    return [sorted(probe.tensors(model.network).items()), tuple(model.network.sizes)]


class Line(eqx.Module):
    slope: jax.Array


DATA = np.random.default_rng(0).normal(size=(16, 4))
BATCHES, ADAM = Batches((jnp.asarray(DATA),), 8), optax.adam(0.1)


def squares(model, rows, key):
    return jnp.mean((rows[:, :3] @ model.slope - rows[:, 3]) ** 2), {}


def trained(folder):
    done = train(
        Line(jnp.zeros(3)), squares, BATCHES, optimiser=ADAM, epochs=2, key=jr.key(0), settings={"rate": 0.1},
        checkpoint=folder / "checkpoint.safetensors",
    )  # fmt: skip
    return [np.asarray(done.model.slope), done.history, done.best_epoch]


MEASURE = probe.Measure(lambda hidden, mask: {"mean": jnp.mean(hidden, axis=(1, 2))})
_MODEL: list[Any] = []


def surveyed(folder):
    if not _MODEL:
        _MODEL.append(probe.Model(_network(RECIPE, 0), None, "small"))
    texts = probe.Encoded(np.arange(24).reshape(3, 8).astype(np.int32), np.ones((3, 8), bool))
    found = probe.survey(_MODEL[0], texts, MEASURE, batch_size=2, keep=("mean",), store=folder / "run.safetensors")
    return [found.levels["mean"].mean, found.levels["mean"].spread, found.levels["mean"].values, found.texts]


_WHOLE: list[Any] = []


def read_sweep(folder):
    """All values of a sweep; a sweep that damage changed only to an unfinished one must be refused."""
    read = sweep.open(folder)
    _WHOLE[:] = _WHOLE or [read]
    there, before = read.status != 3, _WHOLE[0].status != 3
    same = read.where(there).equals(_WHOLE[0].where(there)) and read.coords.equals(_WHOLE[0].coords)
    if same and (before & ~there).any():
        raise ValueError(f"store must be whole, but in {folder} points are unfinished; run it again.")
    values = [(str(name), np.asarray(array.values).tolist()) for name, array in sorted(read.variables.items())]
    return [json.dumps(values, default=str), str(read.attrs)]


STARTS = np.random.default_rng(0).normal(size=(2, 3, 3)).astype("f4")
ROWS = [[text, k % 2, "train" if k % 3 else "test"] for k, text in enumerate(TEXTS)]
CSV = "text,label,split\n" + "".join(f'"{text}",{label},{split}\n' for text, label, split in ROWS)


def write(name: str, content: bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)


def make_parquet(folder):
    import pyarrow
    import pyarrow.parquet

    columns = dict(zip(("text", "label", "split"), map(list, zip(*ROWS, strict=True)), strict=True))
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "rows.parquet")


def read_reviews(name):
    def read(folder):
        found = load_imdb(folder / name)
        return [found.texts, found.labels.tolist(), None if found.split is None else found.split.tolist()]

    return read


def npz() -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, x0=STARTS)
    return stream.getvalue()


def npy() -> bytes:
    stream = io.BytesIO()
    np.save(stream, STARTS)
    return stream.getvalue()


PLAIN = "\n".join(TEXTS).encode()
LINES = "\n".join(json.dumps({"text": text, "n": k}) for k, text in enumerate(TEXTS)).encode()
PHONEMES = json.dumps({letter: k for k, letter in enumerate("abcdefgh")}).encode()
SPOKEN = "\n".join(json.dumps({"phonemes": text}) for text in TEXTS).encode()

LOADERS = (
    Loader("sentiment model", lambda folder: sentiment.save(fitted_of(), folder, {"a": 1}), read_sentiment, True, 2),
    Loader(
        "compact sentiment model", lambda folder: sentiment.save(fitted_of(), folder, {"a": 1}, compact=True),
        read_sentiment, True, 2,
    ),
    Loader("language model", make_language_model, read_language_model, True, 8),
    Loader("trained ALBERT", make_albert, read_network, True, 8),  # without its tokenizer, which is slow to read
    Loader("checkpoint", trained, trained, True, 2),
    Loader("survey", surveyed, surveyed, True, 8),
    Loader("unfinished sweep", sweep_cases.run_unfinished, read_sweep, True, 4),
    Loader("published sentiment model", make_released, lambda f: leaves(load_released(f / "model.npz")), False),
    Loader("ALBERT of the hub", make_hub(probe_cases.SHARED), read_network, False, 8),
    Loader("ALBERT in msgpack", make_hub_flax, read_network, False, 8),
    Loader("T5 of the hub", make_hub(probe_cases.T5), read_network, False, 8),
    Loader("ALBERT in shards", make_albert_in_shards, read_network_and_texts, False, 8),
    Loader("T5 in shards", make_t5_in_shards, read_network_and_texts, False, 8),
    Loader("T5 in shards of msgpack", make_flax_in_shards, read_network, False, 8),
    Loader("starts .npy", write("x.npy", npy()), lambda f: [read_starts(f / "x.npy")], False),
    Loader("starts .npz", write("x.npz", npz()), lambda f: [read_starts(f / "x.npz")], False),
    Loader(
        "starts .safetensors", write("x.safetensors", safetensors.numpy.save({"x0": STARTS})),
        lambda f: [read_starts(f / "x.safetensors")], False,
    ),
    Loader("texts .txt.gz", write("a.txt.gz", PLAIN), lambda f: read_texts([f / "a.txt.gz"]), False),
    Loader("texts .jsonl", write("a.jsonl", LINES), lambda f: read_texts([f / "a.jsonl"]), False),
    Loader("reviews .csv.gz", write("rows.csv.gz", CSV.encode()), read_reviews("rows.csv.gz"), False),
    Loader("phonemes", write("symbols.json", PHONEMES), lambda f: sorted(_symbols(f / "symbols.json").items()), False),
    Loader("spoken texts", write("spoken.jsonl", SPOKEN), lambda f: _phonemes(f / "spoken.jsonl"), False),
)  # fmt: skip
if importlib.util.find_spec("pyarrow"):
    LOADERS += (Loader("reviews .parquet", make_parquet, read_reviews("rows.parquet"), False),)
