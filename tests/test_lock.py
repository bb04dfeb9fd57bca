"""One run at a time in a folder: processes, threads, kills, and what killed runs left."""

import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import filelock
import pytest

from clusterjax._files import disk as _drafts, lock as _lock
from clusterjax._files.disk import (
    DRAFT,
    OLD,
    PARTIAL,
    clear_drafts,
    clear_drafts_of,
    draft_beside,
    recover,
    write_folder,
)
from clusterjax._files.lock import LOCK, abandon, holder_file, locked


PACKAGE = Path(_lock.__file__).parent
# Imports the lock and nothing else of the package; {body} runs in its place.
CHILD = f"""
import sys, time, types
from pathlib import Path
package = types.ModuleType("clusterjax")
package.__path__ = [{str(PACKAGE)!r}]
sys.modules["clusterjax"] = package
from clusterjax._files.lock import locked
folder = Path(sys.argv[1])
"""


def child(body, folder, **options):
    call = [sys.executable, "-c", CHILD + body, str(folder)]
    return subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


HOLDS = "with locked(folder):\n    print('held', flush=True)\n    sys.stdin.readline()"


@pytest.fixture
def held(tmp_path):
    """A folder that another process holds, and that process."""
    process = child(HOLDS, tmp_path / "out", stdin=subprocess.PIPE)
    assert process.stdout.readline() == "held\n"
    yield tmp_path / "out", process
    process.kill()
    process.communicate()


def refusal(folder):
    with pytest.raises(ValueError) as error, locked(folder):
        pass
    return str(error.value)


def test_the_second_run_says_who_holds_the_folder(held):
    folder, process = held
    found = refusal(folder)
    assert found.startswith(f"out must be used by one run at a time, but process {process.pid} on {platform.node()} (")
    assert "'-c " in found and ", since 20" in found and " UTC) is writing to " in found
    assert found.endswith(f"{str(folder)!r}; wait for it, or choose another folder.")


def test_a_folder_is_left_as_it_was_found(held):
    folder, process = held
    assert names(folder) == [LOCK, LOCK + ".holder"]
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
    assert names(folder) == [LOCK, LOCK + ".holder"]
    with locked(folder):
        assert json.loads(holder_file(folder / LOCK).read_text("utf-8"))["pid"] == os.getpid()
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
    assert f"process {os.getpid()} on " in found[0]
    with locked(tmp_path):
        assert f"process {os.getpid()} on " in refusal(tmp_path)


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
    """Both make and remove the folder and the lock all the time, and add to one number: none of it is lost."""
    (tmp_path / "counter").write_text("0")
    both = [child(COUNTS, tmp_path / "out") for _ in range(3)]
    assert [process.communicate(timeout=60)[1] for process in both] == ["", "", ""]
    assert (tmp_path / "counter").read_text() == "60"


def test_a_lock_whose_file_was_removed_guards_nothing(tmp_path, monkeypatch):
    """Between the opening and the locking of the file, the run before gives it back."""
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


def test_a_link_in_place_of_the_holder_is_not_followed(tmp_path):
    other, folder = tmp_path / "other.txt", tmp_path / "run"
    other.write_text("kept")
    folder.mkdir()
    holder_file(folder / LOCK).symlink_to(other)
    with locked(folder):
        assert json.loads(holder_file(folder / LOCK).read_text("utf-8"))["pid"] == os.getpid()
    assert other.read_text("utf-8") == "kept" and names(folder) == []


def test_a_holder_that_cannot_be_read_is_another_process(tmp_path):
    with locked(tmp_path):
        for content in ("", "[]", '{"pid": 1}', "\udce4".encode("utf-8", "surrogateescape")):
            holder_file(tmp_path / LOCK).write_bytes(content if isinstance(content, bytes) else content.encode())
            assert "but another process is writing" in refusal(tmp_path)


def test_what_is_no_folder_that_can_be_written_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    assert "out must be a folder that can be written, but" in refusal(tmp_path / "file")
    assert "choose another" in refusal(tmp_path / "file" / "below")
    (tmp_path / "closed").mkdir(mode=0o555)
    if os.geteuid():
        assert "Permission denied" in refusal(tmp_path / "closed")
        assert "Permission denied" in refusal(tmp_path / "closed" / "below")
    # What a read-only file system answers, which no permission of the superuser changes.
    monkeypatch.setattr(filelock.FileLock, "acquire", lambda *_, **__: (_ for _ in ()).throw(OSError(30, "Read-only")))
    assert "cannot (Read-only)" in refusal(tmp_path / "closed")


