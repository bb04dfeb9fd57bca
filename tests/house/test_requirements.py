"""Every library that the package imports is declared in pyproject.toml, with a lower bound."""

import re
import sys
import tomllib
from pathlib import Path

import grimp


ROOT = Path(__file__).resolve().parents[2]
METADATA = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = METADATA["project"]
# Names under which distributions are imported, where these differ.
IMPORTED = {"pillow": "PIL", "huggingface-hub": "huggingface_hub"}
FOR_USERS = ("plot", "probe", "smollm2", "sweep", "completion")


def libraries(requirements):
    names = {re.match(r"[A-Za-z0-9_.-]+", requirement)[0] for requirement in requirements}
    return {IMPORTED.get(name, name.replace("-", "_")) for name in names}


def test_every_import_is_declared():
    graph = grimp.build_graph("clusterjax", include_external_packages=True, cache_dir=None)
    imported = {module for module in graph.modules if "." not in module} - {"clusterjax", "clusterjax_command"}
    # jaxlib comes with jax, whose version determines it.
    imported -= sys.stdlib_module_names | {"jaxlib"}
    declared = libraries(PROJECT["dependencies"])
    for extra in FOR_USERS:
        declared |= libraries(PROJECT["optional-dependencies"][extra])
    assert len(imported) > 15 and imported <= declared, imported - declared


def test_every_requirement_has_a_floor():
    asked = [*PROJECT["dependencies"], *(one for extra in PROJECT["optional-dependencies"].values() for one in extra)]
    asked = [one for one in asked if not one.startswith("clusterjax[")]
    assert all(re.match(r"[a-zA-Z0-9_.-]+(\[\w+\])?>=\d", one) for one in asked), asked


def test_the_wheel_says_that_it_is_typed():
    """By PEP 561, type checkers ignore the annotations of a package without an empty `py.typed`."""
    assert (ROOT / "clusterjax" / "py.typed").read_bytes() == b""
    wheel = METADATA["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"packages": ["clusterjax", "clusterjax_command"]}, "nothing is excluded"
