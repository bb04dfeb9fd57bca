"""The two classifiers of the 50,000 film reviews that the package contains, with statistics of their words.

Each classifier is a folder in `data` that `sentiment.save` wrote with `compact`. The folder `d2` also contains
`log_ratio.safetensors`, the naive-Bayes log ratio of each word, and `leaders.json`, the counts of leaders over the test
reviews; the package does not contain the reviews. `benchmarks/sentiment_shipped.py` creates the folders.
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
    """The folder of a model: an existing `folder`, or the bundled model of this name; None is the first of these."""
    if folder is None:
        return SHIPPED / DEFAULT
    path = check_path(folder, "folder")
    # An existing folder takes precedence, so that its meaning does not depend on the version of the package.
    return SHIPPED / str(folder) if str(folder) in NAMES and not path.exists() else path


def log_ratios() -> Float[np.ndarray, " words"]:
    """The naive-Bayes log ratio of each id of the first classifier, from its training part.

    **Raises:**

    - `ValueError` if the file is missing or damaged.
    """
    path = SHIPPED / DEFAULT / RATIO
    arrays = read_arrays(read_bounded(path, MOST_BYTES, "folder", _REMEDY)).arrays
    check(path, "folder", _REMEDY)
    return np.asarray(arrays["log_ratio"], np.float64)


def leaders_record() -> dict[str, Any]:
    """The counts of the leaders of the first classifier, with the numbers of words and of reviews.

    **Raises:**

    - `ValueError` if the file is missing or damaged.
    """
    form = {"counted": dict, "words": int, "reviews": int}
    return read_checked_json(SHIPPED / DEFAULT / LEADERS, form, "folder", _REMEDY, finite=False)


def shipped_digest() -> str:
    """A hash that depends on all files of the first classifier."""
    return checksum(read_bounded(SHIPPED / DEFAULT / CHECKSUMS, MOST_BYTES, "folder", _REMEDY))
