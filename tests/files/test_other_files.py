"""Files of others stay bit for bit, and a file that is not regular is neither replaced nor read."""

import functools
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax import plot, probe
from clusterjax._files.sealed import MODEL, SealedFile
from clusterjax._training.corpus import train_tokenizer
from clusterjax.experiments import Files, Settings, reproduce
from clusterjax.phase._diagram import read_starts
from clusterjax.sentiment import Recipe, load_imdb, load_released, train_sentiment
from tests.experiments.own import experiment
from tests.helpers import fresh_environment
from tests.sweep_cases import content, run as run_sweep, run_unfinished


QUICKLY = Files(("png",), film=False)
SILENT = {"say": lambda line: None}
TINY = Recipe(dim=2, epochs=1, batch_size=64, length=16, depth=2)


@pytest.fixture(autouse=True)
def _on_posix():
    if not hasattr(os, "mkfifo"):
        pytest.skip("there are no pipes with names here")


def fill(folder: Path) -> dict[str, bytes]:
    """Puts files of others into a folder, some with names like drafts; returns the content of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (
        "thesis.json.draft", "x.safetensors.partial", "page.html.partial", "run.safetensors.partial", ".probe.7",
        ".writable", ".run.png.999999999.draft", ".run.safetensors.lock", "notes.txt",
    ):  # fmt: skip
        (folder / name).write_text(f"mine: {name}")
    for name in (".photos.2020.draft", ".photos.2019.old", ".unfinished/figure1"):
        (folder / name).mkdir(parents=True)
        (folder / name / "a.jpg").write_text(f"mine: {name}")
    return content(folder)


def stays(folder: Path, before: dict[str, bytes]) -> bool:
    after = content(folder)
    return {name: after.get(name) for name in before} == before


@functools.cache
def a_run():
    field = cjx.AttentionField(cjx.SoftmaxAttention(1.0))
    return cjx.simulate(field, cjx.Sphere().sample(jr.key(0), 4, 3), jnp.linspace(0.0, 1.0, 3))


@pytest.mark.exhaustive
def test_training_leaves_the_files_of_others(tmp_path):
    before = fill(tmp_path)
    train_sentiment(tmp_path, None, TINY, **SILENT)
    train_sentiment(tmp_path, None, TINY, resume=False, **SILENT)
    assert stays(tmp_path, before) and (tmp_path / MODEL).is_file()


def test_saving_and_reproducing_leave_the_files_of_others(tmp_path):
    before = fill(tmp_path)
    a_run().save(tmp_path / "run.safetensors")
    plot.player(a_run(), tmp_path / "page.html")
    plot.save(plot.circle(np.eye(2)), tmp_path / "run.png")
    reproduce([experiment()], tmp_path, Settings(starts=2), QUICKLY, **SILENT)
    assert stays(tmp_path, before) and (tmp_path / "coins" / "results.json").is_file()


def test_files_that_training_would_replace_are_refused(tmp_path):
    """A checkpoint and a model of another program are refused, even if the run is to begin anew."""
    for name, fresh in (("checkpoint.safetensors", False), ("model.safetensors", False)):
        folder = tmp_path / name
        before = fill(folder) | {name: b"of another program"}
        (folder / name).write_bytes(before[name])
        with pytest.raises(ValueError, match=f"^out must hold no file of another program .*{name}.*; move it away, or"):
            train_sentiment(folder, None, TINY, resume=fresh, **SILENT)
        assert content(folder) == before


def test_a_tokenizer_that_was_put_into_a_folder_stays_as_it_is(tmp_path):
    from clusterjax._training.corpus import write_tokenizer

    tokenizer = train_tokenizer(["a b c d e f"], 12)
    put = tokenizer.to_str(pretty=True).encode()
    (tmp_path / "tokenizer.json").write_bytes(put)
    write_tokenizer(tmp_path, tokenizer, 8)
    assert (tmp_path / "tokenizer.json").read_bytes() == put and (tmp_path / "tokenizer_config.json").is_file()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ValueError, match="^out must hold no file of another program .*tokenizer_config"):
        write_tokenizer(tmp_path / "other", tokenizer, 8)
    assert os.listdir(tmp_path / "other") == ["tokenizer_config.json"]


def test_a_sweep_leaves_the_files_of_others(tmp_path):
    path = tmp_path / "store"
    run_unfinished(path)
    before = fill(path) | fill(path / "mine") | fill(path / "y")
    for name in ("c.mine", "other/c.0.partial"):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(b"mine")
    before = {name: data for name, data in content(path).items() if b"mine" in data}
    run_sweep(path)
    run_sweep(path, resume=False)
    assert len(before) > 4 and stays(path, before)


def test_a_figure_that_is_drawn_again_keeps_the_files_of_others(tmp_path):
    draw = lambda seed: reproduce([experiment()], tmp_path, Settings(starts=2, seed=seed), QUICKLY, **SILENT)
    draw(0)
    before = fill(tmp_path / "coins")
    before = {name: data for name, data in before.items() if data.startswith(b"mine")}
    (tmp_path / "coins" / "link").symlink_to("notes.txt")
    draw(1)
    assert stays(tmp_path / "coins", before) and os.readlink(tmp_path / "coins" / "link") == "notes.txt"
    assert '"seed": 1' in (tmp_path / "coins" / "results.json").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["coins", "index.html"]


@pytest.mark.parametrize("what", ("coins/thesis.txt", "coins", "index.html", "link"))
def test_a_gallery_refuses_what_it_would_replace(tmp_path, what):
    """A folder without a record, files and a page of another program, and a link to a folder elsewhere are refused."""
    out = tmp_path / "out"
    (out / what).parent.mkdir(parents=True)
    if what == "link":
        shutil.copytree(out, tmp_path / "elsewhere")
        (out / "coins").symlink_to(tmp_path / "elsewhere")
    else:
        (out / what).write_text("mine")
    before = content(out)
    with pytest.raises(
        ValueError, match=r"^out must (have|hold) no .* of (other programs|another program) .*; move it away"
    ):
        reproduce([experiment()], out, Settings(starts=2), QUICKLY, **SILENT)
    assert content(out) == before


SAVERS = {
    "a run": lambda path: a_run().save(path),
    "a model": lambda path: SealedFile("path", "test", 1, "mend it").write(path, {"x": np.ones(9)}, None),
    "a page": lambda path: plot.player(a_run(), path),
    "a picture": lambda path: plot.save(plot.circle(np.eye(2)), path.parent / f"{path.name}.png"),
    "a film": lambda path: plot.animate(a_run(), path, frames=2),
}


def a_device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only the superuser makes devices")


@pytest.mark.parametrize("saver", SAVERS)
@pytest.mark.parametrize("kind", ("a named pipe", "a device", "a folder"))
def test_what_is_no_regular_file_is_not_replaced(tmp_path, saver, kind):
    path = tmp_path / ("run.html" if saver == "a page" else "run.gif")
    place = path.parent / f"{path.name}.png" if saver == "a picture" else path
    {"a named pipe": os.mkfifo, "a device": a_device, "a folder": os.mkdir}[kind](place)
    before = os.lstat(place)
    with pytest.raises(ValueError, match=f"^path must .*{place.name}.*it is {kind}.*; name another\\.$"):
        SAVERS[saver](path)
    assert os.path.samestat(before, os.lstat(place)) and os.listdir(tmp_path) == [place.name]


@pytest.mark.parametrize("saver", SAVERS)
def test_a_link_is_followed_and_stays(tmp_path, saver):
    asked = "run.html" if saver == "a page" else "run.gif"
    name = f"{asked}.png" if saver == "a picture" else asked
    (tmp_path / "disk").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / name).symlink_to(Path("..") / "disk" / "kept")
    for _ in range(2):  # the link leads to nothing yet, then to the file
        SAVERS[saver](tmp_path / "here" / asked)
        assert (tmp_path / "here" / name).is_symlink() and os.listdir(tmp_path / "disk") == ["kept"]
    assert (tmp_path / "disk" / "kept").stat().st_size > 100 and os.listdir(tmp_path / "here") == [name]


LOADERS = {
    "run.safetensors": cjx.Trajectory.load,
    "weights.npz": load_released,
    "starts.npy": read_starts,
    "starts.safetensors": read_starts,
    "texts.jsonl": lambda path: probe.read_texts([path]),
    "texts.txt.gz": lambda path: probe.read_texts([path]),
    "texts.parquet": lambda path: probe.read_texts([path]),
    "reviews.csv": load_imdb,
    "reviews.csv.gz": load_imdb,
    "network.gguf": probe.load,
}


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("kind", ("pipe", "zero", "folder", "sparse"))
def test_what_is_no_file_of_this_kind_is_refused_at_once(tmp_path, name, kind):
    """A named pipe without a writer, an endless device, a folder, and a sparse file of 2^43 bytes are refused."""
    path = tmp_path / name
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    else:
        with open(path, "wb") as file:
            try:
                file.truncate(2**43)
            except OSError:
                pytest.skip("this disk has no sparse files of this size")
    with pytest.raises(ValueError, match=r"must .*; .*\.$"):
        LOADERS[name](path)


def albert_of(folder: Path) -> Path:
    from tests.files.test_model_folder import save_albert

    save_albert(folder, 0)
    write = train_tokenizer(["a b c d e f"], 12).to_str()
    (folder / "tokenizer.json").write_text(write)
    return folder


@pytest.mark.parametrize("name", ("config.json", "model.safetensors", "tokenizer.json", "special_tokens_map.json"))
@pytest.mark.parametrize("kind", ("pipe", "zero", "sparse"))
def test_a_network_whose_files_are_no_files_is_refused_at_once(tmp_path, name, kind):
    folder = albert_of(tmp_path / "albert")
    (folder / name).unlink(missing_ok=True)
    if kind == "sparse":
        with open(folder / name, "wb") as file:
            file.truncate(2**40)
    else:
        os.mkfifo(folder / name) if kind == "pipe" else (folder / name).symlink_to("/dev/zero")
    if name == "tokenizer.json" and kind != "sparse":  # no file of this name: a network without a tokenizer
        assert probe.load(folder).tokenizer is None
        return
    with pytest.raises(ValueError, match=r"^(path|config|weights|model) must .*; .*\.$"):
        probe.load(folder).tokenizer  # noqa: B018


IMPORTS = """
import importlib, os, pkgutil, sys
import clusterjax
import jax
from jax._src import xla_bridge

