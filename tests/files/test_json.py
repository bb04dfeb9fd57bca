"""JSON that is too large, too deep, not finite or of another form is refused in one sentence."""

import json
import os
from pathlib import Path

import pytest

from clusterjax._files.json import Within, misfit, open_regular, parse, read_bounded, read_json, read_regular


def said(data, form=object, **options):
    """Returns the error about JSON that is refused."""
    with pytest.raises(ValueError, match=r"^store must .*'it'.*; fetch it again\.$") as caught:
        parse(data, form, "'it'", "store", "fetch it again", **options)
    return str(caught.value)


def read(data, form=object, **options):
    return parse(data, form, "'it'", "store", "fetch it again", **options)


VALUES = [None, True, 0, -3, 1.5, 'a\\"[{é', [], {}, {"a": [1, {"b": None}]}, 2**64 - 1, "\U0001f600"]


@pytest.mark.parametrize("ascii", (True, False))
def test_reads_what_json_writes(ascii):
    assert read(json.dumps(VALUES, ensure_ascii=ascii)) == VALUES
    assert read(json.dumps(VALUES, ensure_ascii=ascii, indent=1).encode()) == VALUES
    assert read("\ufeff[]") == []
    assert isinstance(read(str(10**30)), float), "more than 64 bits"


@pytest.mark.parametrize(
    ("data", "words"),
    (
        ("", "Expecting value"), ('{"a": 1', "not"), ("[1] 2", "Extra data"), (b"\xff", "not in UTF-8"),
        ("[NaN]", "NaN is no number"), ("[-Infinity]", "-Infinity is no number"), ('"\\ud800"', "UTF-8"),
        ("[" * 200_000, "nested too deep"), ("[1e999]", "1e999 is beyond all floats"), (f"[{10**400}]", "beyond all"),
    ),
    ids=range(10),
)  # fmt: skip
def test_refuses(data, words):
    assert words in said(data)


def test_nan_is_read_where_it_is_allowed():
    values = read("[NaN, -Infinity]", finite=False)
    assert values[0] != values[0] and values[1] == float("-inf")


@pytest.mark.parametrize(
    ("value", "form", "words"),
    (
        (1, str, "the whole is 1 in place of a text"),
        (True, int, "the whole is true in place of an integer"),
        (1.5, int, "the whole is 1.5 in place of an integer"),
        (None, float, "the whole is null in place of a number"),
        ([1, "a"], [int], '1 is "a" in place of an integer'),
        ([1, True], [int], "1 is true in place of an integer"),
        (["a", None], [str], "1 is null in place of a text"),
        ([6, 7, 3], [Within(int, 0, 6)], "1 is 7 from 0 to 6"),
        ([0, 3, -1], [Within(int, 0, 6)], "2 is -1 from 0 to 6"),
        ([1, 1.5], [Within(int, 0, 6)], "1 is 1.5 in place of an integer"),
        ({"a": {"b": []}}, {"a": {"b": dict}}, "a.b is a list in place of an object"),
        ({}, {"a": int}, "'a' is missing"),
        ({"a": {}}, {"a": {"b": object}}, "'b' is missing at a"),
        ({"a": 1}, {"b?": int, str: ()}, "'a' is not expected"),
        ({"a": 1, "b": 2}, {"a": int, str: str}, "b is 2 in place of a text"),
        (7, Within(int, 0, 6), "the whole is 7 from 0 to 6"),
        ("c", ("a", "b"), "the whole is \"c\" in place of 'a' or 'b'"),
        (1, (None, str), "the whole is 1 in place of null or a text"),
        ({"a": 1}, (None, {"a": str}), "a is 1 in place of a text"),
        (1, True, "the whole is 1 in place of True"),
        ([1], [int, str], "the whole is a list of 1 in place of 2"),
        ([1, 2], [int, str], "1 is 2 in place of a text"),
        ([["x"]], lambda value: [[int]], '0.0 is "x" in place of an integer'),
        ("x" * 100, int, "x..."),
    ),
)
def test_what_does_not_fit_is_named(value, form, words):
    found = misfit(value, form)
    assert found is not None and words.replace(" from", " in place of from") in found


@pytest.mark.parametrize(
    ("value", "form"),
    (
        (1, float), (1.5, float), (None, object), ([], [int]), ({"a": 1}, {"b?": int}), ({"a": 1}, {str: int}),
        (6, Within(int, 0, 6)), (0.5, Within(float, 0, 1)), (None, (int, None)), ([1, "a"], [int, str]),
        ("a", ("a", "b")), ([], [Within(int, 1, 2)]), ([2, 1], [Within(int, 1, 2)]), (["a", "b"], [str]),
    ),
)  # fmt: skip
def test_what_fits_is_taken(value, form):
    assert misfit(value, form) is None


def test_a_file_is_bounded(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("[1, 2]")
    assert read_json(path, [int], argument="store", remedy="mend it") == [1, 2]
    with pytest.raises(ValueError, match=r"^store must have at most 5 bytes, but '.*a.json' has more; mend it\.$"):
        read_bounded(path, 5, "store", "mend it")
    with pytest.raises(ValueError, match=r"^store must be a file that can be read, but '.*b.json' cannot .*; mend it"):
        read_json(tmp_path / "b.json", object, argument="store", remedy="mend it")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    """A named pipe, whose reader would wait for a writer, an endless device, a folder and links to them are refused."""
    os.mkfifo(tmp_path / "pipe")
    kinds = {tmp_path / "pipe": "a named pipe", Path("/dev/zero"): "a device", tmp_path: "a folder"}
    for number, (path, kind) in enumerate(kinds.items()):
        link = tmp_path / f"link{number}"
        link.symlink_to(path)
        for name in (path, link):
            with pytest.raises(
                ValueError, match=f"^store must be a file that can be read, but '{name}' .*it is {kind}"
            ):
                read_json(name, object, argument="store", remedy="mend it")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_what_is_no_regular_file_is_not_opened(tmp_path, monkeypatch):
    """Some devices act when they are opened."""
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("it was opened"))
    with pytest.raises(OSError, match="it is a named pipe and no regular file"):
        open_regular(tmp_path / "pipe")


def test_a_file_that_memory_does_not_hold_is_not_read(tmp_path, monkeypatch):
    """A sparse file takes no space on the disk, whatever its size."""
    path = tmp_path / "sparse"
    with open(path, "wb") as file:
        file.truncate(2**28)
    monkeypatch.setattr("clusterjax._base.checks.memory_room", lambda device: 2**27)
    with pytest.raises(OSError, match=f"it has {2**28} bytes, more than {2**27}"):
        read_regular(path)
