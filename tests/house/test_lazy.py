"""Imports are lazy: a package is loaded when one of its names is used, and the help of the command loads no library."""

import ast
import importlib
import inspect
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import clusterjax
import clusterjax as cjx


ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("hardmax", "plot", "probe", "phase", "sentiment", "sweep", "transformer", "experiments")
# Libraries that take a noticeable time to import, and that jax and diffrax do not need.
HEAVY = (
    "flax", "transformers", "tokenizers", "huggingface_hub", "datasets", "pyarrow", "matplotlib", "PIL", "scipy",
    "optax", "xarray", "zarr", "pandas", "safetensors", "torch", "msgpack",
)  # fmt: skip
JAX = ("jax", "jaxlib", "numpy", "equinox", "diffrax", "optimistix", "lineax", "jaxtyping")


def loaded_by(code, among):
    """The modules among `among` that a fresh process has loaded after `code`; the output of `code` is ignored."""
    report = f"import sys; print('LOADED', *sorted({set(among)!r} & set(sys.modules)))"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, cwd=ROOT, env=env
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split("LOADED")[1].split())


def test_import_loads_nothing_heavy():
    """Neither clusterjax itself nor any of its packages loads a heavy library."""
    code = "import clusterjax" + "".join(f", clusterjax.{name}" for name in PACKAGES)
    assert loaded_by(code, (*HEAVY, *JAX)) == set()


def commands():
    from clusterjax._cli import _parser

    def below(parser, words):
        yield words
        for action in parser._actions:
            for word, inner in (getattr(action, "choices", None) or {}).items() if action.nargs == "A..." else ():
                yield from below(inner, (*words, word))

    return list(below(_parser(), ()))


HELP = """
import sys
from clusterjax_command import run
for words in {commands!r}:
    sys.argv = ["clusterjax", *words, "--help"]
    assert run() == 0, words
sys.argv = ["clusterjax", "--version"]
assert run() == 0
sys.argv = ["clusterjax", "reproduce", "--list"]
assert run() == 0
sys.argv = ["clusterjax", "train", "albert", "--nonsense"]
assert run() == 2
"""


def test_help_loads_neither_jax_nor_numpy():
    """This holds for every command with --help, the version, the list of figures, and a wrong call."""
    every = commands()
    assert len(every) >= 10 and ("train", "language-model") in every and () in every
    assert loaded_by(HELP.format(commands=every), (*HEAVY, *JAX)) == set()


def test_every_name_that_is_listed_is_there():
    """The names listed for type checkers are exactly the names that exist."""
    for module in (clusterjax, *(importlib.import_module(f"clusterjax.{name}") for name in PACKAGES)):
        source = ast.parse(Path(module.__file__).with_suffix(".pyi").read_text("utf-8"))
        listed = {name.name: node.module for node in source.body for name in node.names}
        assert len(listed) >= 4
        for name, place in listed.items():
            value = getattr(module, name)
            assert inspect.ismodule(value) == (place is None), name
            assert name in dir(module) and vars(module)[name] is value
        assert set(module.__all__) == {name for name, place in listed.items() if place is not None and name[0] != "_"}


@pytest.mark.parametrize("module", ("", *(f".{name}" for name in PACKAGES)))
def test_a_name_that_is_nowhere_is_an_attribute_error(module):
    home = importlib.import_module(f"clusterjax{module}")
    with pytest.raises(AttributeError, match=f"^No {home.__name__} attribute nonsense$"):
        home.nonsense  # noqa: B018
    assert not hasattr(home, "nonsense")
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        exec(f"from {home.__name__} import nonsense")


def test_every_way_to_a_name_gives_the_same_object_and_the_dynamics_need_no_more_than_jax_and_diffrax():
    code = """
import clusterjax as cjx
one = cjx.hardmax.HardmaxLayer
import clusterjax.hardmax
from clusterjax.hardmax import HardmaxLayer as two
from clusterjax import hardmax, Sphere
from clusterjax.hardmax._layer import HardmaxLayer as three
assert one is two is three is hardmax.HardmaxLayer and Sphere is cjx.Sphere
names = {}
exec("from clusterjax import *", names)
assert names["Sphere"] is Sphere and "plot" not in names and "lazy_loader" not in names
assert "simulate" in dir(cjx) and "probe" in dir(cjx) and cjx.__version__
cjx.simulate, cjx.iterate, cjx.Sphere, cjx.AttentionField, cjx.MultiHeadField, cjx.SoftmaxAttention, cjx.CausalMask
cjx.pairwise_cosine, cjx.num_clusters, cjx.hemisphere, cjx.uniform_energy, cjx.uniform_growth_rates, cjx.Trajectory
cjx.clustered_event, cjx.Retract
"""
    # The tables of the series need the special functions of scipy, and no other part of it.
    assert loaded_by(code, (*HEAVY, "scipy.stats", "scipy.optimize", "scipy.spatial")) == set()


def test_classes_are_pickled_under_their_names():
    for value in (cjx.Sphere, cjx.hardmax.HardmaxLayer, cjx.sentiment.Recipe, cjx.num_clusters):
        assert pickle.loads(pickle.dumps(value)) is value


def test_names_that_moved_are_found_where_they_were():
    from clusterjax import phase, sweep

    assert sweep.phase_diagram is phase.phase_diagram and "phase_diagram" not in dir(sweep)
    with pytest.raises(AttributeError, match="attribute phase_diagrams"):
        _ = sweep.phase_diagrams
