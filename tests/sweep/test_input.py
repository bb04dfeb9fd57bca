"""Bad arguments of a sweep are refused at once: each error names the argument, its value, and a remedy."""

import importlib.util
import itertools
import math
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax import sweep
from clusterjax.sweep._labels import label_outputs, parse_axes
from tests.helpers import as_a_user


def double(beta):
    return 2 * beta


@pytest.mark.parametrize(
    ("axes", "words"),
    (
        ({"beta": np.zeros((0, 3))}, r"beta must have at least one point, but its shape is \(0, 3\)"),
        ({"beta": 3.0}, r"beta must be a sequence of values, but it is 3.0; pass \[3.0\]"),
        ({"beta": [1.0, math.nan]}, "beta must not hold nan"),
        ({"beta": jr.split(jr.key(0), 3)}, "beta must not be of keys, but it is .*; pass integers"),
        ([("beta", [1.0]), ("beta", [2.0])], "names of their own, but 'beta' is there twice; rename one"),
        ([("beta", [np.eye(2)]), ("beta_values", [2.0])], r"must not be called \['beta_values'\]"),
        ({"beta": [1, 10**30]}, "beta must fit 64 bits"),
        ({"key": [1.0]}, "must not be called 'key', which a sweep keeps for itself"),
        ({"two words": [1.0]}, "names that an argument can have, but one is 'two words'"),
        (
            {f"a{k}": np.arange(2**8) for k in range(4)},
            "axes must have at most 1e.08 points, but they have 4294967296; split",
        ),
    ),
    ids=lambda value: "",
)
def test_axes_that_cannot_be(axes, words):
    with as_a_user(), pytest.raises(ValueError, match=words):
        sweep.run(double, axes, batch_size=1)


@pytest.mark.parametrize(
    ("function", "options", "words"),
    (
        (lambda: 0.0, {}, r"function must take each axis by name, but it lacks \['beta'\]"),
        (lambda beta, n, d=2: beta, {}, r"all that function needs, but \['n'\] are missing"),
        (lambda beta: {"beta": beta}, {}, "must not return 'beta', which is an axis; rename the output"),
        (lambda beta: {"y": "word"}, {}, "or a dictionary of arrays, but 'y' is a str"),
        (lambda beta: {}, {}, "function must return at least one array, but it returned an empty dict"),
        (lambda beta: jnp.zeros((10**6, 10**6)), {}, "function must return no more than memory holds, .* 14901.2 GiB"),
        (lambda beta, key: key, {}, "return jax.random.key_data of a key"),
        (double, {"cost": lambda beta: math.inf * beta}, "cost must be finite, but it is inf at point 0"),
        (double, {"variables": {"x": sweep.Variable()}}, r"variables must name outputs \(\['result'\]\).* \['x'\]"),
        (
            double,
            {"variables": {"result": ("t",)}},
            r"variables\['result'\] must be a sweep.Variable, but it is a tuple of 1",
        ),
        (double, {"variables": {"result": sweep.Variable(("t",))}}, r"'result' of shape \(\) as many dims"),
        (lambda beta: jnp.ones(2), {"variables": {"result": sweep.Variable(("beta",))}}, "dims of their own, .*'beta'"),
        (
            lambda beta: jnp.ones(2),
            {"variables": {"result": sweep.Variable(("t",), {"t": [1.0]})}},
            r"coords along its dims {'t': 2}, but those of 't' have shape \(1,\)",
        ),
    ),
    ids=lambda value: "",
)
def test_what_else_cannot_be(function, options, words, tmp_path):
    store = tmp_path / "store"
    with as_a_user(), pytest.raises(ValueError, match=words):
        sweep.run(function, {"beta": [1.0, 2.0]}, **{"batch_size": 1, "store": store} | options)
    assert not store.exists()


@pytest.mark.parametrize("make", (lambda: itertools.count(), lambda: (float(k) for k in range(3))))
def test_an_axis_without_a_length_is_refused(make):
    with (
        as_a_user(),
        pytest.raises(ValueError, match=r"^values must be a sequence of values, .*; pass a list"),
    ):
        sweep.Axis(make())
    with (
        as_a_user(),
        pytest.raises(ValueError, match=r"^axes must map names to values, .* a (count|generator); "),
    ):
        sweep.run(double, make(), batch_size=3, progress=False)


def test_all_points_must_return_the_same(tmp_path):
    """A shape that depends on a static value has no place in one array; an error at every point is raised."""
    axes = {"n": sweep.Axis([2, 3], static=True)}
    words = r"same names, shapes and dtypes .*\(\(2,\).* at {'n': 2} and .*\(3,\).* at {'n': 3}; pad them"
    with pytest.raises(ValueError, match=words):
        sweep.run(lambda n: jnp.ones(n), axes, batch_size=1, store=tmp_path / "store")

    def broken(n):
        raise ZeroDivisionError(f"no {n}")

    with pytest.raises(ZeroDivisionError, match="no 2"):
        sweep.run(broken, axes, batch_size=1, store=tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_two_outputs_may_share_a_dim_of_one_size():
    variables = {name: sweep.Variable(("t",)) for name in ("x", "y")}
    outputs, _ = label_outputs({"x": ((3,), "float32"), "y": ((3,), "bfloat16")}, [], variables)
    assert [(out.dims, out.dtype) for out in outputs] == [(("t",), "float32"), (("t",), "float32")]
    with pytest.raises(ValueError, match="'y' dims of their own, but 't' of size 2 is .* a dim of another size"):
        label_outputs({"x": ((3,), "float32"), "y": ((2,), "float32")}, [], variables)


def test_what_axes_become():
    def mask_size(x):
        return x

    values = {
        "integers": range(3),
        "truths": [True, False],
        "single": np.asarray([1.5], np.float32),
        "bare": jnp.asarray([1.5], jnp.bfloat16),
        "sizes": sweep.Axis(np.asarray([16, 32]), static=True),
        "objects": [cjx.FullMask(), cjx.WindowMask(2), mask_size, "a\nword", None],
    }
    parsed = {axis.name: axis for axis in parse_axes(values)}
    assert [axis.values.dtype.name for axis in list(parsed.values())[:4]] == ["int64", "bool", "float32", "bfloat16"]
    assert [axis.static for axis in parsed.values()] == [False] * 4 + [True] * 2
    assert parsed["sizes"].values == [16, 32] and type(parsed["sizes"].values[0]) is int
    labels = {name: axis.coords()[0].values for name, axis in parsed.items()}
    assert labels["bare"].dtype == np.float32 and labels["sizes"].tolist() == [16, 32]
    assert labels["objects"].tolist() == ["FullMask()", "WindowMask(width=2)", "mask_size", "a word", "None"]


def test_a_named_tuple_is_a_dictionary():
    class Pair(NamedTuple):
        mean: jax.Array
        many: float

    found = sweep.run(lambda beta: Pair(beta, 3.0), {"beta": [1.0]}, batch_size=9, progress=False)
    assert found["mean"].item() == 1 and found["many"].item() == 3


@pytest.mark.parametrize("missing", ("xarray", "zarr"))
def test_without_its_libraries_it_says_how_to_install_them(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    spec = importlib.util.spec_from_file_location("clusterjax.sweep_again", sweep.__file__)
    assert spec is not None and spec.loader is not None
    with pytest.raises(ImportError, match=r"needs xarray and zarr; .*: pip install 'clusterjax\[sweep\]'"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
