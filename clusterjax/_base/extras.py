"""The libraries of the extras of clusterjax: a package that lacks them says what to install."""

from importlib.util import find_spec


def require(package: str, extra: str, *libraries: str) -> None:
    """Raise an ImportError that says what to install if a library is missing; no library is imported."""
    if any(find_spec(library) is None for library in libraries):
        raise ImportError(
            f"{package} needs {' and '.join(libraries)}; install them with: pip install 'clusterjax[{extra}]'"
        )
