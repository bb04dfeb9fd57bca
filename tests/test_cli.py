"""The command meets bad input with one sentence, exit status 2, and nothing written."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from clusterjax._cli import main
from clusterjax.experiments._checkpoint import LAYER, bundled_spectra, leading_block, value_spectra


PLBERT = Path(__file__).resolve().parents[2] / "shared" / "data" / "albert-plbert"


def as_bytes(array, dtype):
    if dtype == "BF16":  # the upper half of a float32
        return (np.asarray(array, "<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return np.asarray(array, {"F64": "<f8", "F32": "<f4", "F16": "<f2"}[dtype]).tobytes()


def write_checkpoint(folder, tensors, heads=2, dtype="F32"):
    """A safetensors file by hand: length, header, numbers."""
    folder.mkdir()
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, array in tensors.items():
        raw = as_bytes(array, dtype)
        header[name] = {
            "dtype": dtype,
            "shape": list(np.shape(array)),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps({"num_attention_heads": heads}))
    return folder


def albert(rng, d=6):
    return {LAYER + "value.weight": rng.normal(size=(d, d)), LAYER + "dense.weight": rng.normal(size=(d, d))}


def refused(capsys, *argv):
    """The one line that the command prints when it refuses a call."""
    status = main(["reproduce", *map(str, argv)])
    output = capsys.readouterr()
    assert status == 2 and output.out == "" and output.err.count("\n") == 1 and "Traceback" not in output.err
    return output.err


def test_unknown_figure(capsys, tmp_path):
    assert "no 'figure12'; choose of figure3" in refused(capsys, "figure12", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_folder_that_cannot_be_written(capsys, tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert "out must be a folder that can be written" in refused(capsys, "--out", tmp_path / "file")
    assert "choose another" in refused(capsys, "--out", tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text() == "in the way"


def test_checkpoint_that_is_missing(capsys, tmp_path):
    text = refused(capsys, "--albert", tmp_path / "nowhere", "--out", tmp_path / "out")
    assert "albert must be a checkpoint, but there is no file" in text and not (tmp_path / "out").exists()


@pytest.mark.parametrize("kept", (0, 5, 40, 500), ids=lambda kept: f"{kept}-bytes")
def test_checkpoint_that_is_truncated(capsys, tmp_path, kept):
    folder = write_checkpoint(tmp_path / "model", albert(np.random.default_rng(0)))
    whole = (folder / "model.safetensors").read_bytes()
    assert kept < len(whole)
    (folder / "model.safetensors").write_bytes(whole[:kept])
    text = refused(capsys, "--albert", folder, "--out", tmp_path / "out")
    assert "albert must be a whole safetensors file" in text and "fetch it again" in text
    assert not (tmp_path / "out").exists()


def test_checkpoint_of_another_model(capsys, tmp_path):
    folder = write_checkpoint(tmp_path / "model", {"bert.encoder.layer.0.weight": np.eye(3)})
    text = refused(capsys, "--albert", folder, "--out", tmp_path / "out")
    assert "albert must be the checkpoint of an ALBERT model" in text and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "header", (b"[]", b"null", b'{"a": 1}', b"\xff\xff", b'{"%svalue.weight": 3}' % LAYER.encode()), ids=str
)
def test_checkpoint_with_a_strange_header(capsys, tmp_path, header):
    folder = write_checkpoint(tmp_path / "model", albert(np.random.default_rng(0)))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert "albert must be" in refused(capsys, "--albert", folder, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_checkpoint_whose_offsets_do_not_fit(capsys, tmp_path):
    folder = write_checkpoint(tmp_path / "model", albert(np.random.default_rng(0)))
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole.replace(b"[0, 144]", b"[0, 140]"))
    assert "albert must be a whole safetensors file" in refused(capsys, "--albert", folder, "--out", tmp_path / "out")


def test_checkpoint_without_a_usable_configuration(capsys, tmp_path):
    folder = write_checkpoint(tmp_path / "model", albert(np.random.default_rng(0)), heads=4)
    assert "heads that divide its hidden size" in refused(capsys, "--albert", folder, "--out", tmp_path / "out")
    (folder / "config.json").unlink()
    assert "config.json beside its weights" in refused(capsys, "--albert", folder, "--out", tmp_path / "out")


@pytest.mark.parametrize(
    ("option", "value", "words"),
    (("--starts", "1", "at least 2"), ("--seed", "-1", "between 0 and"), ("--formats", "gif", "png, svg and pdf")),
)
def test_options_out_of_range(capsys, tmp_path, option, value, words):
    assert words in refused(capsys, option, value, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("argv", ([], ["dance"], ["reproduce", "--seed", "x"], ["reproduce", "--nonsense"]), ids=str)
def test_wrong_calls_are_met_with_one_line(capsys, argv):
    with pytest.raises(SystemExit) as stop:
        main(argv)
    output = capsys.readouterr()
    assert stop.value.code == 2 and output.out == "" and output.err.count("\n") == 1 and "--help" in output.err


def test_command_leaves_the_precision_as_it_was(monkeypatch, tmp_path, capsys):
    seen = []

    def run(names, out, settings, files, **options):
        seen.append((jax.config.jax_enable_x64, files.formats))
        return []

    monkeypatch.setattr("clusterjax.experiments.reproduce", run)
    jax.config.update("jax_enable_x64", False)
    try:
        assert main(["reproduce", "--formats", "pdf", "--out", str(tmp_path)]) == 0
        assert not jax.config.jax_enable_x64
    finally:
        jax.config.update("jax_enable_x64", True)
    assert seen == [(True, ("png", "pdf"))]


@pytest.mark.parametrize(("error", "status"), ((KeyboardInterrupt(), 130), (OSError("disk full"), 2)), ids=str)
def test_what_goes_wrong_on_the_way_is_one_line(monkeypatch, tmp_path, capsys, error, status):
    def run(*arguments, **options):
        raise error

    monkeypatch.setattr("clusterjax.experiments.reproduce", run)
    assert main(["reproduce", "--out", str(tmp_path)]) == status
    assert capsys.readouterr().err.count("\n") == 1


def test_help_shows_an_example(capsys):
    for argv in (["--help"], ["reproduce", "--help"]):
        with pytest.raises(SystemExit) as stop:
            main(argv)
        assert stop.value.code == 0 and "example: clusterjax reproduce" in capsys.readouterr().out


def test_module_runs_as_a_command():
    env = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-m", "clusterjax", "--version"], capture_output=True, text=True, env=env)
    assert done.returncode == 0 and done.stdout.startswith("clusterjax ")
    wrong = subprocess.run([sys.executable, "-m", "clusterjax", "dance"], capture_output=True, text=True, env=env)
    assert wrong.returncode == 2 and "Traceback" not in wrong.stderr


def test_spectra_are_those_of_the_full_operators(tmp_path):
    """Each head's small product has the non-zero eigenvalues of the operator on the whole residual stream."""
    tensors = albert(np.random.default_rng(1))
    found = value_spectra(write_checkpoint(tmp_path / "model", tensors))
    value, dense = (np.asarray(tensors[LAYER + name + ".weight"], "f4").astype(float) for name in ("value", "dense"))
    for head in range(2):
        rows = slice(3 * head, 3 * head + 3)
        full = np.linalg.eigvals(dense[:, rows] @ value[rows])
        expected = full[np.argsort(-np.abs(full))][:3]
        got = np.array([complex(*pair) for pair in found["eigenvalues"][head]])
        np.testing.assert_allclose(np.sort_complex(got), np.sort_complex(expected), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("dtype", "tolerance"), (("F64", 1e-12), ("F32", 1e-6), ("F16", 2e-3), ("BF16", 2e-2)))
