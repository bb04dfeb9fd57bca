"""The picture of the curves that `train` leaves beside the model."""

import io
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .._files.json import misfit, read_json
from .._files.lock import locked
from .._files.model_folder import CURVES, HISTORY, REPORT, ModelFolder
from .._training.loop import Legs


_FOLDER = ModelFolder("out", "train it again", "train")
_LEVELS = {"bigram loss": "by the word before", "unigram loss": "by frequency"}
_DPI = 200


def leave_curves(out: str | Path, say: Callable[[str], Any]) -> None:
    """Draw the history of the model in a folder, if its picture is not there, and write it beside the model.

    Of a model that is replaced the picture goes with its other files.

    **Arguments:**

    - `out`: The folder.
    - `say`: Is told where the picture is, or why there is none.

    **Raises:**

    - `ValueError` if the folder cannot be read or written.
    """
    folder = Path(out)
    if (folder / CURVES).is_file() or not (folder / HISTORY).is_file():
        return
    if find_spec("matplotlib") is None:
        say("no picture of the curves: it needs matplotlib; install it with: pip install 'clusterjax[plot]'")
        return
    with locked(folder):
        _FOLDER.add(folder, {CURVES: _picture(folder)})
    say(f"curves are in {folder / CURVES}")


def _picture(folder: Path) -> bytes:
    """The picture as PNG, without a date, so that the same history gives the same bytes."""
    from ..plot._series import training_curves

    history = read_json(folder / HISTORY, object, argument="out", remedy="train it again")
    report = read_json(folder / REPORT, dict, argument="out", remedy="train it again")
    if misfit(history, [{str: float}]) is not None or not history:
        raise ValueError(f"out must hold a history of numbers, but {str(folder / HISTORY)!r} has none; train it again.")
    figure = training_curves(history, **_described(report, len(history)))
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=_DPI, metadata={"Software": None})
    return data.getvalue()


def _described(report: dict[str, Any], many: int) -> dict[str, Any]:
    """Where the checkpoints of a history stand, and what else is drawn."""
    recipe = report.get("recipe")
    if recipe is None:  # of a sentiment classifier, which keeps its best epoch
        marks = {"trained further": report["settings"].get("legs", []), "best epoch": [report["best_epoch"]]}
        return {"at": range(1, many + 1), "xlabel": "epoch", "marks": marks}
    ends = report.get("legs", [])
    legs = Legs(tuple(ends), recipe["steps"], recipe["epoch_steps"])
    first = Legs((), [*ends, legs.total][0], legs.each)
    # The last stage ends with the run.
    shares = [share for _, _, share in recipe.get("stages", [])][:-1]
    return {
        "at": [legs.steps_until(k) for k in range(1, many + 1)],
        "levels": {words: report[name] for name, words in _LEVELS.items() if name in report},
        "marks": {
            "trained further": ends,
            "next stage": [first.steps_until(round(share * first.epochs)) for share in shares],
        },
    }
