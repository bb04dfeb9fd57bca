"""Files are there whole or not at all, whenever a process ends, and what is damaged is named."""

import json
import os

import numpy as np
import pytest
import safetensors.numpy

import clusterjax._files.disk as disk
from clusterjax._files.arrays import read_arrays
from clusterjax._files.disk import (
    BLANK,
    CHECKSUMS,
    DRAFT,
    PARTIAL,
    check,
    is_sealed,
    recover,
    replace,
    seal,
    write_folder,
)
from clusterjax._files.run_file import RunFile


OLD, NEW = {"a.bin": b"old a", "b.bin": b"old b", "gone.bin": b"old"}, {"a.bin": b"new a", "b.bin": b"new b!"}


class Stop(BaseException):
    """What stands for a kill."""


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != CHECKSUMS}


def steps_of(monkeypatch, stop_at=None):
    """Count what changes the disk; at one of these steps the process ends."""
    count = [0]

    def counted(function):
        def call(*arguments, **options):
            count[0] += 1
            if count[0] == stop_at:
                raise Stop
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(disk.os, "replace", counted(os.replace))
    monkeypatch.setattr(disk.os, "fsync", counted(os.fsync))
    return count


def test_files_of_a_folder_are_replaced_together_wherever_a_process_ends(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        count = steps_of(patch)
        write_folder(tmp_path / "whole", OLD)
        count[0] = 0
        write_folder(tmp_path / "whole", NEW, gone=["gone.bin"])
    assert contents(tmp_path / "whole") == NEW
    found = []
    for stop in range(1, count[0] + 1):
        folder = tmp_path / str(stop)
        write_folder(folder, OLD)
        with monkeypatch.context() as patch, pytest.raises(Stop):
            steps_of(patch, stop)
            # What a killed process would clear away is left, as a kill leaves it.
            patch.setattr(disk.Path, "unlink", lambda path, missing_ok=False: None)
            write_folder(folder, NEW, gone=["gone.bin"])
        recover(folder)
        for name in OLD:
            if (folder / name).exists():
                check(folder / name, "folder", "write it again")
        found.append(
            {name: content for name, content in contents(folder).items() if not name.endswith(("-draft", "-partial"))}
        )
        write_folder(folder, NEW, gone=["gone.bin"])
        assert contents(folder) == NEW
    assert OLD in found and NEW in found and all(state in (OLD, NEW) for state in found)


def test_a_draft_of_an_earlier_stop_is_not_taken(tmp_path):
    write_folder(tmp_path, OLD)
    (tmp_path / f"b.bin{DRAFT}").write_bytes(b"of a run that was killed before its files counted")
    write_folder(tmp_path, {"a.bin": b"new a"})
    assert contents(tmp_path) == OLD | {"a.bin": b"new a"}


@pytest.mark.parametrize("name", ("a.bin", CHECKSUMS))
def test_a_flipped_bit_is_named(tmp_path, name):
    write_folder(tmp_path, OLD)
    data = bytearray((tmp_path / name).read_bytes())
    for place in range(len(data)):
        changed = data.copy()
        changed[place] ^= 4
        (tmp_path / name).write_bytes(changed)
        with pytest.raises(ValueError, match=r"^folder must .*(a\.bin|checksums\.json|gone).*; .*\.$"):
            for one in OLD:
                check(tmp_path / one, "folder", "write it again")


def test_a_list_that_names_files_elsewhere_is_refused(tmp_path):
    for name in ("../a", "/etc/passwd", "", "..", "x/y", "x\\y"):
        record = {"format": "clusterjax checksums", "version": 1, "itself": BLANK, "sha256": {name: "1"}, "gone": []}
        (tmp_path / f"{CHECKSUMS}{DRAFT}").write_bytes(seal(json.dumps(record).encode()))
        with pytest.raises(ValueError, match="must list files that are in it"):
            recover(tmp_path)


def test_what_was_written_without_checksums_is_read(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"a")
    check(tmp_path / "a.bin", "folder", "write it again")


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="there are no links here")
def test_no_link_is_followed(tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"of somebody else")
    for link in (f"x{PARTIAL}", f"y{DRAFT}", f"y{DRAFT}{PARTIAL}", f"{CHECKSUMS}{DRAFT}{PARTIAL}"):
        (tmp_path / link).symlink_to(other)
    replace(tmp_path / "x", b"new")
    write_folder(tmp_path, {"y": b"new"})
    assert other.read_bytes() == b"of somebody else"
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes() == b"new"
    assert not (tmp_path / "x").is_symlink()


