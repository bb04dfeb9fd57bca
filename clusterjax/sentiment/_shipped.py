"""What comes with the package: two classifiers of the 50,000 film reviews, with what was counted of them.

Each is a folder of `data` as `sentiment.save` writes it, compact. `d2` also holds `log_ratio.safetensors`, the
naive-Bayes log ratio of each word, and `leaders.json`, what was counted of its leaders over the test reviews: the
reviews themselves are not here. Made by `benchmarks/sentiment_shipped.py`.
"""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from .._arrays import read_arrays
from .._check import check_path
from .._disk import CHECKSUMS, check, checksum, read_checked_json
from .._json import MOST_BYTES, read_bounded


SHIPPED = Path(__file__).parent / "data"
DEFAULT, HEADS = "d2", "heads"
NAMES = (DEFAULT, HEADS)
RATIO, LEADERS = "log_ratio.safetensors", "leaders.json"
_REMEDY = "install clusterjax again"


def find_shipped(folder: Any) -> Path:
    """The folder of a model: that of this name, or one of the package if there is none; None is its first."""
    if folder is None:
        return SHIPPED / DEFAULT
    path = check_path(folder, "folder")
    # A folder of one's own goes before, so that its meaning does not change with the version of the package.
    return SHIPPED / str(folder) if str(folder) in NAMES and not path.exists() else path


def log_ratios() -> Float[np.ndarray, " words"]:
    """The naive-Bayes log ratio of each id of the first classifier, counted on its training part.

    **Raises:**

    - `ValueError` if the file is missing or damaged.
    """
    path = SHIPPED / DEFAULT / RATIO
    arrays = read_arrays(read_bounded(path, MOST_BYTES, "folder", _REMEDY)).arrays
    check(path, "folder", _REMEDY)
    return np.asarray(arrays["log_ratio"], np.float64)


def leaders_record() -> dict[str, Any]:
    """What was counted of the leaders of the first classifier, of how many words a review and of how many reviews.

    **Raises:**

    - `ValueError` if the file is missing or damaged.
    """
    form = {"counted": dict, "words": int, "reviews": int}
    return read_checked_json(SHIPPED / DEFAULT / LEADERS, form, "folder", _REMEDY, finite=False)


def shipped_digest() -> str:
    """A hash of all files of the first classifier."""
    return checksum(read_bounded(SHIPPED / DEFAULT / CHECKSUMS, MOST_BYTES, "folder", _REMEDY))