def test_checkpoints_of_every_precision_and_with_a_prefix_are_read(tmp_path, dtype, tolerance):
    """As published checkpoints have it: names begin with `albert.`, and numbers are of two, four or eight bytes."""
    tensors = albert(np.random.default_rng(2))
    exact = value_spectra(write_checkpoint(tmp_path / "exact", tensors, dtype="F64"))
    folder = write_checkpoint(
        tmp_path / "model", {"albert." + name: array for name, array in tensors.items()}, 2, dtype
    )
    np.testing.assert_allclose(value_spectra(folder)["eigenvalues"], exact["eigenvalues"], atol=10 * tolerance)


def test_leading_block_has_the_leading_eigenvalues():
    eigenvalues = np.array([2 + 1j, 2 - 1j, 3.0, -4.0, 1.0])
    block = leading_block(eigenvalues)
    np.testing.assert_allclose(block, [[3, 0, 0], [0, 2, -1], [0, 1, 2]])
    np.testing.assert_allclose(leading_block(np.array([5.0, 4.0, 2 + 1j, 2 - 1j, 1.0])), np.diag([5.0, 4.0, 1.0]))
    with pytest.raises(ValueError, match="must fill 3 places"):
        leading_block(np.array([1.0, 2.0]))


@pytest.mark.skipif(not PLBERT.is_dir(), reason="the PL-BERT checkpoint is not beside the repository (shared/data)")
def test_bundled_spectra_are_those_of_the_checkpoint():
    bundled, found = bundled_spectra(), value_spectra(PLBERT)
    assert bundled["sha256"] == found["sha256"] and bundled["heads"] == found["heads"] == 12
    np.testing.assert_allclose(bundled["eigenvalues"], found["eigenvalues"], rtol=1e-6, atol=1e-8)


def test_bundled_spectra_say_where_they_are_from():
    bundled = bundled_spectra()
    assert {"model", "licence", "caveats", "operator", "computed_by", "sha256"} <= set(bundled)
    assert np.shape(bundled["eigenvalues"]) == (12, 64, 2)
