"""What comes with the package: a small trained ALBERT, and texts that it has not seen."""

import json
from pathlib import Path
from typing import Any


BUNDLED = Path(__file__).parent / "data"
NAME = "clusterjax-albert"
TEXTS, TRAINING = "texts.txt", "training.json"


def bundled_texts() -> list[str]:
    """Passages of Wikipedia, one paragraph each, of which the ALBERT of the package has seen none.

    They are from the test part of WikiText-2, under the licence CC BY-SA.

    ??? cite "Source"

        Merity et al., *Pointer sentinel mixture models* (1609.07843), Section 4.3.
    """
    return [line for line in (BUNDLED / TEXTS).read_text("utf-8").splitlines() if line]


def bundled_training() -> dict[str, Any]:
    """How the ALBERT of the package was trained: its recipe, its losses, and how its tokens cluster at snapshots along
    the way.

    Source: this library.
    """
    return json.loads((BUNDLED / TRAINING).read_text("utf-8"))
