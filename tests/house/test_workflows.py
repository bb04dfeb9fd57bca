"""The workflows agree with pyproject.toml, and what they run is in the repository."""

import re

import pytest
import yaml

from tests.house.test_requirements import PROJECT, ROOT


WORKFLOWS = {file.stem: yaml.safe_load(file.read_text("utf-8")) for file in (ROOT / ".github/workflows").glob("*.yml")}
JOBS = [(workflow, name) for workflow in WORKFLOWS for name in WORKFLOWS[workflow]["jobs"]]
EXTRAS = {"base"} | PROJECT["optional-dependencies"].keys() - {"dev", "docs"}
VERSIONS = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d", line)}


def matrix(workflow, name):
    return WORKFLOWS[workflow]["jobs"][name]["strategy"]["matrix"]


def test_the_versions_of_python_are_those_of_the_classifiers():
    assert set(matrix("tests", "tests")["python-version"]) == VERSIONS
    assert set(matrix("release", "installs")["python-version"]) == VERSIONS
    assert PROJECT["requires-python"] == f">={min(VERSIONS, key=lambda version: int(version.partition('.')[2]))}"


@pytest.mark.parametrize("workflow", ["tests", "release"])
def test_the_base_package_and_each_extra_alone_are_installed(workflow):
    assert set(matrix(workflow, "installs")["extra"]) == EXTRAS
    script = (ROOT / "tests/installs.sh").read_text("utf-8")
    (known,) = re.findall(r"^for kind in \$\{\*:-(.*)\}; do$", script, re.M)
    assert set(known.split()) == EXTRAS


@pytest.mark.parametrize("workflow, name", JOBS)
def test_what_a_job_runs_is_here(workflow, name):
    """Each command is a script of the repository, a target of the Makefile, or a tool of the runner."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    steps = WORKFLOWS[workflow]["jobs"][name]["steps"]
    for command in (step["run"] for step in steps if "run" in step):
        first, *rest = command.split()
        if "/" in first:
            assert (ROOT / first).stat().st_mode & 0o100
        elif first == "make":
            assert targets.issuperset(matrix(workflow, name)["what"] if rest[0].startswith("${{") else [rest[0]])
        else:
            assert first in {"python", "gh"}, command
