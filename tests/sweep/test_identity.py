"""What tells two functions apart, where a revision comes from, and what is said while a sweep runs."""

import functools
import io
import os
import shutil
import subprocess
import sys
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import clusterjax as cjx
from clusterjax.sweep._identity import _described, _revision, fingerprint, name_of
from clusterjax.sweep._run import Progress


SCALE = 2.0


def helper(x):
    return SCALE * x


def uses_helper(x):
    return helper(x) + 1


def make(power, start=0):
    return lambda x: x**power + start


class Layer(eqx.Module):
    weight: jax.Array
    name: str

    def __call__(self, x):
        return self.weight * x


def test_functions_that_do_the_same_have_one_fingerprint():
    assert fingerprint(make(2)) == fingerprint(make(2))
    assert fingerprint(jax.jit(helper)) == fingerprint(jax.jit(helper))
    assert fingerprint(Layer(jnp.ones(2), "a")) == fingerprint(Layer(jnp.ones(2), "a"))
    assert fingerprint(lambda x: x + 1) == fingerprint(
        # Another line, and a remark.
        lambda x: x + 1
    )


def test_functions_that_differ_anywhere_do_not(monkeypatch):
    functions = [
        make(2), make(3), make(2, 1), helper, uses_helper, functools.partial(make, 2), functools.partial(make, start=2),
        jax.jit(helper), Layer(jnp.ones(2), "a"), Layer(jnp.zeros(2), "a"), Layer(jnp.ones(2), "b"),
        Layer(jnp.ones(2), "a").__call__, np.sin, np.cos, cjx.WindowMask(2), cjx.WindowMask(3),
        make(np.arange(3)), make(np.arange(3.0)), make({"a": 1}), make({"a": 2}), make([1, [2]]), make([1, 2]),
    ]  # fmt: skip
    prints = [fingerprint(function) for function in functions]
    assert len(set(prints)) == len(prints)
    before = fingerprint(uses_helper)
    for scale in (3.0, cjx.WindowMask(2), cjx.WindowMask(3), [1], [2]):  # which a helper of this module reads
        monkeypatch.setitem(globals(), "SCALE", scale)
        assert fingerprint(uses_helper) != before
        before = fingerprint(uses_helper)
    assert name_of(functools.partial(helper, 2)) == "helper" and name_of(Layer(jnp.ones(1), "a")) == "Layer"


def test_a_function_that_names_itself_has_a_fingerprint():
    def again(n):
        return again(n - 1) if n else 0

    assert fingerprint(again) == fingerprint(again)


def test_the_revision_is_that_of_the_folder_of_the_function(tmp_path):
    """A function that is written outside any repository has none; this one has that of the checkout, if it is one."""
    (tmp_path / "mine.py").write_text("def f(x):\n    return x\n")
    sys.path.insert(0, str(tmp_path))
    try:
        import mine  # pyright: ignore[reportMissingImports]
    finally:
        sys.path.remove(str(tmp_path))
    assert _revision(mine.f) == "none"
    here = _revision(functools.partial(helper, 1))
    assert here == "none" or len(here.removesuffix("-dirty")) == 40


def git(folder, *words):
    identity = (
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "init.defaultBranch=main",
        "-c",
        "commit.gpgsign=false",
    )
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def test_no_revision_is_that_of_the_folder_in_which_one_stands(tmp_path, monkeypatch):
    """Objects count as their class; what has no file has no revision."""
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "first")
    monkeypatch.chdir(tmp_path)
    typed = types.FunctionType(compile("def f(): pass", "<stdin>", "exec").co_consts[0], {})
    assert _revision(len) == _revision(typed) == _revision(eval("lambda x: x")) == "none"
    layer, here = Layer(jnp.ones(2), "a"), _revision(helper)
    assert _revision(layer) == _revision(functools.partial(layer, 1)) == here != _described(tmp_path)


def test_git_runs_nothing_that_a_repository_says(tmp_path, monkeypatch):
    """A monitor, hooks, filters and a submodule with a monitor of its own, all of which would write a file."""
    repository, inner, told = tmp_path / "repository", tmp_path / "inner", tmp_path / "told"
    for folder in (inner, repository):
        folder.mkdir()
        git(folder, "init")
        (folder / "mine.py").write_text("def f(x):\n    return x\n")
        if folder == repository:
            git(folder, "-c", "protocol.file.allow=always", "submodule", "add", "../inner", "inner")
            (folder / ".gitattributes").write_text("*.py filter=odd diff=odd\n")
        git(folder, "add", ".")
        git(folder, "commit", "-m", "first")
    program = tmp_path / "program.sh"
    program.write_text(f'#!/bin/sh\necho "$@" >> {told}\ncat\n')
    program.chmod(0o755)
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    shutil.copy(program, hooks / "post-index-change")
    assert _described(repository) == subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=repository, capture_output=True, text=True).stdout.strip()  # fmt: skip
    for where in (repository, repository / "inner"):
        for name in ("core.fsmonitor", "filter.odd.clean", "filter.odd.process", "diff.external", "diff.odd.textconv"):
            git(where, "config", name, str(program))
        git(where, "config", "core.hooksPath", str(hooks))
        git(where, "config", "submodule.inner.ignore", "none")
    (repository / "mine.py").touch()
    told.unlink(missing_ok=True)
    assert len(_described(repository)) == 40
    (repository / "mine.py").write_text("changed")
    assert _described(repository).endswith("-dirty")
    assert not told.exists()
    git(repository, "config", "filter.a=b.clean", str(program))
    assert _described(repository) == "none"
    assert not told.exists()


def test_git_is_not_waited_for(tmp_path, monkeypatch):
    slow = tmp_path / "git"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("clusterjax.sweep._identity._SECONDS", 0.2)
    assert _revision(helper) == "none"
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert _revision(helper) == "none"


def test_progress_says_what_is_left_in_proportion_to_cost(monkeypatch):
    clock, shown = [0.0], io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    meter = Progress(np.asarray([0.0, 30.0, 10.0, 5.0]), np.asarray([1, 2, 3]), 1, True, now=lambda: clock[0])
    clock[0] = 60.0
    meter.add(np.asarray([1]), 0)
    clock[0] = 61.0
    meter.add(np.asarray([2]), 1)  # too soon for another line
    clock[0] = 3700.0
    meter.add(np.asarray([3]), 0)
    assert shown.getvalue().splitlines() == [
        "sweep: 1 of 4 points are finished",
        "sweep: 2 of 4 points, 1:00 gone, 0:30 left",
        "sweep: 4 of 4 points, 1:01:40 gone, 1 failed",
    ]
    silent = Progress(np.ones(1), np.arange(1), 0, False)
    silent.add(np.arange(1), 0)
    assert shown.getvalue().count("\n") == 3


def test_on_a_terminal_one_line_is_written_over(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    clock = [0.0]
    meter = Progress(np.ones(2), np.arange(2), 0, True, now=lambda: clock[0])
    for point in range(2):
        clock[0] += 1.0
        meter.add(np.asarray([point]), 0)
    assert shown.getvalue().split("\r\x1b[K") == [
        "sweep: 0 of 2 points are finished\n",
        "sweep: 1 of 2 points, 0:01 gone, 0:01 left",
        "sweep: 2 of 2 points, 0:02 gone\n",
    ]
