"""Names of a package that are imported when they are first asked for (PEP 562), so that importing it costs nothing.

The `__init__.py` of a package lists its public names once, each with the module that it comes from:

    if TYPE_CHECKING:
        from ._space import Sphere as Sphere
    else:
        from ._lazy import lazy_names

        __getattr__, __dir__, __all__ = lazy_names(__name__)

Type checkers follow these imports. At run time they are not executed: `lazy_names` reads them from the source, as
`lazy_loader.attach_stub` reads a stub, so that there is no second list that could differ from the first. This module
imports nothing but the standard library, and neither does a package before one of its names is used.

Source: PEP 562; SPEC 1 of Scientific Python, *Lazy loading of submodules and functions*.
"""

import ast
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any


def lazy_names(
    package: str, *, extra: str | None = None, libraries: tuple[str, ...] = (), moved: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], tuple[str, ...]]:
    """The `__getattr__`, `__dir__` and `__all__` of a package.

    **Arguments:**

    - `package`: Its dotted name.
    - `extra`, `libraries`: The extra of clusterjax with which the libraries come that the package needs. Whether they
        are installed is asked at once, without importing them.
    - `moved`: A package whose public names were once here and are still found here, without being listed.

    **Raises:**

    - `ImportError` if a library is not installed; it says what to install.
    """
    if any(importlib.util.find_spec(library) is None for library in libraries):
        raise ImportError(
            f"{package} needs {' and '.join(libraries)}; install them with: pip install 'clusterjax[{extra}]'"
        )
    places = _places(package)
    module = sys.modules[package]
    module.__class__ = _documented(package, module.__doc__ or "", places)

    def __getattr__(name: str) -> Any:
        if name not in places:
            if moved is not None and not name.startswith("_") and name in importlib.import_module(moved).__all__:
                return getattr(sys.modules[moved], name)
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(places[name] or f".{name}", package)
        value = getattr(module, name) if places[name] else module
        setattr(sys.modules[package], name, value)  # the next time it is found without this function
        return value

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places})

    # `from package import *` imports no other packages, whose libraries may be missing.
    public = tuple(name for name, place in places.items() if place and not name.startswith("_"))
    return __getattr__, __dir__, public


def _documented(package: str, written: str, places: dict[str, str]) -> type[types.ModuleType]:
    """A module whose docstring, when it is asked for, lists what is public: what `help(package)` shows first."""

    class Documented(types.ModuleType):
        # A property of the class: `help` asks for it past the `__getattr__` of a module.
        @property
        def __doc__(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
            from ._contents import contents

            return contents(package, written, places)

    return Documented


def _places(package: str) -> dict[str, str]:
    """Each name under `if TYPE_CHECKING`, with the module that it comes from; for a module of the package itself, with
    nothing."""
    spec = sys.modules[package].__spec__
    source = getattr(spec.loader, "get_source", lambda name: None)(package) if spec is not None else None
    if source is None:
        raise ImportError(f"{package} needs its source files, which are not installed; install clusterjax from a wheel")
    (block,) = (node for node in ast.parse(source).body if isinstance(node, ast.If))
    return {
        name.asname or name.name: "." * node.level + node.module if node.module else ""
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
