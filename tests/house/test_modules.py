"""Every `eqx.Module`: no array hides in a static field, each class is abstract or final, nobody calls `super()`."""

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import jaxtyping
import numpy as np
import pytest

import clusterjax
import clusterjax as cjx


PACKAGE = Path(clusterjax.__file__).parent

# What a part may miss where its extra is not installed. Nothing else may keep a module from being looked at.
OPTIONAL = {"flax", "transformers", "datasets", "safetensors", "xarray", "zarr", "matplotlib", "PIL"}


def package_modules() -> Iterator[Any]:
    """Every module of the package that this environment can import."""
    yield clusterjax
    for found in pkgutil.walk_packages(clusterjax.__path__, "clusterjax."):
        try:
            yield importlib.import_module(found.name)
        except ImportError as error:
            cause = error.__cause__ if isinstance(error.__cause__, ImportError) else error
            if (cause.name or "").split(".")[0] not in OPTIONAL:
                raise


def module_classes() -> list[type]:
    """Every class of the package that is an `eqx.Module`, private ones too."""
    found = {
        value
        for module in package_modules()
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, eqx.Module) and value.__module__.startswith("clusterjax")
    }
    return sorted(found, key=lambda cls: (cls.__module__, cls.__qualname__))


CLASSES = module_classes()


def full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def is_static(field: dataclasses.Field) -> bool:
    return bool(field.metadata.get("static", False))


def promises_array(hint: Any) -> bool:
    """Whether an annotation, or a part of it, is an array type."""
    if inspect.isclass(hint) and issubclass(hint, jax.Array | np.ndarray | jaxtyping.AbstractArray):
        return True
    if isinstance(hint, str):
        return "Array" in hint or "ndarray" in hint
    return any(promises_array(part) for part in typing.get_args(hint))


def static_values(module: eqx.Module) -> Iterator[tuple[str, Any]]:
    """The static fields of `module` and of every module inside it, with their values."""
    for field in dataclasses.fields(module):
        value = getattr(module, field.name)
        if is_static(field):
            yield f"{type(module).__name__}.{field.name}", value
            continue
        for leaf in jtu.tree_leaves(value, is_leaf=lambda node: isinstance(node, eqx.Module)):
            if isinstance(leaf, eqx.Module):
                yield from static_values(leaf)


def holds_array(value: Any) -> bool:
    return any(eqx.is_array_like(leaf) and np.ndim(leaf) > 0 or eqx.is_array(leaf) for leaf in jtu.tree_leaves(value))


def catalogue() -> dict[str, eqx.Module]:
    """One of each kind of object that a user builds; a new kind of field, attention or layer is added here."""
    beta, eye = jnp.asarray(1.0), jnp.eye(3)
    times, steps = jnp.asarray([0.0, 1.0]), jnp.asarray([1.0, 2.0])
    attention = cjx.SoftmaxAttention(beta, query_key=eye, mask=cjx.WindowMask(2))
    field = cjx.AttentionField(attention, value=eye)
    made = (
        cjx.Euclidean(),
        cjx.Sphere(),
        cjx.FullMask(),
        cjx.CausalMask(),
        cjx.PiecewiseConstant(times, steps),
        cjx.Interpolated(times, steps),
        cjx.Dense(),
        cjx.Blocked(2),
        cjx.Auto(),
        cjx.Hull(),
        cjx.Sharded(cjx.Blocked(2), "tokens"),
        cjx.Harmonic(1e-4),
        attention,
        cjx.UnnormalisedAttention(cjx.Interpolated(times, steps), query_key=eye, mask=cjx.CausalMask()),
        cjx.HardmaxAttention(query_key=eye),
        field,
        cjx.AttentionField(attention, masses=jnp.asarray([0.5, 0.5])),
        cjx.MultiHeadField(beta, jnp.stack([eye, eye]), jnp.stack([eye, eye])),
        cjx.RescaledField(attention, eye),
        field + field,
        cjx.hardmax.HardmaxLayer(1.0, eye, masses=jnp.asarray([0.5, 0.5])),
        cjx.hardmax.SoftmaxTwin(cjx.hardmax.HardmaxLayer(1.0), 2.0),
    )
    return {f"{number} {type(module).__name__}": module for number, module in enumerate(made)}