for module in pkgutil.walk_packages(clusterjax.__path__, "clusterjax."):
    if not module.name.endswith("__main__") and sys.argv[1] not in module.name:
        importlib.import_module(module.name)
assert not xla_bridge._backends, xla_bridge._backends
assert sum(name.startswith("clusterjax") for name in sys.modules) > 150
child = os.fork()
if child == 0:
    print(clusterjax.experiments.find_experiments(["figure3"])[0].name, jax.numpy.arange(4).sum(), flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print("done")
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("without", (".figures.", "__main__"))
def test_nothing_at_import_starts_a_device(without):
    """After the import of every module a forked process computes; it would lack the threads of a device."""
    call = [sys.executable, "-c", IMPORTS, without]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120, env=fresh_environment())
    assert done.returncode == 0 and done.stdout.split() == ["figure3", "6", "done"], done.stderr[-2000:]


@pytest.mark.exhaustive
def test_a_card_that_is_not_there_is_said_in_one_line(tmp_path):
    call = [sys.executable, "-m", "clusterjax", "predict", "a good film"]
    for name in ("nonsense", "cuda"):
        env = fresh_environment() | {"JAX_PLATFORMS": name}
        done = subprocess.run(call, capture_output=True, text=True, timeout=120, env=env, cwd=tmp_path)
        if done.returncode == 0:  # there is a card
            continue
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert done.stderr.startswith("clusterjax predict: JAX_PLATFORMS must name devices that this machine has, but")
        assert "unset it, or set JAX_PLATFORMS=cpu." in done.stderr and name in done.stderr
