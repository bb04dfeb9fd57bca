"""The file of a run: arrays in safetensors, with their structure, the settings of the run and a checksum in the header.

No part of a file is executed: trees are written as JSON, in nodes of the forms

    null, {"int": 3}, {"float": 0.5}, {"bool": true}, {"text": "Dense"}    a constant
    {"array": "xs", "dtype": "float64"}                                     an array of the file, by its name
    {"list": [...]}, {"tuple": [...]}, {"dict": [["key", node], ...]}       trees of nodes

Named tuples and modules are written as dictionaries of their fields, so that a file names no class to build. Complex
numbers of 128 bits, which safetensors does not have, are stored as pairs along a last axis.
"""

from pathlib import Path
from typing import Any

import diffrax as dfx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._base.checks import check_concrete, refusal
from .._base.numerics import warn_of_rounding
from .._base.summary import Setup, StaticString, fields_of
from .._files.arrays import DTYPES
from .._files.sealed import SealedFile
from .._model.space import Euclidean, Sphere
from .interpolants import AbstractInterpolant, Stored
from .verdicts import codes as known_codes


FILE = SealedFile("path", "clusterjax trajectory", 1, "name another file, or simulate again")
_NUMBERS = {"int": int, "float": float, "bool": bool, "text": str}
# Small arrays of the settings are also written into the header, for readers that use other programs.
_SHOWN = 16


class Writer:
    """Collects the arrays of the nodes that it makes."""

    def __init__(self):
        self.arrays: dict[str, np.ndarray] = {}

    def node(self, value: Any, name: str) -> Any:
        """The node of a tree, whose arrays are named after `name`."""
        if value is None:
            return None
        # Strings of the statistics are instances of a subclass, which JAX treats as a tree without leaves.
        for kind, of_python in (("bool", bool), ("int", int), ("float", float), ("text", str)):
            if isinstance(value, of_python) and not isinstance(value, np.generic):
                return {kind: of_python(value)}
        if isinstance(value, jax.Array | np.ndarray | np.generic):
            return self.array(value, name)
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            kind = "list" if isinstance(value, list) else "tuple"
            return {kind: [self.node(entry, f"{name}.{k}") for k, entry in enumerate(value)]}
        entries = value if isinstance(value, dict) else {key: getattr(value, key) for key in fields_of(value)}
        if not isinstance(value, dict) and not entries:
            raise refusal(name, "hold arrays of numbers", f"it holds {type(value).__name__}", "save arrays")
        if not all(isinstance(key, str) for key in entries):
            raise refusal(name, "have keys that are strings", f"they are {list(entries)[:3]}", "use such keys")
        return {"dict": [[key, self.node(entry, f"{name}.{key}")] for key, entry in entries.items()]}

    def array(self, value: Any, name: str) -> dict[str, Any]:
        """The node of an array."""
        check_concrete(value, name)
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            raise refusal(name, "hold arrays of numbers", "it holds a PRNG key", "save jax.random.key_data(key)")
        array = np.asarray(value)
        dtype = array.dtype.name
        if dtype == "complex128":
            array = np.stack([np.real(array), np.imag(array)], axis=-1)
        if array.dtype not in map(np.dtype, DTYPES.values()):
            raise refusal(name, "be of a dtype that safetensors has", f"it is {dtype}", "cast it to float32")
        while name in self.arrays:  # the dots may make two names equal
            name += "'"
        self.arrays[name] = array
        return {"array": name, "dtype": dtype}

    def settings(self, value: Any, name: str) -> Any:
        """A description of a run that refers to its arrays by name and includes the values of small ones."""
        if isinstance(value, dict):
            return {key: self.settings(entry, f"{name}.{key}") for key, entry in value.items()}
        if isinstance(value, list):
            return [self.settings(entry, f"{name}.{k}") for k, entry in enumerate(value)]
        if not isinstance(value, jax.Array | np.ndarray):
            return value
        array = np.asarray(value)
        shown = {"value": array.tolist()} if array.size <= _SHOWN and array.dtype.kind in "fiub" else {}
        return self.array(value, name) | {"shape": list(array.shape)} | shown


