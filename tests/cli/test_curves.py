"""`train` draws the recorded history once, beside the model; a picture that fails leaves the model as it is."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from clusterjax import _cli
from clusterjax._files.sealed import MODEL, SealedFile
from clusterjax.plot._curves import _described, leave_curves
from clusterjax.plot._series import training_curves


HISTORY = [
    {"loss": 3.0 / k, "accuracy": 0.1 * k, "seconds": 1.0, "held-out loss": 3.2 / k, "held-out accuracy": 0.09 * k}
    for k in range(1, 7)
]
RECIPE = {"steps": 13, "epoch_steps": 3}
REPORT = {"recipe": RECIPE, "unigram loss": 2.5, "bigram loss": 2.0}
PNG = b"\x89PNG\r\n\x1a\n"


def folder_of(place, history=HISTORY, report=REPORT):
    SealedFile("out", "test", 1, "").write(place / MODEL, {}, None, history=history, report=report)
    return place


def lines_of(figure, panel):
    """The curves of a panel, by label."""
    return {
        line.get_label(): np.stack(line.get_data())
        for line in figure.axes[panel].lines
        if not line.get_label().startswith("_") and len(line.get_xdata()) > 2
    }


def marks_of(figure, panel):
    """The places of the vertical lines."""
    return [line.get_xdata()[0] for line in figure.axes[panel].lines if list(line.get_ydata()) == [0, 1]]


def test_curves_are_the_recorded_numbers():
    """The curves are drawn at the last steps of the epochs."""
    history = HISTORY[:5]
    figure = training_curves(history, **_described(REPORT, 5))
    for panel, name in enumerate(("loss", "accuracy")):
        found = lines_of(figure, panel)
        assert list(found) == ["training", "held out"]
        for label, key in (("training", name), ("held out", f"held-out {name}")):
            np.testing.assert_array_equal(found[label], [[3, 6, 9, 12, 13], [row[key] for row in history]])
        assert marks_of(figure, panel) == []
        assert figure.axes[panel].get_xlabel() == "training step"
    levels = [line.get_ydata()[0] for line in figure.axes[0].lines if list(line.get_xdata()) == [0, 1]]
    assert sorted(levels) == [2.0, 2.5]
    assert {text.get_text() for text in figure.axes[0].texts} == {"by frequency", "by the word before"}


def test_stages_and_best_epochs_are_marked():
    staged = {"recipe": {"steps": 20, "epoch_steps": 2, "stages": [[1, 8, 0.4], [1, 16, 0.6], [2, 16, 1.0]]}}
    found = _described(staged, 10)
    assert found["marks"] == {"next stage": [8, 12]} and found["at"] == list(range(2, 21, 2))
    history = [{"loss": 1.0, "accuracy": 0.5, "validation loss": 0.9, "validation accuracy": 0.6, "alpha": 1.0}] * 4
    figure = training_curves(history, **_described({"settings": {}, "best_epoch": 3}, 4))
    assert list(lines_of(figure, 1)) == ["training", "validation"] and marks_of(figure, 1) == [3]
    assert figure.axes[1].get_xlabel() == "epoch"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "training", "validation", "best epoch",
    ]  # fmt: skip


def test_it_is_left_beside_the_model(tmp_path):
    folder, lines = folder_of(tmp_path / "model"), []
    leave_curves(folder, lines.append)
    first = (folder / "curves.png").read_bytes()
    assert lines == [f"curves are in {folder / 'curves.png'}"] and first[:8] == PNG
    assert len(list(folder.iterdir())) == 2
    leave_curves(folder, lines.append)
    assert (folder / "curves.png").read_bytes() == first, "the same history, the same bytes"
    leave_curves(folder_of(folder, HISTORY[:4]), lines.append)
    assert (folder / "curves.png").read_bytes() != first, "the picture is of the model that is there"
    (folder / "curves.png").write_bytes(PNG + b"of another program")
    with pytest.raises(ValueError, match="out must hold no file of another program that would be replaced, but .*curv"):
        leave_curves(folder, lines.append)


def test_a_picture_that_cannot_be_written_leaves_the_model(tmp_path, monkeypatch):
    folder = folder_of(tmp_path / "model")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def broken(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(Figure, "savefig", broken)
    with pytest.raises(KeyboardInterrupt):
        leave_curves(folder, lambda line: None)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_without_matplotlib_a_sentence_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(_cli, "find_spec", lambda name: None)
    assert _cli._leave_curves(str(folder_of(tmp_path / "model"))) == 0
    assert "install it with: pip install 'clusterjax[plot]'" in capsys.readouterr().out
    assert not (tmp_path / "model" / "curves.png").exists()


def test_a_folder_without_history_has_no_picture(tmp_path):
    leave_curves(tmp_path, pytest.fail)
    assert list(tmp_path.iterdir()) == []
    folder_of(tmp_path, history=[{"loss": "x"}])
    with pytest.raises(ValueError, match="out must hold a history of numbers, but .*model.safetensors' has none"):
        leave_curves(tmp_path, print)
