"""The workflows, the issue forms and the release: what they name exists, and agrees with pyproject.toml."""

import importlib.util
import re
import shutil
import subprocess
import sys
import types

import pytest
import yaml

from tests.house.test_requirements import PROJECT, ROOT


WORKFLOWS = {file.stem: yaml.safe_load(file.read_text("utf-8")) for file in (ROOT / ".github/workflows").glob("*.yml")}
JOBS = [
    pytest.param(workflow, name, id=f"{workflow}-{name}")
    for workflow in WORKFLOWS
    for name in WORKFLOWS[workflow]["jobs"]
]
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml"))
EXTRAS = {"base"} | PROJECT["optional-dependencies"].keys() - {"dev", "docs"}
VERSIONS = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d", line)}


def job(workflow, name):
    return WORKFLOWS[workflow]["jobs"][name]


def matrix(workflow, name):
    return job(workflow, name)["strategy"]["matrix"]


def commands(workflow, name):
    return [step["run"] for step in job(workflow, name)["steps"] if "run" in step]


def release_notes():
    spec = importlib.util.spec_from_file_location("release_notes", ROOT / ".github/release_notes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NOTES = release_notes()


def project_urls(monkeypatch):
    """The function of `hatch_build.py`, without hatchling, which is there while a wheel is built only."""
    interface = types.ModuleType("hatchling.metadata.plugin.interface")
    interface.MetadataHookInterface = object
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    hook, metadata = module.ProjectURLs(), {}
    hook.update(metadata)
    return metadata["urls"]


def test_urls_of_the_project_are_those_of_the_repository_it_is_built_in(monkeypatch):
    assert "urls" in PROJECT["dynamic"]
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    papers = project_urls(monkeypatch)
    assert papers and all(url.startswith("https://arxiv.org/abs/") for url in papers.values())
    monkeypatch.setenv("GITHUB_REPOSITORY", "Someone/clusterjax")
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://github.com")
    found = project_urls(monkeypatch)
    assert papers.items() <= found.items()
    assert found["Homepage"] == "https://github.com/Someone/clusterjax"
    assert found["Issues"] == "https://github.com/Someone/clusterjax/issues"
    # Where the workflow of the site publishes it.
    assert found["Documentation"] == "https://someone.github.io/clusterjax/"
    assert "actions/deploy-pages" in (ROOT / ".github/workflows/docs.yml").read_text("utf-8")
    assert all(len(label) <= 32 for label in found)


def test_the_versions_of_python_are_those_of_the_classifiers():
    assert VERSIONS == {"3.11", "3.12", "3.13"}
    assert set(matrix("tests", "tests")["python-version"]) == VERSIONS
    assert set(matrix("release", "installs")["python-version"]) == VERSIONS
    oldest = min(VERSIONS, key=lambda version: int(version.partition(".")[2]))
    assert PROJECT["requires-python"] == f">={oldest}"
    (setup,) = [step for step in job("tests", "oldest")["steps"] if "setup-python" in step.get("uses", "")]
    assert setup["with"]["python-version"] == oldest


@pytest.mark.parametrize("workflow", ["tests", "release"])
def test_the_base_package_and_each_extra_alone_are_installed(workflow):
    assert set(matrix(workflow, "installs")["extra"]) == EXTRAS
    script = (ROOT / "tests/installs.sh").read_text("utf-8")
    (known,) = re.findall(r"^for kind in \$\{\*:-(.*)\}; do$", script, re.M)
    assert set(known.split()) == EXTRAS


def test_all_is_what_the_parts_of_the_package_ask_for():
    """What is left out of it is a network of others, tools for notebooks, and what is for those who work on it."""
    (asked,) = PROJECT["optional-dependencies"]["all"]
    named = set(re.fullmatch(r"clusterjax\[(.*)\]", asked)[1].split(","))
    assert named == PROJECT["optional-dependencies"].keys() - {"all", "smollm2", "notebooks", "docs", "dev"}


@pytest.mark.parametrize("workflow, name", JOBS)
def test_what_a_job_runs_is_here(workflow, name):
    """Its commands are scripts of this repository, which can be executed, or targets of the Makefile."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    assert job(workflow, name)["timeout-minutes"] > 0
    for command in commands(workflow, name):
        first, *rest = command.split()
        if "/" in first:
            listed = subprocess.run(["git", "ls-files", "-s", first], cwd=ROOT, capture_output=True, text=True).stdout
            assert listed.startswith("100755"), f"{first} is no executable file that git knows"
        elif first == "make":
            varied = matrix(workflow, name)["what"] if rest[0].startswith("${{") else [rest[0]]
            assert targets.issuperset(varied)
        else:
            assert first in {"python", "mkdir", "gh"}, command
        for script in re.findall(r"python (\S+\.py)", command):
            assert (ROOT / script).is_file()


def test_nothing_is_published_that_was_not_tried():
    publish = job("release", "publish")
    assert {"build", "installs", "tests"} <= set(publish["needs"])
    assert publish["permissions"]["id-token"] == "write"
    assert any("pypa/gh-action-pypi-publish" in step.get("uses", "") for step in publish["steps"])
    # The wheel of the job before, not one of the checkout.
    (install,) = [step for step in job("release", "installs")["steps"] if "installs.sh" in step.get("run", "")]
    assert install["env"]["WHEEL"] == "dist" and job("release", "installs")["needs"] == "build"
    assert any("release_notes.py" in command for command in commands("release", "build"))


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_a_workflow_may_only_read_unless_a_job_says_more(workflow):
    assert WORKFLOWS[workflow]["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_an_issue_form_is_one_that_github_takes(form):
    content = yaml.safe_load(form.read_text("utf-8"))
    assert {"name", "description", "body"} <= content.keys()
    ids = [field["id"] for field in content["body"]]
    assert len(set(ids)) == len(ids)
    assert any(field.get("validations", {}).get("required") for field in content["body"])
    for field in content["body"]:
        assert field["type"] in {"input", "textarea"} and field["attributes"]["label"]


def test_there_are_forms():
    assert {form.stem for form in FORMS} == {"bug", "wrong_number", "wish"}


def test_the_changelog_is_ready_for_a_tag():
    """Its headings can be read, and the version that is installed is in it, at the top unless that is unreleased."""
    found = NOTES.sections((ROOT / "CHANGELOG.md").read_text("utf-8"))
    assert all(section.text for section in found)
    versions, stated = [section.version for section in found], NOTES.stated(ROOT)
    assert set(stated.values()) == {PROJECT["version"]}, stated
    assert versions[0] == PROJECT["version"] or found[0].date == "unreleased" and PROJECT["version"] in versions


CHANGELOG = """# Changelog

## 0.2.0 (2026-11-30)

- A thing:
  ```sh
## no heading
  ```

## 0.1.0 (2026-01-31)

- All.
"""


@pytest.fixture
def released(tmp_path):
    """The files of a release 0.2.0, in which a test may spoil something."""
    for name in ("pyproject.toml", "CITATION.cff", "README.md"):
        text = (ROOT / name).read_text("utf-8")
        changed = re.sub(rf"(?m)^(version[ :=]+\"?|  version = {{){re.escape(PROJECT['version'])}", r"\g<1>0.2.0", text)
        assert changed != text
        (tmp_path / name).write_text(changed, "utf-8")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG, "utf-8")
    return tmp_path


def test_a_release_that_agrees_with_its_tag_has_no_faults(released):
    assert NOTES.faults("v0.2.0", released) == []
    newest, older = NOTES.sections(CHANGELOG)
    assert (newest.version, newest.date, older.version) == ("0.2.0", "2026-11-30", "0.1.0")
    assert newest.text.startswith("- A thing") and "no heading" in newest.text and "All" not in newest.text


@pytest.mark.parametrize("name", ["pyproject.toml", "CITATION.cff", "README.md", "CHANGELOG.md"])
def test_a_file_of_another_version_keeps_it_back(released, name):
    file = released / name
    file.write_text(file.read_text("utf-8").replace("0.2.0", "0.2.1"), "utf-8")
    assert NOTES.faults("v0.2.0", released) == [f"{name} states 0.2.1, but the tag is of 0.2.0."]


def test_other_faults_of_a_release(released):
    assert len(NOTES.faults("0.2.0", released)) == 1 and "must be v" in NOTES.faults("0.2.0", released)[0]
    assert len(NOTES.faults("v0.3.0", released)) == 4
    file = released / "CHANGELOG.md"
    file.write_text(CHANGELOG.replace("2026-11-30", "unreleased"), "utf-8")
    (fault,) = NOTES.faults("v0.2.0", released)
    assert fault == "CHANGELOG.md calls 0.2.0 unreleased; write the date of the release."
    file.write_text("# Changelog\n\n## 0.2.0 (2026-11-30)\n\n## 0.1.0 (2026-01-31)\n", "utf-8")
    assert NOTES.faults("v0.2.0", released) == ["CHANGELOG.md says nothing of 0.2.0."]


@pytest.mark.parametrize(
    "text, words",
    [
        ("# Changelog\n", "names no version"),
        ("## 0.2 (unreleased)\n", "has the heading"),
        ("## 0.2.0\n", "has the heading"),
        ("## 0.2.0 (soon)\n", "has the heading"),
        ("## 0.2.0 (unreleased), and soon\n", "has the heading"),
        ("## 0.1.0 (unreleased)\n\n## 0.2.0 (unreleased)\n", "newest stands first"),
        ("## 0.2.0 (unreleased)\n\n## 0.2.0 (unreleased)\n", "newest stands first"),
        ("## 0.10.0 (unreleased)\n\n## 0.11.0 (unreleased)\n", "newest stands first"),
        ("## 0.2.0 (2026-02-30)\n", "day"),
    ],
)
def test_a_changelog_that_cannot_be_read_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        NOTES.sections(text)


def test_versions_are_compared_as_numbers():
    assert [section.version for section in NOTES.sections("## 0.10.0 (unreleased)\n\n## 0.9.0 (unreleased)\n")]


def test_the_script_of_a_release_ends_as_the_workflow_expects():
    done = subprocess.run(
        [sys.executable, ".github/release_notes.py", "v99.0.0"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1 and done.stdout == "" and "the tag is of 99.0.0" in done.stderr


@pytest.mark.parametrize("script", [".ci/run", "tests/installs.sh", "tests/oldest.sh"])
def test_a_shell_script_can_be_read_by_its_shell(script):
    shell = (ROOT / script).read_text("utf-8").splitlines()[0].rpartition("/")[2].removeprefix("env ")
    assert subprocess.run([shutil.which(shell), "-n", str(ROOT / script)], capture_output=True).returncode == 0


def test_the_oldest_takes_no_other_word():
    done = subprocess.run([ROOT / "tests/oldest.sh", "some"], capture_output=True, text=True)
    assert done.returncode == 2 and "takes base or all" in done.stderr
