"""The picture of the curves of a training, which stands beside the model."""

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .._files.json import misfit, read_regular
from .._files.sealed import MODEL, SealedFile, stranger, write_file
from ._series import training_curves


def leave_curves(out: str | Path, say: Callable[[str], Any]) -> None:
    """Draw the history of the model in the folder `out`, if there is a model, and report the file by `say`."""
    model, picture = Path(out) / MODEL, Path(out) / "curves.png"
    if not model.is_file():
        return
    header, _ = SealedFile("out", None, 0, "train it again", what="model").unpack(model)
    header |= header.get("further", {})
    history, report = header.get("history"), header.get("report")
    if misfit(history, [{str: float}]) is not None or not history or misfit(report, dict) is not None:
        raise ValueError(f"out must hold a history of numbers, but {str(model)!r} has none; train it again.")
    if os.path.lexists(picture) and b"clusterjax" not in read_regular(picture)[:1024]:
        raise stranger("out", picture)
    figure = training_curves(history, **_described(report, len(history)))
    data = io.BytesIO()
    # The picture has no date, so that the same history gives the same bytes.
    figure.savefig(data, format="png", dpi=200, metadata={"Software": "clusterjax"})
    write_file(picture, data.getvalue(), "out")
    say(f"curves are in {picture}")


def _described(report: dict[str, Any], many: int) -> dict[str, Any]:
    """The arguments of `training_curves` for a report: the steps of the `many` entries of its history, and marks."""
    recipe = report.get("recipe")
    if recipe is None:  # of a sentiment classifier, which keeps its best epoch
        return {"at": range(1, many + 1), "xlabel": "epoch", "marks": {"best epoch": [report["best_epoch"]]}}
    steps_until = lambda k: min(k * recipe["epoch_steps"], recipe["steps"])
    epochs = -(-recipe["steps"] // recipe["epoch_steps"])
    # The last stage ends with the run.
    shares = [share for _, _, share in recipe.get("stages", [])][:-1]
    levels = {"bigram loss": "by the word before", "unigram loss": "by frequency"}
    return {
        "at": [steps_until(k) for k in range(1, many + 1)],
        "levels": {words: report[name] for name, words in levels.items() if name in report},
        "marks": {"next stage": [steps_until(round(share * epochs)) for share in shares]},
    }
