"""What comes with the package: a small trained language model."""

import json
from pathlib import Path
from typing import Any


BUNDLED = Path(__file__).parent / "data"
TRAINING = "training.json"


def bundled_training() -> dict[str, Any]:
    """How the language model of the package was trained: its recipe, its losses, and the `DepthProfile` of snapshots
    along the way, as means and standard errors.

    Source: this library.
    """
    return json.loads((BUNDLED / TRAINING).read_text("utf-8"))


def load_tokenizer(folder: str | Path | None = None) -> Any:
    """The tokenizer of a language model, as the library tokenizers has it.

    **Arguments:**

    - `folder`: One that `train_language_model` wrote; None is the model of the package.

    **Returns:**

    A `tokenizers.Tokenizer`.

    **Raises:**

    - `ValueError` if there is none, or it is broken.

    Source: this library.
    """
    import tokenizers

    path = (BUNDLED if folder is None else Path(folder)) / "tokenizer.json"
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(
            f"folder must hold a tokenizer.json, but {str(path)!r} cannot be read ({error}); name the folder of a "
            "language model."
        ) from None