LEFT = (
    f"model.safetensors{PARTIAL}",
    f"report.json{DRAFT}",
    f"config.json{DRAFT}{PARTIAL}",
    f".run.png.999999999@{_drafts._host()}{DRAFT}",
)
NOT_OURS = (
    "film.partial",
    "thesis.json.draft",
    "x.safetensors.partial",
    ".probe.1",
    ".writable",
    ".run.png.999999999.draft",
    f".run.png.1@{_drafts._host()}{DRAFT}",
    f".run.png.999999999@not-{_drafts._host()}{DRAFT}",
    ".env",
)


def test_whoever_holds_the_lock_clears_away_what_killed_runs_left(tmp_path):
    for name in (*LEFT, *NOT_OURS):
        (tmp_path / name).touch()
    of_others = (".photos.2020.draft", ".photos.2019.old")
    for name in (f".figure3.5{DRAFT}", f".figure4.5{OLD}", f".figure5.5{OLD}", "figure5", *of_others):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(name)
    (tmp_path / "elsewhere").mkdir()
    link = f".link.5{DRAFT}"
    (tmp_path / link).symlink_to(tmp_path / "elsewhere")
    with locked(tmp_path):
        kept = {LOCK, LOCK + ".holder", *NOT_OURS, *of_others, "figure4", "figure5", "elsewhere"}
        assert set(names(tmp_path)) - {link} == kept
    assert (tmp_path / "figure4" / "results.json").read_text() == f".figure4.5{OLD}"
    assert (tmp_path / "figure5" / "results.json").read_text() == "figure5"


def test_drafts_that_count_already_stay(tmp_path):
    """A run that was killed in the midst of the renaming: its new files, and not a mixture, are what is read."""
    write_folder(tmp_path, {"model.safetensors": b"old", "config.json": b"old"})
    real, renamed = os.replace, []

    def killed(source, target):
        if Path(target).name in ("model.safetensors", "config.json"):
            renamed.append(target)
            raise KeyboardInterrupt
        real(source, target)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", killed)
        write_folder(tmp_path, {"model.safetensors": b"new", "config.json": b"new"})
    assert renamed and (tmp_path / f"checksums.json{DRAFT}").is_file()
    with locked(tmp_path):
        recover(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == (tmp_path / "config.json").read_bytes() == b"new"
    assert names(tmp_path) == ["checksums.json", "config.json", "model.safetensors"]


def test_a_live_draft_stays(tmp_path):
    """Of another process and of this one; that of a process that has ended goes, even if this one has its number."""
    path = tmp_path / "run.png"
    body = (
        "from clusterjax._files.disk import draft_beside\nwith draft_beside(folder) as draft:\n    draft.touch()\n    "
    )
    process = child(body + "print('held', flush=True)\n    sys.stdin.readline()", path, stdin=subprocess.PIPE)
    assert process.stdout.readline() == "held\n"
    (other,) = names(tmp_path)
    left = f".other.png.999999999@{_drafts._host()}{DRAFT}"
    (tmp_path / left).touch()
    with draft_beside(path) as mine:
        mine.touch()
        clear_drafts_of(path)
        assert sorted((other, mine.name, left)) == names(tmp_path)
        clear_drafts(tmp_path)
        assert sorted((other, mine.name)) == names(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    mine.touch()
    clear_drafts_of(path)
    assert names(tmp_path) == []


def test_a_process_that_ends_takes_its_files_along(tmp_path):
    with locked(tmp_path / "out"), draft_beside(tmp_path / "run.png") as draft:
        draft.touch()
        (tmp_path / "out" / f"report.json{PARTIAL}").touch()
        (tmp_path / "out" / "report.json").touch()
        abandon()
        assert names(tmp_path) == ["out"] and names(tmp_path / "out") == ["report.json"]


def test_a_lock_is_waited_for_a_moment(tmp_path):
    """A run that has just ended is no reason to refuse the next."""
    ready = threading.Event()

    def hold():
        with locked(tmp_path):
            ready.set()
            time.sleep(0.05)

    other = threading.Thread(target=hold)
    other.start()
    ready.wait()
    with locked(tmp_path):
        pass
    other.join()


def test_filelock_is_the_only_lock_of_the_package():
    """Which locks on Windows too; nothing here calls a system's own, or takes the being of a file for a lock."""
    users = {"filelock": set(), "fcntl": set(), "msvcrt": set(), "O_EXCL": set()}
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text("utf-8")
        for word, files in users.items():
            if word in text:
                files.add(file.name)
    # A draft and the note of who holds a lock are made anew, never what a link of that name leads to.
    assert users == {"filelock": {"_lock.py"}, "fcntl": set(), "msvcrt": set(), "O_EXCL": {"_disk.py", "_lock.py"}}
