"""In every `eqx.Module` no static field holds an array, and each class is abstract or final."""

import dataclasses
import importlib
import inspect
import pkgutil
import typing
from collections.abc import Iterator
from functools import cache
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


# Only these libraries may be missing, where an extra is not installed; any other failed import is an error.
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


@cache
def module_classes() -> list[type]:
    """Every class of the package that is an `eqx.Module`, private ones too."""
    classes = {
        value
        for module in package_modules()
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, eqx.Module) and value.__module__.startswith("clusterjax")
    }
    return sorted(classes, key=full_name)


def full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def is_static(field: dataclasses.Field) -> bool:
    return bool(field.metadata.get("static", False))


def promises_array(hint: Any) -> bool:
    """True if an annotation, or a part of it, is an array type."""
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


def objects() -> tuple[eqx.Module, ...]:
    """One object of each kind that a user builds; a new kind of field, attention or layer must be added here."""
    beta, eye = jnp.asarray(1.0), jnp.eye(3)
    times, steps = jnp.asarray([0.0, 1.0]), jnp.asarray([1.0, 2.0])
    attention = cjx.SoftmaxAttention(beta, query_key=eye, mask=cjx.WindowMask(2))
    field = cjx.AttentionField(attention, value=eye)
    return (
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
        cjx.Fused(),
        cjx.Sharded(cjx.Blocked(2), "tokens"),
        cjx.Harmonic(1e-4),
        attention,
        cjx.UnnormalisedAttention(cjx.Interpolated(times, steps), query_key=eye, mask=cjx.CausalMask()),
        cjx.HardmaxAttention(query_key=eye, position=cjx.ALiBi(0.1)),
        cjx.KernelAttention(jnp.tanh, position=cjx.RelativeBias([0.0, 1.0, 0.0])),
        cjx.SoftmaxAttention(beta, position=cjx.Rotary([0.1])),
        cjx.SoftmaxAttention(beta, position=cjx.Decay(0.1)),
        field,
        cjx.AttentionField(attention, masses=jnp.asarray([0.5, 0.5])),
        cjx.MultiHeadField(beta, jnp.stack([eye, eye]), jnp.stack([eye, eye])),
        cjx.RescaledField(attention, eye),
        field + field,
        cjx.hardmax.HardmaxLayer(1.0, eye, masses=jnp.asarray([0.5, 0.5])),
        cjx.hardmax.SoftmaxTwin(cjx.hardmax.HardmaxLayer(1.0), 2.0),
    )


def test_no_static_field_promises_an_array():
    public = {value for value in (getattr(cjx, name) for name in cjx.__all__) if inspect.isclass(value)}
    assert {cls for cls in public if issubclass(cls, eqx.Module)} <= set(module_classes())
    wrong = [
        f"{full_name(cls)}.{field.name}"
        for cls in module_classes()
        for field in dataclasses.fields(cls)
        if is_static(field) and promises_array(field.type)
    ]
    assert not wrong, f"a sweep over these static fields would recompile, since they are arrays: {wrong}"


def test_no_object_has_a_static_array_or_a_python_number():
    """A Python float inside a module is static under `filter_jit`, so that each new value compiles again."""
    for module in objects():
        assert not [name for name, value in static_values(module) if holds_array(value)]
        assert not [leaf for leaf in jtu.tree_leaves(module) if isinstance(leaf, float | complex)], module


def is_abstract(cls: type) -> bool:
    return cls.__name__.lstrip("_").startswith("Abstract")


def bases_of(cls: type) -> list[type]:
    return [base for base in cls.__mro__[1:] if base.__module__.startswith("clusterjax")]


def test_each_class_is_abstract_or_final():
    """A class inherits only from abstract classes, implements every abstract method and overrides no method."""
    for cls in module_classes():
        name = full_name(cls)
        assert all(map(is_abstract, bases_of(cls))), f"{name} inherits from a final class; wrap instead of inheriting"
        open_methods = sorted(getattr(cls, "__abstractmethods__", ()))
        assert is_abstract(cls) or not open_methods, f"{name} leaves {open_methods} open: name it Abstract..."
        methods = {key for key, value in vars(cls).items() if inspect.isfunction(value) and not key.startswith("__")}
        for base in bases_of(cls):
            inherited = {key: vars(base)[key] for key in methods & set(vars(base))}
            final = {key for key, value in inherited.items() if inspect.isfunction(value)}
            final = {key for key in final if not getattr(inherited[key], "__isabstractmethod__", False)}
            assert not final, f"{name} overrides {final} of {full_name(base)}; make the method of the base abstract"


class _Hidden(eqx.Module):
    """A module that breaks the rule: an array, a tuple of arrays and an annotation of an array, all static."""

    plain: Any = eqx.field(static=True)
    inside: Any = eqx.field(static=True)
    promised: jaxtyping.Float[jax.Array, " n"] | None = eqx.field(static=True)
    allowed: Any = eqx.field(static=True)


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
def test_the_checks_see_a_hidden_array():
    """The checks above find the arrays of a module that breaks the rule, and none in a correct module."""
    hidden = _Hidden(plain=jnp.ones(2), inside=(np.ones(2), "a"), promised=None, allowed=("a", 3))
    for module in (hidden, cjx.SoftmaxAttention(jnp.asarray(1.0), mask=cjx.FullMask())):
        hidden_arrays = {name for name, value in static_values(module) if holds_array(value)}
        assert hidden_arrays == ({"_Hidden.plain", "_Hidden.inside"} if module is hidden else set())
    assert [f.name for f in dataclasses.fields(_Hidden) if promises_array(f.type)] == ["promised"]
