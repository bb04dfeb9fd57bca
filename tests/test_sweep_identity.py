"""What tells two functions apart, where a revision comes from, and what is said while a sweep runs."""

import functools
import io
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import clusterjax as cjx
from clusterjax.sweep._identity import _revision, fingerprint, name_of
from clusterjax.sweep._progress import Progress


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
