"""What the package imports is what it asks for: every library is declared, in the part where it is needed."""

import re
import subprocess
import sys
import tomllib

import pytest

from tests.house.test_floors import EXTRAS, IMPORTS, ROOT, SOURCES, module_name, part_of


METADATA = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = METADATA["project"]
# What a distribution is imported as, where that is another name.
IMPORTED = {"pillow": "PIL", "huggingface-hub": "huggingface_hub"}
OURS = {"clusterjax", "clusterjax_command"}
# Comes with jax, whose version decides it.
WITH_JAX = {"jaxlib"}


def libraries(requirements):
    names = {re.match(r"[A-Za-z0-9_.-]+", one)[0] for one in requirements}
    return {IMPORTED.get(name, name.replace("-", "_")) for name in names}


BASE = libraries(PROJECT["dependencies"])
OPTIONAL = {
    extra: libraries(PROJECT["optional-dependencies"][extra])
    for extra in ("plot", "probe", "smollm2", "sweep", "completion")
}
FOREIGN = [one for one in IMPORTS if one.target.split(".")[0] not in sys.stdlib_module_names | OURS | WITH_JAX]


def test_every_import_is_declared():
    declared = BASE.union(*OPTIONAL.values())
    wrong = [str(one) for one in FOREIGN if one.target.split(".")[0] not in declared]
    assert not wrong, "pyproject.toml asks for none of these:\n" + "\n".join(wrong)
    assert len(FOREIGN) > 300


def test_what_is_imported_at_the_head_of_a_file_comes_with_its_part():
    """The base package stands alone; an extra is imported by its own parts, and inside functions that say so."""
    extras = set().union(*OPTIONAL.values()) - BASE
    wrong = [
        str(one)
        for one in FOREIGN
        if (library := one.target.split(".")[0]) in extras
        and not one.inside_function
        and part_of(module_name(one.file)) not in EXTRAS.get(library, ())
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("extra", OPTIONAL)
def test_what_is_declared_is_imported(extra):
    used = {one.target.split(".")[0] for one in FOREIGN}
    # Those that are asked for by name, where they are needed.
    text = "".join(file.read_text("utf-8") for file in SOURCES)
    used |= {name for name in OPTIONAL[extra] if f'wanted("{name}' in text}
    used |= {name for listed in re.findall(r"libraries=\((.*?)\)", text) for name in re.findall(r'"(\w+)"', listed)}
    # And a package that is looked for, whose file is read and whose code is not.
    used |= {name for name in OPTIONAL[extra] if f'find_spec("{name}")' in text}
    # Or one that is imported by a function, for it is not always there.
    used |= {name for name in OPTIONAL[extra] if f'import_module("{name}")' in text}
    assert not OPTIONAL[extra] - used and not BASE - used


def test_every_requirement_has_a_floor():
    """In the extras for those who work on the package too."""
    asked = [*PROJECT["dependencies"], *(one for extra in PROJECT["optional-dependencies"].values() for one in extra)]
    asked = [one for one in asked if not one.startswith("clusterjax[")]
    assert len(asked) > 40
    assert all(re.match(r"[a-zA-Z0-9_.-]+(\[\w+\])?>=\d", one) for one in asked), asked


def test_the_wheel_says_that_it_is_typed():
    """PEP 561: an empty `py.typed` in the package, without which type checkers ignore its annotations.

    The wheel takes all files of its packages that git does not ignore; `tests/installs.sh` looks into a real one.
    """
    marker = ROOT / "clusterjax" / "py.typed"
    assert marker.read_bytes() == b""
    wheel = METADATA["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"packages": ["clusterjax", "clusterjax_command"]}, "nothing is excluded"
    ignored = subprocess.run(["git", "check-ignore", "-q", str(marker)], cwd=ROOT)
    assert ignored.returncode != 0
