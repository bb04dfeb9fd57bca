"""The small trained language model that the package contains."""

from pathlib import Path
from typing import Any

from .._check import check_path
from .._corpus import read_tokenizer
from .._disk import begin_reading, read_checked_json


BUNDLED = Path(__file__).parent / "data"
TRAINING = "training.json"


def bundled_training() -> dict[str, Any]:
    """The record of the training of the bundled language model: its recipe, its losses, and the `DepthProfile` of
    snapshots during training, as means and standard errors.
    """
    return read_checked_json(BUNDLED / TRAINING, dict, "folder", "install clusterjax again", finite=False)


def load_tokenizer(folder: str | Path | None = None) -> Any:
    """Load the tokenizer of a language model, as an object of the library tokenizers.

    **Arguments:**

    - `folder`: A folder that `train_language_model` wrote; None is the bundled model.

    **Returns:**

    A `tokenizers.Tokenizer`.

    **Raises:**

    - `ValueError` if the folder has no tokenizer, or the tokenizer cannot be read.
    """
    folder = BUNDLED if folder is None else check_path(folder, "folder")
    # A replacement of the folder that was interrupted is finished before its files are read.
    begin_reading(folder, "folder", "save it again")
    must = "folder must hold a tokenizer.json"
    return read_tokenizer(folder / "tokenizer.json", must, "name the folder of a language model")