def test_a_link_that_is_made_at_the_last_moment_is_not_followed(tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.write_bytes(b"of somebody else")
    whole = disk.Path.unlink
    monkeypatch.setattr(
        disk.Path, "unlink", lambda path, missing_ok=False: (whole(path, missing_ok), path.symlink_to(other))
    )
    with pytest.raises(OSError):
        replace(tmp_path / "x", b"new")
    assert other.read_bytes() == b"of somebody else"


def test_two_that_write_at_once_do_not_mix(tmp_path, monkeypatch):
    path = tmp_path / "x"

    def other_first(file, whole=os.fsync):
        monkeypatch.undo()
        whole(file)
        replace(path, b"of the other")

    monkeypatch.setattr(disk.os, "fsync", other_first)
    with pytest.raises(OSError, match="another process"):
        replace(path, b"mine")
    assert path.read_bytes() == b"of the other"


def test_a_seal_holds_what_it_seals():
    content = seal(b'{"sha256": "' + b"0" * 64 + b'", "a": "' + b"0" * 64 + b'"}')
    digest = json.loads(content)["sha256"]
    assert is_sealed(content, digest)
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1
        assert not is_sealed(bytes(changed), digest)
    assert not is_sealed(content, "") and not is_sealed(content, "0" * 64)


FILE = RunFile("store", "test", 1, "remove it")
ARRAYS = {"x": np.arange(5.0), "y": np.zeros((2, 0), np.int8), "z": np.array(3, np.int32)}


def test_every_flipped_bit_of_a_run_file_is_seen(tmp_path):
    path = tmp_path / "run"
    FILE.write(path, ARRAYS, {"a": 1}, more=[1, 2])
    header, arrays = FILE.read(path, {"a": 1}, {"more": [int]})
    assert header["more"] == [1, 2] and all(np.array_equal(arrays[name], ARRAYS[name]) for name in ARRAYS)
    data = path.read_bytes()
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=r"^store must be .*run.*; remove it\.$"):
            FILE.read(path, {"a": 1}, {"more": [int]})


def test_a_run_file_of_the_first_version_is_read(tmp_path):
    path, header = tmp_path / "run", {"format": "test", "version": 1, "settings": None, "more": 2}
    path.write_bytes(safetensors.numpy.save(ARRAYS, {"clusterjax": json.dumps(header)}))
    assert FILE.read(path, None)[0]["more"] == 2


def forged(**changes):
    """A file of one tensor whose header claims something else."""
    tensor = {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]} | changes
    header = json.dumps({"x": tensor}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(16)


@pytest.mark.parametrize(
    ("data", "words"),
    (
        (b"", "ends before its header"),
        ((2**60).to_bytes(8, "little") + b"{}", "ends before its header"),
        (forged(shape=[2**40]), "'x' is not where its header says"),
        (forged(shape=[-2]), "from 0"),
        (forged(shape=[2**62, 2**62, 2**62]), "'x' is not where"),
        (forged(shape=[True]), "in place of an integer"),
        (forged(data_offsets=[8, 24]), "'x' is not where"),
        (forged(data_offsets=[0, 24], shape=[3]), "'x' is not where"),
        (forged(data_offsets=[0, 8], shape=[1]), "another length"),
        (forged(data_offsets=[]), "'x' is not where"),
        (forged(dtype="F8_E4M3", shape=[16]), "'F8_E4M3', which is not read"),
        (forged(dtype=7), "in place of a text"),
        (forged(data_offsets=[0, 0], shape=[0, 2**62]), "(no such shape|another length)"),
        (forged(more=1), "'more' is not expected"),
    ),
)
def test_a_header_is_held_against_the_file(data, words):
    with pytest.raises(ValueError, match=words):
        read_arrays(data)


def test_arrays_are_what_the_library_writes():
    kinds = "f8 f4 f2 i8 i4 i2 i1 u8 u4 u2 u1 ?".split()
    arrays = {kind: np.arange(6).reshape(2, 3).astype(kind) for kind in kinds}
    found = read_arrays(safetensors.numpy.save(arrays, {"a": "b"}), lambda name: name != "f2")
    assert found.metadata == {"a": "b"} and found.left_out == ("f2",) and set(found.arrays) == set(kinds) - {"f2"}
    for name, array in found.arrays.items():
        assert array.dtype == arrays[name].dtype and np.array_equal(array, arrays[name])
