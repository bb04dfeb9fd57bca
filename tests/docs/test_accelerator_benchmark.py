"""The benchmark of accelerators, on a CPU: it counts kernels, refuses calls of the host, keeps rows, and runs."""

import json
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from tests.docs.tools import ROOT, tool
from tests.helpers import fresh_environment


tool("results")  # puts benchmarks on the path
import _card  # pyright: ignore[reportMissingImports]
import accelerator  # pyright: ignore[reportMissingImports]


PROGRAM = """HloModule jit_run, is_scheduled=true

%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %sine = f32[4]{0} sine(%p)
}

%known_body (t: (s32[], f32[4])) -> (s32[], f32[4]) {
  %t = (s32[], f32[4]{0}) parameter(0)
  %x = f32[4]{0} get-tuple-element(%t), index=1
  %one = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused
  %two = f32[4]{0} custom-call(%one), custom_call_target="__gpu$xla.gpu.triton"
  ROOT %out = (s32[], f32[4]{0}) tuple(%i, %two)
}

%known_condition (t.1: (s32[], f32[4])) -> pred[] {
  %t.1 = (s32[], f32[4]{0}) parameter(0)
  ROOT %less = pred[] compare(%i, %c), direction=LT
}

%body (t.2: (s32[], f32[4])) -> (s32[], f32[4]) {
  %t.2 = (s32[], /*index=1*/f32[4]{0}) parameter(0)
  %sorted = f32[4]{0} sort(%x), dimensions={0}, to_apply=%fused
  ROOT %inner = (s32[]) while(%t.2), condition=%known_condition, body=%known_body, b={"known_trip_count":{"n":"5"}}
}

%condition (t.3: (s32[], f32[4])) -> pred[] {
  ROOT %is = pred[] compare(%i, %c), direction=LT
}

%short (a: f32[4]) -> f32[4] {
  ROOT %a = f32[4]{0} parameter(0)
}

%long (b: f32[4]) -> f32[4] {
  %b = f32[4]{0} parameter(0)
  ROOT %copy = f32[4]{0} copy(%b)
}

ENTRY %main (q: f32[4]) -> f32[4] {
  %q = f32[4]{0} parameter(0)
  %first = f32[4]{0} call(%q), to_apply=%long
  %loop = (s32[], f32[4]{0}) while(%tuple), condition=%condition, body=%body
  %choice = f32[4]{0} conditional(%which, %q, %q), branch_computations={%short, %long}
  %begin = ((f32[4]{0}), f32[4]{0}) all-gather-start(%choice), dimensions={0}
  ROOT %end = f32[4]{0} all-gather-done(%begin)
}
"""


def test_kernels_are_counted_in_the_text_of_a_program():
    """Outside the loop a called copy, the copy of the longer branch and a collective count; a turn has 2 + 5 x 3."""
    assert _card.launches(PROGRAM) == (3 + 17, 17)
    text = lambda fn: jax.jit(fn).lower(jnp.ones((8, 8))).compile().as_text()
    total, turn = _card.launches(
        text(lambda x: jax.lax.while_loop(lambda y: y[0, 0] < 9, lambda y: jnp.sort(y @ y), x))
    )
    assert total >= turn >= 2 and _card.launches(text(lambda x: x)) in ((0, 0), (1, 0))


def test_a_program_that_calls_the_host_is_refused():
    shape = jax.ShapeDtypeStruct((3,), float)
    ask = lambda x: jax.pure_callback(lambda x: x, shape, x)
    fails = lambda x: eqx.error_if(x, x[0] > 5, "words")
    turns = lambda fn: lambda x: jax.lax.while_loop(lambda y: y[0] < 9, lambda y: fn(y) + 1, x)
    text = lambda fn: jax.jit(fn).lower(jnp.zeros(3)).compile().as_text()
    for allowed in (jnp.sin, turns(jnp.sin), fails):
        _card.check_no_host("this", text(allowed))
    for refused in (ask, turns(ask), turns(fails)):
        with pytest.raises(_card.Synchronises, match="this waits for the host: .*callback"):
            _card.check_no_host("this", text(refused))
    for moved in ("send", "outfeed"):
        with pytest.raises(_card.Synchronises, match=moved):
            _card.check_no_host("this", PROGRAM.replace("copy(%b)", f"{moved}(%b)"))


def test_a_card_that_is_not_known_has_no_limit():
    assert _card.exponentials_per_second() is None


def test_what_was_measured_before_the_time_was_over_is_kept():
    left, written, run = [3.0], [], []

    def part(name, fails=False):
        def measure():
            run.append(name)
            left[0] -= 1
            if fails:
                raise RuntimeError("the card is full\nand more")
            return [{"method": "this"}]

        return accelerator.Part(name, "", measure)

    parts = [part("a"), part("kept"), part("b", True), part("c"), part("d")]
    rows = [{"part": "kept", "method": "before"}]
    good = accelerator.measure_parts(
        parts, rows, lambda: left[0], lambda rows, notes: written.append(([row["part"] for row in rows], [*notes]))
    )
    failed = "Failed: b (RuntimeError: the card is full)"
    assert not good and run == ["a", "b", "c"]
    assert written[:2] == [(["kept", "a"], []), (["kept", "a", "c"], [failed])]
    assert written[-1] == (["kept", "a", "c"], [failed, "Not measured, since the time was over: d."])


def benchmark(*arguments):
    script = ROOT / "benchmarks" / "accelerator.py"
    run = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, env=fresh_environment())
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.exhaustive
def test_small_sizes_run_and_are_resumed(tmp_path):
    out = tmp_path / "accelerator.json"
    given = "--quick", "--out", str(out)
    told = benchmark(*given, "--parts", "batch, full")
    assert "There are no rows of Fused." in told and "Failed" not in told
    rows = json.loads(out.read_text())["rows"]
    assert {row["part"] for row in rows} == {"batch, full", "batch, full, 20 in a row"}
    assert all(row["error"] < 1e-5 and row["median ms"] > 0 for row in rows)
    assert rows[0]["method"] == "vmap, Dense" and rows[0]["launches"] > 0
    assert "Not measured, since the time was over: training step." in benchmark(*given, "--resume", "--budget", "0")
    assert json.loads(out.read_text())["rows"] == rows


@pytest.mark.exhaustive
def test_without_a_card_a_sentence_says_so(tmp_path):
    told = benchmark("--out", str(tmp_path / "accelerator.json"))
    assert told.startswith("There is no accelerator here") and not any(tmp_path.iterdir())


@pytest.mark.exhaustive
@pytest.mark.slow
def test_all_parts_run_at_small_sizes(tmp_path):
    out = tmp_path / "accelerator.json"
    assert "Failed" not in benchmark("--quick", "--budget", "100000", "--out", str(out))
    document = json.loads(out.read_text())
    parts = {part.name for part in accelerator.parts_of(True, None)}
    assert {row["part"] for row in document["rows"]} == parts
    assert sum(line.startswith("Goal: ") for line in document["findings"]) == 15