class Reader:
    """Builds trees from nodes, with the arrays of one file."""

    def __init__(self, path: Path, arrays: dict[str, np.ndarray]):
        self.path, self.arrays, self.rounded = path, arrays, False

    def tree(self, node: Any) -> Any:
        """The tree of a node."""
        if node is None:
            return None
        if not isinstance(node, dict) or not node:
            raise self.broken(node)
        if "array" in node:
            return self.array(node)
        ((kind, value),) = node.items() if len(node) == 1 else (("", None),)
        if kind in _NUMBERS and isinstance(value, _NUMBERS[kind]):
            return value
        if kind in ("list", "tuple") and isinstance(value, list):
            entries = [self.tree(entry) for entry in value]
            return entries if kind == "list" else tuple(entries)
        if kind == "dict" and isinstance(value, list) and all(isinstance(e, list) and len(e) == 2 for e in value):
            return {str(key): self.tree(entry) for key, entry in value}
        raise self.broken(node)

    def array(self, node: dict[str, Any]) -> jax.Array:
        """The array of a node, in its dtype if jax supports it."""
        array, dtype = self.arrays.get(str(node["array"])), node.get("dtype")
        if array is None:
            raise self.broken(node)
        if dtype == "complex128" and array.shape[-1:] == (2,):
            array = array[..., 0] + 1j * array[..., 1]
        if array.dtype.name != dtype:
            raise self.broken(node)
        if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
            array = self._narrowed(array, str(node["array"]))
        return jnp.asarray(array)

    def settings(self, value: Any) -> Any:
        """A description of a run that contains its arrays."""
        if isinstance(value, list):
            return [self.settings(entry) for entry in value]
        if not isinstance(value, dict):
            return value
        if isinstance(value.get("array"), str) and "dtype" in value:
            return self.array(value)
        return {key: self.settings(entry) for key, entry in value.items()}

    def broken(self, node: Any) -> ValueError:
        return refusal("path", "be a whole run", f"{str(self.path)!r} holds {str(node)[:60]!r}", FILE.remedy)

    def _narrowed(self, array: np.ndarray, name: str) -> np.ndarray:
        """An array of 64 bits as 32 bits, for jax without x64; rounded floats set `rounded`, for a warning."""
        narrow = array.astype(jax.dtypes.canonicalize_dtype(array.dtype))
        if array.dtype.kind in "iu" and not np.array_equal(narrow, array):
            problem = f"{name} in {str(self.path)!r} holds integers that need 64"
            raise refusal(
                "path", "fit the 32 bits of jax", problem, 'call jax.config.update("jax_enable_x64", True) first'
            )
        self.rounded |= array.dtype.kind in "fc"
        return narrow


def write(run: Any, path: Path) -> None:
    """Write a `Trajectory` to a file, atomically."""
    check_concrete(run, "the trajectory")
    writer = Writer()
    codes = np.asarray(jtu.tree_leaves(run.result)[0])
    names = {str(code): name for name, code in known_codes().items() if code in codes}
    further = {
        "tree": {name: writer.node(getattr(run, name), name) for name in _PARTS},
        "result": {"codes": writer.node(codes, "result"), "names": names},
        "between": _interpolant_node(run.interpolant, run.ts.ndim - 1, writer),
        "setup": writer.settings(run.settings(), "setup"),
        "units": UNITS,
    }
    FILE.write(path, writer.arrays, None, **further)


def read(path: Path) -> dict[str, Any]:
    """The parts of a `Trajectory` from a file."""
    header, arrays = FILE.read(path, None, _FORM)
    reader = Reader(path, arrays)
    parts = {name: reader.tree(header["tree"][name]) for name in _PARTS}
    parts["stats"] = {name: StaticString(v) if isinstance(v, str) else v for name, v in parts["stats"].items()}
    setup = Setup.told(reader.settings(header["setup"]))
    parts |= {"result": _result(reader, header["result"])}
    parts |= {"interpolant": _interpolant(reader, header["between"], parts["ts"].ndim - 1, setup)}
    if reader.rounded:
        warn_of_rounding(np.zeros(1), f"what {str(path)!r} holds")
    return parts


def _result(reader: Reader, node: dict[str, Any]) -> Any:
    codes, known = np.asarray(reader.tree(node["codes"])), known_codes()
    names = {int(code): name for code, name in node["names"].items() if code.lstrip("-").isdigit()}
    unknown = [names.get(int(code), str(code)) for code in np.unique(codes) if names.get(int(code)) not in known]
    if unknown:
        rule, problem = "be of a run whose result diffrax has", f"{str(reader.path)!r} holds {unknown[0]!r}"
        raise refusal("path", rule, problem, "install the diffrax of that run")
    present = np.vectorize(lambda code: known[names[int(code)]], otypes=[codes.dtype])(codes)
    return jtu.tree_map(lambda _: jnp.asarray(present), dfx.RESULTS.successful)


