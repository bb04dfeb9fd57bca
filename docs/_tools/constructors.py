"""A griffe extension that documents the constructors of Equinox modules and named tuples.

griffe reads the source without running it. It knows the constructors that data classes make of their fields, but not
those of Equinox modules and named tuples.
"""

import ast
import re
from collections.abc import Iterator

import griffe


ABSTRACT = r"(\w+\.)?Abstract(Class)?Var\["
# The annotation of the argument of a constructor, by the annotation of the stored field.
ARGUMENTS = {"StoredParameter": "Parameter"}


class Constructors(griffe.Extension):
    """Adds the constructor that the fields make to each class without one, and resolves the names of functions that
    are also names of modules."""

    def on_package(self, *, pkg: griffe.Module, **kwargs) -> None:
        _resolve_functions(pkg)
        # All classes are examined before the first one is changed, because subclasses would inherit its constructor.
        fields_of = {
            cls: fields for cls in _classes(pkg) if not _has_constructor(cls) and (fields := list(_fields(cls)))
        }
        for cls, fields in fields_of.items():
            parameters = griffe.Parameters(griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword))
            for parameter in sorted(fields, key=lambda p: p.kind is griffe.ParameterKind.keyword_only):
                parameters.add(parameter)
            cls.set_member("__init__", griffe.Function("__init__", parameters=parameters, parent=cls))


def _resolve_functions(package: griffe.Module) -> None:
    """Let `rank` after `from .rank import rank` be the function, for which griffe takes the module rank.py."""
    for module in (package, *package.modules.values()):
        for name, member in list(module.members.items()):
            try:
                target = member.final_target if member.is_alias else member
            except griffe.AliasResolutionError:
                continue  # the name is from another library
            if member.is_alias and target.is_module and name in target.members:
                module.set_member(name, griffe.Alias(name, target.members[name], parent=module))


def _classes(module: griffe.Module) -> Iterator[griffe.Class]:
    for member in module.members.values():
        if member.is_alias:
            continue
        if member.is_class and not member.name.startswith("Abstract"):
            yield member
        elif member.is_module:
            yield from _classes(member)


def _ancestry(cls: griffe.Class) -> list[griffe.Class]:
    """The class and its bases within this package, the most basic one first."""
    try:
        return [*reversed(cls.mro()), cls]
    except ValueError:
        return [cls]


def _is_data_class(cls: griffe.Class) -> bool:
    return any(str(decorator.value).startswith("dataclass") for decorator in cls.decorators)


def _has_constructor(cls: griffe.Class) -> bool:
    """True if the source of the class or of a base has a constructor; the one that griffe makes has no line number."""
    return any((init := c.members.get("__init__")) is not None and init.lineno for c in _ancestry(cls))


def _fields(cls: griffe.Class) -> Iterator[griffe.Parameter]:
    """The parameters of the annotated fields, those of the bases first; a field that is declared again keeps its
    position."""
    parameters: dict[str, griffe.Parameter | None] = {}
    for owner in _ancestry(cls):
        if _is_data_class(cls) and not _is_data_class(owner):
            continue  # an annotation in a base that is no data class makes no field
        keyword = any("kw_only=True" in str(decorator.value) for decorator in owner.decorators)
        for name, member in owner.members.items():
            if member.is_alias or not member.is_attribute or member.annotation is None or "property" in member.labels:
                parameters.pop(name, None)
            elif "instance-attribute" in member.labels and not re.match(ABSTRACT, str(member.annotation)):
                # griffe drops ClassVar from an annotation, and does not label such a member as an instance attribute.
                parameters[name] = _parameter(name, member, keyword)
    yield from (parameter for parameter in parameters.values() if parameter is not None)


def _parameter(name: str, member: griffe.Attribute, keyword: bool) -> griffe.Parameter | None:
    """The parameter of a field; None for a field with `init=False`."""
    value = str(member.value) if member.value is not None else None
    options = _options(value)
    if options is not None:
        if options.get("init") == "False":
            return None
        factory = options.get("default_factory")
        value = options.get("default") or (f"{factory}()" if factory else None)
    keyword = keyword or (options is not None and options.get("kw_only") == "True")
    kind = griffe.ParameterKind.keyword_only if keyword else griffe.ParameterKind.positional_or_keyword
    annotation = str(member.annotation)
    for stored, argument in ARGUMENTS.items():
        annotation = annotation.replace(stored, argument)
    return griffe.Parameter(name, annotation=annotation, kind=kind, default=value)


def _options(value: str | None) -> dict[str, str] | None:
    """The keywords of `eqx.field(...)`; None for any other value."""
    if value is None:
        return None
    node = ast.parse(value, mode="eval").body
    if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "field":
        return {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg}
    return None
