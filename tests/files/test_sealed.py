"""A sealed file comes back bit for bit, every damage of it is named, and files of others are kept."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from clusterjax._files.arrays import read_arrays
from clusterjax._files.sealed import (
    MARK,
    MODEL,
    SealedFile,
    check_beside,
    checksum,
    differing,
    format_of,
    is_sealed,
    pack,
    put_file,
    seal,
)


FILE = SealedFile("store", "test", 1, "remove it")
ARRAYS = {"x": np.arange(5.0), "y": np.zeros((2, 0), np.int8), "z": np.array(3, np.int32)}


def test_a_seal_holds_what_it_seals():
    content = seal(b'{"sha256": "' + b"0" * 64 + b'", "a": "' + b"0" * 64 + b'"}')
    digest = json.loads(content)["sha256"]
    assert is_sealed(content, digest)
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1
        assert not is_sealed(bytes(changed), digest)
    assert not is_sealed(content, "") and not is_sealed(content, "0" * 64)


def test_every_flipped_bit_is_seen(tmp_path):
    path = tmp_path / "run"
    FILE.write(path, ARRAYS, {"a": 1}, more=[1, 2])
    header, arrays = FILE.read(path, {"a": 1}, {"more": [int]})
    assert header["more"] == [1, 2] and all(np.array_equal(arrays[name], ARRAYS[name]) for name in ARRAYS)
    data = path.read_bytes()
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=r"^store must be .*run.*; (remove it|read it with the .*)\.$"):
            FILE.read(path, {"a": 1}, {"more": [int]})


def test_other_formats_and_versions_are_named(tmp_path):
    FILE.write(tmp_path / "run", ARRAYS, None)
    with pytest.raises(ValueError, match="store must be a model of this library, but .*run is not; remove it"):
        FILE._replace(format="other", what="model").unpack(tmp_path / "run")
    with pytest.raises(ValueError, match="store must be a file of version 2, but .*run is of version 1; read it with"):
        FILE._replace(version=2).unpack(tmp_path / "run")
    assert FILE._replace(format=None, version=0).unpack(tmp_path / "run")[0]["format"] == "test"
    assert format_of(tmp_path / "run") == "test" and format_of(tmp_path / "none") is None


@pytest.mark.parametrize("value", (7, None, [1], {"format": "test"}, "7"))
def test_a_file_of_others_may_have_anything_under_the_name_of_the_header(tmp_path, value):
    header = json.dumps({"__metadata__": {MARK: value}}).encode()
    (tmp_path / "file").write_bytes(len(header).to_bytes(8, "little") + header)
    assert format_of(tmp_path / "file") is None


KINDS = "f8 f4 f2 i8 i4 i2 i1 u8 u4 u2 u1 ? c8".split()


def test_arrays_are_those_of_the_library_of_safetensors():
    arrays = {kind: np.arange(6).reshape(2, 3).astype(kind) for kind in KINDS} | {"turned": np.ones((2, 3)).T}
    arrays["narrow"] = np.asarray(jnp.arange(3, dtype=jnp.bfloat16))
    arrays["swapped"] = np.arange(3.0).astype(">f8")
    data = pack(arrays, {"a": "b"})
    found = read_arrays(data, lambda name: name != "f2")
    assert found.metadata == {"a": "b"} and found.left_out == ("f2",) and set(found.arrays) == set(arrays) - {"f2"}
    theirs = safetensors.numpy.load(pack({name: arrays[name] for name in KINDS if name != "c8"}, {}))
    assert len(theirs) == 12 and (len(data) - int.from_bytes(data[:8], "little")) % 8 in (0, len(data) % 8)
    for name, array in (*found.arrays.items(), *theirs.items()):
        assert array.dtype.newbyteorder("=") == arrays[name].dtype.newbyteorder("=")
        assert np.array_equal(array, arrays[name])
    theirs = read_arrays(safetensors.numpy.save({"x": arrays["f8"]}, {"a": "b"}))
    assert theirs.metadata == {"a": "b"} and np.array_equal(theirs.arrays["x"], arrays["f8"])


def test_files_of_others_are_kept(tmp_path):
    path = tmp_path / MODEL
    FILE.refuse_stranger(path)
    path.write_bytes(safetensors.numpy.save({"x": np.zeros(3)}))
    with pytest.raises(ValueError, match="^store must hold no file of another program that would be replaced, but .*;"):
        FILE.refuse_stranger(path)
    FILE.write(path, {}, None)
    path.write_bytes(path.read_bytes()[:200])
    FILE.refuse_stranger(path)  # a damaged file is of this library still
    put_file(tmp_path / "config.json", b"{}", "out")
    put_file(tmp_path / "config.json", b"{}", "out")
    with pytest.raises(ValueError, match="^out must hold no file of another program that would be replaced, but .*;"):
        put_file(tmp_path / "config.json", b"[]", "out")
    assert (tmp_path / "config.json").read_bytes() == b"{}"


def test_a_changed_file_beside_a_model_is_named(tmp_path):
    (tmp_path / "config.json").write_bytes(b"{}")
    check_beside(tmp_path / "config.json", "path", "fetch it again")  # there is no model
    FILE.write(tmp_path / MODEL, ARRAYS, None, files={"config.json": checksum(b"{}")})
    check_beside(tmp_path / "config.json", "path", "fetch it again")
    check_beside(tmp_path / "other.json", "path", "fetch it again")
    for content in (b"[]", None):
        (tmp_path / "config.json").unlink() if content is None else (tmp_path / "config.json").write_bytes(content)
        with pytest.raises(ValueError, match="^path must be as it was written, but .*config.json' .*; fetch it again"):
            check_beside(tmp_path / "config.json", "path", "fetch it again")


def test_what_differs_is_named_within_dictionaries():
    one = {"recipe": {"steps": 2, "rate": 0.1}, "seed": 3, "names": ["a"]}
    other = {"recipe": {"steps": 4, "rate": 0.1}, "names": ["a"], "data": "x"}
    assert differing(one, other) == {"recipe.steps": (2, 4), "seed": (3, None), "data": (None, "x")}
    assert differing(one, one) == {}


def forged(**changes):
    """A file of one tensor whose header makes a false claim."""
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
