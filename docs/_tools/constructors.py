"""Shows how a class is built where its constructor is made of its fields: Equinox modules, named tuples.

An extension of griffe, which reads the source and runs nothing: the constructors of data classes it knows, these not.
"""

import ast
import re
from collections.abc import Iterator

import griffe


# How a stored field is declared, and what may be passed for it.
ABSTRACT = r"(\w+\.)?Abstract(Class)?Var\["
WORDS = {"StoredParameter": "Parameter"}


class Constructors(griffe.Extension):
    """Gives a class without a constructor the one that its fields make, and a function its name back where the file
    that holds it is called alike."""

    def on_package(self, *, pkg: griffe.Module, **kwargs) -> None:
        _lead_to_functions(pkg)
        # All are looked at before any is changed: a constructor made here would be inherited.
        made = {cls: fields for cls in _classes(pkg) if not _has_constructor(cls) and (fields := list(_fields(cls)))}
        for cls, fields in made.items():
            parameters = griffe.Parameters(griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword))
            for parameter in sorted(fields, key=lambda p: p.kind is griffe.ParameterKind.keyword_only):
                parameters.add(parameter)
            cls.set_member("__init__", griffe.Function("__init__", parameters=parameters, parent=cls))


def _lead_to_functions(package: griffe.Module) -> None:
    """`from .rank import rank` names a function, where griffe finds the file rank.py."""
    for module in (package, *package.modules.values()):
        for name, member in list(module.members.items()):
            try:
                target = member.final_target if member.is_alias else member
            except griffe.AliasResolutionError:
                continue  # of another library
            if member.is_alias and target.is_module and name in target.members:
                module.set_member(name, griffe.Alias(name, target.members[name], parent=module))


def _classes(module: griffe.Module) -> Iterator[griffe.Class]:
    for member in module.members.values():
        if member.is_alias:
            continue
        if member.is_class and not member.name.startswith("Abstract"):  # nobody builds one
            yield member
        elif member.is_module:
            yield from _classes(member)


def _ancestry(cls: griffe.Class) -> list[griffe.Class]:
    """The class and those of its bases that are of this package, the most basic first."""
    try:
        return [*reversed(cls.mro()), cls]
    except ValueError:
        return [cls]


def _is_data_class(cls: griffe.Class) -> bool:
    return any(str(decorator.value).startswith("dataclass") for decorator in cls.decorators)


def _has_constructor(cls: griffe.Class) -> bool:
    """Whether one is written, here or in a base; that which griffe makes of a data class is on no line."""
    return any((init := c.members.get("__init__")) is not None and init.lineno for c in _ancestry(cls))


def _fields(cls: griffe.Class) -> Iterator[griffe.Parameter]:
    """The parameters that the annotated fields make, bases first, a field that is declared again in its first place."""
    found: dict[str, griffe.Parameter | None] = {}
    for owner in _ancestry(cls):
        if _is_data_class(cls) and not _is_data_class(owner):
            continue  # there an annotation is a note for the reader
        keyword = any("kw_only=True" in str(decorator.value) for decorator in owner.decorators)
        for name, member in owner.members.items():
            if member.is_alias or not member.is_attribute or member.annotation is None or "property" in member.labels:
                found.pop(name, None)
            elif "instance-attribute" in member.labels and not re.match(ABSTRACT, str(member.annotation)):
                # Griffe drops ClassVar from an annotation, and does not label the member as one of an instance.
                found[name] = _parameter(name, member, keyword)
    yield from (parameter for parameter in found.values() if parameter is not None)


def _parameter(name: str, member: griffe.Attribute, keyword: bool) -> griffe.Parameter | None:
    """The parameter of a field; None for one that the constructor sets itself."""
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
    for stored, passed in WORDS.items():
        annotation = annotation.replace(stored, passed)
    return griffe.Parameter(name, annotation=annotation, kind=kind, default=value)


def _options(value: str | None) -> dict[str, str] | None:
    """The keywords of `eqx.field(...)`; None for any other value."""
    if value is None:
        return None
    node = ast.parse(value, mode="eval").body
    if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "field":
        return {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg}
    return None
