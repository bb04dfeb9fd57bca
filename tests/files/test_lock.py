"""One run at a time in a folder: processes, threads and kills."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import filelock
import pytest

from clusterjax._files import lock as _lock
from clusterjax._files.disk import draft_beside
from clusterjax._files.lock import LOCK, abandon, locked


PACKAGE = Path(_lock.__file__).parents[1]
# A program that imports the lock and nothing else of the package; the body of a test follows it.
CHILD = f"""
import sys, time, types
from pathlib import Path
package = types.ModuleType("clusterjax")
package.__path__ = [{str(PACKAGE)!r}]
sys.modules["clusterjax"] = package
from clusterjax._files.lock import locked
folder = Path(sys.argv[1])
"""


def child(body, folder):
    call = [sys.executable, "-c", CHILD + body, str(folder)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(call, text=True, **pipes)


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


HOLDS = "with locked(folder):\n    print('held', flush=True)\n    sys.stdin.readline()"


@pytest.fixture
def held(tmp_path):
    """A folder that another process has locked, and that process."""
    process = child(HOLDS, tmp_path / "out")
    assert process.stdout.readline() == "held\n"
    yield tmp_path / "out", process
    process.kill()
    process.communicate()


def refusal(folder):
    with pytest.raises(ValueError) as error, locked(folder):
        pass
    return str(error.value)


def test_the_second_run_is_refused(held):
    folder, _ = held
    words = "out must be used by one run at a time, but another process is writing to "
    assert refusal(folder) == f"{words}{str(folder)!r}; wait for it, or choose another folder."


def test_a_folder_is_left_as_it_was_found(held):
    folder, process = held
    assert names(folder) == [LOCK]
    process.communicate("\n")
    assert not folder.exists()
    folder.mkdir()
    with locked(folder / "a" / "b"):
        (folder / "a" / "file").touch()
    assert names(folder) == ["a"] and names(folder / "a") == ["file"]


def test_a_killed_holder_holds_nothing(held):
    folder, process = held
    process.kill()
    process.wait()
    assert names(folder) == [LOCK]
    with locked(folder):
        assert names(folder) == [LOCK]
    assert names(folder) == []


def test_threads_hold_it_one_at_a_time(tmp_path):
    found, ready, done = [], threading.Event(), threading.Event()

    def hold():
        with locked(tmp_path):
            ready.set()
            done.wait()

    other = threading.Thread(target=hold)
    other.start()
    ready.wait()
    found.append(refusal(tmp_path))
    done.set()
    other.join()
    assert "one run at a time" in found[0]
    with locked(tmp_path):
        assert "one run at a time" in refusal(tmp_path)


COUNTS = """
counter, done = folder.parent / "counter", 0
while done < 20:
    try:
        with locked(folder):
            before = int(counter.read_text())
            time.sleep(0.001)
            counter.write_text(str(before + 1))
        done += 1
    except ValueError as error:
        assert "one run at a time" in str(error), error
"""


def test_processes_that_start_together_never_hold_it_both(tmp_path):
    """Three processes repeatedly make and remove the folder and the lock and add to one number: no addition is lost."""
    (tmp_path / "counter").write_text("0")
    both = [child(COUNTS, tmp_path / "out") for _ in range(3)]
    assert [process.communicate(timeout=60)[1] for process in both] == ["", "", ""]
    assert (tmp_path / "counter").read_text() == "60"


def test_a_lock_whose_file_was_removed_guards_nothing(tmp_path, monkeypatch):
    """The former run removes the file after the next run has opened it and before it has locked it."""
    taken = []

    def acquire(self, *arguments, real=filelock.FileLock.acquire, **options):
        found = real(self, *arguments, **options)
        if not taken:
            (tmp_path / LOCK).unlink()
        taken.append(self)
        return found

    monkeypatch.setattr(filelock.FileLock, "acquire", acquire)
    with locked(tmp_path):
        assert len(taken) == 2 and not taken[0].is_locked
        assert "one run at a time" in refusal(tmp_path)


def test_what_is_no_folder_that_can_be_written_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    assert "out must be a folder that can be written, but" in refusal(tmp_path / "file")
    assert "choose another" in refusal(tmp_path / "file" / "below")
    (tmp_path / "closed").mkdir(mode=0o555)
    if os.geteuid():
        assert "Permission denied" in refusal(tmp_path / "closed")
        assert "Permission denied" in refusal(tmp_path / "closed" / "below")
    # A read-only file system gives this error even to the superuser.
    monkeypatch.setattr(filelock.FileLock, "acquire", lambda *_, **__: (_ for _ in ()).throw(OSError(30, "Read-only")))
    assert "cannot (Read-only)" in refusal(tmp_path / "closed")


def test_a_process_that_ends_takes_its_files_along(tmp_path):
    with locked(tmp_path / "out"), draft_beside(tmp_path / "run.png") as draft:
        draft.touch()
        (tmp_path / "out" / "report.json").touch()
        abandon()
        assert names(tmp_path) == ["out"] and names(tmp_path / "out") == ["report.json"]
