"""Atomic writing leaves the former file or the new file wherever a process ends; drafts of ended processes go."""

import contextlib
import itertools
import os
import signal

from clusterjax._files import disk
from clusterjax._files.disk import DRAFT, OLD, clear_drafts, draft_beside, replace
from tests.crashes import Crash, Crasher
from tests.files.test_lock import child, names


def draft_of(name, pid=999999999, host=None, kind=DRAFT):
    return f".{name}.{pid}-0@{disk._host() if host is None else host}{kind}"


def test_a_file_is_replaced_in_one_step_wherever_a_process_ends(tmp_path, monkeypatch):
    found = []
    for at in itertools.count(1):
        (tmp_path / "x").write_bytes(b"old content")
        with monkeypatch.context() as patch, contextlib.suppress(Crash):
            Crasher(patch, at)
            replace(tmp_path / "x", b"new content")
            break
        found.append((tmp_path / "x").read_bytes())
    assert set(found) == {b"old content", b"new content"} and found == sorted(found, reverse=True)
    replace(tmp_path / "x", b"newer")
    assert names(tmp_path) == ["x"] and (tmp_path / "x").read_bytes() == b"newer"


def test_no_link_is_followed(tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.write_bytes(b"of somebody else")
    # One link has the name of the next draft, the other the name of a draft of a killed process.
    number = next(disk._numbers)
    monkeypatch.setattr(disk, "_numbers", iter([number]))
    (tmp_path / f".x.{os.getpid()}-{number}@{disk._host()}{DRAFT}").symlink_to(other)
    (tmp_path / draft_of("x")).symlink_to(other)
    replace(tmp_path / "x", b"new")
    assert other.read_bytes() == b"of somebody else" and names(tmp_path) == ["other", "x"]


def test_two_that_write_at_once_do_not_mix(tmp_path, monkeypatch):
    def other_first(file, whole=os.fsync):
        monkeypatch.undo()
        whole(file)
        replace(tmp_path / "x", b"of the other")

    monkeypatch.setattr(disk.os, "fsync", other_first)
    replace(tmp_path / "x", b"mine")
    assert (tmp_path / "x").read_bytes() == b"mine" and names(tmp_path) == ["x"]


NOT_OURS = (
    "film.partial", "thesis.json.draft", ".probe.1", ".writable", ".run.png.999999999.draft", f"report.json{DRAFT}",
    f".run.png.999999999{DRAFT}", draft_of("run.png", 1), draft_of("run.png", host="elsewhere"), ".env",
)  # fmt: skip


def test_drafts_of_ended_processes_go_and_nothing_else(tmp_path):
    for name in (*NOT_OURS, draft_of("run.png"), draft_of("a\nb")):
        (tmp_path / name).touch()
    for name in (draft_of("a"), draft_of("b", kind=OLD), draft_of("c", kind=OLD), "c", ".photos.2020.draft"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(name)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / draft_of("link")).symlink_to(tmp_path / "elsewhere")
    clear_drafts(tmp_path, "run.png")
    assert not (tmp_path / draft_of("run.png")).exists() and (tmp_path / draft_of("a")).exists()
    clear_drafts(tmp_path)
    assert set(names(tmp_path)) == {*NOT_OURS, "b", "c", "elsewhere", ".photos.2020.draft"}
    # A folder that was moved away gets its name back if its successor is missing.
    assert (tmp_path / "b" / "results.json").read_text() == draft_of("b", kind=OLD)
    assert (tmp_path / "c" / "results.json").read_text() == "c"


def test_a_live_draft_stays(tmp_path):
    """A draft of a running process stays; a draft that nothing holds goes, even if its process is this one."""
    path = tmp_path / "run.png"
    body = "from clusterjax._files.disk import draft_beside\nwith draft_beside(folder) as draft:\n    draft.touch()\n"
    process = child(body + "    print('held', flush=True)\n    sys.stdin.readline()", path)
    assert process.stdout.readline() == "held\n"
    (other,) = names(tmp_path)
    with draft_beside(path) as mine:
        mine.touch()
        clear_drafts(tmp_path)
        assert names(tmp_path) == sorted((other, mine.name))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    mine.touch()
    clear_drafts(tmp_path)
    assert names(tmp_path) == []
