"""Figures in parallel processes: the same numbers, lines in order, and a failure that ends the rest."""

import json
import os

import pytest

from clusterjax.experiments import Files, Settings, reproduce
from clusterjax.experiments.framework.run import in_processes
from tests.experiments.task import environment, work


@pytest.mark.exhaustive
@pytest.mark.parametrize(("names", "jobs"), (("a", 1), ("abc", 2)))
def test_each_task_has_a_process_and_its_lines_in_order(tmp_path, names, jobs):
    """Tasks have the precision of this process, and a third task begins only when one of the first two has ended."""
    lines, results = [], {}
    each = [(tmp_path, name, 0.3) for name in names]
    in_processes(work, each, jobs, lines.append, lambda index, pid: results.__setitem__(index, (pid, len(lines))))
    assert len({os.getpid(), *(pid for pid, _ in results.values())}) == len(names) + 1
    for index, name in enumerate(names):
        own = [line for line in lines if line.startswith(name)]
        assert own == [f"{name} True {k}" for k in range(3)]
        # All lines of a task are reported before its result.
        assert max(k for k, line in enumerate(lines) if line.startswith(name)) < results[index][1]
    at = lambda name, what: float((tmp_path / f"{name}.{what}").read_text())
    assert len(names) == 1 or at("c", "begin") >= min(at("a", "end"), at("b", "end")), "three at a time"


@pytest.mark.exhaustive
def test_each_process_has_its_share_of_the_cores(monkeypatch):
    """BLAS gets its share unless it is told otherwise; with one process, and in this one, nothing changes."""
    names = ["OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"]
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(names[1], "5")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    for jobs, wanted in ((1, [None, "5"]), (2, ["3", "5"]), (4, ["1", "5"])):
        found = []
        in_processes(
            environment, [(names,)], jobs, lambda line: None, lambda _, result, found=found: found.append(result)
        )
        assert found == [wanted] and names[0] not in os.environ


@pytest.mark.exhaustive
def test_after_a_failure_none_is_begun(tmp_path):
    """The error of the task is raised here; of ten tasks that wait, at most those begin that were on their way."""
    each = [(tmp_path, "wrong", 0.0), *((tmp_path, f"n{k}", 0.1) for k in range(10))]
    with pytest.raises(ValueError, match="seconds must be less"):
        in_processes(work, each, 1, lambda line: None, lambda index, result: None)
    assert len(list(tmp_path.glob("n*.begin"))) <= 2
    # Every task that began has ended.
    assert len(list(tmp_path.glob("n*.end"))) == len(list(tmp_path.glob("n*.begin")))


@pytest.mark.exhaustive
def test_a_process_that_is_ended_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="jobs must be few enough .*; pass fewer, and run again: finished"):
        in_processes(work, [(tmp_path, "killed", 0.0)], 1, lambda line: None, lambda index, result: None)


@pytest.mark.exhaustive
def test_figures_have_the_same_numbers(tmp_path):
    settings, files, names = Settings(quick=True, starts=4), Files(("png",), False), ["emergence-mixed", "figure3"]
    records = [
        reproduce(names, tmp_path / str(jobs), settings, files, jobs=jobs, say=lambda line: None) for jobs in (1, 2)
    ]
    for one, two in zip(*records, strict=True):
        assert one["series"] == two["series"] and one["claims"] == two["claims"]
        assert one["fingerprint"] == two["fingerprint"]
        kept = json.loads((tmp_path / "2" / one["fingerprint"]["name"] / "results.json").read_text("utf-8"))
        assert kept == two
