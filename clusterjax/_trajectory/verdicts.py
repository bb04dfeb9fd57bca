"""How runs ended: the results of diffrax, by name and by number."""

from typing import Any

import diffrax as dfx
import jax.tree_util as jtu
import numpy as np


def codes() -> dict[str, int]:
    """The number of each result, by name; the numbers differ between versions of diffrax."""
    return {name: int(jtu.tree_leaves(item)[0]) for name, item in dfx.RESULTS._name_to_item.items()}


def verdicts(result: Any) -> np.ndarray:
    """The name of the result of each run of a batch, such as "successful" or "event_occurred"."""
    names = {code: name for name, code in codes().items()}
    numbers = np.asarray(jtu.tree_leaves(result)[0])
    return np.asarray([names[int(code)] for code in numbers.reshape(-1)]).reshape(numbers.shape)
