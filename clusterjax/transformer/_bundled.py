"""What comes with the package: a small trained language model."""

from pathlib import Path
from typing import Any

from .._check import check_path
from .._corpus import read_tokenizer
from .._disk import begin_reading, read_checked_json


BUNDLED = Path(__file__).parent / "data"
TRAINING = "training.json"


def bundled_training() -> dict[str, Any]:
    """How the language model of the package was trained: its recipe, its losses, and the `DepthProfile` of snapshots
    along the way, as means and standard errors.
    """
    return read_checked_json(BUNDLED / TRAINING, dict, "folder", "install clusterjax again", finite=False)


def load_tokenizer(folder: str | Path | None = None) -> Any:
    """The tokenizer of a language model, as the library tokenizers has it.

    **Arguments:**

    - `folder`: One that `train_language_model` wrote; None is the model of the package.

    **Returns:**

    A `tokenizers.Tokenizer`.

    **Raises:**

    - `ValueError` if there is none, or it is broken.
    """
    folder = BUNDLED if folder is None else check_path(folder, "folder")
    # Finishes a replacement of the folder that was interrupted, before its files are read.
    begin_reading(folder, "folder", "save it again")
    must = "folder must hold a tokenizer.json"
    return read_tokenizer(folder / "tokenizer.json", must, "name the folder of a language model")