CATALOGUE = catalogue()


def test_the_walk_finds_the_classes():
    """What the tests below walk is the whole package: at least every module class of the front door is there."""
    public = {
        value
        for value in (getattr(cjx, name) for name in cjx.__all__)
        if inspect.isclass(value) and issubclass(value, eqx.Module)
    }
    assert len(public) > 10
    assert public <= set(CLASSES)


@pytest.mark.parametrize("cls", CLASSES, ids=full_name)
def test_no_static_field_promises_an_array(cls):
    wrong = [field.name for field in dataclasses.fields(cls) if is_static(field) and promises_array(field.type)]
    assert not wrong, f"{full_name(cls)} holds arrays as static fields: {wrong}; a sweep over them would recompile."


@pytest.mark.parametrize("name", CATALOGUE)
def test_no_static_field_holds_an_array(name):
    wrong = [where for where, value in static_values(CATALOGUE[name]) if holds_array(value)]
    assert not wrong, f"These static fields hold an array: {wrong}."


@pytest.mark.parametrize("name", CATALOGUE)
def test_no_continuous_parameter_is_a_python_number(name):
    """A Python float inside a module is static under `filter_jit`, so that each of its values compiles anew."""
    numbers = [leaf for leaf in jtu.tree_leaves(CATALOGUE[name]) if isinstance(leaf, float | complex)]
    assert not numbers


@pytest.mark.parametrize("cls", CLASSES, ids=full_name)
def test_each_class_is_abstract_or_final(cls):
    """Only `Abstract...` is inherited from, and whatever is not `Abstract...` can be built."""
    bases = [base for base in cls.__mro__[1:] if base.__module__.startswith("clusterjax")]
    concrete = [full_name(base) for base in bases if not base.__name__.lstrip("_").startswith("Abstract")]
    assert not concrete, f"{full_name(cls)} inherits from {concrete}, which are final; wrap instead of inheriting."
    if not cls.__name__.lstrip("_").startswith("Abstract"):
        open_methods = sorted(getattr(cls, "__abstractmethods__", ()))
        assert not open_methods, f"{full_name(cls)} leaves {open_methods} open, so it should be called Abstract..."


@pytest.mark.parametrize("cls", CLASSES, ids=full_name)
def test_no_method_is_written_twice(cls):
    """A method is implemented in one class: what overrides it would change what readers of the base were told."""
    written = {name for name, value in vars(cls).items() if inspect.isfunction(value) and not name.startswith("__")}
    wrong = [
        f"{name} (in {full_name(base)})"
        for base in cls.__mro__[1:]
        if base.__module__.startswith("clusterjax")
        for name in sorted(written & set(vars(base)))
        if inspect.isfunction(vars(base)[name]) and not getattr(vars(base)[name], "__isabstractmethod__", False)
    ]
    assert not wrong, f"{full_name(cls)} overrides what is already implemented: {wrong}; make the base's abstract."


def test_no_super():
    wrong = [
        f"{file.relative_to(PACKAGE.parent)}:{node.lineno}"
        for file in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
    ]
    assert not wrong, f"super() is called in {wrong}; each method is implemented once."


class _Hidden(eqx.Module):
    """What must not be: an array, a tuple of arrays and a promise of one, all static."""

    plain: Any = eqx.field(static=True)
    inside: Any = eqx.field(static=True)
    promised: jaxtyping.Float[jax.Array, " n"] | None = eqx.field(static=True)
    allowed: Any = eqx.field(static=True)


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
def test_the_checks_see_a_hidden_array():
    """The checks above are held to a module that breaks the rule, alone and inside another."""
    hidden = _Hidden(plain=jnp.ones(2), inside=(np.ones(2), "a"), promised=None, allowed=("a", 3))
    for module in (hidden, cjx.SoftmaxAttention(jnp.asarray(1.0), mask=cjx.FullMask())):
        found = {where for where, value in static_values(module) if holds_array(value)}
        assert found == ({"_Hidden.plain", "_Hidden.inside"} if module is hidden else set())
    assert [f.name for f in dataclasses.fields(_Hidden) if promises_array(f.type)] == ["promised"]