def _interpolant_node(interpolant: AbstractInterpolant, axes: int, writer: Writer) -> Any:
    """The node of the interpolant, if a file can store it: saved layers, or polynomials of diffrax on a space of
    clusterjax. A field is code, and is not stored."""
    if not isinstance(interpolant, Stored) or interpolant.lost:
        return None
    dense = interpolant.dense
    if dense is None:
        return {"kind": "layers"}
    if type(interpolant.space).__name__ not in _SPACES:
        return None
    make, infos = dense.interpolation_cls, dense.infos
    # `Retract` retracts the polynomials of its solver, and so does `Stored`.
    if hasattr(make, "wrapped") and type(infos["space"]) is type(interpolant.space):
        make, infos = make.wrapped, infos["info"]
    owner = getattr(make, "__self__", make)
    method = make.__name__ if owner is not make else ""
    if getattr(owner, "__name__", None) not in _interpolations() or method not in ("", "from_k"):
        return None
    # The buffers have room for `max_steps` steps; entries that no step filled are left out.
    filled = max(2, int(np.max(np.asarray(dense.ts_size))))
    cut = lambda array, length: array[(slice(None),) * axes + (slice(0, length),)]
    arrays = {
        "ts": cut(dense.ts, filled), "infos": jtu.tree_map(lambda a: cut(a, filled - 1), infos),
        **{name: getattr(dense, name) for name in ("t0_if_trivial", "y0_if_trivial")},
        # Weakly typed integers, which a file cannot store, get the dtypes with which diffrax compares them.
        "ts_size": jnp.asarray(dense.ts_size).astype(jnp.int32),
        "direction": jnp.asarray(dense.direction).astype(dense.ts.dtype),
    }  # fmt: skip
    node = {"kind": "polynomials", "class": owner.__name__, "method": method, "space": type(interpolant.space).__name__}
    return node | {"arrays": writer.node(arrays, "between")}


def _interpolant(reader: Reader, node: Any, axes: int, setup: Setup) -> AbstractInterpolant:
    if node is None or node["kind"] == "layers":
        return Stored(setup, lost=_LOST if node is None else "")
    kind = _interpolations().get(node["class"])
    if kind is None or node["space"] not in _SPACES or node["method"] not in ("", "from_k"):
        lost = f"this diffrax has no {node['class']} that the file needs; install the one of that run"
        return Stored(setup, lost=lost)
    make = getattr(kind, node["method"]) if node["method"] else kind
    build = lambda arrays: dfx.DenseInterpolation(interpolation_cls=make, **arrays)
    # The interpolant of a batch is built by `vmap` over single runs, since diffrax depends on the shapes.
    for _ in range(axes):
        build = jax.vmap(build)
    return Stored(setup, build(reader.tree(node["arrays"])), _SPACES[node["space"]])


def _interpolations() -> dict[str, type]:
    """The interpolating polynomials of diffrax by name; a file can refer only to these."""
    waiting, by_name = [dfx.AbstractLocalInterpolation], {}
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__.startswith("diffrax."):
            by_name[kind.__name__] = kind
    return by_name


_LOST = (
    "the file keeps a field as words, and only the tokens at the save times; run on from one of these with "
    "simulate(field, traj.xs[k], ts), or save a run of simulate(..., dense=True)"
)
_SPACES = {"Sphere": Sphere(), "Euclidean": Euclidean()}
_PARTS = ("ts", "xs", "stats", "t1", "x1", "saved")
_NODE = (dict, None)
_FORM = {
    "tree": {name: _NODE for name in _PARTS},
    "result": {"codes": dict, "names": {str: str}},
    "between": (
        None,
        {"kind": "layers"},
        {"kind": "polynomials", "class": str, "method": str, "space": str, "arrays": dict},
    ),
    "setup": dict,
}
UNITS = {"ts": "1", "t1": "1", "xs": "1", "x1": "1"}
"""Tokens and time of the model have no dimension; the unit is that of the CF conventions."""
