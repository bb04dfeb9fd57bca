"""The picture of the curves that `train` leaves beside the model."""

import io
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .._files.json import misfit, read_regular
from .._files.lock import locked
from .._files.sealed import MODEL, SealedFile, stranger, write_file


CURVES = "curves.png"
_FILE = SealedFile("out", None, 0, "train it again", what="model")
_LEVELS = {"bigram loss": "by the word before", "unigram loss": "by frequency"}
_DPI = 200


def leave_curves(out: str | Path, say: Callable[[str], Any]) -> None:
    """Draw the history of the model in a folder beside the model, unless the picture of this model is there.

    **Arguments:**

    - `out`: The folder.
    - `say`: A function that receives the path of the picture, or the reason why there is none.

    **Raises:**

    - `ValueError` if the folder cannot be read or written, or has a picture of this name of another program.
    """
    folder = Path(out)
    picture = folder / CURVES
    if not (folder / MODEL).is_file():
        return
    if find_spec("matplotlib") is None:
        say("no picture of the curves: it needs matplotlib; install it with: pip install 'clusterjax[plot]'")
        return
    with locked(folder):
        header, _ = _FILE.unpack(folder / MODEL)
        # The name of the model in the picture tells the picture of this model from one of a former model.
        name = f"clusterjax {header['sha256']}"
        try:
            former = read_regular(picture)[:1024]
        except OSError:
            former = b"clusterjax " if not os.path.lexists(picture) else b""
        if name.encode() in former:
            return
        if b"clusterjax " not in former:
            raise stranger("out", picture)
        write_file(picture, _picture(folder, header, name), "out")
    say(f"curves are in {picture}")


def _picture(folder: Path, header: dict[str, Any], name: str) -> bytes:
    """The picture as PNG, without a date, so that the same history gives the same bytes."""
    from ..plot._series import training_curves

    told = header | header.get("further", {})
    history, report = told.get("history"), told.get("report")
    if misfit(history, [{str: float}]) is not None or not history or misfit(report, dict) is not None:
        raise ValueError(f"out must hold a history of numbers, but {str(folder / MODEL)!r} has none; train it again.")
    figure = training_curves(history, **_described(report, len(history)))
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=_DPI, metadata={"Software": name})
    return data.getvalue()


def _described(report: dict[str, Any], many: int) -> dict[str, Any]:
    """Where the checkpoints of a history stand, and what else is drawn."""
    recipe = report.get("recipe")
    if recipe is None:  # of a sentiment classifier, which keeps its best epoch
        return {"at": range(1, many + 1), "xlabel": "epoch", "marks": {"best epoch": [report["best_epoch"]]}}
    steps_until = lambda k: min(k * recipe["epoch_steps"], recipe["steps"])
    epochs = -(-recipe["steps"] // recipe["epoch_steps"])
    # The last stage ends with the run.
    shares = [share for _, _, share in recipe.get("stages", [])][:-1]
    return {
        "at": [steps_until(k) for k in range(1, many + 1)],
        "levels": {words: report[name] for name, words in _LEVELS.items() if name in report},
        "marks": {"next stage": [steps_until(round(share * epochs)) for share in shares]},
    }
